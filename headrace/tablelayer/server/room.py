"""Room in an answer: how many bytes of rows it may still take, counted before they are made.

As with Kafka's fetches (KIP-74) the first row of an answer always has room, so that who asks for the rest gets on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from headrace.tablelayer.model.types.sizes import RowCost

Value = TypeVar("Value", bound="bytes | None")


class Room:
    """Of one bucket's part of an answer. Used by one thread at a time."""

    def __init__(self, max_bytes: int, cost: RowCost, *, must: bool = True) -> None:
        """`cost`: of a row where it is decoded. `must`: the first row has room however large it is."""
        self.max_bytes = max_bytes
        self.cost = cost
        self.must = must
        self.used = 0
        self.is_full = False
        """Whether a row was turned away."""

    def again(self) -> Room:
        """The same room, empty."""
        return Room(self.max_bytes, self.cost, must=self.must)

    def admits(self, value: bytes | None) -> bool:
        """Take in a stored row, or the nulls that stand for none."""
        size = self.cost.stored(value)
        if self.used + size <= self.max_bytes:  # a call less for each row of an answer
            self.used += size
            return True
        return self.takes(size)

    def takes(self, size: int, rows: int = 1) -> bool:
        """Take in rows of a size in Arrow's form, all or none of them."""
        if self.used + size > self.max_bytes and (self.used or not self.must or rows > 1):
            self.is_full = True
            return False
        self.used += size
        return True

    def those_that_fit(self, values: Iterable[Value]) -> list[Value]:
        """The first of the values, as many as there is room for; no more are asked for than one behind them."""
        fitting: list[Value] = []
        for value in values:
            if not self.admits(value):
                break
            fitting.append(value)
        return fitting
