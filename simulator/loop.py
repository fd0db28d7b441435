"""An event loop in which time is a number: it jumps to the next thing that is due, and nothing else passes.

Everything runs in the one thread: what is handed to an executor is done inline, at a moment drawn from the seed, so
that threads interleave with the loop, and for one seed always in the same way. Real sockets may be registered and are
looked at, but whoever waits for one alone waits for ever: that is reported as `DeadlockError`.

**Who is dead does nothing any more.** Work belongs to whom `OWNER` named when it was started (tasks and callbacks
inherit it). `kill` drops all that an owner has scheduled and ever will, in the middle of whatever it waits for: no
`finally`, no `except`, no `close` of it runs, as in a process that was killed. `suspend` lets an owner rest as SIGSTOP
does, threads included; after `resume` everything that was due meanwhile comes at once, late.

`trace` is a hash of all that was done, by whom and when: the same for the same seed, whatever the machine.
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
"""What inline work waits for its turn, at most."""
BURIAL_SECONDS = 600.0
BURIALS_MAX = 10
TASKS_LOOKED_AT = 100
"""Those of one owner that are over are forgotten now and then."""
TURNS_MAX = 50_000
"""Of the loop, at one moment."""


class DeadlockError(Exception):
    """Nothing is due, ever, and something is waited for."""


class LivelockError(Exception):
    """Something goes on without end at one moment."""


class _Handle(asyncio.Handle):
    """Asks nobody whether somebody debugs: tens of thousands are made for each seed."""

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
    """As a `_Handle`."""

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
        """It is left out when its moment has come."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module. `now` begins at `start`, in seconds."""

    def __init__(self, seed: int, *, start: float = 1_000.0) -> None:
        self.random = random.Random(seed)
        self._now = start
        self._turns = 0
        self._dead: set[str] = set()
        self._timers = 0
        self._suspended: dict[str, list[asyncio.Handle]] = {}
        self._resting: set[str | None] = set()
        """The dead and the suspended."""
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
        """Make it a part of the trace."""
        self._digest.update(f"{self._now:.9f} {what}\n".encode())

    def is_dead(self, owner: str) -> bool:
        return owner in self._dead

    def suspend(self, owner: str) -> None:
        """Nothing of this owner runs until `resume`."""
        self._suspended.setdefault(owner, [])
        self._resting.add(owner)

    def resume(self, owner: str) -> None:
        self._ready.extend(self._suspended.pop(owner, ()))  # type: ignore[attr-defined]
        if owner not in self._dead:
            self._resting.discard(owner)

    def is_suspended(self, owner: str) -> bool:
        return owner in self._suspended

    def kill(self, owner: str) -> None:
        """Nothing of this owner runs from here on. What it held is kept, so that no destructor cleans up after it."""
        self._dead.add(owner)
        self._resting.add(owner)
        self.resume(owner)
        self._left.extend(self._tasks_by_owner.pop(owner, ()))

    def bury(self) -> None:
        """At the end: what the dead left unfinished is cancelled and ends; nothing of it is left to destructors."""
        self._dead.clear()
        self._resting.intersection_update(self._suspended)
        self._left.clear()
        # What is cancelled may begin something to clean up after itself.
        for _ in range(BURIALS_MAX):
            tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not tasks:
                return
            self._cancel_all(tasks)

    def _cancel_all(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        # A task whose next step was dropped ends by that step alone.
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
        """As if its turn had come. Whoever asks is not in this context."""
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
        """Those of one moment are carried out in the order in which they were asked for."""
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        timer = _Timer(when, callback, args, self, context)
        self._timers += 1
        heappush(self._due, (when, self._timers, timer))
        return timer

    def _run_once(self) -> None:
        """Turns until it is stopped: what is ready or due. If there is nothing, it is the time of the next timer."""
        ready, due, resting = self._ready, self._due, self._resting  # type: ignore[attr-defined]
        while True:
            if (
                self._watching.count > 1
            ):  # one is the loop's own, and nobody is in another thread who would wake it
                self._process_events(self._watching.select(0))  # type: ignore[attr-defined]
            self._turns += 1
            if self._turns > TURNS_MAX:
                raise LivelockError(f"{TURNS_MAX} turns, and it is still {self._now}")
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                while due and due[0][2]._cancelled:
                    heappop(due)
                if not due:
                    raise DeadlockError("nothing is due and everybody waits")
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
        """Whether it is done now: else it is kept, for later or for good. Of those who may be `_resting`."""
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
    """`count`: of what is registered."""

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
    """The loop's time, with a wall clock beside it that may be wrong by `skew` seconds."""

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
    """What is handed in is done inline, at a seeded moment; whoever asks for its result before has it done then."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def pool(self, threads: int, name: str) -> Executor:
        return SimulatedExecutor(self._loop)

    def pause(self, seconds: float) -> None:
        """No time passes: nobody else could go on."""


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
    """For what asks an executor itself, past the loop: done before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        return future
