"""What a process has asked the system to make durable, in order: for code that uses plain files and no `Disk`.

    with recorded_fsyncs(tmp_path) as synced:
        write_durably(tmp_path / "x")
    assert synced == [tmp_path / "x.tmp", tmp_path]

A path is the one the descriptor had when it was synced. What SQLite and RocksDB sync in their own code is not seen, nor
what lies elsewhere: a thread that another test has left may be at work there. Linux only (it asks `/proc`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock


@contextmanager
def recorded_fsyncs(folder: Path) -> Iterator[list[Path]]:
    """The list grows with each fsync of `folder` or of what is below it, whatever the thread; each is carried out."""
    synced: list[Path] = []
    fsync = os.fsync

    def recording(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_relative_to(folder):
            synced.append(path)
        fsync(fd)

    with mock.patch("os.fsync", recording):
        yield synced
