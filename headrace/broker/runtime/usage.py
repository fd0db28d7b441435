"""Measure the time that a request costs beyond the call that answers it: steps of coroutines, slices, and threads.

While a request is charged, `USAGE` holds its `Usage`; tasks that it starts inherit that. Work that the broker's
executor does for it is measured in the thread, in processor time, because waiting for a disk or for the interpreter
costs other requests nothing. Steps and slices are measured on the event loop, whose time they take.

Not counted: work for several requests together or after the answer (flushes, the lanes that put writes of a bucket in
order, snapshots), and TLS handshakes, which come before the client is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import Any, Final, TypeVar

Result = TypeVar("Result")


class Usage:
    """Seconds, noted by the event loop and by threads. `mutations_exceeded` says that the quota for changes of topics
    refused the request, or would have.
    """

    __slots__ = ("_parts", "mutations_exceeded")

    def __init__(self) -> None:
        self._parts: list[float] = []
        self.mutations_exceeded = False

    def add(self, seconds: float) -> None:
        self._parts.append(seconds)  # deque.append needs no lock

    @property
    def seconds(self) -> float:
        return sum(self._parts)


USAGE: Final[ContextVar[Usage | None]] = ContextVar("USAGE", default=None)
"""Usage of the request that is being answered; None if no request is charged."""


class ChargingExecutor(Executor):
    """Wraps an executor and notes the work that requests give it as theirs."""

    def __init__(self, inner: Executor, thread_time: Callable[[], float] = time.thread_time) -> None:
        """`thread_time` returns the seconds of processor time of the calling thread."""
        self._inner = inner
        self._thread_time = thread_time

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        usage = USAGE.get()
        if usage is None:
            return self._inner.submit(fn, *args, **kwargs)
        return self._inner.submit(self._measured, usage, fn, *args, **kwargs)

    def _measured(self, usage: Usage, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
        began = self._thread_time()
        try:
            return fn(*args, **kwargs)
        finally:
            usage.add(self._thread_time() - began)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait, cancel_futures=cancel_futures)


class _Steps(Coroutine[Any, Any, Result]):
    """A coroutine for a task, whose steps are measured."""

    def __init__(self, inner: Coroutine[Any, Any, Result], usage: Usage, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._usage = usage
        self._clock = clock

    def send(self, value: Any) -> Any:
        began = self._clock()
        try:
            return self._inner.send(value)
        finally:
            self._usage.add(self._clock() - began)

    def throw(self, *error: Any) -> Any:
        began = self._clock()
        try:
            return self._inner.throw(*error)
        finally:
            self._usage.add(self._clock() - began)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Result]:
        return (yield from self._inner.__await__())


def charged(work: Coroutine[Any, Any, Result], clock: Callable[[], float]) -> Coroutine[Any, Any, Result]:
    """Wrap a coroutine for a task, so that its steps are charged to the current request, if one is charged."""
    usage = USAGE.get()
    return work if usage is None else _Steps(work, usage, clock)
