"""Clients that run all the time and record how long they had to wait.

The producer and the consumer are ordinary Kafka clients (librdkafka), the lookups are the table client's.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, Producer

from examples.stage import StepFailedError
from headrace import connect

GOES_ON_TIMEOUT_S = 120.0
QUIETLY = {"log_level": 2}
"""librdkafka would log each killed broker."""


@dataclass
class Waits:
    """The start of each request, on the monotonic clock, and its duration, in seconds."""

    begun: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, begun: float, ended: float) -> None:
        with self._lock:
            self.begun.append(begun)
            self.seconds.append(ended - begun)

    def longest(self, since: float, until: float) -> float | None:
        """Return the longest request between two moments; None without a request."""
        with self._lock:
            begun, seconds = np.array(self.begun), np.array(self.seconds)
        chosen = seconds[(begun <= until) & (begun + seconds >= since)]
        return float(chosen.max()) if len(chosen) else None


class _Probe(threading.Thread):
    """A thread that works until `stop`, which raises the thread's exception."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.waits = Waits()
        self.error: Exception | None = None
        self._over = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - told to whoever stops it
            self.error = error

    def work(self) -> None:
        raise AssertionError("abstract")

    def stop(self) -> None:
        self._over.set()
        self.join(GOES_ON_TIMEOUT_S)
        if self.is_alive():
            raise StepFailedError(f"{self.name}: no end after {GOES_ON_TIMEOUT_S:.0f} s")
        if self.error is not None:
            raise StepFailedError(f"{self.name}: {type(self.error).__name__}: {self.error}") from self.error


class Feeder(_Probe):
    """Sends orders one by one, evenly, acks=all; then the rest at once when it is stopped. A wait is the time from an
    order's sending to its acknowledgement."""

    def __init__(self, address: str, topic: str, values: Sequence[bytes], per_second: float) -> None:
        super().__init__("producer")
        self.sent_at: dict[int, float] = {}
        self.acknowledged = 0
        self._address, self._topic, self._values = address, topic, values
        self._per_second = per_second
        self._refused: list[str] = []

    def work(self) -> None:
        producer = Producer(
            {
                **QUIETLY,
                "bootstrap.servers": self._address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "sticky.partitioning.linger.ms": 0,
            }
        )
        begun = time.monotonic()
        for number, value in enumerate(self._values):
            while (
                not self._over.is_set()
                and (late := number / self._per_second - (time.monotonic() - begun)) > 0
            ):
                producer.poll(min(late, 0.05))
            now = time.monotonic()
            self.sent_at[number] = now
            producer.produce(self._topic, value, on_delivery=partial(self._delivered, now))
            producer.poll(0)
        left = producer.flush(GOES_ON_TIMEOUT_S)
        if left or self._refused:
            raise StepFailedError(f"{left} orders unsent, {len(self._refused)} refused: {self._refused[:3]}")

    def _delivered(self, sent: float, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._refused.append(str(error))
            return
        self.acknowledged += 1
        if not self._over.is_set():  # what is sent all at once waits for itself
            self.waits.add(sent, time.monotonic())


class Follower(_Probe):
    """A consumer group of one that reads all of a table's rows. A wait is the time between two records of one
    partition, which is that of the rows too: they come evenly."""

    def __init__(self, address: str, topic: str, key: str) -> None:
        super().__init__("consumer")
        self.seen: set[int] = set()
        self.again = 0
        self._last: dict[int, float] = {}
        self._address, self._topic, self._key = address, topic, key

    def work(self) -> None:
        consumer = Consumer(
            {
                **QUIETLY,
                "bootstrap.servers": self._address,
                "group.id": "watchers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )
        try:
            consumer.subscribe([self._topic])
            while not self._over.is_set():
                messages = consumer.consume(5_000, 0.1)
                now = time.monotonic()
                for message in messages:
                    if message.error() is None:
                        self._take(message, now)
        finally:
            consumer.close()

    def _take(self, message: Any, now: float) -> None:
        key = json.loads(message.value())[self._key]
        self.again += key in self.seen
        self.seen.add(key)
        last = self._last.get(message.partition())
        self._last[message.partition()] = now
        if last is not None and now > last:
            self.waits.add(last, now)


class Asker(_Probe):
    """Looks the same keys up again and again, some in each bucket. A wait is the time of one lookup."""

    def __init__(self, address: str, table: str, key: str, keys: Sequence[int]) -> None:
        super().__init__("lookups")
        self.vanished = 0
        """Rows that one lookup found and a later one did not."""
        self._address, self._table = address, table
        self._keys = [{key: each} for each in keys]

    def work(self) -> None:
        there = np.zeros(len(self._keys), bool)
        with connect(self._address) as connection:
            table = connection.table(self._table)
            while not self._over.wait(0.02):
                begun = time.monotonic()
                found, _ = table.lookup(self._keys)
                self.waits.add(begun, time.monotonic())
                self.vanished += int((there & ~found).sum())
                there |= found
