"""One segment: a file of batches and the two sparse indexes that find one in it.

Files are opened when they are needed. The indexes of the active segment are in memory and reach their files when it is
sealed or closed: after a crash the segment is scanned anyway, and they are made again. Those of sealed segments are
mapped on first use, checked, and rebuilt from the log when they are missing or wrong. A lookup uses an entry only if it
names the batch that it points at.

Positions are bytes in the file. Nothing here reads the body of a batch.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.log.errors import CorruptLogError, HalfWrittenError
from headrace.broker.log.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from headrace.broker.log.scan import IndexBuilder, WalkEnd, walk
from headrace.broker.log.transaction_index import FILE_SUFFIX as TRANSACTION_INDEX_SUFFIX
from headrace.broker.log.transaction_index import TransactionIndex
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.open_files import SEGMENT_FILES
from headrace.broker.runtime.ports import Disk, DiskFile
from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import (
    ARROW_HEADER_SIZE,
    HEADER_SIZE,
    LOG_OVERHEAD,
    UP_TO_LAST_OFFSET_DELTA,
    BatchHeader,
    read_header,
)

if TYPE_CHECKING:
    from headrace.broker.log.config import LogConfig

logger = logging.getLogger("headrace.log")

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
OFFSET_DIGITS: Final = 20
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
POSITION_MAX: Final = (1 << 31) - 1

_READ_AHEAD: Final = 4096
_MAPPED_FROM_BYTES: Final = 256 * 1024


def file_stem(base_offset: int) -> str:
    return f"{base_offset:0{OFFSET_DIGITS}d}"


class Segment:
    """`size` bytes of whole batches with offsets base_offset .. end_offset-1.

    - largest_timestamp: the largest one of its batches, -1 if none has one; offset_of_largest is the last offset of the
      first batch that has it
    - aborted: the transactions whose abort markers are here; written to a file with the indexes
    - first_timestamp: that of its first batch; time-based rolling counts from it
    """

    __slots__ = (
        "__weakref__",
        "_directory",
        "_disk",
        "_file",
        "_index",
        "_interval_bytes",
        "_is_swap",
        "_largest",
        "_time_index",
        "aborted",
        "base_offset",
        "bytes_since_index",
        "end_offset",
        "first_timestamp",
        "has_unsynced_indexes",
        "is_active",
        "jitter_ms",
        "size",
        "untimed_append_ms",
        "used",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        base_offset: int,
        *,
        interval_bytes: int,
        size: int = 0,
        end_offset: int | None = None,
        largest: tuple[int, int] | None = None,
        first_timestamp: int = -1,
    ) -> None:
        """`largest` is (largest timestamp, its offset); None: it is read from the time index when it is needed."""
        self._disk = disk
        self._directory = directory
        self._interval_bytes = interval_bytes
        self._file: DiskFile | None = None
        self._is_swap = False
        self._index = OffsetIndex(base_offset) if size == 0 else None
        self._time_index = TimeIndex(base_offset) if size == 0 else None
        self._largest = (-1, base_offset) if largest is None and size == 0 else largest
        self.base_offset = base_offset
        self.size = size
        self.end_offset = base_offset if end_offset is None else end_offset
        self.first_timestamp = first_timestamp
        self.bytes_since_index = 0
        self.aborted = TransactionIndex()
        self.is_active = False
        self.has_unsynced_indexes = False
        """Whether its index files were written since the last `sync`. Until they are synced, the segment must not be
        noted as durable.
        """
        self.jitter_ms = 0
        """Milliseconds that are subtracted from `segment.ms`."""
        self.used = False
        """Whether its file was used lately, so that it stays open for now."""
        self.untimed_append_ms = -1
        """Time of the last append of a batch without a timestamp; retention has no other time for it."""

    def __repr__(self) -> str:
        return f"<Segment {self.path} offsets {self.base_offset} to {self.end_offset}, {self.size} bytes>"

    # -- files ---------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The path of its file; a compacted segment that has not taken its place yet has another name."""
        return self._path(LOG_SUFFIX + SWAP_SUFFIX if self._is_swap else LOG_SUFFIX)

    @property
    def index_path(self) -> Path:
        return self._path(INDEX_SUFFIX)

    @property
    def time_index_path(self) -> Path:
        return self._path(TIME_INDEX_SUFFIX)

    @property
    def transaction_index_path(self) -> Path:
        return self._path(TRANSACTION_INDEX_SUFFIX)

    def _path(self, suffix: str) -> Path:
        return self._directory / (file_stem(self.base_offset) + suffix)

    @property
    def file(self) -> DiskFile:
        """The log file, opened on first use. Raises OSError."""
        self.used = True
        file = self._file  # another thread may close it at any time
        if file is None:
            disk, path = self._disk, self.path
            file = disk.open(path, create=True) if self.is_active else disk.open_read_only(path)
            self._file = file
            SEGMENT_FILES.opened(self)
        return file

    def close_file(self) -> None:
        """Close the log file; the next use opens it. A use in progress keeps it open until its end."""
        self._file = None

    def release(self) -> None:
        """Close file and mapped indexes; they are opened again when needed. Not for the active segment."""
        self.close_file()
        SEGMENT_FILES.forget(self)
        self._index = None
        self._time_index = None

    def activate(self) -> None:
        """Make it the active segment: open for writing, with indexes that can grow."""
        self._file = None
        self.is_active = True
        for index in (self._index, self._time_index):
            if index is not None:
                index.entries = bytearray(index.entries)

    def seal(self) -> None:
        """Note that it is not written any more: its indexes go to their files. The log file stays as it is."""
        self.write_indexes()
        self.is_active = False

    def write_indexes(self, suffix: str = "") -> None:
        """Write the indexes to their files, the largest timestamp as the last entry. They are a cache, but a file that
        looks whole is trusted. So `sync` comes before a recovery point beyond the segment is noted.
        """
        self.has_unsynced_indexes = not suffix
        timestamp, offset = self.largest
        if self.size and timestamp >= 0:
            self.time_index.maybe_append(timestamp, offset)
        index_path, time_index_path = (
            path.with_name(path.name + suffix) for path in (self.index_path, self.time_index_path)
        )
        try:
            self._disk.replace(index_path, bytes(self.index.entries), sync=False)
            self._disk.replace(time_index_path, bytes(self.time_index.entries), sync=False)
            if not suffix:
                self.write_transaction_index()
        except OSError as error:
            disk_errors.tell(logger, f"{self.path}: its indexes cannot be written and will be rebuilt", error)
            self._disk.remove(index_path)
            self._disk.remove(time_index_path)
            if not suffix:
                self._disk.remove(self.transaction_index_path)

    def has_index_files(self) -> bool:
        """Return whether an index file exists; an existing one must not be older than the segment. Raises OSError."""
        return any(self._disk.size(path) is not None for path in (self.index_path, self.time_index_path))

    def write_transaction_index(self) -> None:
        """Write the aborted transactions to their file. Raises OSError."""
        if len(self.aborted):
            self._disk.replace(self.transaction_index_path, bytes(self.aborted.entries), sync=False)
        else:
            self._disk.remove(self.transaction_index_path)

    def load_transaction_index(self, count: int) -> bool:
        """Read the aborted transactions, which must be `count`; return False if they do not exist."""
        if not count:
            return True
        try:
            aborted = TransactionIndex(self._disk.read(self.transaction_index_path))
        except OSError:
            return False
        if not aborted.is_plausible(count, self.base_offset, self.end_offset):
            return False
        self.aborted = aborted
        return True

    def read_transaction_index(self) -> None:
        """Read the aborted transactions from their file. Raises OSError."""
        self.aborted = TransactionIndex(self._disk.read(self.transaction_index_path))

    def written_as(self, path: Path, size: int, builder: IndexBuilder) -> None:
        """Note that this compacted segment was written to a file under another name. Raises OSError."""
        self._file = self._disk.open_read_only(path)
        self.size = size
        self.adopt(builder)

    def decide(self, path: Path) -> None:
        """Rename the compacted segment, written to `path`: from the next sync of the directory on it counts instead of
        the segments that it replaces. Raises OSError.
        """
        swap = self.path.with_name(self.path.name + SWAP_SUFFIX)
        self._disk.rename(path, swap)
        self._is_swap = True

    def take_place(self) -> None:
        """Give the files of a compacted segment their names. The replaced files are durably gone.

        Raises OSError.
        """
        swap, self._is_swap = self.path, False
        self._disk.rename(swap, self.path)
        for path in (self.index_path, self.time_index_path):
            with contextlib.suppress(FileNotFoundError):  # missing index files are rebuilt
                self._disk.rename(path.with_name(path.name + CLEANED_SUFFIX), path)

    def sync(self) -> None:
        """Make its batches durable, and its index files, too, once they are final: half an index that looks whole would
        hide batches. Raises OSError.
        """
        self.file.sync()
        if not self.is_active:
            with contextlib.suppress(FileNotFoundError):
                self._disk.open_read_only(self.index_path).sync()
                self._disk.open_read_only(self.time_index_path).sync()
                if len(self.aborted):
                    self._disk.open_read_only(self.transaction_index_path).sync()
            self.has_unsynced_indexes = False

    def remove(self, discard: Callable[[Path], object] | None = None) -> None:
        """Remove its files. If `discard` is given, it removes the log file later. Until then the file has a name that
        only `broker.partitions.deleted_files` looks at. Raises OSError.
        """
        self.release()
        if discard is None:
            self._disk.remove(self.path)
        elif self.size:
            doomed = self.path.with_name(self.path.name + DELETED_SUFFIX)
            self._disk.rename(self.path, doomed)
            discard(doomed)
        for path in (self.index_path, self.time_index_path, self.transaction_index_path):
            self._disk.remove(path)

    def must_roll(self, config: LogConfig, size: int, last_offset: int, timestamp: int) -> bool:
        """Return whether the next `size` bytes need a segment of their own; `timestamp` is their newest."""
        end = self.size + size
        return (
            end > config.segment_bytes
            or end > POSITION_MAX
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or 0 <= self.first_timestamp < timestamp - config.roll_ms + self.jitter_ms
            or (self.is_index_entry_due and self.index_bytes > config.segment_index_bytes)
        )

    # -- indexes -------------------------------------------------------------------------------------------

    @property
    def is_small(self) -> bool:
        """Whether it is the first segment of a log, with so few batches that its indexes need not be on disk."""
        return self.base_offset == 0 and self.size <= self._interval_bytes

    def prepare_to_grow(self) -> None:
        """Load the indexes that `appended` needs, because it must not fail. The indexes of a small segment may
        exist in its batches only.
        """
        if self._index is None or self._time_index is None:
            self._load_indexes()
        self._largest = self.largest

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._load_indexes()
        assert self._index is not None
        return self._index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    @property
    def largest(self) -> tuple[int, int]:
        """(largest timestamp, its offset)."""
        if self._largest is None:
            self._largest = self.time_index.last() or (-1, self.base_offset)
        return self._largest

    @property
    def largest_timestamp(self) -> int:
        return self.largest[0]

    @property
    def newest_ms(self) -> int:
        """Time of the newest batch, for retention: its timestamp, or its append if it has none; -1 if unknown."""
        return max(self.largest_timestamp, self.untimed_append_ms)

    def _load_indexes(self) -> None:
        index, time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        if self.size:
            try:
                index.entries = self._index_content(self.index_path)
                time_index.entries = self._index_content(self.time_index_path)
            except FileNotFoundError:
                return self.rebuild_indexes("" if self.is_small else "an index file is missing")
            is_plausible = index.is_plausible(self.end_offset, self.size)
            if not is_plausible or not time_index.is_plausible(self.end_offset):
                return self.rebuild_indexes("an index file is not plausible")
            if self.is_active:
                index.entries, time_index.entries = bytearray(index.entries), bytearray(time_index.entries)
        self._index, self._time_index = index, time_index
        return None

    def _index_content(self, path: Path) -> memoryview:
        """Return the contents of an index file. Small files are read and large ones mapped, because a mapping keeps a
        descriptor.
        """
        file = self._disk.open_read_only(path)
        size = file.size()
        return file.view() if size > _MAPPED_FROM_BYTES else memoryview(file.read(size, 0))

    def adopt(self, builder: IndexBuilder) -> None:
        """Use the indexes that a scan of this segment has built."""
        self._index, self._time_index = builder.index, builder.time_index
        self._largest = (builder.largest_timestamp, builder.offset_of_largest)
        self.first_timestamp = builder.first_timestamp

    def rebuild_indexes(self, why: str) -> None:
        """Rebuild both indexes from the log, and log a warning unless `why` is empty. Raises CorruptLogError if the
        batches of the log cannot be read.
        """
        if why:
            logger.warning("%s: %s, so both are rebuilt from the log", self.path, why)
        builder = IndexBuilder(self.base_offset, self._interval_bytes)
        end = WalkEnd(0, 0)
        for batches in walk(
            self.file.view()[: self.size], self.base_offset, end, check_crc=False, gaps_below=self.end_offset
        ):
            builder.add(batches)
        if end.problem is not None:
            raise self._corrupt(end.position, end.problem)
        self.adopt(builder)
        if not self.is_active:
            self.write_indexes()
            self.sync()  # recovery may not look at this segment

    def _corrupt(self, position: int, problem: str) -> CorruptLogError:
        return CorruptLogError(
            f"{self.path} is damaged: at byte {position} a batch should begin, but {problem}. "
            "Restore the file from a copy."
        )

    # -- writing -------------------------------------------------------------------------------------------

    @property
    def is_index_entry_due(self) -> bool:
        """Whether the indexes get an entry for the next batch."""
        return self.bytes_since_index > self._interval_bytes

    @property
    def index_bytes(self) -> int:
        """Size of the larger index after the next entry, with the one that sealing adds."""
        return max((len(self.index) + 1) * OFFSET_ENTRY.size, (len(self.time_index) + 2) * TIME_ENTRY.size)

    def appended(self, last_offset: int, size: int, max_timestamp: int) -> None:
        """Update size, end and indexes for a batch of `size` bytes that was written at the end."""
        position = self.size
        if position == 0:
            self.first_timestamp = max_timestamp
        largest = self._largest
        if largest is None:
            largest = self.largest
        if max_timestamp > largest[0]:
            largest = self._largest = (max_timestamp, last_offset)
        if self.bytes_since_index > self._interval_bytes:
            self.index.append(last_offset, position)
            self.time_index.maybe_append(*largest)
            self.bytes_since_index = 0
        self.bytes_since_index += size
        self.size = position + size
        self.end_offset = last_offset + 1

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write behind its end. Raises OSError, and HalfWrittenError if a part of it may be behind the end now."""
        file = self.file
        try:
            file.write(parts, self.size)
        except OSError as error:
            try:
                file.truncate(self.size)
            except OSError as second:
                raise HalfWrittenError(f"a failed append could not be undone: {second}") from error
            raise

    def truncate(self, position: int, end_offset: int) -> None:
        """Cut the active segment at a batch boundary. Raises OSError."""
        self.file.truncate(position)
        self.size, self.end_offset, self.bytes_since_index = position, end_offset, 0
        self.index.truncate(end_offset)
        self.time_index.truncate(end_offset)
        self.aborted.truncate(end_offset)
        self._largest = self.time_index.last() or (-1, self.base_offset)
        for _, header in self.headers(self.locate(self._largest[1])[0]):
            if header.max_timestamp > self._largest[0]:
                self._largest = (header.max_timestamp, header.last_offset)

    # -- finding -------------------------------------------------------------------------------------------

    def headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from a batch boundary on. Raises CorruptLogError, OSError.

        Reads a few KiB at a time, so that neighbouring small batches cost one read and large ones are skipped.
        """
        chunk, chunk_start = b"", position
        while position < self.size:
            if position + ARROW_HEADER_SIZE > chunk_start + len(chunk):
                chunk, chunk_start = (
                    self.file.read(min(_READ_AHEAD, self.size - position), position),
                    position,
                )
            try:
                header = read_header(chunk, position - chunk_start)
            except DecodeError as error:
                raise self._corrupt(position, str(error)) from None
            yield position, header
            position += header.size

    def locate(self, offset: int) -> tuple[int, int]:
        """Return (position, base offset) of the batch that holds `offset`, or of the next one if compaction has removed
        it; the segment's ends if there is none.
        """
        if offset < self.end_offset:
            start = self._trusted(self.index.floor(offset), lambda: self.index.floor(offset))
            for position, _, base_offset, last_offset in self._bounds(start):
                if last_offset >= offset:
                    return position, base_offset
        return self.size, self.end_offset

    def boundary_before(self, start: int, limit: int) -> int:
        """Return the last batch boundary at or before byte `limit`, given the boundary `start`; at least `start`."""
        if limit >= self.size:
            return self.size
        nearest = self._trusted(self.index.floor_position(limit), lambda: self.index.floor_position(limit))
        boundary = start
        for position, end, _, _ in self._bounds(max(start, nearest)):
            if position > limit:
                break
            boundary = position
            if end > limit:
                break
        return boundary

    def _bounds(self, position: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (position, end position, base offset, last offset) of each batch from a boundary on.

        The cheap form of `headers`, for searching.
        """
        chunk, chunk_start = b"", position
        while position < self.size:
            at = position - chunk_start
            if at + UP_TO_LAST_OFFSET_DELTA.size > len(chunk):
                chunk, chunk_start = (
                    self.file.read(min(_READ_AHEAD, self.size - position), position),
                    position,
                )
                at = 0
                if len(chunk) < UP_TO_LAST_OFFSET_DELTA.size:
                    raise self._corrupt(position, "the file ends there")
            base_offset, length, _, _, _, _, delta = UP_TO_LAST_OFFSET_DELTA.unpack_from(chunk, at)
            end = position + LOG_OVERHEAD + length
            if length < HEADER_SIZE - LOG_OVERHEAD or delta < 0 or end > self.size:
                raise self._corrupt(position, f"length {length} and offset delta {delta} are not plausible")
            yield position, end, base_offset, base_offset + delta
            position = end

    def _trusted(self, entry: tuple[int, int] | None, again: Callable[[], tuple[int, int] | None]) -> int:
        """Return the position of an index entry (0 without one) if the batch there matches it; otherwise rebuild the
        index and return the position from that.
        """
        if entry is not None and not self._is_true(entry):
            self.rebuild_indexes(f"its entry for offset {entry[0]} points at byte {entry[1]}, which is wrong")
            entry = again()
        return 0 if entry is None else entry[1]

    def _is_true(self, entry: tuple[int, int]) -> bool:
        offset, position = entry
        try:
            return read_header(self.file.read(ARROW_HEADER_SIZE, position)).last_offset == offset
        except DecodeError:
            return False
