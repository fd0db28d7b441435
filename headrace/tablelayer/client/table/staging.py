"""Write exactly once from an engine that repeats its tasks: stage rows, then commit a whole batch.

A task makes a `StagedWriter` under a fresh attempt name and writes; its `finish` returns a small receipt. The driver of
the tasks collects the receipts of the attempts that count and commits them under the writer's lasting name and the
batch's number. Committing again, after a lost answer or a restart, has no further effect.
`tablelayer.server.staged.commits` documents the server's promises. A partitioned table has one commit for all
partitions. Missing partitions are created when rows are staged; one of an attempt that does not count may stay empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa

from headrace.tablelayer.client.table.parts import WHOLE, Parts
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, retrying
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.client.write.pieces import check_rows_fit, pieces
from headrace.tablelayer.client.write.split import Spread, buckets_of, split_by_bucket
from headrace.tablelayer.client.write.writer import encode_write
from headrace.tablelayer.model.messages.staged import (
    AbortStagedRequest,
    AbortStagedResponse,
    CommitStagedRequest,
    CommitStagedResponse,
    StagedAttempt,
    StagedChunk,
    StagedCount,
    StageRowsRequest,
    StageRowsResponse,
)
from headrace.tablelayer.model.table.definition import StoredTable

_REQUEST_SIZE = 8 << 20
_COMMIT_TIMEOUT_MS = 3_600_000
"""A commit writes everything that was staged, which takes minutes for a large batch. It can be repeated."""
_CHANNEL = "stage"
_HELD_BYTES_MAX = 64 << 20
"""Limit of held bytes over all buckets and partitions. At it, everything is sent, in small batches too."""

Place = tuple[UUID, int]
"""A bucket of a partition; the partition is zero for a bucket of the table itself."""
ITSELF = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The chunks by place and the number of rows that one attempt has staged. Small and picklable."""

    attempt: str
    chunks: Mapping[Place, int] = field(default_factory=dict)
    row_count: int = 0


class AsyncStagedWriter:
    """Stages the rows of one run of one task. Not for several tasks at once.

    Holds about `batch_size_bytes` per bucket, and no more than 64 MiB. One request is prepared while another is sent.
    """

    def __init__(
        self,
        cluster: Cluster,
        parts: Parts,
        definition: StoredTable,
        *,
        writer: str,
        batch_id: int,
        attempt: str,
        target_columns: tuple[int, ...] | None = None,
        only_existing: bool = False,
    ) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._parts = parts
        self._definition = definition
        self._routes: dict[UUID, TableRoutes] = {}
        self._spreads: dict[UUID, Spread] = {}
        self._writer, self._batch_id, self._attempt = writer, batch_id, attempt
        self._targets = target_columns
        self._update = only_existing
        self._held: dict[Place, list[pa.RecordBatch]] = {}
        self._held_bytes: dict[Place, int] = {}
        self._chunks: dict[Place, int] = {}
        self._ready: list[StagedChunk] = []
        self._sending: asyncio.Task[None] | None = None
        self._row_count = 0
        self._change_type: int | None = None
        self.decided = False
        """Whether the batch is committed already; rows are then no longer staged."""

    async def write(self, rows: pa.Table, *, change_type: int | None = None) -> None:
        """Stage conformed rows, as `Writer.write` takes them.

        Raises TableError, KafkaError, ConnectionFailed, OutcomeUnknown, and DataError for a row that is too large.
        """
        self._row_count += rows.num_rows
        if not self.decided:
            check_rows_fit(rows, str(self._definition.path))
            for name, definition, theirs in await self._parts.to_stage(
                self._definition, rows, change_type, only_existing=self._update
            ):
                partition = ITSELF if name == WHOLE else definition.table_id
                await self._write(definition, partition, theirs, change_type)

    async def _write(
        self, definition: StoredTable, partition: UUID, rows: pa.Table, change_type: int | None
    ) -> None:
        """Stage rows of the table, or of one partition with this definition."""
        if partition not in self._routes:
            self._routes[partition] = TableRoutes(self._cluster, definition)
            self._spreads[partition] = Spread(
                definition.bucket_count,
                self._config.batch_size_bytes,
                round_robin=self._config.no_key_assigner == "round_robin",
            )
        for slab in rows.to_batches():
            if slab.num_rows:
                full = await asyncio.to_thread(self._take, definition, partition, slab, change_type)
                await self._send(full)

    async def finish(self) -> Receipt:
        """Stage the held rows, wait for all requests and return the receipt."""
        if not self.decided:
            rest = await asyncio.to_thread(self._encode, list(self._held))
            await self._send(rest)
        await self._sent()
        return Receipt(self._attempt, {} if self.decided else dict(self._chunks), self._row_count)

    def _take(
        self, definition: StoredTable, partition: UUID, slab: pa.RecordBatch, change_type: int | None
    ) -> list[StagedChunk]:
        if definition.bucket_key:
            parts = split_by_bucket(buckets_of(definition, slab), slab)
        else:
            parts = self._spreads[partition].assign(slab)
        self._change_type = change_type
        for bucket, part in parts:
            place = partition, bucket
            self._held.setdefault(place, []).append(part)
            self._held_bytes[place] = self._held_bytes.get(place, 0) + part.nbytes
        limit = self._config.batch_size_bytes if sum(self._held_bytes.values()) < _HELD_BYTES_MAX else 0
        return self._encode([place for place, size in self._held_bytes.items() if size >= limit])

    def _encode(self, places: Sequence[Place]) -> list[StagedChunk]:
        chunks = []
        for place in places:
            batches = self._held.pop(place)
            del self._held_bytes[place]
            rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            for piece in pieces(rows, self._config.batch_size_bytes):
                number = self._chunks.get(place, 0)
                self._chunks[place] = number + 1
                data = encode_write(self._definition, piece, self._change_type)
                chunks.append(StagedChunk(partition_id=place[0], bucket=place[1], number=number, batch=data))
        return chunks

    async def _send(self, chunks: list[StagedChunk]) -> None:
        request: list[StagedChunk] = []
        size = 0
        for chunk in chunks:
            if request and size + len(chunk.batch) > _REQUEST_SIZE:
                await self._launch(request)
                request, size = [], 0
            request.append(chunk)
            size += len(chunk.batch)
        if request:
            await self._launch(request)

    async def _launch(self, chunks: list[StagedChunk]) -> None:
        await self._sent()
        if not self.decided:
            self._sending = asyncio.create_task(self._stage(chunks), name="stage rows")

    async def _sent(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            await sending

    async def _stage(self, chunks: list[StagedChunk]) -> None:
        table_id = self._definition.table_id
        places: dict[UUID, set[int]] = {}
        for chunk in chunks:
            places.setdefault(chunk.partition_id, set()).add(chunk.bucket)

        def forget() -> None:
            for partition in places:
                self._routes[partition].forget()

        async def attempt(deadline: Deadline) -> None:
            by_leader: dict[int, set[Place]] = {}
            for partition, buckets in places.items():
                found = await self._routes[partition].by_leader(sorted(buckets), deadline)
                for leader, led in found.items():
                    by_leader.setdefault(leader, set()).update((partition, bucket) for bucket in led)
            for leader, theirs in by_leader.items():
                request = StageRowsRequest(
                    table_id=table_id,
                    writer=self._writer,
                    batch_id=self._batch_id,
                    attempt=self._attempt,
                    target_columns=None if self._targets is None else list(self._targets),
                    update=self._update,
                    chunks=[chunk for chunk in chunks if (chunk.partition_id, chunk.bucket) in theirs],
                )
                answer = await self._cluster.send(
                    request, StageRowsResponse, node_id=leader, channel=_CHANNEL, deadline=deadline
                )
                raise_for(
                    answer.error_code, answer.error_message, doing=f"stage rows for {self._definition.path}"
                )
                self.decided = self.decided or answer.decided

        await retrying(
            attempt,
            config=self._config,
            repeatable=True,
            changes=True,
            on_stale_route=forget,
        )

    async def close(self) -> None:
        """Cancel the request that is on its way."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


async def commit_staged(
    cluster: Cluster,
    definition: StoredTable,
    *,
    writer: str,
    batch_id: int,
    receipts: Sequence[Receipt],
    single: bool,
) -> None:
    """Write the rows that these attempts have staged, once. Returns when they are visible."""
    request = CommitStagedRequest(
        table_id=TableRoutes(cluster, definition).table_id,
        writer=writer,
        batch_id=batch_id,
        attempts=[
            StagedAttempt(
                attempt=receipt.attempt,
                chunks=[
                    StagedCount(partition_id=partition, bucket=bucket, count=count)
                    for (partition, bucket), count in receipt.chunks.items()
                ],
            )
            for receipt in receipts
        ],
        single=single,
    )
    await _ask(
        cluster, definition, request, CommitStagedResponse, f"commit batch {batch_id} of {definition.path}"
    )


async def abort_staged(
    cluster: Cluster, definition: StoredTable, *, writer: str, batch_id: int, receipts: Sequence[Receipt]
) -> None:
    """Drop the rows that these attempts have staged."""
    request = AbortStagedRequest(
        table_id=TableRoutes(cluster, definition).table_id,
        writer=writer,
        batch_id=batch_id,
        attempts=[receipt.attempt for receipt in receipts],
    )
    await _ask(
        cluster, definition, request, AbortStagedResponse, f"abort batch {batch_id} of {definition.path}"
    )


async def _ask(
    cluster: Cluster,
    definition: StoredTable,
    request: CommitStagedRequest | AbortStagedRequest,
    response: type[CommitStagedResponse] | type[AbortStagedResponse],
    doing: str,
) -> None:
    routes = TableRoutes(cluster, definition)

    async def attempt(deadline: Deadline) -> None:
        leader = await routes.leader(0, deadline)
        answer = await cluster.send(request, response, node_id=leader, channel=_CHANNEL, deadline=deadline)
        raise_for(answer.error_code, answer.error_message, doing=doing)

    await retrying(
        attempt,
        config=cluster.config,
        deadline=Deadline(_COMMIT_TIMEOUT_MS),
        repeatable=True,
        changes=True,
        on_stale_route=routes.forget,
    )
