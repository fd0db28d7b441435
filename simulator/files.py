"""Copy a data directory as `kill -9` leaves it, while the process goes on."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

ATTEMPTS = 100
PAUSE_SECONDS = 0.02
HELD = (".lock", "LOCK")  # lock files of a directory or a store


def copy_as_killed(directory: Path, to: Path) -> None:
    """Copy all files as of one moment; copy again if a thread (RocksDB's) has changed some meanwhile."""

    def files() -> set[tuple[str, int]]:
        return {(str(path), path.stat().st_size) for path in directory.rglob("*") if path.is_file()}

    for _ in range(ATTEMPTS):
        try:
            before = files()
            shutil.copytree(directory, to, ignore=shutil.ignore_patterns(*HELD))
            if files() == before:
                return
        except (FileNotFoundError, shutil.Error):
            pass  # a file that was removed by a compaction
        shutil.rmtree(to, ignore_errors=True)
        time.sleep(PAUSE_SECONDS)
    raise AssertionError(f"{directory} does not come to rest")
