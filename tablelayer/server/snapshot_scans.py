"""Open snapshot scans: each pins its store's files, so each has a lease that every piece renews.

A scan may be of the present or of the past (`time_travel`). Its last piece can be asked for again until it is closed
or its lease ends, so that a lost answer costs nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tablelayer.model import messages as m
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.server.reads import Rows, SnapshotScan, Wanted, key_range
from tablelayer.server.services import Services
from tablelayer.server.time_travel import PastStates

if TYPE_CHECKING:
    from tablelayer.server.key_bucket import KeyBucket
    from tablelayer.server.kv import KeyValueStore


class SnapshotScans:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._past = PastStates(services)
        self._open: dict[int, SnapshotScan] = {}
        # From a random number, so that ids of before a restart are not taken for newer ones.
        self._ids = itertools.count(int(services.context.entropy.random() * (1 << 52)))

    async def open(self, bucket: KeyBucket, wanted: Wanted, request: m.ScanSnapshotRequest) -> int:
        """Pin the bucket's state as the request wants it.

        Raises TableError: BUFFER_EXHAUSTED when too many are open, INVALID_KEY, OUTSIDE_RETENTION.
        """
        keys = await self._services.run(key_range, wanted.schema, request)
        limit = None if request.limit < 0 else request.limit
        self.expire()
        if len(self._open) >= self._services.limits.scans_open_max:
            raise TableError(
                TableErrorCode.BUFFER_EXHAUSTED,
                f"{len(self._open)} snapshot scans are open, which is the most; try again later",
            )
        past: int | None = None

        def begin(store: KeyValueStore) -> SnapshotScan:
            return SnapshotScan(bucket, store.snapshot(), wanted, keys, limit, past)

        scan: SnapshotScan | None = None
        if request.as_of in (-1, bucket.partition.high_watermark):
            scan = await bucket.read(begin)
        if scan is None or request.as_of not in (-1, scan.log_offset):
            past = request.as_of
            store = await self._past.acquire(bucket, past)
            try:
                scan = await self._services.run(begin, store)
            except BaseException:
                await self._past.release(bucket, past)
                raise
        scan_id = next(self._ids)
        self._open[scan_id] = scan
        self._renew(scan)
        return scan_id

    async def next(
        self, scan_id: int, piece: int, max_bytes: int
    ) -> tuple[SnapshotScan, Rows, bytes | None, bool]:
        """(the scan, rows, the last one's key, whether there may be more); `piece` -1: the next one, of which the last
        closes the scan. Raises TableError(SCAN_EXPIRED)."""
        self.expire()
        scan = self._open.get(scan_id)
        if scan is None or scan.bucket.closed:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"scan {scan_id} is not open: it was finished, or not continued for "
                f"{self._services.limits.scan_lease_seconds:.0f} s; begin again",
            )
        async with scan.turn:
            number = scan.next_piece if piece == -1 else piece
            rows, last, has_more = await self._services.run(scan.rows_of, number, max_bytes)
        if has_more or piece != -1:
            self._renew(scan)
        else:
            self.close(scan_id)
        return scan, rows, last, has_more

    def close(self, scan_id: int) -> None:
        scan = self._open.pop(scan_id, None)
        if scan is not None and scan.past_offset is not None:
            self._services.context.start_task(
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
                self.close(scan_id)

    async def release(self, bucket: object) -> None:
        """The bucket's store is about to be closed."""
        for scan_id, scan in list(self._open.items()):
            if scan.bucket is bucket:
                self._open.pop(scan_id, None)
                async with scan.turn:
                    scan.end()
                if scan.past_offset is not None:
                    await self._past.release(scan.bucket, scan.past_offset)

    def _renew(self, scan: SnapshotScan) -> None:
        now = self._services.context.clock.monotonic()
        scan.expires_at = now + self._services.limits.scan_lease_seconds
