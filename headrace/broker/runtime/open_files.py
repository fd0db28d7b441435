"""The open files of a process: how many there may be, how many there are, and who closes some when they run out.

RLIMIT_NOFILE is shared out when the process needs it: a quarter for files of log segments, a quarter for files of
extensions (key-value stores), and the rest for connections, the metadata and files that are open for a moment. Files
beyond a share are closed, the least recently used first, and opened again when they are asked for.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import threading
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakMethod, ref

IDLE_SECONDS: Final = 60.0
"""Interval of looking for files that were not used since the last look."""
_UNLIMITED: Final = 1 << 20
_SHARE: Final = 4
_CLOSED_TOGETHER: Final = 8
"""Number of files that are closed together when no more can be opened."""
_OWN_FILES: Final = "/proc/self/fd"


def limit() -> int:
    """Return the number of files that this process may have open, at most about a million."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, _UNLIMITED)


def share() -> int:
    """Return the number of files for log segments, and again for key-value stores."""
    return max(8, limit() // _SHARE)


def count() -> int:
    """Return the number of files and sockets that are open; -1 where the system does not tell."""
    try:
        return len(os.listdir(_OWN_FILES)) - 1  # the listing itself is one
    except OSError:
        return -1


class Closable(Protocol):
    """The owner of a file that is opened when it is needed."""

    used: bool
    """Set when the file is used."""

    def close_file(self) -> None:
        """Close the file; the next use opens it. Uses in progress keep theirs."""


class OpenFiles:
    """Files that may be closed at any time, oldest first; one that was used since it came up gets another turn.

    Any thread may call everything.
    """

    def __init__(self) -> None:
        self.max: int | None = None
        """Maximum number of files; None: the share of RLIMIT_NOFILE, when the first file is opened."""
        self.closed = 0
        """Number of files that were closed because there were too many, or because nothing used them."""
        self._others: list[WeakMethod[Callable[[], bool]]] = []
        self._lock = threading.Lock()
        self._open: dict[int, ref[Closable]] = {}

    @property
    def count(self) -> int:
        """Number of these files that are open, about: those whose owners have closed them may still be counted."""
        return len(self._open)

    def opened(self, owner: Closable) -> None:
        """Note that an owner has opened its file, and close files of others that are too many."""
        if self.max is None:
            self.max = share()
        with self._lock:
            self._open.pop(id(owner), None)
            self._open[id(owner)] = ref(owner)
        if len(self._open) > self.max:
            self._close(len(self._open) - self.max)

    def forget(self, owner: Closable) -> None:
        """Note that an owner has closed its file."""
        self._open.pop(id(owner), None)

    def make_room(self, error: OSError, *, at_once: bool = False) -> bool:
        """Close a few files if an open failed because there are no more descriptors; return whether there are some now.

        `at_once` as for `close_some`.
        """
        return error.errno in (errno.EMFILE, errno.ENFILE) and self.close_some(at_once=at_once)

    def close_some(self, *, at_once: bool = False) -> bool:
        """Close a few files because no more can be opened. Return False if none could be closed.

        `at_once`: do not wait for a disk, as the event loop must not.
        """
        if self._close(_CLOSED_TOGETHER):
            return True
        if at_once:
            return False
        with self._lock:
            self._others = [each for each in self._others if each() is not None]
            others = [each() for each in self._others]
        return any(close is not None and close() for close in others)

    def also(self, close: Callable[[], bool]) -> None:
        """Call a method, too, when no more files can be opened, as long as its object lives: it closes a file of
        another kind and returns True, or returns False.
        """
        with self._lock:
            self._others.append(WeakMethod(close))

    def close_idle(self) -> int:
        """Close the files that were not used since the last call; return their number."""
        return self._close(len(self._open), idle_only=True)

    def _close(self, wanted: int, *, idle_only: bool = False) -> int:
        closed = 0
        # Twice around: the first one may find every file used.
        for _ in range(len(self._open) * (1 if idle_only else 2)):
            if closed >= wanted:
                break
            with self._lock:
                if not self._open:
                    break
                key = next(iter(self._open))
                reference = self._open.pop(key)
                owner = reference()
                if owner is None:
                    continue
                if owner.used:
                    owner.used = False
                    self._open[key] = reference
                    continue
            owner.close_file()
            closed += 1
        self.closed += closed
        return closed


async def close_idle_files() -> None:
    """Close the files of segments that nothing uses, until cancelled: each after one to two minutes."""
    while True:
        await asyncio.sleep(IDLE_SECONDS)
        SEGMENT_FILES.close_idle()


SEGMENT_FILES: Final = OpenFiles()
"""The files of log segments: RLIMIT_NOFILE is one of the process, whatever number of brokers it has."""
