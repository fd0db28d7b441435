"""Writing the chunks of a decided batch to the buckets of its table: all of them, once, in the attempts' order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec.structs import replace

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.merge.forwarding import forwarded_producer_id
from headrace.tablelayer.server.merge.writes import Writer
from headrace.tablelayer.server.staged.ledger import Ledger, following
from headrace.tablelayer.server.staged.place import Place
from headrace.tablelayer.server.staged.staging import Chunk, StagingArea, check_names

if TYPE_CHECKING:
    from headrace.tablelayer.server.services import Services
    from headrace.tablelayer.server.staged.chunks import StagedChunks
    from headrace.tablelayer.server.staged.ledgers import Ledgers
    from headrace.tablelayer.server.staged.others import OtherBrokers
    from headrace.tablelayer.server.staged.sharing import ChunkSharing
    from headrace.tablelayer.server.staged.tables import StagedTables

_RETRY_SECONDS: Final = 0.05
_PLACES_AT_ONCE: Final = 32
"""Number of buckets that are written at the same time, each with two chunks in memory."""
_TIMEOUT_MS: Final = 30_000


class DecidedBatches:
    """Writes batches whose decision is stored in the coordination store. Runs on the event loop."""

    def __init__(
        self,
        services: Services,
        area: StagingArea,
        ledgers: Ledgers,
        tables: StagedTables,
        others: OtherBrokers,
        sharing: ChunkSharing,
        chunks: StagedChunks,
    ) -> None:
        self._services = services
        self._area = area
        self._ledgers = ledgers
        self._tables = tables
        self._others = others
        self._sharing = sharing
        self._chunks = chunks

    async def write(self, definition: StoredTable, ledger: Ledger) -> Ledger:
        """Write a decided batch and return the ledger after it.

        Raises TableError STAGED_ROWS_MISSING, or a bucket's error; the ledger then has the progress.
        """
        table_id, written = definition.table_id, dict(ledger.written)
        places = self._tables.places(definition, ledger)
        try:
            await self._check_kept(definition, ledger, places)
        except TableError as error:
            await self._ledgers.read_again(table_id, ledger.writer)
            self._ledgers.check_ours(table_id, ledger, error)
            raise
        failure = await self._write_places(definition, ledger, places, written)
        if failure is not None:
            self._ledgers.check_ours(table_id, ledger, failure)
            await self._ledgers.save(table_id, replace(ledger, written=written))
            raise failure
        self._ledgers.check_ours(table_id, ledger)
        done = following(ledger, max(written.values(), default=0), self._services.context.clock.time_ms())
        await self._ledgers.save(table_id, done)
        self._ledgers.unfinished.discard((table_id, ledger.writer))
        await self._chunks.drop_everywhere(table_id, ledger.writer, ledger.batch_id)
        return done

    async def _check_kept(self, definition: StoredTable, ledger: Ledger, places: Sequence[Place]) -> None:
        """Raise TableError STAGED_ROWS_MISSING unless all decided chunks still exist.

        Raises KafkaError if a broker that is not alive may have the missing chunks.
        """
        if ledger.chunks is None:
            return
        staged, answered = await self._sharing.gather(
            definition, ledger.writer, ledger.batch_id, ledger.attempts
        )
        for place in places:
            decided = ledger.chunks.get(place, 0)
            there = sum(counts.get(place, 0) for counts in staged.values())
            if there == decided:
                continue
            away = self._others.without_answer(self._tables.topic(definition, place), place, answered)
            if away and there < decided:
                raise KafkaError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"batch {ledger.batch_id} of {ledger.writer} is decided with {decided} staged chunks for bucket"
                    f" {place.text}, but only {there} are here; broker {away[0]}, which may have the rest,"
                    " does not answer",
                )
            raise ledger.rows_missing(place, there, decided)

    async def _write_places(
        self, definition: StoredTable, ledger: Ledger, places: Sequence[Place], written: dict[Place, int]
    ) -> BaseException | None:
        """Write all places, even if some fail; return the first failure."""
        gate = asyncio.Semaphore(_PLACES_AT_ONCE)

        async def write(place: Place) -> None:
            async with gate:
                await self._write_place(definition, ledger, place, written)

        results = await asyncio.gather(*map(write, places), return_exceptions=True)
        return next((result for result in results if isinstance(result, BaseException)), None)

    async def _write_place(
        self, definition: StoredTable, ledger: Ledger, place: Place, written: dict[Place, int]
    ) -> None:
        """Write one place like `_write_bucket`; a partition that is dropped meanwhile is not a failure."""
        found = self._tables.found(definition, place)
        if found is None:
            return
        try:
            await self._write_bucket(definition.table_id, found, ledger, place, written)
        except (KafkaError, TableError):
            if self._tables.found(definition, place) is not None:
                raise

    async def _write_bucket(
        self,
        table_id: UUID,
        definition: StoredTable,
        ledger: Ledger,
        place: Place,
        written: dict[Place, int],
    ) -> None:
        """Have the bucket's leader write the missing chunks for one place, a bucket of `definition`; count all in
        `written`.
        """
        leader = self._others.leader_of(definition.path.topic, place)
        if leader is not None:
            if ledger.chunks_for(place, otherwise=1):
                await self._others.apply(leader, table_id, ledger.to_json(), place, written)
            return
        # Only the ledger uses the producer id, so any source partition is right.
        producer_id = forwarded_producer_id(ledger.producer_id, 0)
        chunks = self._chunks_of(table_id, ledger, place)
        number, noted = 0, written.get(place, 0)
        chunk = await self._services.run(next, chunks, None)
        while chunk is not None:
            following_chunk = await self._services.run(next, chunks, None)
            if number >= noted:
                # Wait for the last chunk only: it becomes visible after the earlier ones.
                acks = 1 if following_chunk is not None else -1
                writer = Writer(producer_id, 0, ledger.sequence(number), 1)
                await self._write_chunk(definition, place.bucket, chunk, writer, acks)
                written[place] = number + 1
            number, chunk = number + 1, following_chunk
        decided = ledger.chunks_for(place, otherwise=number)
        if number == decided:
            return
        if self._others.is_empty:
            raise ledger.rows_missing(place, number, decided)
        # This broker became the leader after the decision; a repeated commit gives it the missing chunks.
        raise KafkaError(
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"{number} of {decided} staged chunks for bucket {place.text} have arrived; commit again",
        )

    def _chunks_of(self, table_id: UUID, ledger: Ledger, place: Place) -> Iterator[Chunk]:
        for attempt in ledger.attempts:
            yield from self._area.read(
                self._area.path(table_id, ledger.writer, ledger.batch_id, attempt, place)
            )

    async def _write_chunk(
        self, definition: StoredTable, bucket: int, chunk: Chunk, writer: Writer, acks: int
    ) -> None:
        while True:
            hooks = self._tables.bucket(definition, bucket)
            try:
                await hooks.write_staged(chunk, writer, acks, _TIMEOUT_MS)
            except TableError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)  # the buffer is full, and will empty
            else:
                return

    async def apply(self, table_id: UUID, data: bytes, place: Place, noted: int) -> int:
        """Write the chunks of a batch that another broker has decided, for a bucket that this broker leads.

        `noted` chunks are known to be written; return their number afterwards. Raises a bucket's error, and
        KafkaError(NOT_LEADER_OR_FOLLOWER).
        """
        ledger = Ledger.from_broker(data)
        check_names(ledger.writer, ledger.batch_id, ledger.attempts)
        self._ledgers.known[table_id, ledger.writer] = ledger
        definition = self._tables.definition(place.table_id(table_id))
        written = {place: noted}
        async with self._ledgers.lock(table_id, f"{ledger.writer}\0{place.text}"):
            if self._others.leader_of(definition.path.topic, place) is not None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"bucket {place.text} has another leader")
            await self._write_bucket(table_id, definition, ledger, place, written)
        return written[place]
