"""A bucket of a log table: rows are appended to the log as they arrive, and are visible at once.

Batches of table clients are checked and stored as sent, except for the append time and the statistics, which the server
computes from the rows.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec

from headrace.broker.log.partition_log import AppendInfo, AppendOrigin
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.batches.batch import (
    encode_arrow_batch,
    opened_size_of,
    stamp_timestamp,
    stamp_writer,
    with_statistics,
)
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.server.bucket.bucket import TableBucket
from headrace.tablelayer.server.kafka_view.few_records import FewRecords
from headrace.tablelayer.server.merge.few_rows import FewRows, batch_of_few
from headrace.tablelayer.server.merge.writes import (
    ClientWrite,
    OperationSource,
    Writer,
    compression_of,
    decode_append,
    statistics_of,
    write_header,
)


class Counted(msgspec.Struct, frozen=True):
    """The number of rows between offsets `start` and `end`."""

    start: int
    end: int
    rows: int


class LogBucket(TableBucket):
    """`PartitionHooks` of a log table."""

    counted: Counted | None = None
    """The last result of counting rows, to continue from (`read.log_rows.count_log_rows`)."""

    def can_rest(self, end_offset: int) -> bool:
        return True

    async def start(self) -> None:
        self.partition.publish_high_watermark(self.partition.replicated_offset)

    def high_watermark_candidate(self, offset: int) -> None:
        self.partition.publish_high_watermark(offset)

    async def append(self, batch: memoryview, made_for: StoredTable | None) -> AppendInfo:
        """Append a batch of a table client; `made_for` as for `check_unaltered`. Raises KafkaError or TableError."""
        self.check_open()
        header = write_header(batch)
        duplicate = self._duplicate(header)
        if duplicate is not None:
            return duplicate
        now_ms, size = self.services.context.clock.time_ms(), opened_size_of(batch)
        self.services.budget.reserve(size)
        try:
            stamped = await self.services.run(_checked, batch, self.definition, now_ms)
            self.check_open()
            if self._duplicate(header) is None:
                self.check_unaltered(made_for)
            return self.partition.append(stamped, AppendOrigin.EXTENSION)
        finally:
            self.services.budget.release(size)

    def check_write(self, write: ClientWrite) -> None:
        if write.update:
            raise TableError(
                TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
                f"{self.definition.path} is a log table: its rows cannot be updated",
            )
        if write.targets is not None:
            raise TableError(
                TableErrorCode.INVALID_TARGET_COLUMNS,
                f"{self.definition.path} is a log table: it takes whole rows",
            )
        decode_append(write.batch, self.definition)

    async def write_staged(
        self, write: ClientWrite, writer: Writer, acks: int, timeout_ms: int
    ) -> AppendInfo:
        self.check_open()
        duplicate = self.partition.log.check_producer(writer.header())
        if duplicate is not None:
            return await self.wait_published(duplicate, acks, timeout_ms)
        now_ms, size = self.services.context.clock.time_ms(), opened_size_of(write.batch)
        self.services.budget.reserve(size)
        try:
            stamped = await self.services.run(_stamped, write.batch, self.definition, writer, now_ms)
            self.check_open()
            info = self.partition.append(stamped, AppendOrigin.EXTENSION)
        finally:
            self.services.budget.release(size)
        return await self.wait_published(info, acks, timeout_ms)

    async def write_rows(
        self, source: OperationSource, writer: Writer, size: int, acks: int, timeout_ms: int
    ) -> AppendInfo:
        self.services.budget.reserve(size)
        charged = True
        try:
            batch = await self.prepare_rows(source, writer)
            self.check_open()
            info = self.log_prepared(batch, size)
            charged = False
        finally:
            if charged:
                self.services.budget.release(size)
        return await self.wait_published(info, acks, timeout_ms)

    @property
    def writing(self) -> AbstractAsyncContextManager[object]:
        """No lock: appends do not depend on existing rows."""
        return nullcontext()

    async def prepare_rows(self, source: OperationSource, writer: Writer) -> bytearray | memoryview:
        now_ms = self.services.context.clock.time_ms()
        return await self.services.run(_encoded, source, writer, self.definition, now_ms)

    def log_prepared(self, prepared: bytearray | memoryview, size: int) -> AppendInfo:
        info = self.partition.append(prepared, AppendOrigin.EXTENSION)
        self.services.budget.release(size)
        return info

    def prepare_few(self, reader: FewRecords, few: FewRows, writer: Writer) -> memoryview | None:
        if self.definition.schema is not reader.definition.schema:
            return None
        rows = [row for row in few.rows if row is not None]
        return batch_of_few(reader.definition, rows, None, writer, self.services.context.clock.time_ms())

    def _duplicate(self, header: BatchHeader) -> AppendInfo | None:
        return self.partition.log.check_producer(header)

    async def truncated(self, end_offset: int) -> None:
        """Do nothing: no state is ahead of the log."""

    async def close(self) -> None:
        self.closed = True

    async def delete(self) -> None:
        self.closed = True


def _checked(batch: memoryview, definition: TableDefinition, now_ms: int) -> bytearray:
    parsed, schema, rows = decode_append(batch, definition)
    statistics = statistics_of(definition, schema, rows)
    stamped = with_statistics(batch, statistics) if statistics or parsed.statistics else bytearray(batch)
    stamp_timestamp(stamped, now_ms)
    return stamped


def _stamped(batch: memoryview, definition: TableDefinition, writer: Writer, now_ms: int) -> bytearray:
    stamped = _checked(batch, definition, now_ms)
    stamp_writer(stamped, **writer.fields())
    stamp_timestamp(stamped, now_ms)  # also computes the checksum
    return stamped


def _encoded(source: OperationSource, writer: Writer, definition: TableDefinition, now_ms: int) -> memoryview:
    rows = source(definition).rows
    return encode_arrow_batch(
        rows,
        schema_id=definition.schema.schema_id,
        change_types=None,
        compression=compression_of(definition, rows),
        timestamp_ms=now_ms,
        statistics=statistics_of(definition, definition.schema, rows),
        **writer.fields(),
    )
