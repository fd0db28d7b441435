"""Read the state of one bucket of a primary-key table, piece by piece.

All pieces are of one moment, whatever happens between them. A lost answer is requested again. When the server has
forgotten the scan (its lease is over, the server was restarted, the bucket moved), another is opened at the same
offset, behind the last row that arrived: there is neither a gap nor an overlap. If retention has deleted what that
needs, SCAN_EXPIRED tells the caller to begin again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client.errors import ClientError, ConnectionClosed
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, retrying
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.model.batches.ipc import decode_answer
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages.read import OPEN_SCAN, ScanSnapshotRequest, ScanSnapshotResponse
from headrace.tablelayer.model.table.definition import StoredTable

_PIECE_BYTES = 4 << 20
_CLOSE_MS = 1_000


@dataclass(frozen=True, slots=True)
class KeyBound:
    """A bound: the keys that begin with `row`, which has the first `column_count` key columns (Arrow IPC)."""

    row: bytes
    column_count: int
    inclusive: bool


class BucketState:
    """One scan of a bucket, as the module describes."""

    def __init__(
        self,
        cluster: Cluster,
        definition: StoredTable,
        bucket: int,
        ids: list[int] | None,
        channel: str,
        *,
        as_of: int | None = None,
        lower: KeyBound | None = None,
        upper: KeyBound | None = None,
        limit: int | None = None,
        condition: bytes | None = None,
    ) -> None:
        """Make a scan; `condition` is an encoded filter."""
        self._condition = condition
        self._cluster = cluster
        self._definition = definition
        self._routes = TableRoutes(cluster, definition)
        self._bucket = bucket
        self._ids = ids
        self._channel = channel
        self._as_of = as_of
        self._lower = lower
        self._upper = upper
        self._left = limit
        self._scan_id = OPEN_SCAN
        self._piece = 0
        self._cursor: bytes | None = None
        self._taken_at: int | None = None
        self._lost: TableError | None = None
        self._opening: asyncio.Future[ScanSnapshotResponse] | None = None
        """The request that opens the scan, until it is answered."""

    async def next_piece(self, schema: pa.Schema) -> tuple[pa.RecordBatch, int, bool]:
        """Return (rows, the offset at which the state was taken, whether there may be more)."""
        config = self._cluster.config
        answer = await retrying(
            self._ask,
            config=config,
            repeatable=True,
            on_stale_route=self._routes.forget,
            counters=self._cluster.counters,
        )
        if answer is None:
            assert self._lost is not None
            raise self._lost
        self._scan_id, self._taken_at = answer.scan_id, answer.log_offset
        self._piece += 1
        if answer.cursor is not None:
            self._cursor = answer.cursor
        rows = (
            decode_answer(answer.rows, schema)
            if answer.rows
            else pa.RecordBatch.from_pylist([], schema=schema)
        )
        if self._left is not None:
            self._left -= rows.num_rows
        self._cluster.counters.rows_scanned += rows.num_rows
        return rows, answer.log_offset, answer.has_more

    async def _ask(self, deadline: Deadline) -> ScanSnapshotResponse | None:
        """Request the next piece; None if the scan cannot be continued."""
        doing = f"read bucket {self._bucket} of {self._definition.path.topic}"
        try:
            answer = await self._send(deadline)
            raise_for(answer.error_code, answer.error_message, doing=doing)
        except TableError as error:
            if error.code is TableErrorCode.SCAN_EXPIRED:
                self._scan_id, self._piece = OPEN_SCAN, 0
            elif error.code is TableErrorCode.OUTSIDE_RETENTION and self._taken_at is not None:
                self._lost = TableError(
                    TableErrorCode.SCAN_EXPIRED,
                    f"{doing}: the server no longer has the scan, begin it again: {error}",
                )
                return None
            raise
        return answer

    async def _send(self, deadline: Deadline) -> ScanSnapshotResponse:
        sending = self._cluster.send(
            self._request(),
            ScanSnapshotResponse,
            node_id=await self._routes.leader(self._bucket, deadline),
            channel=self._channel,
            deadline=deadline,
        )
        if self._scan_id != OPEN_SCAN:
            return await sending
        # A call that is cancelled while it opens a scan must still learn the scan's id, to close it.
        self._opening = asyncio.ensure_future(sending)
        await asyncio.wait([self._opening])
        opening, self._opening = self._opening, None
        return opening.result()

    def _request(self) -> ScanSnapshotRequest:
        request = ScanSnapshotRequest(
            table_id=self._routes.table_id,
            bucket=self._bucket,
            scan_id=self._scan_id,
            columns=self._ids,
            max_bytes=_PIECE_BYTES,
            schema_id=self._definition.schema.schema_id,
            piece=self._piece,
        )
        if self._scan_id != OPEN_SCAN:
            return request
        moment: Any = self._as_of if self._taken_at is None else self._taken_at
        request.as_of = -1 if moment is None else moment
        request.after = self._cursor
        request.filter = self._condition
        request.limit = -1 if self._left is None else self._left
        if self._lower is not None:
            request.lower, request.lower_columns = self._lower.row, self._lower.column_count
            request.lower_inclusive = self._lower.inclusive
        if self._upper is not None:
            request.upper, request.upper_columns = self._upper.row, self._upper.column_count
            request.upper_inclusive = self._upper.inclusive
        return request

    async def close(self) -> None:
        """Close the scan on the server. If the server cannot be reached, the lease ends by itself."""
        if self._opening is not None:
            opening, self._opening = self._opening, None
            await asyncio.wait([opening], timeout=_CLOSE_MS / 1000)
            if opening.cancel() or opening.cancelled() or opening.exception() is not None:
                return
            self._scan_id = opening.result().scan_id
        if self._scan_id == OPEN_SCAN:
            return
        request = ScanSnapshotRequest(
            table_id=self._routes.table_id, bucket=self._bucket, scan_id=self._scan_id, close=True
        )
        deadline = Deadline(_CLOSE_MS)
        # A closed connection has ended its scans; a dropped table has none.
        with suppress(ConnectionClosed, ClientError, KafkaError, TableError):
            await self._cluster.send(
                request,
                ScanSnapshotResponse,
                node_id=await self._routes.leader(self._bucket, deadline),
                channel=self._channel,
                deadline=deadline,
            )


async def snapshot_pieces(
    cluster: Cluster,
    definition: StoredTable,
    bucket: int,
    ids: list[int] | None,
    schema: pa.Schema,
    channel: str,
    **asked: Any,
) -> AsyncGenerator[tuple[pa.RecordBatch, int], None]:
    """Read a bucket's state: at least one piece, each with the log offset at which all of it was taken.

    `asked` as for `BucketState`. Raises TableError OUTSIDE_RETENTION for an unreadable `as_of`, and SCAN_EXPIRED.
    """
    state, more = BucketState(cluster, definition, bucket, ids, channel, **asked), True
    try:
        while more:
            rows, taken_at, more = await state.next_piece(schema)
            yield rows, taken_at
    finally:
        await state.close()
