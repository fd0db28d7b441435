"""The figures of the comparison with Apache Fluss: one function for each kind, run on one side at a time.

A function takes the side and the size of the run, and yields (figure, value, goal). Both run at the same time and take
turns figure by figure. Both are warmed up first, with tables of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.figures import percentile
from bench.fluss_sides import FlussSide, HeadraceSide, Side
from bench.report import Goal, Samples
from bench.rows import PREFIX_ROWS, WRITE_ROWS

CPU = "server CPU s per million"
SAMPLE = 20_000
"""Rows that are looked up after a restart, spread over all."""


@dataclass(frozen=True, slots=True)
class Size:
    """The rows of a run. `order` is all keys from 0 on, in random order."""

    rows: int
    round: int
    quick: bool

    @property
    def log_rows(self) -> int:
        return 4 * self.rows // WRITE_ROWS * WRITE_ROWS

    @property
    def order(self) -> np.ndarray:
        return np.random.default_rng(7 + self.round).permutation(self.rows).astype(np.int64)


Figures = Iterator[tuple[str, float, Goal | None]]
Group = Callable[[Side, Size], Figures]


def _timed(
    side: Side, what: str, rows: int, run: Callable[[], float], rate: Goal, cpu: Goal | None
) -> Figures:
    """Yield rows a second, and the server's CPU time for a million of them."""
    before = side.cpu_seconds()
    seconds = run()
    spent = side.cpu_seconds() - before
    yield f"{what}, rows/s", rows / seconds, rate
    yield f"{what}, {CPU} rows", spent * 1e6 / rows, cpu


def warm_up(side: Side, size: Size) -> Figures:
    """Warm up, not counted: the first call of a kind loads or compiles its code."""
    if size.round == 0:
        few = Size(max(WRITE_ROWS, size.rows // 5), 0, size.quick)
        for group in (log_tables, pk_tables, engines, lookups):
            for _ in group(side, few):
                pass
    yield from ()


def log_tables(side: Side, size: Size) -> Figures:
    """Append Arrow batches of 10,000 rows; scan all and two of twenty columns."""
    for compression in ("ZSTD", "NONE"):
        table, rows = f"log_{compression.lower()}", size.log_rows
        side.create(table, compression)
        what = f"append, {compression}"
        yield from _timed(side, what, rows, partial(side.append, table, rows), Goal(ratio_min=1), None)
        for columns in (None, ["l1", "d2"]):
            what = f"scan of {'20' if columns is None else '2'} of 20 columns, {compression}"
            scan = partial(side.scan, table, columns, rows)
            yield from _timed(side, what, rows, scan, Goal(ratio_min=1), Goal(ratio_max=1))
        side.drop(table)


def pk_tables(side: Side, size: Size) -> Figures:
    """Upsert new and known keys with the full changelog, and update partially."""
    order, third = size.order, Goal(ratio_max=1 / 3)
    side.create("pk", "plain")
    for what, keys, seed, few in (
        ("upsert of fresh keys", order, 1, False),
        ("upsert of existing keys", order[::-1], 2, False),
        ("partial update of 2 of 9 columns", order, 3, True),
    ):
        run = partial(side.upsert, "pk", keys, seed, partial=few)
        yield from _timed(side, what, len(keys), run, Goal(ratio_min=3), third)
    side.drop("pk")


def engines(side: Side, size: Size) -> Figures:
    """Write to `first_row` and aggregation (4 sum, 2 max, min, last_value): new keys, then all of them again."""
    order = size.order
    for engine in ("first_row", "aggregation"):
        side.create(engine, engine)
        for what, keys, seed in (("fresh", order, 1), ("existing", order[::-1], 2)):
            run = partial(side.upsert, engine, keys, seed)
            yield from _timed(
                side, f"{engine}, {what} keys", len(keys), run, Goal(ratio_min=3), Goal(ratio_max=1 / 3)
            )
        side.drop(engine)


def lookups(side: Side, size: Size) -> Figures:
    """Look up by key, many and one at a time; ten rows by a prefix; the first hundred rows."""
    order = size.order
    side.create("looked", "plain")
    side.upsert("looked", order, 1)
    before = side.cpu_seconds()
    seconds, missing = side.lookup("looked", order)
    spent = side.cpu_seconds() - before
    if missing:
        raise RuntimeError(f"{side.name} did not find {missing} keys that were acknowledged")
    yield "lookups in batches, keys/s", len(order) / seconds, Goal(ratio_min=2)
    yield f"lookups in batches, {CPU} keys", spent * 1e6 / len(order), Goal(ratio_max=1 / 3)
    count = 500 if size.quick else 2_000
    times = sorted(side.single("looked", order[:count]))
    yield "single lookup, p50, ms", percentile(times, 0.5), Goal(value_max=0.5)
    yield "single lookup, p99, ms", percentile(times, 0.99), Goal(value_max=2)
    times = sorted(side.limit("looked", 100, count // 5))
    yield "limit scan of 100 rows, p50, ms", percentile(times, 0.5), Goal(ratio_max=1)
    side.drop("looked")

    side.create("prefixes", "prefix")
    side.upsert("prefixes", order, 1)
    prefixes = np.random.default_rng(9).permutation(size.rows // PREFIX_ROWS).astype(np.int64)
    side.prefix("prefixes", prefixes[:1_000])
    seconds, rows = side.prefix("prefixes", prefixes)
    if rows != len(prefixes) * PREFIX_ROWS:
        raise RuntimeError(f"{side.name} found {rows} rows by {len(prefixes)} prefixes")
    yield "prefix lookups of 10 rows, prefixes/s", len(prefixes) / seconds, Goal(ratio_min=1.5)
    side.drop("prefixes")


def restart(side: Side, size: Size) -> Figures:
    """Kill with -9 straight after the acknowledgement of the last row, and restart."""
    rows = 2 * size.rows
    side.create("kept", "plain")
    side.upsert("kept", np.random.default_rng(11).permutation(rows).astype(np.int64), 1)
    seconds = side.kill_and_restart("kept", 1)
    what = f"restart after kill -9 with {rows:,} rows"
    yield f"{what}: first lookup, s", seconds, Goal(value_max=2)
    _, missing = side.lookup("kept", np.arange(0, rows, max(1, rows // SAMPLE), dtype=np.int64))
    yield f"{what}: acknowledged rows lost, %", 100 * missing / SAMPLE, Goal(value_max=0)
    side.drop("kept")


GROUPS: dict[str, Group] = {
    "warm-up": warm_up,
    "log": log_tables,
    "pk": pk_tables,
    "engines": engines,
    "lookups": lookups,
    "restart": restart,
}


def measure(work: Path, samples: Samples, only: list[str], rounds: int, scale: float, *, quick: bool) -> None:
    """Run all rounds of a group before the next group, both sides in turn. Restarts come last, and once."""
    console = Console(stderr=True)
    sides: list[Side] = []
    HeadraceSide(work).close()  # not counted: modules are compiled, as pip does when it installs
    try:
        for side in (FlussSide(work), HeadraceSide(work)):
            sides.append(side)
            time.sleep(2)
            samples.add("start to open ports, s", side.name, side.ready_s, Goal(ratio_max=0.4))
            samples.add("idle memory, MB", side.name, side.resident_mb(), Goal(ratio_max=0.5))
        for name, group in GROUPS.items():
            if only and name not in ("warm-up", *only):
                continue
            for round_ in range(1 if name == "restart" else rounds):
                for side in sides:
                    for figure, value, goal in group(side, Size(int(1_000_000 * scale), round_, quick)):
                        samples.add(figure, side.name, value, goal)
            console.print(f"{name}: done")
    finally:
        for side in sides:
            side.close()
