"""`headrace backup` and `headrace restore`: copy a running server's data to a directory or object store, and back.

The brokers make a consistent cut, and keep its files in place until the command is done (`backup_parts`). The command
writes the archive, and is the only one that does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
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
from headrace.broker.objects.files import RemoteFiles, open_files
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import SystemThreads
from headrace.tablelayer.cli.backup_parts import CutAgainError, begun_backup
from headrace.tablelayer.cli.connect import open_connection
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.options import Format
from headrace.tablelayer.cli.output import size_text, write_rows
from headrace.tablelayer.cli.words import counted, moment_of
from headrace.tablelayer.client import Connection

_ATTEMPTS = 5
"""Attempts of a backup, if topics are deleted or leaders change meanwhile; files that were written are not written
again.
"""
_PAUSE_SECONDS = 1.0


def backup(server: str, target: str, keep: int | None) -> None:
    """Back up an independent server or a cluster. Raises CommandError."""
    files = _open(target)
    with _told(target), open_connection(server) as connection:
        for attempt in range(1, _ATTEMPTS + 1):
            began = perf_counter()
            try:
                manifest, progress = _backup(connection, files)
                break
            except (FilesGoneError, CutAgainError):
                if attempt == _ATTEMPTS:
                    raise
                time.sleep(_PAUSE_SECONDS)
        typer.echo(
            f"{manifest.name}: {len(manifest.files):,} files of {size_text(manifest.size_bytes)}, "
            f"{size_text(progress.written_bytes)} of them written, {perf_counter() - began:.1f} s"
        )
        if keep is not None:
            backups, chunks = prune(files, keep)
            typer.echo(f"removed: {counted(backups, 'older backup')}, {counted(chunks, 'chunk')}")


def _backup(connection: Connection, files: RemoteFiles) -> tuple[Manifest, Progress]:
    last = Progress()
    pool = SystemThreads().pool(THREADS, "backup")
    try:
        with begun_backup(connection) as begun, _shown(lambda: last):

            def told(progress: Progress) -> None:
                nonlocal last
                last = progress
                begun.check()

            with TemporaryDirectory(prefix="headrace-backup-") as folder:
                parts, head = begun.parts(SystemDisk(), Path(folder))
                manifest = make_backup(files, pool, parts, head, told)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return manifest, last


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
                ("time", "backup", "cluster", "brokers", "files", "bytes"),
                [
                    (
                        _time_text(each.made_ms),
                        each.id,
                        each.cluster_id,
                        ",".join(map(str, each.brokers)) or each.node_id,
                        len(each.files),
                        each.size_bytes,
                    )
                    for each in (read_manifest(files, name) for name in names)
                ],
                output,
                numeric=(False, False, False, False, True, True),
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
    if manifest.brokers:
        _tell_of_cluster(manifest.node_id)
    _tell_of_lowered(manifest.lowered)


def _tell_of_cluster(broker_id: int | str) -> None:
    typer.echo(
        f"It was a cluster. It is now broker {broker_id} alone, which has all partitions. Start it once, "
        "stop it, and `headrace cluster adopt` makes it the first broker of a new cluster"
    )


def _tell_of_lowered(topics: Sequence[str]) -> None:
    if topics:
        named = ", ".join(name or "the default of all topics" for name in topics)
        typer.echo(f"min.insync.replicas was more than one broker can have, and is now 1: {named}")


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
        f"{_time_text(image.made_ms)}; remote storage has records of {counted(count, 'topic')}"
    )
    if image.controller_epoch >= 0:
        _tell_of_cluster(image.broker_id)
    _tell_of_lowered(restored.lowered)
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
