"""Byte quotas set by `kafka-configs` are kept to within a tenth over half a minute.

They apply to producers and consumers of topics, and to appends and lookups of tables, all at the same time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer
from java_tools import JavaTools

from headrace.tablelayer import client as headrace

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
SECONDS = 30.0
RATE = 1_000_000
VALUE = 10_000
CONFIGS = "kafka.admin.ConfigCommand"


def measured(step: Callable[[], int]) -> float:
    """Return bytes a second over half a minute; `step` returns the bytes of one call."""
    began, moved = time.monotonic(), 0
    while time.monotonic() - began < SECONDS:
        moved += step()
    return moved / (time.monotonic() - began)


def random_bytes() -> bytes:
    return random.Random(VALUE).randbytes(VALUE)


def produced(address: str) -> float:
    counted = [0]
    producer = Producer({"bootstrap.servers": address, "client.id": "producer", "batch.size": 100_000})

    def step() -> int:
        before = counted[0]
        producer.produce("written", random_bytes(), on_delivery=lambda error, _: count(error))
        while len(producer) >= 20:
            producer.poll(0.05)
        return counted[0] - before

    def count(error: object) -> None:
        assert error is None
        counted[0] += VALUE

    rate = measured(step)
    producer.purge()
    return rate


def consumed(address: str) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "client.id": "consumer",
            "group.id": "quota",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 100_000,
            "fetch.max.bytes": 1_000_000,
            "queued.max.messages.kbytes": 200,
        }
    )
    consumer.subscribe(["filled"])
    assert consumer.poll(20) is not None

    def step() -> int:
        message = consumer.poll(1)
        return 0 if message is None else len(message.value())

    rate = measured(step)
    consumer.close()
    return rate


def appended(address: str) -> float:
    with headrace.connect(address, headrace.ClientConfig(client_id="appender")) as connection:
        table = connection.table("log")
        rows = [{"v": random_bytes()}] * 10

        def step() -> int:
            table.append(rows)
            return 10 * VALUE

        return measured(step)


def looked_up(address: str) -> float:
    with headrace.connect(address, headrace.ClientConfig(client_id="looker")) as connection:
        table = connection.table("keyed")

        def step() -> int:
            _, rows = table.lookup(list(range(10)))
            return sum(map(len, rows.column("v").to_pylist()))

        return measured(step)


def test_rates_are_within_a_tenth_over_half_a_minute(own_server) -> None:
    java, address = JavaTools(), own_server.address
    with headrace.connect(address) as connection:
        connection.execute("CREATE TABLE log (v BYTES) WITH ('table.log.arrow.compression.type' = 'none')")
        connection.execute("CREATE TABLE keyed (id INT, v BYTES, PRIMARY KEY (id) NOT ENFORCED)")
        connection.table("keyed").upsert([{"id": n, "v": random_bytes()} for n in range(10)])
    filler = Producer({"bootstrap.servers": address})
    for _ in range(int(1.5 * RATE * SECONDS / VALUE)):
        filler.produce("filled", random_bytes())
        filler.poll(0)
    assert filler.flush(60) == 0
    kinds = {"producer": produced, "consumer": consumed, "appender": appended, "looker": looked_up}
    for client in kinds:
        quotas = f"producer_byte_rate={RATE},consumer_byte_rate={RATE}"
        entity = ("--entity-type", "clients", "--entity-name", client)
        java.run(CONFIGS, "--bootstrap-server", address, "--alter", *entity, "--add-config", quotas)
    with ThreadPoolExecutor(len(kinds)) as threads:
        running = {client: threads.submit(run, address) for client, run in kinds.items()}
        rates = {client: each.result() / RATE for client, each in running.items()}
    assert {client: rate for client, rate in rates.items() if not 0.9 <= rate <= 1.1} == {}, rates
