"""Negotiation: rules N1-N8, and that everything advertised is answered in every version."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from headrace.broker.api.dispatch import Dispatcher
from headrace.broker.net.reply import CloseConnection, Peer
from headrace.broker.requests.declaration import ApiDeclaration
from headrace.broker.security.principal import ANONYMOUS, Session
from headrace.broker.security.requirement import public
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceRequest
from simulator.direct import direct_broker, response_type

PUBLIC = public()
PEER = Peer(1, "h", 1, "L", Session(ANONYMOUS, "L"))
NAMED = {"client_software_name": "tester", "client_software_version": "1.0"}
MUST = {
    # key: (advertised minimum, maximum)
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9),
    12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6),
    21: (0, 2), 22: (0, 5),
    23: (2, 4), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2),
    37: (0, 3), 38: (1, 3), 39: (1, 2), 40: (1, 2), 41: (1, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1),
    46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 57: (0, 2), 60: (0, 2), 64: (0, 0),
    74: (0, 1), 75: (0, 0),
}  # fmt: skip


def test_n1_an_unknown_version_of_api_versions_is_answered_in_version_0(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            for version in (5, 99):
                # header version 2 and an unknown body
                answer = await broker.send_frame(struct.pack(">hhih", 18, version, 77, -1) + b"\0whatever")
                assert answer == struct.pack(">ih", 77, ErrorCode.UNSUPPORTED_VERSION) + struct.pack(
                    ">ihhh", 1, 18, 0, 4
                )

    asyncio.run(test())


def test_n2_the_header_of_api_versions_has_no_tags_and_others_have(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            header = encode_request_header(RequestHeader(18, 3, 5, "x"), 2)
            answer = await broker.send_frame(header + ApiVersionsRequest(**NAMED).encode(3))
            assert answer[:6] == struct.pack(">ih", 5, 0)
            header = encode_request_header(RequestHeader(3, 9, 6, "x"), 2)
            answer = await broker.send_frame(header + MetadataRequest(topics=[]).encode(9))
            assert answer[:5] == struct.pack(">ib", 6, 0)
            assert decode_response_header(answer, 1) == (6, 5)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [
        (0, 2, r"ProduceRequest version 2 is not supported; supported versions are 3 to 13"),
        (1, 19, r"FetchRequest version 19 is not supported"),
        (22, 6, r"InitProducerIdRequest version 6"),
        (24, 6, r"AddPartitionsToTxnRequest version 6 is not supported; supported versions are 0 to 5"),
        (5, 0, r"API key 5 \(version 0\) is unknown"),
        (-1, 0, r"API key -1"),
    ],
)
def test_n3_unknown_keys_and_versions_close_the_connection(tmp_path, key, version, reason) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            with pytest.raises(CloseConnection, match=reason):
                await broker.send_frame(struct.pack(">hhih", key, version, 1, -1))

    asyncio.run(test())


def test_n4_n5_advertised_apis_and_versions(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            response = await broker.send(ApiVersionsRequest(**NAMED))
            advertised = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
            assert {key: advertised.get(key) for key in MUST} == MUST
            assert list(advertised) == sorted(advertised)
            assert 55 not in advertised, "it is answered, and only refused"
            assert advertised[24] == (0, 5), (
                "4 and more are between brokers, which ask for many producers at once"
            )
            finalized = {f.name: f.max_version_level for f in response.finalized_features}
            assert finalized == {
                "headrace.metadata.version": 1,
                "group.version": 1,
                "transaction.version": 2,
            }

    asyncio.run(test())


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "ü"])
def test_n6_a_bad_software_name_is_an_invalid_request(tmp_path, name) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
            assert (await broker.send(request, 3)).error_code == ErrorCode.INVALID_REQUEST
            assert (await broker.send(request, 2)).error_code == 0

    asyncio.run(test())


def test_n8_unknown_tagged_fields_are_skipped(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("t")
            body = ListOffsetsRequest(topics=[]).encode(6)
            assert body[-1] == 0  # the number of tagged fields
            header = struct.pack(">hhih", 2, 6, 1, -1) + b"\x01\x05\x02ab"
            answer = await broker.send_frame(header + body[:-1] + b"\x01\x07\x03xyz")
            assert decode_response_header(answer, 1)[0] == 1

    asyncio.run(test())


def test_everything_advertised_is_answered_in_every_version(tmp_path) -> None:
    """A request with only default values; it must be answered, and the answer must be readable."""
    defaults = {ApiVersionsRequest: NAMED, ProduceRequest: {"acks": 1}, FetchRequest: {"max_wait_ms": 0}}

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            for declaration in broker.broker.dispatcher._declarations.values():
                assert response_type(declaration.request) is declaration.response
                for version in range(declaration.min_version, declaration.max_version + 1):
                    request = declaration.request(**defaults.get(declaration.request, {}))
                    async with asyncio.timeout(60):
                        assert await broker.send(request, version) is not None, (declaration.request, version)

    asyncio.run(test())


def test_malformed_frames_close_the_connection_and_never_anything_worse(tmp_path, caplog) -> None:
    """Mutations of real requests: an answer or CloseConnection, no other exception and no traceback."""
    chance = random.Random(42)

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("t")
            frames = []
            for declaration in broker.broker.dispatcher._declarations.values():
                if declaration.key in (11, 14) or declaration.key >= 10000:
                    continue  # these may wait for other members
                version = declaration.max_version
                header = RequestHeader(declaration.key, version, 1, "c")
                head = encode_request_header(header, declaration.request.header_version(version))
                frames.append(head + declaration.request().encode(version))
            closed = 0
            for _ in range(3000):
                frame = bytearray(chance.choice(frames))
                for _ in range(chance.randint(1, 4)):
                    where = chance.randrange(len(frame))
                    kind = chance.randrange(3)
                    if kind == 0:
                        frame[where] = chance.randrange(256)
                    elif kind == 1:
                        del frame[where:]
                        frame = frame or bytearray(1)
                    else:
                        frame[where:where] = chance.randbytes(chance.randint(1, 8))
                try:
                    async with asyncio.timeout(0.2):
                        await broker.send_frame(bytes(frame))
                except CloseConnection:
                    closed += 1
                except TimeoutError:
                    pass  # a fetch that was told to wait
            assert closed > 300

    asyncio.run(test())
    assert not [record for record in caplog.records if record.exc_info]


class Raising:
    """A dispatcher for one API whose handler raises."""

    def __init__(self, error: Exception, *, late: bool = False, **declared) -> None:
        def handler(context, request):
            if late:
                return self.later(error)
            raise error

        self.dispatcher = Dispatcher(
            [
                ApiDeclaration(
                    InitProducerIdRequest, response_type(InitProducerIdRequest), handler, PUBLIC, **declared
                )
            ]
        )

    async def later(self, error: Exception):
        await asyncio.sleep(0)
        raise error

    async def answer(self):
        frame = encode_request_header(RequestHeader(22, 1, 9, None), 1) + InitProducerIdRequest().encode(1)
        answer = self.dispatcher(PEER, frame)
        if hasattr(answer, "outcome"):
            outcome = asyncio.ensure_future(answer.outcome)
            await asyncio.wait([outcome])
            answer = answer.finish(outcome)
        return response_type(InitProducerIdRequest).decode(b"".join(answer)[4:], 1)


@pytest.mark.parametrize("late", [False, True])
def test_exceptions_of_handlers_become_error_codes_in_one_place(late, caplog) -> None:
    async def test() -> None:
        response = await Raising(KafkaError(ErrorCode.INVALID_REQUEST, "no"), late=late).answer()
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert not caplog.records
        response = await Raising(ZeroDivisionError("oops"), late=late).answer()
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert caplog.records[-1].exc_info
        with pytest.raises(CloseConnection):
            await Raising(CloseConnection("bye"), late=late).answer()

    asyncio.run(test())


def test_an_api_without_a_place_for_errors_closes_the_connection() -> None:
    def handler(context, request):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no")

    dispatcher = Dispatcher(
        [ApiDeclaration(CreatePartitionsRequest, CreatePartitionsResponse, handler, PUBLIC)]
    )
    frame = encode_request_header(RequestHeader(37, 0, 9, None), 1) + CreatePartitionsRequest().encode(0)
    with pytest.raises(CloseConnection, match="no field for the error: INVALID_REQUEST: no"):
        dispatcher(PEER, frame)


def test_one_api_key_cannot_be_declared_twice() -> None:
    declaration = ApiDeclaration(
        ApiVersionsRequest, ApiVersionsResponse, lambda context, request: None, PUBLIC
    )
    with pytest.raises(ValueError, match="API key 18"):
        Dispatcher([declaration, declaration])


def test_bytes_behind_a_request_are_ignored_as_kafka_does(tmp_path) -> None:
    """The client librdkafka 2.16 sends three zero bytes too many when it asks for all topics in Metadata 13."""

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("t")
            frame = bytes.fromhex("0003000d00000003000772646b61666b610000000000010000")
            answer = await broker.send_frame(frame)
            _, position = decode_response_header(answer, 1)
            response = response_type(MetadataRequest).decode(answer, 13, None, position)
            assert [topic.name for topic in response.topics] == ["t"]

    asyncio.run(test())
