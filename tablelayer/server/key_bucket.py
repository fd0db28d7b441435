"""A bucket of a primary-key table: one batch at a time through its tablet into the log, and behind the high
watermark into the key-value store.

Order of things (R1, R11, R12): a batch is prepared, appended to the log, put into the pre-write buffer; when the
log says that it is replicated, stored; and only then is its high watermark published. Reads see the store alone,
and an answer made while a batch was being stored waits until that batch is published.

After a crash the store has the rows up to some applied offset, and the rest is replayed from the log. A store
that is damaged, or ahead of its log, is set aside and built again, which needs the whole log.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from broker.log.partition_log import AppendInfo, AppendOrigin
from protocol.errors import ErrorCode, KafkaError
from protocol.records.header import read_header
from tablelayer.model.schema import Schema
from tablelayer.model.types import INTEGER_BITS
from tablelayer.model.versions import SchemaVersions
from tablelayer.server import reads
from tablelayer.server.auto_increment import OutOfNumbersError
from tablelayer.server.bucket import TableBucket
from tablelayer.server.kv import DamagedStoreError, DiskFullError, KeyValueStore
from tablelayer.server.services import Services
from tablelayer.server.tablet import PreparedWrite, Tablet
from tablelayer.server.writes import OperationSource, Writer, decode_put, key_insertions

if TYPE_CHECKING:
    from broker.cluster.partition import Partition

logger = logging.getLogger("headrace.tables")

Result = TypeVar("Result")

_HEADER_MIN = 77
_PUBLISH_TIMEOUT_MS = 30_000
_DISK_FULL_RETRY_SECONDS = 1.0
"""Publishing follows storing at once; only a broken process takes longer."""


class UnrecoverableBucketError(Exception):
    """The state is lost and the log does not reach back far enough to build it again."""


class KeyBucket(TableBucket):
    """`PartitionHooks` of a primary-key table."""

    def __init__(self, services: Services, partition: Partition) -> None:
        super().__init__(services, partition)
        self.directory: Path = services.directory / str(partition.topic.topic_id) / str(partition.index)
        self._tablet: Tablet | None = None
        self._writing = asyncio.Lock()
        self._candidate = 0
        self._storing: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._last_flush = services.context.clock.monotonic()

    @property
    def tablet(self) -> Tablet:
        self.check_open()
        if self._tablet is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is starting")
        return self._tablet

    # -- start ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the store up to the log. Raises UnrecoverableBucketError."""
        began = time.perf_counter()
        log = self.partition.log
        store = await self._usable_store(log.log_start_offset, log.log_end_offset)
        tablet, versions = Tablet(store), self.definition.versions
        kept_rows, kept_offset, replayed = store.row_count, store.applied_offset, 0
        while store.applied_offset < log.log_end_offset:
            found = log.read(
                store.applied_offset, self.services.limits.replay_bytes, up_to=log.log_end_offset
            )
            if found.region is None:
                raise UnrecoverableBucketError(f"the log gives nothing at offset {store.applied_offset}")
            replayed += await self.services.run(_replay, tablet, versions, found.region)
        self._tablet = tablet
        self._candidate = log.log_end_offset
        self.partition.publish_high_watermark(log.log_end_offset)
        if log.log_end_offset:
            logger.info(
                "%s: kept %d rows up to offset %d, replayed %d rows up to offset %d in %.0f ms",
                self.name, kept_rows, kept_offset, replayed, log.log_end_offset,
                (time.perf_counter() - began) * 1000,
            )  # fmt: skip

    async def _usable_store(self, log_start: int, log_end: int) -> KeyValueStore:
        open_store = self.services.run
        try:
            store = await open_store(KeyValueStore.open, self.directory, self.services.memory)
        except DamagedStoreError as error:
            self._check_rebuildable(log_start, f"its key-value store is damaged ({error})")
            aside = await self.services.run(_set_aside, self.directory)
            logger.error("%s: the key-value store is damaged (%s); set aside as %s, building it again from the log",
                         self.name, error, aside)  # fmt: skip
            return await open_store(KeyValueStore.open, self.directory, self.services.memory)
        problem = None
        if store.applied_offset > log_end:
            problem = f"its key-value store has offset {store.applied_offset}, but the log ends at {log_end}"
        elif store.applied_offset < log_start:
            problem = (
                f"its key-value store has offset {store.applied_offset}, but the log begins at {log_start}"
            )
        if problem is None:
            return store
        try:
            self._check_rebuildable(log_start, problem)
        except UnrecoverableBucketError:
            await self.services.run(store.close)
            raise
        logger.error("%s: %s; building it again from the log", self.name, problem)
        await self.services.run(store.destroy)
        return await open_store(KeyValueStore.open, self.directory, self.services.memory)

    def _check_rebuildable(self, log_start: int, problem: str) -> None:
        if log_start > 0:
            raise UnrecoverableBucketError(
                f"{problem}, and the log begins at offset {log_start}: the rows before it are gone. "
                "Restore the data directory from a copy, or drop the table"
            )

    # -- writing -------------------------------------------------------------------------------------------

    async def put(
        self,
        batch: memoryview,
        targets: tuple[int, ...] | None,
        acks: int,
        timeout_ms: int,
        *,
        overwrite: bool = False,
    ) -> AppendInfo:
        """A batch of a table client; `targets` are column ids of the writer's schema.

        Raises KafkaError or TableError.
        """
        if len(batch) < _HEADER_MIN:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(batch)} bytes are no Arrow batch")
        writer = Writer.of(read_header(batch))
        return await self.write_rows(
            lambda now: decode_put(batch, now, targets, overwrite=overwrite),
            writer,
            len(batch),
            acks,
            timeout_ms,
        )

    async def insert_absent(self, keys: memoryview, schema: Schema, keys_max: int, timeout_ms: int) -> None:
        """R15: rows of nulls for the keys that are not there, as R6.6 writes them. Returns when they are stored.

        `schema`: the one that the keys are of. Two callers may both miss a key; the second one's write then finds it
        there and changes nothing.
        """
        missing = await self.read(reads.absent_keys, schema, keys, keys_max)
        if missing.num_rows:
            await self.write_rows(
                lambda now: key_insertions(now, missing), Writer(), missing.nbytes, -1, timeout_ms
            )

    def check_write(self, batch: memoryview, targets: Sequence[int] | None) -> None:
        decode_put(batch, self.definition, targets)

    async def write_staged(
        self, batch: memoryview, targets: Sequence[int] | None, writer: Writer, acks: int, timeout_ms: int
    ) -> AppendInfo:
        return await self.write_rows(
            lambda now: decode_put(batch, now, targets), writer, len(batch), acks, timeout_ms
        )

    async def write_rows(
        self, source: OperationSource, writer: Writer, size: int, acks: int, timeout_ms: int
    ) -> AppendInfo:
        budget = self.services.budget
        budget.reserve(size)
        charged = True
        try:
            async with self._writing:
                tablet = self.tablet
                info = self._duplicate(writer)
                if info is None:
                    prepared = await self._prepare(tablet, source, writer)
                    self.check_open()
                    info = self.partition.append(prepared.batch, AppendOrigin.EXTENSION)
                    if not info.duplicate:
                        tablet.logged(prepared, info.last_offset + 1, size)
                        charged = False  # released when it is stored
        finally:
            if charged:
                budget.release(size)
        return await self.wait_published(info, acks, timeout_ms)

    async def _prepare(self, tablet: Tablet, source: OperationSource, writer: Writer) -> PreparedWrite:
        while True:
            now_ms = self.services.context.clock.time_ms()
            try:
                return await self.services.run(tablet.prepare, self.definition, source, writer, now_ms)
            except OutOfNumbersError as error:
                await self._take_numbers(tablet, error.missing)

    async def _take_numbers(self, tablet: Tablet, missing: int) -> None:
        """R10: a range for this bucket, durable before the first number of it is used."""
        definition = self.definition
        settings = definition.settings
        assert settings.auto_increment_column is not None
        column = definition.schema.column(settings.auto_increment_column)
        highest = (1 << (INTEGER_BITS[column.type.kind] - 1)) - 1
        tablet.numbers.add(
            *await self.services.auto_increment.take(
                self.partition.topic.topic_id, max(missing, settings.auto_increment_cache), highest
            )
        )

    def _duplicate(self, writer: Writer) -> AppendInfo | None:
        if writer.producer_id == -1:
            return None
        return self.partition.log.check_producer(writer.header())

    # -- storing and publishing ----------------------------------------------------------------------------

    def high_watermark_candidate(self, offset: int) -> None:
        self._candidate = max(self._candidate, offset)
        if self._storing is None:
            self._storing = asyncio.get_running_loop().create_task(self._store(), name=f"store {self.name}")

    async def _store(self) -> None:
        """Store what is replicated, then publish it, until there is no more."""
        try:
            while self._tablet is not None and self.partition.high_watermark < self._candidate:
                tablet, target = self._tablet, self._candidate
                count = tablet.covered(target)
                if not count:
                    break
                end_offset = tablet.end_of(count)
                try:
                    await self.services.run(tablet.store, count)
                except DiskFullError as error:
                    if self.closed:
                        break  # the log has these rows; they are replayed
                    logger.warning("%s waits for space on the disk: %s", self.name, error)
                    await asyncio.sleep(_DISK_FULL_RETRY_SECONDS)
                    continue
                self.services.budget.release(tablet.stored(count))
                self.partition.publish_high_watermark(end_offset)
                if tablet.kv.bytes_since_flush >= self.services.limits.flush_bytes:
                    self._start_flush()
        except Exception as error:
            logger.error("%s cannot store rows", self.name, exc_info=error)
            self.partition.fail(f"its rows cannot be stored: {error}")
        finally:
            self._storing = None

    def flush_if_due(self) -> None:
        """Called now and then: what was written long ago goes into files, so that replays stay short."""
        tablet = self._tablet
        if tablet is None or not tablet.kv.bytes_since_flush or self.closed:
            return
        if self.services.context.clock.monotonic() - self._last_flush >= self.services.limits.flush_seconds:
            self._start_flush()

    def _start_flush(self) -> None:
        if self._flushing is None:
            self._last_flush = self.services.context.clock.monotonic()
            self._flushing = asyncio.get_running_loop().create_task(self._flush(), name=f"flush {self.name}")

    async def _flush(self) -> None:
        try:
            await self.services.run(self.tablet.kv.flush)
        except DiskFullError as error:
            # Reads go on; what is in memory is in the log too, and the next flush takes it along.
            logger.warning("%s cannot be flushed, the disk is full: %s", self.name, error)
        except Exception as error:
            if not self.closed:
                logger.error("%s cannot be flushed", self.name, exc_info=error)
                self.partition.fail(f"its key-value store cannot be flushed: {error}")
        finally:
            self._flushing = None

    # -- reading -------------------------------------------------------------------------------------------

    async def read(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call blocking `work(store, ...)`. What it has seen is published when this returns (R12.1)."""
        store = self.tablet.kv
        result = await self.services.run(work, store, *arguments)
        seen = store.visible_offset
        if seen > self.partition.high_watermark and not await self.partition.wait_for_high_watermark(
            seen, _PUBLISH_TIMEOUT_MS
        ):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self.name}: what was read is not published yet")
        return result

    def retention_floor(self) -> int | None:
        """The log is kept from where the store's files end: it is the store's write-ahead log."""
        if self._tablet is None:
            return 0
        durable = self._tablet.kv.durable_offset
        tiered = super().retention_floor()
        return durable if tiered is None else min(durable, tiered)

    # -- end -----------------------------------------------------------------------------------------------

    async def truncated(self, end_offset: int) -> None:
        """Only what is replicated gets into the store, so a store that is ahead of its log is a fault."""
        async with self._writing:
            if self._tablet is not None and self._tablet.kv.applied_offset > end_offset:
                self.partition.fail(f"the log was cut back to {end_offset}, behind what is stored")

    async def close(self) -> None:
        tablet = await self._stop()
        if tablet is not None:
            await self.services.run(tablet.kv.close)

    async def delete(self) -> None:
        tablet = await self._stop()
        if tablet is not None:
            await self.services.run(tablet.kv.destroy)
        await self.services.run(_remove_if_empty, self.directory.parent)
        if self.definition.settings.auto_increment_column is not None:
            await self.services.auto_increment.forget(self.partition.topic.topic_id)

    async def _stop(self) -> Tablet | None:
        """Let what is under way end; nothing begins any more."""
        self.closed = True
        async with self._writing:
            tasks = [task for task in (self._storing, self._flushing) if task is not None]
            if tasks:
                await asyncio.wait(tasks)
        tablet, self._tablet = self._tablet, None
        if tablet is not None:
            self.services.budget.release(tablet.pending_bytes)
        return tablet


def _replay(tablet: Tablet, versions: SchemaVersions, region: Any) -> int:
    return tablet.replay(versions, region.read())


def _set_aside(directory: Path) -> Path:
    """Keep the files of a damaged store for whoever wants to look at them: the latest only."""
    aside = directory.with_name(f"{directory.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    directory.rename(aside)
    return aside


def _remove_if_empty(directory: Path) -> None:
    """The table's folder goes with its last bucket, and what was set aside with it."""
    if directory.is_dir() and not any(not child.name.endswith(".damaged") for child in directory.iterdir()):
        shutil.rmtree(directory, ignore_errors=True)
