"""`python -m bench [kafka] [tables] [--rounds N] [--scale X] [--json FILE]`: figures, medians and ratios.

Kafka and Headrace are up at the same time and take turns, so that a noisy machine disturbs both alike. Every figure
is the median over the rounds, with the lowest and the highest beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import tables, workloads
from bench.kafka_peer import start_kafka
from bench.processes import Server, free_port, start

WORK = Path(".bench")
KB = 1_000

Samples = dict[str, dict[str, list[float]]]
"""figure -> server name -> one value a round"""


def start_headrace(folder: Path) -> Server:
    """`headrace serve` in its own process; the same command that a user types."""
    port = free_port()
    executable = str(Path(sys.executable).parent / "headrace")
    command = [executable, "serve", "--listen", f"127.0.0.1:{port}", "--data", str(folder / "data")]
    command += ["--set", "group.initial.rebalance.delay.ms=0"]
    return start("Headrace", command, port, folder / "headrace.out")


STARTERS = {"Apache Kafka": start_kafka, "Headrace": start_headrace}


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def measure_start(samples: Samples, rounds: int) -> dict[str, Server]:
    """Start each server `rounds` times on an empty folder; the last pair stays up."""
    running: dict[str, Server] = {}
    for round_ in range(rounds):
        for name, starter in STARTERS.items():
            folder = WORK / f"{name.split()[-1].lower()}-{round_}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            server = starter(folder.absolute())
            samples["start to first answer, s"][name].append(server.ready_s)
            time.sleep(2)
            samples["idle memory, MB"][name].append(server.resident_mb())
            if round_ < rounds - 1:
                server.stop()
            else:
                running[name] = server
    return running


def measure_throughput(samples: Samples, servers: dict[str, Server], rounds: int, scale: float) -> None:
    """1 KB records through one and eight partitions. A warm-up that is not counted comes first."""
    records = max(20_000, int(400_000 * scale) // 10_000 * 10_000)
    for round_ in range(-1, rounds):
        for partitions in (1, 8):
            for name, server in servers.items():
                topic = f"bench-{partitions}-{round_ + 1}"
                workloads.create_topic(server, topic, partitions)
                produced = workloads.produce(server, topic, partitions, records, KB, "all")
                consumed = workloads.consume(server, topic, partitions, records, KB)
                if round_ < 0:
                    continue
                where = f"{partitions} partition{'s' if partitions > 1 else ''}"
                samples[f"produce 1 KB, acks=all, {where}, records/s"][name].append(produced.records_per_s)
                samples[f"produce 1 KB, acks=all, {where}, server CPU s/GB"][name].append(
                    produced.cpu_s_per_gb
                )
                samples[f"consume 1 KB, {where}, records/s"][name].append(consumed.records_per_s)
                samples[f"consume 1 KB, {where}, server CPU s/GB"][name].append(consumed.cpu_s_per_gb)


def measure_latency(samples: Samples, servers: dict[str, Server], rounds: int) -> None:
    for round_ in range(rounds):
        for name, server in servers.items():
            topic = f"latency-{round_}"
            workloads.create_topic(server, topic, 1)
            latencies = workloads.latency(server, topic, seconds=5, rate=1_000, size=KB)
            samples["latency at 1,000 msg/s of 1 KB, p50, ms"][name].append(percentile(latencies, 0.50))
            samples["latency at 1,000 msg/s of 1 KB, p99, ms"][name].append(percentile(latencies, 0.99))


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def spread(values: list[float]) -> str:
    return f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})"


def show_comparison(console: Console, samples: Samples) -> None:
    table = Table(title="Headrace beside Apache Kafka: median (lowest-highest)")
    for heading in ("figure", *STARTERS, "Headrace / Kafka"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for figure, by_server in samples.items():
        peer, ours = by_server["Apache Kafka"], by_server["Headrace"]
        ratio = statistics.median(ours) / max(1e-9, statistics.median(peer))
        table.add_row(figure, spread(peer), spread(ours), f"{ratio:.2f}")
    console.print(table)


def show_tables(console: Console, figures: dict[str, list[float]]) -> None:
    table = Table(title="Tables, one bucket: median (lowest-highest)")
    table.add_column("figure")
    table.add_column("Headrace", justify="right")
    for figure, values in figures.items():
        table.add_row(figure, spread(values))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="*", choices=["kafka", "tables", []], help="default: both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="1.0 = 400,000 records and 1,000,000 rows a run"
    )
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    arguments = parser.parse_args()
    what = arguments.what or ["kafka", "tables"]
    console = Console(width=150)
    WORK.mkdir(exist_ok=True)
    samples: Samples = defaultdict(lambda: defaultdict(list))
    figures: dict[str, list[float]] = {}
    servers: dict[str, Server] = {}
    try:
        if "kafka" in what:
            servers = measure_start(samples, arguments.rounds)
            measure_throughput(samples, servers, arguments.rounds, arguments.scale)
            # Last, so that the peer's JIT is warm: cold it is a hundred times slower.
            measure_latency(samples, servers, arguments.rounds)
            show_comparison(console, samples)
            for name in list(servers):
                servers.pop(name).stop()
        if "tables" in what:
            folder = WORK / "tables"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            servers["Headrace"] = start_headrace(folder.absolute())
            figures = tables.measure(servers["Headrace"].address, arguments.rounds, arguments.scale)
            show_tables(console, figures)
    finally:
        for server in servers.values():
            server.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps({"kafka": samples, "tables": figures}, indent=1))


if __name__ == "__main__":
    main()
