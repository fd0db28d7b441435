"""Tables with a replica on each of three brokers: the leader of a bucket has its rows, its writers and its state."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.broker.replication.following import Follower
from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.replication.progress import Progress
from headrace.broker.runtime.ports import SetNode
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.bucket import stored_bucket
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.bucket.standby import TOGETHER_SECONDS, Standby
from headrace.tablelayer.server.bucket.tasks import Kind
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.server.staged.ledger import Ledger, following
from headrace.tablelayer.server.staged.others import OtherBrokers
from headrace.tablelayer.server.staged.staging import writer_key
from headrace.tablelayer.server.staged.writing import DecidedBatches
from headrace.tablelayer.server.store.copies import copy_store
from headrace.tablelayer.tests.server.tables import DEADLINE_SECONDS, Row, Table, Tables, until
from headrace.tablelayer.tests.server.test_staged_writes import Chunks, commit, stage
from simulator.cluster import DirectCluster, direct_cluster

TOPIC = "default.t"
WRITER = {"producer_id": 7, "producer_epoch": 0}
MOVING = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
}


NEEDED = {"min.insync.replicas": "2"}
THREE = {"table.replication.factor": "3"}


@pytest.fixture(autouse=True)
def impatience() -> Iterator[Callable[[], None]]:
    """Let requests wait for a bucket that gets a leader soon, however slow the machine is.

    After a call of this, new requests do not wait, as no broker can answer them yet.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_bucket, "_STARTING_SECONDS", DEADLINE_SECONDS)
        yield lambda: patch.setattr(stored_bucket, "_STARTING_SECONDS", 0.1)


def extensions() -> list[TableExtension]:
    return [TableExtension()]


def tables_at(cluster: DirectCluster, node_id: int) -> Tables:
    broker = cluster.brokers[node_id]
    (extension,) = broker.broker._extensions
    assert isinstance(extension, TableExtension)
    return Tables(broker, extension)


async def created(cluster: DirectCluster, columns: str, **options: Any) -> Table:
    await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == len(cluster.brokers))
    given = {"table.replication.factor": "3", **options.pop("given", {})}
    table = await tables_at(cluster, 1).create(columns, given=given, **options)
    await in_sync(cluster, {1, 2, 3})
    return table


def state_of(cluster: DirectCluster, topic: str = TOPIC) -> Any:
    """Return the state that every running broker has; None while they differ."""
    found = {broker.context.metadata.state(topic, 0) for broker in cluster.brokers.values()}
    return found.pop() if len(found) == 1 else None


async def in_sync(cluster: DirectCluster, isr: set[int], topic: str = TOPIC) -> int:
    """Wait until this is the ISR and one of it leads, as all brokers say; return the leader."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            state = state_of(cluster, topic)
            if state is not None and set(state.isr) == isr and state.leader in isr:
                return int(state.leader)
            await asyncio.sleep(0.01)


async def led(cluster: DirectCluster, table: Table, isr: set[int]) -> Table:
    """Return the table at the leader of its first bucket, once that serves it."""
    leader = await in_sync(cluster, isr, table.definition.path.topic)
    found = Table(cluster.brokers[leader], table.definition)
    await until(lambda: serves(found), f"broker {leader} does not serve what it leads")
    return found


def serves(table: Table) -> bool:
    """Whether its broker has begun to lead its first bucket."""
    listed = table.broker.context.replicas.partitions(table.definition.path.topic)
    hooks = next((each.hooks for each in listed if each.index == 0 and not each.closed), None)
    return hooks is not None and (not isinstance(hooks, KeyBucket) or hooks.store is not None)


async def patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Return the answer, once the broker knows that it leads and has all records of the leader before."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            answer = await ask()
            if answer.error_code not in MOVING:
                assert answer.error_code == 0, answer.error_message
                return answer
            await asyncio.sleep(0.01)


async def put(table: Table, rows: Mapping[int, int], **options: Any) -> Any:
    operations = [("+", {"k": key, "v": value}) for key, value in rows.items()]
    return await patiently(lambda: table.put(*operations, **options))


async def found(table: Table, *keys: int) -> list[Row | None]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                return await table.lookup(*({"k": key} for key in keys))
            except AssertionError:
                await asyncio.sleep(0.01)


def standby_at(cluster: DirectCluster, node_id: int, topic: str = TOPIC) -> Standby:
    hooks = follower_at(cluster, node_id, topic).hooks
    assert isinstance(hooks, Standby)
    return hooks


def applied_at(cluster: DirectCluster, node_id: int) -> int:
    store = standby_at(cluster, node_id).store
    return -1 if store is None else store.applied_offset


def applied_by_leader(table: Table) -> int:
    """Return the offset up to which the leader has applied the log, told to its followers or not."""
    table.partition.advance()
    store = bucket_at(table).store
    return -1 if store is None else store.applied_offset


def lookup_of(table: Table, key: int) -> m.LookupRequest:
    schema = table.definition.schema
    keys = pa.RecordBatch.from_pylist(
        [{"k": key}], schema=pa.schema([each.field() for each in schema.key_columns])
    )
    return m.LookupRequest(
        table_id=table.table_id, buckets=[m.LookupBucket(bucket=0, keys=encode_ipc(keys))], timeout_ms=5000
    )


def follower_at(cluster: DirectCluster, node_id: int, topic: str = TOPIC) -> Any:
    return cluster.brokers[node_id].context.replicas.follower(topic, 0)


def bucket_at(table: Table) -> KeyBucket:
    hooks = table.partition.hooks
    assert isinstance(hooks, KeyBucket)
    return hooks


async def test_a_log_table_goes_on_where_its_leader_ended(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT"), {1, 2, 3})
        sent = []
        for number in range(3):
            rows = [{"k": number, "v": 1}]
            sent.append(await table.append(rows, **WRITER, base_sequence=number))
        assert [(each.error_code, each.end_offset) for each in sent] == [(0, 1), (0, 2), (0, 3)]
        stopped = state_of(cluster).leader
        await cluster.stop(stopped)
        next_table = await led(cluster, table, {1, 2, 3} - {stopped})
        again = await patiently(lambda: next_table.append([{"k": 2, "v": 1}], **WRITER, base_sequence=2))
        assert (again.base_offset, again.end_offset) == (2, 3), "rows accepted by the previous leader"
        more = await patiently(lambda: next_table.append([{"k": 3, "v": 1}], **WRITER, base_sequence=3))
        assert more.end_offset == 4
        assert [row["k"] for _, row in await next_table.changelog()] == [0, 1, 2, 3]
        assert await next_table.count() == 4


async def test_r13_1_the_next_leader_of_a_primary_key_table_has_its_rows_and_its_writers(
    tmp_path: Path,
) -> None:
    given = {"table.merge-engine": "aggregation", "fields.v.agg": "sum"}
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)", given=given)
        table = await led(cluster, made, {1, 2, 3})
        for sequence in range(4):
            assert (
                await table.put(("+", {"k": sequence % 2, "v": 1}), **WRITER, base_sequence=sequence)
            ).error_code == 0
        first = state_of(cluster).leader
        others = {1, 2, 3} - {first}
        for node_id in others:
            await until(lambda node_id=node_id: applied_at(cluster, node_id) == 6)
            assert standby_at(cluster, node_id).store.files_merged == 12
        await cluster.stop(first)
        table = await led(cluster, made, others)
        assert table.partition.hooks.store.files_merged == 4
        assert await found(table, 0, 1, 2) == [{"k": 0, "v": 2}, {"k": 1, "v": 2}, None]
        repeated = await put(table, {1: 1}, **WRITER, base_sequence=3)
        assert repeated.end_offset == 6
        assert (await put(table, {1: 1}, **WRITER, base_sequence=4)).end_offset == 8
        await cluster.start(first)
        await in_sync(cluster, {1, 2, 3})
        second = state_of(cluster).leader
        await cluster.stop(second)
        table = await led(cluster, made, {1, 2, 3} - {second})
        assert await found(table, 0, 1) == [{"k": 0, "v": 2}, {"k": 1, "v": 3}]
        assert await table.count() == 2


async def test_r13_3_unreplicated_rows_are_in_no_store(
    tmp_path: Path, impatience: Callable[[], None]
) -> None:
    async with direct_cluster(tmp_path, 3, extensions, config=NEEDED) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        assert (await table.put(("+", {"k": 1, "v": 1}))).error_code == 0
        own = state_of(cluster).leader
        for node_id in {1, 2, 3} - {own}:
            await cluster.stop(node_id)
        await in_sync(cluster, {own})
        refused = await table.put(("+", {"k": 1, "v": 2}))
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "min.insync.replicas is 2, and 1 in sync" in refused.error_message
        alone = await table.put_batch(table.batch([{"k": 1, "v": 3}], [ChangeType.UPDATE_AFTER]), acks=1)
        assert (alone.error_code, alone.end_offset) == (0, 3)
        assert await table.lookup({"k": 1}) == [{"k": 1, "v": 1}]
        assert bucket_at(table).tablet.kv.applied_offset == 1
        assert len(await table.changelog()) == 1
        await cluster.stop(own)
        table = Table(await cluster.start(own, NEEDED), table.definition)
        await in_sync(cluster, {own})
        await until(lambda: table.partition.is_open)
        impatience()
        assert (await table.broker.send(lookup_of(table, 1))).buckets[0].error_code in MOVING
        assert table.partition.failure is None
        other = ({1, 2, 3} - {own}).pop()
        await cluster.start(other, NEEDED)
        await in_sync(cluster, {own, other})
        assert (await put(table, {2: 2})).end_offset == 4
        assert await found(table, 1) == [{"k": 1, "v": 3}]


async def test_r13_3_a_leader_stores_only_replicated_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated, most = Progress.high_watermark, [0]

    def limited(self: Progress, present: int, *rest: Any) -> int:
        return min(replicated(self, present, *rest), max(present, most[0]))

    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        monkeypatch.setattr(Progress, "high_watermark", limited)
        for key in (1, 2):
            batch = table.batch([{"k": key, "v": 1}], [ChangeType.UPDATE_AFTER])
            assert (await table.put_batch(batch, acks=1)).error_code == 0
        await until(lambda: applied_by_leader(table) == 0)
        most[0] = 1
        await until(lambda: applied_by_leader(table) > 0)
        await asyncio.sleep(5 * TOGETHER_SECONDS)
        assert (applied_by_leader(table), table.partition.high_watermark) == (1, 1)
        monkeypatch.undo()
        assert (await put(table, {3: 1})).end_offset == 3
        assert await found(table, 1, 2, 3) == [{"k": key, "v": 1} for key in (1, 2, 3)]


async def test_r13_2_a_complete_leader_still_waits_for_its_replicas(
    tmp_path: Path, impatience: Callable[[], None]
) -> None:
    async with direct_cluster(tmp_path, 3, extensions, config=NEEDED) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        assert (await table.put(("+", {"k": 1, "v": 1}))).error_code == 0
        own = state_of(cluster).leader
        (one, other) = {1, 2, 3} - {own}
        for node_id in (one, other, own):
            await cluster.stop(node_id)
        table = Table(await cluster.start(own, NEEDED), table.definition)
        await in_sync(cluster, {own})
        await until(lambda: table.partition.is_open)
        impatience()
        assert (await table.broker.send(lookup_of(table, 1))).buckets[0].error_code in MOVING
        assert table.partition.failure is None
        await cluster.start(one, NEEDED)
        assert await found(table, 1) == [{"k": 1, "v": 1}]


async def test_r13_3_a_standby_stores_only_rows_that_its_leader_reports_replicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        monkeypatch.setattr(ReplicatedPartition, "replicated_offset", property(lambda _: 1))
        for number in range(3):
            assert (await table.put(("+", {"k": number, "v": 1}))).error_code == 0
        (one, other) = {1, 2, 3} - {state_of(cluster).leader}
        for node_id in (one, other):
            follower = follower_at(cluster, node_id)
            await until(lambda follower=follower: follower.log.log_end_offset == 3)
            await until(lambda node_id=node_id: applied_at(cluster, node_id) == 1)
            follower.hooks.advanced()
            await asyncio.sleep(5 * TOGETHER_SECONDS)
            assert applied_at(cluster, node_id) == 1
        monkeypatch.undo()
        await until(lambda: applied_at(cluster, one) == applied_at(cluster, other) == 3)


async def test_a_standby_tells_how_far_it_is_behind_and_how_much_it_has_taken_over(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        other = min({1, 2, 3} - {state_of(cluster).leader})

        async def shown(name: str) -> dict[Any, Any]:
            return dict((await cluster.brokers[other].context.metrics.gather()).get(name, {}))

        await put(table, {1: 1, 2: 2})
        await until(lambda: standby_at(cluster, other).applied_rows >= 2)
        label = ("default.t",)
        assert (await shown("headrace_table_standby_rows_total"))[label] >= 2
        assert await shown("headrace_table_standby_lag_records") == {label: 0}
        follower_at(cluster, other).high_watermark += 5
        assert await shown("headrace_table_standby_lag_records") == {label: 5}


async def test_lookups_that_a_standby_has_answered_are_counted(tmp_path: Path) -> None:
    config = {"replica.fetch.wait.max.ms": "20"}
    async with direct_cluster(tmp_path, 3, extensions, config=config) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        other = min({1, 2, 3} - {state_of(cluster).leader})
        await put(table, {1: 1})
        await until(lambda: applied_at(cluster, other) >= 1)
        await until(lambda: follower_at(cluster, other).safe_time.at(1) is not None)

        async def shown(node_id: int) -> Any:
            gathered = await cluster.brokers[node_id].context.metrics.gather()
            return dict(gathered.get("headrace_table_standby_lookups_total", {})).get(("default.t",), 0)

        request = lookup_of(table, 1)
        for staleness_ms, count in ((1 << 30, 1), (-1, 1), (0, 1), (1 << 30, 2)):
            request.staleness_ms_max, request.timeout_ms = staleness_ms, 100
            for node_id in (other, state_of(cluster).leader):
                await cluster.brokers[node_id].send(request)
            assert await shown(other) == count, "those that were refused are not counted"
            assert await shown(state_of(cluster).leader) == 0
        slow = cluster.brokers[other]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.tablelayer.server.api.read._QUICK_BUCKETS_MAX", 0)
            request.staleness_ms_max = 1 << 30
            assert (await slow.send(request)).buckets[0].error_code == 0
        assert await shown(other) == 3, "nor is the long way forgotten"


async def test_r13_2_a_leader_that_may_be_deposed_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        assert (await table.put(("+", {"k": 1, "v": 1}))).error_code == 0
        assert await table.lookup({"k": 1}) == [{"k": 1, "v": 1}]
        monkeypatch.setattr(ReplicatedPartition, "is_fenced", property(lambda _: True))
        answer = (await table.broker.send(lookup_of(table, 1))).buckets[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        monkeypatch.undo()
        assert await table.lookup({"k": 1}) == [{"k": 1, "v": 1}]


async def test_r13_2_a_new_leader_answers_after_it_has_all_rows_shown_before(
    tmp_path: Path,
) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)")
        table = await led(cluster, made, {1, 2, 3})
        assert (await table.put(("+", {"k": 1, "v": 1}))).error_code == 0
        first = state_of(cluster).leader
        others = sorted({1, 2, 3} - {first})
        for node_id in others:  # one that has not heard of the last high watermark
            follower = follower_at(cluster, node_id)
            await until(lambda follower=follower: follower.high_watermark == 1)
            follower.high_watermark = 0
        await cluster.stop(first)
        table = await led(cluster, made, set(others))
        assert await found(table, 1) == [{"k": 1, "v": 1}]


async def test_a_replica_that_was_away_for_long_gets_a_copy_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)")
        table = await led(cluster, made, {1, 2, 3})
        for number in range(5):
            assert (await table.put(("+", {"k": number, "v": 1}))).error_code == 0
        own = state_of(cluster).leader
        away = ({1, 2, 3} - {own}).pop()
        await cluster.stop(away)
        await in_sync(cluster, {1, 2, 3} - {away})
        for number in range(5, 10):
            assert (await table.put(("+", {"k": number, "v": 1}))).error_code == 0
        table.partition.log.delete_records(8)
        (stays,) = {1, 2, 3} - {own, away}
        await until(lambda: applied_at(cluster, stays) == 10)
        assert (await table.put(("+", {"k": 10, "v": 1}))).error_code == 0
        await until(lambda: applied_at(cluster, stays) == 11)
        kept = standby_at(cluster, stays).store
        assert kept is not None
        assert follower_at(cluster, stays).log.log_start_offset <= kept.durable_offset
        wanted, given = asyncio.Event(), asyncio.Event()

        async def copied(*arguments: Any, **named: Any) -> Any:
            wanted.set()
            await given.wait()
            return await copy_store(*arguments, **named)

        monkeypatch.setattr("headrace.tablelayer.server.bucket.standby.copy_store", copied)
        await cluster.start(away)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await wanted.wait()
        await asyncio.sleep(0.2)
        end_offset = follower_at(cluster, away).log.log_end_offset
        given.set()
        assert end_offset == 8, "without a store it is in no ISR"
        await in_sync(cluster, {1, 2, 3})
        assert follower_at(cluster, away).log.log_start_offset == 8
        await until(lambda: applied_at(cluster, away) == 11)
        for node_id in {1, 2, 3} - {away}:
            await cluster.stop(node_id)
        table = Table(cluster.brokers[away], made.definition)
        assert await found(table, *range(11)) == [{"k": number, "v": 1} for number in range(11)]


async def test_a_dropped_table_leaves_nothing_with_its_replicas(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)")
        table = await led(cluster, made, {1, 2, 3})
        assert (await table.put(("+", {"k": 1, "v": 1}))).error_code == 0
        folders = [
            tmp_path / str(number) / "extensions" / "tables" / str(made.table_id) for number in (1, 2, 3)
        ]
        await until(lambda: all((folder / "0").is_dir() for folder in folders))
        answer = await table.broker.send(m.DropTableRequest(database="default", table="t"))
        assert answer.error_code == 0
        await until(lambda: not any(folder.exists() for folder in folders))


async def test_a_table_that_was_dropped_while_a_broker_was_down_leaves_nothing_there(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)")
        table = await led(cluster, made, {1, 2, 3})
        assert (await table.put(("+", {"k": 1, "v": 1}))).error_code == 0
        away = state_of(cluster).replicas[-1]
        tables = tmp_path / str(away) / "extensions" / "tables"
        await until(lambda: (tables / str(made.table_id) / "0").is_dir())
        other = await tables_at(cluster, 1).create("k INT, v INT, PRIMARY KEY (k)", name="u", given=THREE)
        await in_sync(cluster, {1, 2, 3}, "default.u")
        await put(await led(cluster, other, {1, 2, 3}), {1: 1})
        await until(lambda: (tables / str(other.table_id) / "0").is_dir())
        await cluster.stop(away)
        kept = next(iter(cluster.brokers.values()))
        assert (await kept.send(m.DropTableRequest(database="default", table="t"))).error_code == 0
        assert (tables / str(made.table_id) / "0").is_dir()
        await cluster.start(away)
        assert not (tables / str(made.table_id)).exists()
        assert (tables / str(other.table_id) / "0").is_dir(), "it belongs to another table"


async def test_a_standby_whose_log_is_cut_leaves_file_removal_to_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work runs on the event loop, which renames the store and removes no file."""
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        for number in range(5):
            assert (await table.put(("+", {"k": number, "v": 1}))).error_code == 0
        follower = state_of(cluster).replicas[-1]
        await until(lambda: applied_at(cluster, follower) == 5)
        standby, removed = standby_at(cluster, follower), []
        disk = standby._services.store_disk
        remove_tree = disk.remove_tree

        def remember(path: Path) -> None:
            removed.append((path.name, threading.current_thread() is threading.main_thread()))
            remove_tree(path)

        monkeypatch.setattr(disk, "remove_tree", remember, raising=False)
        log = follower_at(cluster, follower).log
        standby.truncated(3)
        standby.truncated(2)
        assert not removed
        assert not standby.directory.exists(), "no crash brings it together with the log that is cut next"
        log.truncate_to(2)
        log.follow()
        await until(lambda: removed and disk.directories(standby.directory.parent) == ["0"])
        await until(lambda: applied_at(cluster, follower) == 5)
        assert not any(on_loop for _, on_loop in removed)


async def test_a_standby_whose_rocksdb_has_stopped_writing_opens_its_store_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        table = await led(cluster, await created(cluster, "k INT, v INT, PRIMARY KEY (k)"), {1, 2, 3})
        assert (await table.put(("+", {"k": 1, "v": 1}))).error_code == 0
        follower = state_of(cluster).replicas[-1]
        await until(lambda: applied_at(cluster, follower) == 1)
        store: Any = standby_at(cluster, follower).store

        def halted(*_: Any) -> None:
            raise OSError(errno.EMFILE, "IO error: While open a file: Too many open files")

        monkeypatch.setattr(store, "write", halted)
        assert (await table.put(("+", {"k": 2, "v": 1}))).error_code == 0
        await until(lambda: applied_at(cluster, follower) == 2)
        assert standby_at(cluster, follower).store is not store


async def test_a_bucket_moves_to_another_broker_with_its_store(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        made = await tables_at(cluster, 1).create("k INT, v INT, PRIMARY KEY (k)")
        await until(lambda: state_of(cluster) is not None)
        (before,) = state_of(cluster).replicas
        table = await led(cluster, made, {before})
        for number in range(4):
            assert (await table.put(("+", {"k": number, "v": 1}))).error_code == 0
        table.partition.log.delete_records(3)
        after = before % 3 + 1
        wanted = ReassignableTopic(
            name=TOPIC, partitions=[ReassignablePartition(partition_index=0, replicas=[after])]
        )
        answer = await table.broker.send(AlterPartitionReassignmentsRequest(topics=[wanted]))
        assert answer.responses[0].partitions[0].error_code == 0
        await in_sync(cluster, {after})
        await until(lambda: state_of(cluster).replicas == (after,))
        moved = Table(cluster.brokers[after], made.definition)
        assert await found(moved, *range(5)) == [*({"k": number, "v": 1} for number in range(4)), None]
        left = tmp_path / str(before) / "extensions" / "tables" / str(made.table_id)
        await until(lambda: not left.exists())


async def test_staged_rows_are_committed_by_the_current_leader(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "n BIGINT")
        table = await led(cluster, made, {1, 2, 3})
        first = state_of(cluster).leader
        away, stays = {1, 2, 3} - {first}
        staged: Chunks = {0: [[{"n": 1}], [{"n": 2}]]}
        assert (await stage(table, 0, "a", staged)).error_code == 0
        await cluster.stop(away)
        await in_sync(cluster, {first, stays})
        assert (await stage(table, 0, "b", {0: [[{"n": 3}]]})).error_code == 0
        await cluster.start(away)
        await in_sync(cluster, {1, 2, 3})
        more: Chunks = {0: [[{"n": 3}], [{"n": 4}]]}
        assert (await stage(table, 0, "b", more)).error_code == 0, "the returned replica gets missed rows"
        await cluster.stop(first)
        await cluster.stop(stays)
        table = Table(cluster.brokers[away], made.definition)
        await patiently(lambda: commit(table, 0, {"a": staged, "b": more}))
        assert [row["n"] for _, row in await table.changelog()] == [1, 2, 3, 4]
        again = await commit(table, 0, {"a": staged, "b": more})
        assert again.error_code == 0
        assert await table.count() == 4


def joins_without_staged_rows(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    """Let replicas join the ISR without staged rows, as they did before."""

    async def nothing(partition: Any, broker: int) -> None:
        """Pretend that there is none."""

    bucket = table.partition.hooks
    monkeypatch.setattr(bucket.services, "give_staged", nothing)


async def test_a_replica_is_in_sync_when_it_has_all_staged_rows(tmp_path: Path) -> None:
    """The replica was away, comes back, and then leads and is alone."""
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "n BIGINT")
        table = await led(cluster, made, {1, 2, 3})
        first, away, stays = state_of(cluster).replicas
        await cluster.stop(away)
        await in_sync(cluster, {first, stays})
        early: Chunks = {0: [[{"n": 1}], [{"n": 2}]]}
        assert (await stage(table, 0, "a", early)).error_code == 0
        services = table.partition.hooks.services
        give, begun, may_end = services.give_staged, asyncio.Event(), asyncio.Event()

        async def given(partition: Any, broker: int) -> None:
            await give(partition, broker)
            begun.set()
            await may_end.wait()

        services.give_staged = given
        await cluster.start(away)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await begun.wait()
        assert away not in table.partition.state.isr
        late: Chunks = {0: [[{"n": 3}]]}
        assert (await stage(table, 0, "b", late)).error_code == 0
        assert away not in table.partition.state.isr
        may_end.set()
        await in_sync(cluster, {1, 2, 3})
        await cluster.stop(first)
        await in_sync(cluster, {away, stays})
        await cluster.stop(stays)
        await in_sync(cluster, {away})
        table = Table(cluster.brokers[away], made.definition)
        await patiently(lambda: commit(table, 0, {"a": early, "b": late}))
        assert [row["n"] for _, row in await table.changelog()] == [1, 2, 3]


async def test_a_replica_that_a_staged_chunk_did_not_get_to_is_given_all_of_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "n BIGINT")
        table = await led(cluster, made, {1, 2, 3})
        first, away, stays = state_of(cluster).replicas
        await cluster.stop(away)
        await in_sync(cluster, {first, stays})
        early: Chunks = {0: [[{"n": 1}]]}
        assert (await stage(table, 0, "a", early)).error_code == 0
        services = table.partition.hooks.services
        give, given_to = services.give_staged, list[int]()
        late: Chunks = {0: [[{"n": 2}]]}

        async def given(partition: Any, broker: int) -> None:
            await give(partition, broker)
            given_to.append(broker)
            if len(given_to) == 1:
                with monkeypatch.context() as patch:
                    patch.setattr(OtherBrokers, "keep", not_to(away))
                    assert (await stage(table, 0, "b", late)).error_code == 0

        services.give_staged = given
        await cluster.start(away)
        await in_sync(cluster, {1, 2, 3})
        assert given_to == [away, away]
        await cluster.stop(first)
        await in_sync(cluster, {away, stays})
        await cluster.stop(stays)
        await in_sync(cluster, {away})
        table = Table(cluster.brokers[away], made.definition)
        await patiently(lambda: commit(table, 0, {"a": early, "b": late}))
        assert [row["n"] for _, row in await table.changelog()] == [1, 2]


def not_to(broker: int) -> Callable[..., Awaitable[None]]:
    keep = OtherBrokers.keep

    async def kept(self: OtherBrokers, to: int, request: Any) -> None:
        if to == broker:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "it is not reached")
        await keep(self, to, request)

    return kept


async def test_a_table_that_a_broker_does_not_know_yet_keeps_what_is_staged_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headrace.tablelayer.server.extension._STAGED_CHECK_SECONDS", float("inf")
    )  # no other process looks
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "n BIGINT")
        table = await led(cluster, made, {1, 2, 3})
        assert (await stage(table, 0, "a", {0: [[{"n": 1}]]})).error_code == 0
        follower = state_of(cluster).replicas[-1]
        staged = tables_at(cluster, follower).extension._staged
        assert staged is not None
        folder = tmp_path / str(follower) / "extensions" / "tables" / "staged" / str(made.table_id)
        await staged.expiry.expire(lambda _: False)
        await staged.expiry.expire(lambda _: True)
        await staged.expiry.expire(lambda _: False)
        assert folder.is_dir()
        await staged.expiry.expire(lambda _: False)
        assert not folder.exists()


@pytest.mark.parametrize("decided", [False, True])
async def test_a_new_leader_gets_rows_staged_during_its_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "n BIGINT")
        table = await led(cluster, made, {1, 2, 3})
        first, away, stays = state_of(cluster).replicas
        assert state_of(cluster).leader == first
        joins_without_staged_rows(monkeypatch, table)
        await cluster.stop(away)
        await in_sync(cluster, {first, stays})
        staged: Chunks = {0: [[{"n": 1}], [{"n": 2}]]}
        assert (await stage(table, 0, "a", staged)).error_code == 0
        with monkeypatch.context() as patch:
            patch.setattr(DecidedBatches, "_write_bucket", not_now)  # nor does its leader by itself, later
            if decided:
                assert (await commit(table, 0, {"a": staged})).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            await cluster.start(away)
            await in_sync(cluster, {1, 2, 3})
            await cluster.stop(first)
        assert await in_sync(cluster, {away, stays}) == away
        table = Table(cluster.brokers[away], made.definition)
        await patiently(lambda: commit(table, 0, {"a": staged}))
        assert [row["n"] for _, row in await table.changelog()] == [1, 2]


async def test_a_decided_commit_waits_for_a_broker_that_may_have_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "n BIGINT")
        table = await led(cluster, made, {1, 2, 3})
        first, away, stays = state_of(cluster).replicas
        joins_without_staged_rows(monkeypatch, table)
        await cluster.stop(away)
        await in_sync(cluster, {first, stays})
        staged: Chunks = {0: [[{"n": 1}]]}
        assert (await stage(table, 0, "a", staged)).error_code == 0
        with monkeypatch.context() as patch:
            patch.setattr(DecidedBatches, "_write_bucket", not_now)  # nor does its leader by itself, later
            assert (await commit(table, 0, {"a": staged})).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            await cluster.start(away)
            await in_sync(cluster, {1, 2, 3})
            await cluster.stop(stays)  # before it could give who leads next what it has
            await in_sync(cluster, {first, away})
            await cluster.stop(first)
        table = await led(cluster, made, {away})
        refused = await commit(table, 0, {"a": staged})
        assert (refused.error_code, "does not answer" in refused.error_message) == (
            ErrorCode.LEADER_NOT_AVAILABLE,
            True,
        )
        await cluster.start(stays)
        await in_sync(cluster, {away, stays})
        await patiently(lambda: commit(table, 0, {"a": staged}))
        assert await table.count() == 1


async def test_rows_are_staged_with_as_many_as_a_write_needs(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, extensions, config=NEEDED) as cluster:
        made = await created(cluster, "n BIGINT")
        table = await led(cluster, made, {1, 2, 3})
        own = state_of(cluster).leader
        for node_id in {1, 2, 3} - {own}:
            await cluster.stop(node_id)
        await in_sync(cluster, {own})
        refused = await stage(table, 0, "a", {0: [[{"n": 1}]]})
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "min.insync.replicas=2; only 1 in sync" in refused.error_message


@pytest.mark.parametrize("when", ["_check_kept", "_write_bucket"])
async def test_a_commit_finished_by_the_previous_leader_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It still writes when the next leader reads the decision."""
    ended = []

    async def end(self: DecidedBatches, definition: TableDefinition, ledger: Ledger) -> None:
        path = f"/staged/{definition.table_id}/{writer_key(ledger.writer)}"
        store = self._services.context.store
        node = await store.get(path)
        assert node is not None
        await store.transact([SetNode(path, following(ledger, 1, 0).to_json(), node.version)])
        dropped = (definition.table_id, ledger.writer, ledger.batch_id, ())
        await self._others.drop(*dropped)
        await self._chunks.drop(*dropped)
        ended.append(path)

    async def while_it_writes(self: Any, table_id: Any, definition: Any, ledger: Any, *rest: Any) -> None:
        await end(self, definition, ledger)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")

    check = DecidedBatches._check_kept

    async def before_it_looks(self: Any, definition: Any, ledger: Any, places: Any) -> None:
        await end(self, definition, ledger)
        self._ledgers.known[definition.table_id, ledger.writer] = ledger
        await check(self, definition, ledger, places)

    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        made = await created(cluster, "n BIGINT")
        table = await led(cluster, made, {1, 2, 3})
        staged: Chunks = {0: [[{"n": 1}]]}
        assert (await stage(table, 0, "a", staged)).error_code == 0
        monkeypatch.setattr(
            DecidedBatches, when, while_it_writes if when == "_write_bucket" else before_it_looks
        )
        refused = await commit(table, 0, {"a": staged})
        assert refused.error_code == ErrorCode.NOT_COORDINATOR
        monkeypatch.undo()
        node = await table.broker.context.store.get(ended[0])
        assert node is not None
        assert Ledger.from_json(node.data).done
        assert (await commit(table, 0, {"a": staged})).error_code == 0


async def not_now(*_: Any) -> None:
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")


@pytest.mark.parametrize("is_empty", [True, False])
async def test_a_replica_whose_changes_are_in_remote_storage_alone_copies_the_store_and_can_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_empty: bool
) -> None:
    """It comes back with an empty disk, or with an old store that is at rest, when the others' logs no longer have the
    changes that it lacks.
    """
    go_on = Follower.go_on_behind_remote

    async def go_on_at_rest(follower: Follower) -> None:
        standby = follower.hooks
        assert isinstance(standby, Standby)
        await until(lambda: standby.store is not None and bool(standby._moved._waiters))
        await go_on(follower)

    if not is_empty:
        monkeypatch.setattr(Follower, "go_on_behind_remote", go_on_at_rest)
    remote_log = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.directory": str(tmp_path / "remote"),
        "remote.log.manager.task.interval.ms": "3600000",
        "log.initial.task.delay.ms": "3600000",
    }
    given = {
        "remote.storage.enable": "true",
        "segment.bytes": "1000",
        "local.retention.bytes": "1",
        "file.delete.delay.ms": "0",
    }
    folder = tmp_path / "brokers"
    async with direct_cluster(folder, 3, extensions, config=remote_log) as cluster:
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)", given=given)
        expected: dict[int, int] = {}
        leader = await in_sync(cluster, {1, 2, 3})
        away = leader % 3 + 1
        if not is_empty:
            expected[0] = 0
            await put(await led(cluster, made, {1, 2, 3}), {0: 0})
            await until(lambda: standby_at(cluster, away).applied_rows == 1)
        await cluster.stop(away)
        if is_empty:
            shutil.rmtree(folder / str(away))
        table = await led(cluster, made, {1, 2, 3} - {away})
        for number in range(20):
            expected[number % 7] = number
            await put(table, {number % 7: expected[number % 7]})
        bucket_at(table)._start_flush()
        flushing = bucket_at(table)._tasks.under_way(Kind.FLUSH)
        assert flushing is not None
        await flushing
        await table.partition.flush(table.broker.context.executor)
        remote = table.broker.broker._cluster.remote
        assert remote is not None
        await remote.turn()
        table.partition.apply_retention(table.broker.context.clock.time_ms())
        assert table.partition.log.local_start_offset > 0
        await cluster.start(away, remote_log)
        await in_sync(cluster, {1, 2, 3})
        others = {1, 2, 3} - {away}
        for each in others:
            await cluster.stop(each)
        table = await led(cluster, made, {away})
        keys = sorted(expected)
        assert await found(table, *keys) == [{"k": key, "v": expected[key]} for key in keys]
        assert len(await table.changelog()) == table.partition.high_watermark
