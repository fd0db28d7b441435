"""Gather scattered pieces of a payload into one contiguous Arrow binary column, without an object per record.

Imports numba (through the kernels).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.protocol.errors import DecodeError
from headrace.protocol.records import kernels


def gather(
    payload: NDArray[np.uint8], start: NDArray[np.int64], length: NDArray[np.int64], *, padding: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return (offsets int32[n+1], data uint8[]) of the pieces payload[start : start+length]; a null (-1) is empty.

    The two are the buffers of an Arrow binary array; its validity is `length >= 0`. `padding` zero bytes follow at
    the end of the data. Raise DecodeError if a piece lies outside the payload or the pieces together pass 2 GiB - 1.
    """
    lengths = kernels.frozen(length, np.int64)
    offsets = np.empty(lengths.size + 1, np.int32)
    total = kernels.gather_offsets(lengths, offsets)
    if total < 0:
        raise DecodeError(f"{lengths.size} pieces hold more than 2147483647 bytes, more than one column can")
    data = np.empty(total + padding, np.uint8)
    data[total:] = 0
    source = kernels.frozen(payload, np.uint8)
    bad = kernels.gather_bytes(source, kernels.frozen(start, np.int64), lengths, offsets, data)
    if bad >= 0:
        raise DecodeError(f"piece {bad} lies outside the payload of {source.size} bytes")
    return offsets, data


def warm() -> None:
    """Compile the kernels (or load them from the cache)."""
    gather(np.zeros(40, np.uint8), np.array([0, 1], np.int64), np.array([35, -1], np.int64))
