"""The simulated network: bytes in their order through all faults, and the ends that are told of them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

import pytest

from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.net.outgoing import OutgoingConnection
from headrace.broker.net.reply import Pending
from simulator.loop import OWNER, SimulatedLoop
from simulator.network import WINDOW_BYTES, SimulatedNetwork

Test = Callable[["Pair"], Awaitable[None]]


class Pair:
    """An echo server, whose process is "server", and a client; both are Networks as a broker has them."""

    def __init__(self, loop: SimulatedLoop, loss: float) -> None:
        self.loop = loop
        self.wires = SimulatedNetwork(loop, loss=loss)
        self.server_machine = self.wires.machine("server")
        self.client = Network(
            lambda peer, body: None, Limits(), loop=loop, sockets=self.wires.machine("client")
        )
        self.heard: list[bytes] = []
        context = contextvars.copy_context()
        context.run(OWNER.set, "server")
        context.run(self.serve)

    def serve(self) -> None:
        self.server = Network(self.answer, Limits(), loop=self.loop, sockets=self.server_machine)
        self.server.bind("server", 9)
        self.server.start_listening()

    def answer(self, peer, body):
        self.heard.append(bytes(body))
        if body[:5] == b"never":
            return Pending(self.loop.create_future(), lambda done: None, may_cancel=True)
        return [bytes(body)]

    async def connect(self) -> OutgoingConnection:
        return await self.client.connect("server", 9)


def run(test: Test, *, seed: int = 1, loss: float = 0.0) -> str:
    loop = SimulatedLoop(seed)
    try:
        pair = Pair(loop, loss)
        loop.run_until_complete(asyncio.wait_for(test(pair), 1_000))
        pair.client.close()
        pair.server.close()
        return loop.trace
    finally:
        loop.close()


async def soon(answer: asyncio.Future[bytes | memoryview], seconds: float = 1.0) -> bytes | None:
    """Return the answer; None if it does not come."""
    done, _ = await asyncio.wait([answer], timeout=seconds)
    return bytes(answer.result()) if done else None


def test_bytes_arrive_in_order_and_connections_overtake_one_another() -> None:
    async def test(pair: Pair) -> None:
        connections = [await pair.connect() for _ in range(4)]
        requests = [(number % 4, b"%d-%d" % (number % 4, number)) for number in range(200)]
        answers = await asyncio.gather(*(connections[which].ask([body]) for which, body in requests))
        assert [bytes(answer) for answer in answers] == [body for _, body in requests]
        for which in range(4):
            assert [b for b in pair.heard if b[:1] == b"%d" % which] == [b for w, b in requests if w == which]
        assert pair.heard != [body for _, body in requests]

    run(test)


def test_large_bodies_pass_and_a_suspended_reader_stops_the_sender() -> None:
    async def test(pair: Pair) -> None:
        connection = await pair.connect()
        body = bytes(range(256)) * (3 * WINDOW_BYTES // 256)
        assert await connection.ask([body]) == body
        pair.loop.suspend("server")
        connection.ask([body])
        await asyncio.sleep(5)
        (end,) = pair.wires.machine("client").ends.values()
        assert end.room == 0
        pair.loop.resume("server")

    run(test)


@pytest.mark.parametrize(("cut", "is_heard"), [(("client", "server"), False), (("server", "client"), True)])
def test_a_way_that_is_cut_keeps_what_it_carries_until_it_is_healed(
    cut: tuple[str, str], is_heard: bool
) -> None:
    async def test(pair: Pair) -> None:
        connection = await pair.connect()
        pair.wires.cut(*cut, both=False)
        answer = connection.ask([b"x"])
        assert await soon(answer, 60) is None
        assert pair.heard == [b"x"] * is_heard
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pair.connect(), 5)
        pair.wires.heal()
        assert await soon(answer) == b"x"

    run(test)


def test_a_process_that_is_stopped_is_connected_to_and_answers_late() -> None:
    async def test(pair: Pair) -> None:
        pair.loop.suspend("server")
        connection = await pair.connect()
        answer = connection.ask([b"x"])
        assert await soon(answer, 60) is None
        pair.loop.resume("server")
        assert await soon(answer) == b"x"

    run(test)


def test_clients_of_a_process_that_died_are_told_and_those_of_a_machine_without_power_are_not() -> None:
    async def test(pair: Pair) -> None:
        one = await pair.connect()
        answer = one.ask([b"never"])
        await asyncio.sleep(0.1)
        pair.loop.kill("server")
        pair.server_machine.ended()
        with pytest.raises(ConnectionResetError):
            await answer
        with pytest.raises(ConnectionRefusedError):
            await pair.connect()
        pair.loop._dead.clear()
        pair.serve()
        other = await pair.connect()
        unheard = other.ask([b"never again"])
        await asyncio.sleep(0.1)
        pair.server_machine.ended(silently=True)
        assert await soon(unheard, 60) is None
        assert not other.closed
        late = other.ask([b"is there anybody"])
        assert await soon(late, 60) is None
        pair.server_machine.on()
        with pytest.raises(ConnectionResetError):
            await late

    run(test)


def test_broken_connections_lose_a_request_or_its_answer_and_may_stay_half_open() -> None:
    heard, lost, half_open = set(), 0, 0

    async def test(pair: Pair) -> None:
        nonlocal lost, half_open
        for number in range(60):
            connection = await pair.connect()
            body = b"%d" % number
            answer = connection.ask([body])
            done, _ = await asyncio.wait([answer], timeout=1.0)
            if not done or answer.exception() is not None:
                lost += 1
                half_open += not done
                heard.add(body in pair.heard)
            connection.close("over")

    run(test, loss=0.3)
    assert 10 < lost < 50
    assert half_open
    assert heard == {True, False}


def test_the_same_seed_is_the_same_trace() -> None:
    async def test(pair: Pair) -> None:
        for _ in range(20):
            connection = await pair.connect()
            await asyncio.wait([connection.ask([b"x"])], timeout=1.0)

    assert run(test, seed=3, loss=0.2) == run(test, seed=3, loss=0.2) != run(test, seed=4, loss=0.2)
