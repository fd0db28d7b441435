"""Texts of decimals that have more digits than Arrow's: Oracle, PostgreSQL and MySQL have up to 65 and more.

Such values are rare and only fit into columns of texts. They are read one at a time.
"""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.types.column_types import TEXT_KINDS, DataType, TypeKind

_BYTES_MIN = 16
"""Bytes from which an unscaled value may have more than 38 digits."""
_BYTES_MAX = 1785
"""Bytes of 4,298 digits: Python converts at most 4,300, because the time grows with their square."""
_SCALE_MAX = 38
_TEXT_SCALE_MAX = 4_300
_EXACT = decimal.Context(prec=2 * _TEXT_SCALE_MAX)


def are_wide(lengths: np.ndarray, scales: np.ndarray, given: Mask, data_type: DataType) -> Mask:
    """Return which of the given values are read by `wide_texts`: those that Arrow's decimals may not hold.

    lengths: int64[n], the bytes of the unscaled values. scales: int64[n]. Only columns of texts have such values.
    """
    if data_type.kind not in TEXT_KINDS:
        return np.zeros(len(given), np.bool_)
    wide: Mask = given & ((lengths >= _BYTES_MIN) | (np.abs(scales) > _SCALE_MAX))
    return wide


def with_wide_texts(
    values: pa.Array,
    wide: Mask,
    data: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    scales: np.ndarray,
) -> pa.Array:
    """Return texts with those of wide values in their places.

    data: uint8, the unscaled values in big-endian two's complement. Raises RowError for a value of too many digits.
    """
    at = np.flatnonzero(wide)
    if not len(at):
        return values
    texts = []
    for row in at.tolist():
        start, length, scale = int(starts[row]), int(lengths[row]), int(scales[row])
        if length > _BYTES_MAX or abs(scale) > _TEXT_SCALE_MAX:
            raise RowError(row, None, "a decimal of more than 4,298 digits cannot be read")
        number = int.from_bytes(data[start : start + length].tobytes(), "big", signed=True)
        texts.append(f"{_EXACT.scaleb(decimal.Decimal(number), -scale):f}")
    return pc.replace_with_mask(values, pa.array(wide), pa.array(texts, values.type))


def first_too_long(texts: pa.Array, data_type: DataType) -> int:
    """Return the first text that is longer than a CHAR column allows, or -1."""
    if data_type.kind is not TypeKind.CHAR:
        return -1
    return int(pc.index(pc.greater(pc.utf8_length(texts), data_type.length), True).as_py())
