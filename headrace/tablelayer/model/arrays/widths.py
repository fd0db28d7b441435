"""The widths of Arrow types' values, without loading Arrow before it is needed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from headrace.protocol.loading.lazy import lazy_module

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_module("pyarrow")


@cache
def width_of(arrow_type: pa.DataType) -> int:
    """Return the bytes of a value of a fixed-width type (1 for booleans); 0 for texts, bytes and nested values."""
    if pa.types.is_boolean(arrow_type):
        return 1
    if pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type) or pa.types.is_nested(arrow_type):
        return 0
    return int(arrow_type.byte_width)  # `bit_width` has 32 bits
