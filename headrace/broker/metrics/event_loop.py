"""How long the event loop's turns take: what is done between two waits for events, while every client waits.

Twice: by the clock, and by the processor time of the loop's own thread. Where the first is long and the second is not,
the loop has waited itself: for a core that other processes have, or for the interpreter's lock. Four looks at clocks
for each turn; nothing is measured unless somebody asked for metrics.
"""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import Final

from headrace.broker.metrics.model import Gathering, Metric, MetricKind
from headrace.broker.metrics.requests import Times

TURN_SECONDS: Final = Metric(
    "headrace_event_loop_turn_seconds",
    MetricKind.HISTOGRAM,
    "Seconds between two waits of the event loop: the time in which it serves some clients while all others wait.",
)
TURN_CPU_SECONDS: Final = Metric(
    "headrace_event_loop_turn_cpu_seconds",
    MetricKind.HISTOGRAM,
    "Processor seconds of the event loop between two waits, without waits for a core or the interpreter's lock.",
)


class LoopMeter:
    """A TurnMeter (`broker.net.poller`). On the loop's thread."""

    def __init__(self) -> None:
        self._times = Times()
        self._cpu_times = Times()
        self._began: float | None = None
        self._cpu_began = 0.0

    def begins(self) -> None:
        self._began = perf_counter()
        self._cpu_began = thread_time()

    def ends(self) -> None:
        if self._began is not None:
            self._times.add(perf_counter() - self._began)
            self._cpu_times.add(thread_time() - self._cpu_began)

    async def collect(self, gathering: Gathering) -> None:
        gathering.put(TURN_SECONDS, self._times.value)
        gathering.put(TURN_CPU_SECONDS, self._cpu_times.value)
