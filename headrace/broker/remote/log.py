"""The part of a partition's log that is in remote storage, read as the local one is.

Segments there are `broker.log.segment`'s over a `RemoteDisk`, found and cut by the local log's own reader, so that
positions, indexes, times and aborted transactions are looked up by the same code. What is different: it blocks for as
long as the network takes, and belongs into a thread of `readers`.

The manifest is read when it is first needed, and again when somebody else may have written one. What it names that is
not of this log (`is_of_log`) is no part of it: a crash came before it was noted, the data directory was restored to an
earlier time and offsets were given anew, or another machine has gone on from what was there. Whoever writes next leaves
it out (`broker.remote.manager`).

On the event loop but where it says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from headrace.broker.log.errors import CorruptLogError
from headrace.broker.log.reader import Reader
from headrace.broker.log.region import RemoteRegion
from headrace.broker.log.segment import Segment
from headrace.broker.log.slice import LogSlice
from headrace.broker.log.time_lookup import OffsetAtTime, Opened, first_at_or_after, latest
from headrace.broker.remote.disk import RemoteDisk
from headrace.broker.remote.manifest import Manifest, ManifestError, manifest_number
from headrace.broker.runtime import disk_errors
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.log.transaction_index import AbortedTransaction
    from headrace.broker.objects.files import RemoteFiles
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.remote.chunks import Chunks
    from headrace.broker.remote.counts import Counts
    from headrace.broker.remote.manifest import RemoteSegment
    from headrace.broker.remote.quotas import RemoteQuota
    from headrace.broker.runtime.ports import Disk

logger = logging.getLogger("headrace.remote")

Result = TypeVar("Result")


def remote_log_of(partition: Partition) -> RemoteLog | None:
    """Return the remote log that the manager gave to a partition; the partition knows it by its Protocol alone."""
    return cast("RemoteLog | None", partition.remote)


_INDEX_INTERVAL_BYTES = 4096
"""Only for indexes that have to be built again."""
_GONE_MAX = 16
"""Manifests that a listing still has and that are gone."""


def newest_manifest(files: RemoteFiles, folder: str) -> Manifest:
    """The manifest that counts of a partition; an empty one, number 0, if there is none. A listing may be behind, and
    manifests go when there is a next one: those that it does not show yet are asked for by their number. Blocking.
    Raises OSError, ManifestError.
    """
    listed = max((manifest_number(name) for name in files.names(folder)), default=0)
    newest = Manifest()
    for number in count(listed or 1):
        try:
            newest = Manifest.decode(files.read(f"{folder}/{Manifest(number).name}"))
        except FileNotFoundError:
            if newest.number or not listed:
                return newest
            if number == listed + _GONE_MAX:
                raise OSError(f"{folder}: its manifests change faster than they can be read") from None
    raise AssertionError


def read_producers(files: RemoteFiles, folder: str, manifest: Manifest) -> bytes:
    """The snapshot of producers where the remote part ends; empty if it has none. Blocking. Raises OSError."""
    if not manifest.segments or not manifest.segments[-1].producers_size:
        return b""
    last = manifest.segments[-1]
    data = files.read_range(f"{folder}/{last.name}", last.producers_position, last.producers_size)
    if len(data) != last.producers_size:
        raise OSError(f"{folder}/{last.name} is shorter than it should be")
    return data


class RemoteLog:
    """Of one partition. `is_of_log`: whether a segment that somebody else has put there, or a life before, has what
    the local log has.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        files: RemoteFiles,
        chunks: Chunks,
        readers: Executor,
        is_of_log: Callable[[RemoteSegment], bool],
        writer: str,
        quota: RemoteQuota,
        counts: Counts,
    ) -> None:
        """`writer`: what this process calls itself in manifests. `quota`: of what is read; `counts`: of its topic."""
        self.name = name
        self.folder = folder
        self.manifest = Manifest()
        self.is_loaded = False
        self.has_leftovers = True
        """Objects may be there that no manifest names."""
        self.is_cut = False
        """The manifest that is there names more than what is of this log."""
        self._files = files
        self._chunks = chunks
        self._readers = readers
        self._is_of_log = is_of_log
        self._writer = writer
        self._quota = quota
        self.counts = counts
        self._segments: list[Segment] = []
        self._reader = Reader([], [])
        self._lock = threading.Lock()
        self._loading = asyncio.Lock()

    @property
    def end_offset(self) -> int:
        """Once it is loaded: what is below is in remote storage."""
        return self.manifest.end_offset

    # -- what there is -------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the manifest, once. Raises KafkaError."""
        if self.is_loaded:
            return
        async with self._loading:
            if not self.is_loaded:
                self.install(self._own(await self.run(self.newest)))
                self.is_loaded = True

    def reload(self) -> None:
        """Somebody else has written: look again when it is needed."""
        self.is_loaded = False

    def install(self, manifest: Manifest) -> None:
        """This is what there is from now on. Reads under way go on with what was there."""
        before = {segment.id for segment in self.manifest.segments}
        for gone in before - {segment.id for segment in manifest.segments}:
            name = next(each.name for each in self.manifest.segments if each.id == gone)
            self._chunks.forget(f"{self.folder}/{name}")
        disk = RemoteDisk(self._chunks, self.folder)
        disk.segments = {segment.base_offset: segment for segment in manifest.segments}
        segments = [self._segment(disk, segment) for segment in manifest.segments]
        with self._lock:
            self.manifest = manifest
            self._segments = segments
            self._reader = Reader(segments, [segment.base_offset for segment in segments])

    def _own(self, manifest: Manifest) -> Manifest:
        """Without what is not of this log."""
        kept = tuple(takewhile(self._is_of_log, manifest.segments))
        self.is_cut = manifest.writer != self._writer and len(kept) < len(manifest.segments)
        if not self.is_cut:
            return manifest
        cut = replace(manifest, segments=kept)
        logger.warning(
            "%s: remote storage has offsets up to %d, of which this log knows those up to %d: the others are left out",
            self.name, manifest.end_offset, cut.end_offset,
        )  # fmt: skip
        return cut

    def _segment(self, disk: RemoteDisk, stored: RemoteSegment) -> Segment:
        return Segment(
            cast("Disk", disk),
            Path(self.folder),
            stored.base_offset,
            interval_bytes=_INDEX_INTERVAL_BYTES,
            size=stored.size,
            end_offset=stored.end_offset,
            largest=(stored.largest_timestamp, stored.offset_of_largest),
            first_timestamp=stored.first_timestamp,
        )

    def newest(self) -> Manifest:
        """What is there, whoever has written it. In a thread. Raises OSError, ManifestError."""
        return newest_manifest(self._files, self.folder)

    def newest_with_producers(self) -> tuple[Manifest, bytes]:
        """And the snapshot of producers at its end. In a thread. Raises OSError, ManifestError."""
        manifest = self.newest()
        return manifest, read_producers(self._files, self.folder, manifest)

    def own_end(self, manifest: Manifest) -> int:
        """Up to where a manifest is of this log."""
        return max((each.end_offset for each in takewhile(self._is_of_log, manifest.segments)), default=0)

    # -- reading -------------------------------------------------------------------------------------------

    async def read(self, offset: int, max_bytes: int, up_to: int, min_one_batch: bool) -> LogSlice:
        """As `PartitionLog.read`, for an offset that is not local. The region waits for the network when it is read.
        Waits for as long as what was read before is more than the quota allows.

        Raises KafkaError(KAFKA_STORAGE_ERROR) when remote storage cannot be reached or has not got it.
        """
        counts = self.counts
        counts.fetches_waiting += 1
        try:
            while (seconds := self._quota.wait_seconds()) > 0.0:  # noqa: ASYNC110 - time alone is waited for
                await asyncio.sleep(seconds)
            counts.fetches += 1
            await self.load()
            found = await self.run(self._read, offset, max_bytes, up_to, min_one_batch)
        finally:
            counts.fetches_waiting -= 1
        self._quota.used(found.size)
        counts.fetched_bytes += found.size
        return found

    def _read(self, offset: int, max_bytes: int, up_to: int, min_one_batch: bool) -> LogSlice:
        with self._lock:
            manifest, reader = self.manifest, self._reader
            if not manifest.start_offset <= offset < manifest.end_offset:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{self.name}: offset {offset} is neither local nor in remote storage, which has "
                    f"{manifest.start_offset} to {manifest.end_offset}",
                )
            found = reader.read(offset, max_bytes, min(up_to, manifest.end_offset), min_one_batch)
        if found.region is None:
            return found
        return LogSlice(found.start_offset, RemoteRegion.of(found.region), found.end_offset)

    async def offset_for_timestamp(self, timestamp_ms: int, log_start_offset: int) -> OffsetAtTime | None:
        """The first record from the log's start on that is not older; None if it is not in remote storage."""
        await self.load()
        if all(segment.largest_timestamp < timestamp_ms for segment in self.manifest.segments):
            return None
        return await self.run(
            self._lookup, partial(first_at_or_after, timestamp_ms=timestamp_ms), log_start_offset
        )

    async def max_timestamp(self, log_start_offset: int) -> OffsetAtTime | None:
        """The first record with the largest timestamp, of those in remote storage."""
        await self.load()
        return await self.run(self._lookup, latest, log_start_offset)

    def _lookup(self, find: Callable[..., OffsetAtTime | None], log_start_offset: int) -> OffsetAtTime | None:
        with self._lock:
            return find(list(self._segments), log_start_offset=log_start_offset, opened=Opened())

    async def aborted_transactions(
        self, start_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Those with records in [start, end) whose markers are in remote storage, and whether there can be none in
        later segments.
        """
        await self.load()
        return await self.run(self._aborted, start_offset, end_offset)

    def _aborted(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        with self._lock:
            segments = self._segments
            stored = self.manifest.segments
            found: list[AbortedTransaction] = []
            first = max(bisect_right([each.base_offset for each in stored], start_offset) - 1, 0)
            for segment, there in zip(segments[first:], stored[first:], strict=True):
                if not there.aborted_size:
                    continue
                if not len(segment.aborted):
                    segment.read_transaction_index()
                here, is_complete = segment.aborted.overlapping(start_offset, end_offset)
                found += here
                if is_complete:
                    return found, True
            return found, False

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call what waits for the network in a thread. Raises KafkaError for what goes wrong there."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)
        except (OSError, CorruptLogError, DecodeError, ManifestError) as error:
            self.counts.fetch_errors += 1
            raise self.storage_error("be read", error) from error

    def storage_error(self, doing: str, error: Exception) -> KafkaError:
        disk_errors.DISK_LOG.tell(
            logger, logging.ERROR, f"remote storage of {self.name}", "%s: remote storage cannot %s: %s",
            self.name, doing, error,
        )  # fmt: skip
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: remote storage cannot {doing}: {error}"
        )
