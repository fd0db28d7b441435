"""Open snapshot scans: each one pins its store's files, so each has a lease that every piece renews.

A scan reads the present or the past (`time_travel`). Its last piece can be requested again until the scan is closed or
its lease ends, so that a lost answer costs nothing; the client may use another connection for this. So a scan belongs
to the host that opened it and to its table, and its id is random: no other client can read, close or find it. The
number of scans of a host is limited, and lower for past states; at the limit, the host's own longest idle scan ends.
When all places are taken, a host with fewer places gets one of a host with more. The reader of an ended scan continues
it with a new one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages.read import ScanSnapshotRequest
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.merge.engines import row_keys
from headrace.tablelayer.server.read.fairness import has_to_go
from headrace.tablelayer.server.read.time_travel import PastStates
from headrace.tablelayer.server.read.wanted import Rows, Wanted, columns_of, matching_rows, wanted_groups
from headrace.tablelayer.server.services import Services
from headrace.tablelayer.server.store.keys import key_rows
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import ROW_PREFIX, KeyRange, successor
from headrace.tablelayer.server.store.store_snapshot import StoreSnapshot

if TYPE_CHECKING:
    from headrace.tablelayer.server.bucket.key_bucket import KeyBucket

if TYPE_CHECKING:
    from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
    from headrace.tablelayer.server.store.kv import KeyValueStore


class SnapshotScans:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._past = PastStates(services)
        self._open: dict[int, SnapshotScan] = {}
        self._opening: list[str] = []
        self._opening_past: list[str] = []

    async def open(self, bucket: KeyBucket, wanted: Wanted, request: ScanSnapshotRequest, client: str) -> int:
        """Pin the bucket's state for a request of the host `client`; return the scan's id.

        Raises TableError: BUFFER_EXHAUSTED if too many are open, INVALID_KEY, OUTSIDE_RETENTION.
        """
        keys = await self._services.run(key_range, wanted.schema, request)
        limit = None if request.limit < 0 else request.limit
        self.expire()
        limits = self._services.limits
        every = [([scan_id], scan) for scan_id, scan in self._open.items()]
        await self._make_room(
            client, every, self._opening, limits.scans_per_client_max, limits.scans_open_max
        )
        past: int | None = None

        def begin(store: KeyValueStore) -> SnapshotScan:
            return SnapshotScan(bucket, store.snapshot(), wanted, keys, limit, past, client)

        self._opening.append(client)
        try:
            scan: SnapshotScan | None = None
            if request.as_of in (-1, bucket.partition.high_watermark):
                scan = await bucket.read(begin)
            if scan is None or request.as_of not in (-1, scan.log_offset):
                past = request.as_of
                scan = await self._open_past(bucket, past, begin, client)
        finally:
            self._opening.remove(client)
        scan_id = self._new_id()
        self._open[scan_id] = scan
        self._renew(scan)
        return scan_id

    async def _open_past(
        self, bucket: KeyBucket, offset: int, begin: Callable[[KeyValueStore], SnapshotScan], client: str
    ) -> SnapshotScan:
        limits = self._services.limits
        if not self._past.is_open(bucket, offset):
            shared: dict[object, tuple[list[int], SnapshotScan]] = {}
            for scan_id, scan in self._open.items():
                if scan.past_offset is not None:
                    shared.setdefault((scan.bucket, scan.past_offset), ([], scan))[0].append(scan_id)
            await self._make_room(
                client,
                list(shared.values()),
                self._opening_past,
                limits.past_states_per_client_max,
                limits.past_states_max,
            )
        self._opening_past.append(client)
        try:
            store = await self._past.acquire(bucket, offset)
            try:
                return await self._services.run(begin, store)
            except BaseException:
                await self._past.release(bucket, offset)
                raise
        finally:
            self._opening_past.remove(client)

    async def _make_room(
        self,
        client: str,
        places: list[tuple[list[int], SnapshotScan]],
        opening: list[str],
        own_max: int,
        all_max: int,
    ) -> None:
        """End a scan if another one needs its place. Raises TableError(BUFFER_EXHAUSTED).

        `places` has (scans that share a place, one of them); a place that is shared or in use stays.
        """
        now = self._services.context.clock.monotonic()
        busy, held = list(opening), []
        for scan_ids, scan in places:
            if len(scan_ids) > 1 or scan.turn.locked():
                busy.append(scan.client)
            else:
                held.append((scan.client, self._idle_seconds(scan, now), scan_ids[0]))
        verdict = has_to_go(client, held, busy, own_max, all_max, self._services.limits.scan_idle_seconds)
        if verdict is None:
            return
        if isinstance(verdict, str):
            raise TableError(
                TableErrorCode.BUFFER_EXHAUSTED,
                f"no further state can be scanned now: {verdict}; try again later",
            )
        scan = self._open.pop(verdict)
        if scan.past_offset is not None:
            await self._give_back(scan, scan.past_offset)

    def _new_id(self) -> int:
        """Return an unused id of 63 bits, 59 of which are random."""
        while True:
            scan_id = self._services.context.entropy.uuid().int >> 65
            if scan_id not in self._open:
                return scan_id

    def _of(self, scan_id: int, table_id: UUID, client: str) -> SnapshotScan | None:
        """Return the scan if it belongs to this table and client."""
        scan = self._open.get(scan_id)
        if scan is None or scan.bucket.definition.table_id != table_id or scan.client != client:
            return None
        return scan

    async def next(
        self, scan_id: int, table_id: UUID, client: str, piece: int, max_bytes: int
    ) -> tuple[SnapshotScan, Rows, bytes | None, bool]:
        """Return (the scan, rows, the last row's key, whether there may be more). Raises TableError(SCAN_EXPIRED).

        `piece` -1 is the next piece; the last one then closes the scan.
        """
        self.expire()
        scan = self._of(scan_id, table_id, client)
        if scan is None or scan.bucket.closed:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"scan {scan_id} is not open: it was finished, or not continued for "
                f"{self._services.limits.scan_lease_seconds:.0f} s, or was replaced by another scan; start it again",
            )
        async with scan.turn:
            number = scan.next_piece if piece == -1 else piece
            most = min(max(1, max_bytes), self._services.limits.answer_bytes_max)
            rows, last, has_more = await self._services.run(scan.rows_of, number, most)
        if has_more or piece != -1:
            self._renew(scan)
        else:
            self._end(scan_id)
        return scan, rows, last, has_more

    def close(self, scan_id: int, table_id: UUID, client: str) -> None:
        """Close a scan; no effect if it belongs to another table or client."""
        if self._of(scan_id, table_id, client) is not None:
            self._end(scan_id)

    def _end(self, scan_id: int) -> None:
        scan = self._open.pop(scan_id, None)
        if scan is not None and scan.past_offset is not None:
            self._services.context.background.start(
                self._give_back(scan, scan.past_offset), f"end of scan {scan_id}"
            )

    async def _give_back(self, scan: SnapshotScan, offset: int) -> None:
        async with scan.turn:
            scan.end()
        await self._past.release(scan.bucket, offset)

    def expire(self) -> None:
        """End scans whose lease is over."""
        now = self._services.context.clock.monotonic()
        for scan_id, scan in list(self._open.items()):
            if scan.bucket.closed or (scan.expires_at < now and not scan.turn.locked()):
                self._end(scan_id)

    async def release(self, bucket: object) -> None:
        """End the scans of a bucket whose store will be closed."""
        for scan_id, scan in list(self._open.items()):
            if scan.bucket is bucket:
                self._open.pop(scan_id, None)
                async with scan.turn:
                    scan.end()
                if scan.past_offset is not None:
                    await self._past.release(scan.bucket, scan.past_offset)

    def _idle_seconds(self, scan: SnapshotScan, now: float) -> float:
        return now - (scan.expires_at - self._services.limits.scan_lease_seconds)

    def _renew(self, scan: SnapshotScan) -> None:
        now = self._services.context.clock.monotonic()
        scan.expires_at = now + self._services.limits.scan_lease_seconds


class SnapshotScan:
    """A bucket's state at one offset, read in pieces, one at a time."""

    def __init__(
        self,
        bucket: KeyBucket,
        snapshot: StoreSnapshot,
        wanted: Wanted,
        keys: KeyRange,
        limit: int | None = None,
        past_offset: int | None = None,
        client: str = "",
    ) -> None:
        """Begin a scan. `past_offset` is the past state to release at the end; `client` is the host of the reader."""
        self.client = client
        self.bucket = bucket
        self.wanted = wanted
        self.log_offset = snapshot.applied_offset
        self.past_offset = past_offset
        self.expires_at = 0.0
        self.turn = asyncio.Lock()
        self.next_piece = 0
        self._snapshot = snapshot
        self._place = self._before = (keys, limit)
        self._groups = wanted_groups(wanted)
        snapshot.seek(keys, self._groups)

    def rows_of(self, piece: int, max_bytes: int) -> tuple[Rows, bytes | None, bool]:
        """Return (rows in key order, the last row's key, whether there may be more).

        `piece` is the next piece, or the previous one again. Blocking; raises TableError(SCAN_EXPIRED).
        """
        if piece == self.next_piece - 1:
            self._place, self.next_piece = self._before, piece
            self._snapshot.seek(self._place[0], self._groups)
        elif piece != self.next_piece:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"the scan is at piece {self.next_piece}, not {piece}; start the scan again",
            )
        keys, left = self._place
        rows, last, has_more = self._snapshot.next_rows(
            max_bytes, sys.maxsize if left is None else left, self.wanted.schema.row_cost
        )
        rows = matching_rows(rows, self.bucket.versions, self.wanted)
        if left is not None:
            left -= len(rows)
            has_more = has_more and left > 0
        self._before = self._place
        self._place = (keys if last is None else keys.after(last), left)
        self.next_piece += 1
        schema, columns = self.wanted.schema, self.wanted.columns
        message: Rows | None = stored_message.message_at(rows.addresses, rows.lengths, schema, columns)
        if message is None:
            message = encode_ipc(columns_of(rows, self.bucket.versions, schema, columns))
        return message, last, has_more

    def end(self) -> None:
        """Release the store's files."""
        self._snapshot.end()


def key_range(schema: Schema, request: ScanSnapshotRequest) -> KeyRange:
    """Return the key range of a scan request. Raises TableError(INVALID_KEY)."""
    lower, upper = ROW_PREFIX, None
    if request.lower is not None:
        bound = _bound(schema, request.lower, request.lower_columns)
        lower = bound if request.lower_inclusive else successor(bound)
    if request.upper is not None:
        bound = _bound(schema, request.upper, request.upper_columns)
        upper = successor(bound) if request.upper_inclusive else bound
    if upper is not None and upper < lower:
        upper = lower
    keys = KeyRange(lower, upper)
    return keys if request.after is None else keys.after(request.after)


def _bound(schema: Schema, rows: memoryview, count: int) -> bytes:
    if not 1 <= count <= len(schema.primary_key):
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"a bound has from 1 to {len(schema.primary_key)} columns of the primary key, not {count}",
        )
    names = schema.primary_key[:count]
    bounds = row_keys(schema, key_rows(schema, names, rows, 1), names)
    if len(bounds) != 1:
        raise TableError(TableErrorCode.INVALID_KEY, f"a bound is one row, not {len(bounds)}")
    bound: bytes = bounds[0].as_py()
    return bound
