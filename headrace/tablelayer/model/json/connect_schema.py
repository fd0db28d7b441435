"""The schema that Kafka Connect's JSON converter puts around a record (`schemas.enable=true`).

`{"schema": {"type": "struct", "fields": [{"field": "at", "type": "int64", "name":
"io.debezium.time.MicroTimestamp"}]}, "payload": {...}}`. The name gives a field's meaning: the unit of a number, or
that a text is the base64 of a decimal. The schema is the same text in every record, so it is parsed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.tablelayer.model.arrays.arrays import sealed
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json.scan import Array, Bytes
from headrace.tablelayer.model.types import column_types as types
from headrace.tablelayer.model.types.column_types import DataType

Indices = npt.NDArray[np.int64]

SCHEMA_TEXT_MAX = 1 << 20
"""Maximum length of a schema; a longer one is ignored. A table of 1,000 columns has 200 KB, twice in an envelope."""

CONNECT_TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"
TIME_UNITS = {
    "io.debezium.time.Date": "d",
    "io.debezium.time.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "org.apache.kafka.connect.data.Date": "d",
    "org.apache.kafka.connect.data.Time": "ms",
    CONNECT_TIMESTAMP: "ms",
}
"""The unit of a field's numbers, by the name of its schema."""

_DIGITS = {"ms": 3, "us": 6, "ns": 9}


def time_type(name: str | None) -> DataType | None:
    """Return the column type with the values of a field whose numbers have a unit; None for another name."""
    unit = TIME_UNITS.get(name or "")
    if name is None or unit is None:
        return None
    if unit == "d":
        return types.DATE
    if not name.endswith("Timestamp"):
        return types.time(_DIGITS[unit])
    # Connect's own timestamps are instants. Those of Debezium have no zone.
    made = types.timestamp if name.startswith("io.debezium.") else types.timestamp_ltz
    return made(_DIGITS[unit])


DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
MONGO_ID = "_id"
"""The field of a MongoDB document that is its key."""


class ConnectSchema(msgspec.Struct, frozen=True):
    """A schema of Connect, or a field in one."""

    type: str
    field: str | None = None
    name: str | None = None
    optional: bool = False
    parameters: dict[str, Any] | None = None
    fields: tuple[ConnectSchema, ...] = ()
    items: ConnectSchema | None = None
    keys: ConnectSchema | None = None
    values: ConnectSchema | None = None

    def child(self, name: str) -> ConnectSchema | None:
        """Return the field with this name; None if there is no such field."""
        return next((each for each in self.fields if each.field == name), None)

    @property
    def scale(self) -> int | None:
        """Digits after the point of a Decimal; None for another type."""
        if self.name != DECIMAL or self.parameters is None:
            return None
        text = str(self.parameters.get("scale", ""))
        return int(text) if text.lstrip("-").isdigit() and len(text) < 8 else None


@lru_cache(maxsize=256)
def parse(text: bytes) -> ConnectSchema | None:
    """Return the schema of a JSON text; None if the text is not a schema."""
    try:
        return msgspec.json.decode(text, type=ConnectSchema)
    except (msgspec.DecodeError, RecursionError):
        return None


def groups(
    data: Bytes, starts: Array, lengths: Array, kinds: Bytes
) -> Sequence[tuple[ConnectSchema | None, Indices]]:
    """Group n values by the schema that a scan has found beside each, int32[n] and uint8[n]: (schema, indices).

    None stands for no schema, and for one that cannot be read.
    """
    if not len(kinds) or not (kinds == json_scan.CONTAINER).any():
        return [(None, np.arange(len(kinds)))]
    same = np.zeros(len(kinds), np.bool_)
    _repeats(data, sealed(starts), sealed(lengths), sealed(kinds), same)
    firsts = np.flatnonzero(~same)
    of_run = np.empty(len(firsts), np.int64)
    schemas: list[ConnectSchema | None] = []
    known: dict[bytes, int] = {}
    for run, row in enumerate(firsts.tolist()):
        start, length = int(starts[row]), int(lengths[row])
        usable = kinds[row] == json_scan.CONTAINER and length <= SCHEMA_TEXT_MAX
        text = data[start : start + length].tobytes() if usable else b""
        number = known.get(text)
        if number is None:
            number = known[text] = len(schemas)
            schemas.append(parse(text) if text else None)
        of_run[run] = number
    of_row = of_run[np.cumsum(~same) - 1]
    return [(schema, np.flatnonzero(of_row == number)) for number, schema in enumerate(schemas)]


@njit(cache=True, nogil=True)
def _repeats(data: Bytes, starts: Array, lengths: Array, kinds: Bytes, same: Any) -> None:
    """Set same, bool[n]: whether the text is equal to that of the value before."""
    for row in range(1, len(kinds)):
        if kinds[row] != kinds[row - 1] or lengths[row] != lengths[row - 1]:
            continue
        left, right = np.int64(starts[row]), np.int64(starts[row - 1])
        equal = True
        for index in range(np.int64(lengths[row])):
            if data[left + index] != data[right + index]:
                equal = False
                break
        same[row] = equal


def warm() -> None:
    """Compile (or load from the cache) all kernels of this module."""
    one = np.zeros(2, np.int32)
    kinds = np.full(2, json_scan.CONTAINER, np.uint8)
    groups(np.zeros(8, np.uint8), one, one, kinds)
