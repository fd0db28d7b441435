"""Exactly-once writes for engines that repeat their tasks (R3.5): rows are staged, then committed as a whole.

A *writer* has a name that survives restarts (a streaming query), and numbers its batches upwards. Its tasks stage rows,
each run of a task under its own attempt name; then one commit names the attempts that count. Guarantees:
- The rows of exactly these attempts are written, all of them, once. Rows of failed, repeated or speculative attempts
  never are, whatever order or number of rows or tasks a repetition has.
- A batch is decided once. Committing it again, or an earlier batch, succeeds without effect; the attempts of the first
  commit count. The decision is stored in the coordination store before the first row is written, so an interrupted
  commit (the server is killed, the client dies) is completed with the same rows.
- The rows of one bucket become visible in the order of the attempts; buckets do not become visible together.
- A partitioned table is one table here too, with one decision for the rows of all partitions. If a partition is dropped
  before the decision, the batch fails and must be run again; if it is dropped later, its rows are dropped too.

A ledger per table and writer holds the last decided batch (`ledger.py`, `ledgers.py`). Chunks are written under the
writer's own producer identity, with sequence numbers that continue from batch to batch (`writing.py`). The log accepts
gaps in such a sequence, and treats everything up to the last number as a repetition (`broker.log.producer_state`), so
completing a commit writes only the missing chunks. The log forgets the sequence after a day without a write; therefore
a failed commit also notes its progress in the ledger.

The decision has the number of chunks for each place. If chunks are missing (a power failure lost files that
`durability=process` had not put on the disk, or an operator removed them), the batch never counts as done. Its commit,
and everything that the writer sends after it, fails with STAGED_ROWS_MISSING and names the missing chunks.

In a cluster each broker has the chunks of the buckets that it leads. The replicas in sync when a chunk is acknowledged
(at least `min.insync.replicas`) have them too, and replicas that join the ISR later (`sharing.py`,
`bucket/joining.py`). The leader of the table's first bucket decides. It counts the chunks of all brokers, and has other
brokers give each bucket's leader the chunks that it missed. Then it saves the decision, and each broker writes its own
buckets (`others.py`). If the deciding broker is lost, the next leader of the first bucket continues from the stored
decision.

State: one ledger of some hundred bytes for each (writer, table). Ledgers of single batches are kept for a day, those of
streams for 90 days after their last commit. Uncommitted staged rows are removed after a day (`expiry.py`), or earlier
when space is short (`space.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.staged.chunks import StagedChunks
from headrace.tablelayer.server.staged.expiry import Expiry
from headrace.tablelayer.server.staged.ledger import Ledger
from headrace.tablelayer.server.staged.ledgers import Ledgers
from headrace.tablelayer.server.staged.others import OtherBrokers, Staged
from headrace.tablelayer.server.staged.place import Place
from headrace.tablelayer.server.staged.sharing import ChunkSharing
from headrace.tablelayer.server.staged.staging import StagingArea, check_names
from headrace.tablelayer.server.staged.tables import StagedTables
from headrace.tablelayer.server.staged.writing import DecidedBatches

if TYPE_CHECKING:
    from headrace.tablelayer.server.bucket.bucket import TableBucket
    from headrace.tablelayer.server.services import Services

logger = logging.getLogger("headrace.tables")

_DAY_MS: Final = 86_400_000
_STREAM_KEPT_MS: Final = 90 * _DAY_MS

Attempts = Sequence[tuple[str, Mapping[Place, int]]]
"""The attempts that a commit names, in order, each with its number of chunks by place."""


class StagedCommits:
    """Commits batches, and completes interrupted commits. One object per server; runs on the event loop."""

    def __init__(
        self,
        services: Services,
        area: StagingArea,
        definition_of: Callable[[UUID], StoredTable],
        bucket_of: Callable[[StoredTable, int], TableBucket],
    ) -> None:
        self._context = services.context
        self._others = OtherBrokers(services.context)
        self._tables = StagedTables(definition_of, bucket_of)
        self.ledgers = Ledgers(services.context, self._others)
        self.sharing = ChunkSharing(services, area, self._tables, self._others)
        self.chunks = StagedChunks(services, area, self.ledgers, self._tables, self._others, self.sharing)
        self.decided = DecidedBatches(
            services, area, self.ledgers, self._tables, self._others, self.sharing, self.chunks
        )
        self.expiry = Expiry(services, area, self.ledgers, self._tables, self._others)
        self._resuming = False

    # -- requests of writers -------------------------------------------------------------------------------

    async def commit(
        self,
        definition: StoredTable,
        writer: str,
        batch_id: int,
        attempts: Attempts,
        *,
        single: bool,
    ) -> None:
        """Write the staged chunks of these attempts, in this order; return when all of them are visible.

        The stages are: complete the writer's last batch, count and gather the chunks, save the decision, write. Nothing
        is undone after the decision is saved: a failure leaves the rest to the same commit or to `resume_in`.

        `single` means that the writer has no second batch. Raises TableError STAGED_ROWS_MISSING if a chunk is missing
        (then nothing is decided), or a bucket's error, after which the same commit continues.
        """
        table_id, names = definition.table_id, [attempt for attempt, _ in attempts]
        _check_attempts(writer, batch_id, names)
        async with self.ledgers.lock(table_id, writer):
            self._others.check_decides(definition)
            before = await self._complete_last(definition, writer)
            if before is not None and before.batch_id >= batch_id:
                await self.chunks.drop_everywhere(table_id, writer, batch_id)
                return
            counts = self._counted(definition, attempts)
            await self.chunks.mark_used(table_id, writer, batch_id)
            staged, _ = await self.sharing.gather(definition, writer, batch_id, names)
            _check_complete(batch_id, attempts, staged)
            decided = await self._decision(before, writer, batch_id, names, counts, single=single)
            await self.ledgers.save(table_id, decided)
            await self.decided.write(definition, decided)

    async def _complete_last(self, definition: StoredTable, writer: str) -> Ledger | None:
        """Complete the writer's last batch if it was interrupted; return the ledger after it, None for a new writer."""
        await self.ledgers.read_again(definition.table_id, writer)
        ledger = self.ledgers.get(definition.table_id, writer)
        if ledger is not None and not ledger.done:
            ledger = await self.decided.write(definition, ledger)
        return ledger

    def _counted(self, definition: StoredTable, attempts: Attempts) -> Counter[Place]:
        """Return the number of chunks by place. Raises TableError for a place that the table does not have."""
        counts: Counter[Place] = Counter()
        for _, by_place in attempts:
            counts.update(by_place)
        for place in counts:
            self._tables.checked(definition, place)
        return counts

    async def _decision(
        self,
        before: Ledger | None,
        writer: str,
        batch_id: int,
        names: Sequence[str],
        counts: Mapping[Place, int],
        *,
        single: bool,
    ) -> Ledger:
        allocate = self._context.allocate_producer_id
        return Ledger(
            writer=writer,
            producer_id=await allocate() if before is None else before.producer_id,
            batch_id=batch_id,
            attempts=tuple(names),
            first_sequence=0 if before is None else before.first_sequence,
            kept_ms=_DAY_MS if single else _STREAM_KEPT_MS,
            updated_ms=self._context.clock.time_ms(),
            partitions=tuple(sorted({place.partition_id for place in counts if place.is_of_partition})),
            chunks=dict(counts),
        )

    async def abort(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> None:
        """Drop attempts that will not be committed. A decided batch is not affected."""
        check_names(writer, batch_id, attempts)
        async with self.ledgers.lock(table_id, writer):
            if attempts and not await self.ledgers.is_decided(table_id, writer, batch_id):
                await self.chunks.drop_everywhere(table_id, writer, batch_id, attempts)

    # -- in the background ---------------------------------------------------------------------------------

    def resume_in(self, start_task: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        """Start a task that completes interrupted commits. Called at intervals."""
        if self.ledgers.unfinished and not self._resuming:
            self._resuming = True
            start_task(self._resume(), "staged commits")

    async def _resume(self) -> None:
        try:
            for table_id, writer in list(self.ledgers.unfinished):
                await self._resume_one(table_id, writer)
        finally:
            self._resuming = False

    async def _resume_one(self, table_id: UUID, writer: str) -> None:
        unfinished = self.ledgers.unfinished
        unfinished.discard((table_id, writer))
        try:
            definition = self._tables.definition(table_id)
        except TableError:
            return  # dropped; `expire` removes the rest
        if not self._others.decides(definition):
            # the leader of the first bucket does; if this broker becomes the leader, it reads the ledger again
            return
        async with self.ledgers.lock(table_id, writer):
            await self.ledgers.read_again(table_id, writer)
            unfinished.discard((table_id, writer))
            ledger = self.ledgers.get(table_id, writer)
            if ledger is None or ledger.done:
                return
            try:
                await self.decided.write(definition, ledger)
            except (KafkaError, TableError) as error:
                if isinstance(error, KafkaError) and error.code.retriable:
                    unfinished.add((table_id, writer))  # its buckets are starting
                    return
                # Rows that do not fit the table are the writer's error; its next commit reports it.
                level = logging.WARNING if isinstance(error, RowError) else logging.ERROR
                logger.log(level, "table %s: batch %d of %s is decided and cannot be written: %s",
                           definition.path, ledger.batch_id, writer, error)  # fmt: skip
            else:
                logger.info("table %s: completed batch %d of %s", definition.path, ledger.batch_id, writer)


def _check_attempts(writer: str, batch_id: int, names: Sequence[str]) -> None:
    """Raise TableError(INVALID_ROW) for invalid or repeated names."""
    check_names(writer, batch_id, names)
    if len(set(names)) < len(names):
        raise TableError(
            TableErrorCode.INVALID_ROW, "an attempt is named twice: its rows are written once in a batch"
        )


def _check_complete(batch_id: int, attempts: Attempts, staged: Staged) -> None:
    """Raise TableError(STAGED_ROWS_MISSING) unless each attempt has exactly the chunks that the commit names."""
    for attempt, counts in attempts:
        found = staged.get(attempt, {})
        for place in {**counts, **found}:
            count, there = counts.get(place, 0), found.get(place, 0)
            if there != count:
                raise TableError(
                    TableErrorCode.STAGED_ROWS_MISSING,
                    f"attempt {attempt} of batch {batch_id} has {there} staged chunks for bucket"
                    f" {place.text}, but {count} should be committed; nothing was written: run the batch"
                    " again",
                )
