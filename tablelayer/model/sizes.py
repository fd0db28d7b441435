"""What rows take in Arrow's form, worked out before they are made.

A value of fixed width takes its width even where it is null: a null BINARY(n) n bytes, a null ROW the widths of all
its fields. So a few bytes of JSON, Avro or a stored row can stand for very many, and whoever makes rows of what a
stranger sent counts first. Estimates are from above, but for bitmaps; texts and bytes are counted by who has them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tablelayer.model.arrays import width_of
from tablelayer.model.types import is_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tablelayer.model.schema import Column

_OFFSET_SIZE = 4
_NAME_BYTES = 4  # quotes, colon, comma


@cache
def value_width(arrow_type: pa.DataType) -> int:
    """Bytes of one value of a type, null or not, without its text and its entries."""
    if pa.types.is_struct(arrow_type):
        return sum(value_width(field.type) for field in arrow_type)
    return width_of(arrow_type) or _OFFSET_SIZE


@cache
def expansion(arrow_type: pa.DataType) -> int:
    """At most how many bytes of Arrow a byte of a stored value is (`rows.py`): of the entries of an ARRAY or a MAP
    those that are null rows take a few bytes there, and the widths of all fields here."""
    if pa.types.is_struct(arrow_type):
        return max((expansion(field.type) for field in arrow_type), default=1)
    if pa.types.is_map(arrow_type):
        entry = [arrow_type.key_type, arrow_type.item_type]
    elif is_list(arrow_type):
        entry = [arrow_type.value_type]
    else:
        return 1
    stored = 1 + sum(width_of(each) or _OFFSET_SIZE for each in entry)
    own = -(-sum(map(value_width, entry)) // stored)
    return max(1, own, *map(expansion, entry))


def text_size(array: pa.Array) -> int:
    """About how many bytes values are as JSON, for a cut; texts that have to be escaped take more."""
    arrow_type, count = array.type, len(array)
    if pa.types.is_struct(arrow_type):
        names = sum(len(field.name) + _NAME_BYTES for field in arrow_type)
        return count * names + sum(map(text_size, array.flatten()))
    if pa.types.is_map(arrow_type) or is_list(arrow_type):
        if not count:
            return 0
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = [array.keys, array.items] if pa.types.is_map(arrow_type) else [array.values]
        return count * _NAME_BYTES + sum(text_size(part.slice(begin, end - begin)) for part in parts)
    width = width_of(arrow_type)
    if not width:
        return int(array.nbytes) * (1 if pa.types.is_string(arrow_type) else 2)
    return count * (2 * width + _NAME_BYTES)


class RowCost(msgspec.Struct, frozen=True):
    """Bytes of a row in Arrow's form: `width`, and `expansion` times what it takes where it is stored."""

    width: int
    expansion: int

    @classmethod
    def of(cls, columns: Sequence[Column]) -> RowCost:
        """Of rows of these columns, whatever schema they were written under: what a row has that lacks a column
        counts."""
        width, factor = 0, 1
        for column in columns:
            arrow = column.type.arrow()
            texts = (text.encode(errors="replace") for text in (column.default, column.initial) if text)
            width += value_width(arrow) + max(map(len, texts), default=0)
            factor = max(factor, expansion(arrow))
        return cls(width, factor)

    def stored(self, value: bytes | None) -> int:
        """Of a stored row, or of the nulls that stand for none."""
        return self.width if value is None else self.width + self.expansion * len(value)
