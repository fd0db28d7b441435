"""Rates, sizes, lags and loads over time: one look every few seconds, kept in a `Ring`.

A look asks for the end offsets of at most TOPICS_MAX topics and the load of TABLES_MAX tables, and each third one for
the lag of at most GROUPS_MAX groups and of the lake. A server that does not answer leaves a gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
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
from headrace.tablelayer.console.ring import SERIES_MAX, Ring
from headrace.tablelayer.lake.coordinator import list_lake

SECONDS_BETWEEN_LOOKS: Final = 5.0
TOPICS_MAX: Final = 400
GROUPS_MAX: Final = 100
LAKE_MAX: Final = 50
TABLES_MAX: Final = 50
_LOOKS_PER_LAGS: Final = 3
FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "cluster": ("records_per_second", "bytes", "cpu_percent", "memory_bytes"),
    "topic": ("records_per_second", "bytes"),
    "table": ("lookups_per_second", "rows_per_second"),
    "group": ("lag",),
    "broker": ("cpu_percent", "memory_bytes", "disk_free_bytes"),
    "lake": ("behind_ms",),
}
"""The numbers that are kept of each kind of thing. `cpu_percent` is of one core."""


class Look(msgspec.Struct, frozen=True):
    """The servers' state at one moment. `ends` are by topic and partition, without partitions that have no leader;
    `sizes` by topic, `cpu_ms` by broker and process, `memory` and `disk_free` by broker. `loads` has keys looked up and
    rows written by broker and table.

    `lags` by group and `behind_ms` by table or topic of the lake are empty unless this look asked for them.
    """

    at: float
    time_ms: int
    ends: Mapping[str, Mapping[int, int]]
    sizes: Mapping[str, int]
    topic_count: int
    cpu_ms: Mapping[tuple[int, int], int]
    memory: Mapping[int, int]
    disk_free: Mapping[int, int] = {}
    lags: Mapping[str, int] = {}
    behind_ms: Mapping[str, int] = {}
    loads: Mapping[tuple[int, str], tuple[int, int]] = {}


def look(connection: Connection, at: float, time_ms: int, *, lags: bool = False) -> Look:
    """Ask the servers for their state. Raises KafkaError, ClientError."""
    topics = [each for each in connection.kafka.list_topics() if not each.is_internal]
    asked = [each.name for each in topics[:TOPICS_MAX]]
    ranges = connection.kafka.offset_ranges(asked) if asked else {}
    ends = {topic: {p: each.end for p, each in ranges.get(topic, {}).items()} for topic in asked}
    sizes: dict[str, int] = {}
    disk_free: dict[int, int] = {}
    try:
        logs = connection.kafka.log_sizes()
        sizes = {name: sum(parts.values()) for name, parts in logs.bytes.items()}
        disk_free = {broker: free for broker, (free, _) in logs.disks.items() if free >= 0}
    except KafkaError:
        pass
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
        {each.broker_id: each.memory_bytes for each in servers if each.memory_bytes >= 0},
        disk_free,
        _lags(connection, ends) if lags else {},
        _behind(connection) if lags else {},
        _loads(connection),
    )


def _lags(connection: Connection, ends: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """Return the lag of each group in the topics that are asked; none while one of its partitions has no leader."""
    found = {}
    for each in connection.kafka.list_groups()[:GROUPS_MAX]:
        try:
            positions = connection.kafka.describe_group(each.group).positions
        except KafkaError:
            continue  # deleted meanwhile
        known = [(ends[topic].get(p), offset) for (topic, p), offset in positions.items() if topic in ends]
        behind = [max(0, end - offset) for end, offset in known if end is not None]
        if len(behind) == len(known):
            found[each.group] = sum(behind)
    return found


def _loads(connection: Connection) -> dict[tuple[int, str], tuple[int, int]]:
    try:
        loads = connection.admin.table_loads()
    except (UnsupportedRequest, KafkaError, TableError):
        return {}
    tables = set(sorted({each.table for each in loads})[:TABLES_MAX])
    return {
        (each.broker_id, each.table): (each.keys_looked_up, each.rows_written)
        for each in loads
        if each.table in tables
    }


def _behind(connection: Connection) -> dict[str, int]:
    try:
        return {each.name: each.behind_ms for each in list_lake(connection)[:LAKE_MAX] if each.behind_ms >= 0}
    except (UnsupportedRequest, KafkaError, TableError):
        return {}


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


def values(before: Look, after: Look) -> dict[str, float]:
    """Return the numbers of a look by the names of their series: kind, name and field, with `/` between them."""
    seconds = max(after.at - before.at, 1e-3)
    of_topics = rates(before, after)
    used: dict[int, float] = {}
    for (broker, process), ms in after.cpu_ms.items():
        spent = max(0, ms - before.cpu_ms.get((broker, process), 0))
        used[broker] = used.get(broker, 0.0) + spent / (seconds * 10)
    lookups: dict[str, float] = {}
    rows: dict[str, float] = {}
    for (broker, table), (looked_up, written) in after.loads.items():
        known = before.loads.get((broker, table), (looked_up, written))
        lookups[table] = lookups.get(table, 0.0) + max(0, looked_up - known[0]) / seconds
        rows[table] = rows.get(table, 0.0) + max(0, written - known[1]) / seconds
    found = {
        "cluster//records_per_second": sum(of_topics.values()),
        "cluster//bytes": float(sum(after.sizes.values())),
        "cluster//cpu_percent": sum(used.values()),
        "cluster//memory_bytes": float(sum(after.memory.values())),
    }
    for kind, field, of in (
        ("topic", "records_per_second", of_topics),
        ("topic", "bytes", {topic: after.sizes.get(topic, 0) for topic in of_topics}),
        ("table", "lookups_per_second", lookups),
        ("table", "rows_per_second", rows),
        ("group", "lag", after.lags),
        ("lake", "behind_ms", after.behind_ms),
        ("broker", "cpu_percent", used),
        ("broker", "memory_bytes", after.memory),
        ("broker", "disk_free_bytes", after.disk_free),
    ):
        found |= {f"{kind}/{name}/{field}": float(value) for name, value in of.items()}
    return dict(list(found.items())[:SERIES_MAX])


class History:
    """Looks in its own thread between `start` and `close`. May be asked from any thread."""

    def __init__(
        self,
        connection: Callable[[], Connection],
        ring: Ring | None = None,
        seconds: float = SECONDS_BETWEEN_LOOKS,
    ) -> None:
        """`ring` None: numbers are kept in memory. The caller closes it."""
        self._connection = connection
        self._ring = ring or Ring(None, "")
        self._seconds = seconds
        self._looks: deque[Look] = deque(maxlen=2)
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
            for number in count():
                if self._ended.is_set():
                    return
                try:
                    with_lags = number % _LOOKS_PER_LAGS == 1
                    self.add(
                        look(self._connection(), time.monotonic(), int(time.time() * 1000), lags=with_lags)
                    )
                    self.trouble = None
                except (KafkaError, ClientError, TableError, OSError) as error:
                    self.trouble = str(error)
                self._ended.wait(self._seconds)

    def add(self, latest: Look) -> None:
        with self._lock:
            before = self._looks[-1] if self._looks else None
            self._looks.append(latest)
            if before is not None and not self._ended.is_set():
                self._ring.put(latest.time_ms / 1000, values(before, latest))

    def rates(self) -> dict[str, float]:
        """Return records per second by topic, at the last look."""
        with self._lock:
            return rates(*self._looks) if len(self._looks) == 2 else {}

    def bytes(self) -> int | None:
        """Return the size of all logs at the last look."""
        with self._lock:
            return sum(self._looks[-1].sizes.values()) if self._looks else None

    def points(self, kind: str, name: str, begin_ms: int, end_ms: int) -> list[dict[str, Any]]:
        """Return the numbers of a thing over time: `time_ms`, and the FIELDS of its kind, None if unknown."""
        fields = FIELDS[kind]
        series = [f"{kind}/{name}/{field}" for field in fields]
        return [
            {"time_ms": time_ms, **dict(zip(fields, row, strict=True))}
            for time_ms, row in self._ring.read(series, begin_ms / 1000, end_ms / 1000)
        ]
