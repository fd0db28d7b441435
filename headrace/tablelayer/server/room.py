"""Room in an answer: how many bytes of rows still fit, counted before they are encoded.

As in Kafka's fetches (KIP-74), the first row of an answer always fits, so that a reader of the rest advances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from headrace.tablelayer.model.types.sizes import RowCost

Value = TypeVar("Value", bound="bytes | None")


class Room:
    """The room of one bucket's part of an answer. Used by one thread at a time."""

    def __init__(self, max_bytes: int, cost: RowCost, *, must: bool = True) -> None:
        """Create the room. `cost` is the memory of a decoded row. With `must`, the first row fits whatever its size."""
        self.max_bytes = max_bytes
        self.cost = cost
        self.must = must
        self.used = 0
        self.is_full = False
        """Whether a row did not fit."""

    def again(self) -> Room:
        """Return the same room, empty."""
        return Room(self.max_bytes, self.cost, must=self.must)

    def admits(self, value: bytes | None) -> bool:
        """Add a stored row, or None for an absent one, if it fits; return whether it did."""
        size = self.cost.stored(value)
        if self.used + size <= self.max_bytes:  # saves a call for each row of an answer
            self.used += size
            return True
        return self.takes(size)

    def admits_all(self, values: Sequence[Value]) -> bool:
        """Add all of these rows if they fit together; return whether they did."""
        size = self.cost.together(values)
        if self.used + size > self.max_bytes:
            return False
        self.used += size
        return True

    def takes(self, size: int, rows: int = 1) -> bool:
        """Add rows of `size` bytes in Arrow's form, all or none; return whether they fitted."""
        if self.used + size > self.max_bytes and (self.used or not self.must or rows > 1):
            self.is_full = True
            return False
        self.used += size
        return True

    def those_that_fit(self, values: Iterable[Value]) -> list[Value]:
        """Return the first values, as many as fit; at most one more is consumed."""
        fitting: list[Value] = []
        for value in values:
            if not self.admits(value):
                break
            fitting.append(value)
        return fitting
