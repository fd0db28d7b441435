"""Work that another thread can stop: a statement on Ctrl-C, a query whose reader has gone.

A piece of work runs with a `Stop` of its own (`running`). The parts of the work that wait or compute for long say how
they are ended: a blocking call of the client is cancelled, a query of DuckDB is interrupted. Loops in between ask
`check`. Without a `Stop` nothing is different.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from typing import Protocol
from weakref import WeakSet

from headrace.tablelayer.client.errors import ClientError


class Stopped(ClientError):  # noqa: N818 - states what happened
    """The work was stopped before its end, by `Stop.set`. Rows may have been written before."""

    def __init__(self, message: str = "interrupted") -> None:
        super().__init__(message)


class Interruptible(Protocol):
    """An object whose work another thread may interrupt, such as a connection of DuckDB."""

    def interrupt(self) -> None: ...


class Stop:
    """A request to stop one piece of work. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = (
            threading.RLock()
        )  # the garbage collector may close a scan, and so come here, at any point
        self._numbers = count()
        self._ends: dict[int, Callable[[], object]] = {}
        # Weak: a connection has its sources' readers, which have the `Stop`: a circle that Python could not see.
        self._interrupted: WeakSet[Interruptible] = WeakSet()
        self._is_set = False

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Stop the work. May be repeated until the work has ended: DuckDB forgets it between two of its queries."""
        with self._lock:
            self._is_set = True
            ends = [*list(self._ends.values()), *(each.interrupt for each in list(self._interrupted))]
        for end in ends:
            with suppress(Exception):  # a database that is closed already, for example
                end()

    def add(self, end: Callable[[], object]) -> Callable[[], None]:
        """Call `end` when the work is to stop, from another thread. Returns a function that takes it back.

        Raises Stopped if the work is to stop already.
        """
        with self._lock:
            if self._is_set:
                raise Stopped
            number = next(self._numbers)
            self._ends[number] = end

        def remove() -> None:
            with self._lock:
                self._ends.pop(number, None)

        return remove

    def interrupts(self, work: Interruptible) -> None:
        """Interrupt `work` when the work is to stop, as long as the object is there. Raises Stopped as `add`."""
        with self._lock:
            if self._is_set:
                raise Stopped
            self._interrupted.add(work)


_current: ContextVar[Stop | None] = ContextVar("stop of the work that runs", default=None)


def current() -> Stop | None:
    """Return the `Stop` of the work that runs in this context."""
    return _current.get()


def check() -> None:
    """Raise Stopped if the work that runs in this context is to stop."""
    stop = _current.get()
    if stop is not None and stop.is_set:
        raise Stopped


def sleep(seconds: float) -> None:
    """Wait. Raises Stopped as soon as the work that runs in this context is to stop."""
    ended, stop = threading.Event(), _current.get()
    release = None if stop is None else stop.add(ended.set)
    try:
        ended.wait(seconds)
        check()
    finally:
        if release is not None:
            release()


@contextmanager
def running(stop: Stop | None) -> Iterator[None]:
    """Run the block as work that `stop` stops; None: as work that cannot be stopped, such as cleaning up."""
    token = _current.set(stop)
    try:
        yield
    finally:
        _current.reset(token)
