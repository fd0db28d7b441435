"""A bucket of a primary-key table: writes go through its tablet to the log, then to the key-value store; and reads.

A batch is written in these steps, one batch at a time (R1, R11, R12): it is merged with the existing rows
(`Tablet.prepare`), appended to the log, and put into the pre-write buffer. Once it is replicated it is stored, and then
its high watermark is published. Reads see the store alone. A read that sees rows of a batch during its storing waits
until that batch is published.

`stored_bucket.py` has the bucket's start, upkeep and end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.log.partition_log import AppendInfo, AppendOrigin
from headrace.broker.runtime import disk_errors
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.batches.batch import opened_size_of
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.types.column_types import INTEGER_BITS
from headrace.tablelayer.server.bucket.joint_write import log_at_once
from headrace.tablelayer.server.bucket.stored_bucket import StoredBucket
from headrace.tablelayer.server.bucket.tasks import Kind
from headrace.tablelayer.server.kafka_view.few_records import FewRecords
from headrace.tablelayer.server.merge.auto_increment import OutOfNumbersError
from headrace.tablelayer.server.merge.engines import Operations
from headrace.tablelayer.server.merge.few_puts import BYTES_MAX, puts_of
from headrace.tablelayer.server.merge.few_rows import FewRows, Merge, NeedsArrays
from headrace.tablelayer.server.merge.writes import (
    ClientWrite,
    OperationSource,
    Writer,
    check_overwritable,
    decode_put,
    key_insertions,
    write_header,
)
from headrace.tablelayer.server.services import KeptStore, Services
from headrace.tablelayer.server.store.errors import StalledStoreError, is_damage, is_halted
from headrace.tablelayer.server.store.keys import absent_keys
from headrace.tablelayer.server.store.tablet import PreparedWrite, Tablet

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition

logger = logging.getLogger("headrace.tables")

Result = TypeVar("Result")

_PUBLISH_TIMEOUT_MS = 30_000
"""Publishing follows storing immediately; only a broken process takes longer."""
_DISK_FULL_RETRY_SECONDS = 1.0


class KeyBucket(StoredBucket):
    """`PartitionHooks` of a primary-key table."""

    def __init__(self, services: Services, partition: Partition, standby: KeptStore | None = None) -> None:
        """Create the bucket. `standby` has kept the store up to date until now, and hands it over."""
        super().__init__(services, partition, standby)
        self._rows_written = 0
        self.keys_looked_up = 0
        """Keys and prefixes that clients looked up since the bucket was opened."""

    @property
    def rows_written(self) -> int:
        return self._rows_written

    # -- entry points of writes ----------------------------------------------------------------------------

    async def put(
        self,
        batch: memoryview,
        targets: tuple[int, ...] | None,
        made_for: StoredTable | None,
        *,
        overwrite: bool = False,
        update: bool = False,
        may_be_at_once: bool = False,
    ) -> AppendInfo:
        """Log a batch of a table client; `targets` are column ids of the writer's schema, `made_for` is as for
        `check_unaltered`. A few rows are written on the event loop if `may_be_at_once`.

        Raises KafkaError or TableError.
        """
        header = write_header(batch)

        def source(now: TableDefinition) -> Operations:
            return decode_put(batch, now, targets, overwrite=overwrite, update=update)

        info = self._put_at_once(source, header, batch, made_for) if may_be_at_once else None
        if info is None:
            info = await self.log_rows(source, Writer.of(header), opened_size_of(batch), made_for)
            self.services.has_put = True
        return info

    def _put_at_once(
        self, source: OperationSource, header: BatchHeader, batch: memoryview, made_for: StoredTable | None
    ) -> AppendInfo | None:
        """Write a few rows of a table client on the event loop. None, without any effect, if that is not possible."""
        services, size = self.services, len(batch)
        if size > BYTES_MAX or not services.has_put or not services.can_write_at_once():
            return None
        try:
            self.check_open()
            puts, writer = puts_of(self.definition), Writer.of(header)
            if (
                header.record_count > puts.rows_max
                or not self._takes_few
                or opened_size_of(batch) > BYTES_MAX
                or self.repeated(writer) is not None
            ):
                return None
            self.check_unaltered(made_for)
            operations = source(puts.definition)
            few = puts.rows(operations)
            if few is None:
                return None
            prepared = self._prepared_few(
                puts.definition, few, writer, puts.engine(operations), full_image=puts.full_image,
                inserts=not operations.update,
            )  # fmt: skip
        except (NeedsArrays, KafkaError, TableError):
            return None
        return None if prepared is None else log_at_once(services.budget, [(self, prepared)], size)

    async def insert_absent(self, keys: memoryview, schema: Schema, keys_max: int, timeout_ms: int) -> None:
        """Write rows for absent keys (R15) as R6.6 says; return when they are stored.

        The keys are of `schema`. Two callers may both miss a key; the second write finds it and changes nothing.
        """
        missing = await self.read(absent_keys, schema, keys, keys_max)
        if missing.num_rows:
            await self.write_rows(
                lambda now: key_insertions(now, missing), Writer(), missing.nbytes, -1, timeout_ms
            )

    def check_write(self, write: ClientWrite) -> None:
        if write.update:
            check_overwritable(self.definition)
        write.operations(self.definition)

    async def write_staged(
        self, write: ClientWrite, writer: Writer, acks: int, timeout_ms: int
    ) -> AppendInfo:
        return await self.write_rows(write.operations, writer, opened_size_of(write.batch), acks, timeout_ms)

    # -- the steps of a write: prepare and merge, log, store, publish --------------------------------------

    async def write_rows(
        self, source: OperationSource, writer: Writer, size: int, acks: int, timeout_ms: int
    ) -> AppendInfo:
        info = await self.log_rows(source, writer, size, None)
        return await self.wait_published(info, acks, timeout_ms)  # `_store` stores and publishes the rows

    async def log_rows(
        self, source: OperationSource, writer: Writer, size: int, made_for: StoredTable | None
    ) -> AppendInfo:
        """Prepare and log a batch, one at a time.

        The budget is charged with `size` bytes until the rows are stored (`_store`) or the write fails.
        """
        budget = self.services.budget
        budget.reserve(size)
        charged = True
        try:
            if self._tablet is None:
                await self._started()
            async with self._writing:
                self.tablet  # noqa: B018 - raises while there is none
                info = self.repeated(writer)
                if info is None:
                    prepared = await self.prepare_rows(source, writer)
                    self.check_unaltered(made_for)
                    info = self.log_prepared(prepared, size)
                    charged = False
                return info
        finally:
            if charged:
                budget.release(size)

    @property
    def publishes_at_once(self) -> bool:
        tablet = self._tablet
        return (
            tablet is not None
            and tablet.kv.is_open
            and not tablet.pending_bytes
            and self._tasks.under_way(Kind.STORE) is None
        )

    def prepare_few(self, reader: FewRecords, few: FewRows, writer: Writer) -> PreparedWrite | None:
        if not self._takes_few or self.definition.schema is not reader.definition.schema:
            return None
        return self._prepared_few(reader.definition, few, writer, reader.engine, full_image=reader.full_image)

    @property
    def _takes_few(self) -> bool:
        """Whether rows can be merged now, without waiting for other writes."""
        return self._tablet is not None and not self._writing.locked() and self._no_space is None

    def _prepared_few(
        self,
        definition: TableDefinition,
        few: FewRows,
        writer: Writer,
        engine: Merge | None,
        *,
        full_image: bool,
        inserts: bool = True,
    ) -> PreparedWrite | None:
        tablet, now_ms = self.tablet, self.services.context.clock.time_ms()
        try:
            return tablet.prepare_few(
                definition, few, writer, now_ms, engine, full_image=full_image, inserts=inserts
            )
        except Exception as error:
            if self._failed(error) is None:
                raise
            return None

    async def prepare_rows(self, source: OperationSource, writer: Writer) -> PreparedWrite:
        if self._no_space is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.name} accepts no rows: {disk_errors.why(self._no_space)}",
            )
        tablet = self._tablet or self.tablet  # the property raises the reason if there is none
        while True:
            now_ms = self.services.context.clock.time_ms()
            try:
                return await self.services.run(tablet.prepare, self.definition, source, writer, now_ms)
            except OutOfNumbersError as error:
                await self._take_numbers(tablet, error.missing)
            except Exception as error:
                self.check_open()
                if (known := self._failed(error)) is not None:
                    raise known from error
                raise

    def log_prepared(self, prepared: PreparedWrite, size: int) -> AppendInfo:
        tablet = self.tablet
        info = self.partition.append(prepared.batch, AppendOrigin.EXTENSION)
        if info.duplicate:
            self.services.budget.release(size)
        else:
            self._rows_written += len(prepared.keys)
            # the charge is released when the rows are stored
            tablet.logged(prepared, info.last_offset + 1, size)
            self._store_replicated()
        return info

    def high_watermark_candidate(self, offset: int) -> None:
        """Store and publish the rows below an offset up to which the log is replicated."""
        self._candidate = max(self._candidate, offset)
        self._advanced.wake()
        self._store_replicated()

    def _store_replicated(self) -> None:
        """Store and publish the replicated rows: at once if they are few, else in a task.

        A batch is known to the tablet after its append, which may have been told to be replicated before.
        """
        tablet = self._tablet
        count = 0 if tablet is None else tablet.covered(self._candidate)
        if tablet is None or not count or self._tasks.under_way(Kind.STORE) is not None:
            return
        try:
            is_stored = self._no_space is None and tablet.store_at_once(count)
        except Exception:  # noqa: BLE001 - the task meets the same error, and handles it
            is_stored = False
        if is_stored:
            self._publish(tablet, count)
        else:
            self._tasks.start(Kind.STORE, self._store())

    def _publish(self, tablet: Tablet, count: int) -> None:
        """Publish the `count` oldest pending writes, which are stored."""
        end_offset = tablet.end_of(count)
        self.services.restless[self] = None
        self.services.budget.release(tablet.stored(count))
        self.partition.publish_high_watermark(end_offset)
        if tablet.kv.bytes_since_flush >= self.services.limits.flush_bytes:
            self._start_flush()

    async def _store(self) -> None:
        """Store the replicated rows, then publish them, until all of them are published."""
        try:
            while self._tablet is not None and self.partition.high_watermark < self._candidate:
                tablet, target = self._tablet, self._candidate
                count = tablet.covered(target)
                if not count:
                    break
                try:
                    if not tablet.kv.is_open:
                        await self.services.open_store(tablet.kv.make)
                    await self.services.run(tablet.store, count)
                except StalledStoreError:
                    if self.closed:
                        break
                    if self._flush_failure is not None:
                        self._has_no_space(self._flush_failure)
                    continue
                except OSError as error:
                    if self.closed:
                        break  # the rows are in the log and will be replayed
                    self._has_no_space(error)
                    if tablet.kv.is_open and is_halted(error):
                        self._restart(error)
                        break
                    await asyncio.sleep(_DISK_FULL_RETRY_SECONDS)
                    continue
                if self._no_space is not None:
                    logger.info("%s accepts rows again", self.name)
                    self._no_space = None
                self._publish(tablet, count)
        except Exception as error:
            if is_damage(error):
                self._damaged(error)
                return
            if is_halted(error):
                self._restart(error)
                return
            logger.error("%s cannot store rows", self.name, exc_info=error)
            self.partition.fail(f"its rows cannot be stored: {error}")

    def _has_no_space(self, error: OSError) -> None:
        """Fail the waiting writes and refuse new ones until rows can be stored again."""
        disk_errors.tell(logger, f"{self.name} accepts no rows: they cannot be stored", error)
        self._no_space = error
        self.partition.wake()

    def check_publishing(self) -> None:
        if self._no_space is not None:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self.name}: logged, but not stored yet: {disk_errors.why(self._no_space)}",
            )

    # -- beside the steps of a write -----------------------------------------------------------------------

    @property
    def writing(self) -> AbstractAsyncContextManager[object]:
        return self._held()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        await self._started()
        async with self._writing:
            yield

    async def expire_rows(self) -> int:
        """Delete rows older than `table.kv.ttl`, as ordinary changes in the changelog; return their number.

        Rows are deleted in batches, with writes in between. Raises KafkaError, or TableError (BUFFER_EXHAUSTED: the
        next call deletes the rest).
        """
        deleted, has_more = 0, True
        while has_more and not self.closed and self._tablet is not None:
            info = None
            async with self._writing:
                definition, tablet = self.definition, self.tablet
                ttl_ms, now_ms = definition.settings.kv_ttl_ms, self.services.context.clock.time_ms()
                if ttl_ms is None:
                    break
                limit = self.services.limits.rows_expired_together
                prepared, has_more = await self.services.run(
                    tablet.prepare_expiry, definition, now_ms - ttl_ms, limit, now_ms
                )
                if prepared is not None:
                    self.check_open()
                    size = len(prepared.batch)
                    self.services.budget.reserve(size)
                    try:
                        info = self.partition.append(prepared.batch, AppendOrigin.EXTENSION)
                    except BaseException:
                        self.services.budget.release(size)
                        raise
                    tablet.logged(prepared, info.last_offset + 1, size)
                    self._store_replicated()
                    deleted -= prepared.row_delta
            if info is not None:
                await self.wait_published(info, -1, _PUBLISH_TIMEOUT_MS)
        return deleted

    async def _take_numbers(self, tablet: Tablet, missing: int) -> None:
        """Take a range of numbers for this bucket (R10). It is durable before its first number is used."""
        definition = self.definition
        settings = definition.settings
        assert settings.auto_increment_column is not None
        column = definition.schema.column(settings.auto_increment_column)
        highest = (1 << (INTEGER_BITS[column.type.kind] - 1)) - 1
        tablet.numbers.add(
            *await self.services.auto_increment.take(
                self._numbered_id, max(missing, settings.auto_increment_cache), highest
            )
        )

    # -- reading -------------------------------------------------------------------------------------------

    async def read(
        self,
        work: Callable[..., Result],
        *arguments: Any,
        quick: Callable[..., Result | None] | None = None,
    ) -> Result:
        """Call blocking `work(store, ...)` in the executor; return its result when the rows that it saw are published
        (R12.1).

        `quick` is tried first, on the event loop. It must not block, and returns None if the read has to block.
        """
        tablet = await self._ready()
        store = tablet.kv
        try:
            result = None if quick is None else quick(store, *arguments)
            if result is None:
                result = await self.services.run(work, store, *arguments)
        except Exception as error:
            if (known := self._failed(error)) is not None:
                raise known from error
            if tablet is not self._tablet:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is being closed") from error
            raise
        seen = store.visible_offset
        if seen > self.partition.high_watermark and not await self.partition.wait_for_high_watermark(
            seen, _PUBLISH_TIMEOUT_MS
        ):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self.name}: what was read is not published yet")
        self.check_open()  # a new leader may have shown more
        return result

    def read_at_once(self, quick: Callable[..., Result | None], *arguments: Any) -> Result | None:
        """Return `quick(store, ...)`, which must not block; None if it may have seen unpublished rows."""
        if not self.partition.is_end_known or self._tablet is None:
            return None
        store = self.tablet.kv
        result = quick(store, *arguments)
        return None if store.visible_offset > self.partition.high_watermark else result
