"""ScanLog: batches of the log for table clients, whole or projected; a request can wait for new batches.

Whole batches are sent as file regions, by `sendfile`; projected ones as byte ranges (`projection.py`). Nothing at or
above the published high watermark is returned (R12.1). Sizes are as in Kafka's Fetch: the first bucket with rows gives
at least one batch, the others share what is left of `max_bytes`, which the server limits too.

With a filter, batches without matches are skipped, and the answer has the end of the search (`filtered_end_offset`), so
that readers of few rows advance. A request whose bucket has rows but no match is answered at once; a request that waits
at the end of the log searches new batches.

A batch that cannot be projected or filtered is skipped and reported. Whole batches are not examined; the client skips
those that it cannot read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.broker.log.region import RemoteRegion
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.batches.batch import ArrowBatch, encode_arrow_batch
from headrace.tablelayer.model.batches.ipc import STORED_BYTES_MAX
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.filters.filters import Filter, Verdict
from headrace.tablelayer.model.messages.read import (
    ScanLogBucket,
    ScanLogRequest,
    ScanLogResponse,
    ScanLogResult,
)
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.bucket.bucket import TableBucket
from headrace.tablelayer.server.read.batch_filter import BatchFilter, filtered_batch
from headrace.tablelayer.server.read.projection import Projection, project_batch
from headrace.tablelayer.server.read.wanted import Wanted
from headrace.tablelayer.server.regions import headers_of
from headrace.tablelayer.server.services import Services

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion
    from headrace.broker.log.slice import LogSlice
    from headrace.broker.partitions.partition import Partition

logger = logging.getLogger("headrace.tables")


class Parts:
    """Bytes in several parts, sent one after another."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: list[bytes], size: int) -> None:
        self.parts = parts
        self.size = size

    def read(self) -> bytes:
        return b"".join(self.parts)


async def scan_log(
    services: Services, definition: StoredTable, request: ScanLogRequest, check: Callable[[Wanted], None]
) -> ScanLogResponse:
    """Answer a request. Raises TableError for unknown columns; errors of buckets are in the response.

    `check` raises if the caller may not read the requested columns; it is called again after each wait.
    """
    wanted = await Wanted.asked(services, definition, request.schema_id, request.columns, request.filter)
    check(wanted)
    scan = _Scan(services, definition, request, wanted)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0, request.max_wait_ms) / 1000
    scan.watch()
    try:
        await scan.read()
        while not scan.is_complete and loop.time() < deadline and await scan.changed(deadline):
            check(wanted)
            await scan.read()
        check(wanted)
    finally:
        scan.unwatch()
    return ScanLogResponse(buckets=scan.results)


class _Scan:
    """A running request. The result of a bucket is kept; only buckets without rows are read again."""

    def __init__(
        self,
        services: Services,
        definition: StoredTable,
        request: ScanLogRequest,
        wanted: Wanted,
    ) -> None:
        self.results: list[ScanLogResult] = []
        self._services = services
        self._topic = definition.path.topic
        self._request = request
        self._max_bytes = min(request.max_bytes, services.limits.answer_bytes_max)
        self._schema = wanted.schema
        self._column_ids = None if wanted.is_whole else wanted.ids
        self._filter = wanted.filter
        self._looked_up_to: dict[int, int] = {}
        self._first_look = True
        self._passed_over = False
        self._projections: dict[int, Projection] = {}
        self._found: dict[int, ScanLogResult] = {}
        self._bytes = 0
        self._failed = False
        self._moved = asyncio.Event()
        self._watched: list[Partition] = []

    def watch(self) -> None:
        for wanted in self._request.buckets:
            partition = self._services.context.replicas.find_partition(self._topic, wanted.bucket)
            if partition is not None:
                partition.add_waiter(self._moved.set)
                self._watched.append(partition)

    def unwatch(self) -> None:
        for partition in self._watched:
            partition.remove_waiter(self._moved.set)

    @property
    def is_complete(self) -> bool:
        return (
            self._failed
            or self._passed_over
            or not self._request.buckets
            or self._bytes >= max(1, self._request.min_bytes)
        )

    async def changed(self, deadline: float) -> bool:
        """Wait until a partition changes; return False after the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def read(self) -> None:
        self._moved.clear()
        self.results = []
        for wanted in self._request.buckets:
            result = self._found.get(wanted.bucket)
            if result is None:
                result = ScanLogResult(bucket=wanted.bucket)
                try:
                    await self._read_bucket(wanted, result)
                except Exception as error:  # noqa: BLE001 - reported for this bucket
                    self._failed = True
                    _fail(result, error, f"{self._topic} bucket {wanted.bucket}")
                if result.records is not None:
                    self._found[wanted.bucket] = result
            self.results.append(result)
        self._first_look = False

    async def _read_bucket(self, wanted: ScanLogBucket, result: ScanLogResult) -> None:
        partition = self._services.context.replicas.partition(self._topic, wanted.bucket)
        bucket: object = partition.hooks
        if not isinstance(bucket, TableBucket):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"bucket {wanted.bucket} is not served")
        bucket.check_open()
        result.log_start_offset = partition.log.log_start_offset
        result.high_watermark = partition.high_watermark
        room = min(wanted.max_bytes, self._max_bytes - self._bytes)
        must = self._bytes == 0
        if self._filter is not None:
            result.filtered_end_offset = self._looked_up_to.get(wanted.bucket, wanted.offset)
        if room <= 0 and not must:
            return
        if self._filter is not None:
            await self._read_filtered(self._filter, partition, bucket, result, max(room, 0))
            return
        found = await partition.read_anywhere(wanted.offset, max(room, 0), must)
        if found.region is None:
            return
        if self._column_ids is None:
            result.records, size = found.region, found.size
            if isinstance(found.region, RemoteRegion):
                read = await self._services.run_on(found.region, partition, found.region.read)
                result.records = Parts([read], size)
            records = found.end_offset - found.start_offset
        else:
            # Only the columns of a large region count: read on until they fill the room.
            reach = await partition.read_anywhere(wanted.offset, max(room, 0) * _PROJECTED_REACH, must)
            region = reach.region or found.region
            parts, size, records = await self._services.run_on(
                region, partition, self._project, region, bucket, max(room, 0)
            )
            result.records = Parts(parts, size)
        self._bytes += size
        partition.traffic.sent(size, records)

    async def _read_filtered(
        self, wanted: Filter, partition: Partition, bucket: TableBucket, result: ScanLogResult, room: int
    ) -> None:
        """Search the log until something matches, the log ends, or enough was searched for one answer."""
        offset, looked_at = result.filtered_end_offset, 0
        while looked_at < _LOOK_BYTES:
            found = await partition.read_anywhere(offset, max(_LOOK_STEP_BYTES, room), True)
            if found.region is None:
                break
            parts, size, records, offset = await self._services.run_on(
                found.region, partition, self._filtered, wanted, found, bucket, room
            )
            looked_at += found.region.size
            if parts:
                result.records = Parts(parts, size)
                self._bytes += size
                partition.traffic.sent(size, records)
                break
            # Batches without a match that arrive during the wait do not end it.
            self._passed_over = self._first_look or looked_at >= _LOOK_BYTES
        self._looked_up_to[result.bucket] = result.filtered_end_offset = offset

    def _filtered(
        self, wanted: Filter, found: LogSlice, bucket: TableBucket, max_bytes: int
    ) -> tuple[list[bytes], int, int, int]:
        """Return (a slice's batches with matching rows, up to `max_bytes`; their size; their records; the end offset).

        The end offset is behind the last examined batch.
        """
        region = found.region
        assert region is not None
        known = bucket.versions()
        chosen = BatchFilter(wanted, known)
        parts: list[bytes] = []
        total = records = 0
        for position, header in chosen.batches(region):
            try:
                batch = self._chosen(chosen, region, position, header, known)
            except (DecodeError, TableError) as error:
                bucket.unreadable(header, error)
                batch = None
            if batch is not None:
                if parts and total + len(batch) > max_bytes:
                    return parts, total, records, header.base_offset
                parts.append(batch)
                total += len(batch)
                records += header.record_count
        return parts, total, records, found.end_offset

    def _chosen(
        self,
        chosen: BatchFilter,
        region: FileRegion,
        position: int,
        header: BatchHeader,
        versions: SchemaVersions,
    ) -> bytes | None:
        """Return a batch, or its matching rows; None if there are none."""
        verdict = chosen.verdict(region, position, header)
        mask = None
        if verdict is Verdict.SOME and self._request.row_filter:
            mask = chosen.mask(region, position, header)
            if mask.all():
                mask = None
            elif not mask.any():
                verdict = Verdict.NONE
        return None if verdict is Verdict.NONE else self._one(region, position, header.size, versions, mask)

    def _one(
        self, region: FileRegion, position: int, size: int, versions: SchemaVersions, mask: Mask | None
    ) -> bytes:
        """Return a batch as one piece, with the requested columns and rows."""
        if self._column_ids is None:
            data = region.read_at(position, size)
        else:
            front, ranges = project_batch(
                region.read_at,
                position,
                size,
                lambda schema_id: self._projection_of(schema_id, lambda: versions),
            )
            data = b"".join((front, *(region.read_at(at, length) for at, length in ranges)))
        if mask is None:
            return data
        batch = ArrowBatch.parse(data)
        columns = [
            column.field()
            for column in versions.get(batch.schema_id).columns
            if self._column_ids is None or column.id in self._column_ids
        ]
        return bytes(
            filtered_batch(batch, batch.to_record_batch(pa.schema(columns), bytes_max=STORED_BYTES_MAX), mask)
        )

    def _project(
        self, region: FileRegion, bucket: TableBucket, max_bytes: int
    ) -> tuple[list[bytes], int, int]:
        """Return (projected batches of a region, their size, their records): at least one batch, up to `max_bytes`.

        Each batch keeps its own schema, with the requested columns that it has. Ranges are read, not sent as regions:
        they are many and small.
        """
        parts: list[bytes] = []
        total = records = 0
        for position, header in headers_of(region):
            try:
                front, ranges = project_batch(
                    region.read_at,
                    position,
                    header.size,
                    lambda schema_id: self._projection_of(schema_id, bucket.versions),
                )
            except (DecodeError, TableError) as error:
                bucket.unreadable(header, error)
                front, ranges = self._without_rows(header), []
            size = len(front) + sum(length for _, length in ranges)
            if parts and total + size > max_bytes:
                break
            parts.append(front)
            parts.extend(region.read_at(at, length) for at, length in ranges)
            total += size
            records += header.record_count
        if sum(map(len, parts)) != total:
            raise DecodeError("a stored batch is shorter than its header says")
        return parts, total, records

    def _without_rows(self, header: BatchHeader) -> bytes:
        """Return an empty batch over the same offsets, so that the reader continues behind them."""
        schema, wanted = self._schema, self._column_ids
        fields = [column.field() for column in schema.columns if wanted is None or column.id in wanted]
        return bytes(
            encode_arrow_batch(
                pa.RecordBatch.from_pylist([], schema=pa.schema(fields)),
                schema_id=schema.schema_id,
                change_types=None,
                timestamp_ms=header.max_timestamp,
                base_offset=header.base_offset,
                last_offset_delta=header.last_offset_delta,
            )
        )

    def _projection_of(self, schema_id: int, versions: Callable[[], SchemaVersions]) -> Projection:
        projection = self._projections.get(schema_id)
        if projection is None:
            schema, wanted = versions().get(schema_id), self._column_ids
            assert wanted is not None
            chosen = [index for index, column in enumerate(schema.columns) if column.id in wanted]
            projection = self._projections[schema_id] = Projection.of(schema.arrow(), chosen)
        return projection


_PROJECTED_REACH = 8
_LOOK_STEP_BYTES = 8 << 20
_LOOK_BYTES = 64 << 20  # a fraction of a second of work, or almost none with statistics


def _fail(result: ScanLogResult, error: Exception, name: str) -> None:
    code: Any = getattr(error, "code", None)
    result.records = None
    if isinstance(error, DecodeError):
        logger.error("a batch of %s cannot be read: %s", name, error)
        code = ErrorCode.CORRUPT_MESSAGE
    elif code is None:
        logger.error("reading %s failed", name, exc_info=error)
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    result.error_code = int(code)
    result.error_message = getattr(error, "message", None) or str(error)
