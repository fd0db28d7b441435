"""`headrace top`: write rates of topics, lag of groups and of the lake, and load of the servers, repeatedly."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.tablelayer.cli.cluster_state import cluster_object, health_reasons
from headrace.tablelayer.cli.connect import open_connection
from headrace.tablelayer.cli.lake import span_text, state_text
from headrace.tablelayer.cli.options import Format
from headrace.tablelayer.cli.output import console, size_text, write_object, write_rows
from headrace.tablelayer.client import Connection, KafkaError, UnsupportedRequest
from headrace.tablelayer.client.admin.cluster_state import ClusterDescription
from headrace.tablelayer.client.admin.databases import ServerProcess
from headrace.tablelayer.client.admin.kafka_answers import GroupDescription
from headrace.tablelayer.lake.coordinator import list_lake
from headrace.tablelayer.model.messages.lake import ListedLake

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Rate:
    """Write rate of one topic over one interval. `end_offset_sum` None: a partition has no leader."""

    topic: str
    partition_count: int
    without_leader: int
    end_offset_sum: int | None
    per_second: float


Ends = Mapping[str, Mapping[int, int | None]]
"""Log end offsets by topic and partition; None for a partition without a leader."""


def end_offsets(connection: Connection, *, internal: bool) -> Ends:
    """Return the log end offsets of all topics."""
    shown = [topic for topic in connection.kafka.list_topics() if internal or not topic.is_internal]
    ranges = connection.kafka.offset_ranges([topic.name for topic in shown]) if shown else {}
    known = {name: {p: each.end for p, each in of_topic.items()} for name, of_topic in ranges.items()}
    return {each.name: dict.fromkeys(each.partitions) | known.get(each.name, {}) for each in shown}


def rates(before: Ends, after: Ends, seconds: float) -> list[Rate]:
    """Return rates, busiest first. A new or recreated topic counts from offset 0, and a partition of a known topic from
    the first time that its end is known: it may have had no leader before.
    """
    listed = []
    for topic, all_ends in after.items():
        ends = _known(all_ends)
        earlier = {**ends, **_known(before[topic])} if topic in before else {}
        grown = sum(end - earlier.get(p, 0) if end >= earlier.get(p, 0) else end for p, end in ends.items())
        dark = len(all_ends) - len(ends)
        total = None if dark else sum(ends.values())
        listed.append(Rate(topic, len(all_ends), dark, total, grown / seconds))
    return sorted(listed, key=lambda rate: (-rate.per_second, rate.topic))


def _known(ends: Mapping[int, int | None]) -> dict[int, int]:
    return {p: end for p, end in ends.items() if end is not None}


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a broker's process over one interval.

    `cpu_percent` is of one core; `memory_bytes` -1: not known.
    """

    broker: int
    version: str
    up_ms: int
    cpu_percent: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a group in a topic, and its change per second. None: a partition has no leader, so it is not known."""

    group: str
    topic: str
    state: str
    member_count: int
    lag: int | None
    per_second: float | None


def loads(before: Sequence[ServerProcess], after: Sequence[ServerProcess], seconds: float) -> list[Load]:
    """Return the load of each broker. A restarted one counts from its start."""
    earlier = {(each.broker_id, each.process_id): each.cpu_ms for each in before}
    return [
        Load(
            each.broker_id,
            each.version,
            each.uptime_ms,
            (each.cpu_ms - earlier.get((each.broker_id, each.process_id), 0)) / (seconds * 10),
            each.memory_bytes,
        )
        for each in after
    ]


def group_lags(
    groups: Sequence[GroupDescription],
    ends: Ends,
    before: Mapping[tuple[str, str], int | None],
    seconds: float,
) -> list[Lag]:
    """Return lags, unknown ones first, then the largest; topics that are not shown are left out."""
    listed = []
    for group in groups:
        behind: dict[str, int | None] = {}
        for (topic, partition), offset in group.positions.items():
            if partition in ends.get(topic, {}):
                end, so_far = ends[topic][partition], behind.get(topic, 0)
                behind[topic] = None if end is None or so_far is None else so_far + max(0, end - offset)
        for topic, lag in behind.items():
            earlier = before.get((group.group, topic), lag)
            rate = None if lag is None else 0.0 if earlier is None else (lag - earlier) / seconds
            listed.append(Lag(group.group, topic, group.state, len(group.members), lag, rate))
    return sorted(
        listed, key=lambda each: (-math.inf if each.lag is None else -each.lag, each.group, each.topic)
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """State of the servers at one moment (`at`: monotonic seconds)."""

    at: float
    ends: Ends
    servers: list[ServerProcess]
    groups: list[GroupDescription]
    cluster: ClusterDescription


def _look(connection: Connection, *, internal: bool) -> _Look:
    try:
        servers = connection.admin.servers()
    except (UnsupportedRequest, KafkaError):  # another broker than ours, or not authorized
        servers = []
    groups = []
    for listed in connection.kafka.list_groups():
        try:
            groups.append(connection.kafka.describe_group(listed.group))
        except KafkaError:
            continue  # deleted meanwhile
    ends, cluster = end_offsets(connection, internal=internal), connection.kafka.describe_cluster()
    return _Look(time.monotonic(), ends, servers, groups, cluster)


def _tiered(connection: Connection) -> dict[str, ListedLake]:
    try:
        return {each.name: each for each in list_lake(connection)}
    except UnsupportedRequest:
        return {}


def watch(server: str, *, interval_s: float, looks: int | None, internal: bool, output: Format) -> None:
    """Show rates, lags and loads until interrupted, or `looks` times."""
    from rich.live import Live

    out = console()
    live = Live(console=out, auto_refresh=False) if out.is_terminal and output is Format.TABLE else None
    with open_connection(server) as connection, live or nullcontext():
        before = _look(connection, internal=internal)
        lags_before: dict[tuple[str, str], int | None] = {}
        done = 0
        while looks is None or done < looks:
            time.sleep(interval_s)
            now = _look(connection, internal=internal)
            seconds = now.at - before.at
            used = loads(before.servers, now.servers, seconds)
            topics = rates(before.ends, now.ends, seconds)
            lags = group_lags(now.groups, now.ends, lags_before, seconds)
            tiered = _tiered(connection)
            if output is not Format.TABLE:
                _write(now.cluster, used, topics, lags, tiered, output, first=done == 0)
            elif live is None:
                out.print(_shown(now.cluster, used, topics, lags, tiered))
            else:
                live.update(_shown(now.cluster, used, topics, lags, tiered), refresh=True)
            before, lags_before = now, {(each.group, each.topic): each.lag for each in lags}
            done += 1


def _write(
    cluster: ClusterDescription,
    used: Sequence[Load],
    topics: Sequence[Rate],
    lags: Sequence[Lag],
    tiered: Mapping[str, ListedLake],
    output: Format,
    *,
    first: bool,
) -> None:
    if output is Format.CSV:
        names = ("topic", "partitions", "without leader", "end offsets", "records/s")
        rows = [
            (each.topic, each.partition_count, each.without_leader, each.end_offset_sum, each.per_second)
            for each in topics
        ]
        write_rows(names, rows, output, header=first)
    else:
        write_object(
            {
                "time": datetime.now(UTC),
                "cluster": cluster_object(cluster),
                "servers": [asdict(each) for each in used],
                "topics": [{**asdict(each), **_lake_columns(tiered.get(each.topic))} for each in topics],
                "groups": [asdict(each) for each in lags],
            }
        )
    sys.stdout.flush()


def _lake_columns(lake: ListedLake | None) -> dict[str, object]:
    if lake is None:
        return {}
    return {
        "lake_behind": lake.behind,
        "lake_lag_ms": None if lake.behind_ms < 0 else lake.behind_ms,
        "lake": state_text(lake),
    }


def _shown(
    cluster: ClusterDescription,
    used: Sequence[Load],
    topics: Sequence[Rate],
    lags: Sequence[Lag],
    tiered: Mapping[str, ListedLake],
) -> Group:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(
            f"broker {each.broker}, headrace {each.version}, up {span_text(each.up_ms)}: CPU"
            f" {each.cpu_percent:.0f} %, memory {size_text(each.memory_bytes)}"
        )
        for each in used
    ]
    parts += [Text(each, style="bold red") for each in health_reasons(cluster, named=3)]
    titles = ["topic or table", "partitions", "without leader", "end offsets", "records/s"]
    table = _grid([*titles, "lake behind", "lake lag"] if tiered else titles, ["lake"] if tiered else [])
    for rate in topics:
        row = [
            rate.topic,
            str(rate.partition_count),
            str(rate.without_leader),
            "?" if rate.end_offset_sum is None else f"{rate.end_offset_sum:,}",
            f"{rate.per_second:,.0f}",
        ]
        lake = tiered.get(rate.topic)
        if lake is not None:
            lag = "?" if lake.behind_ms < 0 else span_text(lake.behind_ms)
            row += [f"{lake.behind:,}", lag, state_text(lake)]
        table.add_row(*row)
    parts += [Text(""), table]
    if lags:
        grid = _grid(["group", "members", "lag", "lag/s"], ["topic", "state"])
        for each in lags:
            lag = "?" if each.lag is None else f"{each.lag:,}"
            change = "?" if each.per_second is None else f"{each.per_second:+,.0f}"
            grid.add_row(each.group, str(each.member_count), lag, change, each.topic, each.state)
        parts += [Text(""), grid]
    return Group(*parts)


def _grid(first: Sequence[str], texts: Sequence[str]) -> Table:
    """Return a grid with the first column and `texts` aligned left, and numbers in between aligned right."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, name in enumerate(first):
        grid.add_column(name, justify="right" if index else "left")
    for name in texts:
        grid.add_column(name)
    return grid
