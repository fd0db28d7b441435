"""`python -m bench [kafka] [cluster] [fluss] [tables] [transcode] [remote] [spark] [lake] [--rounds N] [--quick]
[--only G]`, `python -m bench against --tree FOLDER`, `python -m bench neighbours|small [--tree FOLDER]`,
`python -m bench processes`.

Kafka or Fluss and Headrace run at the same time and take turns figure by figure, so that a noisy machine disturbs both
alike. Every figure is the median over the rounds, with the lowest and the highest beside it, and whether it meets its
goal if it has one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from bench import (
    against,
    beside_tables,
    cluster,
    fluss,
    lake,
    many_processes,
    many_tables,
    remote,
    small,
    spark,
    tables,
    transcode,
)
from bench.figures import GROUPS, Size, chosen
from bench.fluss_peer import FLUSS
from bench.maven import java
from bench.peers import Peer, both, start_headrace
from bench.report import Samples, show_beside, show_comparison, show_rates, show_tables
from bench.spark_world import measure, world

WORK = Path(".bench")
MANY = "many"
"""The group of tables that measures thousands of them; it runs only if it is named."""
IN_SPARK = {"spark": spark.GROUPS, "lake": lake.GROUPS}
EVERYTHING = ("kafka", "cluster", "fluss", "tables", "transcode", "remote", *IN_SPARK)


def compare(
    peers: list[Peer], samples: Samples, only: list[str], rounds: int, scale: float, *, quick: bool
) -> None:
    """Run all rounds of a group before the next group, with the peers in turn at each figure."""
    for name, group in chosen(only).items():
        for round_ in range(rounds):
            runs = []
            for peer in peers:
                if not peer.is_running:
                    peer.start_fresh()
                runs.append((peer.name, group(peer, Size(scale, quick, round_))))
            for figures in zip(*(run for _, run in runs), strict=True):
                for (server, _), (figure, value, goal) in zip(runs, figures, strict=True):
                    samples.add(figure, server, value, goal)
        Console(stderr=True).print(f"{name}: done")


def measure_in_spark(
    console: Console, sections: list[str], arguments: argparse.Namespace
) -> dict[str, dict[str, object]]:
    """Run the sections that need Spark in one server and session, show each when it is done, and return their
    figures.
    """
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    scale = arguments.scale or 1.0
    found: dict[str, dict[str, object]] = {}
    chosen_groups = {
        section: {
            name: group for name, group in IN_SPARK[section].items() if name in (arguments.only or [name])
        }
        for section in sections
    }
    if not any(chosen_groups.values()):
        return found
    with world((WORK / "spark").absolute()) as place:
        for section, groups in chosen_groups.items():
            samples = Samples()
            try:
                measure(
                    place,
                    groups,
                    samples,
                    rounds,
                    scale,
                    quick=arguments.quick,
                    report=Console(stderr=True).print,
                )
            finally:  # measurements before a failure took minutes, too
                show_beside(console, f"Headrace, {section}", samples)
            found[section] = samples.as_json()
    return found


def _arguments() -> argparse.Namespace:
    """Read the command line; end with an error if options do not belong together."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    groups = [
        *GROUPS,
        *cluster.GROUPS,
        *fluss.GROUPS,
        *against.GROUPS,
        MANY,
        *(name for section in IN_SPARK.values() for name in section),
    ]
    parser.add_argument(
        "what",
        nargs="*",
        choices=[*EVERYTHING, "against", "neighbours", "small", "processes", []],
        help="default: all but against, neighbours, small and processes",
    )
    parser.add_argument("--rounds", type=int, help="default: 5, with --quick 1")
    parser.add_argument(
        "--scale", type=float, help="1.0 = 400,000 records and 1,000,000 rows a run; in Spark 10,000,000"
    )
    parser.add_argument("--quick", action="store_true", help="fewer kinds, shorter runs: a few minutes")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=list(dict.fromkeys(groups)),
        help="only this group of figures; repeatable. transcode and remote have no groups, and tables has `many`",
    )
    parser.add_argument("--json", type=Path, help="write every sample, ratio and goal to this file")
    parser.add_argument(
        "--tree", type=Path, help="working tree of another commit, for against, neighbours and small"
    )
    arguments = parser.parse_args()
    if "against" in arguments.what and arguments.tree is None:
        parser.error("against needs --tree")
    if arguments.tree is not None and not {"against", "neighbours", "small"} & set(arguments.what):
        parser.error("--tree belongs to against, neighbours and small")
    return arguments


def main() -> None:
    arguments = _arguments()
    what = arguments.what or EVERYTHING
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    scale = arguments.scale or (0.25 if arguments.quick else 1.0)
    console = Console(width=170)
    WORK.mkdir(exist_ok=True)
    # Servers and workers are measured as installed: compiling their modules again adds a second to every start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    samples, of_clusters, beside_fluss = Samples(), Samples(), Samples(FLUSS)
    of_trees, beside, small_writes = (Samples(against.OTHER) for _ in range(3))
    of_processes = Samples(many_processes.ONE)
    rows: dict[str, list[float]] = {}
    rates, tiered = {}, Samples()
    if not arguments.what and shutil.which(java()) is None:
        console.print("There is no Java here: nothing is measured beside Kafka and Fluss.")
        what = ("tables", "transcode", "remote")
    if "kafka" in what:
        peers = both(WORK)
        try:
            compare(peers, samples, arguments.only, rounds, scale, quick=arguments.quick)
        finally:
            for peer in peers:
                peer.stop()
            show_comparison(console, samples)
    if "against" in what:
        try:
            against.measure(
                WORK, arguments.tree, of_trees, arguments.only, rounds, scale, quick=arguments.quick
            )
        finally:
            show_comparison(console, of_trees)
    if "neighbours" in what:
        try:
            beside_tables.measure(WORK, arguments.tree, beside, rounds)
        finally:
            if arguments.tree is None:
                show_beside(console, "A producer of single records beside work with tables", beside)
            else:
                show_comparison(console, beside)
    if "small" in what:
        try:
            small.measure(WORK, arguments.tree, small_writes, rounds)
        finally:
            if arguments.tree is None:
                show_beside(console, "Small writes", small_writes)
            else:
                show_comparison(console, small_writes)
    if "processes" in what:
        try:
            many_processes.measure(WORK, of_processes, rounds, quick=arguments.quick)
        finally:
            show_comparison(console, of_processes, "Two processes of one machine beside")
    if "cluster" in what:
        try:
            cluster.measure(WORK, of_clusters, arguments.only, rounds, scale, quick=arguments.quick)
        finally:
            show_comparison(console, of_clusters, "Three brokers of Headrace beside three of")
    if "fluss" in what:
        try:
            fluss.measure(WORK, beside_fluss, arguments.only, rounds, scale, quick=arguments.quick)
        finally:
            show_comparison(console, beside_fluss)
    if "tables" in what and MANY in arguments.only:
        folder = WORK / "many"
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for title, figures in many_tables.measure(folder.absolute(), scale).items():
            show_tables(console, figures, title)
            rows |= {f"{title}: {name}": values for name, values in figures.items()}
    elif "tables" in what:
        folder = WORK / "tables"
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        server = start_headrace(folder.absolute())
        try:
            rows = tables.measure(server.address, rounds, scale, server.cpu_seconds)
        finally:
            server.stop()
        show_tables(console, rows)
    if "transcode" in what:
        rates = transcode.measure(rounds, scale)
        show_rates(console, rates, transcode.GOALS)
    if "remote" in what:
        tiered = remote.measure((WORK / "remote").absolute(), rounds, scale)
        show_comparison(console, tiered, "Scans from the beginning, one partition, Headrace beside")
    in_spark = measure_in_spark(console, [section for section in IN_SPARK if section in what], arguments)
    if arguments.json:
        found = {
            "kafka": samples.as_json(),
            "cluster": of_clusters.as_json(),
            "fluss": beside_fluss.as_json(),
            "against": of_trees.as_json(),
            "neighbours": beside.as_json(),
            "small": small_writes.as_json(),
            "processes": of_processes.as_json(),
            "tables": rows,
            "transcode": rates,
            "remote": tiered.as_json(),
            **in_spark,
        }
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
