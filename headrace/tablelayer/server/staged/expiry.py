"""Removal of staged rows and ledgers that their writers have abandoned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.tablelayer.server.staged.staging import StagingArea, writer_key

if TYPE_CHECKING:
    from headrace.tablelayer.server.services import Services
    from headrace.tablelayer.server.staged.ledger import Ledger
    from headrace.tablelayer.server.staged.ledgers import Ledgers
    from headrace.tablelayer.server.staged.others import OtherBrokers
    from headrace.tablelayer.server.staged.tables import StagedTables

_DAY_SECONDS: Final = 86_400


class Expiry:
    """Removes abandoned rows and ledgers (see the module). Runs on the event loop."""

    def __init__(
        self,
        services: Services,
        area: StagingArea,
        ledgers: Ledgers,
        tables: StagedTables,
        others: OtherBrokers,
    ) -> None:
        self._services = services
        self._area = area
        self._ledgers = ledgers
        self._tables = tables
        self._others = others
        self._missing: set[UUID] = set()
        """Tables that were missing in the previous `expire`."""

    async def expire(self, exists: Callable[[UUID], bool]) -> None:
        """Forget dropped tables, writers that have been silent for long, and rows that were not committed for a day.

        In a cluster a broker may not know a new table yet, so a table counts as dropped if it is missing twice in a
        row.
        """
        staged = await self._services.run(self._area.tables)
        if not self._others.is_empty:
            for table_id in staged:
                await self._ledgers.load_table(table_id)  # other brokers may have decided
        tables = {*staged, *(table_id for table_id, _ in self._ledgers.known)}
        missing = {table_id for table_id in tables if not exists(table_id)}
        gone = missing if self._others.is_empty else missing & self._missing
        self._missing = missing
        for (table_id, writer), ledger in list(self._ledgers.known.items()):
            if table_id in gone or (table_id not in missing and self._is_silent(ledger)):
                await self._forget(table_id, writer, is_gone=not exists(table_id))
        for table_id in gone:
            await self._services.run(self._area.drop_table, table_id)
        decided = {
            (str(table_id), writer_key(ledger.writer), ledger.batch_id)
            for table_id, ledger in self._ledgers.undone()
        }
        await self._services.run(self._area.drop_abandoned, _DAY_SECONDS, decided)

    def _is_silent(self, ledger: Ledger) -> bool:
        return ledger.done and self._is_old(ledger)

    def _is_old(self, ledger: Ledger) -> bool:
        return self._services.context.clock.time_ms() - ledger.updated_ms > ledger.kept_ms

    async def _forget(self, table_id: UUID, writer: str, *, is_gone: bool) -> None:
        """Forget a ledger, unless its writer has returned."""
        if not self._others.is_empty and not is_gone:
            if not self._others.decides(self._tables.definition(table_id)):
                del self._ledgers.known[table_id, writer]
                return
            await self._ledgers.read_again(table_id, writer)
            if not self._is_old(self._ledgers.known[table_id, writer]):
                return  # another broker has continued it
        lock = self._ledgers.lock(table_id, writer)
        if lock.locked():
            return  # the writer has returned, or still writes: try again next time
        async with lock:
            await self._ledgers.forget(table_id, writer)
