"""What the coordination store keeps below one path, held in memory as the store has it.

A change is one transaction: the nodes it touches, and the root, whose version is compared. So two changes never mix,
and whoever sees the root's version knows that nothing else has happened since. What others change is noticed by the
watch on the root.
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
"""What a transaction raises when others have changed something, or when nobody knows: read, and decide again."""


class Followed(ABC):
    """See the module's contract. `_change` is held by whoever reads or changes it."""

    def __init__(self, store: CoordinationStore, root: str) -> None:
        self._store = store
        self._root = root
        self._version = -1
        """Of the root, whose state is held; -1 before it exists."""
        self._change = asyncio.Lock()
        self._stale = asyncio.Event()

    async def load(self) -> None:
        """Read everything. Raises StoreError."""
        async with self._change:
            await self._read()

    async def run(self) -> None:
        """Follow what others change, until cancelled. Raises StoreError; begun again it misses nothing."""
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
        """Hold what the store has, if the root has another version than is held."""

    async def _read_after(self, refusal: Exception) -> None:
        """`_read`, after a transaction that was OVERTAKEN. What nobody knows stays unknown if the store is gone."""
        try:
            await self._read()
        except StoreUnavailableError:
            if isinstance(refusal, StoreOutcomeUnknownError):
                raise refusal from None
            raise

    def _counted(self) -> StoreOperation:
        """What counts a change: part of its transaction."""
        return SetNode(self._root, b"", self._version) if self._version >= 0 else CreateNode(self._root)
