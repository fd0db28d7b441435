"""Partitions on the server: their topics, the Kafka view of the whole table, the calendar, restarts, limits."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.broker.runtime.ports import SetNode
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.ddl import AlterTable, CreateTable, parse
from headrace.tablelayer.model.errors import RowError, TableErrorCode
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import changes_to_json
from headrace.tablelayer.model.table.partitions import PartitionPlan, check_rows_of_partition, plan_partitions
from headrace.tablelayer.server.api import catalog as catalog_api
from headrace.tablelayer.server.lake.subjects import LakeSubjects
from headrace.tablelayer.server.partitions import automatic as auto_partitions
from headrace.tablelayer.tests.server.tables import MovableClock, Table, Tables, run, tables, until

PK = "CREATE TABLE t (dt STRING, id INT, v INT, PRIMARY KEY (id, dt) NOT ENFORCED) PARTITIONED BY (dt)"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server run its periodic work on tables often."""
    monkeypatch.setattr("headrace.tablelayer.server.extension._CHECK_SECONDS", 0.02)


async def create(all_tables: Tables, sql: str) -> Table:
    (statement,) = parse(sql)
    assert isinstance(statement, CreateTable)
    return await all_tables.create_as(statement.definition)


async def add(table: Table, name: str) -> m.CreatePartitionResponse:
    answer: m.CreatePartitionResponse = await table.broker.send(
        m.CreatePartitionRequest(table_id=table.table_id, name=name)
    )
    return answer


async def names(table: Table) -> list[str]:
    answer = await table.broker.send(m.ListPartitionsRequest(table_id=table.table_id))
    assert answer.error_code == 0, answer.error_message
    return [each.name for each in answer.partitions]


async def produce(
    table: Table, *rows: dict[str, Any] | None, key: Any = None, partition: int = 0, **options: Any
) -> Any:
    """Produce to the whole table; `None` deletes by `key`."""
    records = [
        Record(
            None if row is not None else json.dumps(key).encode(),
            None if row is None else json.dumps(row).encode(),
            (),
            1000,
        )
        for row in rows
    ]
    batch = build_batch(records, **options)
    return await table.broker.produce(str(table.definition.path), batch, partition=partition)


async def consume(table: Table, topic: str, partition: int = 0) -> list[Any]:
    found: list[Any] = []
    offset = 0
    while True:
        answer = await table.broker.fetch(topic, offset, partition=partition)
        assert answer.error_code == 0
        if not answer.records:
            return found
        for position, header in iter_headers(answer.records):
            part = memoryview(answer.records)[position : position + header.size]
            found += [None if value is None else json.loads(value) for value in decode_records(part).values()]
            offset = header.next_offset


async def test_r17_2_rows_produced_to_the_whole_table_go_to_their_partitions(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await create(all_tables, PK + " WITH ('bucket.num' = '2')")
        rows = [{"dt": f"d{n % 2}", "id": n, "v": n} for n in range(6)]
        answer = await produce(table, *rows)
        assert answer.error_code == 0, answer.error_message
        assert await names(table) == ["d0", "d1"]
        for name in ("d0", "d1"):
            found = [r for b in (0, 1) for r in await consume(table, f"default.t.{name}", b)]
            assert sorted(found, key=lambda r: r["id"]) == [r for r in rows if r["dt"] == name]
        assert await consume(table, "default.t") == []
        answer = await produce(table, None, key={"id": 3, "dt": "d1"})
        assert answer.error_code == 0, answer.error_message
        one = await all_tables.open("t.d1")
        assert await one.count(0) + await one.count(1) == 2


async def test_r19_rows_of_partitions_expire_by_themselves(tmp_path: Path) -> None:
    config = {"table.kv.ttl.check.interval.ms": "20"}
    async with tables(tmp_path, config) as all_tables:
        table = await create(all_tables, PK + " WITH ('table.kv.ttl' = '1 ms')")
        assert (await produce(table, *({"dt": f"d{n}", "id": n, "v": n} for n in range(2)))).error_code == 0
        for topic in ("default.t.d0", "default.t.d1"):
            partition = table.broker.context.replicas.partition(topic, 0)
            assert await partition.wait_for_high_watermark(2, 20_000), "the row and its deletion"


@pytest.mark.parametrize("bucket_key", ["", "id"])
async def test_produced_rows_find_the_buckets_of_their_own_partition(tmp_path: Path, bucket_key: str) -> None:
    """A partition keeps its number of buckets when the table gets more."""
    async with tables(tmp_path) as all_tables:
        key = f", 'bucket.key' = '{bucket_key}'" if bucket_key else ""
        table = await create(
            all_tables,
            f"CREATE TABLE t (dt STRING, id INT) PARTITIONED BY (dt) WITH ('bucket.num' = '2'{key})",
        )
        assert (await produce(table, {"dt": "old", "id": 0})).error_code == 0
        table = await table.alter("SET ('bucket.num' = '5')")
        rows = [{"dt": dt, "id": n} for dt in ("old", "new") for n in range(20)]
        for bucket in range(5):
            answer = await produce(table, *rows, partition=bucket)
            assert answer.error_code == 0, answer.error_message
        answer = await table.broker.send(m.ListPartitionsRequest(table_id=table.table_id))
        counts = {each.name: each.bucket_count for each in answer.partitions}
        assert counts == {"old": 2, "new": 5}
        for name, count in counts.items():
            found = [len(await consume(table, f"default.t.{name}", bucket)) for bucket in range(count)]
            assert all(found), found
            assert sum(found) == 100 + (name == "old")


async def test_r3_1_a_repeated_batch_of_a_producer_is_written_once(tmp_path: Path) -> None:
    """Also across a restart, and beside the same producer's writes to a partition itself."""
    identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    rows = [{"dt": "a", "id": n} for n in range(5)]
    async with tables(tmp_path) as all_tables:
        table = await create(all_tables, "CREATE TABLE t (dt STRING, id INT) PARTITIONED BY (dt)")
        first = await produce(table, *rows, **identity)
        assert (await produce(table, *rows, **identity)).base_offset == first.base_offset
        one = await all_tables.open("t.a")
        assert await one.count() == 5
    async with tables(tmp_path) as all_tables:
        table, one = await all_tables.open("t"), await all_tables.open("t.a")
        assert (await produce(table, *rows, **identity)).base_offset == first.base_offset
        assert await one.count() == 5
        direct = await produce(one, *rows, **identity)
        assert direct.error_code == 0, direct.error_message
        assert await one.count() == 10


@pytest.mark.parametrize("bad", [{"id": 1}, {"dt": "a.b", "id": 1}, {"dt": "", "id": 1}])
async def test_r17_3_a_record_without_a_partition_refuses_its_batch(tmp_path: Path, bad: Any) -> None:
    async with tables(tmp_path) as all_tables:
        table = await create(all_tables, "CREATE TABLE t (dt STRING, id INT) PARTITIONED BY (dt)")
        answer = await produce(table, {"dt": "x", "id": 0}, bad)
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in answer.record_errors] == [1]
        assert "dt" in answer.error_message
        assert await names(table) == []


async def test_records_make_no_partitions_where_the_table_says_so(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await create(
            all_tables, PK + " WITH ('table.kafka.dynamic-create-partition.enabled' = 'false')"
        )
        assert (await produce(table, {"dt": "a", "id": 0})).error_code == ErrorCode.INVALID_RECORD
        assert (await add(table, "a")).error_code == 0
        assert (await produce(table, {"dt": "a", "id": 0})).error_code == 0
        one = await all_tables.open("t.a")
        answer = await produce(one, {"dt": "b", "id": 0})
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert "does not belong to partition a" in answer.error_message


async def test_r18_5_partitions_and_their_rows_survive_a_restart_and_follow_an_alter(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await create(all_tables, PK)
        await produce(table, {"dt": "a", "id": 1, "v": 5})
        await table.alter("ADD w INT DEFAULT 3, SET ('table.log.ttl' = '2 d')")
    async with tables(tmp_path) as all_tables:
        one = await all_tables.open("t.a")
        assert await one.state() == [{"dt": "a", "id": 1, "v": 5, "w": 3}]
        image = one.broker.context.metadata.topic("default.t.a")
        assert image is not None
        assert image.config["retention.ms"] == str(2 * 86_400_000)
        assert one.partition.log.config.retention_ms == 2 * 86_400_000


@pytest.mark.parametrize("sql", [PK, "CREATE TABLE t (dt STRING, id INT, v INT) PARTITIONED BY (dt)"])
async def test_r18_2_a_partition_goes_with_its_rows_and_its_log_and_its_name_is_another_one_later(
    tmp_path: Path, sql: str
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await create(all_tables, sql)
        await produce(table, {"dt": "a", "id": 1, "v": 5}, {"dt": "b", "id": 1, "v": 6})
        old = await all_tables.open("t.a")
        assert (await produce(old, {"dt": "a", "id": 2, "v": 7})).error_code == 0
        dropped = await table.broker.send(m.DropPartitionRequest(table_id=table.table_id, name="a"))
        assert dropped.error_code == 0, dropped.error_message
        assert await names(table) == ["b"]
        assert table.broker.context.metadata.topic("default.t.a") is None
        refused = await old.put(("+", {"dt": "a", "id": 3})) if sql is PK else await old.append([])
        assert refused.error_code == TableErrorCode.TABLE_NOT_FOUND
        assert (await add(table, "a")).error_code == 0
        new = await all_tables.open("t.a")
        assert new.table_id != old.table_id
        assert await new.changelog() == []
        refused = await old.put(("+", {"dt": "a", "id": 3})) if sql is PK else await old.append([])
        assert refused.error_code == TableErrorCode.TABLE_NOT_FOUND
        assert (await produce(table, {"dt": "a", "id": 4, "v": 8})).error_code == 0
    async with tables(tmp_path) as all_tables:
        new = await all_tables.open("t.a")
        assert new.table_id != old.table_id
        assert [row for _, row in await new.changelog()] == [{"dt": "a", "id": 4, "v": 8}]
        kept = await all_tables.open("t.b")
        assert [row for _, row in await kept.changelog()] == [{"dt": "b", "id": 1, "v": 6}]
        await until(lambda: not list(tmp_path.rglob(f"*{old.table_id}*")))


async def test_r18_5_an_alter_holds_for_all_partitions_at_once(tmp_path: Path) -> None:
    """The change covers existing partitions and later ones.

    An ALTER that one partition could not follow changes none.
    """
    async with tables(tmp_path) as all_tables:
        old = await create(all_tables, PK)
        await produce(old, *({"dt": name, "id": 1, "v": 1} for name in "abc"))
        table = await old.alter("ADD w INT DEFAULT 3, RENAME v TO value, DROP IF EXISTS x")
        for name in "abc":
            one = await all_tables.open(f"t.{name}")
            assert one.definition.schema == table.definition.schema
            assert await one.state() == [{"dt": name, "id": 1, "value": 1, "w": 3}]
        assert (await produce(table, {"dt": "d", "id": 1, "value": 2, "w": 4})).error_code == 0
        assert (await all_tables.open("t.d")).definition.schema == table.definition.schema
        (change,) = parse("ALTER TABLE t ADD y INT, DROP dt")
        assert isinstance(change, AlterTable)
        answer = await table.alter_answer(changes_to_json(change.changes))
        assert answer.error_code == TableErrorCode.INVALID_TABLE
        for name in "abcd":
            one = await all_tables.open(f"t.{name}")
            assert one.definition.schema == table.definition.schema


async def test_a_table_dropped_through_kafka_takes_its_partitions_along(tmp_path: Path, often: None) -> None:
    async with tables(tmp_path) as all_tables:
        table = await create(all_tables, PK)
        await produce(table, {"dt": "a", "id": 1, "v": 5})
        one = await all_tables.open("t.a")
        folder = tmp_path / "extensions" / "tables" / str(one.table_id)
        assert folder.exists()
        await table.broker.context.topics.delete_topic("default.t")
        answer = await one.append([{"dt": "a", "id": 2}])
        assert answer.error_code == TableErrorCode.TABLE_NOT_FOUND
    async with tables(tmp_path) as all_tables:  # not deleted yet: the server stopped first
        again = await create(all_tables, PK)
        await until(lambda: again.broker.context.metadata.topic("default.t.a") is None)
        assert await names(again) == []
        await until(lambda: not folder.exists())


async def test_plain_topics_and_others_partitions_do_not_stand_where_a_partition_would(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await create(all_tables, PK)
        await table.broker.create_topic("default.u.a")
        with pytest.raises(KafkaError, match="ADD PARTITION"):
            await table.broker.create_topic("default.t.a")
        with pytest.raises(KafkaError, match="has the id"):
            await table.broker.create_topic("default.t.a", **{"table.partition-of": "x"})
        for name in ("a.b", "__a", "", "a/b"):
            assert (await add(table, name)).error_code != 0
        assert (await add(table, "a")).error_code == 0
        assert (await add(table, "a")).error_code == TableErrorCode.PARTITION_EXISTS
        with pytest.raises(KafkaError, match="its rows are placed"):
            await table.broker.context.topics.create_partitions("default.t.a", 2)
        answer = await table.put(("+", {"dt": "a", "id": 1}))
        assert answer.error_code == TableErrorCode.PARTITION_NEEDED


async def test_the_number_of_partitions_is_bounded(tmp_path: Path) -> None:
    async with tables(tmp_path, {"max.partition.num": "2"}) as all_tables:
        table = await create(all_tables, PK)
        for name in "ab":
            assert (await add(table, name)).error_code == 0
        answer = await add(table, "c")
        assert answer.error_code == TableErrorCode.TOO_MANY_PARTITIONS
        assert "max.partition.num" in answer.error_message
        assert (await produce(table, {"dt": "c", "id": 1})).error_code != 0
        assert (await produce(table, {"dt": "b", "id": 1})).error_code == 0


async def test_an_auto_increment_column_counts_over_all_partitions(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        sql = "CREATE TABLE t (p INT, k INT, n INT, PRIMARY KEY (p, k) NOT ENFORCED) PARTITIONED BY (p)"
        table = await create(all_tables, sql + " WITH ('auto-increment.fields' = 'n')")
        await produce(table, *({"p": n % 3, "k": n} for n in range(12)))
        found = [row["n"] for p in range(3) for row in await (await all_tables.open(f"t.{p}")).state()]
        assert len(set(found)) == 12


async def test_r18_random_lives_against_a_dict(tmp_path: Path) -> None:
    """Rows produced to the whole table, deletes, partitions added and dropped, restarts: the table equals a dict."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    model: dict[str, dict[int, dict[str, Any]]] = {}
    sql = PK + " WITH ('bucket.num' = '2')"
    for life in range(4):
        async with tables(tmp_path) as all_tables:
            table = await all_tables.open() if life else await create(all_tables, sql)
            for _ in range(10):
                kind, name = rng.random(), f"p{rng.randrange(4)}"
                if kind < 0.7:
                    records = []
                    for _ in range(rng.randrange(1, 12)):
                        into, key = f"p{rng.randrange(4)}", rng.randrange(8)
                        row = {"dt": into, "id": key, "v": rng.randrange(100)}
                        gone = rng.random() < 0.25
                        records.append(
                            Record(
                                json.dumps({"id": key, "dt": into}).encode(),
                                None if gone else json.dumps(row).encode(),
                                (),
                                1000,
                            )
                        )
                        rows = model.setdefault(into, {})
                        if gone:
                            rows.pop(key, None)
                        else:
                            rows[key] = row
                    answer = await table.broker.produce("default.t", build_batch(records))
                    assert answer.error_code == 0, answer.error_message
                elif kind < 0.85:
                    answer = await table.broker.send(
                        m.DropPartitionRequest(table_id=table.table_id, name=name)
                    )
                    expected = 0 if name in model else TableErrorCode.PARTITION_NOT_FOUND
                    assert answer.error_code == expected
                    model.pop(name, None)
                else:
                    assert ((await add(table, name)).error_code == 0) == (name not in model)
                    model.setdefault(name, {})
                assert await names(table) == sorted(model)
                for each, rows in model.items():
                    one = await all_tables.open(f"t.{each}")
                    state = [row for bucket in (0, 1) for row in await one.state(bucket)]
                    assert {row["id"]: row for row in state} == rows
                    assert len(state) == len(rows) == await one.count(0) + await one.count(1)


async def has(table: Table, expected: list[str]) -> None:
    """Wait until the table has these partitions."""

    async def are_there() -> bool:
        return await names(table) == expected

    await until(are_there)


async def test_r18_4_automatic_partitions_come_and_go_with_the_clock(tmp_path: Path, often: None) -> None:
    clock = MovableClock()
    config = {"auto-partition.check.interval.ms": "200"}
    async with tables(tmp_path, config, clock=clock) as all_tables:
        clock.ahead_ms = 1_700_000_000_000 - clock.time_ms()  # 2023-11-14
        table = await create(
            all_tables,
            PK + " WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.num-retention' = '1',"
            " 'table.auto-partition.time-zone' = 'UTC')",
        )
        await has(table, ["20231114", "20231115"])
        assert (await add(table, "other")).error_code == 0
        await produce(table, {"dt": "20231114", "id": 1})
        clock.ahead_ms += 86_400_000
        await has(table, ["20231114", "20231115", "20231116", "other"])
        clock.ahead_ms += 86_400_000
        await has(table, ["20231115", "20231116", "20231117", "other"])
        assert (await produce(table, {"dt": "20231115", "id": 1})).error_code == 0


async def test_an_old_partition_goes_when_the_lake_has_it(tmp_path: Path, often: None) -> None:
    clock = MovableClock()
    config = {
        "auto-partition.check.interval.ms": "60000",
        "datalake.iceberg.warehouse": str(tmp_path / "lake"),
    }
    async with tables(tmp_path, config, clock=clock) as all_tables:
        clock.ahead_ms = 1_700_000_000_000 - clock.time_ms()  # 2023-11-14
        table = await create(
            all_tables,
            PK + " WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.num-retention' = '1',"
            " 'table.auto-partition.num-precreate' = '1', 'table.auto-partition.time-zone' = 'UTC',"
            " 'table.datalake.enabled' = 'true')",
        )
        await has(table, ["20231114"])
        for name in ("20200101", "20200102"):

            async def is_written(name: str = name) -> bool:
                """A new definition is looked after at once, so that a partition may go before it has a row."""
                return (await produce(table, {"dt": name, "id": 1})).error_code == 0

            await until(is_written)
        empty = await add(table, "20200103")
        assert empty.error_code == 0
        clock.waited_seconds += 61
        await has(table, ["20200101", "20200102", "20231114"])  # in which there was nothing went
        granted = await table.broker.send(m.LakeBeginRequest(worker="w"))
        listed = (await table.broker.send(m.ListPartitionsRequest(table_id=table.table_id))).partitions
        ids = {each.name: each.partition_id for each in listed}
        offset = m.LakeOffset(bucket=0, offset=1, partition="20200101", partition_id=ids["20200101"])
        commit = m.LakeCommitRequest(
            table_id=table.table_id, epoch=granted.epoch, snapshot_id=1, offsets=[offset]
        )
        answer = await table.broker.send(commit)
        assert answer.error_code == 0, answer.error_message
        clock.waited_seconds += 61
        await has(table, ["20200102", "20231114"])


async def test_a_table_whose_partitions_expire_in_the_lake_has_rounds_without_new_rows(
    tmp_path: Path,
) -> None:
    clock = MovableClock()
    async with tables(
        tmp_path, {"datalake.paimon.warehouse": str(tmp_path / "lake")}, clock=clock
    ) as all_tables:
        table = await create(
            all_tables,
            PK + " WITH ('table.datalake.enabled' = 'true', 'paimon.partition.expiration-time' = '7 d',"
            " 'paimon.partition.expiration-check-interval' = '10 min')",
        )
        send, asked = table.broker.send, m.LakeBeginRequest(worker="w")

        async def committed(offset: int, *cleared: m.DroppedPartition) -> None:
            begun = await send(asked)
            assert begun.granted
            place = m.LakeOffset(bucket=0, offset=offset, partition="20200101", partition_id=ids["20200101"])
            commit = m.LakeCommitRequest(
                table_id=table.table_id, epoch=begun.epoch, snapshot_id=1, offsets=[place], cleared=[*cleared]
            )
            assert (await send(commit)).error_code == 0
            late = await send(
                m.LakeCommitRequest(table_id=table.table_id, epoch=begun.epoch - 1, cleared=[*cleared])
            )
            assert late.error_code == TableErrorCode.FENCED_TIERING_EPOCH
            await send(m.LakeEndRequest(table_id=table.table_id, epoch=begun.epoch))

        async def dropped() -> dict[str, UUID]:
            lake = await send(m.DescribeLakeRequest(table_id=table.table_id))
            assert not lake.expired
            return {each.name: each.partition_id for each in lake.dropped}

        assert not (await send(asked)).granted, "the lake has nothing that could expire"
        assert (await produce(table, {"dt": "20200101", "id": 1})).error_code == 0
        listed = (await send(m.ListPartitionsRequest(table_id=table.table_id))).partitions
        ids = {each.name: each.partition_id for each in listed}
        await committed(1)
        for _ in range(2):
            clock.waited_seconds += 590
            clock.ahead_ms += 590_000
            assert not (await send(asked)).granted
            clock.waited_seconds += 11
            clock.ahead_ms += 11_000
            await committed(1)
        await send(m.DropPartitionRequest(table_id=table.table_id, name="20200101"))
        assert await dropped() == ids
        clock.waited_seconds += 601
        clock.ahead_ms += 601_000
        await committed(1, m.DroppedPartition(name="20200101", partition_id=table.table_id))
        assert await dropped() == ids, "this was another partition of the name"
        clock.waited_seconds += 601
        clock.ahead_ms += 601_000
        await committed(1, m.DroppedPartition(name="20200101", partition_id=ids["20200101"]))
        assert await dropped() == {}


async def test_a_row_that_comes_after_the_look_whether_the_lake_has_all_keeps_its_partition(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovableClock()
    caplog.set_level("INFO", logger="headrace.tables")
    config = {
        "auto-partition.check.interval.ms": "60000",
        "datalake.iceberg.warehouse": str(tmp_path / "lake"),
    }
    async with tables(tmp_path, config, clock=clock) as all_tables:
        clock.ahead_ms = 1_700_000_000_000 - clock.time_ms()  # 2023-11-14
        table = await create(
            all_tables,
            PK + " WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.num-retention' = '1',"
            " 'table.auto-partition.num-precreate' = '1', 'table.auto-partition.time-zone' = 'UTC',"
            " 'table.datalake.enabled' = 'true')",
        )
        await has(table, ["20231114"])
        assert (await add(table, "20200101")).error_code == 0
        plain, answers = LakeSubjects.is_all_tiered, list[bool]()

        async def look(subjects: LakeSubjects, definition: TableDefinition, name: str) -> bool:
            answers.append(await plain(subjects, definition, name))
            if answers == [True]:
                assert (await produce(table, {"dt": name, "id": 1})).error_code == 0
            return answers[-1]

        monkeypatch.setattr(LakeSubjects, "is_all_tiered", look)
        clock.waited_seconds += 61
        said = "partition 20200101 of table default.t"
        await until(lambda: said in caplog.text.replace(f"made {said}", ""))
        assert f"{said} is too old, but the lake does not have all of it" in caplog.text
        await has(table, ["20200101", "20231114"])
        (partition,) = all_tables.broker.context.replicas.partitions("default.t.20200101")
        assert partition.high_watermark == 1


def test_r18_1_a_partition_takes_its_own_rows_alone() -> None:
    (statement,) = parse("CREATE TABLE t (dt STRING, id INT) PARTITIONED BY (dt)")
    assert isinstance(statement, CreateTable)
    partition = statement.definition.with_id(UUID(int=1)).of_partition("a", UUID(int=2), 1)
    for values, bad in ((["a", "a"], None), ([], None), (["a", "b"], 1), (["a", None, "b"], 1), ([None], 0)):
        rows = pa.RecordBatch.from_pylist(
            [{"dt": each, "id": 1} for each in values], partition.schema.arrow()
        )
        if bad is None:
            check_rows_of_partition(partition, rows)
            continue
        with pytest.raises(RowError, match=r"does not belong to partition a of default\.t") as caught:
            check_rows_of_partition(partition, rows)
        assert (caught.value.index, caught.value.column) == (bad, "dt")


@pytest.mark.parametrize(
    ("unit", "create_names", "oldest"),
    [
        ("HOUR", ("2024123123", "2025010100"), "2024123122"),
        ("DAY", ("20241231", "20250101"), "20241230"),
        ("MONTH", ("202412", "202501"), "202411"),
        ("QUARTER", ("20244", "20251"), "20243"),
        ("YEAR", ("2024", "2025"), "2023"),
    ],
)
def test_r18_4_the_calendar_of_each_unit(unit: str, create_names: tuple[str, ...], oldest: str) -> None:
    (statement,) = parse(
        f"{PK} WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.time-unit' = '{unit}', "
        "'table.auto-partition.num-retention' = '1', 'table.auto-partition.time-zone' = 'Europe/Berlin')"
    )
    assert isinstance(statement, CreateTable)
    now_ms = int(datetime(2024, 12, 31, 22, 30, tzinfo=UTC).timestamp() * 1000)  # 23:30 in Berlin
    older = str(int(oldest) - 1)
    plan = plan_partitions(statement.definition, ["x", oldest, older, "0", create_names[1]], now_ms, 1000)
    assert plan.create == create_names[:1]
    assert plan.drop == (older,)


@pytest.mark.parametrize(
    ("now", "create", "drop", "kept"),
    [
        # Berlin's clock goes from 01:59 to 03:00, and in autumn from 02:59 to 02:00.
        (datetime(2026, 3, 29, 0, 30, tzinfo=UTC), ("2026032901", "2026032903"), "2026032822", "2026032823"),
        (datetime(2026, 3, 29, 1, 30, tzinfo=UTC), ("2026032903", "2026032904"), "2026032823", "2026032900"),
        (datetime(2026, 10, 25, 0, 30, tzinfo=UTC), ("2026102502",), "2026102423", "2026102500"),
        (datetime(2026, 10, 25, 1, 30, tzinfo=UTC), ("2026102502", "2026102503"), "2026102500", "2026102501"),
    ],
)
def test_r18_4_hours_are_counted_as_they_pass(
    now: datetime, create: tuple[str, ...], drop: str, kept: str
) -> None:
    (statement,) = parse(
        f"{PK} WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.time-unit' = 'HOUR', "
        "'table.auto-partition.num-retention' = '2', 'table.auto-partition.time-zone' = 'Europe/Berlin')"
    )
    assert isinstance(statement, CreateTable)
    plan = plan_partitions(statement.definition, [drop, kept], int(now.timestamp() * 1000), 1000)
    assert (plan.create, plan.drop) == (create, (drop,))


def test_a_date_column_and_several_columns_in_the_calendar() -> None:
    (statement,) = parse(
        "CREATE TABLE t (region STRING, d DATE) PARTITIONED BY (region, d) WITH ('table.auto-partition.enabled' = "
        "'true', 'table.auto-partition.key' = 'd', 'table.auto-partition.num-precreate' = '0', "
        "'table.auto-partition.num-retention' = '1')"
    )
    assert isinstance(statement, CreateTable)
    now_ms = int(datetime(2024, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
    existing = ["eu.2024-02-28", "eu.2024-02-29", "us.2024-02-20", "us.2024-03-01"]
    plan = plan_partitions(statement.definition, existing, now_ms, 1000)
    assert (plan.create, plan.drop) == ((), ("eu.2024-02-28", "us.2024-02-20"))


@pytest.mark.parametrize("unit", ["HOUR", "DAY", "MONTH", "QUARTER", "YEAR"])
@pytest.mark.parametrize("count", [2_030, 9_000, 400_000, 999_999])
def test_the_calendar_has_an_end_on_both_sides(unit: str, count: int) -> None:
    """Nothing is older than the year 1, the names of years have four digits, and no more is planned than there may
    be.
    """
    (statement,) = parse(
        f"{PK} WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.time-unit' = '{unit}', "
        f"'table.auto-partition.num-retention' = '{count}', 'table.auto-partition.num-precreate' = '{count}')"
    )
    assert isinstance(statement, CreateTable)
    digits = {"HOUR": 10, "DAY": 8, "MONTH": 6, "QUARTER": 5, "YEAR": 4}[unit]
    existing = ["20241"[:digits].ljust(digits, "1"), "9999".ljust(digits, "1")]
    now_ms = int(datetime(2024, 12, 31, 12, tzinfo=UTC).timestamp() * 1000)
    plan = plan_partitions(statement.definition, existing, now_ms, 10_000)
    assert plan.drop == ()
    assert 7_900 < len(plan.create) <= 10_000 or count == 2_030
    assert {len(name) for name in plan.create} == {digits}
    assert list(plan.create) == sorted(plan.create)


async def test_no_more_partitions_ahead_than_a_table_may_have(tmp_path: Path) -> None:
    async with tables(tmp_path, {"max.partition.num": "20"}) as all_tables:
        options = (
            "WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.num-precreate' = '{}')"
        )
        (statement,) = parse(f"{PK} {options.format(999_999)}")
        assert isinstance(statement, CreateTable)
        request = m.CreateTableRequest(definition=statement.definition.to_json())
        answer = await all_tables.broker.send(request)
        assert answer.error_code == TableErrorCode.INVALID_TABLE
        assert "max.partition.num" in answer.error_message
        table = await create(all_tables, f"{PK} {options.format(20)}")
        (change,) = parse("ALTER TABLE t SET ('table.auto-partition.num-precreate' = '21')")
        assert isinstance(change, AlterTable)
        altered = await table.alter_answer(changes_to_json(change.changes))
        assert altered.error_code == TableErrorCode.INVALID_TABLE
        assert "'21'" in altered.error_message


def test_a_failing_table_is_reported_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, often: None
) -> None:
    def plan(definition: TableDefinition, *arguments: Any) -> PartitionPlan:
        if definition.path.table == "bad":
            raise ValueError("year -6974 is out of range")
        return plan_partitions(definition, *arguments)

    monkeypatch.setattr(auto_partitions, "plan_partitions", plan)
    # The request that creates a table leaves all partitions to the calendar.
    monkeypatch.setattr(catalog_api, "plan_partitions", lambda *_: PartitionPlan((), ()))

    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            auto = f"{PK} WITH ('table.auto-partition.enabled' = 'true')"
            bad = await create(all_tables, auto.replace("TABLE t ", "TABLE bad "))
            good = await create(all_tables, auto)

            background = all_tables.broker.context.background

            async def are_looked_after() -> bool:
                return background.failures > 0 and len(await names(good)) >= 2

            await until(are_looked_after)
            assert await names(bad) == []
            assert background.failures == 1

    run(work)
    assert "the partitions of table default.bad" in caplog.text


async def test_a_table_that_cannot_be_read_is_offline_and_the_server_starts(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        await all_tables.create("id INT", name="good")
        await all_tables.create("id INT", name="bad")
        store = all_tables.broker.context.store
        node = await store.get("/topics/default.bad")
        assert node is not None
        data = node.data.replace(b"INT", b"TIN")
        await store.transact([SetNode("/topics/default.bad", data, node.version)])
    async with tables(tmp_path) as all_tables:
        listed = await all_tables.broker.send(m.ListTablesRequest(database="default"))
        assert listed.tables == ["bad", "good"]
        assert (await (await all_tables.open("good")).append([{"id": 1}])).error_code == 0
        described = await all_tables.broker.send(m.DescribeTableRequest(database="default", table="bad"))
        assert described.error_code == TableErrorCode.INVALID_TABLE
        assert "table default.bad cannot be read" in described.error_message
        found = await all_tables.broker.context.metrics.gather()
        assert found["headrace_tables"] == {(): 1}
        dropped = await all_tables.broker.send(m.DropTableRequest(database="default", table="bad"))
        assert dropped.error_code == 0
