"""Long work on the event loop, done in slices, so that other work waits for one slice at most.

Work is a generator that yields wherever it may pause, and returns its result. It pauses once a slice is over
(`SLICE_SECONDS`); then the loop runs everything else. All work of a loop shares one queue and gets one slice in each
turn of the loop: a hundred long requests delay a short one by one slice, not by a hundred. The clock is a parameter. A
simulated clock stands still while anything runs, so under it work never pauses.

The data that the work reads may change while it pauses. The work has to look again, or to copy what it needs before its
first pause. A caller that owns the thread and only wants the result calls `finish`.

A long request creates hundreds of thousands of objects, and none of them is garbage. The garbage collector would scan
all of them repeatedly, in steps that cannot be interrupted, so it is off meanwhile (`CollectorRest`). Objects that stay
are moved out of its reach.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.broker.runtime.usage import USAGE, Usage

Result = TypeVar("Result")

Work = Generator[None, None, Result]

FIRST_SLICE_SECONDS = 0.00025
"""Seconds of the first slice, before anything is queued. Most work is done by then and costs no turn."""
SLICE_SECONDS = 0.00025
"""Seconds of a slice. A short request may wait for a turn of this and of all that is ready beside it; a turn itself
costs a twentieth of it.
"""
_RUN_LENGTH = 512
_COLLECTOR_RESTS_SECONDS = 1.0
_COLLECTOR_RESTS_SECONDS_MAX = 10.0


class CollectorRest:
    """Switches Python's garbage collector off while `is_busy`, up to a second longer, and for at most ten seconds. By
    then most allocations were freed by their reference counts. A collector that was off before stays off.
    """

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._others = 0
        self._until = 0.0
        self._has_many = False
        self._owns_process = False

    def own_process(self) -> None:
        """Exempt all objects that are there from collection, because the process is the broker's own. The collector is
        on afterwards.
        """
        gc.collect()
        gc.freeze()
        gc.enable()
        self._owns_process = True

    @contextmanager
    def during(self) -> Iterator[None]:
        """Switch the collector off while this block runs, which is not work in slices."""
        self._others += 1
        self._has_many = True
        self.begin()
        try:
            yield
        finally:
            self._others -= 1

    def spare_what_is_there(self) -> None:
        """Exempt the objects that were just made from collection, in a block `during`: they are many and stay for as
        long as those of the process's start. A full pass over them would stop everything for a hundred milliseconds.
        Nothing happens in a process that is not the broker's own.

        The rest begins again, because little is left to collect.
        """
        if self._owns_process and self._has_many:
            gc.freeze()
            self.begin()
            if self._until:
                self._until = asyncio.get_running_loop().time() + _COLLECTOR_RESTS_SECONDS_MAX

    def begin(self) -> None:
        """Note that long work has begun."""
        if not self._until and gc.isenabled():
            gc.disable()
            loop = asyncio.get_running_loop()
            self._until = loop.time() + _COLLECTOR_RESTS_SECONDS_MAX
            loop.call_later(_COLLECTOR_RESTS_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._until and (self._others or self._is_busy()) and loop.time() < self._until:
            loop.call_later(_COLLECTOR_RESTS_SECONDS, self._look, loop)
        else:
            self.end()

    def end(self) -> None:
        """Switch the collector on again, if it was on before."""
        if self._until:
            self.spare_what_is_there()  # the answer, and what follows the new objects
            self._until, self._has_many = 0.0, self._others > 0
            gc.enable()


class Slices:
    """The queue of one event loop. `clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._queue: deque[tuple[Work[Any], asyncio.Future[Any], Usage | None]] = deque()
        self.collector = CollectorRest(lambda: bool(self._queue))

    def start(self, work: Work[Result]) -> tuple[bool, Result | asyncio.Future[Result]]:
        """Do the first slice. Return (True, the result) if that was all, else (False, a future of the result).

        An exception of the first slice is raised here. Cancelling the future closes the work.
        """
        clock = self._clock
        until = clock() + FIRST_SLICE_SECONDS
        try:
            while True:
                next(work)
                if clock() >= until:
                    break
        except StopIteration as end:
            return True, end.value
        return False, self._enqueue(work)

    def pace(self) -> Pace:
        """Return the pace of a coroutine that loops over many items and awaits little: `await pace.rest()` in each
        round.
        """
        return Pace(self)

    async def run(self, work: Work[Result]) -> Result:
        """Do all of the work. Cancelling the caller closes the work."""
        is_done, result = self.start(work)
        return result if is_done else await result  # type: ignore[misc, return-value]

    def _enqueue(self, work: Work[Result]) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.append((work, future, USAGE.get()))
        if len(self._queue) == 1:
            self.collector.begin()
            loop.call_soon(self._turn)
        return future

    def _turn(self) -> None:
        """Run one slice of the work that has waited longest."""
        work, future, usage = self._queue[0]
        if future.done():  # cancelled
            work.close()
        else:
            clock = self._clock
            began = clock()
            until = began + SLICE_SECONDS
            try:
                while True:
                    next(work)
                    if clock() >= until:
                        self._queue.append((work, future, usage))
                        break
            except StopIteration as end:
                future.set_result(end.value)
            except Exception as error:  # noqa: BLE001 - reported to the caller that waits
                future.set_exception(error)
            if usage is not None:
                usage.add(clock() - began)
        self._queue.popleft()
        if self._queue:
            asyncio.get_running_loop().call_soon(self._turn)


class Pace:
    """The part of its slice that a coroutine has used. See `Slices.pace`."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._until = slices._clock() + FIRST_SLICE_SECONDS

    async def rest(self) -> None:
        """Once the slice is over, wait for the next one, in the same queue as all other work."""
        clock = self._slices._clock
        if clock() >= self._until:
            await self._slices._enqueue(_nothing())
            self._until = clock() + SLICE_SECONDS


def _nothing() -> Work[None]:
    return
    yield


def sort_in_slices(items: Iterable[Any]) -> Work[list[Any]]:
    """Return the items sorted."""
    runs, run = [], []
    for item in items:
        run.append(item)
        if len(run) == _RUN_LENGTH:
            run.sort()
            runs.append(run)
            run = []
            yield
    run.sort()
    if not runs:
        return run
    ordered = []
    for item in heapq.merge(*runs, run):
        ordered.append(item)
        if not len(ordered) % 32:
            yield
    return ordered


def finish(work: Work[Result]) -> Result:
    """Do all of the work at once."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: Result = end.value
        return result
