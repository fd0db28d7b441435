"""The partition and the bucket of one row, from its values as stored rows have them.

`partitions.py` and `buckets.py` do the same with arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Final

from headrace.tablelayer.model.arrays.murmur import murmur3_32
from headrace.tablelayer.model.options.table_options import DatalakeFormat
from headrace.tablelayer.model.rows.one_row import key_part
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partition_keys import value_problem
from headrace.tablelayer.model.types.column_types import INTEGER_BITS, TEXT_KINDS, TIMESTAMP_KINDS, TypeKind

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_KEY_BYTES_MAX: Final = 1 << 10
"""Maximum size of a bucket key that is hashed without a kernel: a quarter of a millisecond."""
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}

Part = Callable[[Any], bytes]


class Places:
    """The places of a table's rows. `place_of` makes it."""

    def __init__(self, partition: Sequence[tuple[int, Column]], bucket: Sequence[tuple[int, Part]]) -> None:
        """Each column is given with its index in the values of `place`."""
        self._partition = partition
        self._bucket = bucket

    def place(self, values: Sequence[Any]) -> tuple[str, int] | None:
        """Return the name of the row's partition ("": the table has none) and the hash of its bucket key.

        None if the row has no place, or another one than this module knows. The bucket is the hash modulo their number.
        """
        names = []
        for at, column in self._partition:
            name = _text(column, values[at])
            if name is None:
                return None
            names.append(name)
        parts = []
        for at, part in self._bucket:
            if values[at] is None:
                return ".".join(names), 0
            parts.append(part(values[at]))
        key = b"".join(parts)
        if len(key) > _KEY_BYTES_MAX:
            return None
        return ".".join(names), murmur3_32(key) & 0x7FFFFFFF if parts else 0


def places_of(definition: TableDefinition, columns: Sequence[Column]) -> Places | None:
    """Return the places of rows of which the values of these columns are given; None if only arrays know them."""
    at = {column.name: index for index, column in enumerate(columns)}
    partition = [(at[name], definition.schema.column(name)) for name in definition.partition_keys]
    bucket: list[tuple[int, Part]] = []
    for name in definition.bucket_key:
        part = _part(definition, definition.schema.column(name))
        if part is None:
            return None
        bucket.append((at[name], part))
    return Places(partition, bucket)


def _text(column: Column, value: Any) -> str | None:
    """Return a partition column's value in the name of a partition."""
    kind = column.type.kind
    if value is None:
        return None
    if kind in TEXT_KINDS:
        text: str = value.decode()
        return text if value_problem(text) is None else None
    if kind is TypeKind.BOOLEAN:
        return "true" if value else "false"
    return date.fromordinal(value + _EPOCH_DAY).isoformat() if kind is TypeKind.DATE else str(value)


def _part(definition: TableDefinition, column: Column) -> Part | None:
    """Return the bytes of a bucket key's column that are hashed."""
    data_type, kind = column.type, column.type.kind
    if definition.bucket_format is None:
        return key_part(data_type)
    if definition.bucket_format is not DatalakeFormat.ICEBERG:
        return None
    if kind in TEXT_KINDS:
        return bytes
    if kind in INTEGER_BITS or kind is TypeKind.DATE:
        return lambda value: value.to_bytes(8, "little", signed=True)
    if kind in TIMESTAMP_KINDS and data_type.unit in _MICROSECONDS:
        factor = _MICROSECONDS[data_type.unit]
        return lambda value: (value * factor).to_bytes(8, "little", signed=True)
    return None
