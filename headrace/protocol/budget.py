"""The memory that one frame may take when it is decoded.

A frame of 100 MiB can hold fifty million empty arrays, each of which is a Python object of sixty bytes.
Bounding the frame therefore does not bound the memory: every decoder charges what it is about to allocate
to a `DecodeBudget`, before allocating.

Costs are estimates in bytes, rounded up: objects with their attributes, list slots, text (four bytes for each encoded
byte, the worst case of CPython's strings) and copied bytes. Record data stays a view of the frame and costs nothing.
"""

from __future__ import annotations

from typing import Final

from headrace.protocol.errors import DecodeError

DEFAULT_BUDGET_BYTES: Final = 256 * 1024 * 1024
"""Enough for the metadata of some 300,000 partitions, which is far more than clients have any use for."""


class BudgetExceeded(DecodeError):  # noqa: N818
    """The message is well formed as far as it was read, but its objects would take more memory than was granted."""


class DecodeBudget:
    """Bytes of memory that decoding may still allocate. One budget may serve several messages of a connection."""

    __slots__ = ("limit_bytes", "remaining_bytes")

    def __init__(self, limit_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.remaining_bytes = limit_bytes

    def charge(self, size_bytes: int) -> None:
        """Take `size_bytes`, or raise BudgetExceeded and take nothing."""
        if size_bytes > self.remaining_bytes:
            raise exceeded(size_bytes, self.remaining_bytes)
        self.remaining_bytes -= size_bytes

    def __repr__(self) -> str:
        return f"DecodeBudget({self.remaining_bytes} of {self.limit_bytes} bytes left)"


def exceeded(size_bytes: int, remaining_bytes: int) -> BudgetExceeded:
    """The error for a request of `size_bytes` against `remaining_bytes`."""
    return BudgetExceeded(
        f"decoding needs {size_bytes} more bytes of memory, but only {remaining_bytes} are left "
        "of the budget for this message"
    )
