"""The lake table follows ADD, DROP, RENAME and widening by column id; every snapshot is read in today's columns."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.lake.adapter import LakeError, RoundLostError
from headrace.tablelayer.lake.tiering_round import Outcome
from headrace.tablelayer.lake.union_read import merge_tail
from headrace.tablelayer.model.ddl import AlterTable, parse
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import evolve
from headrace.tablelayer.model.types.column_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TINYINT,
    binary,
    char,
    timestamp,
    timestamp_ltz,
)
from headrace.tablelayer.model.types.column_types import decimal as decimal_type
from headrace.tablelayer.spark.types import spark_type
from headrace.tablelayer.tests.lake.test_tiering import AFTER, DELETE, INSERT, World, definition, row

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def altered(table: TableDefinition, clauses: str) -> TableDefinition:
    (statement,) = parse(f"ALTER TABLE t {clauses}")
    assert isinstance(statement, AlterTable)
    return evolve(table, statement.changes)


def alter(world: World, clauses: str) -> None:
    world.table = world.log.table = altered(world.table, clauses)
    world.lake = world.tierer()


def as_spark(value: Any) -> Any:
    """Spark gives moments without their zone, which is UTC here."""
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value


def rows(world: World, snapshot: int | None = None) -> list[dict[str, Any]]:
    found = [each.asDict() for each in world.lake.read(snapshot).collect()]
    assert all(list(each) == world.table.schema.names for each in found)
    found.sort(key=lambda each: int(each["id"]))
    other = [
        {name: as_spark(value) for name, value in row.items()} for row in world.rows_without_spark(snapshot)
    ]
    assert sorted(other, key=lambda each: int(each["id"])) == found
    return found


def test_the_lake_follows_every_change_of_the_schema(spark: Any, warehouse: Path) -> None:
    world = World(spark, warehouse, definition())
    for key in range(4):
        world.log.add(INSERT, row(key, f"first {key}"))
    first = world.tier().snapshot
    price = decimal.Decimal("1.00")
    alter(
        world,
        "ADD `rank` INT NOT NULL DEFAULT 4 FIRST, ADD note STRING DEFAULT 'it''s', RENAME name TO title, "
        "DROP day, MODIFY tiny INT, MODIFY price DECIMAL(20, 2) COMMENT 'in euro', ADD day DATE DEFAULT '2024-02-29'",
    )
    leap = datetime.date(2024, 2, 29)

    def seen(key: int, **other: Any) -> dict[str, Any]:
        plain = {"rank": 4, "id": key, "title": f"first {key}", "price": price, "tiny": 7}
        return {**plain, "note": "it's", "day": leap, **other}

    # Before any round: the snapshot has the old columns, and is read in the new ones.
    assert rows(world) == rows(world, first) == [seen(key) for key in range(4)]
    tail = world.log.changes(world.lake.spark, {0: 2, 1: 2}, {0: 2, 1: 2})
    assert merge_tail(world.lake.read(first), tail, world.table, 0).count() == 4
    big = decimal.Decimal("123456789012345678.25")
    world.log.add(AFTER, seen(1, title="second", price=big, tiny=1 << 20, note=None, rank=5))
    world.log.add(DELETE, seen(2))
    world.log.add(INSERT, seen(9, day=None))
    assert world.tier().outcome is Outcome.COMMITTED
    expected = [
        seen(0), seen(1, title="second", price=big, tiny=1 << 20, note=None, rank=5), seen(3), seen(9, day=None),
    ]  # fmt: skip
    assert rows(world) == expected
    assert rows(world, first) == [seen(key) for key in range(4)]
    # The lake table itself has these columns: other engines see them too.
    raw = {each["id"]: each.asDict() for each in world.lake.spark.table(world.lake.name).collect()}
    assert raw[0] == {**seen(0)}
    assert raw[9]["day"] is None
    # The same name again, and two names exchanged: no old value appears anywhere.
    alter(world, "DROP note, ADD note STRING, RENAME title TO x, RENAME note TO title, RENAME x TO note")
    assert [(each["title"], each["note"]) for each in rows(world)] == [
        (None, "first 0"), (None, "second"), (None, "first 3"), (None, "first 9"),
    ]  # fmt: skip
    world.log.add(AFTER, {**rows(world)[0], "title": "new"})
    assert world.tier().outcome is Outcome.COMMITTED
    assert [(each["title"], each["note"]) for each in rows(world)][:2] == [
        ("new", "first 0"),
        (None, "second"),
    ]
    # Nothing new, and an older tierer: it loses and changes nothing.
    assert world.tier().outcome is Outcome.NOTHING_NEW
    stale = world.table
    alter(world, "ADD z INT")
    world.log.add(AFTER, {**rows(world)[0], "z": 1})
    assert world.tier().outcome is Outcome.COMMITTED
    world.table = stale
    with pytest.raises(RoundLostError, match="another tiering job committed first"):
        world.tierer().evolve()


def test_a_log_table_follows_too_with_every_kind_of_default(spark: Any, warehouse: Path) -> None:
    base = definition(primary_key=())
    columns = [("id", BIGINT), ("b", binary(2)), ("f", FLOAT), ("n", INT), ("s", STRING), ("t", BOOLEAN)]
    table = replace(base, schema=Schema.of(columns), bucket_key=("id",))
    world = World(spark, warehouse, table)
    old = {"id": 1, "b": b"\x01\x02", "f": 0.1, "n": 5, "s": "x", "t": True}
    world.log.add(INSERT, old)
    world.tier()
    alter(
        world,
        "MODIFY b BINARY(4), MODIFY f DOUBLE, MODIFY n BIGINT, ADD b1 BOOLEAN DEFAULT TRUE, ADD i1 TINYINT DEFAULT -3,"
        " ADD l1 BIGINT DEFAULT 1099511627776, ADD d1 DOUBLE DEFAULT 0.25, ADD p1 DECIMAL(5, 2) DEFAULT -1.5,"
        " ADD y1 BYTES DEFAULT X'00FF', ADD t1 TIMESTAMP(3) DEFAULT '2024-02-29 12:00:00.25',"
        " ADD z1 TIMESTAMP_LTZ(6) DEFAULT '2024-02-29 12:00:00'",
    )
    moment = datetime.datetime(2024, 2, 29, 12)
    new = {
        **old, "b": b"\x01\x02\x00\x00", "f": 0.10000000149011612, "b1": True, "i1": -3, "l1": 1 << 40, "d1": 0.25,
        "p1": decimal.Decimal("-1.50"), "y1": b"\x00\xff", "t1": moment.replace(microsecond=250_000), "z1": moment,
    }  # fmt: skip
    assert rows(world) == [new]
    world.log.add(INSERT, {**new, "id": 2, "n": 1 << 40, "b": b"abcd"})
    assert world.tier().outcome is Outcome.COMMITTED
    assert rows(world) == [new, {**new, "id": 2, "n": 1 << 40, "b": b"abcd"}]


def test_every_type_goes_there_and_back(spark: Any, warehouse: Path) -> None:
    """Our own reader returns it exactly; another engine sees TINYINT and SMALLINT as INT."""
    base = definition(primary_key=())
    day, moment = datetime.date(1969, 12, 31), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    utc = moment.replace(tzinfo=datetime.UTC)
    values: list[tuple[str, Any, Any]] = [
        ("id", BIGINT, 1 - 2**63), ("b", BOOLEAN, False), ("i1", TINYINT, -128), ("i2", SMALLINT, 32767),
        ("i4", INT, -(2**31)), ("f4", FLOAT, 0.5), ("f8", DOUBLE, -1e308), ("c", char(3), "abc"), ("s", STRING, "ä€"),
        ("d9", decimal_type(9, 4), decimal.Decimal("-12345.6789")),
        ("d38", decimal_type(38, 18), decimal.Decimal("12345678901234567890.123456789012345678")),
        ("day", DATE, day), ("t3", timestamp(3), moment.replace(microsecond=999_000)), ("t6", timestamp(6), moment),
        ("z3", timestamp_ltz(3), utc.replace(microsecond=1_000)), ("z6", timestamp_ltz(6), utc),
        ("x", binary(3), b"\x00\xff\x01"), ("y", BYTES, b""),
    ]  # fmt: skip
    schema = Schema.of([(name, kind) for name, kind, _ in values])
    world = World(spark, warehouse, replace(base, schema=schema, bucket_key=("id",)))
    full = {name: value for name, _, value in values}
    nulls = {**dict.fromkeys(full), "id": 0}
    world.log.add(INSERT, full)
    world.log.add(INSERT, nulls)
    assert world.tier().outcome is Outcome.COMMITTED
    plain = {
        name: value.replace(tzinfo=None) if name in ("z3", "z6") else value for name, value in full.items()
    }
    assert rows(world) == [plain, nulls]
    assert [field.dataType for field in world.lake.read().schema.fields] == [
        spark_type(kind, name) for name, kind, _ in values
    ]
    assert world.read_by_another() == [tuple(each.values()) for each in (full, nulls)]


def test_a_column_dropped_in_the_lake_stops_tiering(spark: Any, warehouse: Path) -> None:
    world = World(spark, warehouse, definition())
    world.log.add(INSERT, row(1, "a"))
    world.tier()
    world.lake.spark.sql(f"ALTER TABLE {world.lake.name} DROP COLUMN name")
    alter(world, "ADD z INT")
    world.log.add(AFTER, {**row(1, "b"), "z": 1})
    with pytest.raises(LakeError, match="has lost column 'name'"):
        world.tier()
