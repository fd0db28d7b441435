"""A clock that counts calls, so that a test of durations has the same result on every machine.

Each call of a Python or C function on the thread that made the clock counts as one microsecond; nothing else takes
time. Sliced work (`broker.runtime.slices`) with this clock rests after a fixed number of calls. `longest_turn` is the
most work that the event loop did without a rest. A call of a C function counts as one, however long it takes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from headrace.broker.runtime.ports import Clock

CALL_SECONDS = 1e-6


class CallClock(Clock):
    """A clock that counts while it is entered, on the loop that is watched."""

    def __init__(self) -> None:
        self.calls = 0
        self.longest_turn = 0
        """Maximum number of calls between two turns of the event loop."""
        self._turn_began = 0
        self._handle: asyncio.Handle | None = None

    def time_ms(self) -> int:
        return 1_750_000_000_000 + self.calls // 1000

    def monotonic(self) -> float:
        return 1000 + self.calls * CALL_SECONDS

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.reset()
        sys.setprofile(self._count)
        self._turn()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        self._note()
        if self._handle is not None:
            self._handle.cancel()

    def reset(self) -> None:
        """Forget the turns so far."""
        self.longest_turn = 0
        self._turn_began = self.calls

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1

    def _note(self) -> None:
        self.longest_turn = max(self.longest_turn, self.calls - self._turn_began)
        self._turn_began = self.calls

    def _turn(self) -> None:
        self._note()
        self._handle = self._loop.call_soon(self._turn)


class Count:
    """The number of calls counted."""

    calls = 0


@contextmanager
def counted_calls() -> Iterator[Count]:
    """Count the calls of Python and C functions on this thread."""
    count = Count()

    def profile(frame: object, event: str, argument: object) -> None:
        count.calls += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        yield count
    finally:
        sys.setprofile(None)
