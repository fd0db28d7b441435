"""Rates, sizes and loads over time, kept in the console's process: one look every few seconds, for one hour.

A look asks for the end offsets of at most TOPICS_MAX topics. A server that does not answer leaves a gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headrace.tablelayer.client import (
    ClientError,
    Connection,
    KafkaError,
    TableError,
    UnsupportedRequest,
    stopping,
)

SECONDS_BETWEEN_LOOKS: Final = 5.0
LOOKS_MAX: Final = 720
TOPICS_MAX: Final = 500


class Look(msgspec.Struct, frozen=True):
    """The servers' state at one moment. `ends` are by topic and partition, without partitions that have no leader;
    `sizes` by topic, `cpu_ms` by broker and process.
    """

    at: float
    time_ms: int
    ends: Mapping[str, Mapping[int, int]]
    sizes: Mapping[str, int]
    topic_count: int
    cpu_ms: Mapping[tuple[int, int], int]
    memory_bytes: int


class Point(msgspec.Struct, frozen=True):
    """A point of a plot. Rates are per second since the point before; `cpu_percent` is of one core."""

    time_ms: int
    records_per_second: float
    bytes: int
    cpu_percent: float
    memory_bytes: int


def look(connection: Connection, at: float, time_ms: int) -> Look:
    """Ask the servers for their state. Raises KafkaError, ClientError."""
    topics = [each for each in connection.kafka.list_topics() if not each.is_internal]
    asked = [each.name for each in topics[:TOPICS_MAX]]
    ranges = connection.kafka.offset_ranges(asked) if asked else {}
    ends = {
        topic: {partition: each.end for partition, each in of_topic.items()}
        for topic, of_topic in ranges.items()
    }
    try:
        sizes = {name: sum(parts.values()) for name, parts in connection.kafka.log_sizes().bytes.items()}
    except KafkaError:
        sizes = {}
    try:
        servers = connection.admin.servers()
    except (UnsupportedRequest, KafkaError, TableError):
        servers = []
    return Look(
        at,
        time_ms,
        ends,
        sizes,
        len(topics),
        {(each.broker_id, each.process_id): each.cpu_ms for each in servers},
        sum(max(0, each.memory_bytes) for each in servers),
    )


def rates(before: Look, after: Look) -> dict[str, float]:
    """Return records per second by topic. A topic that is new, or was created again, counts from offset 0; a partition
    of a known topic from the first look at which its end is known.
    """
    seconds = max(after.at - before.at, 1e-3)
    found = {}
    for topic, ends in after.ends.items():
        earlier = {**ends, **before.ends[topic]} if topic in before.ends else {}
        grown = (end - earlier.get(p, 0) if end >= earlier.get(p, 0) else end for p, end in ends.items())
        found[topic] = sum(grown) / seconds
    return found


class History:
    """Looks in its own thread between `start` and `close`. May be asked from any thread."""

    def __init__(self, connection: Callable[[], Connection], seconds: float = SECONDS_BETWEEN_LOOKS) -> None:
        self._connection = connection
        self._seconds = seconds
        self._looks: deque[Look] = deque(maxlen=2)
        self._points: deque[Point] = deque(maxlen=LOOKS_MAX)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._stop = stopping.Stop()
        self._thread = threading.Thread(target=self._run, name="console-history", daemon=True)
        self.trouble: str | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)

    def _run(self) -> None:
        with stopping.running(self._stop):
            self._look_again_and_again()

    def _look_again_and_again(self) -> None:
        while not self._ended.is_set():
            try:
                self.add(look(self._connection(), time.monotonic(), int(time.time() * 1000)))
                self.trouble = None
            except (KafkaError, ClientError, TableError, OSError) as error:
                self.trouble = str(error)
            self._ended.wait(self._seconds)

    def add(self, latest: Look) -> None:
        with self._lock:
            before = self._looks[-1] if self._looks else None
            self._looks.append(latest)
            if before is None:
                return
            seconds = max(latest.at - before.at, 1e-3)
            used = sum(ms - before.cpu_ms.get(process, 0) for process, ms in latest.cpu_ms.items())
            self._points.append(
                Point(
                    latest.time_ms,
                    sum(rates(before, latest).values()),
                    sum(latest.sizes.values()),
                    max(0.0, used) / (seconds * 10),
                    latest.memory_bytes,
                )
            )

    def rates(self) -> dict[str, float]:
        """Return records per second by topic, at the last look."""
        with self._lock:
            return rates(*self._looks) if len(self._looks) == 2 else {}

    def points(self) -> list[dict[str, Any]]:
        with self._lock:
            return [msgspec.to_builtins(each) for each in self._points]
