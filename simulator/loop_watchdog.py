"""Measure how long a callback holds up the event loop: a watchdog for tests of a server in this process.

async with LoopWatchdog() as watchdog:
        ...
    assert watchdog.longest_cpu_seconds < 0.05, watchdog.report()

The loop runs a beat every `interval_seconds`. The delay of a beat is the time in which no client was served:
`longest_seconds` is its wall time. `longest_cpu_seconds` is the processor time of the loop's thread meanwhile, which
other processes and blocking calls do not count into. A beat later than `stall_seconds` is a stall; a second thread
records the loop's stack meanwhile, as far as the loop's thread lets other threads run.

Under a simulated loop no beat is late: count the turns there.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

import msgspec

STALLS_MAX = 100
"""Maximum number of stalls that are kept: the longest ones."""


class Stall(msgspec.Struct, frozen=True):
    """One stall of the loop. `stack` has its calls, the outermost first; empty if it could not be read."""

    seconds: float
    cpu_seconds: float
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "".join(self.stack[-6:]) or "  (the stack could not be read)\n"
        return f"{self.seconds * 1e3:.1f} ms, {self.cpu_seconds * 1e3:.1f} ms of them at work, in\n{where}"


class LoopWatchdog:
    """The watchdog; see the module. Entered and left on the loop that it watches."""

    def __init__(self, *, interval_seconds: float = 0.001, stall_seconds: float = 0.02) -> None:
        self.longest_seconds = 0.0
        self.longest_cpu_seconds = 0.0
        self.beats = 0
        self.stalls: list[Stall] = []
        self._interval = interval_seconds
        self._stall = stall_seconds
        self._last = 0.0
        self._last_cpu = 0.0
        self._stack: tuple[str, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._looker: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._last, self._last_cpu = time.perf_counter(), time.thread_time()
        self._timer = self._loop.call_later(self._interval, self._beat)
        self._looker = threading.Thread(target=self._look, name="loop watchdog", daemon=True)
        self._looker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._note()
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()
        if self._looker is not None:
            self._looker.join()

    def reset(self) -> None:
        """Forget all measurements, and begin now."""
        self.longest_seconds = self.longest_cpu_seconds = 0.0
        self.beats = 0
        self.stalls.clear()
        self._last, self._last_cpu = time.perf_counter(), time.thread_time()

    def report(self) -> str:
        """Return the three longest stalls, for the message of an assertion."""
        worst = sorted(self.stalls, key=lambda stall: stall.seconds, reverse=True)[:3]
        return f"{len(self.stalls)} stalls of the event loop\n" + "\n".join(map(str, worst))

    def _beat(self) -> None:
        self._note()
        self._timer = self._loop.call_later(self._interval, self._beat)

    def _note(self) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        late = max(0.0, now - self._last - self._interval)
        worked = min(cpu - self._last_cpu, now - self._last)
        stack, self._stack = self._stack, ()
        self.beats += 1
        self._last, self._last_cpu = now, cpu
        self.longest_seconds = max(self.longest_seconds, late)
        self.longest_cpu_seconds = max(self.longest_cpu_seconds, worked)
        if late >= self._stall:
            self.stalls.append(Stall(late, worked, stack))
            if len(self.stalls) > STALLS_MAX:
                self.stalls.remove(min(self.stalls, key=lambda stall: stall.seconds))

    def _look(self) -> None:
        while not self._ended.wait(self._stall / 2):
            if self._stack or time.perf_counter() - self._last < self._stall:
                continue  # a later sample may find the loop on its way to the beat
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None:
                self._stack = tuple(
                    _places(frame)
                )  # no source lines: reading files would miss the end of the stall


def _places(frame: FrameType | None) -> list[str]:
    found: list[str] = []
    while frame is not None:
        code = frame.f_code
        found.append(f"  {code.co_filename}:{frame.f_lineno} in {code.co_qualname}\n")
        frame = frame.f_back
    return found[::-1]
