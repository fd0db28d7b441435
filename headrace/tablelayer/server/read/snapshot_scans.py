"""Open snapshot scans: each pins its store's files, so each has a lease that every piece renews.

A scan may be of the present or of the past (`time_travel`). Its last piece can be asked for again until it is closed
or its lease ends, so that a lost answer costs nothing; for that a client may come over another connection. So a scan
belongs to the host that opened it and to its table, and its id is random: nobody else can read, close or find it.

One host has only so many, of the past fewer; beyond that its own longest idle one goes. When all places are taken,
whoever has fewer than somebody else gets one of theirs. A scan that went is begun again by its reader where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages.read import ScanSnapshotRequest
from headrace.tablelayer.server.read.bucket_state import Rows, SnapshotScan, Wanted, key_range
from headrace.tablelayer.server.read.fairness import has_to_go
from headrace.tablelayer.server.read.time_travel import PastStates
from headrace.tablelayer.server.services import Services

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
        """Pin the bucket's state as the request wants it, for the host `client`.

        Raises TableError: BUFFER_EXHAUSTED when too many are open, INVALID_KEY, OUTSIDE_RETENTION.
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
        """End a scan for one more if there has to be room. `places`: (scans that share it, one of them); one that is
        shared or in use stays. Raises TableError(BUFFER_EXHAUSTED)."""
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
        """Of 59 random bits."""
        while True:
            scan_id = self._services.context.entropy.uuid().int >> 65
            if scan_id not in self._open:
                return scan_id

    def _of(self, scan_id: int, table_id: UUID, client: str) -> SnapshotScan | None:
        """The scan, if it is of this table and this client."""
        scan = self._open.get(scan_id)
        if scan is None or scan.bucket.definition.table_id != table_id or scan.client != client:
            return None
        return scan

    async def next(
        self, scan_id: int, table_id: UUID, client: str, piece: int, max_bytes: int
    ) -> tuple[SnapshotScan, Rows, bytes | None, bool]:
        """(the scan, rows, the last one's key, whether there may be more); `piece` -1: the next one, of which the last
        closes the scan. Raises TableError(SCAN_EXPIRED)."""
        self.expire()
        scan = self._of(scan_id, table_id, client)
        if scan is None or scan.bucket.closed:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"scan {scan_id} is not open: it was finished, or not continued for "
                f"{self._services.limits.scan_lease_seconds:.0f} s, or gave way to others; begin again",
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
        """Without effect on a scan of another table or client."""
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
        """Let go of scans whose lease is over."""
        now = self._services.context.clock.monotonic()
        for scan_id, scan in list(self._open.items()):
            if scan.bucket.closed or (scan.expires_at < now and not scan.turn.locked()):
                self._end(scan_id)

    async def release(self, bucket: object) -> None:
        """The bucket's store is about to be closed."""
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
