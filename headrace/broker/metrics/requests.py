"""Measure the time of requests by API, with an answerer that wraps another one.

The time is from the arrival of a whole request until its answer is handed to the connection, including waits: a Fetch
that waits for records takes as long as it waits (Kafka's TotalTimeMs). This takes two readings of a clock and one count
per request; without metrics nothing is measured.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any, Final

from headrace.broker.metrics.model import Gathering, HistogramValue, Metric, MetricKind
from headrace.broker.net.reply import Answer, Answerer, Part, Peer, Pending
from headrace.broker.requests.declaration import ApiDeclaration

BOUNDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
    30.0,
)
REQUEST_SECONDS: Final = Metric(
    "headrace_request_duration_seconds",
    MetricKind.HISTOGRAM,
    "Seconds from a request's arrival to its answer, by API; its `_count` is the number of requests.",
    ("api",),
)


class Times:
    """A histogram under construction."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def value(self) -> HistogramValue:
        return HistogramValue(BOUNDS, tuple(self.counts), self.total)


class RequestMeter:
    """An Answerer (`broker.net.reply`) that measures another one."""

    def __init__(self, answerer: Answerer, declarations: Iterable[ApiDeclaration]) -> None:
        self._answerer = answerer
        self._names = {each.key: each.request.__name__.removesuffix("Request") for each in declarations}
        self._times = {key: Times() for key in self._names}

    def __call__(self, peer: Peer, frame: bytes | memoryview) -> Answer:
        began = perf_counter()
        times = self._times.get(frame[0] << 8 | frame[1]) if len(frame) > 1 else None
        answer = self._answerer(peer, frame)
        if times is not None:
            if type(answer) is Pending:
                answer.finish = partial(self._finish, times, began, answer.finish)
            else:
                times.add(perf_counter() - began)
        return answer

    @staticmethod
    def _finish(
        times: Times,
        began: float,
        finish: Callable[[asyncio.Future[Any]], list[Part] | None],
        outcome: asyncio.Future[Any],
    ) -> list[Part] | None:
        times.add(perf_counter() - began)
        return finish(outcome)

    async def collect(self, gathering: Gathering) -> None:
        """Collect the times; APIs that were never called are left out."""
        for key, times in self._times.items():
            if any(times.counts):
                gathering.put(REQUEST_SECONDS, times.value, self._names[key])
