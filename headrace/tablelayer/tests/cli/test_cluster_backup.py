"""`headrace backup` of a cluster that is written to, and `headrace restore` to a single server: nothing is torn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.backup.cut import CUT_NAME, BesideFile, Cut
from headrace.broker.extension import Extension
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.tests.transactions.test_across_brokers import PLACES, add_offsets, leader
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.tablelayer.cli.backup_parts import _once
from headrace.tablelayer.client import OutgoingRecord, connect
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.cli.test_backup import Writing, records_of, replayed, rows_of, run
from simulator.cluster import DirectCluster, Routed, direct_cluster
from simulator.direct import DirectBroker, direct_broker
from simulator.transactional_client import TV2, Client, committed_values, position, until

SETTINGS = {
    "log.segment.bytes": "20000",
    "log.retention.check.interval.ms": "100",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


def extensions() -> Sequence[Extension]:
    return [TableExtension()]


def address_of(cluster: DirectCluster) -> str:
    return ",".join(f"127.0.0.1:{each.broker.port}" for each in cluster.brokers.values())


def is_possible(code: ErrorCode) -> bool:
    return code not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class Transactions:
    """Writes its number to each partition of `t`, and commits it as the offset of a group, in one transaction."""

    def __init__(self, cluster: DirectCluster, name: str) -> None:
        self.name = name
        self._client = Client(Routed(cluster), name, TV2)  # type: ignore[arg-type]
        self.committed = 0
        self._is_over = False

    async def run(self) -> None:
        client = self._client
        assert await client.init() is ErrorCode.NONE
        while not self._is_over:
            number = self.committed + 1
            for place in PLACES:
                answer = await client.send([b"%s %d" % (self.name.encode(), number)], *place)
                assert answer.error_code == ErrorCode.NONE, answer
            assert await add_offsets(client, self.name) == 0
            assert await client.commit_offsets(self.name, {("t", 0): number}) == [ErrorCode.NONE]
            assert await until(partial(client.end, True), is_possible) is ErrorCode.NONE
            self.committed = number

    def stop(self) -> None:
        self._is_over = True


async def prepared(cluster: DirectCluster) -> None:
    first = cluster.brokers[1]
    await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == len(cluster.brokers))
    await first.create_topic("t", 3)
    for key_type in (0, 1):
        answer = await first.send(FindCoordinatorRequest(key="tx", key_type=key_type), 3)
        assert not answer.error_code, answer
    assert {leader(cluster, *place) for place in PLACES} == {1, 2, 3}


def fill(address: str) -> Writing:
    connection = connect(address).__enter__()
    connection.kafka.create_topic("clicks", partitions=2)
    connection.execute(
        "CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '1')"
    )
    connection.kafka.commit_offsets("readers", "clicks", {0: 1})
    return Writing(connection)


@pytest.mark.parametrize("place", [pytest.param("here", marks=pytest.mark.soak), "elsewhere"])
async def test_a_backup_of_a_cluster_under_writes_is_whole(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "elsewhere":
        monkeypatch.setattr("headrace.tablelayer.cli.backup.SystemDisk", OtherMachine)
    target = tmp_path / "backups"
    async with direct_cluster(tmp_path / "brokers", 3, extensions, config=SETTINGS) as cluster:
        await prepared(cluster)
        address = address_of(cluster)
        writing = await asyncio.to_thread(fill, address)
        writers = [Transactions(cluster, f"w{number}") for number in range(4)]
        tasks = [asyncio.create_task(each.run()) for each in writers]
        await asyncio.to_thread(writing.wait_for, 20)
        before = writing.rounds, [each.committed for each in writers]
        said = (await asyncio.to_thread(run, "backup", str(target), address=address)).stdout
        await asyncio.to_thread(writing.wait_for, writing.rounds + 5)
        await asyncio.to_thread(writing.stop)
        for each in writers:
            each.stop()
        await asyncio.gather(*tasks)
        with await asyncio.to_thread(connect, address) as connection:
            clicks, _ = await asyncio.to_thread(records_of, connection, "clicks")
            fruit, _ = await asyncio.to_thread(records_of, connection, "default.fruit")
        assert not list((tmp_path / "brokers").glob("*/backup/*")), "files of the backup are left"
    (listed,) = [
        json.loads(line) for line in run("restore", str(target), "--list", "-o", "json").stdout.splitlines()
    ]
    assert listed["backup"] in said
    assert listed["brokers"] == "1,2,3"
    told = run("restore", str(target), "--data", str(tmp_path / "new")).stdout
    assert "It was a cluster. It is now broker 0 alone" in told
    assert list((tmp_path / "new").glob("extensions/tables/*/0/CURRENT")), "the table has no state"
    async with direct_broker(tmp_path / "new", extensions=extensions()) as made:
        again = [Client(made, each.name, TV2) for each in writers]
        for client in again:  # open transactions are aborted
            assert await until(client.init, is_possible) is ErrorCode.NONE
        await whole(made, [each.name for each in writers], before[1])
        await asyncio.to_thread(
            same, f"127.0.0.1:{made.broker.port}", {"clicks": clicks, "default.fruit": fruit}, before[0]
        )
        assert (await again[0].send([b"more"], *PLACES[0])).error_code == 0
        assert await again[0].end(True) is ErrorCode.NONE
        assert (await committed_values(made, *PLACES[0]))[-1] == b"more"


class OtherMachine(SystemDisk):
    """A disk without the brokers' data directories."""

    def read(self, path: Path) -> bytes:
        if path.name == CUT_NAME:
            raise FileNotFoundError(path)
        return super().read(path)


async def whole(made: DirectBroker, names: Sequence[str], at_least: Sequence[int]) -> None:
    """Check that each writer's transactions are in all partitions and in its group, or nowhere."""
    for name, number in zip(names, at_least, strict=True):
        stable = await position(made, name, "t", stable=True)
        found = [
            [
                int(value.split()[1])
                for value in await committed_values(made, *place)
                if value.startswith(b"%s " % name.encode())
            ]
            for place in PLACES
        ]
        assert found == [list(range(1, stable + 1))] * 3, "a transaction is torn"
        assert stable >= number, "a committed transaction is lost"


def same(address: str, before: dict[str, Any], rounds: int) -> None:
    with connect(address) as connection:
        for topic, records in before.items():
            found, ends = records_of(connection, topic)
            assert found == {place: record for place, record in records.items() if place[1] < ends[place[0]]}
            if topic == "default.fruit":
                assert len(found) >= rounds
                assert rows_of(connection) == replayed(found)
        assert connection.kafka.describe_group("readers").positions == {("clicks", 0): 1}
        connection.kafka.produce("clicks", [OutgoingRecord(b"more")])
        connection.table("fruit").upsert([{"id": 1, "name": "more"}])
        assert (1, "more") in rows_of(connection)


async def test_a_cluster_that_cannot_be_backed_up_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.tablelayer.cli.backup._PAUSE_SECONDS", 0)
    target = str(tmp_path / "backups")
    async with direct_cluster(tmp_path / "brokers", 2, extensions) as cluster:
        first = cluster.brokers[1]
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        await first.create_topic("t", 2)
        backups = first.context.backups
        assert backups is not None
        backup = await backups.begin(in_steps=True)
        other = await asyncio.to_thread(run, "backup", target, address=address_of(cluster), code=1)
        assert f"broker 1 at 127.0.0.1:{first.broker.port}: " in other.stderr
        assert f"backup {backup.id} is in progress" in other.stderr
        await backups.end(backup.id)
        lost = [leader(cluster, "t", index) for index in (0, 1)].index(2)
        await cluster.stop(2)
        await cluster.agreed(lambda broker: leader(cluster, "t", lost) == -1)
        refused = await asyncio.to_thread(run, "backup", target, address=address_of(cluster), code=1)
        assert refused.stderr == f"partitions without a leader cannot be backed up: t-{lost}\n"
        assert not list(Path(target).glob("backups/*"))
        await cluster.start(2)
        await cluster.agreed(lambda broker: leader(cluster, "t", lost) == 2)
        await asyncio.to_thread(run, "backup", target, address=address_of(cluster))


def test_staged_rows_that_several_brokers_keep_are_stored_once() -> None:
    def cut(**sizes: int) -> Cut:
        return Cut("", 0, [], [BesideFile(name, name, size) for name, size in sizes.items()])

    once = _once({1: cut(a=1, b=5), 2: cut(a=2, b=5, c=0)})
    assert {node: [each.path for each in found.beside] for node, found in once.items()} == {
        1: [],
        2: ["a", "b", "c"],
    }
