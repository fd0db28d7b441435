"""Definitions that no honest client sends: their cost, and the errors that their sender gets."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.net.reply import CloseConnection
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.ddl import DdlError
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.errors import MESSAGE_LENGTH_MAX, TableError, TableErrorCode
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types import text as type_text
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.server.catalog.definition_reading import DEFINITION_BYTES_MAX
from headrace.tablelayer.tests.server.tables import Tables, run, tables


def fields(count: int) -> str:
    return ", ".join(f"f{index} INT" for index in range(count))


def test_reading_a_type_ends_where_it_has_too_many_fields() -> None:
    assert len(parse_type(f"ROW<{fields(1000)}>").fields) == 1000
    with pytest.raises(TableError, match="a column can have at most 1000 types inside"):
        parse_type(f"ROW<{fields(1001)} and what stands here is never looked at")
    nested = "a ROW<" * 3 + fields(990) + ">" * 3 + ", " + fields(10)
    with pytest.raises(TableError, match="a column can have at most 1000 types inside"):
        parse_type(f"ROW<{nested} never looked at")


def test_blanks_and_comments_are_read_once() -> None:
    """There is one way to parse them: with two for each, forty took longer than any client waits."""
    blank = " \n" * 2000 + "/* a */ -- b\n" * 100
    assert parse_type(f"INT{blank}") == parse_type("INT")
    assert parse_type(f"ROW<{blank}a{blank}INT{blank}>{blank}") == parse_type("ROW<a INT>")


def test_reading_columns_ends_where_there_are_too_many() -> None:
    with pytest.raises(DdlError, match="at most 1000 columns"):
        parse_columns(f"{fields(1001)}, and what stands here is never looked at")
    wide = ", ".join(f"c{index} ROW<{fields(1000)}>" for index in range(10))
    with pytest.raises(DdlError, match="at most 10000 columns and fields"):
        parse_columns(f"{wide}, and what stands here is never looked at")
    entries: list[Any] = [{"name": f"c{index}", "type": f"ROW<{fields(1000)}>"} for index in range(10)]
    with pytest.raises(TableError, match="at most 10000 columns and fields"):
        Schema.from_dict({"columns": [*entries, None]})


def test_an_error_shows_of_a_long_line_what_is_around_the_word() -> None:
    with pytest.raises(DdlError) as caught:
        parse_columns(f"{fields(900)}, c NOTYPE, {', '.join(f'g{index} INT' for index in range(90))}")
    shown, marks = caught.value.message.split("\n")[1:]
    assert len(shown) < 300
    assert shown[marks.index("^") :].startswith("NOTYPE")
    assert len(TableError(TableErrorCode.INVALID_TABLE, "x" * 1_000_000).message) < MESSAGE_LENGTH_MAX + 100


async def create(all_tables: Tables, schema: Any, name: str = "t", **more: Any) -> Any:
    text = json.dumps({"database": "default", "table": name, "schema": schema, **more})
    return await all_tables.broker.send(m.CreateTableRequest(definition=text))


async def create_topic(all_tables: Tables, schema: str, name: str = "default.k") -> Any:
    configs = [CreatableTopicConfig(name="table.schema", value=schema)]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    return (await all_tables.broker.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000))).topics[0]


async def alter_topic(all_tables: Tables, name: str, value: str, topic: str = "default.k") -> Any:
    resource = AlterConfigsResource(
        resource_type=2,
        resource_name=topic,
        configs=[AlterableConfig(name=name, config_operation=0, value=value)],
    )
    answer = await all_tables.broker.send(IncrementalAlterConfigsRequest(resources=[resource]))
    return answer.responses[0]


async def test_no_definition_is_read_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule holds for every API: the extension's and Kafka's, to create and to alter."""
    threads: list[str] = []
    begin = type_text._Reader.__init__

    def noting(self: Any, *arguments: Any, **named: Any) -> None:
        threads.append(threading.current_thread().name)
        begin(self, *arguments, **named)

    async with tables(tmp_path) as all_tables:
        monkeypatch.setattr(type_text._Reader, "__init__", noting)
        created = await create(all_tables, {"columns": [{"name": "a", "type": "ROW<x INT>"}]})
        assert created.error_code == 0, created.error_message
        assert (await create_topic(all_tables, "a INT, b STRING")).error_code == 0
        change = [{"change": "add", "name": "n", "type": "ARRAY<INT>"}]
        altered = await all_tables.broker.send(
            m.AlterTableRequest(database="default", table="t", changes=json.dumps(change))
        )
        assert altered.error_code == 0, altered.error_message
        assert (await alter_topic(all_tables, "table.log.ttl", "3 h")).error_code == 0
        described = await all_tables.broker.send(m.DescribeTableRequest(database="default", table="t"))
        assert "ARRAY<INT>" in described.definition
        monkeypatch.setattr(type_text._Reader, "__init__", begin)
        assert (await all_tables.open("k")).definition.settings.log_ttl_ms == 3 * 3_600_000
        assert threads
        assert threading.current_thread().name not in threads


async def test_a_definition_has_a_size_before_it_is_read(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        comment = "x" * DEFINITION_BYTES_MAX
        columns = {"columns": [{"name": "a", "type": "INT"}]}
        answer = await create(all_tables, columns, comment=comment)
        assert answer.error_code == TableErrorCode.INVALID_TABLE
        assert answer.error_message.startswith("the definition has ")
        with pytest.raises(CloseConnection, match="at most 32767 bytes"):  # of any text, as with Kafka
            await create_topic(all_tables, f"a INT COMMENT '{comment}'")
        assert (await create(all_tables, columns)).error_code == 0
        for changes, words in (
            (json.dumps([{"change": "comment", "comment": comment}]), "the maximum is"),
            (json.dumps([{"change": "comment", "comment": "x"}] * 2001), "2001 changes"),
        ):
            answer = await all_tables.broker.send(
                m.AlterTableRequest(database="default", table="t", changes=changes)
            )
            assert answer.error_code == TableErrorCode.INVALID_TABLE
            assert words in answer.error_message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ('"bucket_count": Infinity', "Infinity"),
        ('"bucket_count": -Infinity', "Infinity"),
        ('"bucket_count": NaN', "NaN"),
        ('"bucket_count": 1e999', "whole number"),
        ('"bucket_count": 1.5', "whole number"),
        ('"bucket_count": "many"', "whole number"),
        ('"bucket_count": true', "whole number"),
        ('"schema": {"schema_id": Infinity, "columns": [{"name": "a", "type": "INT"}]}', "Infinity"),
        ('"schema": {"schema_id": 1e999, "columns": [{"name": "a", "type": "INT"}]}', "whole number"),
        ('"schema": {"columns": [{"id": 1e999, "name": "a", "type": "INT"}]}', "whole number"),
        ('"schema": {"columns": [{"name": "a", "type": "INT", "comment": "\\ud800"}]}', "surrogate"),
        ('"schema": {"columns": [{"name": "\\udc00", "type": "INT"}]}', "surrogate"),
        ('"schema": {"columns": 5}', "schema in JSON"),
        ('"schema": 5', "schema in JSON"),
        ('"schema": {"columns": [{"name": "a", "type": "INT"}], "primary_key": 5}', "schema in JSON"),
        ('"comment": "\\ud83d"', "surrogate"),
        ('"options": {"table.log.ttl": "\\udfff"}', "surrogate"),
        ('"options": 7', "definition in JSON"),
        ('"options": {"table.log.ttl": 7}', "must be a text"),
        ('"options": {"bucket.num": 7}', "must be a text"),
        ('"options": {"fields.a.agg": 7}', "must be a text"),
        ('"options": {"retention.ms": 7}', "must be a text"),
        ('"bucket_key": 7', "definition in JSON"),
        ('"partition_keys": 7', "definition in JSON"),
        ('"table_id": 7', "definition in JSON"),
        ('"history": 7', "history of schemas"),
        ('"history": {"columns": [], "versions": [{"schema_id": 1e999, "columns": [], "primary_key": []}]}', "history"),
        ('"x": ' + "[" * 100_000, "definition in JSON"),
        ('"x": ' + "9" * 10_000, "definition in JSON"),
    ],
)  # fmt: skip
def test_a_malformed_definition_is_refused_with_a_message(given: str, words: str) -> None:
    base = '"database": "default", "table": "t", "schema": {"columns": [{"name": "a", "type": "INT"}]}'
    with pytest.raises(TableError) as caught:
        TableDefinition.from_json("{" + base + ", " + given + "}")
    assert caught.value.code is TableErrorCode.INVALID_TABLE
    assert words in caught.value.message
    caught.value.message.encode()


NO_CHANGES = [
    '[{"change": "add", "name": "\\ud800", "type": "INT"}]',
    '[{"change": "add", "name": "b", "type": 5}]',
    '[{"change": "add", "name": 5, "type": "INT"}]',
    '[{"change": "add", "name": "b", "type": "INT", "default": 5}]',
    '[{"change": "add", "name": "b", "type": "INT", "nullable": "no"}]',
    '[{"change": "add", "name": "b", "type": "INT", "after": 1}]',
    '[{"change": "add", "name": "b", "type": "INT", "after": Infinity}]',
    '[{"change": "add"}]', '[{"change": 5}]', '[{"change": []}]', "5", "null", '"abc"', '{"a": 1}', "[5]", "[[]]",
    '[{"change": "set", "options": 5}]',
    '[{"change": "set", "options": {"table.log.ttl": 5}}]',
    '[{"change": "set", "options": {"fields.c.agg": 5}}]',
    '[{"change": "set", "options": "table.log.ttl"}]',
    '[{"change": "reset", "names": 5}]',
    '[{"change": "drop", "name": ["a"]}]',
    '[{"change": "drop", "name": {"a": 1}}]',
    '[{"change": "rename", "name": "a", "new_name": null}]',
    '[{"change": "rename", "name": "a", "new_name": true}]',
    '[{"change": "modify", "name": "a", "type": "BIGINT", "drop_default": "x"}]',
    '[{"change": "modify", "name": "a", "comment": true}]',
    '[{"change": "comment", "comment": true}]',
    '[{"change": "comment", "comment": {}}]',
]  # fmt: skip


def test_malformed_changes_are_refused_with_a_message(
    tmp_path: Path, own_log: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            await all_tables.create("a INT, c STRING")
            for changes in NO_CHANGES:
                answer = await all_tables.broker.send(
                    m.AlterTableRequest(database="default", table="t", changes=changes)
                )
                assert answer.error_code == TableErrorCode.INVALID_TABLE, changes

    run(work)
    assert not [record for record in own_log.records if record.exc_info], own_log.text


def test_the_copy_of_a_definition_that_only_moves_is_equal_to_one_that_is_made_again() -> None:
    made = TableDefinition(
        TablePath("default", "t"), parse_columns("a INT, d STRING"), bucket_count=3, partition_keys=("d",)
    )
    moved = made.with_id(uuid.UUID(int=1)).of_partition("x", uuid.UUID(int=2), 2)
    again = TableDefinition(
        TablePath("default", "t.x"), made.schema, bucket_count=2, options=made.options, partition_keys=("d",)
    ).with_id(uuid.UUID(int=2))
    assert (moved, moved.settings, moved.versions.schemas) == (again, again.settings, again.versions.schemas)
    with pytest.raises(TableError, match="not a partition of a table"):
        made.path_of_partition("x.y")
