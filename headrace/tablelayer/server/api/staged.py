"""Handlers of requests about staged rows, which are committed as a whole."""

from __future__ import annotations

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.security.rights import Operation
from headrace.tablelayer.model.messages import between as b
from headrace.tablelayer.model.messages import staged as m
from headrace.tablelayer.server.rights.table_rights import TableRights
from headrace.tablelayer.server.staged.commits import StagedCommits
from headrace.tablelayer.server.staged.place import Place
from headrace.tablelayer.server.staged.staging import Chunk


class StagedHandlers:
    def __init__(self, rights: TableRights, staged: StagedCommits) -> None:
        self._rights = rights
        self._staged = staged

    async def stage(self, context: RequestContext, request: m.StageRowsRequest) -> m.StageRowsResponse:
        definition = self._rights.by_id(context, Operation.WRITE, request.table_id)
        targets = None if request.target_columns is None else tuple(request.target_columns)
        if await self._staged.ledgers.is_decided(request.table_id, request.writer, request.batch_id):
            return m.StageRowsResponse(decided=True)
        for chunk in request.chunks:
            await self._staged.chunks.stage(
                definition,
                request.writer,
                request.batch_id,
                request.attempt,
                Place.named(chunk),
                chunk.number,
                Chunk(targets, memoryview(chunk.batch or b""), request.update),
                context.client_host,
            )
        return m.StageRowsResponse()

    async def commit(self, context: RequestContext, request: m.CommitStagedRequest) -> m.CommitStagedResponse:
        definition = self._rights.by_id(context, Operation.WRITE, request.table_id)
        attempts = [
            (each.attempt, {Place.named(entry): entry.count for entry in each.chunks})
            for each in request.attempts
        ]
        await self._staged.commit(
            definition, request.writer, request.batch_id, attempts, single=request.single
        )
        return m.CommitStagedResponse()

    async def abort(self, context: RequestContext, request: m.AbortStagedRequest) -> m.AbortStagedResponse:
        self._rights.by_id(context, Operation.WRITE, request.table_id)
        await self._staged.abort(request.table_id, request.writer, request.batch_id, request.attempts)
        return m.AbortStagedResponse()

    async def count(self, context: RequestContext, request: b.CountStagedRequest) -> b.CountStagedResponse:
        """Answer the broker that decides about the commit, as the methods below do."""
        staged = await self._staged.chunks.count(
            request.table_id, request.writer, request.batch_id, request.attempts
        )
        return b.CountStagedResponse(
            attempts=[
                b.StagedOfAttempt(
                    attempt=attempt,
                    places=[place.counted(count) for place, count in counts.items()],
                )
                for attempt, counts in staged.items()
                if counts
            ]
        )

    async def apply(self, context: RequestContext, request: b.ApplyStagedRequest) -> b.ApplyStagedResponse:
        written = await self._staged.decided.apply(
            request.table_id, bytes(request.ledger), Place.named(request.place), request.place.count
        )
        return b.ApplyStagedResponse(written=written)

    async def keep(self, context: RequestContext, request: b.KeepStagedRequest) -> b.KeepStagedResponse:
        await self._staged.chunks.keep(request, Place.named(request.place))
        return b.KeepStagedResponse()

    async def hand_over(
        self, context: RequestContext, request: b.HandOverStagedRequest
    ) -> b.HandOverStagedResponse:
        await self._staged.sharing.hand_over(request, Place.named(request.place))
        return b.HandOverStagedResponse()

    async def drop(self, context: RequestContext, request: b.DropStagedRequest) -> b.DropStagedResponse:
        await self._staged.chunks.drop(request.table_id, request.writer, request.batch_id, request.attempts)
        return b.DropStagedResponse()
