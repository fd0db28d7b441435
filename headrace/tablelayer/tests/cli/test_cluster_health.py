"""The commands and the console while a broker of a cluster is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typer.testing import CliRunner, Result

from headrace.broker.extension import Extension
from headrace.broker.tests.replication.test_replication import create, described
from headrace.tablelayer.cli.main import app
from headrace.tablelayer.cli.top import group_lags, rates
from headrace.tablelayer.client import connect
from headrace.tablelayer.client.admin.kafka_answers import GroupDescription
from headrace.tablelayer.console.cluster import Cluster
from headrace.tablelayer.console.decoding import Decoder
from headrace.tablelayer.console.history import History, Look, look
from headrace.tablelayer.console.history import _lags as console_lags
from headrace.tablelayer.console.history import rates as console_rates
from headrace.tablelayer.console.registry import Registry
from headrace.tablelayer.console.topics import Topics
from headrace.tablelayer.server.extension import TableExtension
from simulator.cluster import DirectCluster, direct_cluster

TOPIC = "orders"


def extensions() -> Sequence[Extension]:
    return [TableExtension()]


def commands(cluster: DirectCluster) -> Callable[..., Result]:
    address = ",".join(f"127.0.0.1:{each.broker.port}" for each in cluster.brokers.values())
    return lambda *words: CliRunner().invoke(app, [*words, "--server", address])


async def test_a_missing_broker_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        await create(cluster.brokers[1], replicas=1, partitions=3)
        run = commands(cluster)
        whole = await asyncio.to_thread(run, "cluster", "health", "--wait", "--brokers", "3")
        assert (whole.exit_code, whole.stdout) == (0, "healthy\n")
        leaders = [each.leader_id for each in await described(cluster.brokers[1])]
        lost = leaders.index(3)
        address = f"127.0.0.1:{cluster.brokers[3].broker.port}"
        await cluster.stop(3)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        run = commands(cluster)
        gone = f"broker 3 ({address}) is not alive; it has 1 replica"
        await asyncio.to_thread(shown_by_commands, run, gone, leaders, lost)
        await asyncio.to_thread(shown_by_console, cluster, lost)
        await cluster.start(3)
        back = await asyncio.to_thread(run, "cluster", "health", "--wait", "--timeout", "60")
        assert (back.exit_code, back.stdout) == (0, "healthy\n")


def shown_by_commands(run: Callable[..., Result], gone: str, leaders: list[int], lost: int) -> None:
    said = run("cluster", "status")
    assert said.exit_code == 1, said.stderr
    assert f"2 brokers alive: 1, 2\n  {gone}\n" in said.stdout
    assert f"  {TOPIC}-{lost} has no leader: no broker that has a replica of it is alive\n" in said.stdout
    state = json.loads(run("cluster", "status", "-o", "json").stdout)
    assert [each["broker_id"] for each in state["missing_brokers"]] == [3]
    assert (state["offline"], state["is_healthy"]) == ([{"topic": TOPIC, "partition": lost}], False)
    (health, late) = (
        run("cluster", "health"),
        run("cluster", "health", "--brokers", "3", "--wait", "--timeout", "0"),
    )
    assert (health.exit_code, health.stderr) == (1, f"{gone}\n1 partition without a leader: {TOPIC}-{lost}\n")
    assert (late.exit_code, "2 brokers alive, not 3" in late.stderr) == (1, True)
    listed = [json.loads(line) for line in run("cluster", "brokers", "-o", "json").stdout.splitlines()]
    assert [each["is_alive"] for each in listed] == [True, True, False]
    (topic,) = [json.loads(line) for line in run("topics", "list", "-o", "json").stdout.splitlines()]
    assert (topic["partitions"], topic["without_leader"], topic["offsets_kept"]) == (3, 1, None)
    parts = json.loads(run("topics", "describe", TOPIC, "-o", "json").stdout)["partitions"]
    assert [each["leader"] for each in parts] == [None if each == 3 else each for each in leaders]
    assert [each["offline"] for each in parts] == [[3] if each == 3 else [] for each in leaders]
    assert [each["end_offset"] for each in parts] == [None if each == 3 else 0 for each in leaders]
    for broker in (1, 2):
        words = ("configs", "describe", "broker", str(broker), "node.id", "-o", "json")
        assert json.loads(run(*words).stdout)["value"] == str(broker)
        assert run("configs", "set", "broker", str(broker), "log.retention.ms=7").exit_code == 0
    listed = [json.loads(line) for line in run("configs", "list", "-o", "json").stdout.splitlines()]
    assert [each["name"] for each in listed if each["configuration"] == "log.retention.ms"] == ["1", "2"]
    away = run("configs", "describe", "broker", "3")
    assert (away.exit_code, away.stderr) == (
        1,
        "BROKER_NOT_AVAILABLE: broker 3 is not alive: the brokers are 1, 2\n",
    )
    top = run("top", "-n", "1", "--interval", "0.1")
    assert (top.exit_code, gone in top.stdout) == (0, True)
    told = json.loads(run("top", "-n", "1", "--interval", "0.1", "-o", "json").stdout)["topics"]
    assert [(each["partition_count"], each["without_leader"], each["end_offset_sum"]) for each in told] == [
        (3, 1, None)
    ]
    doctor = run("doctor", "-o", "json")
    found = [json.loads(line) for line in doctor.stdout.splitlines()]
    assert doctor.exit_code == 1
    assert [each["what"] for each in found if each["check"] == "cluster"] == [
        gone,
        f"1 partition without a leader ({TOPIC}-{lost})",
    ]


def shown_by_console(cluster: DirectCluster, lost: int) -> None:
    with connect(f"127.0.0.1:{cluster.brokers[1].broker.port}") as connection:
        views = Cluster(connection, History(lambda: connection))
        topics = Topics(connection, History(lambda: connection), Decoder(Registry(None)))
        assert [each["alive"] for each in views.brokers()["brokers"]] == [True, True, False]
        assert [(each["leader"], each["in_sync"]) for each in topics.topic(TOPIC)["partitions"]][lost] == (
            None,
            [3],
        )
        assert views.overview()["missing"] == [3]
        assert [each["offline"] for each in topics.topics(internal=False)["topics"]] == [1]
        records = topics.records(TOPIC, limit=10, newest=True)
        assert (records["records"], records["without_leader"]) == ([], [lost])
        assert set(look(connection, 0.0, 0).ends[TOPIC]) == {0, 1, 2} - {lost}


def test_a_partition_that_was_away_has_not_grown_by_all_that_it_has() -> None:
    before, after = {"t": {0: 5}}, {"t": {0: 7, 1: 900}, "new": {0: 3}}
    away: dict[str, dict[int, int | None]] = {"t": {0: 5, 1: None}}
    assert {each.topic: each.per_second for each in rates(away, after, 1.0)} == {"t": 2, "new": 3}
    (gone,) = rates(after, away | {"t": {0: 7, 1: None}}, 1.0)
    assert (gone.partition_count, gone.without_leader, gone.end_offset_sum, gone.per_second) == (
        2,
        1,
        None,
        0,
    )
    looks = [Look(at, 0, ends, {}, 1, {}, 0) for at, ends in ((0.0, before), (1.0, after))]
    assert console_rates(*looks) == {"t": 2, "new": 3}


def test_the_lag_of_a_group_is_unknown_while_a_partition_has_no_leader() -> None:
    positions = {("t", 0): 3, ("t", 1): 3, ("u", 0): 3, ("hidden", 0): 3}
    group = GroupDescription("g", "Stable", "consumer", (), positions)
    away: dict[str, dict[int, int | None]] = {"t": {0: 5, 1: None}, "u": {0: 4}}
    there = away | {"t": {0: 5, 1: 6}}
    lags = group_lags([group], away, {}, 1.0)
    assert [(each.topic, each.lag, each.per_second) for each in lags] == [("t", None, None), ("u", 1, 0)]
    before = {(each.group, each.topic): each.lag for each in lags}
    known = group_lags([group], there, before, 1.0)
    assert [(each.topic, each.lag, each.per_second) for each in known] == [("t", 5, 0), ("u", 1, 0)]
    kafka = SimpleNamespace(
        list_groups=lambda: [SimpleNamespace(group="g")], describe_group=lambda name: group
    )
    connection: Any = SimpleNamespace(kafka=kafka)
    assert console_lags(connection, {"t": {0: 5}, "u": {0: 4}}) == {}, "a plot has a gap"
    assert console_lags(connection, {"t": {0: 5, 1: 6}, "u": {0: 4}}) == {"g": 6}
