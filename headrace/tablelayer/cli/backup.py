"""`headrace backup` and `headrace restore`: copy a running server's data to a directory or object store, and back.

The command reads the server's data directory itself, so that the server is not disturbed. It runs on the server's
machine, as a user who may read the directory. The server makes a consistent cut, and keeps its files in place until the
command is done.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import typer

from headrace.broker.backup.archive import (
    THREADS,
    BackupError,
    FilesGoneError,
    Manifest,
    Progress,
    choose,
    make_backup,
    manifests,
    prune,
    read_manifest,
    restore,
)
from headrace.broker.log.disk import SystemDisk
from headrace.broker.objects.files import RemoteFiles, open_files
from headrace.broker.runtime.ports import SystemThreads
from headrace.tablelayer.cli.connect import open_connection
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.options import Format
from headrace.tablelayer.cli.output import size_text, write_rows
from headrace.tablelayer.cli.words import moment_of
from headrace.tablelayer.client import ClientError, Connection, KafkaError, TableError
from headrace.tablelayer.model.messages.process import (
    BeginBackupRequest,
    BeginBackupResponse,
    HoldBackupRequest,
    HoldBackupResponse,
)

_HOLD_SECONDS = 10.0
_ATTEMPTS = 3
"""Attempts of a backup, if topics are deleted meanwhile; files that were written are not written again."""


def backup(server: str, target: str, keep: int | None) -> None:
    """Back up a server. Raises CommandError."""
    files = _open(target)
    with _told(target), open_connection(server) as connection:
        for attempt in range(1, _ATTEMPTS + 1):
            began = perf_counter()
            try:
                manifest, progress = _backup(connection, files)
                break
            except FilesGoneError:
                if attempt == _ATTEMPTS:
                    raise
        typer.echo(
            f"{manifest.name}: {len(manifest.files):,} files of {size_text(manifest.size_bytes)}, "
            f"{size_text(progress.written_bytes)} of them written, {perf_counter() - began:.1f} s"
        )
        if keep is not None:
            backups, chunks = prune(files, keep)
            typer.echo(f"{backups} older backups and {chunks} of their chunks removed")


def _backup(connection: Connection, files: RemoteFiles) -> tuple[Manifest, Progress]:
    begun = connection.call(
        BeginBackupRequest(), BeginBackupResponse, doing="begin a backup", repeatable=False
    )
    disk, last = SystemDisk(), Progress()
    pool = SystemThreads().pool(THREADS, "backup")
    is_made = False
    try:
        if not disk.is_directory(Path(begun.folder)):
            raise CommandError(
                f"the server's data directory {begun.data_directory} is not on this machine: run the backup where the "
                "server runs, as a user who may read it"
            )

        def told(progress: Progress) -> None:
            nonlocal last
            last = progress
            held.check()

        with _Held(connection, begun.backup_id) as held, _shown(lambda: last):
            manifest = make_backup(files, disk, pool, Path(begun.data_directory), Path(begun.folder), told)
        is_made = True
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        try:
            _hold(connection, begun.backup_id, is_over=True)
        except (KafkaError, ClientError):
            if is_made:
                raise
    return manifest, last


def _hold(connection: Connection, backup_id: str, *, is_over: bool) -> None:
    connection.call(
        HoldBackupRequest(backup_id=backup_id, is_over=is_over), HoldBackupResponse, doing="hold the backup"
    )


class _Held:
    """Tells the server periodically that its files are still needed."""

    def __init__(self, connection: Connection, backup_id: str) -> None:
        self._connection = connection
        self._backup_id = backup_id
        self._ended = threading.Event()
        self._lost: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="hold the backup", daemon=True)

    def __enter__(self) -> _Held:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the server's error if it no longer holds the backup."""
        if self._lost is not None:
            raise self._lost

    def _run(self) -> None:
        while not self._ended.wait(_HOLD_SECONDS):
            try:
                _hold(self._connection, self._backup_id, is_over=False)
            except (KafkaError, ClientError, TableError) as error:
                self._lost = error
                return


def restore_backup(
    source: str, data: Path | None, as_of: str | None, *, listed: bool, output: Format
) -> None:
    """Restore a backup, or list the backups. Raises CommandError."""
    files = _open(source)
    with _told(source):
        if listed:
            names = manifests(files)
            if not names:
                raise CommandError(f"there is no backup in {source}")
            write_rows(
                ("time", "backup", "files", "bytes"),
                [
                    (_time_text(each.made_ms), each.id, len(each.files), each.size_bytes)
                    for each in (read_manifest(files, name) for name in names)
                ],
                output,
                numeric=(False, False, True, True),
            )
            return
        if data is None:
            raise CommandError(
                "name the directory to restore to with --data, or list the backups with --list"
            )
        manifest = read_manifest(files, choose(files, None if as_of is None else moment_of(as_of, "--as-of")))
        pool, last, began = SystemThreads().pool(THREADS, "restore"), Progress(), perf_counter()

        def told(progress: Progress) -> None:
            nonlocal last
            last = progress

        try:
            with _shown(lambda: last):
                restore(files, manifest, SystemDisk(), pool, data.absolute(), told)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    typer.echo(
        f"{data} is the server's state at {_time_text(manifest.made_ms)}: {len(manifest.files):,} files of "
        f"{size_text(manifest.size_bytes)}, {perf_counter() - began:.1f} s"
    )


def restore_from_remote(location: str, data: Path | None, cluster_id: str | None) -> None:
    """Restore a data directory from remote storage. Raises CommandError."""
    from headrace.broker.remote.bootstrap import NODES, make_directory
    from headrace.broker.remote.cluster_copy import ClusterCopyError

    if data is None:
        raise CommandError("name the directory to restore to with --data")
    files = _open(location)
    pool = SystemThreads().pool(THREADS, "restore")
    with _told(location):
        try:
            restored = make_directory(files, location, cluster_id, SystemDisk(), data.absolute(), pool)
        except ClusterCopyError as error:
            raise CommandError(str(error)) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    image = restored.image
    count = sum(path.startswith(f"{NODES}/") for path, _, _ in image.store.nodes)
    typer.echo(
        f"{data} belongs to cluster {image.cluster_id}, broker {image.broker_id}, with the metadata of "
        f"{_time_text(image.made_ms)}; {count} topics have records in remote storage"
    )
    if image.controller_epoch >= 0:
        typer.echo(
            f"It was a cluster. It is now broker {image.broker_id} alone, which has all partitions. Start it once, "
            "stop it, and `headrace cluster adopt` makes it the first broker of a new cluster"
        )
    if restored.lowered:
        named = ", ".join(name or "the default of all topics" for name in restored.lowered)
        typer.echo(f"min.insync.replicas was more than one broker can have, and is now 1: {named}")
    if restored.positions_ms is not None:
        typer.echo(f"{restored.positions}; copied at {_time_text(restored.positions_ms)} or later")
    for name in restored.damaged:
        typer.echo(f"{name} cannot be read: the positions in it are left out")
    typer.echo(
        "Start it with remote.log.storage.system.enable=true and the same remote.log.storage.directory; the old "
        "server, if it still runs, then stops copying"
    )


def _time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _open(location: str) -> RemoteFiles:
    try:
        return open_files(location)
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from error


@contextmanager
def _told(location: str) -> Iterator[None]:
    try:
        yield
    except BackupError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename or location}: {error.strerror or error}") from error


@contextmanager
def _shown(progress: Callable[[], Progress]) -> Iterator[None]:
    """Show a progress line on a terminal while files are copied; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(0.5):
            now = progress()
            done = f"{size_text(now.bytes)} of {size_text(now.bytes_total)}"
            text = f"{now.files:,} of {now.files_total:,} files, {done}"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    shower = threading.Thread(target=show, name="progress", daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()
