"""The number of connections of an address: one limit for all, and others for named addresses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.broker.api.configs import BROKER
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.connections import OVERRIDES, PER_ADDRESS, overrides
from headrace.broker.net.address_slots import AddressSlots
from headrace.broker.tests.api.test_broker_configs import SET, alter
from headrace.broker.tests.net.test_connection import close, echo, frame, network, read_frame, run
from headrace.protocol.errors import ErrorCode
from simulator.direct import direct_broker


def test_each_address_has_its_own_number_or_that_of_all() -> None:
    slots = AddressSlots()
    slots.take("10.0.0.1")
    assert slots.full("10.0.0.1") is None
    slots.set(1, {"10.0.0.2": 2, "::ffff:10.0.0.3": 0})
    for host in ("10.0.0.2", "::1"):
        slots.take(host)
    assert [slots.full(f"10.0.0.{last}") for last in range(1, 5)] == [1, None, 0, None]
    assert (slots.full("::1"), slots.full("::2")) == (1, None)
    slots.take("::ffff:10.0.0.2")
    assert slots.full("10.0.0.2") == 2, "an address is the same over IPv6"
    for host in ("::ffff:10.0.0.1", "10.0.0.2"):
        slots.leave(host)
    assert [slots.full(f"10.0.0.{last}") for last in (1, 2)] == [None, None]


def test_numbers_are_read_as_kafka_reads_them() -> None:
    text = " app.example:100, 10.0.0.7 : 200,::1:5,fe80::1%eth0:0,,big:99999999999999"
    assert overrides(text) == {
        "app.example": 100,
        "10.0.0.7": 200,
        "::1": 5,
        "fe80::1%eth0": 0,
        "big": 2**31 - 1,
    }
    assert overrides("") == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({OVERRIDES: "10.0.0.1"}, "'10.0.0.1' is not HOST:CONNECTIONS"),
        ({OVERRIDES: "a:1,b:not_a_number"}, "'b:not_a_number' is not HOST:CONNECTIONS"),
        ({OVERRIDES: "a:-1"}, "'a:-1' is not HOST:CONNECTIONS"),
        ({OVERRIDES: "a b:1"}, "'a b:1' is not HOST:CONNECTIONS"),
        ({OVERRIDES: ":1"}, "':1' is not HOST:CONNECTIONS"),
        ({PER_ADDRESS: "0"}, f"can be set to zero only if {OVERRIDES} property is set"),
        ({PER_ADDRESS: "-1"}, "Value must be at least 0"),
    ],
)
def test_a_malformed_number_of_connections_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(settings)
    assert words in str(refused.value)


def test_connections_beyond_an_addresss_number_are_closed() -> None:
    async def test() -> None:
        async with network(echo) as net:

            async def is_served() -> bool:
                reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
                kept.append(writer)
                writer.write(frame(b"x"))
                try:
                    return await read_frame(reader) == b"x"
                except (asyncio.IncompleteReadError, ConnectionError):
                    return False

            kept: list[asyncio.StreamWriter] = []
            net.set_connections_per_address(0, {"127.0.0.1": 2})
            assert [await is_served() for _ in range(3)] == [True, True, False]
            net.set_connections_per_address(3, {"10.0.0.1": 0})
            assert [await is_served() for _ in range(2)] == [True, False]
            for each in kept:
                await close(each)

    run(test)


async def test_connection_overrides_take_effect_at_once_and_resolve_names(tmp_path: Path) -> None:
    async with direct_broker(tmp_path, {PER_ADDRESS: "5", OVERRIDES: "127.0.0.9:0"}) as broker:
        slots = broker.broker.network._per_address
        slots.take("127.0.0.1")
        assert (slots.full("127.0.0.1"), slots.full("127.0.0.9")) == (None, 0)
        assert await alter(broker, BROKER, "0", (OVERRIDES, SET, "localhost:1")) == (0, None)
        assert (slots.full("127.0.0.1"), slots.full("127.0.0.9")) == (1, None)
        assert await alter(broker, BROKER, "", (PER_ADDRESS, SET, "0")) == (0, None)
        assert (slots.full("127.0.0.1"), slots.full("127.0.0.9")) == (1, 0)
        name = "a" * 64  # longer than a host name may be, so that no server is asked for it
        code, message = await alter(broker, BROKER, "0", (OVERRIDES, SET, f"{name}:1"))
        assert code == ErrorCode.INVALID_CONFIG
        assert f"the address of host {name} cannot be found" in message
        assert slots.full("127.0.0.1") == 1
