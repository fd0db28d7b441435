"""One connection: frames in any pieces, versions, deadlines, and the outcomes that errors state."""

import asyncio
import gc
import struct
import tracemalloc

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.headers import MAX_FRAME_SIZE
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.tablelayer.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    RequestTimeout,
    UnsupportedRequest,
)
from headrace.tablelayer.client.wire.connection import BrokerConnection
from headrace.tablelayer.model.messages import ListDatabasesRequest, ListDatabasesResponse


async def open_connection(server, timeout_ms=1_000):
    return await BrokerConnection.open(
        "127.0.0.1", server.port, client_id="test", connect_timeout_ms=1_000, request_timeout_ms=timeout_ms
    )


def question(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


def test_many_requests_in_flight_each_get_their_own_answer(fake, tools):
    async def scenario():
        async with fake() as server:
            connection = await open_connection(server)
            names = [f"topic-{i}" for i in range(200)]
            answers = await asyncio.gather(
                *(connection.request(question(name), MetadataResponse, timeout_ms=5_000) for name in names)
            )
            assert [answer.topics[0].name for answer in answers] == names
            assert server.connections == 1
            connection.close()

    tools.run(scenario())


@pytest.mark.parametrize("size", [1, 3, 60_000, 65_532, 65_533, 65_536, 300_000, 2_000_000])
@pytest.mark.parametrize("step", [None, 1_000])
def test_answers_of_any_size_in_any_pieces(fake, tools, size, step):
    """Below, at and above the size of the scratch buffer, whole or in pieces, with a small answer behind."""

    async def scenario():
        async with fake() as server:

            def databases(_):
                return ListDatabasesResponse(databases=["x" * size])

            server.handlers[ListDatabasesRequest] = databases
            if step is not None and size <= 300_000:
                whole = server.answer

                async def serve(reader, writer):
                    while True:
                        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                        body = await whole(frame)
                        data = len(body).to_bytes(4, "big") + body
                        for start in range(0, len(data), step):
                            writer.write(data[start : start + step])
                            await asyncio.sleep(0)

                server._server.close()
                await server._server.wait_closed()
                server._server = await asyncio.start_server(swallow(serve), "127.0.0.1", server.port)
            connection = await open_connection(server)
            first, second = await asyncio.gather(
                connection.request(ListDatabasesRequest(), ListDatabasesResponse, timeout_ms=5_000),
                connection.request(question("small"), MetadataResponse, timeout_ms=5_000),
            )
            assert first.databases == ["x" * size]
            assert second.topics[0].name == "small"
            connection.close()

    tools.run(scenario())


def swallow(serve):
    async def quietly(reader, writer):
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    return quietly


def test_no_answer_is_a_timeout_and_ends_the_connection(fake, tools):
    async def scenario():
        async with fake() as server:
            connection = await open_connection(server)

            def silent(_):
                raise tools.Silence

            server.handlers[MetadataRequest] = silent
            with pytest.raises(RequestTimeout, match="did not answer MetadataRequest within 50 ms"):
                await connection.request(question("t"), MetadataResponse, timeout_ms=50)
            assert connection.is_closed
            with pytest.raises(ConnectionFailed, match="closed") as caught:
                await connection.request(question("t"), MetadataResponse, timeout_ms=50)
            assert not isinstance(caught.value, ConnectionLost), "nothing was sent: trying again is safe"

    tools.run(scenario())


def test_a_connection_that_ends_before_the_answer_leaves_the_outcome_unknown(fake, tools):
    async def scenario():
        async with fake() as server:
            connection = await open_connection(server)

            def hang_up(_):
                raise tools.HangUp

            server.handlers[MetadataRequest] = hang_up
            results = await asyncio.gather(
                *(connection.request(question("t"), MetadataResponse, timeout_ms=2_000) for _ in range(3)),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [ConnectionLost] * 3

    tools.run(scenario())


def test_nothing_is_said_of_a_request_that_was_given_up_while_it_was_sent(fake, tools):
    async def scenario():
        said = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        async with fake() as server:
            connection = await open_connection(server)
            sending = asyncio.create_task(
                connection.request(question("t" * 30_000_000), MetadataResponse, timeout_ms=5_000)
            )
            while not connection._waiting:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait([sending])
            del sending
            connection.give_up("enough")
            gc.collect()
        assert said == []

    tools.run(scenario())


def test_a_cancelled_wait_does_not_disturb_the_others(fake, tools):
    async def scenario():
        async with fake() as server:
            connection = await open_connection(server)
            release = asyncio.Event()

            async def late(request):
                await release.wait()
                return server.metadata(request)

            server.handlers[MetadataRequest] = late
            first = asyncio.create_task(connection.request(question("a"), MetadataResponse, timeout_ms=2_000))
            second = asyncio.create_task(
                connection.request(question("b"), MetadataResponse, timeout_ms=2_000)
            )
            await asyncio.sleep(0.02)
            first.cancel()
            release.set()
            assert (await second).topics[0].name == "b"
            assert not connection.is_closed
            connection.close()

    tools.run(scenario())


def test_falls_back_to_version_0_of_the_negotiation(fake, tools):
    """An old broker answers an ApiVersions version it does not know in version 0, with error 35 (KIP-511)."""

    async def scenario():
        async with fake() as server:
            plain = server.answer

            async def old(frame):
                if frame[:2] == struct.pack(">h", 18) and frame[2:4] != b"\0\0":
                    refusal = ApiVersionsResponse(
                        error_code=ErrorCode.UNSUPPORTED_VERSION,
                        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)],
                    )
                    return frame[4:8] + refusal.encode(0)
                return await plain(frame)

            server.answer = old
            connection = await open_connection(server)
            assert connection.version_for(MetadataRequest) == MetadataRequest.MAX_VERSION
            connection.close()

    tools.run(scenario())


def test_versions_are_the_highest_both_speak(fake, tools):
    async def scenario():
        async with fake() as server:
            server.handlers[ApiVersionsRequest] = lambda _: ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=3, min_version=0, max_version=4),
                    ApiVersion(api_key=2, min_version=90, max_version=99),
                ]
            )
            connection = await open_connection(server)
            assert connection.version_for(MetadataRequest) == 4
            assert not connection.offers(ListDatabasesRequest)
            with pytest.raises(UnsupportedRequest, match="Kafka broker without tables"):
                connection.version_for(ListDatabasesRequest)
            from headrace.protocol.messages.list_offsets import ListOffsetsRequest

            with pytest.raises(UnsupportedRequest, match="supports ListOffsetsRequest 90 to 99"):
                connection.version_for(ListOffsetsRequest)
            connection.close()

    tools.run(scenario())


def test_an_unreachable_server_is_a_connection_error():
    with pytest.raises(
        ConnectionFailed, match=r"cannot connect to 127\.0\.0\.1:1: .*Check that the server is running"
    ):
        asyncio.run(
            BrokerConnection.open(
                "127.0.0.1", 1, client_id="t", connect_timeout_ms=1_000, request_timeout_ms=1_000
            )
        )


@pytest.mark.parametrize("size", [-1, 3, MAX_FRAME_SIZE + 1, 0x7FFFFFFF, -0x80000000])
def test_cve_2026_10142_no_room_is_made_for_a_length_that_no_answer_has(tools, size):
    async def scenario():
        async def serve(reader, writer):
            await reader.read(10)
            writer.write(size.to_bytes(4, "big", signed=True) + b"x" * 100)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        tracemalloc.start()
        try:
            with pytest.raises(ConnectionFailed, match=f"the size of an answer is {size} bytes"):
                await BrokerConnection.open(
                    "127.0.0.1", port, client_id="t", connect_timeout_ms=5_000, request_timeout_ms=5_000
                )
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
            server.close()
            await server.wait_closed()

    tools.run(scenario())


def test_a_server_that_does_not_answer_may_be_busy(tools):
    async def scenario():
        ended = asyncio.Event()

        async def hang(reader, writer):
            await reader.read()  # to its end
            writer.close()
            await writer.wait_closed()
            ended.set()

        async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            try:
                await BrokerConnection.open(
                    "127.0.0.1", port, client_id="t", connect_timeout_ms=5000, request_timeout_ms=50
                )
            except ConnectionFailed as error:
                said = str(error)
            await ended.wait()
        assert "did not answer within 50 ms: it hangs or is very busy, is not a Kafka broker, or" in said

    tools.run(scenario())


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "not answer like a Kafka broker.*an answer is 1213486160 bytes",
        ),
        (b"\0\0\0\x06abcdef", "not answer like a Kafka broker.*1633837924 does not belong to any request"),
        (b"\0\0\0\x00", "not answer like a Kafka broker.*the size of an answer is 0 bytes"),
        (b"", "closed the connection before it answered: it has no room for more"),
    ],
)
def test_something_else_is_listening(tools, reply, said):
    async def scenario():
        async def serve(reader, writer):
            await reader.read(10)
            writer.write(reply)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match=said):
            await BrokerConnection.open(
                "127.0.0.1", port, client_id="t", connect_timeout_ms=500, request_timeout_ms=500
            )
        server.close()
        await server.wait_closed()

    tools.run(scenario())
