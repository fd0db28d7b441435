"""Plain topics as tables: a row for each record, with `partition`, `offset`, `timestamp`, `key`, `value`, `headers`.

Keys and values are texts; bytes that are not UTF-8 show as `\\xff`. `headers` is a list of structs `key`, `value`, as
in Spark's Kafka source: all headers of a record in order, including those of equal names. `*` does not include
`key_bytes`, `value_bytes` and `headers_bytes`, which are exact, and `json`, the value if it is JSON, else NULL
(`json->>'$.user.id'`). Records are read from each partition's beginning to its end when the query began, one fetch at a
time. Bounds of `partition`, `offset` and `timestamp` in a query limit the read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.tablelayer.client import Connection, KafkaError, TableError
from headrace.tablelayer.model.ddl.query import Bounds

if TYPE_CHECKING:
    from headrace.protocol.records.decode import RecordColumns

_EARLIEST, _LATEST = -2, -1
_FETCH_BYTES = 8 << 20


def _headers_type(value: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", value)]))


_SHOWN = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("headers", _headers_type(pa.string())),
    ]
)
_NAMED = pa.schema(
    [
        pa.field("json", pa.string()),
        pa.field("key_bytes", pa.binary()),
        pa.field("value_bytes", pa.binary()),
        pa.field("headers_bytes", _headers_type(pa.binary())),
    ]
)
NO_TABLE = ("TABLE_NOT_FOUND", "DATABASE_NOT_FOUND", "INVALID_TABLE", "TOPIC_AUTHORIZATION_FAILED")
"""Errors after which a name may be a topic. The last is for a client that may not see the table."""


def find_topic(
    connection: Connection, name: str, database: str, error: TableError | KafkaError
) -> Topic | None:
    """Return the topic for a name that is not a table's, with or without the database before it."""
    if error.code.name not in NO_TABLE:
        return None
    for topic in (name.removeprefix(f"{database}."), name):
        try:
            described = connection.kafka.describe_topic(topic)
        except KafkaError:
            continue
        return None if described.is_table else Topic(connection, topic)
    return None


class Topic:
    """Reads one topic."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._kafka = connection.kafka
        self.name = name

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of these columns, or of all available ones (None)."""
        every = pa.schema([*_SHOWN, *_NAMED])
        return every if columns is None else pa.schema([every.field(name) for name in columns])

    def columns(self, wanted: Collection[str] | None) -> list[str]:
        """Return the columns among `wanted` (in lower case), or those of `*` (None)."""
        if wanted is None:
            return list(_SHOWN.names)
        return [name for name in self.schema().names if name in wanted] or ["offset"]

    def shown(self, bounds: Mapping[str, Bounds]) -> Iterator[str]:
        """Return the bounds that limit the read, as text."""
        for name in ("partition", "offset", "timestamp"):
            found = bounds.get(name)
            if found is None:
                continue
            if found.lower is not None and found.lower == found.upper:
                yield f"{name} = {found.lower!s}"
                continue
            if found.lower is not None:
                yield f"{name} >{'=' if found.include_lower else ''} {found.lower!s}"
            if found.upper is not None and name == "offset":
                yield f"{name} <{'=' if found.include_upper else ''} {found.upper!s}"

    def batches(self, columns: Sequence[str], bounds: Mapping[str, Bounds]) -> Iterator[pa.RecordBatch]:
        """Read the records that may be within the bounds, partition after partition."""
        ends = self._kafka.offsets(self.name, _LATEST)
        begins = self._begins(bounds)
        of_offset = bounds.get("offset", Bounds())
        for partition in sorted(ends):
            if not _within(partition, bounds.get("partition")):
                continue
            position, end = begins[partition], ends[partition]
            if isinstance(of_offset.lower, int):
                position = max(position, of_offset.lower)
            if isinstance(of_offset.upper, int):
                end = min(end, of_offset.upper + 1)
            yield from self._of_partition(partition, position, end, columns)

    def _begins(self, bounds: Mapping[str, Bounds]) -> dict[int, int]:
        earliest = self._kafka.offsets(self.name, _EARLIEST)
        since = _milliseconds(bounds.get("timestamp", Bounds()).lower)
        if since is None:
            return earliest
        # -1: no record is that late. Records that arrive meanwhile do not belong to this query.
        later = self._kafka.offsets(self.name, since)
        return {
            partition: max(offset, later[partition]) if later[partition] >= 0 else 2**63 - 1
            for partition, offset in earliest.items()
        }

    def _of_partition(
        self, partition: int, position: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        while position < end:
            found, positions = self._kafka.read_batches(
                self.name, {partition: position}, max_bytes=_FETCH_BYTES
            )
            for _, records in found:
                yield self.rows(partition, records, position, end, columns)
            if positions[partition] <= position:
                return  # the rest belongs to an undecided transaction, or was deleted
            position = positions[partition]

    def rows(
        self, partition: int, records: RecordColumns, begin: int, end: int, columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Return the rows of records from offset `begin` to `end` (exclusive)."""
        count = len(records)
        pieces: dict[str, Sequence[bytes | None]] = {
            "key": records.keys() if {"key", "key_bytes"} & set(columns) else (),
            "value": records.values() if {"value", "json", "value_bytes"} & set(columns) else (),
        }
        arrays = []
        for name in columns:
            if name == "partition":
                array: Any = pa.repeat(pa.scalar(partition, pa.int32()), count)
            elif name == "offset":
                array = pa.array(records.offsets)
            elif name == "timestamp":
                array = pa.array(records.timestamps).cast(_SHOWN.field("timestamp").type)
            elif name in ("headers", "headers_bytes"):
                array = _headers(records, exact=name == "headers_bytes")
            elif name == "json":
                array = pa.array(map(_json, pieces["value"]), pa.string())
            else:
                exact = pa.array(pieces[name.removesuffix("_bytes")], pa.binary())
                array = exact if name.endswith("_bytes") else _texts(exact)
            arrays.append(array)
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema(columns))
        first = int((records.offsets < begin).sum())
        return rows.slice(first, int((records.offsets < end).sum()) - first)


def _texts(exact: pa.Array) -> pa.Array:
    try:
        return exact.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if each is None else _text(each) for each in exact.to_pylist()], pa.string())


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _json(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        return data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _headers(records: RecordColumns, *, exact: bool) -> pa.Array:
    """Return the headers of each record, with values as bytes (`exact`) or as texts."""
    counts = records.headers_count
    found = [each for index in counts.nonzero()[0].tolist() for each in records.headers(index)]
    values = pa.array([value for _, value in found], pa.binary())
    if not exact:
        values = _texts(values)
    pairs = pa.StructArray.from_arrays(
        [pa.array([name for name, _ in found], pa.string()), values], names=["key", "value"]
    )
    ends = pa.array(np.concatenate(([0], counts.cumsum())), pa.int32())
    return pa.ListArray.from_arrays(ends, pairs)


def _within(partition: int, bounds: Bounds | None) -> bool:
    if bounds is None:
        return True
    above = not isinstance(bounds.lower, int) or partition >= bounds.lower
    return above and (not isinstance(bounds.upper, int) or partition <= bounds.upper)


def _milliseconds(value: Any) -> int | None:
    """Return a literal that is compared with `timestamp` in ms, in UTC as in DuckDB here; None if unknown."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    else:
        return None
    time_ms = int(moment.timestamp() * 1000)
    return time_ms if time_ms > 0 else None  # records may be older than 1970
