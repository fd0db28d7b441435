"""The handlers of the table extension's APIs: from a message to the catalog, the buckets or the lake, and back.

Errors of a whole request are in the response's own fields, errors of a bucket in that bucket's part; the others
of the request are served all the same. With acks=0 there is no answer, and an error closes the connection, as
in Kafka.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from broker.api.declaration import RequestContext
from broker.log.partition_log import AppendInfo
from broker.net.reply import CloseConnection
from protocol.errors import DecodeError, ErrorCode, KafkaError
from protocol.schema import ApiMessage
from tablelayer.model import messages as m
from tablelayer.model.batches.extremes import check_ordered
from tablelayer.model.batches.ipc import encode_ipc
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.lake.offsets import in_order
from tablelayer.model.one_line import one_line
from tablelayer.model.table.definition import DEFAULT_DATABASE, TableDefinition, TablePath
from tablelayer.model.table.options import MergeEngine
from tablelayer.server.bucket.bucket import TableBucket
from tablelayer.server.bucket.extremes import log_extremes, state_extremes
from tablelayer.server.bucket.key_bucket import KeyBucket
from tablelayer.server.bucket.log_bucket import LogBucket
from tablelayer.server.catalog import Catalog
from tablelayer.server.lake.catalogs import properties_for
from tablelayer.server.lake.machine import Candidate
from tablelayer.server.lake.subjects import LakeSubjects, Subject
from tablelayer.server.lake.tiering import LakeRounds
from tablelayer.server.merge.writes import check_insertable
from tablelayer.server.read import bucket_state as reads
from tablelayer.server.read.scan_log import scan_log
from tablelayer.server.read.snapshot_scans import SnapshotScans
from tablelayer.server.room import Room
from tablelayer.server.services import Services
from tablelayer.server.staged.commits import StagedCommits
from tablelayer.server.staged.staging import Chunk, Place

logger = logging.getLogger("headrace.tables")

Bucket = TypeVar("Bucket", bound=TableBucket)
Handler = Callable[[RequestContext, Any], Awaitable["ApiMessage | None"]]
_WORKER_LENGTH_MAX = 200
"""Of the name of a worker and of what it says it does: a line of a listing."""
_FAILURE_LENGTH_MAX = 2000
_KNOWS_CLIENT = "knows_client"
_FIRST_LOOKUP_IN_PARTS = 2
_FIRST_PREFIX_LOOKUP_IN_PARTS = 1
_FIRST_LIMIT_SCAN_IN_PARTS = 2
_QUICK_BUCKETS_MAX = 8  # each takes the event loop for some microseconds
_PARTS_TOGETHER = 4  # as many as there are threads
_BEGUN_TOGETHER = 16
"""Parts of a request in one turn of the event loop: some milliseconds."""
Method = TypeVar("Method", bound=Callable[..., Any])


def _knowing_its_client(method: Method) -> Method:
    """The handler takes the request's context too."""
    setattr(method, _KNOWS_CLIENT, True)
    return method


class Handlers:
    def __init__(
        self,
        services: Services,
        catalog: Catalog,
        lake: LakeRounds,
        subjects: LakeSubjects,
        scans: SnapshotScans,
        staged: StagedCommits,
    ) -> None:
        self._services = services
        self._catalog = catalog
        self._lake = lake
        self._subjects = subjects
        self._scans = scans
        self._staged = staged

    def all(self) -> list[Handler]:
        """One for each of `messages.REQUESTS`, in that order."""
        handlers: Sequence[Callable[..., Awaitable[ApiMessage | None]]] = (
            self._create_database, self._drop_database, self._list_databases,
            self._create_table, self._drop_table, self._list_tables, self._describe_table,
            self._alter_table, self._describe_database, self._alter_database,
            self._append_rows, self._put_rows, self._lookup, self._prefix_lookup, self._scan_log,
            self._limit_scan, self._count_rows, self._scan_snapshot,
            self._lake_begin, self._lake_heartbeat, self._lake_commit, self._describe_lake,
            self._stage_rows, self._commit_staged, self._abort_staged,
            self._create_partition, self._drop_partition, self._list_partitions,
            self._lake_end, self._lake_finish, self._list_lake,
        )  # fmt: skip
        return [
            _answering(handler, response) for response, handler in zip(m.RESPONSES, handlers, strict=True)
        ]

    # -- catalog -------------------------------------------------------------------------------------------

    async def _create_database(self, request: m.CreateDatabaseRequest) -> ApiMessage:
        await self._catalog.create_database(
            request.name,
            ignore_if_exists=request.ignore_if_exists,
            comment=request.comment,
            properties={each.key: each.value for each in request.properties},
        )
        return m.CreateDatabaseResponse()

    async def _drop_database(self, request: m.DropDatabaseRequest) -> ApiMessage:
        await self._catalog.drop_database(
            request.name, ignore_if_not_exists=request.ignore_if_not_exists, cascade=request.cascade
        )
        return m.DropDatabaseResponse()

    async def _list_databases(self, request: m.ListDatabasesRequest) -> ApiMessage:
        return m.ListDatabasesResponse(databases=self._catalog.databases())

    async def _create_table(self, request: m.CreateTableRequest) -> ApiMessage:
        table_id = await self._catalog.create_table(
            request.definition, ignore_if_exists=request.ignore_if_exists
        )
        return m.CreateTableResponse(table_id=table_id)

    async def _drop_table(self, request: m.DropTableRequest) -> ApiMessage:
        path = TablePath(request.database, request.table)
        await self._catalog.drop_table(path, ignore_if_not_exists=request.ignore_if_not_exists)
        return m.DropTableResponse()

    async def _list_tables(self, request: m.ListTablesRequest) -> ApiMessage:
        return m.ListTablesResponse(tables=self._catalog.list_tables(request.database))

    async def _describe_table(self, request: m.DescribeTableRequest) -> ApiMessage:
        definition = self._catalog.by_path(TablePath(request.database, request.table))
        assert definition.table_id is not None
        text = await self._services.run(definition.to_json)
        return m.DescribeTableResponse(table_id=definition.table_id, definition=text)

    async def _alter_table(self, request: m.AlterTableRequest) -> ApiMessage:
        definition = await self._catalog.alter_table(
            TablePath(request.database, request.table),
            request.changes,
            expected_schema_id=request.expected_schema_id,
        )
        return m.AlterTableResponse(definition=await self._services.run(definition.to_json))

    async def _describe_database(self, request: m.DescribeDatabaseRequest) -> ApiMessage:
        database = self._catalog.database(request.name)
        return m.DescribeDatabaseResponse(
            created_at_ms=database.created_at_ms,
            table_count=len(self._catalog.tables(request.name)),
            comment=database.comment,
            properties=[
                m.Property(key=key, value=value) for key, value in sorted(database.properties.items())
            ],
        )

    async def _alter_database(self, request: m.AlterDatabaseRequest) -> ApiMessage:
        await self._catalog.alter_database(
            request.name,
            comment=request.comment,
            set_properties={each.key: each.value for each in request.set_properties},
            reset_properties=request.reset_properties,
        )
        return m.AlterDatabaseResponse()

    # -- partitions ----------------------------------------------------------------------------------------

    async def _create_partition(self, request: m.CreatePartitionRequest) -> ApiMessage:
        definition = self._catalog.by_id(request.table_id)
        partition = await self._catalog.create_partition(
            definition, request.name, ignore_if_exists=request.ignore_if_exists
        )
        assert partition.table_id is not None
        return m.CreatePartitionResponse(partition_id=partition.table_id, bucket_count=partition.bucket_count)

    async def _drop_partition(self, request: m.DropPartitionRequest) -> ApiMessage:
        definition = self._catalog.by_id(request.table_id)
        await self._catalog.drop_partition(
            definition, request.name, ignore_if_not_exists=request.ignore_if_not_exists
        )
        return m.DropPartitionResponse()

    async def _list_partitions(self, request: m.ListPartitionsRequest) -> ApiMessage:
        found = []
        for each in self._catalog.partitions(self._catalog.by_id(request.table_id)):
            assert each.table_id is not None
            assert each.path.partition is not None
            found.append(
                m.ListedPartition(
                    name=each.path.partition, partition_id=each.table_id, bucket_count=each.bucket_count
                )
            )
        return m.ListPartitionsResponse(partitions=found)

    # -- writing -------------------------------------------------------------------------------------------

    async def _append_rows(self, request: m.AppendRowsRequest) -> ApiMessage | None:
        definition = self._with_rows(request.table_id)
        if definition.is_primary_key_table:
            raise TableError(
                TableErrorCode.NOT_A_LOG_TABLE,
                f"table {definition.path} has a primary key: write upserts and deletes, not appends",
            )

        async def append(part: m.WriteBucket) -> AppendInfo:
            bucket = self._bucket(definition, part.bucket, LogBucket)
            return await bucket.append(part.batch, request.acks, request.timeout_ms)

        return await self._write(definition, request, append, m.AppendRowsResponse)

    async def _put_rows(self, request: m.PutRowsRequest) -> ApiMessage | None:
        definition = self._key_table(request.table_id)
        targets = None if request.target_columns is None else tuple(request.target_columns)
        if request.write_mode not in (m.WRITE_MODE_MERGE, m.WRITE_MODE_OVERWRITE):
            raise TableError(TableErrorCode.INVALID_ROW, f"write mode {request.write_mode} does not exist")
        overwrite = request.write_mode == m.WRITE_MODE_OVERWRITE
        if overwrite and definition.settings.merge_engine in (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED):
            raise TableError(
                TableErrorCode.INVALID_ROW,
                f"table {definition.path} has the merge engine '{definition.settings.merge_engine}': "
                "its rows cannot be overwritten",
            )

        async def put(part: m.WriteBucket) -> AppendInfo:
            bucket = self._bucket(definition, part.bucket, KeyBucket)
            return await bucket.put(
                part.batch, targets, request.acks, request.timeout_ms, overwrite=overwrite
            )

        return await self._write(definition, request, put, m.PutRowsResponse)

    async def _write(
        self,
        definition: TableDefinition,
        request: Any,
        write: Callable[[m.WriteBucket], Awaitable[AppendInfo]],
        response: type[Any],
    ) -> ApiMessage | None:
        acks = request.acks
        if acks not in (-1, 0, 1):
            raise KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; 0, 1 and -1 (all) are possible"
            )

        async def one(part: m.WriteBucket) -> m.WrittenBucket:
            answer = m.WrittenBucket(bucket=part.bucket)
            try:
                if part.batch is None:
                    raise KafkaError(ErrorCode.INVALID_RECORD, "there is no batch")
                if acks == -1:
                    self._check_replicas(definition, part.bucket)
                info = await write(part)
            except Exception as error:  # noqa: BLE001 - of one bucket: the others have their own answers
                _refuse(answer, error, definition, part.bucket)
            else:
                answer.base_offset, answer.end_offset = info.base_offset, info.last_offset + 1
            return answer

        answers = await _each(one, request.buckets)
        if acks != 0:
            answer: ApiMessage = response(buckets=answers)
            return answer
        for each in answers:
            if each.error_code:
                raise CloseConnection(
                    f"a write with acks=0 to table {definition.path} failed: {each.error_message}"
                )
        return None

    def _check_replicas(self, definition: TableDefinition, bucket: int) -> None:
        """R11: before the append."""
        partition = self._services.context.partition(definition.path.topic, bucket)
        needed = partition.log.config.min_insync_replicas
        if needed > 1:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"min.insync.replicas is {needed}, and 1 replica is in sync"
            )

    @_knowing_its_client
    async def _stage_rows(self, context: RequestContext, request: m.StageRowsRequest) -> ApiMessage:
        definition = self._catalog.by_id(request.table_id)
        targets = None if request.target_columns is None else tuple(request.target_columns)
        if self._staged.is_decided(request.table_id, request.writer, request.batch_id):
            return m.StageRowsResponse(decided=True)
        for chunk in request.chunks:
            await self._staged.stage(
                definition,
                request.writer,
                request.batch_id,
                request.attempt,
                _place(chunk),
                chunk.number,
                Chunk(targets, memoryview(chunk.batch or b"")),
                context.client_host,
            )
        return m.StageRowsResponse()

    async def _commit_staged(self, request: m.CommitStagedRequest) -> ApiMessage:
        definition = self._catalog.by_id(request.table_id)
        attempts = [
            (each.attempt, {_place(entry): entry.count for entry in each.chunks}) for each in request.attempts
        ]
        await self._staged.commit(
            definition, request.writer, request.batch_id, attempts, single=request.single
        )
        return m.CommitStagedResponse()

    async def _abort_staged(self, request: m.AbortStagedRequest) -> ApiMessage:
        self._catalog.by_id(request.table_id)
        await self._staged.abort(request.table_id, request.writer, request.batch_id, request.attempts)
        return m.AbortStagedResponse()

    # -- reading -------------------------------------------------------------------------------------------

    @_knowing_its_client
    async def _lookup(self, context: RequestContext, request: m.LookupRequest) -> ApiMessage:
        definition = self._key_table(request.table_id)
        wanted = reads.Wanted.of(definition, request.schema_id, request.columns)
        limit = self._services.limits.keys_per_lookup_max
        if request.insert_if_absent:
            check_insertable(definition)
        _check_each_once(definition, [part.bucket for part in request.buckets])
        quick = reads.lookup_in_memory if len(request.buckets) <= _QUICK_BUCKETS_MAX else None
        whole = context.api_version < _FIRST_LOOKUP_IN_PARTS

        async def one(part: m.LookupBucket, room: Room) -> m.LookupResult:
            answer = m.LookupResult(bucket=part.bucket)
            try:
                bucket = self._bucket(definition, part.bucket, KeyBucket)
                if request.insert_if_absent:
                    self._check_replicas(definition, part.bucket)
                    await bucket.insert_absent(part.keys, wanted.schema, limit, request.timeout_ms)
                found = await bucket.read(
                    reads.lookup, bucket.versions, part.keys, wanted, limit, room, quick=quick
                )
                _check_whole(whole, room)
                answer.found, answer.rows = found
            except Exception as error:  # noqa: BLE001 - of one bucket
                _refuse(answer, error, definition, part.bucket)
            return answer

        answers = await self._each_with_room(one, request.buckets, wanted)
        return m.LookupResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    @_knowing_its_client
    async def _prefix_lookup(self, context: RequestContext, request: m.PrefixLookupRequest) -> ApiMessage:
        definition = self._key_table(request.table_id)
        wanted = reads.Wanted.of(definition, request.schema_id, request.columns)
        limit = self._services.limits.keys_per_lookup_max
        if not definition.allows_prefix_lookup:
            raise TableError(
                TableErrorCode.INVALID_KEY,
                f"table {definition.path} has no prefix lookup: its bucket key ({', '.join(definition.bucket_key)}) "
                f"is not a proper prefix of its primary key ({', '.join(definition.schema.primary_key)})",
            )
        _check_each_once(definition, [part.bucket for part in request.buckets])
        whole = context.api_version < _FIRST_PREFIX_LOOKUP_IN_PARTS
        prefix_length = len(definition.key_prefix)

        async def one(part: m.PrefixLookupBucket, room: Room) -> m.PrefixLookupResult:
            answer = m.PrefixLookupResult(bucket=part.bucket)
            try:
                bucket = self._bucket(definition, part.bucket, KeyBucket)
                found = await bucket.read(
                    reads.prefix_lookup, bucket.versions, prefix_length, part.prefixes, wanted, limit, room,
                    part.after,
                )  # fmt: skip
                _check_whole(whole, room)
                answer.counts, answer.rows, answer.cursor = found
            except Exception as error:  # noqa: BLE001 - of one bucket
                _refuse(answer, error, definition, part.bucket)
            return answer

        answers = await self._each_with_room(one, request.buckets, wanted)
        return m.PrefixLookupResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    async def _scan_log(self, request: m.ScanLogRequest) -> ApiMessage:
        definition = self._with_rows(request.table_id)
        _check_each_once(definition, [part.bucket for part in request.buckets])
        return await scan_log(self._services, definition, request)

    @_knowing_its_client
    async def _limit_scan(self, context: RequestContext, request: m.LimitScanRequest) -> ApiMessage:
        definition = self._with_rows(request.table_id)
        wanted = await self._wanted(definition, request, request.columns)
        limit = request.limit
        if not 0 <= limit <= self._services.limits.limit_scan_rows_max:
            raise TableError(
                TableErrorCode.INVALID_ROW,
                f"limit is {limit}; it must be from 0 to {self._services.limits.limit_scan_rows_max}",
            )
        _check_each_once(definition, request.buckets)
        whole = context.api_version < _FIRST_LIMIT_SCAN_IN_PARTS

        async def one(index: int, room: Room) -> m.LimitScanResult:
            answer = m.LimitScanResult(bucket=index)
            try:
                if not definition.is_primary_key_table:
                    log = self._bucket(definition, index, LogBucket)
                    found = await reads.last_rows(log, limit, wanted, room, request.before)
                elif wanted.filter is None:
                    bucket = self._bucket(definition, index, KeyBucket)
                    found = await bucket.read(reads.first_rows, bucket.versions, limit, wanted, room)
                else:
                    bucket = self._bucket(definition, index, KeyBucket)
                    found = await reads.first_matching_rows(bucket, limit, wanted, room)
                _check_whole(whole, room)
                answer.rows, answer.has_more = found.rows, found.has_more
                answer.start_offset = found.start_offset
            except Exception as error:  # noqa: BLE001 - of one bucket
                _refuse(answer, error, definition, index)
            return answer

        answers = await self._each_with_room(one, request.buckets, wanted)
        return m.LimitScanResponse(schema_id=wanted.schema.schema_id, buckets=answers)

    async def _each_with_room(
        self, work: Callable[[Part, Room], Awaitable[Answer]], parts: Sequence[Part], wanted: reads.Wanted
    ) -> list[Answer]:
        """Answer each part, a few at a time, all together with no more bytes than an answer may have. The first one
        has room for a row in any case."""
        left, cost = self._services.limits.answer_bytes_max, wanted.schema.row_cost
        answers: list[Answer] = []
        for start in range(0, len(parts), _PARTS_TOGETHER):
            together = parts[start : start + _PARTS_TOGETHER]
            rooms = [
                Room(left // len(together), cost, must=start + index == 0) for index in range(len(together))
            ]
            answers += await _each(lambda pair: work(*pair), list(zip(together, rooms, strict=True)))
            left = max(0, left - sum(room.used for room in rooms))
            await asyncio.sleep(0)
        return answers

    async def _count_rows(self, request: m.CountRowsRequest) -> ApiMessage:
        definition = self._with_rows(request.table_id)
        _check_each_once(definition, request.buckets)
        wanted = await self._wanted(definition, request, request.extremes)
        if wanted.columns is not None:
            check_ordered([wanted.schema.columns[index] for index in wanted.columns])

        async def one(index: int) -> m.CountRowsResult:
            answer = m.CountRowsResult(bucket=index)
            try:
                if wanted.columns is not None:
                    found = (
                        await state_extremes(self._bucket(definition, index, KeyBucket), wanted)
                        if definition.is_primary_key_table
                        else await log_extremes(self._bucket(definition, index, LogBucket), wanted)
                    )
                    answer.count, answer.offset = found.row_count, found.offset
                    answer.value_counts, answer.extremes = (
                        found.value_counts,
                        bytes(encode_ipc(found.result())),
                    )
                elif definition.is_primary_key_table:
                    bucket = self._bucket(definition, index, KeyBucket)
                    answer.count, answer.offset = (
                        await bucket.read(reads.row_count)
                        if wanted.filter is None
                        else await reads.count_matching_rows(bucket, wanted)
                    )
                else:
                    log = self._bucket(definition, index, LogBucket)
                    answer.count, answer.offset = (
                        await reads.count_log_rows(log)
                        if wanted.filter is None
                        else await reads.count_matching_log_rows(log, wanted.filter)
                    )
            except Exception as error:  # noqa: BLE001 - of one bucket
                _refuse(answer, error, definition, index)
            return answer

        return m.CountRowsResponse(buckets=await _each(one, request.buckets))

    @_knowing_its_client
    async def _scan_snapshot(self, context: RequestContext, request: m.ScanSnapshotRequest) -> ApiMessage:
        definition = self._key_table(request.table_id)
        client = context.client_host
        if request.close:
            self._scans.close(request.scan_id, request.table_id, client)
            return m.ScanSnapshotResponse(scan_id=request.scan_id)
        if request.scan_id == m.OPEN_SCAN:
            bucket = self._bucket(definition, request.bucket, KeyBucket)
            wanted = await self._wanted(definition, request, request.columns)
            scan_id = await self._scans.open(bucket, wanted, request, client)
        else:
            scan_id = request.scan_id
        scan, rows, cursor, has_more = await self._scans.next(
            scan_id, request.table_id, client, request.piece, request.max_bytes
        )
        return m.ScanSnapshotResponse(
            scan_id=scan_id,
            log_offset=scan.log_offset,
            has_more=has_more,
            schema_id=scan.wanted.schema.schema_id,
            rows=rows,
            cursor=cursor,
        )

    # -- lake ----------------------------------------------------------------------------------------------

    @_knowing_its_client
    async def _lake_begin(self, context: RequestContext, request: m.LakeBeginRequest) -> ApiMessage:
        if request.topic is not None:
            subjects = [self._subjects.by_topic(request.topic)]
        elif request.table is not None:
            path = TablePath(request.database or DEFAULT_DATABASE, request.table)
            subjects = [self._subjects.by_path(path)]
        else:
            subjects = self._subjects.all_tiered()
            if context.api_version == 0:  # it cannot be told of the others
                subjects = [each for each in subjects if _is_simple(each)]
        worker = one_line(request.worker, _WORKER_LENGTH_MAX)
        by_id = {each.table_id: each for each in subjects}
        candidates = [
            Candidate(each.table_id, each.freshness_ms)
            for each in subjects
            if request.force or self._subjects.has_more(each)
        ]
        granted = await self._lake.begin(worker, candidates, force=request.force)
        if granted is None:
            return m.LakeBeginResponse(granted=False, lease_ms=self._lake.lease_ms)
        table_id, epoch = granted
        subject = by_id[table_id]
        logger.info("tiering round %d of %s for %s", epoch, subject.name, worker)
        answer = m.LakeBeginResponse(
            granted=True, table_id=table_id, epoch=epoch, lease_ms=self._lake.lease_ms
        )
        if subject.definition is None:
            answer.topic = subject.name
        else:
            path = subject.definition.path
            answer.database, answer.table = path.database, path.table
        return answer

    async def _lake_heartbeat(self, request: m.LakeHeartbeatRequest) -> ApiMessage:
        self._subjects.tiered_by_id(request.table_id)
        doing = one_line(request.doing, _WORKER_LENGTH_MAX)
        finish = self._lake.heartbeat(request.table_id, request.epoch, request.changes, doing)
        return m.LakeHeartbeatResponse(finish=finish)

    async def _lake_commit(self, request: m.LakeCommitRequest) -> ApiMessage:
        subject = self._subjects.tiered_by_id(request.table_id)
        existing = {place for place, _ in self._subjects.places(subject)}
        offsets = {entry.place: entry.offset for entry in request.offsets}
        # A partition that was dropped while its rows were tiered is no mistake.
        unknown = [place for place in offsets if isinstance(place, int) and place not in existing]
        if unknown:
            raise TableError(TableErrorCode.INVALID_TABLE, f"{subject.name} has no bucket {unknown[0]}")
        await self._lake.commit(request.table_id, request.epoch, request.snapshot_id, offsets, existing)
        return m.LakeCommitResponse()

    async def _lake_end(self, request: m.LakeEndRequest) -> ApiMessage:
        subject = self._subjects.by_id(request.table_id)
        failure = None if request.failure is None else one_line(request.failure, _FAILURE_LENGTH_MAX)
        self._lake.give_back(request.table_id, request.epoch, failure)
        if failure is not None:
            failed = "tiering round %d of %s failed: %s"
            logger.warning(failed, request.epoch, subject.name, failure)
        return m.LakeEndResponse()

    async def _lake_finish(self, request: m.LakeFinishRequest) -> ApiMessage:
        self._subjects.tiered_by_id(request.table_id)
        return m.LakeFinishResponse(running=self._lake.finish(request.table_id))

    @_knowing_its_client
    async def _describe_lake(self, context: RequestContext, request: m.DescribeLakeRequest) -> ApiMessage:
        subject = self._subjects.by_id(request.table_id)
        if context.api_version == 0 and subject.definition is not None and subject.definition.is_partitioned:
            raise TableError(
                TableErrorCode.PARTITION_NEEDED,
                f"the lake of {subject.name} is described by partition, which this client does not know",
            )
        record = self._lake.state(request.table_id)
        running, trouble = self._lake.round_of(request.table_id), self._lake.trouble(request.table_id)
        clock = self._services.context.clock
        progress = self._subjects.progress(subject)
        return m.DescribeLakeResponse(
            enabled=subject.enabled,
            format=subject.format,
            snapshot_id=record.snapshot_id,
            epoch=record.epoch,
            committed_at_ms=record.committed_at_ms,
            offsets=[m.LakeOffset.of(place, offset) for place, offset in in_order(record.offsets)],
            properties=properties_for(self._services.context.config, request.token),
            ends=[m.LakeOffset.of(place, offset) for place, offset in in_order(progress.ends)],
            freshness_ms=subject.freshness_ms,
            worker=None if running is None else running.worker,
            doing="" if running is None else running.doing,
            changes=0 if running is None else running.changes,
            round_ms=0 if running is None else max(0, clock.time_ms() - running.started.time_ms),
            failures=trouble.failures,
            retry_in_ms=self._lake.retry_in_ms(request.table_id),
            failure=trouble.error,
            commits=record.commits,
            behind_ms=progress.behind_ms,
        )

    async def _list_lake(self, request: m.ListLakeRequest) -> ApiMessage:
        listed = []
        for subject in self._subjects.all_tiered():
            progress, record = self._subjects.progress(subject), self._lake.state(subject.table_id)
            running, trouble = self._lake.round_of(subject.table_id), self._lake.trouble(subject.table_id)
            entry = m.ListedLake(
                table_id=subject.table_id,
                name=subject.name,
                is_topic=subject.definition is None,
                format=subject.format,
                snapshot_id=record.snapshot_id,
                committed_at_ms=record.committed_at_ms,
                freshness_ms=subject.freshness_ms,
                behind=progress.behind,
                behind_ms=progress.behind_ms,
                commits=record.commits,
                failures=trouble.failures,
                retry_in_ms=self._lake.retry_in_ms(subject.table_id),
                failure=trouble.error,
            )
            if running is not None:
                entry.worker, entry.doing, entry.changes = running.worker, running.doing, running.changes
                now_ms = self._services.context.clock.time_ms()
                entry.round_ms = max(0, now_ms - running.started.time_ms)
            listed.append(entry)
            await asyncio.sleep(0)  # there may be many
        return m.ListLakeResponse(entries=listed)

    # -- inside --------------------------------------------------------------------------------------------

    async def _wanted(
        self, definition: TableDefinition, request: Any, columns: Sequence[int] | None
    ) -> reads.Wanted:
        return await reads.Wanted.asked(
            self._services, definition, request.schema_id, columns, request.filter
        )

    def _with_rows(self, table_id: Any) -> TableDefinition:
        """A table or a partition; of a partitioned table only the partitions have rows."""
        definition = self._catalog.by_id(table_id)
        if definition.is_partitioned:
            raise TableError(
                TableErrorCode.PARTITION_NEEDED,
                f"table {definition.path} is partitioned: its rows are read and written by partition, "
                f"such as {definition.path}.{'.'.join(definition.partition_keys)}; this client does not know how",
            )
        return definition

    def _key_table(self, table_id: Any) -> TableDefinition:
        """R16."""
        definition = self._with_rows(table_id)
        if not definition.is_primary_key_table:
            raise TableError(
                TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
                f"table {definition.path} is a log table: it has no keys to write or look up by",
            )
        return definition

    def _bucket(self, definition: TableDefinition, index: int, kind: type[Bucket]) -> Bucket:
        hooks: object = self._services.context.partition(definition.path.topic, index).hooks
        if not isinstance(hooks, kind):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"bucket {index} of {definition.path} is not served"
            )
        hooks.check_open()
        return hooks


def _answering(handler: Callable[..., Awaitable[ApiMessage | None]], response: type[Any]) -> Handler:
    """A handler of the broker; errors of tables become the response's own."""
    knows_client = getattr(handler, _KNOWS_CLIENT, False)

    @functools.wraps(handler)
    async def answer(context: RequestContext, request: Any) -> ApiMessage | None:
        try:
            return await (handler(context, request) if knows_client else handler(request))
        except (TableError, KafkaError) as error:
            if getattr(request, "acks", -1) == 0:
                raise CloseConnection(f"a write with acks=0 failed: {error.message}") from None
            if isinstance(error, KafkaError):
                raise
            failed: ApiMessage = response(error_code=int(error.code), error_message=error.message)
            return failed

    return answer


Part = TypeVar("Part")
Answer = TypeVar("Answer")


async def _each(work: Callable[[Part], Awaitable[Answer]], parts: Iterable[Part]) -> list[Answer]:
    """The answers to the parts of a request, in their order. All are under way at once, begun a few at a time: whoever
    names thousands of buckets does not hold up the event loop."""
    listed = list(parts)
    if len(listed) == 1:
        return [await work(listed[0])]

    async def one(part: Part) -> Answer:
        return await work(part)

    begun = []
    async with asyncio.TaskGroup() as group:
        for part in listed:
            begun.append(group.create_task(one(part)))
            if len(begun) % _BEGUN_TOGETHER == 0:
                await asyncio.sleep(0)
    return [each.result() for each in begun]


def _check_each_once(definition: TableDefinition, buckets: Sequence[int]) -> None:
    """Raise TableError for a read that names a bucket twice: it would cost, and be answered, twice."""
    if len(set(buckets)) < len(buckets):
        bucket, times = Counter(buckets).most_common(1)[0]
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"bucket {bucket} of {definition.path} is named {times} times; a read names each bucket once",
        )
    if len(buckets) > definition.bucket_count:
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"{len(buckets)} buckets of {definition.path} are named, which has {definition.bucket_count}",
        )


def _check_whole(whole: bool, room: Room) -> None:
    """Raise TableError for a part of an answer that its reader would take for all of it."""
    if whole and room.is_full:
        raise TableError(
            TableErrorCode.ANSWER_TOO_LARGE,
            f"there is room for {room.max_bytes} bytes of rows in the answer, and there are more: ask for fewer at a "
            "time, or with a newer client, which asks for the rest by itself",
        )


def _is_simple(subject: Subject) -> bool:
    """A table without partitions: what the first version of the lake's messages can speak of."""
    return subject.definition is not None and not subject.definition.is_partitioned


def _place(part: m.StagedChunk | m.StagedCount) -> Place:
    return (part.partition_id, part.bucket) if part.partition_id.int else part.bucket


def _refuse(answer: Any, error: Exception, definition: TableDefinition, bucket: int) -> None:
    if isinstance(error, (TableError, KafkaError)):
        answer.error_code, answer.error_message = int(error.code), error.message
    elif isinstance(error, DecodeError):
        logger.error(
            "table %s bucket %d: %s", definition.path, bucket, one_line(str(error), _FAILURE_LENGTH_MAX)
        )
        answer.error_code, answer.error_message = int(ErrorCode.CORRUPT_MESSAGE), str(error)
    else:
        logger.error("table %s bucket %d", definition.path, bucket, exc_info=error)
        answer.error_code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        answer.error_message = f"table {definition.path} bucket {bucket}: {error}"
