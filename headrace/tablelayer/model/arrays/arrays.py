"""Arrow arrays as numpy views, and back, for the kernels of rows and keys.

Views respect the array's offset and keep its memory alive. Views for kernels are aligned and read-only, so that each
kernel is compiled for one signature.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tablelayer.model.arrays.widths import width_of

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

_EMPTY = np.zeros(0, np.uint8)
_EMPTY.flags.writeable = False


@cache
def slot_dtype(width: int) -> np.dtype[Any]:
    """Return a dtype that moves values of `width` bytes, whatever they mean."""
    return np.dtype(f"<u{width}") if width in (1, 2, 4, 8) else np.dtype(f"V{width}")


def fixed_values(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a fixed-width array as `slot_dtype(width)`[n]. Values under nulls are undefined."""
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(array.buffers()[1], np.uint8) if len(array) else _EMPTY
        return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :]
    width = width_of(array.type)
    dtype = slot_dtype(width)
    if len(array) == 0:
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * width)


def variable_values(array: pa.Array) -> tuple[Offsets, Bytes]:
    """Return (int32[n+1] offsets into the data, data) of a text or bytes array."""
    if len(array) == 0:
        return sealed(np.zeros(1, np.int32)), _EMPTY
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(array) + 1, array.offset * 4)
    data = _EMPTY if data_buffer is None or data_buffer.size == 0 else np.frombuffer(data_buffer, np.uint8)
    return sealed(offsets), sealed(data)


def validity(array: pa.Array) -> Mask | None:
    """Return bool[n], true where there is a value; None if no value is null."""
    if array.null_count == 0:
        return None
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(
        np.bool_
    )


def sealed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same values, aligned and read-only."""
    flags = values.flags
    if not (flags.c_contiguous and flags.aligned):
        values = values.copy()
    elif flags.writeable:
        values = values.view()
    values.flags.writeable = False
    return values


def bitmap(valid: Mask | None) -> pa.Buffer | None:
    """Return Arrow's validity buffer for a mask."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def binary_array(
    offsets: Offsets, data: Bytes, valid: Mask | None = None, arrow_type: pa.DataType | None = None
) -> pa.Array:
    """Return a binary (or text) array over the given offsets and data."""
    buffers = [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(arrow_type or pa.binary(), len(offsets) - 1, buffers)


def fixed_array(values: npt.NDArray[Any], valid: Mask | None, arrow_type: pa.DataType) -> pa.Array:
    """Return a fixed-width array of contiguous values of `slot_dtype(width)`; booleans are bytes 0 and 1."""
    body = np.packbits(values, bitorder="little") if pa.types.is_boolean(arrow_type) else values
    return pa.Array.from_buffers(arrow_type, len(values), [bitmap(valid), pa.py_buffer(body.view(np.uint8))])


def ends_to_offsets(lengths: npt.NDArray[np.int64]) -> Offsets:
    """Return int32[n+1] offsets of values of the given lengths. Raises ValueError beyond 2 GiB."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{offsets[-1]} bytes do not fit into one batch; the limit is 2 GiB")
    return offsets.astype(np.int32)
