"""Encoded rows at their addresses, as the kernels find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tablelayer.model.arrays.arrays import binary_array, ends_to_offsets, variable_values
from headrace.tablelayer.server.store import table_kernels as kernels
from headrace.tablelayer.server.store.table_kernels import Indices


class StoredRows(msgspec.Struct, frozen=True):
    """Encoded rows at addresses, in memory that `owners` keep."""

    addresses: Indices
    lengths: Indices
    owners: Sequence[object] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, values: Sequence[bytes]) -> StoredRows:
        array = pa.array(values, pa.binary())
        offsets, data = variable_values(array)
        starts = offsets.astype(np.int64)
        return cls(data.ctypes.data + starts[:-1], np.diff(starts), (array, data))

    @classmethod
    def joined(cls, parts: Sequence[StoredRows]) -> StoredRows:
        """Return the rows of all parts, one part after another."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.addresses for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            [part.owners for part in parts],
        )

    def take(self, chosen: npt.NDArray[Any] | slice) -> StoredRows:
        """Return some of the rows; `chosen` is a slice, or has their indexes, or a bool for each row."""
        return StoredRows(self.addresses[chosen], self.lengths[chosen], self.owners)

    def array(self) -> pa.BinaryArray:
        """Return a copy. Raises ValueError beyond 2 GiB."""
        offsets = ends_to_offsets(self.lengths)
        data = np.empty(offsets[-1], np.uint8)
        kernels.gather(self.addresses, self.lengths, offsets, data)
        return binary_array(offsets, data)
