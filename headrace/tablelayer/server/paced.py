"""Work in one thread that leaves half of the time to other work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import Clock, Threads

Result = TypeVar("Result")

BURST_SECONDS: Final = 0.02
"""Time that work may take without a pause after a rest: some stores."""
PAUSE_SECONDS_MAX: Final = 0.05


class Paced:
    """Runs work that holds the interpreter lock. A pause as long as earlier work precedes it, unless there was a rest.

    One thread at a time uses it.
    """

    def __init__(self, clock: Clock, threads: Threads) -> None:
        self._clock = clock
        self._threads = threads
        self._free_at = float("-inf")

    def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        early = self._free_at - self._clock.monotonic()
        if early > 0:
            self._threads.pause(min(early, PAUSE_SECONDS_MAX))
        began = self._clock.monotonic()
        try:
            return work(*arguments)
        finally:
            took = self._clock.monotonic() - began
            self._free_at = max(self._free_at, began - BURST_SECONDS) + took + min(took, PAUSE_SECONDS_MAX)
