"""The snapshots of one bucket's store: their files, and when they are taken and removed.

They are below the bucket's folder of the snapshot files, `<table id>/<bucket>/`, or `<table id>/<bucket>.<broker>/` for
a bucket with replicas:

    <id>.json        the manifest of a snapshot, written last: only with it the snapshot exists
    <id>/...         RocksDB's small files (CURRENT, MANIFEST-..., OPTIONS-...)
    shared/<digest>  RocksDB's immutable files by their SHA-256: uploaded once for all snapshots that have them

A snapshot is a RocksDB checkpoint with its log offset (R14): with the changelog from there on, it gives the state at
any later offset. The newest `kept` snapshots stay, and those with a lease. A manifest is removed before its files;
files without a manifest are from an interrupted upload, and are removed at the next cleaning. One process, and in it
one thread at a time, writes to a bucket's folder; `newest`, `floor` and `lease` are thread-safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.objects.files import PIECE_BYTES, RemoteFiles
from headrace.broker.runtime.disk import SystemDisk

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import Disk
    from headrace.tablelayer.model.table.definition import TableDefinition
    from headrace.tablelayer.server.store.kv import KeyValueStore
    from headrace.tablelayer.server.store.shared_memory import SharedMemory

logger = logging.getLogger("headrace.tables")

_VERSION = 1
_IMMUTABLE = ".sst"


class DamagedSnapshotError(Exception):
    """A snapshot whose files differ from its manifest."""


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file of a snapshot: `name` in the store's folder, `path` below the bucket's folder."""

    name: str
    path: str
    size: int
    digest: str


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot. `offset` is exclusive. `definition` is the table at that time, as JSON for
    `TableDefinition.from_json`.
    """

    id: int
    offset: int
    row_count: int
    created_at_ms: int
    definition: str
    files: tuple[SnapshotFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def to_json(self) -> bytes:
        return json.dumps({"version": _VERSION, **msgspec.to_builtins(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Snapshot:
        """Return the snapshot of a manifest. Raises DamagedSnapshotError."""
        try:
            value: dict[str, Any] = json.loads(data)
            if value.pop("version") != _VERSION:
                raise ValueError("it has another version")
            files = tuple(SnapshotFile(**file) for file in value.pop("files"))
            return cls(files=files, **value)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedSnapshotError(f"its manifest cannot be read: {error}") from error


class SnapshotStoppedError(Exception):
    """The bucket is being closed."""


class SnapshotSchedule:
    """The time of the next snapshot. Pure; times in seconds."""

    def __init__(self, interval: float, retry: float, now: float, age: float = 0.0) -> None:
        """Create the schedule; `age` is that of the newest snapshot."""
        self._interval = interval
        self._retry = min(retry, interval)
        self._next = now + max(0.0, interval - age)

    def due(self, now: float, applied_offset: int, newest_offset: int) -> bool:
        """Return whether a snapshot is due; False if nothing has changed."""
        return now >= self._next and applied_offset > newest_offset

    def attempted(self, now: float, *, succeeded: bool) -> None:
        self._next = now + (self._interval if succeeded else self._retry)


class BucketSnapshots:
    """The snapshots of one bucket (see the module). Blocking methods are called in executor threads."""

    def __init__(
        self,
        files: RemoteFiles,
        table_id: object,
        bucket: int,
        kept: int,
        disk: Disk | None = None,
        owner: int | None = None,
    ) -> None:
        """`disk` is the disk of the bucket's store; by default the system's. `owner` is the broker of the snapshots, if
        other brokers may lead the bucket too.
        """
        self._disk: Disk = disk or SystemDisk()
        self.folder = f"{table_id}/{bucket}" if owner is None else f"{table_id}/{bucket}.{owner}"
        self._files = files
        self._kept = kept
        self._known: tuple[Snapshot, ...] | None = None
        self._last_id = 0
        self._has_foreign = False
        self._digests: dict[str, tuple[int, str]] = {}
        self._leases: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._stopping = False
        self.uploaded_bytes = 0
        """Bytes that the latest snapshot uploaded."""

    def __str__(self) -> str:
        return f"{self._files}/{self.folder}"

    # -- known snapshots -----------------------------------------------------------------------------------

    @property
    def known(self) -> tuple[Snapshot, ...]:
        """The snapshots, newest first; empty until they are loaded."""
        return self._known or ()

    @property
    def newest_offset(self) -> int:
        return self.known[0].offset if self.known else 0

    @property
    def floor(self) -> int:
        """The offset from which the log is needed, so that every snapshot can be continued; 0 without snapshots."""
        return min((snapshot.offset for snapshot in self.known), default=0)

    def load(self) -> tuple[Snapshot, ...]:
        """Read the manifests, once. Raises OSError."""
        if self._known is None:
            found = []
            for name in self._files.names(self.folder):
                path = name.removeprefix(f"{self.folder}/")
                self._last_id = max(self._last_id, _id_of(path))
                if "/" in path or not path.endswith(".json"):
                    continue
                try:
                    found.append(Snapshot.from_json(self._files.read(name)))
                except DamagedSnapshotError as error:
                    self._has_foreign = True
                    logger.warning("snapshot %s in %s is ignored: %s", path, self, error)
            self._known = tuple(sorted(found, key=lambda each: each.id, reverse=True))
        return self._known

    @contextlib.contextmanager
    def lease(self, snapshot: Snapshot) -> Iterator[None]:
        """Keep the snapshot's files while the context lasts. Raises DamagedSnapshotError if they are gone."""
        with self._lock:
            if snapshot not in self.known:
                raise DamagedSnapshotError(f"snapshot {snapshot.id} was removed in the meantime")
            self._leases[snapshot.id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._leases[snapshot.id] -= 1

    # -- taking --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Make a running snapshot, and every later one, end soon with SnapshotStoppedError."""
        self._stopping = True

    def take(
        self, store: KeyValueStore, memory: SharedMemory, definition: TableDefinition, now_ms: int
    ) -> Snapshot:
        """Take a snapshot of the present store while writes go on. Raises OSError and RocksDB's errors.

        After an error only files for the next cleaning are left.
        """
        self.load()
        self.uploaded_bytes = 0
        checkpoint = store.path.with_name(f"{store.path.name}.checkpoint")
        disk = self._disk
        disk.remove_tree(checkpoint)
        try:
            offset, row_count = store.checkpoint(checkpoint, memory)
            self._last_id += 1
            folder = f"{self._last_id:012}"
            uploaded = {file.path for snapshot in self.known for file in snapshot.files}
            files = tuple(
                self._upload(checkpoint / name, folder, uploaded)
                for name in sorted(disk.names(checkpoint))
                if not name.startswith(("LOG", "LOCK", "IDENTITY"))
            )
        finally:
            disk.remove_tree(checkpoint)
        snapshot = Snapshot(self._last_id, offset, row_count, now_ms, definition.to_json(), files)
        self._files.put(f"{self.folder}/{folder}.json", snapshot.to_json())
        with self._lock:
            self._known = (snapshot, *self.known)
        self._digests = {file.name: (file.size, file.digest) for file in files if _is_immutable(file.name)}
        return snapshot

    def _upload(self, path: Path, folder: str, uploaded: set[str]) -> SnapshotFile:
        if self._stopping:
            raise SnapshotStoppedError
        size = self._disk.size(path) or 0
        known = self._digests.get(path.name)
        digest = known[1] if known is not None and known[0] == size else digest_of(self._disk, path)
        target = f"shared/{digest}" if _is_immutable(path.name) else f"{folder}/{path.name}"
        if target not in uploaded:
            self._files.upload(f"{self.folder}/{target}", path)
            self.uploaded_bytes += size
        return SnapshotFile(path.name, target, size, digest)

    def clean(self) -> int:
        """Remove snapshots beyond `kept`, and files without a snapshot. Return the number of removed files."""
        self.load()
        with self._lock:
            gone = [each for each in self.known[self._kept :] if not self._leases[each.id]]
            self._known = tuple(each for each in self.known if each not in gone)
        for snapshot in gone:
            self._files.remove(f"{self.folder}/{snapshot.id:012}.json")
        if self._has_foreign:
            return 0  # the files that the foreign snapshot needs are not known
        needed = {f"{self.folder}/{file.path}" for snapshot in self.known for file in snapshot.files}
        needed |= {f"{self.folder}/{snapshot.id:012}.json" for snapshot in self.known}
        orphans = [name for name in self._files.names(self.folder) if name not in needed]
        for name in orphans:
            self._files.remove(name)
        return len(orphans)

    # -- restoring -----------------------------------------------------------------------------------------

    def download(self, snapshot: Snapshot, directory: Path) -> None:
        """Make `directory` the store of the snapshot, durably.

        Raises DamagedSnapshotError, without `directory` then, and OSError if the files cannot be reached.
        """
        disk, partial = self._disk, directory.with_name(f"{directory.name}.partial")
        disk.remove_tree(partial)
        disk.make_directory(partial)
        try:
            with self.lease(snapshot):
                for file in snapshot.files:
                    self._download(file, partial / file.name)
                    downloaded = disk.open_read_only(partial / file.name)
                    downloaded.sync()
                    downloaded.close()
            disk.sync_directory(partial)
            disk.remove_tree(directory)
            disk.rename(partial, directory)
            disk.sync_directory(directory.parent)
        except BaseException:
            disk.remove_tree(partial)
            raise

    def _download(self, file: SnapshotFile, target: Path) -> None:
        if not file.name or os.sep in file.name:
            raise DamagedSnapshotError(f"{file.name!r} is not a file of a store")
        try:
            self._files.download(f"{self.folder}/{file.path}", target)
        except FileNotFoundError:
            raise DamagedSnapshotError(f"its file {file.path} is missing") from None
        if self._disk.size(target) != file.size or digest_of(self._disk, target) != file.digest:
            raise DamagedSnapshotError(f"its file {file.path} differs from the uploaded file")

    def forget(self) -> None:
        """Remove all snapshots of a dropped table."""
        self._known = ()
        self._files.remove_folder(self.folder)

    def store_changed(self) -> None:
        """Note that another store was opened: known file names are void, and snapshots may be taken again."""
        self._digests = {}
        self._stopping = False


def digest_of(disk: Disk, path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    file, digest, position = disk.open_read_only(path), hashlib.sha256(), 0
    try:
        while piece := file.read(PIECE_BYTES, position):
            digest.update(piece)
            position += len(piece)
    finally:
        file.close()
    return digest.hexdigest()


def _is_immutable(name: str) -> bool:
    return name.endswith(_IMMUTABLE)


def _id_of(path: str) -> int:
    first = path.split("/")[0].removesuffix(".json")
    return int(first) if first.isdigit() else 0
