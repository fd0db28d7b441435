"""Readiness of many sockets at the price of one.

The event loop pays a few microseconds for each descriptor that is ready: a selector key, a handle, a context. A
`ServerLoop` has a selector that knows our connections: one system call finds those that are ready, and a dictionary
lookup serves them; the loop gets only its own descriptors. So a wakeup of an idle server costs one system call before
the request is read.

On another loop, or without epoll, the loop watches each socket itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
import selectors
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from headrace.broker.runtime.ports import Poller, Watcher

logger = logging.getLogger("headrace.net")

Result = TypeVar("Result")


class TurnMeter(Protocol):
    """Measures turns of the loop: the time between two waits, while all other work waits."""

    def begins(self) -> None: ...

    def ends(self) -> None: ...


if sys.platform == "linux":
    _READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
    _BUT_READ, _BUT_WRITE = ~_READ, ~_WRITE
    _EVENTS_PER_ROUND = 512
    Callbacks = tuple[Callable[[], None] | None, Callable[[], None] | None]

    class SocketSelector(selectors.BaseSelector):
        """The selector of a `ServerLoop`, and the poller of its connections. See the module.

        A hang-up or an error is reported to each side that is watched. An exception of a watcher is logged.
        """

        def __init__(self) -> None:
            self._epoll = select.epoll()
            self._keys: dict[int, selectors.SelectorKey] = {}  # the event loop's own
            self._owners: dict[int, Watcher] = {}
            self._watched: dict[int, Callbacks] = {}
            self.meter: TurnMeter | None = None
            """Gets the time of each turn; without a meter nothing is measured."""

        # -- connections -----------------------------------------------------------------------------------

        def add(self, fd: int, watcher: Watcher) -> None:
            self._owners[fd] = watcher
            self.change(fd, reading=True, writing=False)

        def change(self, fd: int, *, reading: bool, writing: bool) -> None:
            watcher = self._owners[fd]
            is_registered = fd in self._watched
            if not reading and not writing:
                # With an empty mask epoll would still report hang-ups, again and again.
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

        # -- the event loop's side -------------------------------------------------------------------------

        def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
            fd = _descriptor(fileobj)
            if fd in self._keys:
                raise KeyError(f"{fileobj!r} (descriptor {fd}) is registered already")
            self._epoll.register(fd, _mask(events))
            key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
            return key

        def unregister(self, fileobj: Any) -> selectors.SelectorKey:
            key = self._keys.pop(_descriptor(fileobj))
            with suppress(OSError):  # it may be closed already
                self._epoll.unregister(key.fd)
            return key

        def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
            fd = _descriptor(fileobj)
            if events != self._keys[fd].events:
                self._epoll.modify(fd, _mask(events))
            key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
            return key

        def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
            return self._keys

        def get_key(self, fileobj: Any) -> selectors.SelectorKey:
            return self._keys[_descriptor(fileobj)]

        def close(self) -> None:
            self._epoll.close()
            self._keys.clear()
            self._owners.clear()
            self._watched.clear()

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """Wait, serve the connections that are ready, and return the event loop's own descriptors."""
            if timeout is None:
                timeout = -1
            elif timeout > 0:
                timeout = math.ceil(timeout * 1e3) * 1e-3  # epoll counts milliseconds: never wake too early
            else:
                timeout = 0
            watched, meter = self._watched, self.meter
            if meter is not None:
                meter.ends()
            ready_now = self._epoll.poll(timeout, _EVENTS_PER_ROUND)
            if meter is not None:
                meter.begins()
            others: list[tuple[selectors.SelectorKey, int]] = []
            for fd, events in ready_now:
                callbacks = watched.get(fd)
                if callbacks is None:  # the loop's own, or one that another watcher has just closed
                    key = self._keys.get(fd)
                    if key is not None:
                        ready = selectors.EVENT_READ if events & _BUT_WRITE else 0
                        ready |= selectors.EVENT_WRITE if events & _BUT_READ else 0
                        others.append((key, ready & key.events))
                    continue
                on_readable, on_writable = callbacks
                try:
                    if on_readable is not None and events & _BUT_WRITE:
                        on_readable()
                    if on_writable is not None and events & _BUT_READ and watched.get(fd) is callbacks:
                        on_writable()
                except Exception:
                    logger.exception("serving a connection failed")
            return others

    def _descriptor(fileobj: Any) -> int:
        fd: int = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        return fd

    def _mask(events: int) -> int:
        return (_READ if events & selectors.EVENT_READ else 0) | (
            _WRITE if events & selectors.EVENT_WRITE else 0
        )

    class ServerLoop(asyncio.SelectorEventLoop):
        """An event loop that serves a network's connections when it finds them ready."""

        def __init__(self) -> None:
            self.sockets = SocketSelector()
            super().__init__(self.sockets)


class LoopPoller:
    """A poller by means of any event loop."""

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


def make_poller(loop: asyncio.AbstractEventLoop) -> Poller:
    """Return the fastest poller that the loop supports."""
    if sys.platform == "linux" and isinstance(loop, ServerLoop):
        return loop.sockets
    return LoopPoller(loop)


def measure_turns(loop: asyncio.AbstractEventLoop, meter: TurnMeter) -> bool:
    """Report the loop's turns to a meter from now on. False: this kind of loop does not support it."""
    if sys.platform == "linux" and isinstance(loop, ServerLoop):
        loop.sockets.meter = meter
        return True
    return False


def run_server(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine as `asyncio.run` does, on the platform's fastest loop for a server."""
    factory = ServerLoop if sys.platform == "linux" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
