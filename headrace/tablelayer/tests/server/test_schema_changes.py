"""R4: tables whose schema changes, against a model in plain Python, through every API and over crashes."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import string
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import (
    AddColumn,
    Change,
    DropColumn,
    ModifyColumn,
    RenameColumn,
    changes_to_json,
    evolve,
)
from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.tests.server.tables import Row, Table, replay, tables
from headrace.tablelayer.tests.server.test_kafka_view import consume, produce
from simulator.files import copy_as_killed

WIDER = {
    "TINYINT": "SMALLINT", "SMALLINT": "INT", "INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(6, 2)": "DECIMAL(20, 2)",
    "CHAR(4)": "CHAR(9)", "CHAR(9)": "STRING", "BINARY(2)": "BINARY(4)", "BINARY(4)": "BYTES",
}  # fmt: skip
TYPES = ("BOOLEAN", "TINYINT", "INT", "FLOAT", "DECIMAL(6, 2)", "CHAR(4)", "BINARY(2)", "STRING", "DATE",
         "MAP<STRING, INT>", "ROW<a INT, b ARRAY<STRING NOT NULL>>")  # fmt: skip
DEFAULTS = {
    "BOOLEAN": "true", "TINYINT": "-7", "INT": "123", "FLOAT": "0.5", "DECIMAL(6, 2)": "1.50", "CHAR(4)": "dflt",
    "BINARY(2)": "CAFE", "STRING": "ä\u20ac", "DATE": "2024-09-19",
}  # fmt: skip


def value_of(rng: random.Random, data_type: DataType) -> Any:
    """Return a value that fits the type in every width it may have had: readers of old schemas see it too."""
    kind = data_type.kind
    if kind is TypeKind.BOOLEAN:
        return rng.random() < 0.5
    if kind in (TypeKind.TINYINT, TypeKind.SMALLINT, TypeKind.INT, TypeKind.BIGINT):
        return rng.randrange(-128, 128)
    if kind in (TypeKind.FLOAT, TypeKind.DOUBLE):
        return rng.randrange(-999, 999) / 8
    if kind is TypeKind.DECIMAL:
        return Decimal(rng.randrange(-9999, 9999)).scaleb(-2)
    if kind in (TypeKind.CHAR, TypeKind.STRING):
        return "".join(rng.choices(string.ascii_letters + "ü\u20ac", k=rng.randrange(5)))
    if kind is TypeKind.BINARY:
        return rng.randbytes(2).ljust(data_type.length, b"\0")
    if kind is TypeKind.BYTES:
        return rng.randbytes(2)
    if kind is TypeKind.MAP:
        return [(key, rng.choice([None, 7])) for key in rng.sample("abc", rng.randrange(4))]
    if kind is TypeKind.ROW:
        return {"a": rng.choice([None, 1]), "b": rng.choice([None, [], ["x", "\u20ac"]])}
    return datetime.date(2000, 1, 1) + datetime.timedelta(rng.randrange(9999))


def text_value(column: Column, text: str | None) -> Any:
    """Return the value of a default, computed without the code under test."""
    if text is None:
        return None
    kind = column.type.kind
    if kind is TypeKind.BOOLEAN:
        return text == "true"
    if kind in (TypeKind.TINYINT, TypeKind.SMALLINT, TypeKind.INT, TypeKind.BIGINT):
        return int(text)
    if kind in (TypeKind.FLOAT, TypeKind.DOUBLE):
        return float(text)
    if kind is TypeKind.DECIMAL:
        return Decimal(text)
    if kind in (TypeKind.BINARY, TypeKind.BYTES):
        return bytes.fromhex(text)
    return datetime.date.fromisoformat(text) if kind is TypeKind.DATE else text


class Model:
    """The rows as dicts by column id; a missing column was unknown when the row was written."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, Any]] = {}
        self.appended: list[dict[int, Any]] = []

    def seen(self, row: dict[int, Any], definition: TableDefinition) -> Row:
        """Return a row as a reader of this definition sees it."""
        found: Row = {}
        for column in definition.schema.columns:
            value = row.get(column.id, text_value(column, column.initial))
            if isinstance(value, bytes) and column.type.kind is TypeKind.BINARY:
                value = value.ljust(column.type.length, b"\0")
            found[column.name] = value
        return found

    def written(self, row: Row, writer: TableDefinition, latest: TableDefinition) -> dict[int, Any]:
        """A row of a writer as it is stored, in the latest schema's columns."""
        known = {column.id: row[column.name] for column in writer.schema.columns}
        return {
            column.id: known.get(column.id, text_value(column, column.initial))
            for column in latest.schema.columns
        }


def random_change(rng: random.Random, definition: TableDefinition, number: int) -> Change | None:
    columns = definition.schema.columns
    free = [column for column in columns if column.name not in ("k", definition.schema.names[0])]
    free = [column for column in free if column.name not in definition.bucket_key]
    kind = rng.choice(["add", "add", "drop", "rename", "widen", "default", "again"])
    after = rng.choice([None, "", rng.choice(columns).name])
    if kind == "add":
        chosen = rng.choice(TYPES)
        default = rng.choice([None, DEFAULTS.get(chosen)])
        nullable = default is None or rng.random() < 0.5
        return AddColumn(f"c{number}", parse_type(chosen), nullable, None, default, after)
    if not free:
        return None
    column = rng.choice(free)
    if kind == "drop" and len(free) > 1:
        return DropColumn(column.name)
    if kind == "rename":
        return RenameColumn(column.name, f"r{number}")
    if kind == "widen" and str(column.type) in WIDER:
        place = None if after == column.name else after
        return ModifyColumn(column.name, parse_type(WIDER[str(column.type)]), after=place)
    if kind == "default" and str(column.type) in DEFAULTS:
        return ModifyColumn(column.name, default=rng.choice([None, DEFAULTS[str(column.type)]]))
    if kind == "again":  # the name of one that was there before
        gone = {each.name for schema in definition.history for each in schema.columns} - set(
            definition.schema.names
        )
        if gone:
            return AddColumn(rng.choice(sorted(gone)), parse_type(rng.choice(TYPES)), after=after)
    return None


def random_row(rng: random.Random, definition: TableDefinition, key: int) -> Row:
    row: Row = {}
    for column in definition.schema.columns:
        if column.id == 0:
            row[column.name] = key
        elif column.nullable and rng.random() < 0.2:
            row[column.name] = None
        else:
            row[column.name] = value_of(rng, column.type)
    return row


def by_key(rows: list[Row], key: str) -> dict[Any, Row]:
    return {row[key]: row for row in rows}


async def check_keyed(table: Table, model: Model, rng: random.Random) -> None:
    """Check every API of a primary-key table, in the schema of `table`."""
    definition = table.definition
    (key,) = definition.schema.primary_key
    expected = {number: model.seen(row, definition) for number, row in model.rows.items()}
    assert by_key(await table.state(), key) == expected
    keys = [*expected, 10**6]
    found = await table.lookup(*({key: each} for each in keys))
    assert found == [*expected.values(), None]
    names = [name for name in definition.schema.names if rng.random() < 0.5] or [key]
    some = [{name: row[name] for name in names} for row in expected.values()]
    assert await table.lookup(*({key: each} for each in expected), columns=names) == some
    assert by_key(await table.limit(1000), key) == expected
    if definition == await table.latest():
        assert by_key(list(replay(await table.changelog(), [key]).values()), key) == expected
        values = {
            json.loads(key_text)[key]: None if value is None else json.loads(value)
            for _, key_text, value, _ in await consume(table)
        }
        living = {number: value for number, value in values.items() if value is not None}
        names_seen = {number: list(value) for number, value in living.items()}
        assert names_seen == dict.fromkeys(expected, definition.schema.names)
        numeric = [
            c.name for c in definition.schema.columns if c.type.kind in (TypeKind.INT, TypeKind.STRING)
        ]
        for number, value in living.items():
            assert {name: value[name] for name in numeric} == {
                name: expected[number][name] for name in numeric
            }


@pytest.mark.parametrize("seed", range(4))
async def test_r4_2_random_changes_and_writes_equal_a_dict_for_every_client(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    model = Model()

    async def session(directory: Path, create: bool, crash_to: Path | None) -> None:
        limits = Limits(flush_bytes=rng.choice([2_000, 1 << 20]))
        async with tables(directory, limits=limits) as all_tables:
            if create:
                table = await all_tables.create(
                    "k INT, a INT, b STRING DEFAULT 'b', PRIMARY KEY (k) NOT ENFORCED"
                )
            else:
                table = await all_tables.open()
            await check_keyed(table, model, rng)
            writers = [Table(table.broker, await table.latest())]
            for number in range(16):
                table = writers[-1]
                change = random_change(rng, table.definition, len(table.definition.history))
                if change is not None and rng.random() < 0.4:
                    answer = await table.alter_answer(changes_to_json([change]))
                    assert answer.error_code == 0, (change, answer.error_message)
                    table = Table(table.broker, TableDefinition.from_json(answer.definition))
                    assert table.definition.schema == evolve(writers[-1].definition, [change]).schema
                    writers.append(table)
                writer = rng.choice([table, table, rng.choice(writers)])
                await write(writer, table)
                if number % 5 == 4:
                    await check_keyed(table, model, rng)
            await check_keyed(table, model, rng)
            await check_old_reader(rng.choice(writers), table)
            if crash_to is not None:  # the files as kill -9 leaves them
                copy_as_killed(directory, crash_to)

    async def write(writer: Table, table: Table) -> None:
        """One batch of upserts and deletes, or of a partial update, under the writer's schema."""
        schema, latest = writer.definition.schema, table.definition
        (key,) = schema.primary_key
        keys = [rng.randrange(12) for _ in range(rng.choice([1, 3, 20]))]
        rows = [random_row(rng, writer.definition, number) for number in keys]
        known = {column.id for column in latest.schema.columns}
        free = [c for c in schema.columns if c.name != key and c.nullable and c.id in known]
        if free and rng.random() < 0.3 and all(c.nullable or c.default for c in latest.schema.columns[1:]
                                               if c.id != 0):  # fmt: skip
            chosen = [c for c in schema.columns if c.name == key or (c in free and rng.random() < 0.6)]
            chosen += [c for c in schema.columns if not c.nullable and c not in chosen]
            chosen.sort(key=lambda c: schema.index(c.name))
            names = [column.name for column in chosen]
            answer = await writer.put(*(("+", {n: row[n] for n in names}) for row in rows), columns=names)
            assert answer.error_code == 0, answer.error_message
            ids = {column.id for column in chosen}
            for row in rows:
                old = model.rows.get(row[key])
                kept = {c.id: text_value(c, c.default) for c in latest.schema.columns}
                if old is not None:
                    seen = model.seen(old, latest)
                    kept = {c.id: seen[c.name] for c in latest.schema.columns}
                if ids & known == {0}:  # R6.6: nothing but the key
                    model.rows.setdefault(row[key], {**kept, 0: row[key]})
                    continue
                new = {c.id: row[c.name] for c in chosen if c.id in known}
                model.rows[row[key]] = {**kept, **new}
            return
        signs = [rng.choice("+++-") for _ in rows]
        answer = await writer.put(*zip(signs, rows, strict=True))
        assert answer.error_code == 0, answer.error_message
        for sign, row in zip(signs, rows, strict=True):
            if sign == "-":
                model.rows.pop(row[key], None)
            else:
                model.rows[row[key]] = model.written(row, writer.definition, latest)

    async def check_old_reader(old: Table, table: Table) -> None:
        """Check that all readers see the same values in the remaining columns."""
        (key,) = old.definition.schema.primary_key
        there = {column.id for column in table.definition.schema.columns}
        names = [column.name for column in old.definition.schema.columns if column.id in there]
        expected = {number: model.seen(row, old.definition) for number, row in model.rows.items()}
        found = by_key(await old.state(), key)
        for number, row in found.items():
            for column in old.definition.schema.columns:
                if column.name in names and column.type.kind is not TypeKind.BINARY:
                    assert row[column.name] == expected[number][column.name]
        assert found.keys() == expected.keys()

    directory = tmp_path / "0"
    for number in range(3):
        crash_to = tmp_path / str(number + 1) if rng.random() < 0.6 else None
        await session(directory, number == 0, crash_to)
        directory = crash_to or directory


@pytest.mark.parametrize("seed", range(3))
async def test_r4_2_log_tables_give_every_batch_in_the_schema_that_the_reader_wants(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("a INT, b STRING, c FLOAT")
        model, writers = Model(), [table]
        for number in range(30):
            table = writers[-1]
            change = random_change(rng, table.definition, number)
            if change is not None and rng.random() < 0.4:
                answer = await table.alter_answer(changes_to_json([change]))
                assert answer.error_code == 0, (change, answer.error_message)
                table = Table(table.broker, TableDefinition.from_json(answer.definition))
                writers.append(table)
            writer = rng.choice([table, rng.choice(writers)])
            rows = [random_row(rng, writer.definition, rng.randrange(99)) for _ in range(rng.choice([1, 7]))]
            answer = await writer.append(rows)
            assert answer.error_code == 0, answer.error_message
            for row in rows:
                known = {column.id: row[column.name] for column in writer.definition.schema.columns}
                model.appended.append(known)
        expected = [model.seen(row, table.definition) for row in model.appended]
        assert [row for _, row in await table.changelog()] == expected
        assert await table.limit(1000) == expected
        assert await table.limit(3) == expected[-3:]
        names = rng.sample(table.definition.schema.names, 2)
        names.sort(key=table.definition.schema.index)
        some = [{name: row[name] for name in names} for row in expected]
        assert await table.limit(1000, names) == some
        assert await projected(table, names) == some
        records = [json.loads(value or b"") for _, _, value, _ in await consume(table)]
        assert [list(record) for record in records] == [table.definition.schema.names] * len(expected)
        last = table.definition.schema.columns[-1]
        if last.type.kind is TypeKind.INT:
            assert [record[last.name] for record in records] == [row[last.name] for row in expected]


async def projected(table: Table, names: list[str]) -> list[Row]:
    """Scan these columns: the server sends those that a batch has, by byte ranges."""
    import pyarrow as pa

    versions = (await table.latest()).versions
    positions = [table.definition.schema.index(name) for name in names]
    rows: list[Row] = []
    for batch in await table.scan(columns=names):
        source = versions.get(batch.schema_id)
        conversion = versions.conversion(batch.schema_id, table.definition.schema, positions)
        sent = pa.schema([source.columns[position].field() for position in conversion.needed])
        arrays = batch.to_record_batch(sent, untrusted=True).columns if conversion.needed else []
        rows += conversion.of_needed(arrays, batch.header.record_count).to_pylist()
    return rows


async def test_r4_1_a_batch_of_an_unknown_schema_is_refused_without_effect(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, v INT, PRIMARY KEY (k) NOT ENFORCED")
        log = await all_tables.create("v INT", name="log")
        await table.alter("ADD w INT")
        for schema_id in (0, 3, 999):
            answer = await table.put(("+", {"k": 1, "v": 1}), schema_id=schema_id)
            assert answer.error_code == TableErrorCode.UNKNOWN_SCHEMA_ID
            assert f"schema {schema_id} does not exist in the table" in answer.error_message
            answer = await log.append([{"v": 1}], schema_id=schema_id)
            assert answer.error_code == TableErrorCode.UNKNOWN_SCHEMA_ID
        assert await table.state() == []
        assert table.partition.log.log_end_offset == 0
        assert await log.changelog() == []


async def test_r4_3_old_images_are_in_the_latest_schema(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, a INT, b STRING, PRIMARY KEY (k) NOT ENFORCED")
        await table.put(("+", {"k": 1, "a": 1, "b": "x"}), ("+", {"k": 2, "a": 2, "b": "y"}))
        table = await table.alter("ADD n INT NOT NULL DEFAULT 5 AFTER k, MODIFY a BIGINT, DROP b")
        await table.put(("+", {"k": 1, "n": 6, "a": 1 << 40}), ("-", {"k": 2, "n": 0, "a": None}))
        batches = await table.scan(2)
        assert [batch.schema_id for batch in batches] == [2]
        rows = batches[0].to_record_batch(table.definition.schema.arrow(), untrusted=True).to_pylist()
        assert rows == [
            {"k": 1, "n": 5, "a": 1},
            {"k": 1, "n": 6, "a": 1 << 40},
            {"k": 2, "n": 5, "a": 2},
        ]


async def test_r4_2_a_column_dropped_and_added_again_never_shows_old_values(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        first = await all_tables.create("k INT, v INT, w INT, PRIMARY KEY (k) NOT ENFORCED")
        await first.put(("+", {"k": 1, "v": 7, "w": 1}))
        second = await first.alter("DROP v")
        third = await second.alter("ADD v INT")
        assert await third.state() == [{"k": 1, "w": 1, "v": None}]
        await first.put(("+", {"k": 2, "v": 8, "w": 2}))  # a writer of the first schema, into its own v
        await third.put(("+", {"k": 1, "v": 9}), columns=["k", "v"])
        assert await third.state() == [{"k": 1, "w": 1, "v": 9}, {"k": 2, "w": 2, "v": None}]
        assert [value and json.loads(value)["v"] for _, _, value, _ in await consume(third)] == [
            None,
            None,
            9,
        ]
        swapped = await third.alter("RENAME w TO tmp, RENAME v TO w, RENAME tmp TO v")
        assert await swapped.state() == [{"k": 1, "v": 1, "w": 9}, {"k": 2, "v": 2, "w": None}]


async def test_r9_8_an_aggregate_function_follows_its_renamed_column(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        first = await all_tables.create(
            "k INT, total INT, top INT, PRIMARY KEY (k) NOT ENFORCED",
            given={
                "table.merge-engine": "aggregation",
                "fields.total.agg": "sum",
                "fields.top.agg": "max",
            },
        )
        await first.put(("+", {"k": 1, "total": 5, "top": 5}))
        second = await first.alter(
            "RENAME total TO x, RENAME top TO total, RENAME x TO top, ADD low INT FIRST, "
            "SET ('fields.low.agg' = 'min')"
        )
        # `top` is the former `total`: it is added up, under whichever name it is written.
        await second.put(("+", {"k": 1, "low": 4, "top": 2, "total": 2}))
        await first.put(("+", {"k": 1, "total": 1, "top": 9}))
        await second.put(("+", {"k": 1, "low": 6, "top": None, "total": None}))
        assert await second.state() == [{"low": 4, "k": 1, "total": 9, "top": 8}]
        # A column that takes a dropped one's name has its own function, and none of the old values.
        third = await second.alter("DROP top, ADD top INT")
        await third.put(("+", {"k": 1, "low": None, "total": None, "top": 3}))
        await first.put(("+", {"k": 1, "total": 100, "top": 10}))
        await third.put(("+", {"k": 1, "low": None, "total": None, "top": 2}))
        assert await third.state() == [{"low": 4, "k": 1, "total": 10, "top": 2}]


async def test_r20_4_nested_columns_are_added_dropped_renamed_and_never_changed_inside(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        first = await all_tables.create("k INT, r ROW<a INT> NOT NULL, PRIMARY KEY (k) NOT ENFORCED")
        await first.put(("+", {"k": 1, "r": {"a": 7}}))
        second = await first.alter("ADD l ARRAY<INT>, RENAME r TO q, ALTER q DROP NOT NULL")
        assert await second.state() == [{"k": 1, "q": {"a": 7}, "l": None}]
        await second.put(("+", {"k": 2, "q": None, "l": [1, None]}))
        wider = ModifyColumn("q", type=parse_type("ROW<a BIGINT>"))
        answer = await second.alter_answer(changes_to_json([wider]))
        assert answer.error_code == TableErrorCode.INVALID_TABLE
        assert "the types inside of a nested type" in answer.error_message
        third = await second.alter("DROP q, ADD q ROW<a BIGINT>")
        await third.put(("+", {"k": 2, "l": [], "q": {"a": 1 << 40}}))
        assert await third.state() == [
            {"k": 1, "l": None, "q": None},
            {"k": 2, "l": [], "q": {"a": 1 << 40}},
        ]


async def test_r4_2_a_partial_update_gives_the_default_where_there_must_be_a_value(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        old = await all_tables.create("k INT, a INT, b INT, PRIMARY KEY (k) NOT ENFORCED")
        await old.put(("+", {"k": 1, "a": 1, "b": 1}))
        table = await old.alter("ADD n STRING NOT NULL DEFAULT 'dflt', ADD m INT DEFAULT 3")
        for key in (1, 2):
            answer = await old.put(("+", {"k": key, "a": 9}), columns=["k", "a"])
            assert answer.error_code == 0, answer.error_message
        # R6.4: a column that is left out has its default in a new row.
        assert await table.state() == [
            {"k": 1, "a": 9, "b": 1, "n": "dflt", "m": 3},
            {"k": 2, "a": 9, "b": None, "n": "dflt", "m": 3},
        ]
        # R4: also a column that the writer's schema does not know has the present default, not that of its ADD.
        newer = await table.alter("ALTER COLUMN m SET DEFAULT 4")
        await old.put(("+", {"k": 4, "a": 9}), columns=["k", "a"])
        await old.put(("+", {"k": 5, "a": 9, "b": None}))
        assert {row["k"]: row["m"] for row in await newer.state()} == {1: 3, 2: 3, 4: 4, 5: 3}
        await old.put(("-", {"k": 4}), ("-", {"k": 5}))
        # R6.7: a column that must have a value keeps the row.
        await old.put(("-", {"k": 2, "a": None}), columns=["k", "a"])
        await old.put(("+", {"k": 3, "a": 1}), ("-", {"k": 3, "a": None}), columns=["k", "a"])
        assert [row["k"] for row in await table.state()] == [1, 2, 3]


async def test_r4_2_kafka_clients_write_and_read_the_latest_schema(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, v INT, PRIMARY KEY (k) NOT ENFORCED", buckets=2)
        assert (await produce(table, (None, {"k": 1, "v": 1}))).error_code == 0
        table = await table.alter("RENAME v TO value, ADD n INT NOT NULL DEFAULT 4, MODIFY value BIGINT")
        await produce(table, (None, {"k": 1, "value": 1 << 40}), (None, {"k": 2, "value": 2, "n": 7}))
        refused = await produce(table, (None, {"k": 3, "n": None}))
        assert "column 'n'" in refused.error_message
        found = [
            json.loads(value or b"")
            for partition in (0, 1)
            for _, _, value, _ in await consume(table, 0, partition)
        ]
        assert sorted(found, key=lambda row: (row["k"], row["value"])) == [
            {"k": 1, "value": 1, "n": 4},
            {"k": 1, "value": 1 << 40, "n": 4},
            {"k": 2, "value": 2, "n": 7},
        ]


async def test_r4_2_a_reader_of_an_old_schema_is_told_when_a_value_does_not_fit(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        old = await all_tables.create("k INT, v INT, PRIMARY KEY (k) NOT ENFORCED")
        table = await old.alter("MODIFY v BIGINT")
        await table.put(("+", {"k": 1, "v": 5}))
        assert await old.lookup({"k": 1}) == [{"k": 1, "v": 5}]
        await table.put(("+", {"k": 1, "v": 1 << 40}))
        with pytest.raises(AssertionError, match="column 'v' has become wider than INT"):
            await old.lookup({"k": 1})


async def test_two_alters_at_once_are_both_carried_out(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, PRIMARY KEY (k) NOT ENFORCED")
        changes = [changes_to_json([AddColumn(f"c{n}", parse_type("INT"))]) for n in range(8)]
        answers = await asyncio.gather(*map(table.alter_answer, changes))
        assert [answer.error_code for answer in answers] == [0] * 8
        latest = await table.latest()
        assert sorted(latest.schema.names) == ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "k"]
        assert latest.schema.schema_id == 9
        assert len({column.id for column in latest.schema.columns}) == 9
        late = await table.alter_answer(changes[0].replace("c0", "d"), expected_schema_id=1)
        assert late.error_code == TableErrorCode.SCHEMA_CHANGED
        both = [
            table.alter_answer(changes_to_json([DropColumn("c1")])),
            table.alter_answer(changes_to_json([DropColumn("c1")])),
        ]
        codes = sorted(answer.error_code for answer in await asyncio.gather(*both))
        assert codes == [0, TableErrorCode.INVALID_TABLE]


async def test_writers_go_on_while_the_table_is_altered(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, v INT, PRIMARY KEY (k) NOT ENFORCED")

        async def write(start: int) -> None:
            for key in range(start, start + 40):
                answer = await table.put(("+", {"k": key % 7, "v": key}))
                assert answer.error_code == 0, answer.error_message

        async def alter() -> None:
            latest = table
            for number in range(10):
                latest = await latest.alter(f"ADD c{number} INT DEFAULT {number}")
                await asyncio.sleep(0.005)

        await asyncio.gather(write(0), write(1000), alter())
        latest = Table(table.broker, await table.latest())
        state = await latest.state()
        assert by_key(list(replay(await latest.changelog(), ["k"]).values()), "k") == by_key(state, "k")
        assert [row["c9"] for row in state] == [9] * 7


async def test_the_schema_is_not_changed_by_a_kafka_admin_and_its_history_stays(tmp_path: Path) -> None:
    from headrace.protocol.errors import KafkaError

    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, v INT, PRIMARY KEY (k) NOT ENFORCED")
        table = await table.alter("ADD w INT")
        changes = {"table.schema": "k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED"}
        with pytest.raises(KafkaError, match="is changed by ALTER TABLE"):
            await table.broker.context.topics.alter_config("default.t", changes)
        await table.broker.context.topics.alter_config("default.t", {"table.schema.history": None})
        await table.broker.context.topics.alter_config("default.t", {"table.log.ttl": "1 d"})
        assert (await table.latest()).history == table.definition.history
        with pytest.raises(KafkaError, match=r"it must have no 'table.schema.history'"):
            await table.broker.create_topic(
                "default.u",
                **{"table.schema": "k INT", "table.schema.history": '{"columns":[],"versions":[]}'},
            )


async def test_databases_have_comments_and_properties(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        pair = m.Property(key="owner", value="sales")
        send = all_tables.broker.send
        await send(m.CreateDatabaseRequest(name="shop", comment="all of it", properties=[pair]))
        await send(
            m.AlterDatabaseRequest(name="shop", set_properties=[m.Property(key="a", value="b")],
                                   reset_properties=["owner"])
        )  # fmt: skip
        await send(m.AlterDatabaseRequest(name="default", comment="the first"))
        answer = await send(m.AlterDatabaseRequest(name="nope", comment="x"))
        assert answer.error_code == TableErrorCode.DATABASE_NOT_FOUND
        large = [m.Property(key="a", value="x" * 70_000)]
        answer = await send(m.AlterDatabaseRequest(name="shop", set_properties=large))
        assert answer.error_code == TableErrorCode.INVALID_TABLE
    async with tables(tmp_path) as all_tables:
        shop = await all_tables.broker.send(m.DescribeDatabaseRequest(name="shop"))
        assert (shop.comment, shop.table_count) == ("all of it", 0)
        assert [(each.key, each.value) for each in shop.properties] == [("a", "b")]
        assert shop.created_at_ms > 0
        first = await all_tables.broker.send(m.DescribeDatabaseRequest(name="default"))
        assert (first.comment, first.created_at_ms) == ("the first", -1)
        dropped = await all_tables.broker.send(m.DropDatabaseRequest(name="shop"))
        assert dropped.error_code == 0
