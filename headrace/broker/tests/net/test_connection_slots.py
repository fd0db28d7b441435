"""The number of connections: a client beyond the limit waits until one is closed, and brokers find room anyway."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.broker.api.configs import BROKER
from headrace.broker.net.connection_slots import ConnectionSlots
from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.tests.api.test_broker_configs import SET, alter
from headrace.broker.tests.net.test_connection import close, echo, frame, read_frame, run, until
from simulator.direct import direct_broker


def test_a_listener_is_full_by_its_own_number_or_by_that_of_all() -> None:
    slots = ConnectionSlots()
    assert slots.full("A") is None
    slots.set(3, {"A": 2, "B": 3})
    for listener in ("A", "A"):
        assert slots.full(listener) is None
        slots.take(listener)
    assert (slots.full("A"), slots.full("B")) == (2, None)
    slots.take("B")
    assert (slots.full("A"), slots.full("B")) == (2, 3)
    slots.leave("A")
    assert (slots.full("A"), slots.full("B"), slots.excess) == (None, None, 0)


def test_the_listener_of_brokers_is_held_to_its_own_number_and_others_make_room_for_it() -> None:
    slots = ConnectionSlots()
    slots.set(2, {"A": 2, "INTERNAL": 4}, protected="INTERNAL")
    for listener in ("A", "A", "INTERNAL", "INTERNAL"):
        slots.take(listener)
    assert (slots.full("INTERNAL"), slots.full("A"), slots.excess) == (None, 2, 2)
    for listener in ("A", "A", "INTERNAL", "INTERNAL"):
        (slots.leave if listener == "A" else slots.take)(listener)
    assert (slots.full("INTERNAL"), slots.full("A"), slots.excess) == (4, 2, 0)
    assert not slots.may_be_closed("INTERNAL")


class Client:
    """A client that sends one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def is_served(self) -> None:
        self.writer.write(frame(b"x"))
        assert await read_frame(self.reader) == b"x"

    async def is_closed(self) -> None:
        assert await self.reader.read() == b""
        await close(self.writer)


@asynccontextmanager
async def two_listeners(of_all: int | None, **of_listeners: int):
    net = Network(echo, Limits(), loop=asyncio.get_running_loop())
    clients, brokers = (net.bind("127.0.0.1", 0, name=name) for name in ("CLIENTS", "BROKERS"))
    net.set_connections_max(of_all, of_listeners, "BROKERS")
    net.start_listening()
    try:
        yield net, clients, brokers
    finally:
        net.close()
        await asyncio.sleep(0)


def test_connections_beyond_the_number_wait_for_a_close() -> None:
    async def test() -> None:
        async with two_listeners(2) as (net, clients, _):
            first, second, third, fourth = [await Client.of(clients.port) for _ in range(4)]
            for each in (first, second):
                await each.is_served()
            third.writer.write(frame(b"x"))
            await until(lambda: clients.is_full)
            assert (net.connection_count, clients.accepted) == (2, 2)
            await close(first.writer)
            assert await read_frame(third.reader) == b"x"
            assert (net.connection_count, clients.accepted) == (2, 3)
            net.set_connections_max(3, {}, "BROKERS")
            await fourth.is_served()
            assert clients.accepted == 4
            for each in (second, third, fourth):
                await close(each.writer)

    run(test)


def test_a_listener_that_is_full_holds_up_no_other() -> None:
    async def test() -> None:
        async with two_listeners(None, CLIENTS=1, BROKERS=1) as (net, clients, brokers):
            crowd = [await Client.of(clients.port) for _ in range(2)]
            other = await Client.of(brokers.port)
            await crowd[0].is_served()
            await other.is_served()
            await until(lambda: clients.is_full)
            await close(crowd[0].writer)
            await crowd[1].is_served()
            for each in (crowd[1], other):
                await close(each.writer)
            await until(lambda: not net.connection_count)

    run(test)


def test_a_broker_gets_the_slot_of_the_client_that_was_silent_for_longest() -> None:
    async def test() -> None:
        async with two_listeners(3) as (net, clients, brokers):
            crowd = [await Client.of(clients.port) for _ in range(3)]
            for each in (*crowd, crowd[0], crowd[2]):
                await asyncio.sleep(0.002)  # a clock may stand still for less
                await each.is_served()
            one, two = [await Client.of(brokers.port) for _ in range(2)]
            await one.is_served()
            await crowd[1].is_closed()
            await crowd[2].is_served()
            await two.is_served()
            await crowd[0].is_closed()
            assert net.connection_count == 3
            for each in (one, two, crowd[2]):
                await close(each.writer)

    run(test)


def test_a_number_that_is_lowered_closes_those_that_are_too_many() -> None:
    async def test() -> None:
        async with two_listeners(None) as (net, clients, brokers):
            broker = await Client.of(brokers.port)
            await broker.is_served()
            crowd = [await Client.of(clients.port) for _ in range(100)]
            for each in crowd:
                await each.is_served()
            net.set_connections_max(11, {}, "BROKERS")
            assert net.connection_count > 11, "a few in each turn of the loop"
            await until(lambda: net.connection_count == 11)
            await broker.is_served()
            for each in crowd[-10:]:
                await each.is_served()
            for each in (broker, *crowd):
                await close(each.writer)

    run(test)


def test_a_listener_that_is_full_stops() -> None:
    async def test() -> None:
        async with two_listeners(1) as (net, clients, _):
            crowd = [await Client.of(clients.port) for _ in range(2)]
            await until(lambda: clients.is_full)
            net.stop_listening()
            for each in crowd:
                await close(each.writer)
            await until(lambda: not net.connection_count)

    run(test)


async def test_a_connection_limit_takes_effect_at_once(tmp_path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "listener.name.outside.max.connections": "2",
        "max.connections": "3",
    }
    async with direct_broker(tmp_path, settings) as broker:
        slots = broker.broker.network._slots
        for _ in range(2):
            slots.take("OUTSIDE")
        assert (slots.full("OUTSIDE"), slots.full("PLAINTEXT")) == (2, None)
        own = "listener.name.outside.max.connections"
        assert await alter(broker, BROKER, "0", (own, SET, "20")) == (0, None)
        assert slots.full("OUTSIDE") is None
        slots.take("OUTSIDE")
        assert (slots.full("OUTSIDE"), slots.full("PLAINTEXT")) == (3, None), "that of brokers is spared"
        for _ in range(3):
            slots.take("PLAINTEXT")
        assert slots.full("PLAINTEXT") == 3
        assert await alter(broker, BROKER, "", ("max.connections", SET, "7")) == (0, None)
        assert (slots.full("OUTSIDE"), slots.full("PLAINTEXT")) == (None, None)
