"""Tables whose buckets several brokers lead: each serves its own, and requests for all go to all of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.broker.replication.following import Follower
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.tests.security.people import HOST, SECURED, allow, client, creation, grant
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.client.connection import AsyncConnection
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.bucket.remote_bucket import RemoteBucket
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.server.staged.others import OtherBrokers
from headrace.tablelayer.tests.server.tables import DEADLINE_SECONDS, LAKES, Row, Table, Tables, until
from headrace.tablelayer.tests.server.test_staged_writes import Chunks, commit, stage
from simulator.cluster import DirectCluster, Routed, direct_cluster
from simulator.direct import DirectBroker, values_of

BUCKETS = 4


def extensions() -> list[TableExtension]:
    return [TableExtension()]


def tables_at(cluster: DirectCluster, node_id: int) -> Tables:
    broker = cluster.brokers[node_id]
    (extension,) = broker.broker._extensions
    assert isinstance(extension, TableExtension)
    return Tables(broker, extension)


def own_buckets(broker: DirectBroker, topic: str) -> list[int]:
    return [each.index for each in broker.context.replicas.partitions(topic) if not each.closed]


async def created(cluster: DirectCluster, columns: str, **options: str) -> dict[int, Table]:
    """A table made through the first broker, as each of them has it."""
    await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == len(cluster.brokers))
    await tables_at(cluster, 1).create(columns, buckets=BUCKETS, **options)
    return {number: await tables_at(cluster, number).open() for number in cluster.brokers}


async def test_each_broker_serves_the_buckets_that_it_leads(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2, extensions) as cluster:
        opened = await created(cluster, "a INT")
        for number, table in opened.items():
            mine = own_buckets(table.broker, "default.t")
            assert len(mine) == BUCKETS // 2
            for bucket in range(BUCKETS):
                answer = await table.append([{"a": number}], bucket=bucket)
                expected = ErrorCode.NONE if bucket in mine else ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert answer.error_code == expected
            assert [await table.changelog(bucket=bucket) for bucket in mine] == [[("+A", {"a": number})]] * 2
        await opened[1].alter("ADD COLUMN b STRING")
        assert [column.name for column in (await opened[2].latest()).schema.columns] == ["a", "b"]


def identified(values: list[Row], sequence: int, producer_id: int = 5) -> bytes:
    records = [Record(None, json.dumps(value).encode(), (), 1000) for value in values]
    return build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


async def all_rows(opened: dict[int, Table]) -> list[Row]:
    found = []
    for table in opened.values():
        for bucket in own_buckets(table.broker, "default.t"):
            found += [
                row for change, row in await table.changelog(bucket=bucket) if change in ("+I", "+A", "+U")
            ]
    return sorted(found, key=lambda row: row["k"])


@pytest.mark.parametrize("columns", ["k INT, v STRING, PRIMARY KEY (k)", "k INT, v STRING"])
async def test_rows_of_a_kafka_client_reach_buckets_of_any_leader(tmp_path, columns: str) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        keyed = {} if "PRIMARY" in columns else {"bucket_key": ("k",)}
        opened = await created(cluster, columns, **keyed)
        rows: list[Row] = [{"k": number, "v": f"v{number}"} for number in range(40)]
        table = opened[1]
        (mine, *_) = own_buckets(table.broker, "default.t")
        batch = identified(rows, 0)
        first = await table.broker.produce("default.t", batch, partition=mine)
        assert first.error_code == ErrorCode.NONE, first.error_message
        assert await all_rows(opened) == rows
        again = await table.broker.produce("default.t", batch, partition=mine)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)
        assert await all_rows(opened) == rows, "a repeated batch has no second effect anywhere"
        ends = [{each: t.broker.context.replicas.partition("default.t", each).log.log_end_offset
                 for each in own_buckets(t.broker, "default.t")} for t in opened.values()]  # fmt: skip
        bad = [*rows[:20], {"k": "no number", "v": "v"}, *rows[21:]]
        refused = await table.broker.produce("default.t", identified(bad, 40), partition=mine)
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert ends == [{each: t.broker.context.replicas.partition("default.t", each).log.log_end_offset
                         for each in own_buckets(t.broker, "default.t")} for t in opened.values()]  # fmt: skip
        more: list[Row] = [{"k": number, "v": "w"} for number in range(40, 60)]
        answer = await table.broker.produce("default.t", identified(more, 40), partition=mine)
        assert answer.error_code == ErrorCode.NONE
        assert await all_rows(opened) == [*rows, *more]


async def test_a_refusal_of_one_broker_refuses_the_batch_and_names_the_record(tmp_path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        columns = "k INT, v INT, PRIMARY KEY (k)"
        given = {"table.merge-engine": "aggregation", "fields.v.agg": "sum"}
        opened = await created(cluster, columns, given=given)
        table = opened[1]
        (mine, *_) = own_buckets(table.broker, "default.t")
        rows: list[Row] = [{"k": number, "v": 1} for number in range(20)]
        assert (await table.broker.produce("default.t", identified(rows, 0), partition=mine)).error_code == 0
        before = await all_rows(opened)
        for bad in range(20):
            much = [{"k": number, "v": 2**31 - 1 if number == bad else 1} for number in range(20)]
            refused = await table.broker.produce("default.t", identified(much, 20), partition=mine)
            assert refused.error_code == ErrorCode.INVALID_RECORD
            assert [each.batch_index for each in refused.record_errors] == [bad], "whichever broker found it"
        assert await all_rows(opened) == before
        assert (await table.broker.produce("default.t", identified(rows, 20), partition=mine)).error_code == 0
        assert [row["v"] for row in (await all_rows(opened)) if row["v"] == 2] == [2] * 20


async def test_a_batch_that_was_broken_off_is_completed_by_its_repetition(tmp_path, monkeypatch) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        opened = await created(cluster, "k INT, v STRING", bucket_key=("k",))
        table = opened[1]
        (mine, *_) = own_buckets(table.broker, "default.t")
        rows: list[Row] = [{"k": number, "v": "x"} for number in range(40)]
        log, calls = RemoteBucket.log_prepared, []

        async def broken(self, *arguments):
            calls.append(self.place)
            if len(calls) == 2:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "cut off")
            return await log(self, *arguments)

        monkeypatch.setattr(RemoteBucket, "log_prepared", broken)
        answer = await table.broker.produce("default.t", identified(rows, 0), partition=mine)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "clients repeat it"
        assert 0 < len(await all_rows(opened)) < 40
        monkeypatch.undo()
        answer = await table.broker.produce("default.t", identified(rows, 0), partition=mine)
        assert answer.error_code == ErrorCode.NONE
        assert await all_rows(opened) == rows


@pytest.mark.parametrize("partitioned", [False, True])
async def test_rows_that_are_lost_with_a_bucket_s_leader_come_with_the_batch_s_repetition(
    tmp_path, monkeypatch, partitioned: bool
) -> None:
    """A batch's own sequence is in no log before its rows are on the replicas of all their buckets."""
    definition = TableDefinition(
        TablePath("default", "t"),
        parse_columns("p STRING, k INT, PRIMARY KEY (p, k) NOT ENFORCED"),
        bucket_key=("k",), bucket_count=BUCKETS, partition_keys=("p",) if partitioned else (),
        options={"table.replication.factor": "3"},
    )  # fmt: skip
    topic = "default.t.x" if partitioned else "default.t"
    copied = Follower._copied

    async def copied_not(self: Follower, *arguments: Any) -> None:
        if self.place == (topic, lost):
            await asyncio.sleep(0.01)
        else:
            await copied(self, *arguments)

    async with direct_cluster(tmp_path, 3, extensions) as cluster, asyncio.timeout(DEADLINE_SECONDS):
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        await tables_at(cluster, 1).create_as(definition)
        broker = cluster.brokers[1]
        metadata = broker.context.metadata

        async def all_in_sync(name: str, bucket: int) -> None:
            while (state := metadata.state(name, bucket)) is None or len(state.isr) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        await all_in_sync("default.t", 0)
        mine = next(bucket for bucket in range(BUCKETS) if metadata.state("default.t", bucket).leader == 1)
        first = identified([{"p": "x", "k": 0}], 0)
        while (await broker.produce("default.t", first, partition=mine)).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for bucket in range(BUCKETS):
            await all_in_sync(topic, bucket)
        lost = next(bucket for bucket in range(BUCKETS) if metadata.state(topic, bucket).leader != 1)
        leader = metadata.state(topic, lost).leader
        log = cluster.brokers[leader].context.replicas.partition(topic, lost).log
        known = log.log_end_offset
        monkeypatch.setattr(Follower, "_copied", copied_not)
        batch = identified([{"p": "x", "k": number} for number in range(40)], 1)
        sending = asyncio.create_task(broker.produce("default.t", batch, partition=mine))
        while log.log_end_offset == known:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # for whatever else is logged
        await cluster.stop(leader)
        assert (await sending).error_code != ErrorCode.NONE, "clients repeat it"
        monkeypatch.undo()
        while (await broker.produce("default.t", batch, partition=mine)).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        found = []
        for bucket in range(BUCKETS):
            answer = await Routed(cluster).fetch(topic, 0, partition=bucket)
            found += [json.loads(value)["k"] for _, value in values_of(answer.records)]
        assert sorted({*found}) == list(range(40))
        again = await broker.produce("default.t", batch, partition=mine)
        assert again.error_code == ErrorCode.NONE


async def test_a_batch_waits_for_no_broker_that_is_away_and_leaves_nothing_behind(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2, extensions) as cluster:
        opened = await created(cluster, "k INT, v STRING, PRIMARY KEY (k)")
        table = opened[1]
        (mine, *_) = own_buckets(table.broker, "default.t")
        rows: list[Row] = [{"k": number, "v": "x"} for number in range(40)]
        await cluster.stop(2)
        answer = await table.broker.produce("default.t", identified(rows, 0), partition=mine)
        assert answer.error_code in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await all_rows({1: table}) == []
        await cluster.start(2)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        opened[2] = await tables_at(cluster, 2).open()

        async def is_taken() -> bool:
            again = await table.broker.produce("default.t", identified(rows, 0), partition=mine)
            return not again.error_code

        await until(is_taken)
        assert await all_rows(opened) == rows


async def test_held_rows_without_a_request_are_released(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("headrace.tablelayer.server.bucket.held_rows.HELD_SECONDS", 600.0)
    async with direct_cluster(tmp_path, 1, extensions) as cluster:
        table = (await created(cluster, "k INT, PRIMARY KEY (k)"))[1]
        rows = pa.RecordBatch.from_pylist([{"k": 1}], schema=table.definition.schema.arrow())
        request = m.PrepareRowsRequest(
            topic="default.t", bucket=0, schema_id=table.definition.schema.schema_id,
            rows=bytes(encode_ipc(rows)), producer_id=-1, producer_epoch=-1, base_sequence=-1,
        )  # fmt: skip
        first = await table.broker.send(request)
        assert first.error_code == 0
        assert first.ticket.int
        assert (await table.broker.send(request)).is_busy
        handlers = tables_at(cluster, 1).extension._handlers
        assert handlers is not None
        handlers.forwarded._held._lost(first.ticket)  # its time is over
        second = await table.broker.send(request)
        assert second.ticket.int
        late = await table.broker.send(m.LogRowsRequest(ticket=first.ticket))
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await table.broker.send(m.LogRowsRequest(ticket=second.ticket, release=True))).error_code == 0
        third = await table.broker.send(request)
        logged = await table.broker.send(m.LogRowsRequest(ticket=third.ticket))
        assert (logged.error_code, logged.base_offset) == (0, 0), "the other rows are not there"


async def test_a_waiting_request_fails_when_its_rows_are_lost_with_the_leader(tmp_path) -> None:
    """The offset alone would match rows of the next leader."""
    async with direct_cluster(tmp_path, 1, extensions) as cluster:
        table = (await created(cluster, "k INT, PRIMARY KEY (k)"))[1]
        rows = pa.RecordBatch.from_pylist([{"k": 1}], schema=table.definition.schema.arrow())
        prepare = m.PrepareRowsRequest(
            topic="default.t", bucket=0, schema_id=table.definition.schema.schema_id,
            rows=bytes(encode_ipc(rows)), producer_id=5, producer_epoch=0, base_sequence=0, sequence_count=1,
        )  # fmt: skip
        prepared = await table.broker.send(prepare)
        logged = await table.broker.send(m.LogRowsRequest(ticket=prepared.ticket))
        repeated = await table.broker.send(prepare)
        assert (repeated.last_offset, repeated.leader_epoch) == (logged.last_offset, prepared.leader_epoch)
        assert prepared.leader_epoch >= 0
        for end, epoch, code in [
            (logged.last_offset + 1, prepared.leader_epoch, ErrorCode.NONE),
            (logged.last_offset + 1, prepared.leader_epoch + 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (logged.last_offset + 2, prepared.leader_epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (logged.last_offset + 1, -1, ErrorCode.NONE),
        ]:
            request = m.AwaitRowsRequest(
                topic="default.t", bucket=0, end_offset=end, acks=-1, timeout_ms=60_000, leader_epoch=epoch
            )
            assert (await table.broker.send(request)).error_code == code


async def test_columns_that_one_broker_grants_and_takes_back_are_so_at_all_of_them(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2, extensions, config=SECURED) as cluster:
        cluster.brokers = {number: client(broker, "admin") for number, broker in cluster.brokers.items()}
        opened = await created(cluster, "id INT, v STRING")
        first, second = opened.values()
        (elsewhere, *_) = own_buckets(second.broker, "default.t")
        assert (
            await second.append([{"id": 1, "v": "secret"}], bucket=elsewhere)
        ).error_code == ErrorCode.NONE
        ann = client(second.broker, "ann")
        schema = second.definition.schema

        def granted(column: str) -> dict[str, Any]:
            return {"database": "default", "table": "t", "principal": "User:ann", "columns": [column]}

        async def is_answered_with(code: int, column: str = "id") -> None:
            request = m.LimitScanRequest(
                table_id=second.table_id, columns=[schema.column(column).id], limit=5, buckets=[elsewhere]
            )

            async def is_so() -> bool:
                return bool((await ann.send(request)).error_code == code)

            await until(is_so)

        await allow(first.broker, Operation.DESCRIBE, ResourceType.TOPIC, "default.t")
        await is_answered_with(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for column in ("id", "v"):
            answer = await first.broker.send(m.GrantColumnsRequest(**granted(column)))
            assert answer.error_code == ErrorCode.NONE
            await is_answered_with(ErrorCode.NONE, column)
        assert (await first.broker.send(m.RevokeColumnsRequest(**granted("v")))).columns == ["v"]
        await is_answered_with(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "v")
        await is_answered_with(ErrorCode.NONE)


class Spread:
    """A table on three brokers for staged rows, with the leader of each bucket."""

    def __init__(self, cluster: DirectCluster, opened: dict[int, Table]) -> None:
        self.opened = opened
        entry = opened[1].broker.context.metadata.entry("default.t")
        assert entry is not None
        self.leaders = [state.leader for state in entry.states()]
        self.deciding = opened[self.leaders[0]]

    async def stage(self, batch_id: int, attempt: str, chunks: Chunks) -> list[int]:
        answers = []
        for bucket, listed in chunks.items():
            table = self.opened[self.leaders[bucket]]
            answers.append((await stage(table, batch_id, attempt, {bucket: listed})).error_code)
        return answers

    async def rows(self) -> dict[int, list[Any]]:
        return {
            bucket: [row["n"] for _, row in await self.opened[leader].changelog(bucket=bucket)]
            for bucket, leader in enumerate(self.leaders)
        }


EACH: Chunks = {bucket: [[{"n": bucket}], [{"n": bucket + 10}]] for bucket in range(BUCKETS)}
ALL = {bucket: [bucket, bucket + 10] for bucket in range(BUCKETS)}
NOTHING: dict[int, list[int]] = {bucket: [] for bucket in range(BUCKETS)}


async def test_rows_that_several_brokers_have_staged_are_committed_once_and_as_a_whole(tmp_path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        spread = Spread(cluster, await created(cluster, "n BIGINT"))
        assert set(spread.leaders) == {1, 2, 3}
        assert await spread.stage(0, "a", EACH) == [0] * BUCKETS
        assert await spread.stage(0, "twin", EACH) == [0] * BUCKETS
        elsewhere = spread.opened[spread.leaders[0] % 3 + 1]
        assert (await commit(elsewhere, 0, {"a": EACH})).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        more = {**EACH, BUCKETS - 1: [*EACH[BUCKETS - 1], [{"n": 99}]]}
        missing = await commit(spread.deciding, 0, {"a": more})
        assert missing.error_code == TableErrorCode.STAGED_ROWS_MISSING
        fewer = {bucket: EACH[bucket] for bucket in range(BUCKETS - 1)}
        assert (
            await commit(spread.deciding, 0, {"a": fewer})
        ).error_code == TableErrorCode.STAGED_ROWS_MISSING
        assert await spread.rows() == NOTHING
        for _ in range(2):
            assert (await commit(spread.deciding, 0, {"a": EACH})).error_code == 0
            assert await spread.rows() == ALL
        for leader, table in spread.opened.items():
            again = await stage(table, 0, "late", {spread.leaders.index(leader): [[{"n": 5}]]})
            assert (again.error_code, again.decided) == (0, True), "for any deciding broker"
        assert await spread.stage(1, "b", EACH) == [0] * BUCKETS
        assert (await commit(spread.deciding, 1, {"b": EACH})).error_code == 0
        assert await spread.rows() == {bucket: 2 * values for bucket, values in ALL.items()}
        small = {0: [[{"n": 77}]]}
        assert await spread.stage(2, "c", small) == [0]
        assert (await commit(spread.deciding, 2, {"c": small})).error_code == 0
        assert (
            await stage(elsewhere, 2, "late", {spread.leaders.index(spread.leaders[0] % 3 + 1): [[]]})
        ).decided
        for number in cluster.brokers:
            left = sorted((tmp_path / str(number)).rglob("*.0")) + sorted(
                (tmp_path / str(number)).rglob("b.*")
            )
            assert not [path for path in left if "staged" in path.parts], "no broker keeps committed rows"


async def test_a_commit_that_was_broken_off_is_completed_with_the_same_rows(tmp_path, monkeypatch) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        spread = Spread(cluster, await created(cluster, "n BIGINT"))
        assert await spread.stage(0, "a", EACH) == [0] * BUCKETS
        apply, calls = OtherBrokers.apply, []

        async def broken(self, leader, *arguments):
            calls.append(leader)
            if len(calls) == 2:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "cut off")
            await apply(self, leader, *arguments)

        monkeypatch.setattr(OtherBrokers, "apply", broken)
        broken_off = await commit(spread.deciding, 0, {"a": EACH})
        assert broken_off.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        monkeypatch.undo()
        assert sorted(len(values) for values in (await spread.rows()).values())[0] == 0
        assert await spread.stage(0, "other", EACH) == [0] * BUCKETS
        assert (await commit(spread.deciding, 0, {"other": EACH})).error_code == 0, "the first one counts"
        assert await spread.rows() == ALL


async def test_a_returning_broker_completes_its_decided_commit(tmp_path, monkeypatch) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        spread = Spread(cluster, await created(cluster, "n BIGINT"))
        assert await spread.stage(0, "a", EACH) == [0] * BUCKETS

        async def gone(self, *_):
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "cut off")

        monkeypatch.setattr(OtherBrokers, "apply", gone)
        assert (await commit(spread.deciding, 0, {"a": EACH})).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        monkeypatch.undo()
        decided_by = spread.leaders[0]
        await cluster.stop(decided_by)
        await cluster.start(decided_by)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        spread.opened[decided_by] = await tables_at(cluster, decided_by).open()

        async def are_written() -> bool:  # by a task of the broker
            return await spread.rows() == ALL

        await until(are_written)


async def test_nothing_is_decided_while_a_leader_is_away(tmp_path) -> None:
    async with direct_cluster(tmp_path, 3, extensions) as cluster:
        spread = Spread(cluster, await created(cluster, "n BIGINT"))
        assert await spread.stage(0, "a", EACH) == [0] * BUCKETS
        away = next(leader for leader in spread.leaders if leader != spread.leaders[0])
        await cluster.stop(away)
        refused = await commit(spread.deciding, 0, {"a": EACH})
        assert refused.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        node = await spread.deciding.broker.context.store.children(f"/staged/{spread.deciding.table_id}")
        assert node == []


async def test_a_table_of_several_brokers_is_tiered_by_rounds_of_the_controller(tmp_path) -> None:
    tiered = {"datalake_enabled": "true", "datalake_format": "iceberg"}
    async with direct_cluster(tmp_path, 3, extensions, config=LAKES) as cluster:
        opened = await created(cluster, "a INT", **tiered)
        for table in opened.values():
            for bucket in own_buckets(table.broker, "default.t"):
                assert (await table.append([{"a": bucket}] * (bucket + 1), bucket=bucket)).error_code == 0
        one, two, three = (table.broker for table in opened.values())
        assert one.context.metadata.is_controller
        begin = m.LakeBeginRequest(worker="w")
        assert (await two.send(begin)).error_code == ErrorCode.NOT_CONTROLLER
        async with AsyncConnection(f"127.0.0.1:{three.broker.port}") as connection:
            granted = await connection.cluster.call(
                begin, m.LakeBeginResponse, doing="begin", to_controller=True
            )
        assert (granted.granted, granted.epoch) == (True, 1)
        table_id = opened[1].table_id
        described = await one.send(m.DescribeLakeRequest(table_id=table_id))
        assert {each.bucket: each.offset for each in described.ends} == {0: 1, 1: 2, 2: 3, 3: 4}
        assert described.behind_ms >= 0
        (listed,) = (await one.send(m.ListLakeRequest())).entries
        assert (listed.behind, listed.worker) == (10, "w")
        commit = m.LakeCommitRequest(
            table_id=table_id,
            epoch=1,
            snapshot_id=7,
            offsets=[m.LakeOffset(bucket=bucket, offset=bucket + 1) for bucket in range(BUCKETS)],
        )
        assert (await one.send(commit)).error_code == 0
        assert (await one.send(m.LakeEndRequest(table_id=table_id, epoch=1))).error_code == 0
        subjects = tables_at(cluster, 1).extension.lake_subjects
        subject = subjects.by_id(table_id)
        assert not subjects.has_more(subject, await subjects.ends([subject])), "the lake has all of it"

        def floors(broker: DirectBroker) -> dict[int, int | None]:
            partitions = broker.context.replicas.partitions("default.t")
            return {each.index: each.hooks.retention_floor() for each in partitions if each.hooks is not None}

        await cluster.agreed(
            lambda broker: floors(broker) == {bucket: bucket + 1 for bucket in floors(broker)}
        )
        (mine, *_) = own_buckets(three, "default.t")
        assert (await opened[3].append([{"a": 9}], bucket=mine)).error_code == 0
        (away, *_) = own_buckets(two, "default.t")
        assert subjects.has_more(subject, await subjects.ends([subject]))
        await cluster.stop(2)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        assert not subjects.has_more(subject, await subjects.ends([subject])), (
            f"nobody can read bucket {away}"
        )
        await cluster.start(2)
        await cluster.stop(1)
        await cluster.agreed(lambda broker: broker.context.metadata.image.controller_id in (2, 3))
        controller = cluster.brokers[cluster.brokers[3].context.metadata.image.controller_id]
        await cluster.start(1)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        forced = m.LakeBeginRequest(worker="w", database="default", table="t", force=True)

        async def is_granted() -> bool:
            """Return whether the round is given out, once the broker knows the end offsets of the buckets' leaders."""
            again = await controller.send(forced)
            return bool(again.granted and again.epoch == 2)

        await until(is_granted)
        assert (await cluster.brokers[1].send(commit)).error_code == ErrorCode.NOT_CONTROLLER
        fenced = await controller.send(commit)
        assert fenced.error_code == TableErrorCode.FENCED_TIERING_EPOCH


@pytest.mark.parametrize("made", ["a partition", "a dead-letter topic"])
async def test_a_write_creates_its_partition_or_topic_when_brokers_return(tmp_path, made: str) -> None:
    """Meanwhile the writer gets a retriable error: another code would make a Kafka client drop the rows."""
    is_partition = made == "a partition"
    given = {"table.replication.factor": "2", "table.kafka.dead-letter-topic": "letters"}
    definition = TableDefinition(
        TablePath("default", "t"), parse_columns("p STRING, k INT"), bucket_count=2,
        partition_keys=("p",) if is_partition else (), options=given,
    )  # fmt: skip
    config = {"default.replication.factor": "2"}
    async with direct_cluster(tmp_path, 0, extensions) as cluster, asyncio.timeout(DEADLINE_SECONDS):
        for node_id in (1, 2):
            await cluster.start(node_id, config)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        await tables_at(cluster, 1).create_as(definition)
        await cluster.stop(2)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 1)
        broker = cluster.brokers[1]
        await broker.context.brokers.forget_broker(2)  # one that is registered would be a replica at once
        await cluster.agreed(lambda broker: len(own_buckets(broker, "default.t")) == 2)
        batch = identified([{"p": "x", "k": 1} if is_partition else {"p": "x", "k": "no number"}], 0)
        refused = await broker.produce("default.t", batch)
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, refused.error_message
        if is_partition:
            table = await tables_at(cluster, 1).open()
            with pytest.raises(KafkaError, match=r"default\.t\.y cannot be created now.* only 1 broker"):
                await tables_at(cluster, 1).extension.catalog.create_partition(
                    table.definition, "y", ignore_if_exists=True
                )
        await cluster.start(2, config)
        while (answer := await broker.produce("default.t", batch)).error_code:
            assert ErrorCode(answer.error_code).retriable, answer.error_message
            await asyncio.sleep(0.01)
        assert broker.context.metadata.topic("default.t.x" if is_partition else "letters") is not None


async def test_dead_letters_reach_their_topic_on_any_leader(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2, extensions) as cluster:
        opened = await created(cluster, "k INT", given={"table.kafka.dead-letter-topic": "letters"})
        for number, table in opened.items():
            (mine, *_) = own_buckets(table.broker, "default.t")
            answer = await table.broker.produce(
                "default.t", identified([{"k": "bad"}, {"k": number}], 0, number), partition=mine
            )
            assert answer.error_code == ErrorCode.NONE, answer.error_message
        (leader,) = [table.broker for table in opened.values() if own_buckets(table.broker, "letters")]
        fetched = await leader.fetch("letters", 0)
        assert values_of(fetched.records) == [(at, b'{"k": "bad"}') for at in (0, 1)]
        assert sorted(row["k"] for row in await all_rows(opened)) == [1, 2]


def may(broker: DirectBroker, name: str) -> bool:
    """Return whether the broker knows that the user may write to the table."""
    session = client(broker, name).peer.session
    return broker.context.authorizer.may(session, HOST, Operation.WRITE, ResourceType.TOPIC, "default.t")


async def test_dead_letters_use_the_right_of_the_user_who_named_the_topic(tmp_path) -> None:
    """Brokers have CLUSTER_ACTION, and no right to users' topics."""
    async with direct_cluster(tmp_path, 2, extensions, config=SECURED) as cluster:
        cluster.brokers = {number: client(broker, "admin") for number, broker in cluster.brokers.items()}
        cluster_action = creation(
            Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME, who="User:ANONYMOUS"
        )
        await grant(cluster.brokers[1], cluster_action)
        await allow(cluster.brokers[1], Operation.WRITE, ResourceType.TOPIC, "default.t")
        await until(lambda: all(may(broker, "ann") for broker in cluster.brokers.values()))
        opened = await created(cluster, "k INT", given={"table.kafka.dead-letter-topic": "letters"})
        for number, table in opened.items():
            (mine, *_) = own_buckets(table.broker, "default.t")
            batch = identified([{"k": "bad"}, {"k": number}], 0, number)
            answer = await client(table.broker, "ann").produce("default.t", batch, partition=mine)
            assert answer.error_code == ErrorCode.NONE, answer.error_message
        (leader,) = [table.broker for table in opened.values() if own_buckets(table.broker, "letters")]
        fetched = await leader.fetch("letters", 0)
        assert values_of(fetched.records) == [(at, b'{"k": "bad"}') for at in (0, 1)]
        assert sorted(row["k"] for row in await all_rows(opened)) == [1, 2]


async def test_dead_letters_of_another_broker_go_to_plain_topics_alone(tmp_path) -> None:
    async with direct_cluster(tmp_path, 1, extensions) as cluster:
        broker = cluster.brokers[1]
        await created(cluster, "k INT")
        batch = identified([{"k": 1}], 0)
        for topic, code in (
            ("default.t", ErrorCode.INVALID_CONFIG),
            ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            request = m.KeepDeadLettersRequest(topic=topic, partition=0, batch=batch, timeout_ms=1000)
            assert (await broker.send(request)).error_code == code


async def test_dead_letters_wait_for_replicas_enough_without_being_written_again_and_again(tmp_path) -> None:
    async with direct_cluster(tmp_path, 1, extensions) as cluster:
        broker = cluster.brokers[1]
        await broker.create_topic("letters", 1)
        partition = broker.context.replicas.partition("letters", 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(partition), "needed_in_sync", property(lambda _: 2))
            request = m.KeepDeadLettersRequest(
                topic="letters", partition=0, batch=identified([{"k": 1}], 0), timeout_ms=1000
            )
            assert (await broker.send(request)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log.log_end_offset == 0
