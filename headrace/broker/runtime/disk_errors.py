"""Recognise a disk that is full or broken, a lack of files or memory, and limit how often it is logged.

A full disk makes thousands of writes fail each second. Each answer contains the cause; the log gets one line a minute
for each cause, and the next line says how many similar lines were left out. A full disk is a normal kind of failure,
and so is a lack of file descriptors or memory: the operation is tried again and succeeds when there is room, so nothing
is abandoned because of it (`is_passing`).
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

SECONDS_BETWEEN_LINES: Final = 60.0
DISK_FULL: Final = "the disk is full; free some of its space, then drop data or shorten retention"
NO_DESCRIPTORS: Final = (
    "too many files are open; raise the limit of open files (ulimit -n, or LimitNOFILE of a service)"
)
NO_MEMORY: Final = "the system has no memory left"

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """Return whether an error is, or was caused by, too many open files. It passes when some are closed."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
            return True
        error = error.__cause__
    return False


def is_unopened(error: OSError) -> bool:
    """Return whether a file could not be opened for lack of descriptors or memory. So nothing was done to it yet, such
    as an fsync, whose own lack of memory may have lost data. Only errors of names have a name.
    """
    return error.errno in _NO_DESCRIPTORS or (error.errno == errno.ENOMEM and error.filename is not None)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error is, or was caused by, a full file system."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False


def is_passing(error: BaseException | None) -> bool:
    """Return whether an error is, or was caused by, a lack of space, file descriptors or memory."""
    return _passing_cause(error) is not None


def _passing_cause(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, OSError):
            if error.errno in _FULL:
                return DISK_FULL
            if error.errno in _NO_DESCRIPTORS:
                return NO_DESCRIPTORS
            if error.errno == errno.ENOMEM:
                return NO_MEMORY
        error = error.__cause__
    return None


def why(error: BaseException) -> str:
    """Return a description of the disk's fault for the log and for answers."""
    return _passing_cause(error) or f"the disk does not work: {error}"


class _Cause(msgspec.Struct):
    told_at: float
    left_out: int = 0


class RateLimitedLog:
    """A log that writes one line per cause and minute. Any thread may use it.

    There must be few causes: a path or an offset belongs in the line, not in its cause.
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
        """Write the next line of each cause, however soon it comes."""
        self._causes.clear()


DISK_LOG: Final = RateLimitedLog()
"""The log of disk errors for the whole process."""


def tell(logger: logging.Logger, text: str, error: BaseException) -> None:
    """Log that `text` failed because of the disk."""
    passing = _passing_cause(error)
    cause = passing or f"{type(error).__name__} {getattr(error, 'errno', None)}"
    DISK_LOG.tell(logger, logging.ERROR, cause, "%s: %s", text, passing or error)
