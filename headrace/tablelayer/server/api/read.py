"""Reading rows, from a message to the buckets and back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import UUID

from headrace.broker.requests.declaration import RequestContext
from headrace.tablelayer.model.batches.extremes import check_ordered
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages import read as m
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.api.each_bucket import Answer, Asked, check_each_once, each_bucket, refuse
from headrace.tablelayer.server.api.targets import Targets, check_key_table, client_of
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.bucket.log_bucket import LogBucket
from headrace.tablelayer.server.merge.writes import check_insertable
from headrace.tablelayer.server.read import bucket_state as reads
from headrace.tablelayer.server.read.extremes import log_extremes, state_extremes
from headrace.tablelayer.server.read.scan_log import scan_log
from headrace.tablelayer.server.read.snapshot_scans import SnapshotScans
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.services import KeptStore, Services

_FIRST_LOOKUP_IN_PARTS = 2
_FIRST_PREFIX_LOOKUP_IN_PARTS = 1
_FIRST_LIMIT_SCAN_IN_PARTS = 2
_QUICK_BUCKETS_MAX = 8  # each takes the event loop for some microseconds
_BUCKETS_TOGETHER = 4  # as many as there are threads


class ReadHandlers:
    def __init__(self, services: Services, targets: Targets, scans: SnapshotScans) -> None:
        self._services = services
        self._targets = targets
        self._scans = scans

    def lookup_at_once(self, context: RequestContext, request: m.LookupRequest) -> m.LookupResponse | None:
        """The answer to a few keys whose rows are in memory and published, where nobody's rights are checked; None for
        everything else, errors among it."""
        count = len(request.buckets)
        if request.insert_if_absent or not 0 < count <= _QUICK_BUCKETS_MAX or not context.authorizer.is_open:
            return None
        try:
            definition = self._targets.read(context, request.table_id)
            check_key_table(definition)
            wanted = reads.Wanted.of(definition, request.schema_id, request.columns)
            self._targets.check_columns(context, definition, wanted, _key_ids(definition))
            check_each_once(definition, [part.bucket for part in request.buckets])
            limits, cost, answers = self._services.limits, wanted.schema.row_cost, []
            for index, part in enumerate(request.buckets):
                room = Room(limits.answer_bytes_max // count, cost, must=index == 0)
                keys_max, staleness_ms_max = limits.keys_per_lookup_max, request.staleness_ms_max
                standby = self._standby(request.table_id, part.bucket, staleness_ms_max)
                answer = m.LookupResult(bucket=part.bucket)
                if standby is not None:
                    stale = standby.read_at_once(
                        staleness_ms_max,
                        reads.lookup_in_memory,
                        standby.versions,
                        part.keys,
                        wanted,
                        keys_max,
                        room,
                    )
                    if stale is None:
                        return None
                    found, (answer.staleness_ms, answer.applied_offset) = stale
                else:
                    bucket = self._targets.bucket(definition, part.bucket, KeyBucket)
                    led = bucket.read_at_once(
                        reads.lookup_in_memory, bucket.versions, part.keys, wanted, keys_max, room
                    )
                    if led is None:
                        return None
                    found = led
                answer.found, answer.rows = found
                answers.append(answer)
        except Exception:  # noqa: BLE001 - `lookup` meets it too, and says it
            return None
        return m.LookupResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    async def lookup(self, context: RequestContext, request: m.LookupRequest) -> m.LookupResponse:
        definition = self._targets.read(context, request.table_id)
        check_key_table(definition)
        wanted = reads.Wanted.of(definition, request.schema_id, request.columns)
        self._targets.check_columns(context, definition, wanted, _key_ids(definition))
        limit = self._services.limits.keys_per_lookup_max
        if request.insert_if_absent:
            self._targets.written(context, request.table_id)
            check_insertable(definition)
        check_each_once(definition, [part.bucket for part in request.buckets])
        quick = reads.lookup_in_memory if len(request.buckets) <= _QUICK_BUCKETS_MAX else None
        whole = context.api_version < _FIRST_LOOKUP_IN_PARTS

        async def one(part: m.LookupBucket, room: Room) -> m.LookupResult:
            answer = m.LookupResult(bucket=part.bucket)
            try:
                staleness_ms_max = -1 if request.insert_if_absent else request.staleness_ms_max
                standby = self._standby(request.table_id, part.bucket, staleness_ms_max)
                if standby is not None:
                    found, (answer.staleness_ms, answer.applied_offset) = await standby.read(
                        staleness_ms_max, reads.lookup, standby.versions, part.keys, wanted, limit, room,
                        quick=quick,
                    )  # fmt: skip
                    _check_whole(whole, room)
                    answer.found, answer.rows = found
                    return answer
                bucket = self._targets.bucket(definition, part.bucket, KeyBucket)
                if request.insert_if_absent:
                    self._targets.check_replicas(definition, part.bucket)
                    await bucket.insert_absent(part.keys, wanted.schema, limit, request.timeout_ms)
                found = await bucket.read(
                    reads.lookup, bucket.versions, part.keys, wanted, limit, room, quick=quick
                )
                _check_whole(whole, room)
                answer.found, answer.rows = found
            except Exception as error:  # noqa: BLE001 - of one bucket
                refuse(answer, error, definition, part.bucket)
            return answer

        answers = await self._each_with_room(one, request.buckets, wanted)
        return m.LookupResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    async def prefix_lookup(
        self, context: RequestContext, request: m.PrefixLookupRequest
    ) -> m.PrefixLookupResponse:
        definition = self._targets.read(context, request.table_id)
        check_key_table(definition)
        wanted = reads.Wanted.of(definition, request.schema_id, request.columns)
        self._targets.check_columns(context, definition, wanted, _key_ids(definition))
        limit = self._services.limits.keys_per_lookup_max
        if not definition.allows_prefix_lookup:
            raise TableError(
                TableErrorCode.INVALID_KEY,
                f"table {definition.path} has no prefix lookup: its bucket key ({', '.join(definition.bucket_key)}) "
                f"is not a proper prefix of its primary key ({', '.join(definition.schema.primary_key)})",
            )
        check_each_once(definition, [part.bucket for part in request.buckets])
        whole = context.api_version < _FIRST_PREFIX_LOOKUP_IN_PARTS
        prefix_length = len(definition.key_prefix)

        async def one(part: m.PrefixLookupBucket, room: Room) -> m.PrefixLookupResult:
            answer = m.PrefixLookupResult(bucket=part.bucket)
            try:
                standby = self._standby(request.table_id, part.bucket, request.staleness_ms_max)
                if standby is not None:
                    found, (answer.staleness_ms, answer.applied_offset) = await standby.read(
                        request.staleness_ms_max, reads.prefix_lookup, standby.versions, prefix_length,
                        part.prefixes, wanted, limit, room, part.after,
                    )  # fmt: skip
                else:
                    bucket = self._targets.bucket(definition, part.bucket, KeyBucket)
                    found = await bucket.read(
                        reads.prefix_lookup, bucket.versions, prefix_length, part.prefixes, wanted, limit,
                        room, part.after,
                    )  # fmt: skip
                _check_whole(whole, room)
                answer.counts, answer.rows, answer.cursor = found
            except Exception as error:  # noqa: BLE001 - of one bucket
                refuse(answer, error, definition, part.bucket)
            return answer

        answers = await self._each_with_room(one, request.buckets, wanted)
        return m.PrefixLookupResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    async def scan_log(self, context: RequestContext, request: m.ScanLogRequest) -> m.ScanLogResponse:
        definition = self._targets.read(context, request.table_id)
        check_each_once(definition, [part.bucket for part in request.buckets])
        check = partial(self._targets.check_columns, context, definition)
        return await scan_log(self._services, definition, request, check)

    async def limit_scan(self, context: RequestContext, request: m.LimitScanRequest) -> m.LimitScanResponse:
        definition = self._targets.read(context, request.table_id)
        wanted = await self._wanted(definition, request, request.columns)
        self._targets.check_columns(context, definition, wanted)
        limit = request.limit
        if not 0 <= limit <= self._services.limits.limit_scan_rows_max:
            raise TableError(
                TableErrorCode.INVALID_ROW,
                f"limit is {limit}; it must be from 0 to {self._services.limits.limit_scan_rows_max}",
            )
        check_each_once(definition, request.buckets)
        whole = context.api_version < _FIRST_LIMIT_SCAN_IN_PARTS

        async def one(index: int, room: Room) -> m.LimitScanResult:
            answer = m.LimitScanResult(bucket=index)
            try:
                if not definition.is_primary_key_table:
                    log = self._whole_log(definition, index)
                    found = await reads.last_rows(log, limit, wanted, room, request.before)
                elif wanted.filter is None:
                    bucket = self._targets.bucket(definition, index, KeyBucket)
                    found = await bucket.read(reads.first_rows, bucket.versions, limit, wanted, room)
                else:
                    bucket = self._targets.bucket(definition, index, KeyBucket)
                    found = await reads.first_matching_rows(bucket, limit, wanted, room)
                _check_whole(whole, room)
                answer.rows, answer.has_more = found.rows, found.has_more
                answer.start_offset = found.start_offset
            except Exception as error:  # noqa: BLE001 - of one bucket
                refuse(answer, error, definition, index)
            return answer

        answers = await self._each_with_room(one, request.buckets, wanted)
        return m.LimitScanResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    def limit_scan_at_once(
        self, context: RequestContext, request: m.LimitScanRequest
    ) -> m.LimitScanResponse | None:
        """The answer from the first rows of a primary-key table that are in memory and published, where nobody's rights
        are checked; None for everything else, errors among it."""
        count, limits = len(request.buckets), self._services.limits
        if (
            request.filter is not None
            or not 0 < count <= _QUICK_BUCKETS_MAX
            or not context.authorizer.is_open
        ):
            return None
        try:
            definition = self._targets.read(context, request.table_id)
            if not definition.is_primary_key_table or not 0 <= request.limit <= limits.limit_scan_rows_max:
                return None
            wanted = reads.Wanted.of(definition, request.schema_id, request.columns)
            self._targets.check_columns(context, definition, wanted)
            check_each_once(definition, request.buckets)
            answers, bytes_max = [], min(limits.answer_bytes_max, reads.FEW_ROWS_BYTES) // count
            for index in request.buckets:
                bucket = self._targets.bucket(definition, index, KeyBucket)
                found = bucket.read_at_once(reads.first_rows_in_memory, request.limit, wanted, bytes_max)
                if found is None:
                    return None
                answers.append(m.LimitScanResult(bucket=index, rows=found.rows))
        except Exception:  # noqa: BLE001 - `limit_scan` meets it too, and says it
            return None
        return m.LimitScanResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    async def count_rows(self, context: RequestContext, request: m.CountRowsRequest) -> m.CountRowsResponse:
        definition = self._targets.read(context, request.table_id)
        check_each_once(definition, request.buckets)
        wanted = await self._wanted(definition, request, request.extremes)
        if wanted.columns is not None or wanted.filter is not None:
            self._targets.check_columns(context, definition, wanted)
        if wanted.columns is not None:
            check_ordered([wanted.schema.columns[index] for index in wanted.columns])

        async def one(index: int) -> m.CountRowsResult:
            answer = m.CountRowsResult(bucket=index)
            try:
                if wanted.columns is not None:
                    found = (
                        await state_extremes(self._targets.bucket(definition, index, KeyBucket), wanted)
                        if definition.is_primary_key_table
                        else await log_extremes(self._whole_log(definition, index), wanted)
                    )
                    answer.count, answer.offset = found.row_count, found.offset
                    answer.value_counts, answer.extremes = (
                        found.value_counts,
                        bytes(encode_ipc(found.result())),
                    )
                elif definition.is_primary_key_table:
                    bucket = self._targets.bucket(definition, index, KeyBucket)
                    answer.count, answer.offset = (
                        await bucket.read(reads.row_count)
                        if wanted.filter is None
                        else await reads.count_matching_rows(bucket, wanted)
                    )
                else:
                    log = self._whole_log(definition, index)
                    answer.count, answer.offset = (
                        await reads.count_log_rows(log)
                        if wanted.filter is None
                        else await reads.count_matching_log_rows(log, wanted.filter)
                    )
            except Exception as error:  # noqa: BLE001 - of one bucket
                refuse(answer, error, definition, index)
            return answer

        return m.CountRowsResponse(buckets=await each_bucket(one, request.buckets))

    async def scan_snapshot(
        self, context: RequestContext, request: m.ScanSnapshotRequest
    ) -> m.ScanSnapshotResponse:
        definition = self._targets.read(context, request.table_id)
        check_key_table(definition)
        client = client_of(context)
        if request.close:
            self._scans.close(request.scan_id, request.table_id, client)
            return m.ScanSnapshotResponse(scan_id=request.scan_id)
        if request.scan_id == m.OPEN_SCAN:
            bucket = self._targets.bucket(definition, request.bucket, KeyBucket)
            wanted = await self._wanted(definition, request, request.columns)
            self._targets.check_columns(context, definition, wanted, _key_ids(definition))
            scan_id = await self._scans.open(bucket, wanted, request, client)
        else:
            scan_id = request.scan_id
        scan, rows, cursor, has_more = await self._scans.next(
            scan_id, request.table_id, client, request.piece, request.max_bytes
        )
        self._targets.check_columns(context, definition, scan.wanted)
        return m.ScanSnapshotResponse(
            scan_id=scan_id,
            log_offset=scan.log_offset,
            has_more=has_more,
            schema_id=scan.wanted.schema.schema_id,
            rows=rows,
            cursor=cursor,
        )

    def _standby(self, table_id: UUID, index: int, staleness_ms_max: int) -> KeptStore | None:
        """Of a bucket that another broker leads, for who takes what is so stale; None: the leader answers."""
        return None if staleness_ms_max < 0 else self._services.standbys.get((table_id, index))

    def _whole_log(self, definition: TableDefinition, index: int) -> LogBucket:
        """For who wants to know something of all of its rows."""
        bucket = self._targets.bucket(definition, index, LogBucket)
        bucket.check_end_known()
        return bucket

    async def _each_with_room(
        self, work: Callable[[Asked, Room], Awaitable[Answer]], buckets: Sequence[Asked], wanted: reads.Wanted
    ) -> list[Answer]:
        """Answer for each bucket, a few at a time, all together with no more bytes than an answer may have. The first
        one has room for a row in any case."""
        left, cost = self._services.limits.answer_bytes_max, wanted.schema.row_cost
        answers: list[Answer] = []
        for start in range(0, len(buckets), _BUCKETS_TOGETHER):
            together = buckets[start : start + _BUCKETS_TOGETHER]
            rooms = [
                Room(left // len(together), cost, must=start + index == 0) for index in range(len(together))
            ]
            answers += await each_bucket(lambda pair: work(*pair), list(zip(together, rooms, strict=True)))
            left = max(0, left - sum(room.used for room in rooms))
            if len(answers) < len(buckets):
                await asyncio.sleep(0)
        return answers

    async def _wanted(
        self,
        definition: TableDefinition,
        request: m.LimitScanRequest | m.CountRowsRequest | m.ScanSnapshotRequest,
        columns: Sequence[int] | None,
    ) -> reads.Wanted:
        return await reads.Wanted.asked(
            self._services, definition, request.schema_id, columns, request.filter
        )


def _key_ids(definition: TableDefinition) -> list[int]:
    """Of the columns that whoever names keys, or ranges of them, learns something about."""
    schema = definition.schema
    return [schema.column(name).id for name in schema.primary_key]


def _check_whole(whole: bool, room: Room) -> None:
    """Raise TableError for a part of an answer that its reader would take for all of it."""
    if whole and room.is_full:
        raise TableError(
            TableErrorCode.ANSWER_TOO_LARGE,
            f"there is room for {room.max_bytes} bytes of rows in the answer, and there are more: ask for fewer at a "
            "time, or with a newer client, which asks for the rest by itself",
        )
