"""Handlers of requests that write rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.broker.log.partition_log import AppendInfo
from headrace.broker.net.reply import CloseConnection
from headrace.broker.requests.declaration import RequestContext
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages import write as m
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.api.definition_texts import DefinitionTexts
from headrace.tablelayer.server.api.each_bucket import each_bucket, refuse
from headrace.tablelayer.server.api.targets import Bucket, Targets, check_key_table
from headrace.tablelayer.server.bucket.bucket import TableBucket, altered
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.bucket.log_bucket import LogBucket
from headrace.tablelayer.server.merge.writes import Writer, check_overwritable, write_header

Answer = TypeVar("Answer", m.AppendRowsResponse, m.PutRowsResponse)


class WriteHandlers:
    def __init__(self, targets: Targets, texts: DefinitionTexts) -> None:
        self._targets = targets
        self._texts = texts

    async def append(
        self, context: RequestContext, request: m.AppendRowsRequest
    ) -> m.AppendRowsResponse | None:
        return await _if_asked_for(request, self._append(context, request))

    async def put(self, context: RequestContext, request: m.PutRowsRequest) -> m.PutRowsResponse | None:
        return await _if_asked_for(request, self._put(context, request))

    async def _append(self, context: RequestContext, request: m.AppendRowsRequest) -> m.AppendRowsResponse:
        definition = self._targets.written(context, request.table_id)
        if definition.is_primary_key_table:
            raise TableError(
                TableErrorCode.NOT_A_LOG_TABLE,
                f"table {definition.path} has a primary key: write upserts and deletes, not appends",
            )

        return m.AppendRowsResponse(
            buckets=await self._write(definition, request, LogBucket, LogBucket.append)
        )

    async def _put(self, context: RequestContext, request: m.PutRowsRequest) -> m.PutRowsResponse:
        definition = self._targets.written(context, request.table_id)
        check_key_table(definition)
        if request.counted:
            self._targets.check_keys(context, definition)
        targets = None if request.target_columns is None else tuple(request.target_columns)
        if request.write_mode not in (m.WRITE_MODE_MERGE, m.WRITE_MODE_OVERWRITE, m.WRITE_MODE_UPDATE):
            raise TableError(TableErrorCode.INVALID_ROW, f"write mode {request.write_mode} does not exist")
        update = request.write_mode == m.WRITE_MODE_UPDATE
        overwrite = update or request.write_mode == m.WRITE_MODE_OVERWRITE
        if overwrite:
            check_overwritable(definition)

        may_be_at_once = len(request.buckets) == 1  # more would hold up the event loop

        def put(bucket: KeyBucket, batch: memoryview, made_for: StoredTable | None) -> Awaitable[AppendInfo]:
            return bucket.put(
                batch,
                targets,
                made_for,
                overwrite=overwrite,
                update=update,
                may_be_at_once=may_be_at_once,
            )

        return m.PutRowsResponse(buckets=await self._write(definition, request, KeyBucket, put))

    async def _write(
        self,
        definition: StoredTable,
        request: m.AppendRowsRequest | m.PutRowsRequest,
        kind: type[Bucket],
        write: Callable[[Bucket, memoryview, StoredTable | None], Awaitable[AppendInfo]],
    ) -> list[m.WrittenBucket]:
        """Write the rows of each bucket; return the offsets or the error, by bucket."""
        acks = request.acks
        if acks not in (-1, 0, 1):
            raise KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is not valid: use 0, 1 or -1 (all)"
            )
        digest = request.definition_digest
        is_stale = digest != 0 and digest != await self._texts.digest(definition)
        made_for = definition if digest else None
        is_counted = isinstance(request, m.PutRowsRequest) and request.counted

        async def one(part: m.WriteBucket) -> m.WrittenBucket:
            answer = m.WrittenBucket(bucket=part.bucket)
            try:
                if part.batch is None:
                    raise KafkaError(ErrorCode.INVALID_RECORD, "there is no batch")
                bucket = self._targets.bucket(definition, part.bucket, kind)
                if is_stale and bucket.repeated(Writer.of(write_header(part.batch))) is None:
                    raise altered(definition)
                if acks == -1:
                    self._targets.check_replicas(definition, bucket)
                info = await write(bucket, part.batch, made_for)
                await _acknowledged(bucket, info, acks, request.timeout_ms)
            except Exception as error:  # noqa: BLE001 - reported for this bucket
                refuse(answer, error, definition, part.bucket)
            else:
                answer.base_offset, answer.end_offset = info.base_offset, info.last_offset + 1
                if is_counted:
                    answer.logged_count = bucket.logged_count(info)
            return answer

        if len(request.buckets) == 1:
            return [await one(request.buckets[0])]
        return await each_bucket(one, request.buckets)


async def _acknowledged(bucket: TableBucket, info: AppendInfo, acks: int, timeout_ms: int) -> None:
    """Wait as `acks` demands for rows that are logged. Raises KafkaError with a code that leaves their fate open: the
    next leader may have them.
    """
    try:
        await bucket.wait_published(info, acks, timeout_ms)
    except KafkaError as error:
        if error.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            raise
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"logged at offset {info.base_offset}, but not acknowledged: {error.message}",
        ) from error


async def _if_asked_for(
    request: m.AppendRowsRequest | m.PutRowsRequest, answer: Awaitable[Answer]
) -> Answer | None:
    """Return the answer; None with acks=0, where an error closes the connection."""
    if request.acks != 0:
        return await answer
    try:
        written = await answer
    except (TableError, KafkaError) as error:
        raise CloseConnection(f"a write with acks=0 failed: {error.message}") from None
    for each in written.buckets:
        if each.error_code:
            raise CloseConnection(f"a write with acks=0 to bucket {each.bucket} failed: {each.error_message}")
    return None
