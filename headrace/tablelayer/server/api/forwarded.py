"""Handlers of requests from other brokers: rows for a bucket that this broker leads, and records for a dead-letter
topic.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from headrace.broker.log.partition_log import AppendInfo
from headrace.broker.requests.declaration import RequestContext
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.messages import between as m
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.bucket.bucket import TableBucket
from headrace.tablelayer.server.bucket.dead_letters import append_dead_letters
from headrace.tablelayer.server.bucket.held_rows import HeldRows
from headrace.tablelayer.server.bucket.remote_bucket import rows_of
from headrace.tablelayer.server.merge.engines import Operations
from headrace.tablelayer.server.merge.writes import Writer
from headrace.tablelayer.server.services import Services


class ForwardedHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._held = HeldRows(services)

    def _bucket(self, topic: str, bucket: int) -> TableBucket:
        """Return a bucket that this broker leads. Raises KafkaError(NOT_LEADER_OR_FOLLOWER)."""
        hooks: object = self._services.context.replicas.partition(topic, bucket).hooks
        if not isinstance(hooks, TableBucket):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead bucket {bucket} of {topic}"
            )
        return hooks

    async def prepare(self, context: RequestContext, request: m.PrepareRowsRequest) -> m.PrepareRowsResponse:
        bucket = self._bucket(request.topic, request.bucket)
        if request.schema_id not in bucket.versions():
            await self._services.context.following.refreshed()  # the table may have been altered a moment ago
        schema = bucket.versions().get(request.schema_id)
        rows = await self._services.run(rows_of, request, schema)
        writer = Writer(
            request.producer_id, request.producer_epoch, request.base_sequence, request.sequence_count
        )
        source = partial(_of_schema, rows, request.schema_id)
        try:
            outcome = await self._held.prepare(bucket, source, writer, rows.rows.nbytes)
        except RowError as error:
            return m.PrepareRowsResponse(row=error.index, column=error.column, reason=error.reason)
        if outcome is None:
            return m.PrepareRowsResponse(is_busy=True)
        if isinstance(outcome, AppendInfo):
            return m.PrepareRowsResponse(
                base_offset=outcome.base_offset,
                last_offset=outcome.last_offset,
                leader_epoch=bucket.partition.log.epoch_at(outcome.last_offset),
            )
        return m.PrepareRowsResponse(ticket=outcome, leader_epoch=bucket.partition.leader_epoch)

    async def log(self, context: RequestContext, request: m.LogRowsRequest) -> m.LogRowsResponse:
        if request.release:
            await self._held.release(request.ticket)
            return m.LogRowsResponse()
        info = await self._held.log(request.ticket)
        return m.LogRowsResponse(base_offset=info.base_offset, last_offset=info.last_offset)

    async def wait(self, context: RequestContext, request: m.AwaitRowsRequest) -> m.AwaitRowsResponse:
        bucket = self._bucket(request.topic, request.bucket)
        bucket.check_open()
        log = bucket.partition.log
        end = request.end_offset if request.end_offset >= 0 else log.log_end_offset
        if request.leader_epoch >= 0 and (
            end > log.log_end_offset or log.epoch_at(end - 1) != request.leader_epoch
        ):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{bucket.name}: rows below offset {end} were lost with an earlier leader; send them again",
            )
        await bucket.wait_published(AppendInfo(end - 1, end - 1, -1, 0), request.acks, request.timeout_ms)
        return m.AwaitRowsResponse()

    async def keep_dead_letters(
        self, context: RequestContext, request: m.KeepDeadLettersRequest
    ) -> m.KeepDeadLettersResponse:
        await append_dead_letters(
            self._services.context, request.topic, request.partition, request.batch, request.timeout_ms
        )
        return m.KeepDeadLettersResponse()


def _of_schema(rows: Operations, schema_id: int, now: StoredTable) -> Operations:
    """Convert rows that another broker decoded with schema `schema_id` to the table's schema `now`."""
    if now.schema.schema_id == schema_id:
        return rows
    return replace(rows, rows=now.versions.conversion(schema_id).of(rows.rows))
