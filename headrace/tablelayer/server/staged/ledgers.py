"""The ledgers that a broker knows, one for each table and writer, as stored in the coordination store.

A ledger is a node `/staged/<table id>/<writer>`. Another broker may have decided since this broker read the node. So in
a cluster a broker reads it again before it decides, and a write names the version that was read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from uuid import UUID
from weakref import WeakValueDictionary

from headrace.broker.metadata.nodes import OwnedNodes
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.server.staged.ledger import Ledger
from headrace.tablelayer.server.staged.staging import writer_key

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext
    from headrace.tablelayer.server.staged.others import OtherBrokers

_ROOT: Final = "/staged"

Owner = tuple[UUID, str]
"""The id of a table, and the name of a writer."""


class Ledgers:
    """The known ledgers (see the module). Runs on the event loop."""

    def __init__(self, context: BrokerContext, others: OtherBrokers) -> None:
        self._store = context.store
        self._nodes = OwnedNodes(context.store, _ROOT)
        self._others = others
        self.known: dict[Owner, Ledger] = {}
        self.unfinished: set[Owner] = set()
        """Owners of ledgers whose batch was decided but not written when they were read."""
        self._locks: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    def lock(self, table_id: UUID, name: str) -> asyncio.Lock:
        """Return the lock of this name; it exists while it is held or awaited."""
        return self._locks.setdefault((table_id, name), asyncio.Lock())

    def get(self, table_id: UUID, writer: str) -> Ledger | None:
        return self.known.get((table_id, writer))

    def undone(self) -> list[tuple[UUID, Ledger]]:
        """Return the ledgers of batches that are decided but not written, with their table. Thread-safe."""
        return [(table_id, ledger) for (table_id, _), ledger in list(self.known.items()) if not ledger.done]

    # -- reading -------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all ledgers. Call it once, before anything else."""
        for table in await self._nodes.children():
            await self.load_table(UUID(table))

    async def load_table(self, table_id: UUID) -> None:
        """Read the ledgers of a table, which this broker may have to continue."""
        for name in await self._nodes.children(str(table_id)):
            await self._restore(table_id, f"{table_id}/{name}")

    async def read_again(self, table_id: UUID, writer: str) -> None:
        """Read a ledger again, because another broker may have decided."""
        if not self._others.is_empty:
            await self._restore(table_id, _name(table_id, writer))

    async def is_decided(self, table_id: UUID, writer: str, batch_id: int) -> bool:
        """Return whether any broker has decided this batch or a later one, so that staging for it is useless."""
        ledger = self.get(table_id, writer)
        if not self._others.is_empty:
            node = await self._store.get(f"{_ROOT}/{_name(table_id, writer)}")
            ledger = None if node is None else Ledger.from_json(node.data)
        return ledger is not None and ledger.batch_id >= batch_id

    def check_ours(self, table_id: UUID, ledger: Ledger, cause: BaseException | None = None) -> None:
        """Raise KafkaError(NOT_COORDINATOR) if the ledger was replaced in the meantime.

        An earlier leader of the first bucket may have completed the batch, and its ledger may have been read since: it
        must not be overwritten. A writer that asks again reads it.
        """
        if self.get(table_id, ledger.writer) != ledger:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR,
                f"another broker has continued batch {ledger.batch_id} of {ledger.writer}",
            ) from cause

    # -- writing -------------------------------------------------------------------------------------------

    async def save(self, table_id: UUID, ledger: Ledger) -> None:
        """Write a ledger to the store. Raises KafkaError if another broker has written; its decision is then valid."""
        name = _name(table_id, ledger.writer)
        try:
            await self._nodes.write(name, ledger.to_json())
        except KafkaError as error:
            if error.code is ErrorCode.NOT_COORDINATOR and not await self._restore(table_id, name):
                self.known.pop((table_id, ledger.writer), None)
            raise
        self.known[table_id, ledger.writer] = ledger

    async def forget(self, table_id: UUID, writer: str) -> None:
        """Delete a ledger here and in the store."""
        del self.known[table_id, writer]
        await self._nodes.delete(_name(table_id, writer))

    async def _restore(self, table_id: UUID, name: str) -> bool:
        """Read a ledger from the store; return whether it exists."""
        data = await self._nodes.read(name)
        if data is None:
            return False
        ledger = Ledger.from_json(data)
        self.known[table_id, ledger.writer] = ledger
        if not ledger.done:
            self.unfinished.add((table_id, ledger.writer))
        return True


def _name(table_id: UUID, writer: str) -> str:
    return f"{table_id}/{writer_key(writer)}"
