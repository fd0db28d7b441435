"""Bytes in, ordered answers out: the promises of `broker.net`, over real loopback sockets."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.net.pool import SMALLEST, FramePool
from headrace.broker.net.reply import CloseConnection, Pending
from headrace.broker.net.sockets import SystemListeningSocket


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def echo(peer, body):
    return [bytes(body)]


@asynccontextmanager
async def network(answerer, **limits):
    net = Network(answerer, Limits(**limits), loop=asyncio.get_running_loop())
    net.bind("127.0.0.1", 0)
    net.start_listening()
    try:
        yield net
    finally:
        net.close()
        await asyncio.sleep(0)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.001)


@settings(max_examples=40, deadline=None)
@given(
    bodies=st.lists(
        st.one_of(st.binary(min_size=1, max_size=40), st.integers(1, 5000).map(lambda n: b"x" * n)),
        min_size=1,
        max_size=12,
    ),
    cuts=st.lists(st.integers(1, 3000), max_size=12),
    scratch=st.sampled_from([8, 64, 1024, 65536]),
)
def test_f2_answers_come_whole_and_in_order_however_the_bytes_are_cut(bodies, cuts, scratch) -> None:
    check_answers(bodies, cuts, scratch)


def check_answers(bodies: list[bytes], cuts: list[int], scratch: int) -> None:
    """Send frames in pieces of these sizes, the last one with the rest; each comes back whole."""
    stream = b"".join(map(frame, bodies))
    pieces = []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]
    pieces.append(stream)

    async def test() -> None:
        async with network(echo, scratch_bytes=scratch) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            try:
                for body in bodies:
                    assert await read_frame(reader) == body
            finally:
                await close(writer)

    run(test)


@pytest.mark.parametrize("size", [100_000, 1_000_000, 5_000_000])
def test_a_large_frame_arrives_unchanged(size: int) -> None:
    body = os.urandom(size)

    async def test() -> None:
        async with network(echo) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port, limit=1 << 20)
            writer.write(frame(body) + frame(b"next"))
            assert await read_frame(reader) == body
            assert await read_frame(reader) == b"next"
            await close(writer)

    run(test)


@pytest.mark.parametrize("size", [-1, 0, 1001, 2**31 - 1])
def test_a_frame_of_illegal_size_closes_the_connection_before_allocating(size: int) -> None:
    async def test() -> None:
        async with network(echo, request_bytes_max=1000) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(struct.pack(">i", size))
            assert await reader.read() == b""
            assert net.connection_count == 0
            await close(writer)

    run(test)


def test_one_request_at_a_time_and_later_ones_wait_their_turn() -> None:
    """N10: a long poll before a quick request is answered first."""
    seen: list[bytes] = []
    futures: list[asyncio.Future] = []

    def answerer(peer, body):
        seen.append(bytes(body))
        if body == b"slow":
            futures.append(asyncio.get_running_loop().create_future())
            return Pending(futures[-1], lambda done: [done.result()])
        return [b"quick"]

    async def test() -> None:
        async with network(answerer) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"slow") + frame(b"a") + frame(b"slow") + frame(b"b"))
            await until(lambda: futures)
            await asyncio.sleep(0.01)
            assert seen == [b"slow"]
            futures[0].set_result(b"first")
            assert await read_frame(reader) == b"first"
            assert await read_frame(reader) == b"quick"
            assert seen == [b"slow", b"a", b"slow"]
            futures[1].set_result(b"second")
            assert [await read_frame(reader) for _ in range(2)] == [b"second", b"quick"]
            await close(writer)

    run(test)


def test_a_flood_behind_a_waiting_request_is_not_taken_into_memory() -> None:
    waiting: list[asyncio.Future] = []

    def answerer(peer, body):
        waiting.append(asyncio.get_running_loop().create_future())
        return Pending(waiting[-1], lambda done: [b"done"], may_cancel=True)

    async def test() -> None:
        async with network(answerer) as net:
            _, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"wait"))
            flood = frame(b"z" * 100_000) * 500  # 50 MB, far above what sockets buffer
            writer.write(flood)
            await until(lambda: waiting)
            await asyncio.sleep(0.2)
            assert writer.transport.get_write_buffer_size() > len(flood) // 2
            assert len(waiting) == 1
            writer.transport.abort()
            net.close()
            await asyncio.sleep(0)
            assert waiting[0].cancelled()

    run(test)


@pytest.mark.parametrize("may_cancel", [False, True])
def test_the_request_of_a_peer_that_hangs_up_is_cancelled_only_if_it_may_be(may_cancel) -> None:
    waiting: list[asyncio.Future] = []

    def answerer(peer, body):
        waiting.append(asyncio.get_running_loop().create_future())
        return Pending(waiting[-1], lambda done: [b"never"], may_cancel)

    async def test() -> None:
        async with network(answerer) as net:
            _, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"wait"))
            await until(lambda: waiting)
            await close(writer)
            await until(lambda: not net.connection_count)
            assert waiting[0].cancelled() == may_cancel
            await net.cancel_requests()
            assert waiting[0].cancelled()
            assert not net.requests

    run(test)


def test_answers_pause_while_a_peer_does_not_read() -> None:
    answered = 0

    def answerer(peer, body):
        nonlocal answered
        answered += 1
        return [b"y" * 100_000]

    async def test() -> None:
        async with network(answerer, unsent_bytes_max=1_000_000) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port, limit=1000)
            writer.write(frame(b"x") * 1000)
            await asyncio.sleep(0.3)
            stalled_at = answered
            assert stalled_at < 200  # a few socket buffers and the high-water mark, not 1000
            for _ in range(1000):  # and it goes on as the peer reads
                assert len(await read_frame(reader)) == 100_000
            assert answered == 1000
            await close(writer)

    run(test)


def test_unsent_answers_of_all_connections_are_bounded_together(caplog) -> None:
    """A connection that is read goes on; those that are not read are closed, the one without progress for longest
    first.
    """
    answer = b"y" * 400_000

    async def test() -> None:
        async with network(
            lambda peer, body: [answer], unsent_bytes_max=10_000_000, unsent_bytes_of_all_max=20_000_000,
            send_buffer_bytes=4096,
        ) as net:  # fmt: skip
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            silent = []
            for _ in range(30):
                sock = socket.create_connection(("127.0.0.1", net.port))
                silent.append(sock)
                sock.sendall(frame(b"x") * 5)
                writer.write(frame(b"z"))
                assert await read_frame(reader) == answer
                assert net._backlog.size <= 20_000_000
                assert net._backlog.size == sum(each.unsent_bytes for each in net._connections)
            assert 5 < net.connection_count < 20
            assert {each.peer.port for each in net._connections} >= {silent[-1].getsockname()[1]}
            assert silent[0].getsockname()[1] not in {each.peer.port for each in net._connections}
            for sock in silent:
                sock.close()
            await until(lambda: net.connection_count == 1)
            assert net._backlog.size == 0
            await close(writer)

    run(test)
    assert "does not read its answers" in caplog.text


def test_a_request_without_an_answer_leaves_no_trace_in_the_stream() -> None:
    async def test() -> None:
        async with network(lambda peer, body: None if body == b"acks=0" else [b"ok"]) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"acks=0") * 3 + frame(b"other"))
            assert await read_frame(reader) == b"ok"
            await close(writer)

    run(test)


@pytest.mark.parametrize("late", [False, True])
def test_an_answerer_can_close_the_connection(late: bool) -> None:
    def refuse(*_):
        raise CloseConnection("no")

    def answerer(peer, body):
        if not late:
            refuse()
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, future.set_result, None)
        return Pending(future, refuse)

    async def test() -> None:
        async with network(answerer) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"x"))
            assert await reader.read() == b""
            assert net.connection_count == 0
            await close(writer)

    run(test)


@pytest.mark.parametrize("how", ["at once", "late", "cancelled"])
def test_an_answerer_that_fails_ends_its_connection_and_no_other(how: str, caplog) -> None:
    """A client without an answer to one request would take the next answer for it."""

    def fail(*_):
        raise asyncio.CancelledError if how == "cancelled" else KeyError("defect")

    def answerer(peer, body):
        if body != b"bad":
            return [bytes(body)]
        if how in ("late", "cancelled"):
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.01, future.set_result, None)
            return Pending(future, fail)
        return fail()

    async def test() -> None:
        async with network(answerer) as net:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", net.port)
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"good"))
            assert await read_frame(reader) == b"good"
            writer.write(frame(b"bad") + frame(b"later"))
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            other_writer.write(frame(b"well"))
            assert await read_frame(other_reader) == b"well"
            assert net.connection_count == 1
            await close(other_writer)
            writer.close()

    run(test)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.exc_info is not None for record in errors] == [True] * (how != "cancelled")


class FileRange:
    def __init__(self, file, position: int, size: int) -> None:
        self._file, self.position, self.size = file, position, size

    def fileno(self) -> int:
        return self._file.fileno()


@pytest.mark.parametrize("file_bytes_per_call", [1000, 1 << 22])
def test_buffers_and_file_regions_leave_in_order(file_bytes_per_call: int) -> None:
    content = os.urandom(2_000_000)

    async def test() -> None:
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.flush()

            def answerer(peer, body):
                return [
                    b"head",
                    FileRange(file, 100, 1_500_000),
                    memoryview(b"middle"),
                    FileRange(file, 0, 0),
                    FileRange(file, 7, 10),
                    bytearray(b""),
                    b"tail",
                ]

            async with network(answerer, file_bytes_per_call=file_bytes_per_call) as net:
                reader, writer = await asyncio.open_connection("127.0.0.1", net.port, limit=10_000)
                writer.write(frame(b"1") + frame(b"2"))
                for _ in range(2):
                    assert await read_frame(reader) == (
                        b"head" + content[100:1_500_100] + b"middle" + content[7:17] + b"tail"
                    )
                await close(writer)

    run(test)


def test_a_file_shorter_than_its_region_ends_the_connection() -> None:
    async def test() -> None:
        with tempfile.TemporaryFile() as file:
            file.write(b"short")
            file.flush()
            async with network(lambda peer, body: [b"h", FileRange(file, 0, 100)]) as net:
                reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
                writer.write(frame(b"1"))
                await reader.read()
                assert net.connection_count == 0
                await close(writer)

    run(test)


def test_idle_connections_are_closed_and_waiting_ones_are_not() -> None:
    polls = []

    def answerer(peer, body):
        polls.append(asyncio.get_running_loop().create_future())
        return Pending(polls[-1], lambda done: [b""])

    async def test() -> None:
        async with network(answerer, idle_seconds_max=0.2) as net:
            idle, idle_writer = await asyncio.open_connection("127.0.0.1", net.port)
            _polling, polling_writer = await asyncio.open_connection("127.0.0.1", net.port)
            polling_writer.write(frame(b"poll"))
            await until(lambda: polls)
            reaper = asyncio.ensure_future(net.reap_idle())
            assert await idle.read() == b""
            await asyncio.sleep(0.2)
            assert net.connection_count == 1
            reaper.cancel()
            await close(idle_writer)
            await close(polling_writer)

    run(test)


def test_connections_beyond_the_limit_are_refused() -> None:
    async def test() -> None:
        async with network(echo) as net:
            net.set_connections_per_address(2, {})
            kept = [await asyncio.open_connection("127.0.0.1", net.port) for _ in range(2)]
            for _, writer in kept:
                writer.write(frame(b"hello"))
            for reader, _ in kept:
                assert await read_frame(reader) == b"hello"
            refused, refused_writer = await asyncio.open_connection("127.0.0.1", net.port)
            assert await refused.read() == b""
            await close(kept[0][1])
            await until(lambda: net.connection_count == 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"again"))
            assert await read_frame(reader) == b"again"
            for open_writer in (refused_writer, kept[1][1], writer):
                await close(open_writer)

    run(test)


def test_draining_waits_for_requests_under_way() -> None:
    waiting: list[asyncio.Future] = []

    def answerer(peer, body):
        waiting.append(asyncio.get_running_loop().create_future())
        return Pending(waiting[-1], lambda done: [done.result()])

    async def test() -> None:
        async with network(answerer) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"x"))
            await until(lambda: waiting)
            net.stop_listening()
            drained = asyncio.ensure_future(net.drain(60))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not drained.done()
            waiting[0].set_result(b"late")
            await drained
            net.close()
            assert await read_frame(reader) == b"late"
            await close(writer)

    run(test)


def test_a_request_buffer_is_not_reused_while_it_is_referenced() -> None:
    kept: list[memoryview] = []

    def answerer(peer, body):
        if len(kept) < 3:
            kept.append(memoryview(body)[1:])
        return [b"ok"]

    async def test() -> None:
        async with network(answerer) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            for letter in b"abcdef":
                writer.write(frame(bytes([letter]) * 400_000))
                assert await read_frame(reader) == b"ok"
            assert [bytes(view[:1]) + bytes(view[-1:]) for view in kept] == [b"aa", b"bb", b"cc"]
            assert 0 < net.pool.idle_bytes <= 1 << 20  # the others shared one buffer
            await close(writer)

    run(test)


def test_the_pool_reuses_only_unreferenced_buffers() -> None:
    pool = FramePool(4 * SMALLEST)
    buffer = pool.acquire(SMALLEST)
    view = memoryview(buffer)
    pool.release(buffer)
    assert pool.idle_bytes == 0
    view.release()
    pool.release(buffer)
    assert pool.idle_bytes == SMALLEST
    assert len(buffer) == SMALLEST
    assert pool.acquire(SMALLEST - 5) is buffer
    assert pool.idle_bytes == 0
    for _ in range(10):
        pool.release(bytearray(SMALLEST))
    assert pool.idle_bytes == 4 * SMALLEST


def test_a_pipelining_peer_that_leaves_while_its_answers_wait_is_closed_and_no_more(caplog) -> None:
    """It disconnects in the middle of its own requests, more of which have arrived already."""

    async def test() -> None:
        sock = socket.socket()
        asked = 0

        def leave(peer, body):
            nonlocal asked
            asked += 1
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            return [b"x" * 100_000]

        async with network(leave, unsent_bytes_max=1000) as net:
            sock.connect(("127.0.0.1", net.port))
            sock.sendall(frame(b"a") * 50)
            await until(lambda: asked)
            await until(lambda: not net.connection_count)
        assert asked == 1

    run(test)
    assert not [record for record in caplog.records if record.exc_info]


def test_requests_that_come_together_leave_turns_to_others() -> None:
    async def test() -> None:
        turns = []

        def busy(peer, body):
            until_seconds = time.perf_counter() + 0.002
            while time.perf_counter() < until_seconds:
                pass
            turns.append(body)
            return [bytes(body)]

        async with network(busy) as net:
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"a") * 20)
            await until(lambda: turns)
            assert len(turns) < 20  # this task runs in between
            for _ in range(20):
                assert await read_frame(reader) == b"a"
            await close(writer)

    run(test)


def test_accepting_pauses_when_file_descriptors_run_out() -> None:
    """Accepting pauses when descriptors become few, and goes on when there are more."""

    async def test() -> None:
        # Descriptors that other tests have left free are taken: the next one is the highest.
        highest = max(int(name) for name in os.listdir("/dev/fd"))
        held = [os.open(os.devnull, os.O_RDONLY)]
        while held[-1] <= highest:
            held.append(os.open(os.devnull, os.O_RDONLY))
        limits = {"descriptors_max": held[-1] + 13, "accept_pause_seconds": 0.01}
        async with network(echo, **limits) as net:
            socks = []
            for _ in range(20):
                sock = socket.socket()
                sock.setblocking(False)
                with suppress(BlockingIOError):
                    sock.connect(("127.0.0.1", net.port))
                socks.append(sock)
                await asyncio.sleep(0.02)
            assert 0 < net.connection_count < 12
            for sock in socks:
                sock.close()
            await until(lambda: not net.connection_count)
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"a"))
            assert await read_frame(reader) == b"a"
            await close(writer)
        for descriptor in held:
            os.close(descriptor)

    run(test)


def test_clients_are_turned_away_while_there_are_no_descriptors() -> None:
    """A client that is not accepted would wait, and one whose connection is closed tries again."""

    async def test() -> None:
        async with network(echo, accept_pause_seconds=0.01) as net:
            loop = asyncio.get_running_loop()
            clients, held = [socket.socket() for _ in range(20)], list[int]()
            gc.collect()  # what an earlier test left would be closed later, and give a descriptor back
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
            try:
                for sock in clients:  # threads of earlier tests may still give descriptors back
                    with suppress(OSError):
                        while True:
                            held.append(os.open(os.devnull, os.O_RDONLY))
                    sock.setblocking(False)
                    await loop.sock_connect(sock, ("127.0.0.1", net.port))
                    answer = None
                    with suppress(TimeoutError):
                        answer = await asyncio.wait_for(loop.sock_recv(sock, 1), 1)
                        break
                assert answer == b""
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for descriptor in held:
                    os.close(descriptor)
                for sock in clients:
                    sock.close()
            await until(lambda: not net.connection_count)
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"a"))
            assert await read_frame(reader) == b"a"
            await close(writer)

    run(test)


async def test_a_spare_descriptor_that_another_thread_took_is_replaced() -> None:
    listening = SystemListeningSocket(bound := socket.create_server(("127.0.0.1", 0)))
    bound.setblocking(False)
    listening.start(10, lambda: None)
    for accepts in (False, True):
        assert listening._spare is not None
        os.close(listening._spare)
        listening._spare = None
        with socket.create_connection((listening.host, listening.port), 5) as client:
            if accepts:
                accepted, _, _ = listening.accept(send_buffer_bytes=-1)
                accepted.close()
            else:
                listening.turn_away()
            assert client.recv(1) == b""
    assert listening._spare is not None
    listening.close()


class Stood:
    """An event loop whose time is set by the test; all else is the loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time()

    def __getattr__(self, name: str):
        return getattr(self._loop, name)

    def time(self) -> float:
        return self.now


class Later:
    """An event loop whose `call_later` waits for the test; all else is the loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def __getattr__(self, name: str):
        return getattr(self._loop, name)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.waiting.append((seconds, callback))


@pytest.mark.parametrize("postponed", [False, True])
def test_a_throttled_client_is_answered_and_then_not_read(postponed: bool) -> None:
    """KIP-219: the answer comes at once, the next request's after the throttle time, whatever the client sends."""

    async def test() -> None:
        taken: list[bytes] = []

        def answer(peer, body):
            taken.append(bytes(body))
            if body[:1] == b"!":
                peer.throttle_seconds = 7.5
            if postponed:

                async def later() -> bytes:
                    return taken[-1]

                return Pending(later(), lambda outcome: [outcome.result()])
            return [bytes(body)]

        async with network(answer) as net:
            later = net.loop = Later(net.loop)
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"!1") + frame(b"2") + frame(b"!3"))
            assert await read_frame(reader) == b"!1"
            assert [seconds for seconds, _ in later.waiting] == [7.5]
            writer.write(frame(b"4") * 100_000)
            for _ in range(200):
                await asyncio.sleep(0)
            (connection,) = net._connections
            assert not connection._reading
            assert taken == [b"!1"]
            later.waiting.pop()[1]()
            assert await read_frame(reader) == b"2"
            assert await read_frame(reader) == b"!3"
            assert later.waiting[0][0] == 7.5
            assert taken == [b"!1", b"2", b"!3"]
            net.is_draining = True
            assert not connection.is_busy, "it does not hold up the end"
            net.is_draining = False
            later.waiting.pop()[1]()
            assert await read_frame(reader) == b"4"
            await close(writer)

    run(test)


def test_a_throttled_client_may_close_before_its_time_ends() -> None:
    async def test() -> None:
        def answer(peer, body):
            peer.throttle_seconds = 1.0
            return [bytes(body)]

        async with network(answer) as net:
            later = net.loop = Later(net.loop)
            reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"1"))
            await read_frame(reader)
            (connection,) = net._connections
            assert not connection._reading
            connection.close("for the test")
            later.waiting.pop()[1]()
            assert not net._connections
            await close(writer)

    run(test)


def test_an_address_beyond_its_connection_rate_is_closed_late() -> None:
    async def test() -> None:
        async with network(echo) as net:
            later = net.loop = Later(net.loop)
            delays = iter([0.0, 0.25])
            asked = []
            net.connection_delay = lambda host: asked.append(host) or next(delays)
            served, writer = await asyncio.open_connection("127.0.0.1", net.port)
            writer.write(frame(b"1"))
            assert await read_frame(served) == b"1"
            reader, other = await asyncio.open_connection("127.0.0.1", net.port)
            other.write(frame(b"2"))
            await until(lambda: later.waiting)
            assert net.connection_count == 1
            assert not reader.at_eof()
            seconds, turn_away = later.waiting.pop()
            assert (seconds, asked) == (0.25, ["127.0.0.1"] * 2)
            turn_away()
            with suppress(ConnectionError):
                assert await reader.read() == b""
            await close(writer)
            await close(other)

    run(test)
