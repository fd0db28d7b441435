"""Arrow values and Kafka records as JSON that a browser reads without loss.

Whole numbers beyond 2**53 are texts, and so are decimals, NaN and Infinity. Bytes that are not UTF-8 are base64.
"""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.json.python_values import python_values

if TYPE_CHECKING:
    from headrace.protocol.records.decode import RecordColumns
    from headrace.tablelayer.client import ConfigKind, Connection

_EXACT: Final = 2**53
TEXT_MAX: Final = 64 << 10
"""Maximum size of a record's key or value, or of a row's value, for a browser."""
FRAME_BYTES: Final = 5
"""Size of the front of the wire format: a zero byte, and the number of the schema in four bytes."""
FRAMED_MAX: Final = 128 << 10
"""Maximum size of a key or value that is decoded by its schema."""


def plain(value: Any) -> Any:
    """Convert a Python value from Arrow to a JSON value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}..."
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)[:TEXT_MAX]).decode()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):  # a MAP
        return {str(plain(key)): plain(each) for key, each in value}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value)


def rows_of(table: pa.Table | pa.RecordBatch) -> dict[str, Any]:
    """Return columns with their types, and rows as lists."""
    names = table.schema.names
    columns = [_values(table.column(index)) for index in range(len(names))]
    return {
        "columns": [
            {"name": name, "type": str(table.schema.field(index).type)} for index, name in enumerate(names)
        ],
        "rows": list(map(list, zip(*columns, strict=True))) if names else [],
    }


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column as JSON values: whole, if Arrow's own values are what `plain` makes of them."""
    return column.to_pylist() if _is_plain(column) else list(map(plain, python_values(column)))


def _is_plain(column: pa.Array | pa.ChunkedArray) -> bool:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return True
    if pa.types.is_integer(kind):
        bounds = pc.min_max(column)
        return (
            not bounds["min"].is_valid or -_EXACT <= bounds["min"].as_py() <= bounds["max"].as_py() <= _EXACT
        )
    if pa.types.is_floating(kind):
        return pc.all(pc.is_finite(column)).as_py() is not False
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return (pc.max(pc.binary_length(column)).as_py() or 0) <= TEXT_MAX
    return False


def text_of(data: bytes | None, bytes_max: int | None = None) -> dict[str, Any] | None:
    """Return a record's key or value: {"text", "encoding", "size"}, cut to `bytes_max` (TEXT_MAX); None for null."""
    if data is None:
        return None
    part = data[: bytes_max or TEXT_MAX]
    try:
        text, encoding = part.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        if len(part) < len(data) and error.start >= len(part) - 3:  # cut in the middle of a character
            text, encoding = part[: error.start].decode("utf-8"), "utf-8"
        else:
            text, encoding = base64.b64encode(part).decode(), "base64"
    return {"text": text, "encoding": encoding, "size": len(data)}


class Piece(NamedTuple):
    """A key or a value that begins like one of a schema registry: as it is shown, and its bytes, at most FRAMED_MAX."""

    shown: dict[str, Any]
    data: bytes


class Record(NamedTuple):
    """A record as a JSON value, its place in the order of time, and its pieces that a schema may decode."""

    place: tuple[int, int, int]
    shown: dict[str, Any]
    pieces: Sequence[Piece]


def record_of(partition: int, records: RecordColumns, index: int, bytes_max: int | None = None) -> Record:
    """Return one record of a batch; texts are cut as by `text_of`."""
    data, pieces = records.payload.data, list[Piece]()

    def piece(start: int, length: int) -> dict[str, Any] | None:
        content = None if length < 0 else bytes(data[start : start + length])
        shown = text_of(content, bytes_max)
        if shown is not None and content is not None and length > FRAME_BYTES and not content[0]:
            pieces.append(Piece(shown, content[:FRAMED_MAX]))
        return shown

    offset, timestamp = int(records.offsets[index]), int(records.timestamps[index])
    shown = {
        "partition": partition,
        "offset": offset,
        "timestamp_ms": timestamp,
        "key": piece(int(records.key_start[index]), int(records.key_length[index])),
        "value": piece(int(records.value_start[index]), int(records.value_length[index])),
        "headers": [
            {"name": name, "value": text_of(value, bytes_max)} for name, value in records.headers(index)
        ],
    }
    return Record((timestamp, partition, offset), shown, pieces)


def configs_of(connection: Connection, kind: ConfigKind, name: str) -> list[dict[str, Any]]:
    """Return the configurations of a topic or a broker."""
    return [
        {
            "name": each.name,
            "value": None if each.is_sensitive else each.value,
            "sensitive": each.is_sensitive,
            "from": each.source,
            "read_only": each.is_read_only,
            "default": each.is_default,
            "documentation": each.documentation,
        }
        for each in connection.kafka.configs(kind, name)
    ]
