"""Sums by name over counters that come and go: a partition's traffic, for example, is added to its topic's at each
scrape.

Only the increase since the last time is added, so sums never shrink when partitions go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Hashable, Iterable, Iterator

from headrace.broker.metrics.model import OTHERS

NAMES_MAX = 200
"""Each name has several series: a dashboard of more is not readable, and every series costs a scrape microseconds."""


class Totals:
    """Sums by name (of a topic, of a table) over counters that come and go.

    At most `names_max` names have sums of their own, in the order of their first use. All other names share one sum,
    under OTHERS, which also keeps the counts of removed ones. A removed name takes its own sums with it and makes room.
    """

    def __init__(self, width: int, names_max: int = NAMES_MAX) -> None:
        """`width` is the number of sums of a name."""
        self._width = width
        self._names_max = names_max
        self._labels: dict[str, str] = {}
        self._named = 0
        self._seen: dict[Hashable, tuple[int, ...]] = {}
        self._sums: dict[str, list[int]] = {}

    def label(self, name: str) -> str:
        """Return the name, or OTHERS when there are too many; the same one until `keep` drops it."""
        label = self._labels.get(name)
        if label is None:
            label = name if self._named < self._names_max else OTHERS
            self._named += label is name
            self._labels[name] = label
        return label

    def count(self, name: str, counter: Hashable, now: tuple[int, ...]) -> None:
        """Add the increase of a counter since the last time to the sums of a name."""
        before = self._seen.get(counter)
        self._seen[counter] = now
        sums = self._sums.setdefault(self.label(name), [0] * self._width)
        for index, value in enumerate(now):
            sums[index] += value - (0 if before is None else before[index])

    async def keep(
        self, names: Container[str], counters: Iterable[Hashable], breathe: Callable[[], Awaitable[None]]
    ) -> None:
        """Remove all other names, in turns: no other code may use the sums meanwhile."""
        for name in list(self._labels):
            await breathe()
            if name not in names and self._labels.pop(name) != OTHERS:
                self._named -= 1
                self._sums.pop(name, None)
        alive = {}
        for counter in counters:
            await breathe()
            if counter in self._seen:
                alive[counter] = self._seen[counter]
        self._seen = alive

    def sums(self) -> Iterator[tuple[str, list[int]]]:
        """Yield (label, its sums)."""
        return iter(sorted(self._sums.items()))
