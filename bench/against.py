"""Compare two trees of Headrace under the same load in turns: the effect of changes on a single process.

The other tree is a checkout of another commit (`git worktree add`). This tree's interpreter runs its server, with the
libraries that are installed here; clients and loads are this tree's for both. Both servers run at the same time and
take turns figure by figure; the first one alternates with the round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from rich.console import Console

from bench import figures, fluss
from bench.fluss_sides import HeadraceSide
from bench.peers import HEADRACE, Peer, start_headrace
from bench.report import Goal, Samples

OTHER = "before"
LEAST = 0.97
"""Minimum ratio to the other tree's rate, and the inverse of the maximum for times, processor time and memory."""
REST_SECONDS, REST_SECONDS_MAX = 3.0, 600.0
RESTING = 0.03
"""Maximum use of a core by a resting server."""
KAFKA_GROUPS = ("start", "warm-up", "latency", "requests", "raw", "throughput", "partitions", "connections")
TABLE_GROUPS = ("warm-up", "log", "pk", "engines", "lookups")
GROUPS = tuple(dict.fromkeys((*KAFKA_GROUPS, *TABLE_GROUPS)))


def goal(figure: str) -> Goal:
    """Return the goal of a figure: rates must not be lower, anything else not higher."""
    return Goal(ratio_min=LEAST) if figure.endswith("/s") else Goal(ratio_max=1 / LEAST)


def by_turns(
    samples: Samples, runs: list[tuple[str, Iterable[tuple[str, float, Goal | None]]]], round_: int
) -> None:
    """Measure one figure of each in turn, the other tree first in every second round."""
    turn = runs if round_ % 2 == 0 else runs[::-1]
    for found in zip(*(run for _, run in turn), strict=True):
        for (name, _), (figure, value, _) in zip(turn, found, strict=True):
            samples.add(figure, name, value, goal(figure))


def rest(*spent: Callable[[], float]) -> None:
    """Wait until the servers rest, by their processor time. Raise TimeoutError.

    The first start of a tree compiles its kernels, which is work beside every request.
    """
    deadline = time.monotonic() + REST_SECONDS_MAX
    while True:
        before = [each() for each in spent]
        time.sleep(REST_SECONDS)
        if all(
            each() - earlier < RESTING * REST_SECONDS for each, earlier in zip(spent, before, strict=True)
        ):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the servers are still busy after {REST_SECONDS_MAX:.0f} s with nothing to do"
            )


def measure(
    work: Path,
    tree: Path,
    samples: Samples,
    only: list[str],
    rounds: int,
    scale: float,
    *,
    quick: bool,
) -> None:
    """Run all rounds of a group before the next group; topics first, then tables."""
    if not (tree / "headrace").is_dir():
        raise SystemExit(f"{tree} is not a working tree of Headrace")
    console = Console(stderr=True)
    tree = tree.absolute()
    wanted = set(only) or set(GROUPS)
    topics, tables = wanted & set(KAFKA_GROUPS), wanted & set(TABLE_GROUPS)
    if topics - {"warm-up"}:
        peers = [
            Peer(OTHER, partial(start_headrace, name=OTHER, tree=tree), work),
            Peer(HEADRACE, start_headrace, work),
        ]
        try:
            for peer in peers:  # not counted: modules and kernels are compiled
                rest(peer.start_fresh().cpu_seconds)
            for name, group in figures.chosen(sorted(topics)).items():
                for round_ in range(rounds):
                    size = figures.Size(scale, quick, round_)
                    if name not in ("start", "warm-up"):
                        rest(*(peer.server.cpu_seconds for peer in peers))
                    by_turns(samples, [(peer.name, group(peer, size)) for peer in peers], round_)
                console.print(f"{name}: done")
        finally:
            for peer in peers:
                peer.stop()
    if tables - {"warm-up"}:
        sides = [HeadraceSide(work, OTHER, tree), HeadraceSide(work)]
        try:
            rest(*(side.cpu_seconds for side in sides))
            for name in TABLE_GROUPS:
                if name not in ("warm-up", *tables):
                    continue
                for round_ in range(rounds):
                    rows = fluss.Size(int(1_000_000 * scale), round_, quick)
                    by_turns(samples, [(side.name, fluss.GROUPS[name](side, rows)) for side in sides], round_)
                console.print(f"{name}: done")
            time.sleep(1)
            for side in sides:
                samples.add("memory after all of it, MB", side.name, side.resident_mb())
        finally:
            for side in sides:
                side.close()
