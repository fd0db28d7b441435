"""Finish or discard an exchange of segments that a crash interrupted: see "Files" in `compaction_run`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from headrace.broker.log.errors import CorruptLogError
from headrace.broker.log.scan import WalkEnd, walk
from headrace.broker.log.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from headrace.broker.log.transaction_index import FILE_SUFFIX as TRANSACTION_INDEX_SUFFIX
from headrace.broker.runtime.ports import Disk

logger = logging.getLogger("headrace.log")

_NEVER: Final = (1 << 63) - 1


def finish_swaps(disk: Disk, directory: Path) -> None:
    """Finish the exchanges that were decided and discard the others. Runs at open, before anything else.

    Raises OSError, and CorruptLogError when a decided segment cannot be read.
    """
    names = disk.names(directory)
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            disk.remove(directory / name)
    for name in sorted(name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        path = directory / name
        base_offset = int(name[:OFFSET_DIGITS])
        end, end_offset = WalkEnd(0, 0), base_offset
        view = disk.open_read_only(path).view()
        for batches in walk(view, base_offset, end, check_crc=True, gaps_below=_NEVER):
            end_offset = int(batches.last_offset[-1]) + 1
        if end.problem is not None:
            raise CorruptLogError(
                f"{path} is damaged at byte {end.position}: {end.problem}. Restore it from a copy."
            )
        for old in names:
            if old.endswith(LOG_SUFFIX) and base_offset <= int(old[:OFFSET_DIGITS]) < end_offset:
                stem = directory / old[:OFFSET_DIGITS]
                for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                    disk.remove(stem.with_suffix(suffix))
        disk.sync_directory(directory)  # an old segment must not come back beside the new one
        disk.rename(path, directory / name[: -len(SWAP_SUFFIX)])
        disk.sync_directory(directory)
        logger.info(
            "%s: finished putting the compacted %s in place", directory.name, name[: -len(SWAP_SUFFIX)]
        )
