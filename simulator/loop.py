"""An event loop with virtual time: the clock jumps to the next event that is due, and no other time passes.

Everything runs in one thread. Work for an executor runs inline, at a moment drawn from the seed: threads interleave
with the loop, in the same way for the same seed. Real sockets may be registered and are polled, but waiting for one
alone never ends: that raises `DeadlockError`.

**Killed and suspended processes.** Work belongs to the owner that `OWNER` named when it was started (tasks and
callbacks inherit it). `kill` drops all present and later work of an owner, at whatever point it waits: none of its
`finally`, `except` or `close` runs, as in a killed process. `suspend` stops an owner as SIGSTOP does, including its
threads; after `resume` everything that was due meanwhile comes at once, late.

`trace` is a hash of all work with its owner and time: the same for the same seed on every machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import selectors
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from typing import Any

from headrace.broker.runtime.ports import Clock, Entropy, Threads

OWNER: ContextVar[str] = ContextVar("owner", default="")
THREAD_SECONDS = 0.002
"""Maximum time that inline work waits for its turn."""
BURIAL_SECONDS = 600.0
BURIALS_MAX = 10
TASKS_LOOKED_AT = 100
"""Number of an owner's tasks after which finished ones are forgotten."""
TURNS_MAX = 50_000
"""Maximum number of the loop's turns at one moment."""


class DeadlockError(Exception):
    """A task waits, and no event is due."""


class LivelockError(Exception):
    """Work goes on without end at one moment."""


class _Handle(asyncio.Handle):
    """A handle that does not check for debug mode: each seed creates tens of thousands."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., Any],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """A timer that does not check for debug mode, as `_Handle`."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None
        self._when = when

    def cancel(self) -> None:
        """Cancel the timer; it is skipped when it is due."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop; see the module. `now` begins at `start`, in seconds."""

    def __init__(self, seed: int, *, start: float = 1_000.0) -> None:
        self.random = random.Random(seed)
        self._now = start
        self._turns = 0
        self._dead: set[str] = set()
        self._timers = 0
        self._suspended: dict[str, list[asyncio.Handle]] = {}
        self._resting: set[str | None] = set()
        """Owners that are dead or suspended."""
        self._digest = hashlib.blake2b(digest_size=16)
        self._left: list[asyncio.Task[Any]] = []
        self._dropped: list[Any] = []
        self._due: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._watching = _CountingSelector()
        super().__init__(self._watching)
        self.set_task_factory(_remembering_factory(self))
        self._tasks_by_owner: dict[str, list[asyncio.Task[Any]]] = {}

    def time(self) -> float:
        return self._now

    @property
    def trace(self) -> str:
        return self._digest.hexdigest()

    def note(self, *what: object) -> None:
        """Add an event to the trace."""
        self._digest.update(f"{self._now:.9f} {what}\n".encode())

    def is_dead(self, owner: str) -> bool:
        return owner in self._dead

    def suspend(self, owner: str) -> None:
        """Stop all work of this owner until `resume`."""
        self._suspended.setdefault(owner, [])
        self._resting.add(owner)

    def resume(self, owner: str) -> None:
        self._ready.extend(self._suspended.pop(owner, ()))  # type: ignore[attr-defined]
        if owner not in self._dead:
            self._resting.discard(owner)

    def is_suspended(self, owner: str) -> bool:
        return owner in self._suspended

    def kill(self, owner: str) -> None:
        """Stop all work of this owner for good. Its objects are kept, so that no destructor cleans up after it."""
        self._dead.add(owner)
        self._resting.add(owner)
        self.resume(owner)
        self._left.extend(self._tasks_by_owner.pop(owner, ()))

    def bury(self) -> None:
        """Cancel the unfinished tasks of dead owners at the end, so that destructors find none."""
        self._dead.clear()
        self._resting.intersection_update(self._suspended)
        self._left.clear()
        # A cancelled task may start another one to clean up.
        for _ in range(BURIALS_MAX):
            tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not tasks:
                return
            self._cancel_all(tasks)

    def _cancel_all(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        # A task whose next step was dropped ends only by that step.
        self._ready.extend(  # type: ignore[attr-defined]
            handle
            for handle in self._dropped
            if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)
        )
        self._dropped.clear()
        self.run_until_complete(asyncio.wait(tasks, timeout=BURIAL_SECONDS))

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

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def run_now(self, callback: Callable[..., Any], *args: Any, context: Context) -> None:
        """Run a callback now, as in its own turn, outside of the caller's context."""
        handle = _Handle(callback, args, self, context)
        if context.get(OWNER) not in self._resting or self._may_run(handle):
            handle._run()

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at a time. Calls of the same time run in the order in which they were made."""
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        timer = _Timer(when, callback, args, self, context)
        self._timers += 1
        heappush(self._due, (when, self._timers, timer))
        return timer

    def _run_once(self) -> None:
        """Run turns until the loop is stopped: ready and due work. If there is none, time jumps to the next timer."""
        ready, due, resting = self._ready, self._due, self._resting  # type: ignore[attr-defined]
        while True:
            if self._watching.count > 1:  # one is the loop's own, and no other thread could wake it
                self._process_events(self._watching.select(0))  # type: ignore[attr-defined]
            self._turns += 1
            if self._turns > TURNS_MAX:
                raise LivelockError(f"{TURNS_MAX} turns, and it is still {self._now}")
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                while due and due[0][2]._cancelled:
                    heappop(due)
                if not due:
                    raise DeadlockError("nothing is due and all tasks wait")
                if due[0][0] > self._now:
                    self._now = due[0][0]
                    self._turns = 0
            while due and due[0][0] <= self._now:
                ready.append(heappop(due)[2])
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled and (
                    handle._context.get(OWNER) not in resting or self._may_run(handle)
                ):
                    handle._run()
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _may_run(self, handle: asyncio.Handle) -> bool:
        """Return whether a handle of a `_resting` owner may run now; if not, it is kept for later or for good."""
        owner = handle._context.get(OWNER)  # type: ignore[attr-defined]
        if owner in self._dead:
            self._dropped.append(handle)
            return False
        if owner in self._suspended:
            self._suspended[owner].append(handle)
            return False
        return True


def _remembering_factory(loop: SimulatedLoop) -> Any:
    def make(_: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        context = options.get("context")
        owner = OWNER.get() if context is None else context.get(OWNER, "")
        tasks = loop._tasks_by_owner.setdefault(owner, [])
        if not len(tasks) % TASKS_LOOKED_AT:
            tasks[:] = [each for each in tasks if not each.done()]
        tasks.append(task)
        return task

    return make


class _CountingSelector(selectors.DefaultSelector):
    """A selector that counts its registered files."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self.count += 1
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self.count -= 1
        return key


class SimulatedClock(Clock):
    """The loop's time, and a wall clock that may be wrong by `skew` seconds."""

    def __init__(self, loop: SimulatedLoop, *, epoch_ms: int = 1_750_000_000_000, skew: float = 0.0) -> None:
        self._loop = loop
        self._epoch_ms = epoch_ms + int(skew * 1000)

    def time_ms(self) -> int:
        return self._epoch_ms + int(self._loop._now * 1000)

    def monotonic(self) -> float:
        return self._loop._now


class SimulatedEntropy(Entropy):
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def random(self) -> float:
        return self._random.random()


class SimulatedThreads(Threads):
    """Executors whose work runs inline, at a seeded moment. A caller that asks for the result earlier runs it then."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def pool(self, threads: int, name: str) -> Executor:
        return SimulatedExecutor(self._loop)

    def pause(self, seconds: float) -> None:
        """Return at once: time does not pass, since no other thread could go on."""


class SimulatedExecutor(Executor):
    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._waiting: list[_Work] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        work = _Work(partial(fn, *args, **kwargs))
        self._waiting = [each for each in self._waiting if not each.done()]
        self._waiting.append(work)
        self._loop.call_later(self._loop.random.uniform(0, THREAD_SECONDS), work.do)
        return work

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for work in self._waiting:
            if cancel_futures:
                work.cancel()
            elif wait:
                work.do()


class _Work(Future[Any]):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call

    def do(self) -> None:
        if self.done() or not self.set_running_or_notify_cancel():
            return
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self.set_exception(error)
        else:
            self.set_result(result)

    def result(self, timeout: float | None = None) -> Any:
        self.do()
        return super().result(0)


class InlineExecutor(Executor):
    """An executor for code that calls it directly, past the loop: the work is done before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        return future
