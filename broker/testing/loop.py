"""An event loop in which time is a number: it jumps to the next thing that is due, and nothing else passes.

Everything runs in the one thread: what is handed to an executor is done inline, at a moment drawn from the seed, so
that threads interleave with the loop, and for one seed always in the same way. Real sockets may be registered and are
looked at, but whoever waits for one alone waits for ever: that is reported as `DeadlockError`.

**Who is dead does nothing any more.** Work belongs to whom `OWNER` named when it was started (tasks and callbacks
inherit it). `kill` drops all that an owner has scheduled and ever will, in the middle of whatever it waits for: no
`finally`, no `except`, no `close` of it runs, as in a process that was killed.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import Any

from broker.ports import Clock, Entropy, Threads

OWNER: ContextVar[str] = ContextVar("owner", default="")
THREAD_SECONDS = 0.002
"""What inline work waits for its turn, at most."""
BURIAL_SECONDS = 600.0


class DeadlockError(Exception):
    """Nothing is due, ever, and something is waited for."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module. `now` begins at `start`, in seconds."""

    def __init__(self, seed: int, *, start: float = 1_000.0) -> None:
        self.random = random.Random(seed)
        self._now = start
        self._dead: set[str] = set()
        self._left: list[asyncio.Task[Any]] = []
        self._dropped: list[Any] = []
        super().__init__(_JumpingSelector(self))
        self.set_task_factory(_remembering_factory(self))
        self._tasks_by_owner: dict[str, list[asyncio.Task[Any]]] = {}

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds

    def is_dead(self, owner: str) -> bool:
        return owner in self._dead

    def kill(self, owner: str) -> None:
        """Nothing of this owner runs from here on. What it held is kept, so that no destructor cleans up after it."""
        self._dead.add(owner)
        self._left.extend(self._tasks_by_owner.pop(owner, ()))

    def bury(self) -> None:
        """At the end: what the dead left unfinished is cancelled and ends; nothing of it is left to destructors."""
        self._dead.clear()
        tasks, self._left = [task for task in self._left if not task.done()], []
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks, timeout=BURIAL_SECONDS))
        self._dropped.clear()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(self.random.uniform(0, THREAD_SECONDS), work)
        return future

    def _run_once(self) -> None:
        if self._dead:
            for handle in self._ready:  # type: ignore[attr-defined]
                if handle._context.get(OWNER) in self._dead:
                    self._dropped.append((handle._callback, handle._args))
                    handle.cancel()
            scheduled = self._scheduled  # type: ignore[attr-defined]
            gone = [handle for handle in scheduled if handle._context.get(OWNER) in self._dead]
            if gone:
                self._dropped.extend((handle._callback, handle._args) for handle in gone)
                scheduled[:] = [handle for handle in scheduled if handle not in gone]
                heapq.heapify(scheduled)
        super()._run_once()  # type: ignore[misc]


def _remembering_factory(loop: SimulatedLoop) -> Any:
    def make(_: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        tasks = loop._tasks_by_owner.setdefault(OWNER.get(), [])
        tasks.append(task)
        task.add_done_callback(tasks.remove)
        return task

    return make


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise DeadlockError("nothing is due and everybody waits")
        self._loop.jump(timeout)
        return []


class SimulatedClock(Clock):
    """The loop's time, with a wall clock beside it that may be wrong by `skew` seconds."""

    def __init__(self, loop: SimulatedLoop, *, epoch_ms: int = 1_750_000_000_000, skew: float = 0.0) -> None:
        self._loop = loop
        self._epoch_ms = epoch_ms + int(skew * 1000)

    def time_ms(self) -> int:
        return self._epoch_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class SimulatedEntropy(Entropy):
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def random(self) -> float:
        return self._random.random()


class InlineThreads(Threads):
    def pool(self, threads: int, name: str) -> Executor:
        return InlineExecutor()

    def pause(self, seconds: float) -> None:
        """No time passes: nobody else could go on."""


class InlineExecutor(Executor):
    """For what asks an executor itself, past the loop: done before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        return future
