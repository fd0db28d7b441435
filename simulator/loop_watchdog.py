"""How long an event loop was held up, and by what: a watchdog for tests and fuzzers of a server in this process.

    async with LoopWatchdog() as watchdog:
        ...
    assert watchdog.longest_cpu_seconds < 0.05, watchdog.report()

A heart beats on the loop every `interval_seconds`. Between two beats nobody was served for as long as the second one is
late (`longest_seconds`, wall time: what a client would feel), and the loop's own thread worked for so much of it
(`longest_cpu_seconds`, its processor time: what is left when other processes take turns with this one; a wait in a
blocking call does not count there). A beat that is later than `stall_seconds` is a stall; a thread beside it looks
where the loop stands meanwhile, as far as the one that holds it lets other threads run.

Under a simulated loop nothing is late: count the turns there.
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
"""Of the longest ones so many are kept."""


class Stall(msgspec.Struct, frozen=True):
    """One time that the loop was held up. `stack`: where it stood, outermost call first; empty if nobody could look."""

    seconds: float
    cpu_seconds: float
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "".join(self.stack[-6:]) or "  (nobody could look where)\n"
        return f"{self.seconds * 1e3:.1f} ms, {self.cpu_seconds * 1e3:.1f} ms of them at work, in\n{where}"


class LoopWatchdog:
    """See the module. Entered and left on the loop that it watches."""

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
        """Forget what was seen so far, and begin now."""
        self.longest_seconds = self.longest_cpu_seconds = 0.0
        self.beats = 0
        self.stalls.clear()
        self._last, self._last_cpu = time.perf_counter(), time.thread_time()

    def report(self) -> str:
        """For the message of an assertion: the three worst stalls."""
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
                continue  # a later look may find the loop on its way to the beat
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
