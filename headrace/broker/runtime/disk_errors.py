"""A disk that is full, or does not work: how it is recognised, and how often it is told.

A full disk makes every write fail, thousands a second. What is wrong is in each answer; the log gets one line a minute
for each cause, and the next one says how many like it were left out. A full disk is the normal kind of failure: what
failed is tried again and succeeds when there is room, so nothing is given up for it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

SECONDS_BETWEEN_LINES: Final = 60.0
DISK_FULL: Final = "the disk is full; free space or shorten retention"

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """Whether an error is, or was raised because of, too many open files: it passes when some are closed."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
            return True
        error = error.__cause__
    return False


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error is, or was raised because of, a file system without room."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False


def why(error: OSError) -> str:
    """What is wrong with the disk, for a person."""
    return DISK_FULL if is_disk_full(error) else f"the disk does not work: {error}"


class _Cause(msgspec.Struct):
    told_at: float
    left_out: int = 0


class RateLimitedLog:
    """Lines that would come thousands of times: one per cause and minute. Any thread may use it.

    There have to be few causes; a path or an offset belongs into the line, not into its cause.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._causes: dict[str, _Cause] = {}

    def tell(self, logger: logging.Logger, level: int, cause: str, text: str, *arguments: object) -> None:
        now = self._now()
        known = self._causes.get(cause)
        if known is not None and now - known.told_at < SECONDS_BETWEEN_LINES:
            known.left_out += 1
            return
        self._causes[cause] = _Cause(now)
        if known is not None and known.left_out:
            text, arguments = f"{text} (and %d times more since the last line)", (*arguments, known.left_out)
        logger.log(level, text, *arguments)

    def forget(self) -> None:
        """The next line of each cause is told."""
        self._causes.clear()


DISK_LOG: Final = RateLimitedLog()
"""What every part of the process has to say about its disk."""


def tell(logger: logging.Logger, text: str, error: BaseException) -> None:
    """Say that `text` failed because of the disk."""
    full = is_disk_full(error)
    cause = DISK_FULL if full else f"{type(error).__name__} {getattr(error, 'errno', None)}"
    DISK_LOG.tell(logger, logging.ERROR, cause, "%s: %s", text, DISK_FULL if full else error)
