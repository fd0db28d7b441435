"""Open snapshot scans: each pins its store's files, so each has a lease that every piece renews."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.server.reads import Rows, SnapshotScan, Wanted
from tablelayer.server.services import Services

if TYPE_CHECKING:
    from tablelayer.server.key_bucket import KeyBucket


class SnapshotScans:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[int, SnapshotScan] = {}
        # From a random number, so that ids of before a restart are not taken for newer ones.
        self._ids = itertools.count(int(services.context.entropy.random() * (1 << 52)))

    async def open(self, bucket: KeyBucket, wanted: Wanted) -> int:
        """Pin the bucket's state as it is. Raises TableError(BUFFER_EXHAUSTED) when too many are open."""
        self.expire()
        if len(self._open) >= self._services.limits.scans_open_max:
            raise TableError(
                TableErrorCode.BUFFER_EXHAUSTED,
                f"{len(self._open)} snapshot scans are open, which is the most; try again later",
            )
        scan = await bucket.read(lambda store: SnapshotScan(bucket, store.snapshot(), wanted))
        scan_id = next(self._ids)
        self._open[scan_id] = scan
        self._renew(scan)
        return scan_id

    async def next(self, scan_id: int, max_bytes: int) -> tuple[int, int, Rows, bool]:
        """(the scan's log offset, the rows' schema id, rows, whether there may be more).

        The last piece closes the scan. Raises TableError(SCAN_EXPIRED).
        """
        self.expire()
        scan = self._open.get(scan_id)
        if scan is None or scan.bucket.closed:
            self._open.pop(scan_id, None)
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"scan {scan_id} is not open: it was finished, or not continued for "
                f"{self._services.limits.scan_lease_seconds:.0f} s; begin again",
            )
        async with scan.turn:
            rows, has_more = await self._services.run(scan.next_rows, max_bytes)
        if has_more:
            self._renew(scan)
        else:
            self.close(scan_id)
        return scan.log_offset, scan.wanted.schema.schema_id, rows, has_more

    def close(self, scan_id: int) -> None:
        self._open.pop(scan_id, None)

    def expire(self) -> None:
        """Let go of scans whose lease is over."""
        now = self._services.context.clock.monotonic()
        for scan_id, scan in list(self._open.items()):
            if scan.bucket.closed or (scan.expires_at < now and not scan.turn.locked()):
                del self._open[scan_id]

    async def release(self, bucket: object) -> None:
        """The bucket's store is about to be closed."""
        for scan_id, scan in list(self._open.items()):
            if scan.bucket is bucket:
                self._open.pop(scan_id, None)
                async with scan.turn:
                    pass

    def _renew(self, scan: SnapshotScan) -> None:
        now = self._services.context.clock.monotonic()
        scan.expires_at = now + self._services.limits.scan_lease_seconds
