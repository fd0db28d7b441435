"""`headrace top`: rates from the log end offsets of all topics, and how far the lake is, look after look."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass

from tablelayer.cli.connect import open_connection
from tablelayer.cli.lake import span_text, state_text
from tablelayer.cli.output import console
from tablelayer.client import Connection, KafkaError
from tablelayer.lake.coordinator import list_lake
from tablelayer.model.messages.lake import ListedLake


@dataclass(frozen=True, slots=True)
class Rate:
    """One topic over one interval."""

    topic: str
    partition_count: int
    end_offset_sum: int
    per_second: float


def end_offsets(connection: Connection, *, internal: bool) -> dict[str, dict[int, int]]:
    """Log end offsets of all topics; one that is deleted meanwhile is left out."""
    found = {}
    for topic in connection.kafka.list_topics():
        if internal or not topic.is_internal:
            try:
                found[topic.name] = connection.kafka.offsets(topic.name)
            except KafkaError:
                continue
    return found


def rates(before: dict[str, dict[int, int]], after: dict[str, dict[int, int]], seconds: float) -> list[Rate]:
    """Busiest first. A topic that is new, or was deleted and made anew, counts from nothing."""
    listed = []
    for topic, ends in after.items():
        earlier = before.get(topic, {})
        grown = sum(end - earlier.get(p, 0) if end >= earlier.get(p, 0) else end for p, end in ends.items())
        listed.append(Rate(topic, len(ends), sum(ends.values()), grown / seconds))
    return sorted(listed, key=lambda rate: (-rate.per_second, rate.topic))


def watch(server: str, *, interval_s: float, looks: int | None, internal: bool) -> None:
    """Show rates until interrupted, or `looks` times."""
    from rich import box
    from rich.live import Live
    from rich.table import Table

    def render(listed: list[Rate], tiered: dict[str, ListedLake]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("topic or table")
        titles = ["partitions", "end offsets", "records/s"]
        for name in [*titles, "lake behind", "lake lag"] if tiered else titles:
            table.add_column(name, justify="right")
        if tiered:
            table.add_column("lake")
        for rate in listed:
            row = [
                rate.topic,
                str(rate.partition_count),
                f"{rate.end_offset_sum:,}",
                f"{rate.per_second:,.0f}",
            ]
            lake = tiered.get(rate.topic)
            if lake is not None:
                lag = "?" if lake.behind_ms < 0 else span_text(lake.behind_ms)
                row += [f"{lake.behind:,}", lag, state_text(lake)]
            table.add_row(*row)
        return table

    out = console()
    live = Live(console=out, auto_refresh=False) if out.is_terminal else None
    with open_connection(server) as connection, live or nullcontext():
        before, at = end_offsets(connection, internal=internal), time.monotonic()
        done = 0
        while looks is None or done < looks:
            time.sleep(interval_s)
            after, now = end_offsets(connection, internal=internal), time.monotonic()
            tiered = {each.name: each for each in list_lake(connection)}
            table = render(rates(before, after, now - at), tiered)
            if live is None:
                out.print(table)
            else:
                live.update(table, refresh=True)
            before, at = after, now
            done += 1
