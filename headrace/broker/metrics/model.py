"""Metrics: their declarations, and how they are collected without delaying clients.

A part of the broker (or an extension) adds its declarations and a function that fills in their values. Nothing is
counted in the background: existing values are read when a scrape asks for them. They are collected on the event loop,
which owns them, in turns of half a millisecond (`Gathering.breathe`).

Names follow Prometheus, words follow Kafka; every name begins with `headrace_`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import cache
from time import perf_counter
from typing import Final

import msgspec

TURN_SECONDS: Final = 0.0005
OTHERS: Final = "(other)"
"""The label for everything beyond a limit on labels. Topics, tables and groups cannot have this name."""


class MetricKind(StrEnum):
    """`COUNTER` only grows (names end with `_total`); a `HISTOGRAM` of seconds has bounds of its own."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """A declaration. `doc` is one sentence: the measured quantity and its unit."""

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind is MetricKind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(
                f"{self.name}: the names of counters must end with _total, and other names must not"
            )


class HistogramValue(msgspec.Struct, frozen=True):
    """`counts[i]` is the number of values up to `bounds[i]` and above the bound before; the last count is that of
    values above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


Value = float | HistogramValue
Values = dict[tuple[str, ...], Value]


Shown = Callable[[str, str], bool]
"""Returns whether a label is shown, by its name and value."""


class Gathering:
    """The values of one answer, by metric and labels."""

    def __init__(self, shown: Shown | None = None) -> None:
        """Values for which `shown` is false are left out."""
        self.values: dict[str, Values] = {}
        self._shown = None if shown is None else cache(shown)
        self._turn_began = perf_counter()

    def put(self, metric: Metric, value: Value, *labels: str) -> None:
        """Set a value. Raises ValueError if the labels are not the declared ones."""
        self._check(metric, labels)
        if self._is_shown(metric, labels):
            self.values.setdefault(metric.name, {})[labels] = value

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add to a value, which is 0 at first."""
        self._check(metric, labels)
        if not self._is_shown(metric, labels):
            return
        values = self.values.setdefault(metric.name, {})
        before = values.get(labels, 0.0)
        assert not isinstance(before, HistogramValue)
        values[labels] = before + value

    @staticmethod
    def _check(metric: Metric, labels: tuple[str, ...]) -> None:
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")

    def _is_shown(self, metric: Metric, labels: tuple[str, ...]) -> bool:
        shown = self._shown
        return shown is None or all(map(shown, metric.labels, labels))

    async def breathe(self) -> None:
        """Let other work run if this turn has been long enough. Call it in every loop that may be long."""
        if perf_counter() - self._turn_began >= TURN_SECONDS:
            await asyncio.sleep(0)
            self._turn_began = perf_counter()


Collector = Callable[[Gathering], Awaitable[None]]


class Metrics:
    """All declared metrics; one collection at a time."""

    def __init__(self) -> None:
        self._declared: dict[str, Metric] = {}
        self._collectors: list[Collector] = []
        self._gathering = asyncio.Lock()
        self.shown: Shown | None = None
        """The filter of collected values; None: everything."""

    @property
    def declared(self) -> list[Metric]:
        """The declarations by name."""
        return [self._declared[name] for name in sorted(self._declared)]

    def add(self, metrics: Sequence[Metric], collect: Collector) -> None:
        """Add metrics. Raises ValueError for a name that is declared already."""
        for metric in metrics:
            if metric.name in self._declared:
                raise ValueError(f"metric {metric.name} is declared twice")
            self._declared[metric.name] = metric
        self._collectors.append(collect)

    async def gather(self) -> dict[str, Values]:
        """Collect all present values. Call it on the broker's event loop."""
        async with self._gathering:
            found = Gathering(self.shown)
            for collect in self._collectors:
                await collect(found)
                await found.breathe()
        return found.values


def markdown_rows(metrics: Sequence[Metric]) -> list[str]:
    """Return a line for each metric, for the page that lists them."""
    return [
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels) or '–'} | {each.doc} |" for each in metrics
    ]
