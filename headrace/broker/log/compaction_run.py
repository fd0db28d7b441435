"""Clean a compacted log: choose the segments, run the steps, and replace the old segments with new ones.

One cleaning reads the dirty part (not yet cleaned) into an offset map. Then it rewrites every group of segments up to
its end without the records that the map supersedes. Never changed: the active segment, anything at or above `bound`
(the lower of high watermark and last stable offset), and records younger than `min.compaction.lag.ms`.

Files. The new segment of a group is written as `<base>.log.cleaned` with its indexes, checked and synced. Renaming it
to `<base>.log.swap` is the decision: after a crash before it, the next open discards the new segment; after a crash
behind it, the next open finishes the exchange (`compaction_swap`). The old segments are removed only when that name is
durable. The new segment takes their place only when they are durably removed. So a power cut that makes only some of
these changes durable never leaves an old segment beside the new one in its place. If nothing is left of a group, its
segments are only removed; any of them may come back, since all their records are superseded by durable ones. Groups are
done in the order of the log, each durable before the next, so a tombstone never leaves the disk before the records that
it deletes. Before the first group is replaced, the log durably notes the offset below which offsets may be missing.
Recovery takes gaps below it for compaction and gaps above it for damage.

Threads: `Cleaning.steps` runs in any thread, slice by slice, and names the steps that belong to the thread that owns
the log. Between slices the log may be written, cut at its start or closed. New segments whose old ones are gone by then
are discarded.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.log.compaction import BatchFilter, CleaningCounts, OffsetMap, TransactionView
from headrace.broker.log.compaction_plan import Cleanable, Step, groups
from headrace.broker.log.errors import CleaningAbandoned, CleaningError
from headrace.broker.log.scan import IndexBuilder, WalkEnd, walk
from headrace.broker.log.segment import CLEANED_SUFFIX, POSITION_MAX, Segment
from headrace.broker.runtime.ports import Disk, DiskFile
from headrace.protocol.errors import DecodeError
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.header import MAGIC_V2, BatchHeader, iter_headers

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog

logger = logging.getLogger("headrace.log")

_SLICE_BYTES: Final = 1 << 20
_SLICE_BATCHES: Final = 64
_PARTS_PER_WRITE: Final = 512
"""`pwritev` accepts 1,024 on Linux."""


class Cleaning:
    """One cleaning of one log, prepared by the log's owner. When it is done, the next one begins at `end_offset`."""

    def __init__(
        self, log: PartitionLog, part: Cleanable, *, now_ms: int, memory_bytes: int, secret: bytes
    ) -> None:
        self._log = log
        self._disk: Disk = log.disk
        self._part = part
        self._config = log.config
        self._now_ms = now_ms
        self._segments = [s for s in log.sealed_segments() if s.base_offset < part.end_offset]
        self._producers = log.last_of_producers()
        self._aborted = log.aborted_transactions(log.log_start_offset, part.end_offset)
        span = part.end_offset - part.first_dirty_offset
        self._keys = OffsetMap(memory_bytes, span, secret)
        self._memory_bytes = memory_bytes
        self.end_offset = part.first_dirty_offset
        self.counts = CleaningCounts()
        self.bytes_done = 0
        """Number of bytes that were read and written so far, for the rate limit."""

    def steps(self) -> Generator[Step, None, None]:
        """Carry out the cleaning. Each item names the thread that must ask for the next one.

        Raises CleaningError, CleaningAbandoned, OSError.
        """
        yield from self._read_keys()
        round_end = self._keys.end_offset
        if round_end <= self._part.first_dirty_offset:
            return
        filter_ = BatchFilter(
            self._keys,
            TransactionView(self._aborted),
            self._producers,
            round_end=round_end,
            now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
        )
        self.counts = filter_.counts
        segments = [segment for segment in self._segments if segment.base_offset < round_end]
        self._log.note_compaction(segments[-1].end_offset)
        for group in groups(segments, self._config.segment_bytes):
            yield from self._clean_group(group, filter_)
        self._log.note_compaction(0)  # an interrupted cleaning may have left parts of aborted transactions
        self.end_offset = round_end

    def _batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
        try:
            view = self._disk.open_read_only(segment.path).view()[: segment.size]
        except FileNotFoundError:
            raise CleaningAbandoned(f"{segment.path.name} is gone") from None
        try:
            for position, header in iter_headers(view):
                yield header, view[position : position + header.size]
        except DecodeError as error:
            raise CleaningError(f"{segment.path} is damaged ({error}); restore it from a copy") from None

    def _read_keys(self) -> Iterator[Step]:
        """Fill the offset map; stop early when it is full."""
        keys, start = self._keys, self._part.first_dirty_offset
        keys.end_offset = start
        transactions = TransactionView(self._aborted)
        slice_ = _Slice()
        for segment in self._segments:
            if segment.end_offset <= start:
                continue
            for header, batch in self._batches(segment):
                if slice_.is_over(header.size):
                    self.bytes_done += slice_.end()
                    yield Step.ANY_THREAD
                may_go = transactions.may_go(header)
                if header.last_offset < start:
                    continue
                if header.record_count and header.magic == MAGIC_V2 and not (header.is_control or may_go):
                    if not keys.has_room_for(header.record_count):
                        if keys.end_offset == start:
                            raise self._map_too_small(header)
                        return
                    try:
                        keys.add(decode_records(batch), start)
                    except DecodeError as error:
                        logger.warning("%s, offset %d: %s", segment.path, header.base_offset, error)
                keys.end_offset = header.next_offset
            keys.end_offset = segment.end_offset

    def _map_too_small(self, header: BatchHeader) -> CleaningError:
        return CleaningError(
            f"the batch at offset {header.base_offset} has {header.record_count} records, more keys than fit into "
            f"{self._memory_bytes} bytes; raise log.cleaner.dedupe.buffer.size"
        )

    def _clean_group(self, group: list[Segment], filter_: BatchFilter) -> Iterator[Step]:
        """Write one segment in place of `group`, and let the owner exchange them."""
        base_offset = group[0].base_offset
        cleaned = Segment(
            self._disk,
            self._log.directory,
            base_offset,
            interval_bytes=self._config.index_interval_bytes,
            end_offset=group[-1].end_offset,
        )
        path = cleaned.path.with_name(cleaned.path.name + CLEANED_SUFFIX)
        changed, size = len(group) > 1, 0
        file = self._disk.open(path, create=True)
        file.truncate(0)
        parts: list[memoryview | bytes] = []
        slice_ = _Slice()
        try:
            for segment in group:
                for header, batch in self._batches(segment):
                    if slice_.is_over(header.size):
                        size = _write(file, parts, size)
                        self.bytes_done += 2 * slice_.end()
                        yield Step.ANY_THREAD
                    left = filter_.clean(header, batch)
                    changed = changed or left is not batch
                    if left is not None:
                        parts.append(left)
            size = _write(file, parts, size)
            if not changed:
                return
            if size:
                file.sync()
                self._seal(cleaned, path, size)
            yield from self._exchange(group, cleaned, path)
        finally:
            self._disk.remove(path)
            for index_path in (cleaned.index_path, cleaned.time_index_path):
                self._disk.remove(index_path.with_name(index_path.name + CLEANED_SUFFIX))

    def _seal(self, cleaned: Segment, path: Path, size: int) -> None:
        """Read the new segment back, and make and store its indexes."""
        end = WalkEnd(0, 0)
        builder = IndexBuilder(cleaned.base_offset, self._config.index_interval_bytes)
        view = self._disk.open_read_only(path).view()
        for batches in walk(view, cleaned.base_offset, end, check_crc=True, gaps_below=cleaned.end_offset):
            builder.add(batches)
        if end.problem is not None or len(view) != size or size > POSITION_MAX:
            raise CleaningError(
                f"{path} differs from what was written: {len(view)} of {size} bytes, at byte "
                f"{end.position}: {end.problem}"
            )
        cleaned.written_as(path, size, builder)
        cleaned.write_indexes(CLEANED_SUFFIX)
        for index_path in (cleaned.index_path, cleaned.time_index_path):
            with contextlib.suppress(FileNotFoundError):
                self._disk.open_read_only(index_path.with_name(index_path.name + CLEANED_SUFFIX)).sync()

    def _exchange(self, group: list[Segment], cleaned: Segment, path: Path) -> Iterator[Step]:
        """Exchange the segments as described in "Files" above. The owner's part is a few renames."""
        log, disk = self._log, self._disk
        yield Step.OWNER
        log.check_segments(group)
        if cleaned.size:
            cleaned.decide(path)
            yield Step.ANY_THREAD
            disk.sync_directory(log.directory)
            yield Step.OWNER
            try:
                log.check_segments(group)
            except CleaningAbandoned:
                disk.remove(cleaned.path)
                raise
        log.exchange(group, cleaned if cleaned.size else None)
        yield Step.ANY_THREAD
        disk.sync_directory(log.directory)
        if not cleaned.size:
            return
        yield Step.OWNER
        log.check_segments([cleaned])
        log.finish_exchange(cleaned)
        yield Step.ANY_THREAD
        disk.sync_directory(log.directory)


def run(cleaning: Cleaning) -> None:
    """Carry out a cleaning at once, in the thread that owns the log."""
    for _ in cleaning.steps():
        pass


def _write(file: DiskFile, parts: list[memoryview | bytes], position: int) -> int:
    """Write the parts, clear the list, and return the position after them."""
    for start in range(0, len(parts), _PARTS_PER_WRITE):
        some = parts[start : start + _PARTS_PER_WRITE]
        file.write(some, position)
        position += sum(map(len, some))
    parts.clear()
    return position


class _Slice:
    """Counts the work since the last pause."""

    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches = self._bytes = 0

    def is_over(self, size: int) -> bool:
        self._batches += 1
        self._bytes += size
        return self._batches > _SLICE_BATCHES or self._bytes > _SLICE_BYTES

    def end(self) -> int:
        done = self._bytes
        self._batches = self._bytes = 0
        return done
