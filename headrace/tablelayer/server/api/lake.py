"""Handlers of requests about tiering rounds and the lake's progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Iterator
from uuid import UUID

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.security.rights import Operation, ResourceType, denied
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.one_line import one_line
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import in_order
from headrace.tablelayer.model.messages import lake as m
from headrace.tablelayer.model.messages.between import DescribeEndsRequest, DescribeEndsResponse
from headrace.tablelayer.model.options.lake_options import expiration_check_ms
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE, TablePath
from headrace.tablelayer.server.catalog.catalog import no_table_with_id
from headrace.tablelayer.server.lake.dropped import GonePartitions, GonePartitionsStore, ids_of
from headrace.tablelayer.server.lake.machine import Candidate
from headrace.tablelayer.server.lake.subjects import LakeSubjects, Subject
from headrace.tablelayer.server.lake.tiering import LakeRounds
from headrace.tablelayer.server.lake_catalogs import properties_for
from headrace.tablelayer.server.rights.table_rights import TableRights
from headrace.tablelayer.server.services import Services

logger = logging.getLogger("headrace.tables")

_WORKER_LENGTH_MAX = 200
"""Maximum length, in characters, of a worker's name and of its status text: a line of a listing."""
_FAILURE_LENGTH_MAX = 2000


class LakeHandlers:
    def __init__(
        self,
        services: Services,
        rights: TableRights,
        lake: LakeRounds,
        subjects: LakeSubjects,
        gone: GonePartitionsStore,
    ) -> None:
        self._services = services
        self._gone = gone
        self._rights = rights
        self._lake = lake
        self._subjects = subjects

    def _check_coordinator(self) -> None:
        """Raise KafkaError(NOT_CONTROLLER) if another broker grants rounds."""
        metadata = self._services.context.metadata
        if not metadata.is_alone and not metadata.is_controller:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                f"only the controller grants tiering rounds: ask broker {metadata.image.controller_id}",
            )

    async def ends(self, context: RequestContext, request: DescribeEndsRequest) -> DescribeEndsResponse:
        response = DescribeEndsResponse()
        for end in self._subjects.describe_ends(request.partitions, request.hold_ms / 1000):
            response.partitions.append(end)
            await asyncio.sleep(0)
        return response

    async def begin(self, context: RequestContext, request: m.LakeBeginRequest) -> m.LakeBeginResponse:
        self._check_coordinator()
        if request.topic is not None:
            context.require(Operation.ALTER, ResourceType.TOPIC, request.topic)
            subjects = [self._subjects.by_topic(request.topic)]
        elif request.table is not None:
            path = TablePath(request.database or DEFAULT_DATABASE, request.table)
            self._rights.require(context, Operation.ALTER, path)
            subjects = [self._subjects.by_path(path)]
        else:
            subjects = [each for each in self._subjects.all_tiered() if _may(context, Operation.ALTER, each)]
            if context.api_version == 0:  # version 0 cannot name topics and partitioned tables
                subjects = [each for each in subjects if _is_simple(each)]
        worker = one_line(request.worker, _WORKER_LENGTH_MAX)
        by_id = {each.table_id: each for each in subjects}
        others = await self._subjects.ends([] if request.force else subjects)
        candidates = [
            Candidate(each.table_id, each.freshness_ms)
            for each in subjects
            if request.force or self._subjects.has_more(each, others)
        ]
        candidates += self._with_old_partitions(subjects, {each.table_id for each in candidates})
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

    def _with_old_partitions(
        self, subjects: Iterable[Subject], others: Container[UUID]
    ) -> Iterator[Candidate]:
        """Yield the tables whose partitions expire in the lake: they have rounds also when they have no new rows."""
        for each in subjects:
            interval_ms = None if each.definition is None else expiration_check_ms(each.definition.options)
            is_tiered = self._lake.state(each.table_id).snapshot_id >= 0
            if interval_ms is not None and is_tiered and each.table_id not in others:
                yield Candidate(each.table_id, max(interval_ms, each.freshness_ms))

    async def heartbeat(
        self, context: RequestContext, request: m.LakeHeartbeatRequest
    ) -> m.LakeHeartbeatResponse:
        self._check_coordinator()
        self._tiered(context, request.table_id)
        doing = one_line(request.doing, _WORKER_LENGTH_MAX)
        finish = self._lake.heartbeat(request.table_id, request.epoch, request.changes, doing)
        return m.LakeHeartbeatResponse(finish=finish)

    async def commit(self, context: RequestContext, request: m.LakeCommitRequest) -> m.LakeCommitResponse:
        self._check_coordinator()
        subject = self._tiered(context, request.table_id)
        existing = {place for place, _ in self._subjects.places(subject)}
        offsets = {entry.place: entry.offset for entry in request.offsets}
        # A partition may have been dropped while its rows were tiered.
        unknown = [place for place in offsets if isinstance(place, int) and place not in existing]
        if unknown:
            raise TableError(TableErrorCode.INVALID_TABLE, f"{subject.name} has no bucket {unknown[0]}")
        if subject.definition is not None and subject.definition.is_partitioned:
            record = self._lake.state(request.table_id)
            self._lake.check(request.table_id, request.epoch)
            await self._gone.settle(
                request.table_id,
                record.offsets,
                offsets,
                existing,
                {each.name: each.partition_id for each in request.cleared},
                committed_at_ms=record.committed_at_ms,
            )
        await self._lake.commit(request.table_id, request.epoch, request.snapshot_id, offsets, existing)
        return m.LakeCommitResponse()

    async def end(self, context: RequestContext, request: m.LakeEndRequest) -> m.LakeEndResponse:
        self._check_coordinator()
        subject = self._require(context, Operation.ALTER, self._subjects.by_id(request.table_id))
        failure = None if request.failure is None else one_line(request.failure, _FAILURE_LENGTH_MAX)
        self._lake.give_back(request.table_id, request.epoch, failure)
        if failure is not None:
            failed = "tiering round %d of %s failed: %s"
            logger.warning(failed, request.epoch, subject.name, failure)
        return m.LakeEndResponse()

    async def finish(self, context: RequestContext, request: m.LakeFinishRequest) -> m.LakeFinishResponse:
        self._check_coordinator()
        self._tiered(context, request.table_id)
        return m.LakeFinishResponse(running=self._lake.finish(request.table_id))

    async def describe(
        self, context: RequestContext, request: m.DescribeLakeRequest
    ) -> m.DescribeLakeResponse:
        self._check_coordinator()
        subject = self._require(context, Operation.DESCRIBE, self._subjects.by_id(request.table_id))
        if context.api_version == 0 and subject.definition is not None and subject.definition.is_partitioned:
            raise TableError(
                TableErrorCode.PARTITION_NEEDED,
                f"{subject.name} is partitioned, and its lake is described by partition; use a newer client",
            )
        others = await self._subjects.ends([subject])
        record, gone = self._lake.state(request.table_id), GonePartitions()
        while subject.definition is not None and subject.definition.is_partitioned:
            gone = await self._gone.read(
                request.table_id,
                lambda: [place for place, _ in self._subjects.places(subject)],
                committed_at_ms=record.committed_at_ms,
            )
            before, record = record, self._lake.state(request.table_id)
            if record == before:
                break
        # From here on nothing waits: the counts are those of this snapshot and of the partitions in the ends.
        running, trouble = self._lake.round_of(request.table_id), self._lake.trouble(request.table_id)
        clock = self._services.context.clock
        progress = self._subjects.progress(subject, others)
        existing = {place for place, _ in self._subjects.places(subject)}
        gone_count, expired_count = (-1, -1) if gone.known is None else gone.counts(ids_of(existing))
        # The lake's location and credentials: only for principals that may read or write all of its rows.
        may_read = _may(context, Operation.READ, subject) or _may(context, Operation.ALTER, subject)
        return m.DescribeLakeResponse(
            enabled=subject.enabled,
            format=subject.format,
            snapshot_id=record.snapshot_id,
            epoch=record.epoch,
            committed_at_ms=record.committed_at_ms,
            offsets=[m.LakeOffset.of(place, offset) for place, offset in in_order(record.offsets)],
            properties=properties_for(self._services.context.config, request.token) if may_read else [],
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
            expired=gone.expired or gone.has_expired(record.offsets, existing),
            dropped=[
                m.DroppedPartition(name=name, partition_id=partition_id)
                for name, partition_id in gone.dropped.items()
            ],
            gone_count=gone_count,
            expired_count=expired_count,
        )

    async def list(self, context: RequestContext, request: m.ListLakeRequest) -> m.ListLakeResponse:
        self._check_coordinator()
        listed = []
        subjects = [each for each in self._subjects.all_tiered() if _may(context, Operation.DESCRIBE, each)]
        others = await self._subjects.ends(subjects)
        for subject in subjects:
            progress, record = self._subjects.progress(subject, others), self._lake.state(subject.table_id)
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
            await asyncio.sleep(0)
        return m.ListLakeResponse(entries=listed)

    def _tiered(self, context: RequestContext, table_id: UUID) -> Subject:
        """Return the tiered subject of an id.

        Raises KafkaError or TableError; LAKE_NOT_ENABLED only if the caller may tier the subject.
        """
        self._require(context, Operation.ALTER, self._subjects.by_id(table_id))
        return self._subjects.tiered_by_id(table_id)

    def _require(self, context: RequestContext, operation: Operation, subject: Subject) -> Subject:
        """Return the subject if the caller has the right. Raises KafkaError, or TableError as for an unknown id."""
        if not _may(context, operation, subject):
            if not _may(context, Operation.DESCRIBE, subject):
                raise no_table_with_id(subject.table_id)
            raise denied(ResourceType.TOPIC)
        return subject


def _may(context: RequestContext, operation: Operation, subject: Subject) -> bool:
    return context.may(operation, ResourceType.TOPIC, subject.name)


def _is_simple(subject: Subject) -> bool:
    """Return whether a subject is a table without partitions: version 0 of the lake's messages knows no others."""
    return subject.definition is not None and not subject.definition.is_partitioned
