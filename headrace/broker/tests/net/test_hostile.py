"""Hostile bytes against a whole broker: rules F1-F9 over every API and version, and over real sockets.

`HEADRACE_HOSTILE_SEED` and `HEADRACE_HOSTILE_FRAMES` choose what the long run (`-m soak`) sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import time
import tracemalloc
from collections.abc import Callable

import pytest

from headrace.broker.api import dispatch
from headrace.broker.net.reply import CloseConnection, Peer, Pending
from headrace.broker.security.principal import ANONYMOUS, Session
from headrace.broker.tests.net.test_connection import Stood
from headrace.protocol.budget import BudgetExceeded, DecodeBudget
from headrace.protocol.compile import struct_minimum_size
from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import RequestHeader, decode_request_header, encode_request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.schema import ApiMessage
from headrace.protocol.tests.wire.values import full
from headrace.protocol.varint import encode_unsigned_varint
from simulator.call_clock import counted_calls
from simulator.direct import direct_broker

SEED = int(os.environ.get("HEADRACE_HOSTILE_SEED", "1"))
FRAMES = int(os.environ.get("HEADRACE_HOSTILE_FRAMES", "150000"))
PEER = Peer(1, "127.0.0.1", 1, "PLAINTEXT", Session(ANONYMOUS, "PLAINTEXT"))
CLOSED_WITHIN_SECONDS = 60
"""Seconds after which a hostile peer is disconnected, however loaded the machine is."""
WAITING_KEYS = {11, 14}  # JoinGroup and SyncGroup may wait for other members for ever


def golden(declarations) -> list[tuple[int, int, bytes]]:
    """One frame with every field set, for each API and version: (key, version, frame without length)."""
    frames = []
    for declaration in declarations:
        for version in range(declaration.min_version, declaration.max_version + 1):
            kind = declaration.request
            request = full(kind, version, elements=1)
            for name in ("max_wait_ms", "timeout_ms"):
                if name in kind.FIELDS:
                    setattr(request, name, 0)
            header = RequestHeader(declaration.key, version, 1, "hostile")
            frames.append(
                (
                    declaration.key,
                    version,
                    encode_request_header(header, kind.header_version(version)) + request.encode(version),
                )
            )
    return frames


LENGTHS = [
    b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00", b"\x7f\xff", b"\xff\xfe",
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x1f",
]  # fmt: skip


def mutated(chance: random.Random, frame: bytes) -> bytes:
    """Flip bits, set wild lengths, and cut, double or insert parts."""
    data = bytearray(frame)
    for _ in range(chance.randint(1, 3)):
        # The API key stays: the frame shall reach its decoder.
        where = chance.randrange(8, len(data)) if len(data) > 8 else len(data)
        kind = chance.randrange(6)
        if kind == 0 and where < len(data):
            data[where] ^= 1 << chance.randrange(8)
        elif kind == 1:
            length = chance.choice(LENGTHS)
            data[where : where + len(length)] = length
        elif kind == 2:
            del data[where:]
        elif kind == 3:
            del data[where : where + chance.randint(1, 4)]
        elif kind == 4:
            data[where:where] = data[where : where + chance.randint(1, 16)]
        elif where < len(data):
            data[where] = (data[where] + chance.choice((1, 255))) & 255
    return bytes(data)


def decode_all(routes, chance: random.Random, frames: list[tuple[int, int, bytes]], count: int) -> int:
    """F1: mutations of golden frames decode or are DecodeErrors. Return the number of refused ones."""
    refused = 0
    for number in range(count):
        key, version, frame = frames[number % len(frames)]
        damaged = mutated(chance, frame)
        route = routes[key, version]
        try:
            header, position = dispatch.decode_request_header(damaged, route.request_header_version)
            route.request.decode(damaged, version, None, position, ignore_rest=True)
            assert header.api_key == key
        except DecodeError:
            refused += 1
    return refused


def test_f1_mutated_frames_of_every_api_and_version_decode_or_are_refused(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            dispatcher = broker.broker.dispatcher
            frames = golden(dispatcher._declarations.values())
            assert len(frames) > 150
            refused = decode_all(dispatcher._routes, random.Random(SEED), frames, 12_000)
            assert 3_000 < refused < 11_900

    asyncio.run(test())


def test_f1_damaged_requests_never_raise_anything_else_in_a_handler(tmp_path, caplog) -> None:
    """Through the handlers, with side effects: an answer or a closed connection, no traceback."""
    chance = random.Random(SEED)

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("text-1")
            frames = [
                each for each in golden(broker.broker.dispatcher._declarations.values())
                if each[0] not in WAITING_KEYS
            ]  # fmt: skip
            closed = 0
            for number in range(2 * len(frames)):
                _, _, frame = frames[number // 2]
                if number % 2:
                    frame = mutated(chance, frame)
                try:
                    answer = broker.broker.dispatcher(PEER, frame)
                except CloseConnection:
                    closed += 1
                    continue
                if isinstance(answer, Pending):
                    outcome = asyncio.ensure_future(answer.outcome)
                    await asyncio.wait([outcome], timeout=0.02)
                    if not outcome.done():
                        outcome.cancel()
                        await asyncio.wait([outcome])
                    with contextlib.suppress(CloseConnection):
                        answer.finish(outcome)
            assert closed > 20

    asyncio.run(test())
    assert not [record for record in caplog.records if record.exc_info]


def test_f4_truncated_anywhere_nothing_is_answered_wrongly(tmp_path) -> None:
    """Every prefix of every golden frame at its newest version is refused."""

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            dispatcher = broker.broker.dispatcher
            newest = {
                key: (key, version, frame)
                for key, version, frame in golden(dispatcher._declarations.values())
            }
            for key, version, frame in newest.values():
                route = dispatcher._routes[key, version]
                for end in range(len(frame)):
                    with pytest.raises(DecodeError):
                        _, position = dispatch.decode_request_header(
                            frame[:end], route.request_header_version
                        )
                        route.request.decode(frame[:end], version, None, position)

    asyncio.run(test())


def bomb_of(kind: type[ApiMessage], version: int, count: int) -> bytes | None:
    """A frame whose first array of structs has `count` of the smallest elements."""
    flexible = kind.is_flexible(version)
    for name, field in kind.FIELDS.items():
        if version not in field.versions or field.is_tagged(version):
            continue
        if field.kind == "array" and field.element.structure is not None:
            few, more = (
                kind(**{name: [field.element.structure() for _ in range(n)]}).encode(version)
                for n in (60, 61)
            )
            size = len(more) - len(few)
            one = kind(**{name: [field.element.structure()]}).encode(version)
            marker = encode_unsigned_varint(2) if flexible else struct.pack(">i", 1)
            none = kind(**{name: []}).encode(version)
            start = next(i for i in range(len(one)) if one[: i + 1] != none[: i + 1])
            if not flexible:
                start -= 3
            head, rest = one[:start], one[start + len(marker) :]
            element, tail = rest[:size], rest[size:]
            assert size >= struct_minimum_size(field.element.structure, version, flexible)
            number = encode_unsigned_varint(count + 1) if flexible else struct.pack(">i", count)
            header = encode_request_header(
                RequestHeader(kind.API_KEY, version, 1, None), kind.header_version(version)
            )
            return header + head + number + element * count + tail
    return None


def test_f4_memory_of_a_request_is_bounded_by_its_frame(tmp_path) -> None:
    """Arrays of the smallest elements, 200,000 of them: at most 24 times the frame and 1 MiB, or closed
    (CVE-2026-111108).
    """

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            dispatcher = broker.broker.dispatcher
            bombs = refused = 0
            for declaration in dispatcher._declarations.values():
                kind, version = declaration.request, declaration.max_version
                frame = bomb_of(kind, version, 2_000)
                if frame is None:
                    continue
                position = decode_request_header(frame, kind.header_version(version))[1]
                bombs += 1
                a_hundredth = 24 * len(frame) + (1 << 20) // 100
                try:
                    kind.decode(frame, version, DecodeBudget(a_hundredth), position, ignore_rest=True)
                except BudgetExceeded:
                    refused += 1
                else:
                    continue  # what is decoded is in proportion
                frame = bomb_of(kind, version, 200_000)
                most = 24 * len(frame) + (1 << 20)
                tracemalloc.start()
                try:
                    with pytest.raises(CloseConnection, match="budget"):
                        dispatcher(PEER, frame)
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
                assert peak <= most, kind
            assert bombs >= 12
            assert refused >= 4

    asyncio.run(test())


def test_f4_the_check_of_allocations_notices_a_missing_budget(tmp_path, monkeypatch) -> None:
    """The check above can fail: without the bound the same frame is decoded whole."""
    monkeypatch.setattr(dispatch, "MEMORY_PER_BYTE", 1000)

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            frame = bomb_of(ListOffsetsRequest, 9, 20_000)
            tracemalloc.start()
            try:
                with contextlib.suppress(CloseConnection):
                    await broker.send_frame(frame)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak > 8 * len(frame) + (1 << 20)

    asyncio.run(test())


def test_f4_twenty_million_tags_are_refused_at_once(tmp_path) -> None:
    """CVE-2026-111115: unknown tagged fields by the million, in the header and in the body."""

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            count = encode_unsigned_varint(20_000_000)
            head = struct.pack(">hhih", 18, 3, 1, -1)
            body = ApiVersionsRequest(client_software_name="a", client_software_version="1").encode(3)
            for frame in (
                head + count + b"\x01\x00" * 1000,
                head + b"\0" + body[:-1] + count + b"\x01\x00" * 1000,
            ):
                with counted_calls() as count, pytest.raises(CloseConnection):
                    await broker.send_frame(frame)
                assert count.calls < 10_000

    asyncio.run(test())


def check_that_decoding_is_linear(decode: Callable[[bytes, int], object], count: int) -> None:
    """`decode(frame, version)` of `count` partitions and of four times as many."""

    def encoded(count: int) -> bytes:
        request = full(FetchRequest, 12, elements=1)
        request.topics[0].partitions *= count
        return request.encode(12)

    def seconds(frame: bytes) -> float:
        started = time.thread_time()
        decode(frame, 12)
        return time.thread_time() - started

    few, many = encoded(count), encoded(4 * count)
    seconds(encoded(10))
    rounds = [(seconds(few), seconds(many)) for _ in range(3)]
    least_of_few, least_of_many = map(min, zip(*rounds, strict=True))
    assert least_of_many < 12 * least_of_few + 0.02  # four times as long, if linear


def test_f5_decoding_takes_time_in_proportion_to_the_frame() -> None:
    check_that_decoding_is_linear(FetchRequest.decode, 5_000)


# -- over sockets ------------------------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def ask_versions(correlation_id: int = 1) -> bytes:
    return framed(struct.pack(">hhih", 18, 0, correlation_id, -1))


async def connect(broker):
    return await asyncio.open_connection("127.0.0.1", broker.broker.port)


async def read_answer(reader) -> bytes:
    return await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])


async def round_trips(broker, count: int) -> list[float]:
    """Return the event loop's CPU seconds while each of `count` requests of a well-behaved client is answered."""
    reader, writer = await connect(broker)
    times = []
    for number in range(count):
        started = time.thread_time()
        writer.write(ask_versions(number))
        answer = await read_answer(reader)
        times.append(time.thread_time() - started)
        assert answer[:4] == struct.pack(">i", number)
    writer.close()
    return times


def run(test) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await test()

    asyncio.run(bounded())


TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)


@pytest.mark.parametrize(
    "junk",
    [
        TLS_HELLO,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-x\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        framed(b"\0"),
        framed(b"\xff" * 40),
        framed(struct.pack(">hhih", 999, 0, 1, -1)),
        framed(struct.pack(">hhih", 3, 99, 1, -1)),
        framed(struct.pack(">hhih", 3, 1, 1, 30000) + b"short"),
    ],
)
def test_f6_bytes_that_are_not_kafka_close_the_connection(tmp_path, junk) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            reader, writer = await connect(broker)
            writer.write(junk)
            async with asyncio.timeout(CLOSED_WITHIN_SECONDS):
                assert await reader.read() == b""
            writer.close()
            assert len(await round_trips(broker, 3)) == 3

    run(test)


def test_f2_f8_ten_thousand_pipelined_requests_are_answered_in_order(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            reader, writer = await connect(broker)
            writer.write(b"".join(map(ask_versions, range(10_000))))
            for number in range(10_000):
                answer = await read_answer(reader)
                assert answer[:4] == struct.pack(">i", number)
            writer.close()

    run(test)


def test_f8_a_client_that_never_reads_costs_bounded_memory(tmp_path) -> None:
    """It asks for metadata of 2,000 topics again and again and reads nothing: the broker stops answering."""

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("t", 2000)
            sock = socket.create_connection(("127.0.0.1", broker.broker.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            ask = framed(struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", -1))
            tracemalloc.start()
            try:
                sent = 0
                for _ in range(300):
                    with contextlib.suppress(BlockingIOError):
                        sent += sock.send(ask * 100)
                    await asyncio.sleep(0.001)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert sent > 100 * len(ask)  # answered in full, this would be 50 MB and more
            assert peak < 12 << 20
            assert max(each.unsent_bytes for each in broker.broker.network._connections) < 4 << 20
            assert max(await round_trips(broker, 20)) < 1
            sock.close()

    run(test)


def test_f8_half_frames_and_silence_cost_no_memory_and_are_closed_in_the_end(tmp_path) -> None:
    """200 peers that announce 64 MiB and send a few bytes of it, or nothing at all."""

    async def test() -> None:
        async with direct_broker(tmp_path, {"connections.max.idle.ms": "1500"}) as broker:
            network = broker.broker.network
            clock = network.loop = Stood(network.loop)
            tracemalloc.start()
            peers = [await connect(broker) for _ in range(200)]
            for number, (_, writer) in enumerate(peers):
                if number % 2:
                    writer.write((struct.pack(">i", 64 << 20) + b"begin")[: 1 + number % 9])
            assert max(await round_trips(broker, 20)) < 1
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 32 << 20
            assert network.connection_count >= 200
            clock.now += 2
            async with asyncio.timeout(CLOSED_WITHIN_SECONDS):
                for reader, _ in peers:
                    assert await reader.read() == b""
            assert network.connection_count <= 1
            for _, writer in peers:
                writer.close()

    run(test)


def test_f8_two_thousand_connections_are_served(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path, {"socket.listen.backlog.size": "500"}) as broker:
            tracemalloc.start()
            try:
                socks = []
                for _ in range(2000):
                    sock = socket.socket()
                    sock.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        sock.connect(("127.0.0.1", broker.broker.port))
                    socks.append(sock)
                    if len(socks) % 50 == 0:
                        await asyncio.sleep(0)
                loop = asyncio.get_running_loop()
                for number, sock in enumerate(socks):
                    await loop.sock_sendall(sock, ask_versions(number))
                for number, sock in enumerate(socks):
                    head = await loop.sock_recv(sock, 8)
                    assert head[4:8] == struct.pack(">i", number)
                used, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert broker.broker.network.connection_count == 2000
            assert used < 2000 * 8192  # the sockets of this test itself among them
            for sock in socks:
                sock.close()

    run(test)


def test_f9_a_hostile_connection_does_not_make_others_wait(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("text-1")
            quiet = sorted(await round_trips(broker, 400))
            frames = [
                each
                for each in golden(broker.broker.dispatcher._declarations.values())
                if each[0] not in WAITING_KEYS
            ]
            chance = random.Random(SEED)
            stop = False
            sent = 0

            async def attack() -> None:
                nonlocal sent
                while not stop:
                    _, writer = await connect(broker)
                    for _ in range(5):
                        writer.write(framed(mutated(chance, chance.choice(frames)[2])))
                        sent += 1
                        await asyncio.sleep(0.001)
                    writer.transport.abort()
                    await asyncio.sleep(0)

            attacker = asyncio.ensure_future(attack())
            attacked = await round_trips(broker, 400)
            while sent < 100:
                attacked += await round_trips(broker, 20)
            stop = True
            await attacker
            # The test runs twice, and the attacker runs on this event loop too.
            assert sorted(attacked)[len(attacked) * 395 // 400] < 2 * quiet[395] + 0.05

    run(test)


@pytest.mark.soak
def test_f1_soak_mutations(tmp_path) -> None:
    print(f"HEADRACE_HOSTILE_SEED={SEED} HEADRACE_HOSTILE_FRAMES={FRAMES}")

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            dispatcher = broker.broker.dispatcher
            frames = golden(dispatcher._declarations.values())
            decode_all(dispatcher._routes, random.Random(SEED), frames, FRAMES)

    asyncio.run(test())


def test_f1_the_check_notices_a_decoder_that_raises_something_else(tmp_path, monkeypatch) -> None:
    """A decoder that lets an IndexError through is found."""
    original = ProduceRequest.decode.__func__

    def careless(cls, buffer, *arguments, **keywords):
        try:
            return original(cls, buffer, *arguments, **keywords)
        except DecodeError as error:
            raise IndexError("as the buffer said") from error

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            dispatcher = broker.broker.dispatcher
            frames = [each for each in golden(dispatcher._declarations.values()) if each[0] == 0]
            monkeypatch.setattr(ProduceRequest, "decode", classmethod(careless))
            with pytest.raises(IndexError):
                decode_all(dispatcher._routes, random.Random(SEED), frames, 1000)

    asyncio.run(test())
