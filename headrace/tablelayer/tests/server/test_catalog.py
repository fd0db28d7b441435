"""Databases and tables, by the extension and by Kafka's own admin calls; tiering rounds over the wire."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import SetOptions, changes_to_json
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.tests.server.tables import Tables, tables


async def send(all_tables: Tables, request: Any, code: int = 0, words: str = "") -> Any:
    answer = await all_tables.broker.send(request)
    assert answer.error_code == code, answer.error_message
    assert words in (answer.error_message or "")
    return answer


async def test_databases_are_created_listed_and_dropped_and_survive_a_restart(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        await send(all_tables, m.CreateDatabaseRequest(name="sales"))
        await send(
            all_tables, m.CreateDatabaseRequest(name="sales"), TableErrorCode.DATABASE_EXISTS, "'sales'"
        )
        await send(all_tables, m.CreateDatabaseRequest(name="sales", ignore_if_exists=True))
        await send(all_tables, m.CreateDatabaseRequest(name="a.b"), TableErrorCode.INVALID_TABLE)
    async with tables(tmp_path) as all_tables:
        answer = await send(all_tables, m.ListDatabasesRequest())
        assert answer.databases == ["default", "sales"]
        await send(all_tables, m.DropDatabaseRequest(name="default"), TableErrorCode.INVALID_TABLE)
        await send(all_tables, m.DropDatabaseRequest(name="x"), TableErrorCode.DATABASE_NOT_FOUND)
        await send(all_tables, m.DropDatabaseRequest(name="x", ignore_if_not_exists=True))
        await all_tables.broker.create_topic("sales.t", table_schema="a INT")
        await send(all_tables, m.DropDatabaseRequest(name="sales"), TableErrorCode.DATABASE_NOT_EMPTY, "t")
        await send(all_tables, m.DropDatabaseRequest(name="sales", cascade=True))
        assert all_tables.broker.context.metadata.topic("sales.t") is None
        answer = await send(all_tables, m.ListDatabasesRequest())
        assert answer.databases == ["default"]


async def test_concurrent_creations_of_a_database_leave_one(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        answers = await asyncio.gather(
            *(
                all_tables.broker.send(m.CreateDatabaseRequest(name="d", comment=comment))
                for comment in ("first", "second", "third")
            )
        )
        assert sorted(answer.error_code for answer in answers) == [
            0,
            *2 * [TableErrorCode.DATABASE_EXISTS],
        ]
        (comment,) = [
            comment
            for comment, answer in zip(("first", "second", "third"), answers, strict=True)
            if not answer.error_code
        ]
        assert (await send(all_tables, m.DescribeDatabaseRequest(name="d"))).comment == comment
        node = await all_tables.broker.context.store.get("/databases/d")
        assert node is not None
        assert json.loads(node.data)["comment"] == comment


async def test_changes_of_a_database_come_one_after_the_other(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        for _ in range(5):
            await send(all_tables, m.CreateDatabaseRequest(name="d"))
            altered, dropped, created = await asyncio.gather(
                all_tables.broker.send(m.AlterDatabaseRequest(name="d", comment="altered")),
                all_tables.broker.send(m.DropDatabaseRequest(name="d")),
                all_tables.broker.send(m.CreateDatabaseRequest(name="d", comment="created")),
            )
            assert (altered.error_code, dropped.error_code, created.error_code) == (0, 0, 0)
            assert (await send(all_tables, m.DescribeDatabaseRequest(name="d"))).comment == "created"
            node = await all_tables.broker.context.store.get("/databases/d")
            assert node is not None
            assert json.loads(node.data)["comment"] == "created"
            await send(all_tables, m.DropDatabaseRequest(name="d"))


async def test_no_table_is_left_in_a_database_that_was_dropped_while_it_was_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, validated = TableExtension.validate_topic, asyncio.Event()

    async def validate_topic(self: TableExtension, *rest: Any) -> dict[str, str]:
        config = await validate(self, *rest)
        validated.set()
        return config

    monkeypatch.setattr(TableExtension, "validate_topic", validate_topic)
    async with tables(tmp_path) as all_tables:
        definition = TableDefinition(TablePath("d", "t"), parse_columns("a INT")).to_json()
        for cascade in (False, True):
            await send(all_tables, m.CreateDatabaseRequest(name="d"))
            creating = asyncio.create_task(
                all_tables.broker.send(m.CreateTableRequest(definition=definition))
            )
            await validated.wait()
            validated.clear()
            dropped = await all_tables.broker.send(m.DropDatabaseRequest(name="d", cascade=cascade))
            assert (await creating).error_code == 0
            left = (await send(all_tables, m.ListDatabasesRequest())).databases
            if cascade:
                assert (dropped.error_code, left) == (0, ["default"])
                assert all_tables.broker.context.metadata.topic("d.t") is None
            else:
                assert (dropped.error_code, left) == (TableErrorCode.DATABASE_NOT_EMPTY, ["d", "default"])
                await send(all_tables, m.DropDatabaseRequest(name="d", cascade=True))


async def test_tables_are_created_described_listed_and_dropped(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED", buckets=3)
        definition = table.definition.to_json()
        await send(all_tables, m.CreateTableRequest(definition=definition), TableErrorCode.TABLE_EXISTS)
        again = await send(all_tables, m.CreateTableRequest(definition=definition, ignore_if_exists=True))
        assert again.table_id == table.table_id
        described = await send(all_tables, m.DescribeTableRequest(database="default", table="t"))
        assert (described.table_id, described.definition) == (table.table_id, definition)
        await all_tables.broker.create_topic("default.plain")
        for ignore in (False, True):
            taken = m.CreateTableRequest(
                definition=definition.replace('"t"', '"plain"'), ignore_if_exists=ignore
            )
            await send(all_tables, taken, TableErrorCode.TABLE_EXISTS, "already as a plain topic")
        listed = await send(all_tables, m.ListTablesRequest(database="default"))
        assert listed.tables == ["t"]
        await send(all_tables, m.ListTablesRequest(database="no"), TableErrorCode.DATABASE_NOT_FOUND)
        await table.put(("+", {"id": 1, "v": "a"}))
        folder = table.partition.hooks.directory.parent
        assert folder.is_dir()
        await send(all_tables, m.DropTableRequest(database="default", table="t"))
        assert not folder.exists()
        await send(
            all_tables, m.DropTableRequest(database="default", table="t"), TableErrorCode.TABLE_NOT_FOUND
        )
        await send(all_tables, m.DropTableRequest(database="default", table="t", ignore_if_not_exists=True))
        answer = await table.put(("+", {"id": 1, "v": "a"}))
        assert answer.error_code == TableErrorCode.TABLE_NOT_FOUND
        new = await all_tables.create("id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED")
        assert await new.state() == []


async def test_a_table_in_a_missing_database_is_refused(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT")
        definition = table.definition.to_json().replace('"database":"default"', '"database":"no"')
        await send(
            all_tables,
            m.CreateTableRequest(definition=definition),
            TableErrorCode.DATABASE_NOT_FOUND,
            "'no'",
        )


async def test_kafka_admins_create_tables_with_a_schema_config(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        create = all_tables.broker.context.topics.create_topic
        await create("default.orders", 2, {"table.schema": "id BIGINT, v STRING", "table.primary-key": "id"})
        table = await all_tables.open("orders")
        assert table.definition.schema.primary_key == ("id",)
        assert (await table.put(("+", {"id": 1, "v": "x"}))).error_code == 0
        for name, config, words in (
            ("no.orders", {"table.schema": "id BIGINT"}, "CREATE DATABASE no"),
            ("orders", {"table.schema": "id BIGINT"}, "database.table"),
            ("default.x", {"table.schema": "id BIGNIT"}, "BIGNIT"),
            ("default.x", {"table.schema": "id BIGINT", "table.delete.behavior": "ALLOW"}, "primary key"),
            ("plain", {"table.comment": "no schema"}, "table.schema"),
            ("default.x", {"table.schema": "id INT", "cleanup.policy": "compact"}, "plain topic"),
            ("default.x", {"table.schema": "id INT", "compression.type": "zstd"}, "plain topic"),
        ):
            with pytest.raises(KafkaError) as caught:
                await create(name, 1, config)
            assert caught.value.code == ErrorCode.INVALID_CONFIG
            assert words in caught.value.message
        plain = await create("plain.topic", 1, {})
        assert "table.schema" not in plain.config
        assert all_tables.broker.context.replicas.partition("plain.topic", 0).hooks is None


async def test_bucket_settings_cannot_be_altered(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, v INT, PRIMARY KEY (id) NOT ENFORCED", buckets=2)
        with pytest.raises(KafkaError, match=r"number of buckets .* is fixed"):
            await all_tables.broker.context.topics.create_partitions("default.t", 4)
        with pytest.raises(KafkaError, match="schema"):
            await all_tables.broker.context.topics.alter_config(
                "default.t", {"table.schema": "id INT, v BIGINT, PRIMARY KEY (id)"}
            )
        await all_tables.broker.context.topics.alter_config(
            "default.t", {"table.kafka.unknown-fields": "fail"}
        )
        assert table.partition.hooks.definition.settings.kafka_unknown_fields == "fail"
        await all_tables.broker.context.topics.create_topic("plain", 1, {})
        with pytest.raises(KafkaError, match="cannot become a table"):
            await all_tables.broker.context.topics.alter_config("plain", {"table.schema": "id INT"})


async def test_a_log_table_gets_more_buckets_by_an_alter_or_by_kafka(tmp_path: Path) -> None:
    async with tables(tmp_path, {"default.bucket.number": "2"}) as all_tables:
        new = TableDefinition(TablePath("default", "t"), parse_columns("id INT"))
        made = await send(all_tables, m.CreateTableRequest(definition=new.to_json()))
        assert made.bucket_count == 2
        both = [SetOptions({"bucket.num": "3", "table.log.ttl": "1 d"})]
        alter = m.AlterTableRequest(database="default", table="t", changes=changes_to_json(both))
        altered = TableDefinition.from_json((await send(all_tables, alter)).definition)
        assert (altered.bucket_count, altered.options["table.log.ttl"]) == (3, "1 d")
        topics = all_tables.broker.context.topics
        await topics.create_partitions("default.t", 4)
        assert (await all_tables.open()).definition.bucket_count == 4
        with pytest.raises(KafkaError, match="4 partitions"):
            await topics.create_partitions("default.t", 3)


LAKE = {"datalake.iceberg.warehouse": "/tmp/somewhere"}


async def test_tiering_rounds_over_the_wire_hold_retention_back(tmp_path: Path) -> None:
    limits = Limits(lake_lease_ms=60_000)
    async with tables(tmp_path, LAKE, limits=limits) as all_tables:
        plain = await all_tables.create("id INT", name="plain")
        begin = m.LakeBeginRequest(worker="w", database="default", table="plain")
        await send(all_tables, begin, TableErrorCode.LAKE_NOT_ENABLED)
        assert plain.partition.hooks.retention_floor() is None
        table = await all_tables.create("id INT, s STRING", name="lake", datalake_enabled="true")
        assert table.partition.hooks.retention_floor() == 0
        begin = m.LakeBeginRequest(worker="w", database=None, table=None)
        assert not (await send(all_tables, begin)).granted  # nothing to tier
        await table.append([{"id": 1, "s": "a"}, {"id": 2, "s": "b"}])
        granted = await send(all_tables, begin)
        assert (granted.granted, granted.database, granted.table, granted.epoch) == (
            True,
            "default",
            "lake",
            1,
        )
        other = m.LakeBeginRequest(worker="other", database="default", table="lake", force=True)
        assert not (await send(all_tables, other)).granted
        await send(all_tables, m.LakeHeartbeatRequest(table_id=table.table_id, epoch=1))
        stale = m.LakeHeartbeatRequest(table_id=table.table_id, epoch=0)
        await send(all_tables, stale, TableErrorCode.FENCED_TIERING_EPOCH)
        commit = m.LakeCommitRequest(
            table_id=table.table_id, epoch=1, snapshot_id=77, offsets=[m.LakeOffset(bucket=0, offset=2)]
        )
        commit.offsets[0].bucket = 5
        await send(all_tables, commit, TableErrorCode.INVALID_TABLE, "bucket 5")
        commit.offsets[0].bucket = 0
        await send(all_tables, commit)
        assert table.partition.hooks.retention_floor() == 2
    async with tables(tmp_path, LAKE, limits=limits) as all_tables:
        table = await all_tables.open("lake")
        described = await send(all_tables, m.DescribeLakeRequest(table_id=table.table_id))
        assert (described.enabled, described.format, described.snapshot_id) == (True, "iceberg", 77)
        assert [(each.bucket, each.offset) for each in described.offsets] == [(0, 2)]
        assert [(each.key, each.value) for each in described.properties] == list(LAKE.items())
        assert (await send(all_tables, other)).epoch == 2


async def test_the_log_of_a_keyed_table_is_kept_until_the_lake_has_it(tmp_path: Path) -> None:
    async with tables(tmp_path, {**LAKE, "kv.snapshot.interval": "0"}) as all_tables:
        table = await all_tables.create("id INT, PRIMARY KEY (id) NOT ENFORCED", datalake_enabled="true")
        await table.put(*(("+", {"id": n}) for n in range(10)))
        hooks = table.partition.hooks
        hooks.tablet.kv.flush()
        assert hooks.tablet.kv.durable_offset == 10
        assert hooks.retention_floor() == 0
        granted = await send(all_tables, m.LakeBeginRequest(worker="w"))
        offsets = [m.LakeOffset(bucket=0, offset=7)]
        commit = m.LakeCommitRequest(
            table_id=table.table_id, epoch=granted.epoch, snapshot_id=1, offsets=offsets
        )
        await send(all_tables, commit)
        assert hooks.retention_floor() == 7


async def test_the_log_of_a_keyed_table_is_kept_from_its_flushed_offset(tmp_path: Path) -> None:
    async with tables(tmp_path, {"kv.snapshot.interval": "0"}) as all_tables:
        table = await all_tables.create("id INT, v INT, PRIMARY KEY (id) NOT ENFORCED")
        await table.put(*(("+", {"id": n, "v": n}) for n in range(10)))
        hooks = table.partition.hooks
        assert hooks.retention_floor() == 0
        hooks.tablet.kv.flush()
        assert hooks.retention_floor() == 10
        tablet, hooks._tablet = hooks._tablet, None  # as while it starts or is rebuilt
        assert hooks.retention_floor() == 0
        hooks._tablet = tablet
