"""The subjects of tiering: partitioned tables and plain topics; and the reasons for which retention waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.tests.server.tables import LAKES, Tables, tables, until

SQL = (
    "CREATE TABLE parts (dt STRING, id INT) PARTITIONED BY (dt)"
    " WITH ('table.datalake.enabled' = 'true', 'table.datalake.freshness' = '1 h')"
)


async def send(all_tables: Tables, request: Any) -> Any:
    answer = await all_tables.broker.send(request)
    assert answer.error_code == 0, answer.error_message
    return answer


async def test_a_partitioned_table_is_tiered_as_one(tmp_path: Path) -> None:
    async with tables(tmp_path, LAKES) as all_tables:
        (statement,) = parse(SQL)
        assert isinstance(statement, CreateTable)
        table = await all_tables.create_as(statement.definition)
        subjects = all_tables.extension.lake_subjects
        ids = {}
        for name in ("a", "b"):
            answer = await send(all_tables, m.CreatePartitionRequest(table_id=table.table_id, name=name))
            ids[name] = answer.partition_id
        records = build_batch([Record(None, b'{"dt": "a", "id": 1}', (), 1000)] * 3)
        assert (await all_tables.broker.produce("default.parts.a", records)).error_code == 0
        await asyncio.sleep(0.002)  # the age of the records has whole milliseconds
        (listed,) = (await send(all_tables, m.ListLakeRequest())).entries
        assert (listed.name, listed.behind, listed.is_topic) == ("default.parts", 3, False)
        assert listed.behind_ms > 0
        assert not await subjects.is_all_tiered(table.definition, "a")
        granted = await send(all_tables, m.LakeBeginRequest(worker="w"))
        assert (granted.table, granted.table_id) == ("parts", table.table_id)
        offset = m.LakeOffset(bucket=0, offset=3, partition="a", partition_id=ids["a"])
        commit = m.LakeCommitRequest(
            table_id=table.table_id, epoch=granted.epoch, snapshot_id=7, offsets=[offset]
        )
        await send(all_tables, commit)
        floors = {
            name: all_tables.broker.context.replicas.partitions(f"default.parts.{name}")[
                0
            ].hooks.retention_floor()
            for name in ids
        }
        assert floors == {"a": 3, "b": 0}
        assert await subjects.is_all_tiered(table.definition, "a")
        (listed,) = (await send(all_tables, m.ListLakeRequest())).entries
        assert (listed.behind, listed.behind_ms, listed.commits) == (0, 0, 1)
        # A dropped partition is forgotten with the next commit, which may still name it.
        await send(all_tables, m.DropPartitionRequest(table_id=table.table_id, name="a"))
        await send(all_tables, commit)
        described = await send(all_tables, m.DescribeLakeRequest(table_id=table.table_id))
        assert [each.partition for each in described.ends] == ["b"]
        assert described.offsets == []


async def test_a_partition_that_is_held_to_be_dropped_takes_nothing_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, other = (
        build_batch([Record(None, b'{"dt": "%b", "id": 1}' % each, (), 1000)]) for each in (b"a", b"b")
    )
    async with tables(tmp_path, LAKES) as all_tables:
        (statement,) = parse(SQL)
        assert isinstance(statement, CreateTable)
        table = await all_tables.create_as(statement.definition)
        subjects, metadata = all_tables.extension.lake_subjects, all_tables.broker.context.metadata
        await send(all_tables, m.CreatePartitionRequest(table_id=table.table_id, name="a"))
        (partition,) = all_tables.broker.context.replicas.partitions("default.parts.a")
        with monkeypatch.context() as soon:
            soon.setattr("headrace.tablelayer.server.lake.subjects._HOLD_SECONDS", 0.05)
            assert await subjects.hold(table.definition, "a") is not None
        await until(lambda: partition._held is None)  # what would drop it may have gone
        assert (await all_tables.broker.produce("default.parts.a", row)).error_code == 0
        assert await subjects.hold(table.definition, "a") is None, "the lake does not have it"
        await send(all_tables, m.CreatePartitionRequest(table_id=table.table_id, name="b"))
        is_held = await subjects.hold(table.definition, "b")
        assert is_held is not None
        refused = await all_tables.broker.produce("default.parts.b", other)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert all_tables.broker.context.replicas.partitions("default.parts.b")[0].high_watermark == 0
        assert is_held()
        with pytest.raises(KafkaError, match="b is not deleted"):
            await all_tables.extension.catalog.drop_partition(
                table.definition, "b", ignore_if_not_exists=False, only_while=lambda: False
            )
        assert metadata.topic("default.parts.b") is not None
        await all_tables.extension.catalog.drop_partition(
            table.definition, "b", ignore_if_not_exists=False, only_while=is_held
        )
        assert metadata.topic("default.parts.b") is None
        assert not is_held()


async def test_a_tiered_topic_keeps_records_that_the_lake_lacks(tmp_path: Path) -> None:
    async with tables(tmp_path, LAKES) as all_tables:
        broker, extension = all_tables.broker, all_tables.extension
        topic = await broker.create_topic("clicks", **{"datalake.enabled": "true"})
        other = await broker.create_topic("other")
        (partition,) = broker.context.replicas.partitions("clicks")
        (untouched,) = broker.context.replicas.partitions("other")
        assert extension.retention_floor(untouched) is None
        assert extension.retention_floor(partition) == 0
        await broker.produce("clicks", build_batch([Record(None, b"x", (), 1000)] * 2))
        granted = await send(all_tables, m.LakeBeginRequest(worker="w"))
        assert (granted.topic, granted.table_id) == ("clicks", topic.topic_id)
        offsets = [m.LakeOffset(bucket=0, offset=2)]
        await send(
            all_tables,
            m.LakeCommitRequest(table_id=topic.topic_id, epoch=granted.epoch, snapshot_id=7, offsets=offsets),
        )
        assert extension.retention_floor(partition) == 2
        refused = await broker.send(m.LakeBeginRequest(worker="w", topic="other", force=True))
        assert "set its option 'datalake.enabled' to 'true'" in refused.error_message
        assert other.topic_id != topic.topic_id


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"datalake.value-format": "jsn"}, "the value must be 'raw' or 'json' or 'debezium-json'"),
        ({"datalake.value-format": "json", "datalake.schema": "id BIG"}, "type BIG is not known"),
        ({"datalake.value-format": "debezium-json"}, "set 'datalake.primary-key'"),
        ({"datalake.schema": "id INT"}, "whose columns are fixed"),
        ({"datalake.format": "delta"}, "the value must be 'iceberg' or 'paimon'"),
        ({"datalake.table": "a.b.c.d"}, "set 'datalake.table' to database.table"),
    ],
)
async def test_an_invalid_lake_topic_is_refused_at_its_creation(
    tmp_path: Path, config: dict[str, str], said: str
) -> None:
    async with tables(tmp_path, LAKES) as all_tables:
        with pytest.raises(KafkaError) as caught:
            await all_tables.broker.context.topics.create_topic("t", 1, config)
        assert caught.value.code == ErrorCode.INVALID_CONFIG
        assert said in caught.value.message
