"""Readiness of many sockets at the price of one.

The event loop pays a few microseconds for each descriptor that is ready: a selector key, a handle, a context.
Here all connections of a network share one epoll descriptor of their own, and the loop watches only that one.
What is ready is found with one system call and dispatched by a dictionary lookup; while more keeps coming, and
not for longer than a slice of time, it goes on without a turn of the loop.

Where there is no epoll the loop watches each socket itself.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Callable
from typing import Protocol

SLICE_SECONDS = 0.0005
"""How long sockets are served before timers and tasks of the event loop get their turn."""


class Watcher(Protocol):
    """Whoever owns a watched socket. Neither method may raise."""

    def on_readable(self) -> None: ...

    def on_writable(self) -> None: ...


class Poller(Protocol):
    """Which sockets are watched for what. All on the event loop's thread."""

    def add(self, fd: int, watcher: Watcher) -> None:
        """Watch for reading."""

    def change(self, fd: int, *, reading: bool, writing: bool) -> None: ...

    def remove(self, fd: int) -> None:
        """Before the descriptor is closed."""

    def close(self) -> None: ...


if sys.platform == "linux":
    _READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
    _BUT_READ, _BUT_WRITE = ~_READ, ~_WRITE
    Callbacks = tuple[Callable[[], None] | None, Callable[[], None] | None]

    class EpollPoller:
        """See the module's contract. A hang-up or an error is told to whichever side is watched."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop
            self._epoll = select.epoll()
            self._owners: dict[int, Watcher] = {}
            self._watched: dict[int, Callbacks] = {}
            loop.add_reader(self._epoll.fileno(), self._on_ready)

        def add(self, fd: int, watcher: Watcher) -> None:
            self._owners[fd] = watcher
            self.change(fd, reading=True, writing=False)

        def change(self, fd: int, *, reading: bool, writing: bool) -> None:
            watcher = self._owners[fd]
            is_registered = fd in self._watched
            if not reading and not writing:
                # An empty mask would still report hang-ups, again and again.
                if is_registered:
                    del self._watched[fd]
                    self._epoll.unregister(fd)
                return
            self._watched[fd] = (
                watcher.on_readable if reading else None,
                watcher.on_writable if writing else None,
            )
            (self._epoll.modify if is_registered else self._epoll.register)(
                fd, (_READ if reading else 0) | (_WRITE if writing else 0)
            )

        def remove(self, fd: int) -> None:
            del self._owners[fd]
            if self._watched.pop(fd, None) is not None:
                self._epoll.unregister(fd)

        def close(self) -> None:
            if not self._epoll.closed:
                self._loop.remove_reader(self._epoll.fileno())
                self._epoll.close()

        def _on_ready(self) -> None:
            time, watched, poll = self._loop.time, self._watched, self._epoll.poll
            until = time() + SLICE_SECONDS
            while ready := poll(0):
                for fd, events in ready:
                    callbacks = watched.get(fd)  # one served before may have closed it
                    if callbacks is None:
                        continue
                    on_readable, on_writable = callbacks
                    if on_readable is not None and events & _BUT_WRITE:
                        on_readable()
                    if on_writable is not None and events & _BUT_READ and watched.get(fd) is callbacks:
                        on_writable()
                if time() > until or self._epoll.closed:
                    return


class LoopPoller:
    """The same by the event loop's own means."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watchers: dict[int, Watcher] = {}

    def add(self, fd: int, watcher: Watcher) -> None:
        self._watchers[fd] = watcher
        self._loop.add_reader(fd, watcher.on_readable)

    def change(self, fd: int, *, reading: bool, writing: bool) -> None:
        watcher = self._watchers[fd]
        if reading:
            self._loop.add_reader(fd, watcher.on_readable)
        else:
            self._loop.remove_reader(fd)
        if writing:
            self._loop.add_writer(fd, watcher.on_writable)
        else:
            self._loop.remove_writer(fd)

    def remove(self, fd: int) -> None:
        if self._watchers.pop(fd, None) is not None:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)

    def close(self) -> None:
        for fd in tuple(self._watchers):
            self.remove(fd)


def make_poller(loop: asyncio.AbstractEventLoop) -> Poller:
    """The quickest that the platform has."""
    return EpollPoller(loop) if sys.platform == "linux" else LoopPoller(loop)
