"""Live tails: a thread reads what is new and keeps the newest rows, which a page gets four times a second.

An event has the newest rows since the event before, and counts of all of them. Its size is limited, whatever the rate
of the records. A tail of a topic that falls behind continues near the end, and counts what it passed over.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.tablelayer.client import ClientError, Connection, KafkaError, TableError, stopping
from headrace.tablelayer.console.routes import RequestError
from headrace.tablelayer.console.values import Piece, Record, record_of, rows_of
from headrace.tablelayer.console.wanted import Wanted
from headrace.tablelayer.model.batches.batch import ChangeType

if TYPE_CHECKING:
    from headrace.tablelayer.client import ScanBatch

TAIL_THREAD: Final = "console-tail"
TAILS_MAX: Final = 16
"""Live tails at a time. Each has a thread."""
SECONDS_BETWEEN_EVENTS: Final = 0.25
ROWS_MAX: Final = 40
"""Rows of one event."""
TEXT_BYTES_MAX: Final = 4096
"""Maximum size of a key or a value in an event. A page asks for the whole record when it is opened."""
BEHIND_MAX: Final = 50_000
"""Records that a tail may be behind the end of a partition."""
_SECONDS_BETWEEN_FETCHES: Final = 0.1
_SECONDS_BETWEEN_CHECKS: Final = 1.0


class Tail:
    """The rows that came since the last `take`. One thread reads, between `start` and `stop.set`."""

    def __init__(self, read: Callable[[Tail], None], stop: stopping.Stop) -> None:
        self.stop = stop
        self.failure: Exception | None = None
        self._read = read
        self._lock = threading.Lock()
        self.shown: Callable[[list[Any]], list[dict[str, Any]]] = list
        """Makes JSON values of rows: of the few alone that an event has."""
        self.not_decoded: str | None = None
        """The reason that some keys and values are searched by their bytes alone, or None."""
        self._newest: deque[Any] = deque(maxlen=ROWS_MAX)
        self._came = self._matched = self._passed_over = 0

    def start(self) -> None:
        threading.Thread(target=self._run, name=TAIL_THREAD, daemon=True).start()

    def _run(self) -> None:
        try:
            with stopping.running(self.stop):
                self._read(self)
        except stopping.Stopped:
            pass
        except (KafkaError, ClientError, TableError, RequestError, ValueError) as error:
            self.failure = error

    def put(self, newest: Sequence[Any], came: int, matched: int, passed_over: int = 0) -> None:
        """Add rows that came. `newest` are the last of those that matched, at most ROWS_MAX."""
        with self._lock:
            self._newest.extend(newest)
            self._came += came
            self._matched += matched
            self._passed_over += passed_over

    def take(self) -> dict[str, Any] | None:
        """Return the newest rows in the order of their arrival, and the counts, since the last call; None if none."""
        with self._lock:
            if not self._came and not self._passed_over:
                return None
            rows = list(self._newest)
            counts = {"came": self._came, "matched": self._matched, "passed_over": self._passed_over}
            self._newest.clear()
            self._came = self._matched = self._passed_over = 0
        return {"rows": self.shown(rows), "not_decoded": self.not_decoded, **counts}


def follow_topic(
    connection: Connection,
    topic: str,
    partition: int | None,
    wanted: Callable[[], Wanted],
    decode: Callable[[Sequence[Piece], int], None],
) -> Callable[[Tail], None]:
    """Return a function that reads the wanted records from now on. `decode` adds decoded texts of a maximum size.

    Raises RequestError, KafkaError.
    """
    kafka = connection.kafka
    known = kafka.describe_topic(topic).partitions
    if partition is not None and partition not in known:
        raise RequestError(f"{topic} has no partition {partition}: it has 0 to {len(known) - 1}")
    at = {p: end for p, end in _ends(connection, topic).items() if partition in (None, p)}
    if not at:
        raise RequestError(f"{topic} has no leader now: its brokers are not alive")
    chosen = wanted()

    def shown(records: list[Record]) -> list[dict[str, Any]]:
        decode([piece for each in records for piece in each.pieces], TEXT_BYTES_MAX)
        return [each.shown for each in records]

    def read(tail: Tail) -> None:
        tail.shown = shown
        checked = time.monotonic()
        while True:
            began = time.monotonic()
            batches, after = kafka.read_batches(topic, at, max_wait_ms=1000)
            for place, columns in batches:
                found = chosen.indices(place, columns, at[place], after[place])
                newest = [record_of(place, columns, each, TEXT_BYTES_MAX) for each in found[-ROWS_MAX:]]
                tail.not_decoded = chosen.not_decoded
                tail.put(newest, int((columns.offsets >= at[place]).sum()), len(found))
            at.update(after)
            if time.monotonic() - checked > _SECONDS_BETWEEN_CHECKS:
                checked = time.monotonic()
                tail.put((), 0, 0, _catch_up(at, _ends(connection, topic)))
            time.sleep(max(0.0, began + _SECONDS_BETWEEN_FETCHES - time.monotonic()))
            stopping.check()

    return read


def _ends(connection: Connection, topic: str) -> dict[int, int]:
    return {p: each.end for p, each in connection.kafka.offset_ranges([topic]).get(topic, {}).items()}


def _catch_up(at: dict[int, int], ends: Mapping[int, int]) -> int:
    """Move positions that are far behind near the ends; return the number of records passed over."""
    passed_over = 0
    for place, end in ends.items():
        if place in at and end - at[place] > BEHIND_MAX:
            passed_over += end - ROWS_MAX - at[place]
            at[place] = end - ROWS_MAX
    return passed_over


def follow_table(connection: Connection, table: str, condition: str | None) -> Callable[[Tail], None]:
    """Return a function that reads the changes of rows for which `condition`, in SQL, is true, from now on.

    Raises TableError, KafkaError, ValueError.
    """
    found = connection.table(table)
    now = found.partition_offsets("latest") if found.definition.is_partitioned else found.offsets("latest")
    scan = found.scan(start=now, filter=condition)

    def read(tail: Tail) -> None:
        with scan:
            for batch in scan:
                tail.put(changes_of(batch, ROWS_MAX), batch.row_count, batch.row_count)

    return read


def changes_of(batch: ScanBatch, rows_max: int) -> list[dict[str, Any]]:
    """Return the last changes of a batch as JSON values."""
    first = max(0, batch.row_count - rows_max)
    rows = rows_of(batch.batch.slice(first))["rows"]
    return [
        {
            "change": ChangeType(kind).short,
            "partition": batch.partition,
            "bucket": batch.bucket,
            "offset": offset,
            "timestamp_ms": batch.timestamp_ms,
            "row": row,
        }
        for row, kind, offset in zip(
            rows, batch.change_types[first:].tolist(), batch.offsets[first:].tolist(), strict=True
        )
    ]
