"""The archive of backups, and how they are written and read back.

- `backups/<time>-<id>.json`: the contents of a backup (`Manifest`); it is written last, so the backup is there when
  this is
- `chunks/<xx>/<digest>`: bytes of files by their SHA-256, written once for all backups that have them

A file is cut into chunks of `CHUNK_BYTES`. A file with the size and time of the previous backup is not read again.
Otherwise only its missing chunks are written. Segments are written at their ends, so a backup of a log costs what was
appended. An interrupted backup leaves chunks without a manifest; the next one uses them, `prune` removes them.

A separate process makes a backup of running brokers, whose cuts (`broker.backup.cut`) say how far to read. It reads
their data directories, or asks them for the bytes (`Reader`). A backup of several brokers has the files of the data
directory of a single one. It is restored into a new data directory, which is there whole or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from headrace.broker.backup.cut import Cut, open_file
from headrace.broker.objects.files import RemoteFiles
from headrace.broker.runtime.ports import Disk, DiskFile

CHUNK_BYTES: Final = 16 << 20
THREADS: Final = 4
RESTORED_NAME: Final = "restored-from-backup"
"""Marks a restored data directory, because the server that it came from may still run. See `broker.remote.manager`."""
_VERSION: Final = 1
_MANIFESTS: Final = "backups"
_CHUNKS: Final = "chunks"
_TIME: Final = "%Y%m%dT%H%M%S"


class BackupError(Exception):
    """A backup cannot be made or restored; the text is for the user."""


class FilesGoneError(BackupError):
    """A topic was deleted while its files were read."""


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a data directory: its chunks in order, or its text. `written_ms` is the time that the
    file system of broker `node` reports; -1 stands for the only broker.
    """

    path: str
    size: int = 0
    written_ms: float = 0.0
    chunks: tuple[str, ...] = ()
    text: str | None = None
    node: int = -1


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a backup. `made_ms` is the instant of the backup. `node_id`: the broker that the files make.
    `brokers`: those of the cluster that it is of, empty for an independent broker. `lowered`: topics (or "" for the
    default of all) whose `min.insync.replicas` was removed, because it was too much for one broker.
    """

    id: str
    made_ms: int
    cluster_id: str
    node_id: str
    files: tuple[StoredFile, ...]
    version: int = _VERSION
    brokers: tuple[int, ...] = ()
    lowered: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        made = datetime.fromtimestamp(self.made_ms / 1000, UTC)
        return f"{_MANIFESTS}/{made:{_TIME}}.{self.made_ms % 1000:03}Z-{self.id}.json"

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)


class Reader(Protocol):
    """The files of one broker. Any thread may use it."""

    def open(self, place: str) -> ReadFile:
        """Open a file of its cut. Raises FilesGoneError, OSError."""


class ReadFile(Protocol):
    """An open file of a cut. `written_ms` is the file system's time."""

    @property
    def written_ms(self) -> float: ...

    def size(self) -> int: ...

    def read(self, size: int, position: int) -> bytes: ...

    def close(self) -> None: ...


class Part(msgspec.Struct, frozen=True):
    """The part of one broker in a backup: its cut, and its files. `node`: as in `StoredFile`."""

    cut: Cut
    reader: Reader
    node: int = -1


class Progress(msgspec.Struct):
    """Progress of making or restoring a backup. `written_bytes` had to be written."""

    files: int = 0
    files_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    written_bytes: int = 0


class _Source(msgspec.Struct, frozen=True):
    """`path` in the data directory; `size` bytes of the file at `place` of `reader`, or its text, or its bytes."""

    path: str
    place: str = ""
    size: int = 0
    reader: Reader | None = None
    node: int = -1
    text: str | None = None
    data: bytes = b""


def manifests(files: RemoteFiles) -> list[str]:
    """Return the names of all backups, oldest first. Raises OSError."""
    return [name for name in files.names(_MANIFESTS) if name.endswith(".json")]


def made_ms_of(name: str) -> int:
    """Return the instant of a backup, from the name of its manifest. Raises BackupError."""
    text = PurePosixPath(name).name.partition("-")[0]
    try:
        seconds, _, milliseconds = text.removesuffix("Z").partition(".")
        made = datetime.strptime(seconds, _TIME).replace(tzinfo=UTC)
        return int(made.timestamp()) * 1000 + int(milliseconds)
    except ValueError:
        raise BackupError(f"{name} is not the name of a backup") from None


def read_manifest(files: RemoteFiles, name: str) -> Manifest:
    """Read a manifest. Raises BackupError, OSError."""
    try:
        manifest = msgspec.json.decode(files.read(name), type=Manifest)
    except (msgspec.DecodeError, FileNotFoundError) as error:
        raise BackupError(f"{name} cannot be read: {error}") from error
    if manifest.version != _VERSION:
        raise BackupError(f"{name} is of version {manifest.version}; this one knows {_VERSION}: upgrade")
    return manifest


# -- making one --------------------------------------------------------------------------------------------


class LocalReader:
    """Reads the files of a data directory on this machine."""

    def __init__(self, disk: Disk, data_dir: Path) -> None:
        self._disk = disk
        self._data_dir = data_dir

    def open(self, place: str) -> ReadFile:
        try:
            file, written_ms = open_file(self._disk, self._data_dir / place)
        except FileNotFoundError as error:
            raise gone(place) from error
        return _LocalFile(file, written_ms)


class _LocalFile:
    def __init__(self, file: DiskFile, written_ms: float) -> None:
        self.written_ms = written_ms
        self.size = file.size
        self.read = file.read
        self.close = file.close


def gone(place: str) -> FilesGoneError:
    return FilesGoneError(f"{place} is gone: its topic was deleted while the backup was made; run it again")


def make_backup(
    files: RemoteFiles,
    executor: Executor,
    parts: Sequence[Part],
    head: Manifest,
    told: Callable[[Progress], object] = lambda _: None,
) -> Manifest:
    """Write the files of `parts`, and the texts of `head`, which is a manifest without the other files. `told` is
    called for each file. Raises FilesGoneError, OSError.
    """
    sources = [_Source(file.path, text=file.text) for file in head.files]
    sources += [source for part in parts for source in _sources(part)]
    before: dict[str, StoredFile] = {}
    if names := manifests(files):
        before = {file.path: file for file in read_manifest(files, names[-1]).files}
    writer = _Writer(files, before, set(files.names(_CHUNKS)))
    progress = Progress(files_total=len(sources), bytes_total=sum(source.size for source in sources))
    stored = []
    for file, written in executor.map(writer.store, sources):
        progress.files += 1
        progress.bytes += file.size
        progress.written_bytes += written
        stored.append(file)
        told(progress)
    manifest = replace(head, files=tuple(stored))
    files.put(manifest.name, msgspec.json.encode(manifest))
    return manifest


def _sources(part: Part) -> Iterator[_Source]:
    for each in part.cut.beside:  # first, because no lock keeps files of rows that are handed over
        yield _Source(each.path, each.place, each.size, part.reader, part.node)
    for partition in part.cut.partitions:
        for name, text in partition.texts.items():
            yield _Source(f"{partition.folder}/{name}", text=text)
        for name, data in partition.snapshots.items():
            yield _Source(f"{partition.folder}/{name}", size=len(data), data=data)
        for name, size in partition.files:
            path = f"{partition.folder}/{name}"
            yield _Source(path, path, size, part.reader, part.node)


class _Writer:
    """Writes the files of one backup; chunks named in `there` need not be written. Any thread may use it."""

    def __init__(self, files: RemoteFiles, before: dict[str, StoredFile], there: set[str]) -> None:
        self._files = files
        self._before = before
        self._there = there

    def store(self, source: _Source) -> tuple[StoredFile, int]:
        """Return the stored file, and the number of bytes that were written for it."""
        if source.text is not None:
            return StoredFile(source.path, text=source.text), 0
        if source.reader is None:
            digest, written = self._put(source.data)
            return StoredFile(source.path, len(source.data), chunks=(digest,)), written
        file = source.reader.open(source.place)
        try:
            before = self._before.get(source.path)
            if (
                before is not None
                and (before.size, before.written_ms, before.node)
                == (source.size, file.written_ms, source.node)
                and all(_chunk(digest) in self._there for digest in before.chunks)
            ):
                return before, 0
            chunks, written = [], 0
            for position in range(0, source.size, CHUNK_BYTES):
                size = min(CHUNK_BYTES, source.size - position)
                data = file.read(size, position)
                if len(data) != size:
                    raise FilesGoneError(f"{source.place} has become shorter while it was read")
                digest, new = self._put(data)
                written += new
                chunks.append(digest)
            stored = StoredFile(source.path, source.size, file.written_ms, tuple(chunks), node=source.node)
        finally:
            file.close()
        return stored, written

    def _put(self, data: bytes) -> tuple[str, int]:
        """Write a chunk unless it exists; return its digest, and the number of written bytes."""
        digest = hashlib.sha256(data).hexdigest()
        if _chunk(digest) in self._there:
            return digest, 0
        self._files.put(_chunk(digest), data)
        self._there.add(_chunk(digest))
        return digest, len(data)


def _chunk(digest: str) -> str:
    return f"{_CHUNKS}/{digest[:2]}/{digest}"


def prune(files: RemoteFiles, keep: int) -> tuple[int, int]:
    """Keep the newest backups and their chunks, and return the numbers of removed backups and chunks. Raises OSError,
    BackupError.

    Do not call it while a backup is being made: the chunks of that backup belong to none yet.
    """
    names = manifests(files)
    kept = [read_manifest(files, name) for name in names[-keep:]]
    gone = names[:-keep]
    for name in gone:
        files.remove(name)
    needed = {_chunk(digest) for manifest in kept for file in manifest.files for digest in file.chunks}
    orphans = [name for name in files.names(_CHUNKS) if name not in needed]
    for name in orphans:
        files.remove(name)
    return len(gone), len(orphans)


# -- reading one back --------------------------------------------------------------------------------------


def choose(files: RemoteFiles, as_of_ms: int | None) -> str:
    """Return the name of the newest backup that was made at `as_of_ms` or before. Raises BackupError, OSError."""
    names = manifests(files)
    if not names:
        raise BackupError(f"there is no backup in {files}")
    found = [name for name in names if as_of_ms is None or made_ms_of(name) <= as_of_ms]
    if not found:
        oldest = datetime.fromtimestamp(made_ms_of(names[0]) / 1000, UTC)
        raise BackupError(f"the oldest backup in {files} is of {oldest.isoformat()}: there is no earlier one")
    return found[-1]


def restore(
    files: RemoteFiles,
    manifest: Manifest,
    disk: Disk,
    executor: Executor,
    data_dir: Path,
    told: Callable[[Progress], object] = lambda _: None,
) -> None:
    """Make the data directory of the backup, durably. The directory must be missing or empty.

    Raises BackupError, also for a chunk that differs from what was written, and OSError. In both cases the directory is
    not made.
    """
    if disk.names(data_dir) or disk.directories(data_dir):
        raise BackupError(f"{data_dir} is not empty: restore into a new directory")
    for file in manifest.files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts:
            raise BackupError(f"the backup names a file outside of a data directory: {file.path}")
    making = data_dir.with_name(f"{data_dir.name}.restoring")
    disk.remove_tree(making)
    folders = {making, *(making / PurePosixPath(file.path).parent for file in manifest.files)}
    folders |= {above for folder in folders for above in folder.parents if making in above.parents}
    for folder in sorted(folders):
        disk.make_directory(folder)
    progress = Progress(files_total=len(manifest.files), bytes_total=manifest.size_bytes)
    try:
        for size in executor.map(partial(_write, files, disk, making), manifest.files):
            progress.files += 1
            progress.bytes += size
            told(progress)
        disk.replace(making / RESTORED_NAME, f"{manifest.id}\n".encode(), sync=True)
        for folder in sorted(folders, reverse=True):
            disk.sync_directory(folder)
        disk.remove_directory(data_dir)
        disk.rename(making, data_dir)
        disk.sync_directory(data_dir.parent)
    except BaseException:
        disk.remove_tree(making)
        raise


def _write(files: RemoteFiles, disk: Disk, folder: Path, stored: StoredFile) -> int:
    file, position = disk.open(folder / stored.path, create=True), 0
    try:
        for data in [stored.text.encode()] if stored.text is not None else _contents(files, stored):
            file.write([data], position)
            position += len(data)
        file.sync()
    finally:
        file.close()
    if stored.text is None and position != stored.size:
        raise BackupError(
            f"{stored.path} has {stored.size} bytes, and its chunks {position}: the backup is damaged"
        )
    return position


def _contents(files: RemoteFiles, stored: StoredFile) -> Iterator[bytes]:
    for digest in stored.chunks:
        try:
            data = files.read(_chunk(digest))
        except FileNotFoundError:
            raise BackupError(
                f"a chunk of {stored.path} is missing ({digest}): the backup is damaged"
            ) from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise BackupError(
                f"a chunk of {stored.path} differs from what was written ({digest}): the backup is damaged"
            )
        yield data
