"""An event loop in a thread, and blocking methods that run asynchronous ones in it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sized
from concurrent.futures import CancelledError, Future, wait
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client import stopping
from headrace.tablelayer.client.errors import ClientError, ConnectionClosed
from headrace.tablelayer.client.progress import QUIET_SECONDS, STEP_SECONDS, Bar, Counts, bar_of_call
from headrace.tablelayer.model.errors import TableError

T = TypeVar("T")
P = ParamSpec("P")

EXPECTED = (ClientError, TableError, KafkaError)
"""Errors whose messages are for the author of the program: their tracebacks begin at the call."""


class LoopThread:
    """An event loop in a daemon thread of this process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-client", daemon=True)
        self._thread.start()
        self._stopped = False
        # Reentrant: the garbage collector may close a scan, and so come here, at any point.
        self._lock = threading.RLock()
        """Held while a coroutine is given to the loop, so that none is given after the loop has begun to stop."""
        self.counts: Counts | None = None
        """The connection's rows, which a notebook shows during long calls."""

    @property
    def is_ours(self) -> bool:
        """Return whether this thread may wait for the loop."""
        return (
            not self._stopped and self._pid == os.getpid() and threading.current_thread() is not self._thread
        )

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def run(self, coroutine: Coroutine[Any, Any, T], total: int | None = None) -> T:
        """Run a coroutine in the loop and wait for it. An interrupt (Ctrl-C) of the caller cancels it, and so does the
        `Stop` of the caller's work, which raises Stopped. `total`: number of rows that it writes, for a notebook.
        """
        if self._pid != os.getpid():
            coroutine.close()
            raise RuntimeError("this connection was made before a fork: make a new one in each process")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("the blocking client cannot be used inside its own event loop")
        stop, release = stopping.current(), None
        if stop is not None and stop.is_set:
            coroutine.close()
            raise stopping.Stopped
        bar = bar_of_call(self.counts, total)
        future = self._give(coroutine)
        if future is None:
            raise ConnectionClosed("the connection is closed")
        try:
            release = None if stop is None else stop.add(future.cancel)
            return _result(future) if bar is None else _waited(future, bar)
        except CancelledError:
            if self._stopped:
                raise ConnectionClosed("the connection is closed") from None
            stopping.check()
            raise
        except EXPECTED as error:
            error.__traceback__ = None  # the loop's frames say nothing that the message does not
            raise
        except BaseException:
            future.cancel()
            raise
        finally:
            if release is not None:
                release()

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine without waiting. Do nothing if the loop has stopped or belongs to another process."""
        if self._pid != os.getpid():
            coroutine.close()
        else:
            self._give(coroutine)

    def _give(self, coroutine: Coroutine[Any, Any, T]) -> Future[T] | None:
        with self._lock:
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        return None

    def stop(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


_LOOK_SECONDS = 0.2


def _result(future: Future[T]) -> T:
    """Wait, and look every _LOOK_SECONDS whether another thread has got the signal of Ctrl-C for this one."""
    while True:
        try:
            return future.result(_LOOK_SECONDS)
        except TimeoutError:
            if future.done():
                return future.result()


def _waited(future: Future[T], bar: Bar) -> T:
    try:
        wait([future], QUIET_SECONDS)
        while not future.done():
            bar.show()
            wait([future], STEP_SECONDS)
        return future.result()
    finally:
        bar.remove()


class Waiting:
    """Base of blocking objects: `inner` is the asynchronous object."""

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop


def waits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Make an asynchronous method block. Arguments, answer and errors are the same."""
    name = method.__name__

    @wraps(method)
    def blocking(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        coroutine: Coroutine[Any, Any, T] = getattr(self._inner, name)(*args, **named)
        loop: LoopThread = self._loop
        try:
            return loop.run(coroutine, rows_of(args[0]) if name in _WRITES and args else None)
        except EXPECTED as error:
            error.__traceback__ = None
            raise

    return blocking


_WRITES = frozenset({"append", "upsert", "delete", "partial"})


def rows_of(data: object) -> int | None:
    """Return the number of rows that are written, if it is known."""
    return len(data) if isinstance(data, Sized) and not isinstance(data, Mapping) else None
