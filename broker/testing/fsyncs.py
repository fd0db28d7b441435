"""What a process has asked the system to make durable, in order: for code that uses plain files and no `Disk`.

    with recorded_fsyncs() as synced:
        write_durably(path)
    assert synced == [path.with_name("x.tmp"), path.parent]

A path is the one the descriptor had when it was synced. What SQLite and RocksDB sync in their own code is not seen.
Linux only (it asks `/proc`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock


@contextmanager
def recorded_fsyncs() -> Iterator[list[Path]]:
    """The list grows with each fsync of this process, whatever the thread; each is carried out."""
    synced: list[Path] = []
    fsync = os.fsync

    def recording(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    with mock.patch("os.fsync", recording):
        yield synced
