"""The staged chunks of uncommitted batches: files, one per attempt and bucket.

A task's rows are stored here as they arrive, and go into the table when their writer commits (`commits.py`). A chunk is
acknowledged once its file has all of it; a partial chunk at a file's end, left by a crash, was never acknowledged and
is cut off. A chunk's number in its file makes a repeated request harmless.

Layout: `ROOT/<table id>/<writer>/<batch>/<attempt>.<bucket>`, where <writer> is a hash of the writer's name. In a
partitioned table it is `<attempt>.<partition id>.<bucket>`, under the whole table's id. A chunk is `int32 length of the
rest, int32 CRC-32C of the rest, int16 number of target columns (-1: all), int32 for each, batch`. In an update of
existing rows the number is -2 for all columns, and -2 minus their number for some.

A durable chunk survives a power failure together with the names of its file and of the folders above it, up to the
area's `base`, which existed before. Blocking: called in executor threads, by one thread at a time for each attempt.
"""

from __future__ import annotations

import hashlib
import re
import struct
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

import crc32c
import msgspec

from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import Clock, Disk, DiskFile, SystemClock
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.server.merge.writes import ClientWrite
from headrace.tablelayer.server.staged.place import Place

_PREFIX = struct.Struct(">iI")
_COUNT = struct.Struct(">h")
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(r"[0-9a-f]{32}")
_ALL_COLUMNS = -1
_UPDATE = -2


class Chunk(ClientWrite, frozen=True):
    """A staged write."""

    def head(self) -> bytes:
        """Return the bytes before the batch in a file."""
        targets = self.targets or ()
        count = len(targets)
        if self.update:
            count = _UPDATE - count
        elif self.targets is None:
            count = _ALL_COLUMNS
        return struct.pack(f">h{len(targets)}i", count, *targets)

    @classmethod
    def of(cls, body: bytes) -> Chunk:
        """Return the chunk of `head` and the batch behind it."""
        (count,) = _COUNT.unpack_from(body)
        update = count <= _UPDATE
        if update:
            count = _UPDATE - count or _ALL_COLUMNS
        if count == _ALL_COLUMNS:
            return cls(None, memoryview(body)[_COUNT.size :], update)
        end = _COUNT.size + 4 * count
        return cls(struct.unpack_from(f">{count}i", body, _COUNT.size), memoryview(body)[end:], update)


class _Tail(msgspec.Struct):
    """The end of a file, and the start of its last chunk."""

    count: int
    size: int
    last: int = 0


def writer_key(writer: str) -> str:
    """Return a writer's name for files and nodes: a hash."""
    return hashlib.sha256(writer.encode()).hexdigest()[:32]


def check_key(key: str) -> None:
    """Raise TableError(INVALID_ROW) for a key that `writer_key` never returns."""
    if not _KEY.fullmatch(key):
        raise TableError(TableErrorCode.INVALID_ROW, f"{key!r:.100} is not the key of a writer")


def check_names(writer: str, batch_id: int, attempts: Sequence[str]) -> None:
    """Raise TableError(INVALID_ROW) for names that cannot be stored."""
    if not writer or len(writer) > 200:
        raise TableError(
            TableErrorCode.INVALID_ROW, f"a writer's name has 1 to 200 characters, not {len(writer)}"
        )
    if batch_id < 0:
        raise TableError(TableErrorCode.INVALID_ROW, f"a batch number is 0 or more, not {batch_id}")
    for attempt in attempts:
        if not _ATTEMPT.fullmatch(attempt):
            raise TableError(
                TableErrorCode.INVALID_ROW, f"{attempt!r} is not a name of an attempt: use A-Z a-z 0-9 _ -"
            )


class StagingArea:
    """All staged chunks of a server. `base` is a folder above `root` whose own name is durable; the default is the
    folder that `root` is in. Without ports the system's own are used.
    """

    def __init__(
        self, root: Path, base: Path | None = None, disk: Disk | None = None, clock: Clock | None = None
    ) -> None:
        self.disk: Disk = disk or SystemDisk()
        self.clock: Clock = clock or SystemClock()
        self._root = root
        self._base = root.parent if base is None else base
        self._tails: dict[Path, _Tail] = {}
        self._named: set[Path] = set()
        """Files and folders whose names are durable."""
        self._folders = threading.Lock()
        """Held while a file is added to its folder, a batch is marked as used, or an unused folder is removed."""
        self._written = Counter[Path]()
        """Folders of batches, with the number of chunks that are being written to them."""

    def path(self, table_id: UUID, writer: str, batch_id: int, attempt: str, place: Place) -> Path:
        return self.path_of_key(table_id, writer_key(writer), batch_id, attempt, place)

    def path_of_key(self, table_id: UUID, key: str, batch_id: int, attempt: str, place: Place) -> Path:
        """Return the `path` of a writer by its `writer_key`."""
        return self._root / str(table_id) / key / str(batch_id) / f"{attempt}.{place.text}"

    def append(self, path: Path, number: int, chunk: Chunk, *, durable: bool) -> None:
        """Store a chunk as number `number` of its file; do nothing if the file already has it.

        Raises KafkaError(OUT_OF_ORDER_SEQUENCE_NUMBER) if an earlier chunk is missing, KAFKA_STORAGE_ERROR if the disk
        fails.
        """
        try:
            tail = self._tail(path)
            if number < tail.count:
                return
            if number > tail.count:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"chunk {number} of {path.name} was sent, but {tail.count} is the next: begin a new attempt",
                )
            head = chunk.head()
            size = len(head) + len(chunk.batch)
            crc = crc32c.crc32c(chunk.batch, crc32c.crc32c(head))
            with self._appending(path, tail) as file:
                if file.size() > tail.size:
                    file.truncate(tail.size)  # the rest of a failed or interrupted append
                file.write([_PREFIX.pack(size, crc) + head, chunk.batch], tail.size)
                if durable:
                    file.sync()
                    self._sync_names(path)
        except OSError as error:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"rows cannot be staged: {error.strerror or error}"
            ) from error
        self._tails[path] = _Tail(tail.count + 1, tail.size + _PREFIX.size + size, tail.size)

    @contextmanager
    def _appending(self, path: Path, tail: _Tail) -> Iterator[DiskFile]:
        """Open the file, and mark its batch as in use until the block ends. Raises OSError, and KafkaError if `tail` is
        outdated.
        """
        with self._folders:
            if tail.count and self._tails.get(path) is not tail:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"the rows staged as {path.name} were removed after a long idle time; begin a new attempt",
                )
            if not tail.count:
                self.disk.make_directory(path.parent)
            file = self.disk.open(path, create=True)
            self._written[path.parent] += 1
        try:
            yield file
        finally:
            with self._folders:
                self._written -= Counter([path.parent])
            file.close()

    def _sync_names(self, path: Path) -> None:
        """Make the names of a file and of the folders above it durable. Raises OSError."""
        new = [
            each for each in (path, *path.parents) if self._base in each.parents and each not in self._named
        ]
        for each in new:
            self.disk.sync_directory(each.parent)
        self._named.update(new)

    def places(self, table_id: UUID, writer: str, batch_id: int, attempt: str) -> list[Place]:
        """Return the places for which an attempt has staged chunks."""
        folder = self._root / str(table_id) / writer_key(writer) / str(batch_id)
        return [Place.from_text(name.removeprefix(f"{attempt}.")) for name in self._names(folder, attempt)]

    def of_place(self, table_id: UUID, place: Place) -> list[tuple[str, int, str]]:
        """Return the writer's key, batch and attempt of each file that is staged for a place."""
        found, ends, root = list[tuple[str, int, str]](), f".{place.text}", self._root / str(table_id)
        for key in self.disk.directories(root):
            for batch in self.disk.directories(root / key):
                attempts = [name.partition(".") for name in self.disk.names(root / key / batch)]
                found += [(key, int(batch), attempt) for attempt, dot, rest in attempts if dot + rest == ends]
        return found

    def _names(self, folder: Path, attempt: str) -> list[str]:
        return [name for name in self.disk.names(folder) if name.startswith(f"{attempt}.")]

    def count(self, path: Path) -> int:
        """Return the number of complete chunks in a file; 0 if there is no file."""
        return self._tail(path).count

    def counts(
        self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]
    ) -> dict[str, dict[Place, int]]:
        """Return the number of complete chunks by attempt and place."""
        return {
            attempt: {
                place: self.count(self.path(table_id, writer, batch_id, attempt, place))
                for place in self.places(table_id, writer, batch_id, attempt)
            }
            for attempt in attempts
        }

    def read(self, path: Path) -> Iterator[Chunk]:
        """Yield the complete chunks of a file, one at a time in memory."""
        yield from (chunk for _, chunk in self._read(path, 0))

    def last(self, path: Path) -> tuple[int, Chunk] | None:
        """Return the last complete chunk of a file with its number; only this one is read if its position is known."""
        tail = self._tails.get(path)
        if tail is not None:
            found = next(self._read(path, tail.last), None)
            return None if found is None else (tail.count - 1, found[1])
        chunks = deque(enumerate(self.read(path)), maxlen=1)
        return chunks[0] if chunks else None

    def _read(self, path: Path, position: int) -> Iterator[tuple[int, Chunk]]:
        """Yield complete chunks from a position on, each with its own position."""
        try:
            file = self.disk.open_read_only(path)
        except FileNotFoundError:
            return
        try:
            while len(prefix := file.read(_PREFIX.size, position)) == _PREFIX.size:
                size, crc = _PREFIX.unpack(prefix)
                body = file.read(max(0, size), position + _PREFIX.size)
                if len(body) < size or size < _COUNT.size or crc32c.crc32c(body) != crc:
                    return
                yield position, Chunk.of(body)
                position += _PREFIX.size + size
        finally:
            file.close()

    def _tail(self, path: Path) -> _Tail:
        found = self._tails.get(path)
        if found is None:
            found = _Tail(0, 0)
            for position, chunk in self._read(path, 0):
                found.count += 1
                found.last = position
                head = _COUNT.size + 4 * len(chunk.targets or ())
                found.size += _PREFIX.size + head + len(chunk.batch)
            if found.count:
                self._tails[path] = found
        return found

    def mark_used(self, folder: Path) -> None:
        """Mark a batch, by its folder, as used, because it is about to be committed: `drop_abandoned` leaves it."""
        with self._folders:
            for name in self.disk.names(folder):
                with suppress(FileNotFoundError):  # a cancelled attempt can be removed at any time
                    self.disk.touch(folder / name)
                    break

    # -- removing ------------------------------------------------------------------------------------------

    def drop_attempts(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> None:
        """Remove the chunks of these attempts."""
        folder = self._root / str(table_id) / writer_key(writer) / str(batch_id)
        for attempt in attempts:
            for path in [folder / name for name in self._names(folder, attempt)]:
                self.disk.remove(path)
                self._tails.pop(path, None)
                self._named.discard(path)

    def drop_batches(self, table_id: UUID, writer: str, up_to: int) -> None:
        """Remove a writer's chunks of batches up to this one."""
        folder = self._root / str(table_id) / writer_key(writer)
        if not self.disk.is_directory(folder):
            return
        for name in self.disk.directories(folder):
            if name.isdigit() and int(name) <= up_to:
                self._remove(folder / name)
        with self._folders:
            if not self.disk.directories(folder):
                self._remove(folder)

    def drop_table(self, table_id: UUID) -> None:
        self._remove(self._root / str(table_id))

    def drop_abandoned(self, older_than_s: float, kept: set[tuple[str, str, int]]) -> int:
        """Remove batches that had no new chunk for `older_than_s`; return their number.

        Batches in `kept` (table id, writer key, batch) stay: they are decided and will be applied.
        """
        removed = 0
        oldest = self.clock.time_ms() - 1000 * older_than_s
        for folder in list(batch_folders(self.disk, self._root)):
            table_id, writer, batch = folder.parts[-3:]
            with self._folders:  # so that no writer begins to use it between the check and the removal
                files = [folder / name for name in self.disk.names(folder)]
                newest = max(self.disk.written_ms(path) or 0.0 for path in (folder, *files))
                is_used = folder in self._written or (table_id, writer, int(batch)) in kept
                if newest < oldest and not is_used:
                    self._remove(folder)
                    removed += 1
        return removed

    def tables(self) -> list[UUID]:
        """Return the tables with staged chunks."""
        return [UUID(name) for name in self.disk.directories(self._root)]

    @property
    def root(self) -> Path:
        return self._root

    def drop_batch(self, folder: Path) -> None:
        """Remove all attempts of a batch, by the folder of their files."""
        self._remove(folder)

    def _remove(self, folder: Path) -> None:
        self.disk.remove_tree(folder)
        for path in [path for path in list(self._tails) if folder in path.parents]:
            self._tails.pop(path, None)
        self._named -= {path for path in list(self._named) if path == folder or folder in path.parents}


def batch_folders(disk: Disk, root: Path) -> Iterator[Path]:
    """Yield the folders of all batches of a staging area."""
    for table in disk.directories(root):
        for writer in disk.directories(root / table):
            for batch in disk.directories(root / table / writer):
                yield root / table / writer / batch
