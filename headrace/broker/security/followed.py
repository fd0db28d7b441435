"""A copy in memory of the nodes of the coordination store below one path.

A change is one transaction: the nodes that it changes, and the root, whose version is compared. So two changes never
mix, and a reader of the root's version knows that there was no other change since. The watch on the root reports
changes by other brokers.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from headrace.broker.runtime.ports import (
    BadVersionError,
    CreateNode,
    NodeExistsError,
    NoNodeError,
    SetNode,
    StoreOperation,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import CoordinationStore

OVERTAKEN: Final = (BadVersionError, NodeExistsError, NoNodeError, StoreOutcomeUnknownError)
"""The errors of a transaction when another broker has changed something, or when the outcome is unknown: read, and
decide again.
"""


class Followed(ABC):
    """A followed path; see the module. Hold `_change` while reading or changing the copy."""

    def __init__(self, store: CoordinationStore, root: str) -> None:
        self._store = store
        self._root = root
        self._version = -1
        """Version of the root that the copy has; -1 before the root exists."""
        self._change = asyncio.Lock()
        self._stale = asyncio.Event()

    async def load(self) -> None:
        """Read everything. Raises StoreError."""
        async with self._change:
            await self._read()

    async def run(self) -> None:
        """Follow the changes of other brokers, until cancelled. Raises StoreError; if it is started again, it misses
        nothing.
        """
        end = self._store.watch(self._root, self._stale.set)
        self._stale.set()
        try:
            while True:
                await self._stale.wait()
                self._stale.clear()
                async with self._change:
                    await self._read()
        finally:
            end()

    @abstractmethod
    async def _read(self) -> None:
        """Read the store if the version of its root differs from the copy's."""

    async def _read_after(self, refusal: Exception) -> None:
        """`_read`, after a transaction that was OVERTAKEN. If the store is gone, an unknown outcome stays unknown."""
        try:
            await self._read()
        except StoreUnavailableError:
            if isinstance(refusal, StoreOutcomeUnknownError):
                raise refusal from None
            raise

    def _counted(self) -> StoreOperation:
        """Return the operation that counts a change, as a part of its transaction."""
        return SetNode(self._root, b"", self._version) if self._version >= 0 else CreateNode(self._root)
