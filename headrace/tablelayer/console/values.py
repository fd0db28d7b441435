"""Arrow values and Kafka records as JSON that a browser reads without loss.

Whole numbers beyond 2**53 are texts, and so are decimals, NaN and Infinity. Bytes that are not UTF-8 are base64.
"""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from headrace.protocol.records.decode import RecordColumns

_EXACT: Final = 2**53
TEXT_MAX: Final = 64 << 10
"""Maximum size of a record's key or value, or of a row's value, for a browser."""


json_of: Final = msgspec.json.Encoder(decimal_format="number").encode
"""Encodes a request's values as JSON again. Their numbers are decimals, and keep all their digits."""


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
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value)


def rows_of(table: pa.Table | pa.RecordBatch) -> dict[str, Any]:
    """Return columns with their types, and rows as lists."""
    names = table.schema.names
    columns = [[_value(each) for each in table.column(index)] for index in range(len(names))]
    return {
        "columns": [
            {"name": name, "type": str(table.schema.field(index).type)} for index, name in enumerate(names)
        ],
        "rows": [list(row) for row in zip(*columns, strict=True)] if names else [],
    }


def _value(scalar: pa.Scalar) -> Any:
    try:
        return plain(scalar.as_py())
    except (ValueError, OverflowError):
        return (
            str(scalar.cast(pa.string())) if scalar.is_valid else None
        )  # a time that Python cannot represent


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


def record_of(
    partition: int, records: RecordColumns, index: int, bytes_max: int | None = None
) -> dict[str, Any]:
    """Return one record of a batch as a JSON value; texts are cut as by `text_of`."""
    data = records.payload.data

    def piece(start: int, length: int) -> dict[str, Any] | None:
        return text_of(None if length < 0 else bytes(data[start : start + length]), bytes_max)

    return {
        "partition": partition,
        "offset": int(records.offsets[index]),
        "timestamp_ms": int(records.timestamps[index]),
        "key": piece(int(records.key_start[index]), int(records.key_length[index])),
        "value": piece(int(records.value_start[index]), int(records.value_length[index])),
        "headers": [
            {"name": name, "value": text_of(value, bytes_max)} for name, value in records.headers(index)
        ],
    }
