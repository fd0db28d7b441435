"""Medians, spread and ratios, on the screen and as JSON."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from bench.peers import HEADRACE, KAFKA


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a figure: Headrace / the other at most or at least, or Headrace alone at most."""

    ratio_max: float | None = None
    ratio_min: float | None = None
    value_max: float | None = None
    value_min: float | None = None

    def is_met(self, ours: float, theirs: float | None) -> bool:
        if self.value_max is not None and ours > self.value_max:
            return False
        if self.value_min is not None and ours < self.value_min:
            return False
        if theirs is None:
            return True
        ratio = ours / max(1e-9, theirs)
        return not (
            (self.ratio_max is not None and ratio > self.ratio_max)
            or (self.ratio_min is not None and ratio < self.ratio_min)
        )

    def __str__(self) -> str:
        parts = []
        if self.ratio_max is not None:
            parts.append(f"ratio <= {self.ratio_max:.2g}")
        if self.ratio_min is not None:
            parts.append(f"ratio >= {self.ratio_min:g}")
        if self.value_max is not None:
            parts.append(f"<= {self.value_max:g}")
        if self.value_min is not None:
            parts.append(f">= {number(self.value_min)}")
        return ", ".join(parts)


@dataclass(slots=True)
class Samples:
    """One value a round for each figure and server.

    `other` is the server beside Headrace. Figures that have none of its values are compared with the first server they
    have.
    """

    other: str = KAFKA
    values: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    goals: dict[str, Goal] = field(default_factory=dict)

    def add(self, figure: str, server: str, value: float, goal: Goal | None = None) -> None:
        self.values[figure][server].append(value)
        if goal is not None:
            self.goals[figure] = goal

    def as_json(self) -> dict[str, object]:
        shown: dict[str, object] = {}
        for figure, by_server in self.values.items():
            ours = by_server.get(HEADRACE)
            others = [values for server, values in by_server.items() if server != HEADRACE]
            theirs = by_server.get(self.other) or next(iter(others), None)
            entry: dict[str, object] = dict(by_server)
            if ours and theirs:
                entry["ratio"] = statistics.median(ours) / max(1e-9, statistics.median(theirs))
            goal = self.goals.get(figure)
            if goal is not None and ours:
                entry["goal"] = str(goal)
                entry["met"] = goal.is_met(
                    statistics.median(ours), statistics.median(theirs) if theirs else None
                )
            shown[figure] = entry
        return shown


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def spread(values: list[float]) -> str:
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})"


def show_comparison(console: Console, samples: Samples, title: str = "Headrace beside") -> None:
    table = Table(title=f"{title} {samples.other}: median (lowest-highest)")
    for heading in ("figure", samples.other, HEADRACE, "ratio", "goal", ""):
        table.add_column(heading, justify="left" if heading in ("figure", "goal") else "right")
    for figure, by_server in samples.values.items():
        theirs, ours = by_server.get(samples.other), by_server.get(HEADRACE)
        if not ours:
            continue
        median, goal = statistics.median(ours), samples.goals.get(figure)
        against = statistics.median(theirs) if theirs else None
        met = "" if goal is None else ("met" if goal.is_met(median, against) else "missed")
        table.add_row(
            figure,
            spread(theirs) if theirs else "",
            spread(ours),
            "" if against is None else f"{median / max(1e-9, against):.2f}",
            "" if goal is None else str(goal),
            met,
        )
    console.print(table)


def show_beside(console: Console, title: str, samples: Samples) -> None:
    """Show figures that each have peers of their own, or none: a line for each peer; the goal's ratio is to the
    first.
    """
    table = Table(title=f"{title}: median (lowest-highest)")
    for heading in ("figure", HEADRACE, "beside", "its figure", "ratio", "goal", ""):
        table.add_column(heading, justify="left" if heading in ("figure", "beside", "goal") else "right")
    for figure, by_server in samples.values.items():
        ours = by_server.get(HEADRACE)
        if not ours:
            continue
        median, goal = statistics.median(ours), samples.goals.get(figure)
        peers = [(server, values) for server, values in by_server.items() if server != HEADRACE] or [("", [])]
        for place, (server, values) in enumerate(peers):
            against = statistics.median(values) if values else None
            met = "" if goal is None or place else ("met" if goal.is_met(median, against) else "missed")
            table.add_row(
                "" if place else figure,
                "" if place else spread(ours),
                server,
                spread(values) if values else "",
                "" if against is None else f"{median / max(1e-9, against):.2f}",
                "" if goal is None or place else str(goal),
                met,
            )
    console.print(table)


def show_tables(console: Console, figures: dict[str, list[float]], title: str = "Tables, one bucket") -> None:
    table = Table(title=f"{title}: median (lowest-highest)")
    table.add_column("figure")
    table.add_column("Headrace", justify="right")
    for figure, values in figures.items():
        table.add_row(figure, spread(values))
    console.print(table)


def show_rates(console: Console, figures: dict[str, list[float]], goals: dict[str, int]) -> None:
    table = Table(
        title="Rows to Kafka records and back, ten columns: rows per CPU second, median (lowest-highest)"
    )
    for heading in ("format", "rows a second", "goal", ""):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for figure, values in figures.items():
        goal = goals.get(figure)
        met = "" if goal is None else ("met" if statistics.median(values) >= goal else "missed")
        table.add_row(figure, spread(values), "" if goal is None else f"{goal:,}", met)
    console.print(table)
