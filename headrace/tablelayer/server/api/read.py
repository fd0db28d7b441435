"""Handlers of requests that read rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from headrace.broker.requests.declaration import RequestContext
from headrace.tablelayer.model.batches.extremes import check_ordered
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages import read as m
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.api.each_bucket import Answer, Asked, check_each_once, each_bucket, refuse
from headrace.tablelayer.server.api.targets import Targets, check_key_table, client_of
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.bucket.log_bucket import LogBucket
from headrace.tablelayer.server.merge.writes import check_insertable
from headrace.tablelayer.server.read import bucket_state as reads
from headrace.tablelayer.server.read import log_rows
from headrace.tablelayer.server.read.extremes import log_extremes, state_extremes
from headrace.tablelayer.server.read.scan_log import scan_log
from headrace.tablelayer.server.read.snapshot_scans import SnapshotScans
from headrace.tablelayer.server.read.wanted import FEW_ROWS_BYTES, Rows, Wanted
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.services import KeptStore, Services

Response = TypeVar("Response")
Later = Callable[[], Awaitable[Response]]
"""The part of a request that has to wait."""

_FIRST_LOOKUP_IN_PARTS = 2
_FIRST_PREFIX_LOOKUP_IN_PARTS = 1
_FIRST_LIMIT_SCAN_IN_PARTS = 2
_QUICK_BUCKETS_MAX = 8  # each one takes some microseconds of the event loop
_BUCKETS_TOGETHER = 4  # the number of threads


class ReadHandlers:
    def __init__(self, services: Services, targets: Targets, scans: SnapshotScans) -> None:
        self._services = services
        self._targets = targets
        self._scans = scans

    def lookup(
        self, context: RequestContext, request: m.LookupRequest
    ) -> m.LookupResponse | Later[m.LookupResponse]:
        """Return the answer for a few keys if the rows are in memory and published; else the part that has to wait."""
        definition = self._targets.read(context, request.table_id)
        check_key_table(definition)
        wanted = Wanted.of(definition, request.schema_id, request.columns)
        self._targets.check_columns(context, definition, wanted, _key_ids(definition))
        limit = self._services.limits.keys_per_lookup_max
        inserts, at_most_ms = request.insert_if_absent, request.staleness_ms_max
        if inserts:
            self._targets.written(context, request.table_id)
            check_insertable(definition)
            at_most_ms = -1
        check_each_once(definition, [part.bucket for part in request.buckets])

        def in_memory(part: m.LookupBucket, room: Room) -> m.LookupResult | None:
            source = self._source(definition, part.bucket, at_most_ms)
            asked = (reads.lookup_in_memory, source.versions, part.keys, wanted, limit, room)
            if isinstance(source, KeyBucket):
                found = source.read_at_once(*asked)
                return None if found is None else _looked_up(source, part, found)
            stale = source.read_at_once(at_most_ms, *asked)
            return None if stale is None else _looked_up(source, part, *stale)

        def respond(answers: list[m.LookupResult]) -> m.LookupResponse:
            return m.LookupResponse(schema_id=wanted.schema.schema_id, buckets=answers)

        if not inserts:
            answers = self._at_once(
                context, in_memory, request.buckets, wanted, self._services.limits.answer_bytes_max
            )
            if answers is not None:
                return respond(answers)
        # Few keys were tried above, unless the caller's rights have to be checked.
        is_tried = not inserts and context.authorizer.is_open
        quick = (
            reads.lookup_in_memory if not is_tried and len(request.buckets) <= _QUICK_BUCKETS_MAX else None
        )
        whole = context.api_version < _FIRST_LOOKUP_IN_PARTS

        async def one(part: m.LookupBucket, room: Room) -> m.LookupResult:
            try:
                source = self._source(definition, part.bucket, at_most_ms)
                asked = (reads.lookup, source.versions, part.keys, wanted, limit, room)
                if isinstance(source, KeyBucket):
                    if inserts:
                        self._targets.check_replicas(definition, source)
                        await source.insert_absent(part.keys, wanted.schema, limit, request.timeout_ms)
                    answer = _looked_up(source, part, await source.read(*asked, quick=quick))
                else:
                    answer = _looked_up(source, part, *await source.read(at_most_ms, *asked, quick=quick))
                _check_whole(whole, room)
            except Exception as error:  # noqa: BLE001 - reported for this bucket
                answer = m.LookupResult(bucket=part.bucket)
                refuse(answer, error, definition, part.bucket)
            return answer

        async def rest() -> m.LookupResponse:
            return respond(await self._each_with_room(one, request.buckets, wanted))

        return rest

    async def prefix_lookup(
        self, context: RequestContext, request: m.PrefixLookupRequest
    ) -> m.PrefixLookupResponse:
        definition = self._targets.read(context, request.table_id)
        check_key_table(definition)
        wanted = Wanted.of(definition, request.schema_id, request.columns)
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
                source = self._source(definition, part.bucket, request.staleness_ms_max)
                asked = (
                    reads.prefix_lookup, source.versions, prefix_length, part.prefixes, wanted, limit, room,
                    part.after,
                )  # fmt: skip
                if isinstance(source, KeyBucket):
                    found = await source.read(*asked)
                else:
                    at_most_ms = request.staleness_ms_max
                    found, (answer.staleness_ms, answer.applied_offset) = await source.read(
                        at_most_ms, *asked
                    )
                _check_whole(whole, room)
                answer.counts, answer.rows, answer.cursor = found
                source.keys_looked_up += len(answer.counts)
            except Exception as error:  # noqa: BLE001 - reported for this bucket
                refuse(answer, error, definition, part.bucket)
            return answer

        answers = await self._each_with_room(one, request.buckets, wanted)
        return m.PrefixLookupResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    async def scan_log(self, context: RequestContext, request: m.ScanLogRequest) -> m.ScanLogResponse:
        definition = self._targets.read(context, request.table_id)
        check_each_once(definition, [part.bucket for part in request.buckets])
        check = partial(self._targets.check_columns, context, definition)
        return await scan_log(self._services, definition, request, check)

    def limit_scan(
        self, context: RequestContext, request: m.LimitScanRequest
    ) -> m.LimitScanResponse | Later[m.LimitScanResponse]:
        """Return the first rows of a primary-key table if they are in memory and published; else the part that has to
        wait.
        """
        definition = self._targets.read(context, request.table_id)
        if request.filter is not None or not definition.is_primary_key_table:
            return partial(self._read_and_scan, context, definition, request)
        wanted = Wanted.of(definition, request.schema_id, request.columns)
        self._check_limit_scan(context, definition, request, wanted)

        def in_memory(index: int, room: Room) -> m.LimitScanResult | None:
            bucket = self._targets.bucket(definition, index, KeyBucket)
            found = bucket.read_at_once(reads.first_rows_in_memory, request.limit, wanted, room.max_bytes)
            return None if found is None else m.LimitScanResult(bucket=index, rows=found.rows)

        bytes_max = min(self._services.limits.answer_bytes_max, FEW_ROWS_BYTES)
        answers = self._at_once(context, in_memory, request.buckets, wanted, bytes_max)
        if answers is not None:
            return m.LimitScanResponse(schema_id=wanted.schema.schema_id, buckets=answers)
        return partial(self._scan, context, definition, request, wanted)

    async def _read_and_scan(
        self, context: RequestContext, definition: StoredTable, request: m.LimitScanRequest
    ) -> m.LimitScanResponse:
        wanted = await self._wanted(definition, request, request.columns)
        self._check_limit_scan(context, definition, request, wanted)
        return await self._scan(context, definition, request, wanted)

    def _check_limit_scan(
        self,
        context: RequestContext,
        definition: StoredTable,
        request: m.LimitScanRequest,
        wanted: Wanted,
    ) -> None:
        self._targets.check_columns(context, definition, wanted)
        rows_max = self._services.limits.limit_scan_rows_max
        if not 0 <= request.limit <= rows_max:
            raise TableError(
                TableErrorCode.INVALID_ROW, f"limit is {request.limit}; it must be from 0 to {rows_max}"
            )
        check_each_once(definition, request.buckets)

    async def _scan(
        self,
        context: RequestContext,
        definition: StoredTable,
        request: m.LimitScanRequest,
        wanted: Wanted,
    ) -> m.LimitScanResponse:
        limit, whole = request.limit, context.api_version < _FIRST_LIMIT_SCAN_IN_PARTS

        async def one(index: int, room: Room) -> m.LimitScanResult:
            answer = m.LimitScanResult(bucket=index)
            try:
                if not definition.is_primary_key_table:
                    log = self._whole_log(definition, index)
                    found = await log_rows.last_rows(log, limit, wanted, room, request.before)
                elif wanted.filter is None:
                    bucket = self._targets.bucket(definition, index, KeyBucket)
                    found = await bucket.read(reads.first_rows, bucket.versions, limit, wanted, room)
                else:
                    bucket = self._targets.bucket(definition, index, KeyBucket)
                    found = await reads.first_matching_rows(bucket, limit, wanted, room)
                _check_whole(whole, room)
                answer.rows, answer.has_more = found.rows, found.has_more
                answer.start_offset = found.start_offset
            except Exception as error:  # noqa: BLE001 - reported for this bucket
                refuse(answer, error, definition, index)
            return answer

        answers = await self._each_with_room(one, request.buckets, wanted)
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
                        await log_rows.count_log_rows(log)
                        if wanted.filter is None
                        else await log_rows.count_matching_log_rows(log, wanted.filter)
                    )
            except Exception as error:  # noqa: BLE001 - reported for this bucket
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

    def _source(self, definition: StoredTable, index: int, staleness_ms_max: int) -> KeyBucket | KeptStore:
        """Return the standby store of a bucket, if there is one and the reader accepts stale rows; else the bucket.

        Raises KafkaError if this broker does not lead the bucket.
        """
        standby = None if staleness_ms_max < 0 else self._services.standbys.get((definition.table_id, index))
        return self._targets.bucket(definition, index, KeyBucket) if standby is None else standby

    def _at_once(
        self,
        context: RequestContext,
        in_memory: Callable[[Asked, Room], Answer | None],
        buckets: Sequence[Asked],
        wanted: Wanted,
        bytes_max: int,
    ) -> list[Answer] | None:
        """Return the answers for a few buckets without waiting, with at most `bytes_max` bytes of rows together.

        Returns None if a bucket has to wait or fails, or if the caller's rights have to be checked.
        """
        count = len(buckets)
        if not 0 < count <= _QUICK_BUCKETS_MAX or not context.authorizer.is_open:
            return None
        answers, cost = [], wanted.schema.row_cost
        try:
            for index, asked in enumerate(buckets):
                answer = in_memory(asked, Room(bytes_max // count, cost, must=index == 0))
                if answer is None:
                    return None
                answers.append(answer)
        except Exception:  # noqa: BLE001 - the path that waits meets and reports the error
            return None
        return answers

    def _whole_log(self, definition: StoredTable, index: int) -> LogBucket:
        """Return a bucket for a reader that needs all of its rows. Raises KafkaError if its end is not known."""
        bucket = self._targets.bucket(definition, index, LogBucket)
        bucket.check_end_known()
        return bucket

    async def _each_with_room(
        self, work: Callable[[Asked, Room], Awaitable[Answer]], buckets: Sequence[Asked], wanted: Wanted
    ) -> list[Answer]:
        """Return an answer for each bucket; together they fit into the maximum size of an answer.

        A few buckets run at a time. The first one has room for at least one row.
        """
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
        definition: StoredTable,
        request: m.LimitScanRequest | m.CountRowsRequest | m.ScanSnapshotRequest,
        columns: Sequence[int] | None,
    ) -> Wanted:
        return await Wanted.asked(self._services, definition, request.schema_id, columns, request.filter)


def _key_ids(definition: StoredTable) -> list[int]:
    """Return the ids of the key columns: a reader that names keys or key ranges learns something about them."""
    schema = definition.schema
    return [schema.column(name).id for name in schema.primary_key]


def _looked_up(
    source: KeyBucket | KeptStore,
    part: m.LookupBucket,
    found: tuple[bytes, Rows],
    staleness: tuple[int, int] | None = None,
) -> m.LookupResult:
    answer = m.LookupResult(bucket=part.bucket)
    answer.found, answer.rows = found
    source.keys_looked_up += len(answer.found)
    if staleness is not None:
        answer.staleness_ms, answer.applied_offset = staleness
    return answer


def _check_whole(whole: bool, room: Room) -> None:
    """Raise TableError if the client would take part of an answer for all of it."""
    if whole and room.is_full:
        raise TableError(
            TableErrorCode.ANSWER_TOO_LARGE,
            f"the rows take more than the {room.max_bytes} bytes that an answer has room for: ask for fewer rows at a "
            "time, or use a newer client, which asks for the rest by itself",
        )
