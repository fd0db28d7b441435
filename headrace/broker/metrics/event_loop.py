"""Measure the turns of the event loop: the work between two waits for events, during which every client waits.

It is measured twice: by the clock, and by the processor time of the loop's own thread. If only the first is long, the
loop itself has waited: for a core, or for the interpreter's lock. This takes four readings of clocks for each turn;
without metrics nothing is measured.
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
    """A TurnMeter (`broker.net.poller`). Runs on the loop's thread."""

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
