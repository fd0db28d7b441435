"""Record the fsyncs of a process in order, for code that uses plain files and no `Disk`.

with recorded_fsyncs(tmp_path) as synced:
        write_durably(tmp_path / "x")
    assert synced == [tmp_path / "x.tmp", tmp_path]

A path is that of the descriptor at the time of its sync. Syncs inside of SQLite and RocksDB are not seen, and those
outside of the folder are left out: a thread of another test may be at work there. Linux only (it reads `/proc`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock


@contextmanager
def recorded_fsyncs(folder: Path) -> Iterator[list[Path]]:
    """Record each fsync of `folder` and its contents, of any thread; each is carried out."""
    synced: list[Path] = []
    fsync = os.fsync

    def recording(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_relative_to(folder):
            synced.append(path)
        fsync(fd)

    with mock.patch("os.fsync", recording):
        yield synced
