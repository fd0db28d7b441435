"""The order of encoded keys."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays.arrays import variable_values

NUMBERS_FROM: Final = 256
"""Number of keys from which making numbers of them costs less than it saves."""
_WORD: Final = 8


def sorted_order(keys: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the indices of keys in ascending order; equal keys stay in their order.

    Keys of one short length are sorted as numbers, in a tenth of the time that comparing bytes takes.
    """
    words = _words(keys)
    if words is None:
        compared: npt.NDArray[np.int64] = pc.sort_indices(keys).to_numpy().astype(np.int64)  # stable
        return compared
    order = np.argsort(words)
    in_order = words[order]
    return np.argsort(words, kind="stable") if (in_order[1:] == in_order[:-1]).any() else order


def _words(keys: pa.BinaryArray) -> npt.NDArray[np.uint64] | None:
    """Return numbers that sort as the keys do.

    None for a few keys, for different lengths, and for more than eight bytes behind a common first one.
    """
    count = len(keys)
    if count < NUMBERS_FROM or keys.null_count:
        return None
    offsets, data = variable_values(keys)
    width = int(offsets[1] - offsets[0])
    if not 0 < width <= _WORD + 1 or not bool((np.diff(offsets) == width).all()):
        return None
    cells = data[offsets[0] : offsets[-1]].reshape(count, width)
    if width > _WORD:
        if not bool((cells[:, 0] == cells[0, 0]).all()):
            return None
        cells = cells[:, 1:]
    padded = np.zeros((count, _WORD), np.uint8)
    padded[:, : cells.shape[1]] = cells
    return padded.view(">u8").reshape(-1).astype(np.uint64)
