"""The state of tables beside their rows after a change of leader: nothing is lost, doubled or begun again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.bucket.tasks import Kind
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.tests.server.tables import LAKES, Table
from headrace.tablelayer.tests.server.test_replicated_tables import (
    TOPIC,
    applied_at,
    bucket_at,
    created,
    extensions,
    found,
    in_sync,
    led,
    patiently,
    put,
    standby_at,
    state_of,
    tables_at,
    until,
)
from simulator.cluster import DirectCluster, direct_cluster

NUMBERED = "k INT, n BIGINT, v INT, PRIMARY KEY (k)"
TIERED = {"table.datalake.enabled": "true", "table.datalake.format": "iceberg"}


async def numbered(table: Table, *keys: int) -> list[int]:
    """Upsert rows of these keys; the numbers that they have then."""
    answer = await patiently(
        lambda: table.put(*(("+", {"k": key, "v": 1}) for key in keys), columns=["k", "v"])
    )
    assert answer.error_code == 0
    rows = await found(table, *keys)
    return [row["n"] for row in rows if row is not None]


async def moved(cluster: DirectCluster, table: Table, replicas: list[int]) -> Table:
    """Move the first bucket to exactly these brokers, and return the table at its leader."""
    wanted = ReassignableTopic(
        name=TOPIC, partitions=[ReassignablePartition(partition_index=0, replicas=replicas)]
    )
    answer = await table.broker.send(AlterPartitionReassignmentsRequest(topics=[wanted]))
    assert answer.responses[0].partitions[0].error_code == 0
    await until(lambda: (state := state_of(cluster)) is not None and sorted(state.replicas) == replicas)
    return await led(cluster, table, set(replicas))


async def test_r10_numbers_are_unique_over_leaders_and_moves(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, NUMBERED, given={"auto-increment.fields": "n"})
        table = await led(cluster, made, {1, 2, 3})
        numbers = await numbered(table, 0, 1, 2)
        first = state_of(cluster).leader
        await cluster.stop(first)
        table = await led(cluster, made, {1, 2, 3} - {first})
        assert await numbered(table, 0, 1, 2) == numbers, "a row keeps its number"
        numbers += await numbered(table, 3, 4)
        await cluster.start(first)
        await in_sync(cluster, {1, 2, 3})
        table = await moved(cluster, table, [first])
        numbers += await numbered(table, 5, 6)
        table = await moved(cluster, table, [first % 3 + 1])
        numbers += await numbered(table, 7)
        assert len(set(numbers)) == 8, numbers
        counter = f"/auto-increment/{made.table_id}"
        store = table.broker.context.store
        assert await store.get(counter) is not None
        assert (await table.broker.send(m.DropTableRequest(database="default", table="t"))).error_code == 0
        assert await store.get(counter) is None


def times_of(store: KeyValueStore | None) -> dict[bytes, Any]:
    assert store is not None
    keys = store.keys_from(b"\x00", b"\x00\xff", 1000)
    return dict(zip(keys, store.get(keys), strict=True))


async def test_rows_expire_under_a_new_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"table.kv.ttl": "1 h"}
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)", given=given)
        table = await led(cluster, made, {1, 2, 3})
        for value in (1, 2, 2):  # the last one changes nothing but the row's time
            assert (await table.put(("+", {"k": 1, "v": value}))).error_code == 0
        assert (await table.put(("+", {"k": 2, "v": 1}))).error_code == 0
        assert (await table.put(("-", {"k": 2, "v": 1}))).error_code == 0
        first = state_of(cluster).leader
        expected = times_of(bucket_at(table).store)
        others = {1, 2, 3} - {first}
        end_offset = table.partition.log.log_end_offset
        for node_id in others:
            await until(lambda node_id=node_id: applied_at(cluster, node_id) == end_offset)
            assert times_of(standby_at(cluster, node_id).store) == expected
        await cluster.stop(first)
        table = await led(cluster, made, others)
        assert await found(table, 1) == [{"k": 1, "v": 2}]
        bucket = bucket_at(table)
        assert await bucket.expire_rows() == 0
        later = bucket.services.context.clock.time_ms() + 3_700_000
        monkeypatch.setattr(bucket.services.context.clock, "time_ms", lambda: later)
        assert await bucket.expire_rows() == 1


async def send(table: Table, request: Any) -> Any:
    answer = await table.broker.send(request)
    assert answer.error_code == 0, answer.error_message
    return answer


async def test_an_old_partition_stays_until_a_new_leader_knows_its_lake_state(
    tmp_path: Path,
) -> None:
    """All brokers were stopped; the new leader shows nothing before another replica is back. The lake has one row."""
    columns, given = "dt STRING, id INT", {**TIERED, "min.insync.replicas": "2"}
    definition = TableDefinition(
        TablePath("default", "t"),
        parse_columns(columns),
        partition_keys=("dt",),
        options={"table.replication.factor": "2", **given},
    )
    async with direct_cluster(tmp_path, 2, extensions, config=LAKES) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        table = await tables_at(cluster, 1).create_as(definition)
        made = await send(table, m.CreatePartitionRequest(table_id=table.table_id, name="a"))
        topic = f"{TOPIC}.a"
        own = await in_sync(cluster, {1, 2}, topic)
        partition = Table(cluster.brokers[own], (await tables_at(cluster, own).open()).definition)
        part = m.AppendRowsRequest(
            table_id=made.partition_id, acks=-1, timeout_ms=5000,
            buckets=[m.WriteBucket(bucket=0, batch=partition.batch([{"dt": "a", "id": 1}] * 3))],
        )  # fmt: skip
        assert (await send(partition, part)).buckets[0].error_code == 0
        begin = m.LakeBeginRequest(worker="w", database="default", table="t", force=True)
        granted = await send(table, begin)
        offset = m.LakeOffset(bucket=0, offset=1, partition="a", partition_id=made.partition_id)
        await send(
            table,
            m.LakeCommitRequest(
                table_id=table.table_id, epoch=granted.epoch, snapshot_id=7, offsets=[offset]
            ),
        )
        for node_id in (3 - own, own):
            await cluster.stop(node_id)
        alone = await cluster.start(own)
        await until(lambda: alone.context.metadata.leader(topic, 0) is not None)
        subjects = tables_at(cluster, own).extension.lake_subjects
        asked = m.WantedEnd(topic=topic, partition=0, offset=1)
        assert not await subjects.is_all_tiered(table.definition, "a")
        assert [end.end for end in subjects.describe_ends([asked])] == [-1]
        await cluster.start(3 - own)
        await until(lambda: [end.end for end in subjects.describe_ends([asked])] == [3])
        assert not await subjects.is_all_tiered(table.definition, "a")


async def test_a_partition_that_another_broker_leads_is_held_until_the_leader_is_another(
    tmp_path: Path,
) -> None:
    definition = TableDefinition(
        TablePath("default", "t"),
        parse_columns("dt STRING, id INT"),
        partition_keys=("dt",),
        options={"table.replication.factor": "3", **TIERED},
    )
    async with direct_cluster(tmp_path, 3, extensions, config=LAKES) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        table = await tables_at(cluster, 1).create_as(definition)
        made = await send(table, m.CreatePartitionRequest(table_id=table.table_id, name="a"))
        topic = f"{TOPIC}.a"
        own = await in_sync(cluster, {1, 2, 3}, topic)
        asking = next(each for each in (1, 2, 3) if each != own)
        subjects = tables_at(cluster, asking).extension.lake_subjects
        metadata = cluster.brokers[asking].context.metadata
        is_held = await subjects.hold(table.definition, "a")
        assert is_held is not None
        assert is_held()
        partition = Table(cluster.brokers[own], (await tables_at(cluster, own).open()).definition)
        part = m.AppendRowsRequest(
            table_id=made.partition_id, acks=-1, timeout_ms=5000,
            buckets=[m.WriteBucket(bucket=0, batch=partition.batch([{"dt": "a", "id": 1}]))],
        )  # fmt: skip
        refused = (await send(partition, part)).buckets[0]
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "about to be deleted" in refused.error_message
        epoch = metadata.state(topic, 0).leader_epoch
        await cluster.stop(own)
        await until(lambda: metadata.state(topic, 0).leader_epoch > epoch)
        assert not is_held(), "the new leader holds nothing"


async def test_data_of_a_dropped_table_is_removed_by_the_broker_that_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 2, extensions, config=LAKES) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        table = await tables_at(cluster, 1).create("a INT", given=TIERED)
        assert table.broker.context.metadata.is_controller
        await send(table, m.LakeBeginRequest(worker="w", database="default", table="t", force=True))
        await tables_at(cluster, 1).extension.column_grants.grant(table.table_id, "User:ann", [0])
        behind = tables_at(cluster, 2)
        extension, context = behind.extension, behind.broker.context
        await until(lambda: extension.column_grants.tables() == [table.table_id])
        assert extension._lake is not None
        await until(
            lambda: extension._lake is not None and extension._lake.known_tables() == [table.table_id]
        )
        monkeypatch.setattr(context.metadata, "topic_by_id", lambda _: None)
        await extension._forget_dropped(context)
        monkeypatch.undo()
        kept = [f"/lake/{table.table_id}", f"/security/columns/{table.table_id}"]
        for path in kept:
            assert await context.store.get(path) is not None
        await send(table, m.DropTableRequest(database="default", table="t"))
        await tables_at(cluster, 1).extension._forget_dropped(table.broker.context)
        for path in kept:
            assert await context.store.get(path) is None
        await until(lambda: not extension.column_grants.tables())


async def test_snapshots_of_an_earlier_time_as_leader_are_not_gone_on_from_where_the_log_has_gone(
    tmp_path: Path,
) -> None:
    """A broker leads again whose snapshot is older than the log: its damaged store is copied from another."""
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)")
        table = await led(cluster, made, {1, 2, 3})
        first = state_of(cluster).leader
        await put(table, {0: 0, 1: 1})
        bucket = bucket_at(table)
        await until(lambda: bucket._schedule is not None)
        assert bucket._schedule is not None
        assert bucket.snapshots is not None
        assert bucket._tablet is not None
        await bucket._take_snapshot(bucket._tablet, bucket.snapshots, bucket._schedule)
        assert bucket.snapshots.newest_offset == 2
        await cluster.stop(first)
        table = await led(cluster, made, {1, 2, 3} - {first})
        others = bucket_at(table).snapshots
        assert others is not None
        assert not others.known, "they are another broker's"
        await put(table, {2: 2, 3: 3})
        table.partition.log.delete_records(3)
        await cluster.start(first)
        await in_sync(cluster, {1, 2, 3})
        for node_id in {1, 2, 3} - {first}:
            await cluster.stop(node_id)
        table = await led(cluster, made, {first})
        assert await found(table, 0, 1, 2, 3) == [{"k": key, "v": key} for key in range(4)]
        for node_id in {1, 2, 3} - {first}:
            await cluster.start(node_id)
        await in_sync(cluster, {1, 2, 3})
        bucket = bucket_at(table)
        bucket._damaged(OSError("a block of it is wrong"))
        await until(lambda: bucket._tasks.under_way(Kind.REBUILD) is None)
        assert await found(table, 0, 1, 2, 3) == [{"k": key, "v": key} for key in range(4)]
        assert table.partition.failure is None
