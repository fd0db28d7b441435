"""The part of a partition's log that is in remote storage, read as the local one is.

Segments there are `broker.log.segment`'s over a `RemoteDisk`, found and cut by the local log's own reader, so that
positions, indexes, times and aborted transactions are looked up by the same code. What is different: it blocks for as
long as the network takes, and belongs into a thread of `readers`.

The manifest is read when it is first needed. What it names beyond what the local log knows to be there (`tiered_to`) is
no part of it: a crash came before that was noted, or the data directory was restored to an earlier time and offsets
were given anew. Whoever writes next leaves it out (`broker.remote.manager`).

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from broker import disk_errors
from broker.log.errors import CorruptLogError
from broker.log.reader import Reader
from broker.log.region import RemoteRegion
from broker.log.segment import Segment
from broker.log.slice import LogSlice
from broker.log.time_lookup import OffsetAtTime, Opened, first_at_or_after, latest
from broker.remote.disk import RemoteDisk
from broker.remote.manifest import Manifest, ManifestError, manifest_number
from protocol.errors import DecodeError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.log.transaction_index import AbortedTransaction
    from broker.objects.files import RemoteFiles
    from broker.ports import Disk
    from broker.remote.chunks import Chunks
    from broker.remote.manifest import RemoteSegment

logger = logging.getLogger("headrace.remote")

Result = TypeVar("Result")

_INDEX_INTERVAL_BYTES = 4096
"""Only for indexes that have to be built again."""


class RemoteLog:
    """Of one partition. `tiered_to`: what its local log knew to be there when it was opened."""

    def __init__(
        self,
        name: str,
        folder: str,
        files: RemoteFiles,
        chunks: Chunks,
        readers: Executor,
        tiered_to: int,
    ) -> None:
        self.name = name
        self.folder = folder
        self.manifest = Manifest()
        self.is_loaded = False
        self.has_leftovers = True
        """Objects may be there that no manifest names."""
        self._files = files
        self._chunks = chunks
        self._readers = readers
        self._tiered_to: int | None = tiered_to
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
                self.install(await self.run(self._newest))
                self.is_loaded = True

    def reload(self) -> None:
        """Somebody else has written: look again when it is needed."""
        self.is_loaded = False

    def install(self, manifest: Manifest) -> None:
        """This is what there is from now on. Reads under way go on with what was there."""
        if self._tiered_to is not None:
            kept = [segment for segment in manifest.segments if segment.end_offset <= self._tiered_to]
            if len(kept) < len(manifest.segments):
                logger.info(
                    "%s: remote storage has offsets up to %d, and this log knows of those up to %d: the others are "
                    "left out",
                    self.name, manifest.end_offset, self._tiered_to,
                )  # fmt: skip
            manifest = Manifest(manifest.number, manifest.writer, tuple(kept))
            self._tiered_to = None
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

    def _newest(self) -> Manifest:
        """In a thread. A listing may be behind: manifests that it does not show yet are asked for by their number."""
        numbers = [manifest_number(name) for name in self._files.names(self.folder)]
        newest, number = Manifest(), max(numbers, default=0)
        while True:
            try:
                newest = Manifest.decode(self._files.read(f"{self.folder}/{Manifest(number or 1).name}"))
            except FileNotFoundError:
                return newest
            number = newest.number + 1

    # -- reading -------------------------------------------------------------------------------------------

    async def read(self, offset: int, max_bytes: int, up_to: int, min_one_batch: bool) -> LogSlice:
        """As `PartitionLog.read`, for an offset that is not local. The region waits for the network when it is read.

        Raises KafkaError(KAFKA_STORAGE_ERROR) when remote storage cannot be reached or has not got it.
        """
        await self.load()
        return await self.run(self._read, offset, max_bytes, up_to, min_one_batch)

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
            raise self.storage_error("be read", error) from error

    def storage_error(self, doing: str, error: Exception) -> KafkaError:
        disk_errors.DISK_LOG.tell(
            logger, logging.ERROR, f"remote storage of {self.name}", "%s: remote storage cannot %s: %s",
            self.name, doing, error,
        )  # fmt: skip
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: remote storage cannot {doing}: {error}"
        )
