"""ScanLog: batches of the log for table clients, whole or projected, waiting for them if asked to.

Whole batches leave as file regions, by `sendfile`; projected ones as byte ranges (`projection.py`). Nothing at or
above the published high watermark is given (R12.1). Sizes are as in Kafka's Fetch: the first bucket that has
anything gives at least one batch, the others what is left of `max_bytes`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from protocol.errors import DecodeError, ErrorCode, KafkaError
from tablelayer.model.messages import ScanLogBucket, ScanLogRequest, ScanLogResponse, ScanLogResult
from tablelayer.model.table import TableDefinition
from tablelayer.model.versions import SchemaVersions
from tablelayer.server.bucket import TableBucket, headers_of
from tablelayer.server.projection import Projection, project_batch
from tablelayer.server.reads import Wanted
from tablelayer.server.services import Services

if TYPE_CHECKING:
    from broker.cluster.partition import Partition
    from broker.log.region import FileRegion

logger = logging.getLogger("headrace.tables")


class Parts:
    """Bytes in several parts, sent one after the other."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: list[bytes], size: int) -> None:
        self.parts = parts
        self.size = size

    def read(self) -> bytes:
        return b"".join(self.parts)


async def scan_log(
    services: Services, definition: TableDefinition, request: ScanLogRequest
) -> ScanLogResponse:
    """Raises TableError for columns that do not exist; errors of buckets are in the response."""
    wanted = Wanted.of(definition, request.schema_id, request.columns)
    scan = _Scan(services, definition, request, None if wanted.is_whole else wanted.ids)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0, request.max_wait_ms) / 1000
    scan.watch()
    try:
        await scan.read()
        while not scan.is_complete and loop.time() < deadline and await scan.changed(deadline):
            await scan.read()
    finally:
        scan.unwatch()
    return ScanLogResponse(buckets=scan.results)


class _Scan:
    """A request under way. What was found for a bucket is kept; only buckets without rows are read again."""

    def __init__(
        self,
        services: Services,
        definition: TableDefinition,
        request: ScanLogRequest,
        column_ids: frozenset[int] | None,
    ) -> None:
        """`column_ids`: those of the columns wanted; None for all."""
        self.results: list[ScanLogResult] = []
        self._services = services
        self._topic = definition.path.topic
        self._request = request
        self._column_ids = column_ids
        self._projections: dict[int, Projection] = {}
        self._found: dict[int, ScanLogResult] = {}
        self._bytes = 0
        self._failed = False
        self._moved = asyncio.Event()
        self._watched: list[Partition] = []

    def watch(self) -> None:
        for wanted in self._request.buckets:
            partition = self._services.context.metadata.find_partition(self._topic, wanted.bucket)
            if partition is not None:
                partition.add_waiter(self._moved.set)
                self._watched.append(partition)

    def unwatch(self) -> None:
        for partition in self._watched:
            partition.remove_waiter(self._moved.set)

    @property
    def is_complete(self) -> bool:
        return self._failed or not self._request.buckets or self._bytes >= max(1, self._request.min_bytes)

    async def changed(self, deadline: float) -> bool:
        """Wait until a partition moved; False if the time is up first."""
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
                except Exception as error:  # noqa: BLE001 - of one bucket: the others have their own answers
                    self._failed = True
                    _fail(result, error, f"{self._topic} bucket {wanted.bucket}")
                if result.records is not None:
                    self._found[wanted.bucket] = result
            self.results.append(result)

    async def _read_bucket(self, wanted: ScanLogBucket, result: ScanLogResult) -> None:
        partition = self._services.context.partition(self._topic, wanted.bucket)
        bucket: object = partition.hooks
        if not isinstance(bucket, TableBucket):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"bucket {wanted.bucket} is not served")
        bucket.check_open()
        result.log_start_offset = partition.log.log_start_offset
        result.high_watermark = partition.high_watermark
        room = min(wanted.max_bytes, self._request.max_bytes - self._bytes)
        must = self._bytes == 0
        if room <= 0 and not must:
            return
        found = partition.read(wanted.offset, max(room, 0), must)
        if found.region is None:
            return
        if self._column_ids is None:
            result.records, size = found.region, found.size
        else:
            # Of a large region only the columns count: read on until they fill the room.
            region = (
                partition.read(wanted.offset, max(room, 0) * _PROJECTED_REACH, must).region or found.region
            )
            parts, size = await self._services.run(self._project, region, bucket.versions, max(room, 0))
            result.records = Parts(parts, size)
        self._bytes += size

    def _project(
        self, region: FileRegion, versions: Callable[[], SchemaVersions], max_bytes: int
    ) -> tuple[list[bytes], int]:
        """Projected batches of a region of whole batches, at least one, until they have `max_bytes`.

        Each under its own schema: of the columns wanted those that it has. Ranges are read, not sent as
        regions: they are many and small.
        """
        parts: list[bytes] = []
        total = 0
        for position, header in headers_of(region):
            front, ranges = project_batch(
                region.read_at,
                position,
                header.size,
                lambda schema_id: self._projection_of(schema_id, versions),
            )
            size = len(front) + sum(length for _, length in ranges)
            if parts and total + size > max_bytes:
                break
            parts.append(front)
            parts.extend(region.read_at(at, length) for at, length in ranges)
            total += size
        if sum(map(len, parts)) != total:
            raise DecodeError("a stored batch is shorter than its header says")
        return parts, total

    def _projection_of(self, schema_id: int, versions: Callable[[], SchemaVersions]) -> Projection:
        projection = self._projections.get(schema_id)
        if projection is None:
            schema, wanted = versions().get(schema_id), self._column_ids
            assert wanted is not None
            chosen = [index for index, column in enumerate(schema.columns) if column.id in wanted]
            projection = self._projections[schema_id] = Projection.of(schema.arrow(), chosen)
        return projection


_PROJECTED_REACH = 8


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
