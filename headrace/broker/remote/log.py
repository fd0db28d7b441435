"""The remote part of a partition's log, with the same reads as the local log.

Remote segments are those of `broker.log.segment` over a `RemoteDisk`, and the local log's reader reads them. So the
same code looks up positions, indexes, times and aborted transactions. The difference: reads wait for the network, and
must run in a thread of `readers`.

The manifest is read at its first use, and again when another broker may have written one. Its segments that do not
belong to this log (`is_of_log`) are ignored: a crash came before they were noted, the data directory was restored to an
earlier time and offsets were reused, or another machine has continued from remote storage. The next writer leaves them
out (`broker.remote.manager`).

On the event loop unless stated otherwise.
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
from headrace.broker.runtime.invariants import InvariantError
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
    remote = partition.remote
    if remote is not None and not isinstance(remote, RemoteLog):
        raise InvariantError(f"the remote log of {partition!r} is not the manager's: {remote!r}")
    return remote


_INDEX_INTERVAL_BYTES = 4096
"""Index interval, only for indexes that are built again."""
_GONE_MAX = 16
"""Maximum number of removed manifests that a stale listing may show."""


def newest_manifest(files: RemoteFiles, folder: str) -> Manifest:
    """Return the newest manifest of a partition; an empty one, number 0, if there is none. A listing may be stale, and
    manifests are removed after the next one: numbers that it does not show yet are tried one by one. Blocking. Raises
    OSError, ManifestError.
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
    """Return the snapshot of producers at the end of the remote part; empty without one. Blocking. Raises OSError."""
    if not manifest.segments or not manifest.segments[-1].producers_size:
        return b""
    last = manifest.segments[-1]
    data = files.read_range(f"{folder}/{last.name}", last.producers_position, last.producers_size)
    if len(data) != last.producers_size:
        raise OSError(f"{folder}/{last.name} is shorter than it should be")
    return data


class RemoteLog:
    """The remote log of one partition. `is_of_log`: whether a segment from another broker, or from an earlier process,
    has the same records as the local log.
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
        """`writer`: the id of this process in manifests. `quota`: for reads; `counts`: of its topic."""
        self.name = name
        self.folder = folder
        self.manifest = Manifest()
        self.is_loaded = False
        self.has_leftovers = True
        """True if objects may exist that no manifest names."""
        self.is_cut = False
        """True if the stored manifest names segments that do not belong to this log."""
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
        """Offset below which records are in remote storage; after `load`."""
        return self.manifest.end_offset

    # -- the manifest --------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the manifest, once. Raises KafkaError."""
        if self.is_loaded:
            return
        async with self._loading:
            if not self.is_loaded:
                self.install(self._own(await self.run(self.newest)))
                self.is_loaded = True

    def reload(self) -> None:
        """Read the manifest again at its next use: another broker has written one."""
        self.is_loaded = False

    def install(self, manifest: Manifest) -> None:
        """Use this manifest from now on. Reads in progress continue with the one before."""
        before = {segment.id for segment in self.manifest.segments}
        for gone in before - {segment.id for segment in manifest.segments}:
            name = next(each.name for each in self.manifest.segments if each.id == gone)
            self._chunks.forget(f"{self.folder}/{name}")
        segments = [self._segment(segment) for segment in manifest.segments]
        with self._lock:
            self.manifest = manifest
            self._segments = segments
            self._reader = Reader(segments, [segment.base_offset for segment in segments])

    def _own(self, manifest: Manifest) -> Manifest:
        """Return the manifest without segments that do not belong to this log."""
        kept = tuple(takewhile(self._is_of_log, manifest.segments))
        self.is_cut = manifest.writer != self._writer and len(kept) < len(manifest.segments)
        if not self.is_cut:
            return manifest
        cut = replace(manifest, segments=kept)
        logger.warning(
            "%s: remote storage has offsets up to %d; ignoring those from %d on, which do not belong to this log",
            self.name, manifest.end_offset, cut.end_offset,
        )  # fmt: skip
        return cut

    def _segment(self, stored: RemoteSegment) -> Segment:
        return Segment(
            cast("Disk", RemoteDisk(self._chunks, self.folder, stored)),
            Path(self.folder),
            stored.base_offset,
            interval_bytes=_INDEX_INTERVAL_BYTES,
            size=stored.size,
            end_offset=stored.end_offset,
            largest=(stored.largest_timestamp, stored.offset_of_largest),
            first_timestamp=stored.first_timestamp,
        )

    def newest(self) -> Manifest:
        """Return the newest manifest of any writer. In a thread. Raises OSError, ManifestError."""
        return newest_manifest(self._files, self.folder)

    def newest_with_producers(self) -> tuple[Manifest, bytes]:
        """Return the newest manifest and the snapshot of producers at its end. In a thread. Raises OSError,
        ManifestError.
        """
        manifest = self.newest()
        return manifest, read_producers(self._files, self.folder, manifest)

    def own_end(self, manifest: Manifest) -> int:
        """Return the end offset of the manifest's segments that belong to this log."""
        return max((each.end_offset for each in takewhile(self._is_of_log, manifest.segments)), default=0)

    # -- reading -------------------------------------------------------------------------------------------

    async def read(self, offset: int, max_bytes: int, up_to: int, min_one_batch: bool) -> LogSlice:
        """Read as `PartitionLog.read`, from an offset that is not local. The region waits for the network when it is
        read. Waits while earlier reads exceed the quota.

        Raises KafkaError(KAFKA_STORAGE_ERROR) when remote storage cannot be reached or does not have it.
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
        """Return the first record, from the log's start on, with at least this timestamp; None if it is not in remote
        storage.
        """
        await self.load()
        if all(segment.largest_timestamp < timestamp_ms for segment in self.manifest.segments):
            return None
        return await self.run(
            self._lookup, partial(first_at_or_after, timestamp_ms=timestamp_ms), log_start_offset
        )

    async def max_timestamp(self, log_start_offset: int) -> OffsetAtTime | None:
        """Return the first record with the largest timestamp, of those in remote storage."""
        await self.load()
        return await self.run(self._lookup, latest, log_start_offset)

    def _lookup(self, find: Callable[..., OffsetAtTime | None], log_start_offset: int) -> OffsetAtTime | None:
        with self._lock:
            return find(list(self._segments), log_start_offset=log_start_offset, opened=Opened())

    async def aborted_transactions(
        self, start_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Return transactions with records in [start, end) whose markers are in remote storage, and whether later
        segments cannot have any.
        """
        await self.load()
        return await self.run(self._aborted, start_offset, end_offset)

    def _aborted(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        with self._lock:
            segments = self._segments
            stored = self.manifest.segments
            found: dict[int, AbortedTransaction] = {}  # by marker, which two segments may have
            first = max(bisect_right([each.base_offset for each in stored], start_offset) - 1, 0)
            for segment, there in zip(segments[first:], stored[first:], strict=True):
                if not there.aborted_size:
                    continue
                if not len(segment.aborted):
                    segment.read_transaction_index()
                here, is_complete = segment.aborted.overlapping(start_offset, end_offset)
                found.update((aborted.last_offset, aborted) for aborted in here)
                if is_complete:
                    return list(found.values()), True
            return list(found.values()), False

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run `work`, which waits for the network, in a thread. Raises KafkaError for its errors."""
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
