"""One timer for many deadlines: a heap, of which only the earliest is scheduled on the event loop.

A key has one deadline: the earliest that it was given since it last fired. A deadline that moves later is not taken
back, so a key may fire early; its owner then finds that nothing is due.

If the event loop was blocked, requests of that time are not read yet. Due deadlines then wait for a short grace period,
in which heartbeats are read: clients must not lose their sessions because the broker stalled.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from headrace.broker.runtime.ports import Clock

STALL_SECONDS = 0.25
GRACE_SECONDS = 0.1


class Deadlines:
    """Calls `due(key)` on the event loop once the clock has reached the key's deadline."""

    def __init__(self, clock: Clock, due: Callable[[str], None]) -> None:
        self._clock = clock
        self._due = due
        self._heap: list[tuple[float, str]] = []
        self._when: dict[str, float] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._closed = False

    def __len__(self) -> int:
        return len(self._when)

    def wake(self, key: str, when: float) -> None:
        """Call `due(key)` at `when`, in seconds of the clock's monotonic time, or earlier."""
        known = self._when.get(key)
        if self._closed or (known is not None and known <= when):
            return
        self._when[key] = when
        heapq.heappush(self._heap, (when, key))
        self._arm()

    def forget(self, key: str) -> None:
        self._when.pop(key, None)

    def close(self) -> None:
        self._closed = True
        self._when.clear()
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        while self._heap and self._when.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if self._closed or not self._heap:
            return
        when = self._heap[0][0]
        if self._handle is not None:
            if self._armed_for <= when:
                return
            self._handle.cancel()
        self._armed_for = when
        delay = max(when - self._clock.monotonic(), 0.0)
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        now = self._clock.monotonic()
        if now - self._armed_for > STALL_SECONDS:
            self._armed_for = now + GRACE_SECONDS
            self._handle = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._fire)
            return
        self._handle = None
        due = []
        while self._heap and self._heap[0][0] <= now:
            when, key = heapq.heappop(self._heap)
            if self._when.get(key) == when:
                del self._when[key]
                due.append(key)
        # Deadlines that these calls add fire in a later turn of the loop, so this loop ends.
        for key in due:
            self._due(key)
        self._arm()
