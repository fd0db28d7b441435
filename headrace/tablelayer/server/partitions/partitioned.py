r"""The topic of a partitioned table itself: records that are produced to it go to the partitions.

Its log has no rows, only an empty batch with the producer's sequence for each produced batch: it gives the offset for
the answer, and detects a repeated batch. Before that the rows are logged in the partitions' own topics, those of all
partitions or none (`joint_write`). Each part has an identity of this writer and partition, so that a batch that is
repeated after a crash is written once. Consumers read the partitions: `^db\\.t\\..*`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.broker.log.partition_log import AppendInfo
from headrace.broker.partitions.hooks import FetchedRecords
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.table.buckets import bucket_of
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partitions import partitions_of_rows
from headrace.tablelayer.server.bucket.bucket import Decode, as_kafka_error, no_rows
from headrace.tablelayer.server.bucket.joint_write import Part, write_together
from headrace.tablelayer.server.bucket.log_bucket import LogBucket
from headrace.tablelayer.server.kafka_view import producers as kafka_view
from headrace.tablelayer.server.merge import forwarding
from headrace.tablelayer.server.merge.engines import Operations
from headrace.tablelayer.server.merge.few_rows import NeedsArrays
from headrace.tablelayer.server.merge.writes import Writer, made_for
from headrace.tablelayer.server.services import Services

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition

_ATTEMPTS = 3
"""Maximum number of attempts: a partition may be dropped between its creation and the write, before anything is logged.
"""


class PartitionedBucket(LogBucket):
    """`PartitionHooks` of the topic of a partitioned table."""

    async def _all_published(self, definition: StoredTable, timeout_ms: int) -> None:
        """Wait for nothing: the producer's sequence was logged after the rows of all partitions were acknowledged."""

    def place_of_few(self, partition: str, hashed: int) -> tuple[str, int]:
        path = self.definition.path.of_partition(partition)
        count = self.services.catalog.bucket_count(path)
        if not count:
            raise NeedsArrays  # it may have to be created
        return path.topic, (hashed if self.definition.bucket_key else self.partition.index) % count

    def forwarded(self, header: BatchHeader) -> Writer:
        return forwarding.forwarded(header, self.partition.index, by_whole_table=True)

    async def _write_opened(
        self,
        header: BatchHeader,
        opened: kafka_view.Opened,
        decode: Decode,
        size: int,
        acks: int,
        timeout_ms: int,
    ) -> AppendInfo:
        """Write rows to their partitions (R17.2), then an empty batch with the producer's sequence."""
        definition = self.definition
        writer = self.forwarded(header)
        try:
            operations = await self.services.run(decode, definition, opened)
            parts = await self.services.run(self._split, definition, operations)
            await self._write_partitions(definition, parts, writer, acks, timeout_ms)
            own = made_for(definition, Operations(no_rows(definition)))
            return await self.write_rows(own, Writer.of(header), size, acks, timeout_ms)
        except TableError as error:
            raise as_kafka_error(error, definition) from error

    def _split(self, definition: StoredTable, operations: Operations) -> dict[str, dict[int, Operations]]:
        """Return rows by partition and bucket, in order. Raises RowError. Thread-safe.

        Without a bucket key all rows of a partition go to one bucket, by the producer's choice.
        """
        rows = operations.rows
        try:
            codes, names = partitions_of_rows(definition.partition_keys, rows)
        except RowError as error:
            if operations.sent_as is None:
                raise
            raise RowError(int(operations.sent_as[error.index]), error.column, error.reason) from error
        catalog = self.services.catalog
        counts = [catalog.bucket_count(definition.path.of_partition(name)) for name in names]
        placed = {
            count: self._buckets(definition.with_buckets(count or definition.bucket_count), rows)
            for count in set(counts)
        }
        parts: dict[str, dict[int, Operations]] = {}
        for code, name in enumerate(names):
            in_partition, buckets = codes == code, placed[counts[code]]
            for bucket in np.unique(buckets[in_partition]).tolist():
                chosen = np.flatnonzero(in_partition & (buckets == bucket))
                parts.setdefault(name, {})[bucket] = operations.select(chosen)
        return parts

    def _buckets(self, definition: StoredTable, rows: pa.RecordBatch) -> npt.NDArray[np.int32]:
        if definition.bucket_key:
            return bucket_of(definition, rows)
        return np.full(rows.num_rows, self.partition.index % definition.bucket_count, np.int32)

    async def _make_partitions(self, definition: StoredTable, names: list[str]) -> None:
        """Create all missing partitions before any row is written; a row without a partition refuses the batch."""
        catalog = self.services.catalog
        present = set(catalog.partition_names(definition.path))
        missing = [name for name in names if name not in present]
        if missing and not definition.settings.kafka_creates_partitions:
            raise TableError(
                TableErrorCode.PARTITION_NOT_FOUND,
                f"table {definition.path} has no partition {missing[0]}, and "
                "'table.kafka.dynamic-create-partition.enabled' is 'false'",
            )
        for name in missing:
            await catalog.create_partition(definition, name, ignore_if_exists=True)

    async def _write_partitions(
        self,
        definition: StoredTable,
        rows: dict[str, dict[int, Operations]],
        writer: Writer,
        acks: int,
        timeout_ms: int,
    ) -> None:
        """Write the rows of all partitions and buckets, or none, and wait as `acks` demands."""
        for attempt in range(_ATTEMPTS):
            await self._make_partitions(definition, list(rows))
            try:
                parts = [
                    self.part(definition.path.of_partition(name).topic, bucket, definition, part, writer)
                    for name, by_bucket in rows.items()
                    for bucket, part in by_bucket.items()
                ]
                infos = await write_together(self.services.budget, parts)
            except KafkaError as error:
                gone = error.code in (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                )
                if not gone or attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0)
            else:
                await self.wait_parts(parts, infos, acks, timeout_ms)
                return

    async def wait_part(self, part: Part, info: AppendInfo, acks: int, timeout_ms: int) -> None:
        """Wait for a part; if its partition is dropped meanwhile, its rows are dropped too (R18.2)."""
        try:
            await super().wait_part(part, info, acks, timeout_ms)
        except KafkaError:
            if self._is_there(part):
                raise

    def _is_there(self, part: Part) -> bool:
        """Return whether the part's partition exists, also with another leader."""
        return self.services.context.metadata.topic_by_id(part.bucket.partition.topic.topic_id) is not None

    async def delete(self) -> None:
        """Delete the bucket, and the dropped table's auto-increment counter."""
        await super().delete()
        if self.definition.settings.auto_increment_column is not None:
            await self.services.auto_increment.forget(self.partition.topic.topic_id)


class OrphanBucket:
    """`PartitionHooks` of a partition whose table is gone: it refuses all requests until it is deleted."""

    def __init__(self, services: Services, partition: Partition) -> None:
        self._directory = services.directory / str(partition.topic.topic_id)
        self._run = services.run
        self._disk = services.store_disk

    def can_rest(self, end_offset: int) -> bool:
        return True

    async def start(self) -> None:
        """Do nothing."""

    async def produce(self, batch: memoryview, acks: int, timeout_ms: int) -> AppendInfo:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition's table was dropped")

    def produce_at_once(self, batch: memoryview) -> AppendInfo | None:
        return None

    async def wait_published(self, info: AppendInfo, acks: int, timeout_ms: int) -> AppendInfo:
        return info

    async def fetch(self, offset: int, max_bytes: int, min_one: bool) -> FetchedRecords:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition's table was dropped")

    def high_watermark_candidate(self, offset: int) -> None:
        """Do nothing: the partition will be deleted."""

    def retention_floor(self) -> int | None:
        return None

    def local_floor(self) -> int | None:
        return None

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return True

    async def truncated(self, end_offset: int) -> None:
        """Do nothing: no state is ahead of the log."""

    async def close(self) -> None:
        """Do nothing."""

    async def delete(self) -> None:
        await self._run(self._disk.remove_tree, self._directory)
