"""Stored rows and keys, made from the values of one row, and back.

`stored.py` and `keys.py` make the same bytes from arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.tablelayer.model.rows.stored import layout_of
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.column_types import (
    INTEGER_BITS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
)

_FIXED: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_SLOT_OF: Final = {TypeKind.BOOLEAN: "?", TypeKind.FLOAT: "f", TypeKind.DOUBLE: "d"}


class RowFormat:
    """Writes and reads stored rows of a schema."""

    def __init__(self, schema: Schema) -> None:
        layout = layout_of(schema.arrow())
        self._id = schema.schema_id
        self._id_bytes = self._id.to_bytes(2, "little")
        self._null_bytes = layout.positions[0] - layout.id_size
        codes = []
        self._empty: list[Any] = []
        for column, dtype, variable in zip(schema.columns, layout.dtypes, layout.variable, strict=True):
            code = _SLOT_OF.get(column.type.kind)
            if variable:
                code = "I"
            elif code is None:
                code = _FIXED.get(dtype.itemsize, f"{dtype.itemsize}s")
            codes.append(code)
            self._empty.append(None if variable else b"" if code.endswith("s") else 0)
        self._fixed = struct.Struct(f"<H{self._null_bytes}s{''.join(codes)}")
        self._unpacked = self._fixed.unpack_from
        if self._fixed.size != layout.size:
            raise AssertionError("the layout of stored rows has changed")

    def row(self, values: Sequence[Any]) -> bytes:
        """Return a row; texts are given as bytes, other values as their slots have them."""
        nulls = end = 0
        slots: list[Any] = []
        texts: list[bytes] = []
        for index, (value, empty) in enumerate(zip(values, self._empty, strict=True)):
            if value is None:
                nulls |= 1 << index
                slots.append(end if empty is None else empty)
            elif empty is None:
                end += len(value)
                texts.append(value)
                slots.append(end)
            else:
                slots.append(value)
        fixed = self._fixed.pack(self._id, nulls.to_bytes(self._null_bytes, "little"), *slots)
        return fixed + b"".join(texts) if texts else fixed

    def values(self, row: bytes) -> list[Any] | None:
        """Return the values of a row, as `row` takes them; None if it is of another schema."""
        if not row.startswith(self._id_bytes):  # such a row may be shorter
            return None
        _, null_bits, *slots = self._unpacked(row)
        nulls, begin = int.from_bytes(null_bits, "little"), self._fixed.size
        for index, (slot, empty) in enumerate(zip(slots, self._empty, strict=True)):
            if empty is None:
                end = self._fixed.size + slot
                slots[index], begin = row[begin:end], end
            if nulls >> index & 1:
                slots[index] = None
        return slots


def key_part(data_type: DataType) -> Callable[[Any], bytes] | None:
    """Return the encoding of a key column's value; None if it is not known here."""
    if data_type.kind in TEXT_KINDS:
        return lambda value: value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    if data_type.kind is TypeKind.DATE:
        bits = 32
    elif data_type.kind in TIMESTAMP_KINDS:
        bits = 64
    elif data_type.kind in INTEGER_BITS:
        bits = INTEGER_BITS[data_type.kind]
    else:
        return None
    sign, size = 1 << (bits - 1), bits // 8
    return lambda value: (value + sign).to_bytes(size, "big")
