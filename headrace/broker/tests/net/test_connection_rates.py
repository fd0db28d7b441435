"""Limits of the rate of new connections (KIP-612): their scope, their precision, and that waiting clients are
served.
"""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import pytest

from headrace.broker.api.configs import BROKER
from headrace.broker.net.connection_rates import ConnectionRates
from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.tests.api.test_broker_configs import SET, alter
from simulator.direct import direct_broker


def accepted(rates: ConnectionRates, listener: str, seconds: float, now: float = 0.0) -> int:
    """Return the number of accepted connections if clients always wait."""
    count, end = 0, now + seconds
    while now < end:
        wait = rates.wait_seconds(listener, now)
        if wait > 0.0:
            now += wait
            continue
        rates.accepted(listener, now)
        count += 1
    return count


@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_comes_in_at_the_rate_after_a_burst(seed: int) -> None:
    chance = random.Random(seed)
    rate = chance.randint(1, 200)
    rates = ConnectionRates(burst_seconds=2.2)
    rates.set(rate, {})
    count = accepted(rates, "A", 60)
    assert 60 * rate <= count <= 62.2 * rate + 2, (seed, rate)


def test_the_lower_of_both_rates_holds_and_listeners_share_that_of_the_broker() -> None:
    rates = ConnectionRates(burst_seconds=1)
    rates.set(10, {"A": 5})
    assert accepted(rates, "A", 20) == pytest.approx(105, abs=2)
    assert rates.wait_seconds("B", 20) == 0
    rates.set(10, {})
    rates = ConnectionRates(burst_seconds=1)
    rates.set(1, {})
    for _ in range(2):
        rates.accepted("A", 0)
    assert rates.wait_seconds("B", 0) == pytest.approx(1)


def test_the_listener_of_brokers_is_held_to_its_own_rate_only_and_counts_for_no_other() -> None:
    rates = ConnectionRates(burst_seconds=1)
    rates.set(1, {}, exempt="INTERNAL")
    for _ in range(100):
        rates.accepted("INTERNAL", 0)
    assert rates.wait_seconds("INTERNAL", 0) == 0
    assert rates.wait_seconds("CLIENTS", 0) == 0
    for _ in range(2):
        rates.accepted("CLIENTS", 0)
    assert rates.wait_seconds("CLIENTS", 0) > 0
    assert rates.wait_seconds("INTERNAL", 0) == 0
    rates.set(1, {"INTERNAL": 50}, exempt="INTERNAL")
    assert accepted(rates, "INTERNAL", 10) == pytest.approx(550, abs=2)


def test_a_wait_is_at_most_a_window_and_a_removed_rate_ends() -> None:
    rates = ConnectionRates(burst_seconds=2, wait_seconds_max=1)
    rates.set(0, {"A": 0})
    for _ in range(50):
        wait = rates.wait_seconds("A", 0)
        if wait:
            break
        rates.accepted("A", 0)
    assert 0 < wait <= 1
    rates.set(None, {})
    assert rates.wait_seconds("A", 0) == 0


async def test_connections_beyond_the_rate_wait_until_it_is_raised() -> None:
    net = Network(lambda peer, frame: [bytes(frame)], Limits(), loop=asyncio.get_running_loop())
    net.rates = ConnectionRates(
        burst_seconds=3000, wait_seconds_max=1000
    )  # one in 1000 seconds, three at first
    net.bind("127.0.0.1", 0, name="CLIENTS")
    net.bind("127.0.0.1", 0, name="BROKERS")
    net.set_rates(0, {}, exempt="BROKERS")
    net.start_listening()
    clients, brokers = net.listeners
    try:
        crowd = [await asyncio.open_connection("127.0.0.1", clients.port) for _ in range(8)]
        others = [await asyncio.open_connection("127.0.0.1", brokers.port) for _ in range(8)]
        for reader, writer in others:
            writer.write(b"\0\0\0\1x")
            assert await reader.readexactly(5) == b"\0\0\0\1x"
        assert (clients.accepted, brokers.accepted) == (4, 8)
        net.set_rates(None, {})
        async with asyncio.timeout(60):
            for reader, writer in crowd:
                writer.write(b"\0\0\0\1y")
                assert await reader.readexactly(5) == b"\0\0\0\1y"
        assert clients.accepted == 8
        for _, writer in crowd + others:
            writer.close()
    finally:
        net.close()
        await asyncio.sleep(0)


async def test_a_connection_rate_takes_effect_at_once(tmp_path: Path) -> None:
    name = "max.connection.creation.rate"
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "listener.name.outside.max.connection.creation.rate": "7",
    }
    async with direct_broker(tmp_path, settings) as broker:
        rates = broker.broker.network.rates

        def at_once(listener: str) -> int:
            for number in range(1000):
                if rates.wait_seconds(listener, 10_000) > 0:
                    return number
                rates.accepted(listener, 10_000)
            return 1000

        assert (at_once("PLAINTEXT"), at_once("OUTSIDE")) == (1000, 16)  # 2.2 s of 7, and one
        assert await alter(broker, BROKER, "0", (name, SET, "3")) == (0, None)
        assert (at_once("PLAINTEXT"), at_once("OUTSIDE")) == (1000, 0)
        rates = broker.broker.network.rates = ConnectionRates()
        assert await alter(broker, BROKER, "", (f"listener.name.outside.{name}", SET, "20")) == (0, None)
        assert at_once("OUTSIDE") == 7  # of the broker: 2.2 s of 3, and one
        assert await alter(broker, BROKER, "0", (name, SET, "-1")) != (0, None)


def test_a_listener_that_waits_stops() -> None:
    async def test() -> None:
        net = Network(lambda peer, frame: [bytes(frame)], Limits(), loop=asyncio.get_running_loop())
        net.rates = ConnectionRates(burst_seconds=1, wait_seconds_max=1000)
        listening = net.bind("127.0.0.1", 0)
        net.set_rates(0, {})
        net.start_listening()
        crowd = [socket.create_connection(("127.0.0.1", listening.port)) for _ in range(4)]
        while listening.pause is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        net.close()
        assert listening.pause is None
        for each in crowd:
            each.close()

    asyncio.run(test())
