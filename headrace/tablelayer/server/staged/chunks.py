"""The chunks that this broker keeps: staged here by a writer, or copied from the broker where they were staged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.staged.place import THE_TABLE_ITSELF, Place
from headrace.tablelayer.server.staged.space import StagedSpace
from headrace.tablelayer.server.staged.staging import (
    Chunk,
    StagingArea,
    check_key,
    check_names,
    writer_key,
)

if TYPE_CHECKING:
    from headrace.tablelayer.server.services import Services
    from headrace.tablelayer.server.staged.ledgers import Ledgers
    from headrace.tablelayer.server.staged.others import OtherBrokers, Staged
    from headrace.tablelayer.server.staged.sharing import ChunkSharing
    from headrace.tablelayer.server.staged.tables import StagedTables

_KEPT_FOR_OTHERS: Final = "brokers"
"""The client to which the space of chunks of other brokers' buckets is charged."""


class StagedChunks:
    """The staged chunks of this broker (see the module). Runs on the event loop."""

    def __init__(
        self,
        services: Services,
        area: StagingArea,
        ledgers: Ledgers,
        tables: StagedTables,
        others: OtherBrokers,
        sharing: ChunkSharing,
    ) -> None:
        self._services = services
        self._area = area
        self._ledgers = ledgers
        self._tables = tables
        self._others = others
        self._sharing = sharing
        self._space = StagedSpace(area.root, services.limits, area.drop_batch, area.disk, area.clock)

    # -- adding --------------------------------------------------------------------------------------------

    async def stage(
        self,
        definition: StoredTable,
        writer: str,
        batch_id: int,
        attempt: str,
        place: Place,
        number: int,
        chunk: Chunk,
        client: str = "",
    ) -> None:
        """Check and store a chunk from the host `client`, and have the bucket's replicas keep it. Raises TableError or
        KafkaError.
        """
        check_names(writer, batch_id, [attempt])
        table_id = definition.table_id
        hooks = self._tables.bucket(self._tables.checked(definition, place), place.bucket)
        await self._services.run(hooks.check_write, chunk)
        needed = hooks.partition.needed_in_sync
        if needed > hooks.partition.in_sync_count:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"bucket {place.text} of {definition.path} needs min.insync.replicas={needed};"
                f" only {hooks.partition.in_sync_count} in sync",
            )
        key = writer_key(writer)
        path = self._area.path(table_id, writer, batch_id, attempt, place)
        durable = hooks.partition.log.config.flush_messages == 1
        async with self._ledgers.lock(table_id, f"{key}\0{attempt}\0{place.text}"):
            await self._services.run(self._append, path, number, chunk, durable, client)
            await self._sharing.share(
                hooks, path, place, number, chunk,
                table_id=table_id, writer=writer, batch_id=batch_id, attempt=attempt, durable=durable,
            )  # fmt: skip

    async def keep(self, request: m.KeepStagedRequest, place: Place) -> None:
        """Store a chunk that was staged with another broker, the bucket's leader. Raises TableError, KafkaError."""
        key = request.writer_key
        if key:
            check_key(key)
            check_names(key, request.batch_id, [request.attempt])
        else:
            check_names(request.writer, request.batch_id, [request.attempt])
            key = writer_key(request.writer)
        path = self._area.path_of_key(request.table_id, key, request.batch_id, request.attempt, place)
        targets = None if request.target_columns is None else tuple(request.target_columns)
        chunk = Chunk(targets, memoryview(request.batch), request.update)
        async with self._ledgers.lock(request.table_id, f"{key}\0{request.attempt}\0{place.text}"):
            await self._services.run(
                self._append, path, request.place.count, chunk, request.durable, _KEPT_FOR_OTHERS
            )

    def _append(self, path: Path, number: int, chunk: Chunk, durable: bool, client: str) -> None:
        """Store a chunk. Blocking."""
        if number < self._area.count(path):
            return
        with self._space.admitted(path, client, len(chunk.batch), self._decided):
            self._area.append(path, number, chunk, durable=durable)

    def _decided(self) -> set[Path]:
        """Return the folders of batches that are decided but not written. Thread-safe."""
        return {
            self._folder(table_id, ledger.writer, ledger.batch_id)
            for table_id, ledger in self._ledgers.undone()
        }

    def _folder(self, table_id: UUID, writer: str, batch_id: int) -> Path:
        return self._area.path(table_id, writer, batch_id, "", Place(THE_TABLE_ITSELF, 0)).parent

    # -- committing ----------------------------------------------------------------------------------------

    async def count(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> Staged:
        """Return the number of this broker's chunks by attempt and place, for a batch that is about to be committed."""
        await self.mark_used(table_id, writer, batch_id)
        return await self._services.run(self._area.counts, table_id, writer, batch_id, attempts)

    async def mark_used(self, table_id: UUID, writer: str, batch_id: int) -> None:
        """Mark a batch that is about to be committed as used, so that it does not count as idle."""
        await self._services.run(self._touch, self._folder(table_id, writer, batch_id))

    def _touch(self, folder: Path) -> None:
        self._area.mark_used(folder)  # first: later checks of the disk see it
        self._space.mark_used(folder)

    # -- removing ------------------------------------------------------------------------------------------

    async def drop(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> None:
        """Forget attempts that another broker has dropped; without attempts, forget all batches up to this one."""
        if attempts:
            await self._services.run(self._area.drop_attempts, table_id, writer, batch_id, attempts)
        else:
            await self._services.run(self._area.drop_batches, table_id, writer, batch_id)
            ledger = self._ledgers.get(table_id, writer)
            if ledger is not None and not ledger.done:
                await self._ledgers.read_again(table_id, writer)

    async def drop_everywhere(
        self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str] = ()
    ) -> None:
        """Forget attempts on all brokers; without attempts, forget all batches up to this one."""
        if attempts:
            await self._services.run(self._area.drop_attempts, table_id, writer, batch_id, attempts)
        else:
            await self._services.run(self._area.drop_batches, table_id, writer, batch_id)
        await self._others.drop(table_id, writer, batch_id, attempts)
