"""Rows handed over first and committed as a whole, from a message to the staging area and back."""

from __future__ import annotations

from broker.requests.declaration import RequestContext
from broker.security.rights import Operation
from tablelayer.model.messages import staged as m
from tablelayer.server.rights.table_rights import TableRights
from tablelayer.server.staged.commits import StagedCommits
from tablelayer.server.staged.staging import Chunk, Place


class StagedHandlers:
    def __init__(self, rights: TableRights, staged: StagedCommits) -> None:
        self._rights = rights
        self._staged = staged

    async def stage(self, context: RequestContext, request: m.StageRowsRequest) -> m.StageRowsResponse:
        definition = self._rights.by_id(context, Operation.WRITE, request.table_id)
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

    async def commit(self, context: RequestContext, request: m.CommitStagedRequest) -> m.CommitStagedResponse:
        definition = self._rights.by_id(context, Operation.WRITE, request.table_id)
        attempts = [
            (each.attempt, {_place(entry): entry.count for entry in each.chunks}) for each in request.attempts
        ]
        await self._staged.commit(
            definition, request.writer, request.batch_id, attempts, single=request.single
        )
        return m.CommitStagedResponse()

    async def abort(self, context: RequestContext, request: m.AbortStagedRequest) -> m.AbortStagedResponse:
        self._rights.by_id(context, Operation.WRITE, request.table_id)
        await self._staged.abort(request.table_id, request.writer, request.batch_id, request.attempts)
        return m.AbortStagedResponse()


def _place(part: m.StagedChunk | m.StagedCount) -> Place:
    return (part.partition_id, part.bucket) if part.partition_id.int else part.bucket
