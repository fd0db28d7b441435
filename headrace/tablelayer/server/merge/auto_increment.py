"""The numbers of auto-increment columns (R10): ranges from a counter in the coordination store.

A bucket takes a range before it uses its numbers, and no range is given out twice, so numbers are unique in the table
after any crash. The unused rest of a range is skipped when the server stops. Every table has its own counter, which
begins at 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.metadata.nodes import modify
from headrace.broker.runtime.ports import CoordinationStore
from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.model.errors import TableError, TableErrorCode

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = lazy_module("numpy")

_ROOT = "/auto-increment"


class OutOfNumbersError(Exception):
    """The bucket's ranges are used up; `missing` more numbers are needed."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} more numbers are needed")
        self.missing = missing


class Numbers:
    """The ranges that a bucket holds. Call `peek`, and then `use` once the numbers are in the log."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def peek(self, count: int) -> npt.NDArray[np.int64]:
        """Return the next `count` numbers, ascending within each range. Raises OutOfNumbersError."""
        parts: list[npt.NDArray[np.int64]] = []
        for first, end in self._ranges:
            if count <= 0:
                break
            part = np.arange(first, min(end, first + count))
            parts.append(part)
            count -= len(part)
        if count > 0:
            raise OutOfNumbersError(count)
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def use(self, count: int) -> None:
        """Remove the first `count` numbers, which are used."""
        while count > 0:
            first, end = self._ranges.pop(0)
            taken = min(count, end - first)
            if first + taken < end:
                self._ranges.insert(0, (first + taken, end))
            count -= taken

    def add(self, first: int, end: int) -> None:
        self._ranges.append((first, end))


class AutoIncrement:
    """The counters of all tables."""

    def __init__(self, store: CoordinationStore) -> None:
        self._store = store

    async def take(self, table_id: UUID, count: int, highest: int) -> tuple[int, int]:
        """Take `count` numbers for one bucket: [first, end). Raises TableError if `highest` would be exceeded."""
        first = 1

        def taken(data: bytes | None) -> bytes:
            nonlocal first
            first = 1 if data is None else int(data)
            if first > highest:
                raise TableError(
                    TableErrorCode.INVALID_ROW,
                    f"the auto-increment column has reached {highest}, the highest number of its type",
                )
            return str(min(first + count, highest + 1)).encode()

        end = await modify(self._store, f"{_ROOT}/{table_id}", taken)
        assert end is not None
        return first, int(end)

    async def forget(self, table_id: UUID) -> None:
        """Forget a dropped table. Idempotent."""
        await modify(self._store, f"{_ROOT}/{table_id}", lambda _: None)
