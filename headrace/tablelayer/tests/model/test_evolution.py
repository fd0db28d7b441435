"""Changes of tables: permitted changes, their results, and values that move between schemas."""

from __future__ import annotations

import datetime
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.ddl import (
    AlterDatabase,
    AlterTable,
    CreateTable,
    DdlError,
    create_table_sql,
    parse,
)
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.rows.stored import encode_rows
from headrace.tablelayer.model.rows.versions import Conversion, decode_stored, upgraded
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import (
    FIRST,
    AddColumn,
    DropColumn,
    ModifyColumn,
    RenameColumn,
    ResetOptions,
    SetOptions,
    SetTableComment,
    changes_from_json,
    changes_to_json,
    evolve,
    widens,
)
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.topic_config import changed_table, from_topic_config
from headrace.tablelayer.model.types import column_types as t
from headrace.tablelayer.model.types import values
from headrace.tablelayer.tests.model.random_rows import EVERY_TYPE, array_of, values_of

PATH = TablePath("default", "t")
COLUMNS = [("k", t.BIGINT), ("a", t.INT), ("b", t.STRING), ("d", t.decimal(5, 2))]


def table(**options: str) -> TableDefinition:
    return TableDefinition(PATH, Schema.of(COLUMNS, ["k"]), options=options)


def altered(definition: TableDefinition, clauses: str) -> TableDefinition:
    (statement,) = parse(f"ALTER TABLE t {clauses}")
    assert isinstance(statement, AlterTable)
    assert changes_from_json(changes_to_json(statement.changes)) == statement.changes
    return evolve(definition, statement.changes)


@pytest.mark.parametrize(
    ("sql", "changes"),
    [
        ("ADD c INT", [AddColumn("c", t.INT)]),
        ("ADD COLUMN IF NOT EXISTS c INT NOT NULL DEFAULT 5 COMMENT 'x' FIRST",
         [AddColumn("c", t.INT, False, "x", "5", FIRST, True)]),
        ("ADD (c INT AFTER a, d2 DATE LAST)", [AddColumn("c", t.INT, after="a"), AddColumn("d2", t.DATE)]),
        ("ADD COLUMNS (`column` INT)", [AddColumn("column", t.INT)]),
        ("DROP a, DROP COLUMN IF EXISTS b", [DropColumn("a"), DropColumn("b", True)]),
        ("DROP (a, b)", [DropColumn("a"), DropColumn("b")]),
        ("RENAME a TO c", [RenameColumn("a", "c")]),
        ("RENAME COLUMN a TO `the a`", [RenameColumn("a", "the a")]),
        ("MODIFY a BIGINT COMMENT '' AFTER d", [ModifyColumn("a", t.BIGINT, comment="", after="d")]),
        ("MODIFY (a BIGINT, d DECIMAL(9, 2))", [ModifyColumn("a", t.BIGINT), ModifyColumn("d", t.decimal(9, 2))]),
        ("ALTER COLUMN a TYPE BIGINT", [ModifyColumn("a", t.BIGINT)]),
        ("ALTER a SET DATA TYPE BIGINT", [ModifyColumn("a", t.BIGINT)]),
        ("ALTER a DROP NOT NULL", [ModifyColumn("a", nullable=True)]),
        ("ALTER a SET DEFAULT 7", [ModifyColumn("a", default="7")]),
        ("ALTER a DROP DEFAULT", [ModifyColumn("a", drop_default=True)]),
        ("ALTER a FIRST", [ModifyColumn("a", after=FIRST)]),
        ("SET ('table.log.ttl' = '1 d', 'segment.bytes' = '1048576')",
         [SetOptions({"table.log.ttl": "1 d"}), SetOptions({"segment.bytes": "1048576"})]),
        ("SET TBLPROPERTIES ('table.log.ttl' = '1 d')", [SetOptions({"table.log.ttl": "1 d"})]),
        ("RESET ('table.log.ttl')", [ResetOptions(("table.log.ttl",))]),
    ],
)  # fmt: skip
def test_alter_table_statement(sql, changes):
    assert parse(f"ALTER TABLE IF EXISTS t {sql}") == [AlterTable(PATH, tuple(changes), True)]


def test_comments_and_databases():
    assert parse(
        "COMMENT ON TABLE t IS 'all'; COMMENT ON COLUMN d.t.a IS NULL; COMMENT ON DATABASE d IS 'x'"
    ) == [
        AlterTable(PATH, (SetTableComment("all"),)),
        AlterTable(TablePath("d", "t"), (ModifyColumn("a", comment=""),)),
        AlterDatabase("d", comment="x"),
    ]
    assert parse("ALTER DATABASE d SET ('a' = 'b'); ALTER DATABASE d RESET ('a')") == [
        AlterDatabase("d", {"a": "b"}),
        AlterDatabase("d", {}, ("a",)),
    ]


@pytest.mark.parametrize(
    ("sql", "word", "reason"),
    [
        ("DROP k", "k", "is in the primary key (k): it cannot be dropped"),
        ("DROP x", "x", "has no column 'x'; its columns are k, a, b, d"),
        ("ADD a INT", "a", "already has a column 'a'"),
        ("ADD c INT NOT NULL", "c", "give it a DEFAULT"),
        ("ADD c INT AFTER x", "c", "has no column 'x'"),
        ("RENAME a TO b", "a", "already has a column 'b'"),
        ("MODIFY k INT", "k", "BIGINT and cannot become INT"),
        ("MODIFY a TINYINT", "a", "hold every value: BIGINT"),
        ("MODIFY a NOT NULL", "a", "cannot become NOT NULL"),
        ("MODIFY d DECIMAL(9, 3)", "d", "more digits and scale 2"),
        ("MODIFY b BYTES", "b", "hold every value: nothing else"),
        ("ALTER a SET DEFAULT 'x'", "a", "invalid default of column 'a': x is not a number"),
        ("ALTER a AFTER a", "a", "after itself"),
        ("ALTER k DROP NOT NULL", "k", "never null"),
        ("ADD c INT, DROP c, DROP c", "c", "has no column 'c'"),
        ("SET ('bucket.num' = '8')", "'bucket.num'", "the number of buckets"),
        ("SET ('table.changelog.image' = 'WAL')", "'table.changelog.image'", "fixed at creation"),
        ("RESET ('bucket.key')", "'bucket.key'", "the bucket key"),
        ("SET ('fields.a.agg' = 'sum')", "'fields.a.agg'", "keeps its function"),
    ],
)
def test_a_forbidden_change_points_at_its_word(sql, word, reason):
    (statement,) = parse(f"DROP TABLE u;\nALTER TABLE t {sql}")[1:]
    with pytest.raises(DdlError) as caught:
        statement.check(table())
    assert (caught.value.line, caught.value.word) == (2, word)
    assert reason in caught.value.reason
    with pytest.raises(TableError) as raised:
        evolve(table(), statement.changes)
    assert raised.value.code is TableErrorCode.INVALID_TABLE


def test_alter_statements_change_columns_options_and_history():
    first = table()
    second = altered(first, "ADD c INT DEFAULT 5 AFTER k, RENAME k TO id, MODIFY a BIGINT DEFAULT 1, DROP b")
    assert second.schema.names == ["id", "c", "a", "d"]
    assert [column.id for column in second.schema.columns] == [0, 4, 1, 3]
    assert (second.schema.schema_id, second.history) == (2, (first.schema,))
    assert second.schema.primary_key == second.bucket_key == ("id",)
    assert (second.schema.column("c").initial, second.schema.column("a").initial) == ("5", None)
    third = altered(second, "ADD b STRING, ALTER c SET DEFAULT 6")
    assert third.schema.column("b").id == 5
    assert (third.schema.column("c").default, third.schema.column("c").initial) == ("6", "5")
    assert altered(third, "SET ('table.log.ttl' = '1 d')").history == third.history
    assert altered(third, "MODIFY c COMMENT 'x'").schema.column("c").comment == "x"
    assert TableDefinition.from_json(third.to_json()) == third
    back = from_topic_config(PATH, third.bucket_count, third.to_topic_config())
    assert (back, back.versions.schemas) == (third, (*second.versions.schemas, third.schema))
    # The retention that followed an option is removed with it.
    ttl = altered(third, "SET ('table.log.ttl' = '1 d')")
    assert ttl.to_topic_config()["retention.ms"] == "86400000"
    assert altered(ttl, "RESET ('table.log.ttl')").to_topic_config() == third.to_topic_config()


@pytest.mark.parametrize(
    ("keys", "bucket_key", "partition_keys", "count", "refused"),
    [
        ([], (), (), 5, None),
        ([], (), (), 2, None),
        ([], (), (), 1, r"cannot become 1: .*\('bucket.num' = '1'\) LIKE t; INSERT INTO copy"),
        ([], (), (), 4097, "between 1 and 4096"),
        ([], ("k",), (), 5, "same bucket key .k. stay in one bucket"),
        ([], ("k",), ("d",), 5, None),
        (["k"], (), (), 5, "decides where the row of a key is"),
        (["k", "d"], (), ("d",), 5, "decides where the row of a key is"),
    ],
)
def test_buckets_are_added_where_no_key_has_its_bucket(keys, bucket_key, partition_keys, count, refused):
    columns = Schema.of([("k", t.INT), ("d", t.STRING)], keys)
    before = TableDefinition(PATH, columns, bucket_key, bucket_count=2, partition_keys=partition_keys)
    set_count = [SetOptions({"bucket.num": str(count)})]
    if refused is None:
        assert evolve(before, set_count).bucket_count == count
    else:
        with pytest.raises(TableError, match=refused):
            evolve(before, set_count)


def test_options_that_name_columns_follow_them():
    columns = Schema.of([("k", t.INT), ("v", t.INT)], ["k"])
    options = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"}
    versioned = TableDefinition(PATH, columns, options=options)
    renamed = altered(versioned, "RENAME v TO version")
    assert renamed.options["table.merge-engine.versioned.ver-column"] == "version"
    with pytest.raises(TableError, match="is named by option"):
        altered(versioned, "DROP v")
    summed = TableDefinition(
        PATH, columns, options={"table.merge-engine": "aggregation", "fields.v.agg": "sum"}
    )
    more = altered(summed, "ADD w INT, SET ('fields.w.agg' = 'max'), RENAME v TO total")
    assert create_table_sql(more).count("'fields.total.agg' = 'sum'") == 1
    assert create_table_sql(more).count("'fields.w.agg' = 'max'") == 1
    with pytest.raises(TableError, match="keeps its function"):
        altered(more, "SET ('fields.total.agg' = 'max')")


def test_only_the_next_schema_of_the_one_that_is_there_is_accepted():
    first = table()
    second, other = altered(first, "ADD c INT"), altered(first, "ADD d2 INT")
    configs = [each.to_topic_config() for each in (first, second, other)]
    assert changed_table(PATH, 1, configs[0], configs[1]).to_topic_config() == configs[1]
    with pytest.raises(TableError) as caught:
        changed_table(PATH, 1, configs[1], configs[2])
    assert caught.value.code is TableErrorCode.INVALID_TABLE
    third = altered(other, "ADD e INT").to_topic_config()
    with pytest.raises(TableError) as caught:
        changed_table(PATH, 1, configs[1], third)
    assert caught.value.code is TableErrorCode.SCHEMA_CHANGED
    assert not caught.value.retriable
    assert caught.value.code.needs_refresh


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_table_that_was_altered_is_written_and_parsed_back(seed):
    rng = random.Random(seed)
    definition = table()
    for number in range(8):
        clause = rng.choice(
            [
                f"ADD c{number} STRING DEFAULT 'it''s {number}' FIRST", f"ADD c{number} FLOAT DEFAULT -1e30",
                f"ADD c{number} BYTES DEFAULT X'00FF'", f"RENAME {rng.choice(definition.schema.names)} TO r{number}",
                f"ADD c{number} TIMESTAMP_LTZ(3) DEFAULT '2024-02-29 12:00:00+02:00'",
                f"ADD c{number} DOUBLE NOT NULL DEFAULT CAST('nan' AS DOUBLE) COMMENT 'n'",
                f"DROP {rng.choice(definition.schema.names)}", "SET ('table.log.ttl' = '3 h')",
            ]
        )  # fmt: skip
        try:
            definition = altered(definition, clause)
        except TableError:
            continue
    assert parse(create_table_sql(definition)) == [CreateTable(definition.as_created())]
    assert TableDefinition.from_json(definition.to_json()) == definition


PLAIN = [each for each in EVERY_TYPE if each.kind not in (t.TypeKind.TIME, t.TypeKind.TIMESTAMP)]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_default_of_every_type_is_kept_exactly(data):
    data_type = data.draw(st.sampled_from(PLAIN))
    if data_type.kind is t.TypeKind.TIMESTAMP_LTZ:
        value = data.draw(st.datetimes(timezones=st.just(datetime.UTC)))
        value = value.replace(microsecond=value.microsecond // 1000 * 1000)
    else:
        value = array_of(data_type, [data.draw(values_of(data_type))])[0].as_py()
    text = values.canonical(value, data_type)
    assert values.normal(text, data_type) == text
    assert values.scalar(text, data_type) == pa.scalar(value, data_type.arrow())
    column = Column(0, "c", data_type, default=text)
    definition = TableDefinition(PATH, Schema.of([column]))
    assert parse(create_table_sql(definition)) == [CreateTable(definition)]


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("1.255", t.decimal(5, 2)), ("1000", t.decimal(5, 2)), ("128", t.TINYINT), ("1.5", t.INT),
        ("abcdef", t.char(5)),
        ("CA", t.binary(2)), ("x", t.BYTES), ("maybe", t.BOOLEAN), ("2024-02-30", t.DATE), ("25:00:00", t.time(0)),
        ("12:00:00.5", t.time(0)), ("2024-01-01 00:00:00.0005", t.timestamp(3)),
        ("2024-01-01 00:00:00Z", t.timestamp(3)),
    ],
)  # fmt: skip
def test_a_default_that_does_not_fit_is_refused(text, data_type):
    with pytest.raises(ValueError, match=r".+"):
        values.normal(text, data_type)
    with pytest.raises(TableError):
        TableDefinition(PATH, Schema.of([Column(0, "c", data_type, default=text)]))


WIDENINGS = [
    (t.TINYINT, t.INT), (t.INT, t.BIGINT), (t.FLOAT, t.DOUBLE), (t.decimal(15, 2), t.decimal(38, 2)),
    (t.char(5), t.char(9)), (t.char(5), t.STRING), (t.binary(3), t.binary(7)), (t.binary(3), t.BYTES),
]  # fmt: skip


def test_types_become_wider_and_never_anything_else():
    for one in EVERY_TYPE:
        for other in EVERY_TYPE:
            if one != other and widens(one, other):
                assert not widens(other, one)
    assert all(widens(old, new) for old, new in WIDENINGS)
    for old, new in [
        (t.INT, t.DOUBLE),
        (t.STRING, t.char(9)),
        (t.decimal(5, 2), t.decimal(9, 3)),
        (t.DATE, t.STRING),
    ]:
        assert not widens(old, new)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_r4_2_stored_rows_of_several_schemas_in_one_batch_are_read_in_any_of_them(data):
    """The result is compared with plain Python, by column id; some rows in between do not exist."""
    old_types = data.draw(st.lists(st.sampled_from(WIDENINGS), min_size=1, max_size=4))
    first = Schema.of([("k", t.INT), *((f"c{i}", old) for i, (old, _) in enumerate(old_types))])
    columns = [Column(0, "k", t.INT)]
    columns += [
        Column(i + 1, f"n{i}", new) for i, (_, new) in enumerate(old_types) if data.draw(st.booleans())
    ]
    columns.append(Column(99, "added", t.INT, default="6", initial="5"))
    data.draw(st.randoms()).shuffle(columns)
    second = Schema(2, tuple(columns))
    versions = TableDefinition(PATH, second, history=(first,)).versions
    stored: list[bytes | None] = []
    expected: list[dict[str, object]] = []
    for number in range(data.draw(st.integers(0, 6))):
        kind = data.draw(st.sampled_from(["first", "second", "absent"]))
        if kind == "absent":
            stored.append(None)
            expected.append(dict.fromkeys(second.names))
            continue
        schema = first if kind == "first" else second
        narrow = {0: t.INT, **{i + 1: old for i, (old, _) in enumerate(old_types)}}
        row = {}
        for column in schema.columns:
            drawn = data.draw(st.none() | values_of(narrow.get(column.id, t.INT)))
            if column.type.kind is t.TypeKind.BINARY and drawn is not None:
                drawn = drawn.ljust(column.type.length, b"\0")
            row[column.id] = number if column.id == 0 else drawn
        arrays = [array_of(column.type, [row[column.id]]) for column in schema.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow())
        stored += encode_rows(batch, schema).to_pylist()
        seen = batch.to_pylist()[0]
        found: dict[str, object] = {}
        for column in second.columns:
            if column.id not in row:
                found[column.name] = 5
                continue
            value = seen[next(each.name for each in schema.columns if each.id == column.id)]
            if isinstance(value, bytes) and column.type.kind is t.TypeKind.BINARY:
                value = value.ljust(column.type.length, b"\0")
            found[column.name] = value
        expected.append(found)
    array = pa.array(stored, pa.binary())
    assert decode_stored(array, versions, second).to_pylist() == expected
    chosen = sorted(data.draw(st.sets(st.integers(0, len(columns) - 1), min_size=1)))
    names = [second.names[position] for position in chosen]
    some = decode_stored(array, versions, second, chosen).to_pylist()
    assert some == [{name: row[name] for name in names} for row in expected]
    new = upgraded(stored, versions)
    assert [value is None for value in new] == [value is None for value in stored]
    alone = TableDefinition(PATH, second).versions
    assert decode_stored(pa.array(new, pa.binary()), alone, second).to_pylist() == expected


def test_an_old_schema_reads_dropped_columns_as_null_and_wider_values_fail():
    old = Schema.of([("a", t.INT), ("b", t.STRING)])
    new = Schema(2, (Column(0, "x", t.BIGINT), Column(2, "b", t.STRING)))
    batch = pa.RecordBatch.from_pydict({"x": [1, 2], "b": ["p", "q"]}, schema=new.arrow())
    conversion = Conversion.between(new, old)
    assert conversion.of(batch).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": None}]
    large = pa.RecordBatch.from_pydict({"x": [1 << 40], "b": [None]}, schema=new.arrow())
    with pytest.raises(TableError, match="open the table again") as caught:
        conversion.of(large)
    assert caught.value.code is TableErrorCode.SCHEMA_CHANGED
    required = Schema(1, (Column(0, "a", t.INT), Column(1, "b", t.STRING, nullable=False, default="none")))
    rows = pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int32())})
    found = Conversion.between(Schema(2, (Column(0, "a", t.INT),)), required).of(rows)
    assert found.to_pylist() == [{"a": 1, "b": "none"}]


def test_a_value_that_does_not_fit_into_an_old_readers_binary_is_told_and_not_cut():
    old, new = Schema(1, (Column(0, "b", t.binary(2)),)), Schema(2, (Column(0, "b", t.binary(4)),))
    conversion = Conversion.between(new, old)

    def rows(*values):
        return pa.RecordBatch.from_arrays([pa.array(values, pa.binary(4))], schema=new.arrow())

    assert conversion.of(rows(b"ab\0\0", None)).to_pylist() == [{"b": b"ab"}, {"b": None}]
    for large in (b"abc\0", b"ab\0d"):
        with pytest.raises(TableError, match="a value has more than 2 bytes"):
            conversion.of(rows(b"ab\0\0", large))


def test_r4_2_the_id_of_a_dropped_column_is_not_reused():
    first = table()
    dropped = altered(first, "DROP d")
    assert max(column.id for column in dropped.schema.columns) < first.schema.column("d").id
    again = altered(dropped, "ADD d DECIMAL(5, 2)")
    assert again.schema.column("d").id == first.schema.column("d").id + 1


def test_r20_4_a_nested_column_changes_as_a_whole():
    nested = {"l": "ARRAY<INT NOT NULL>", "m": "MAP<INT, CHAR(2)>", "r": "ROW<a INT, b STRING>"}
    columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in nested.items())
    (created,) = parse(f"CREATE TABLE t (k BIGINT, {columns}, PRIMARY KEY (k) NOT ENFORCED)")
    first = created.definition
    for name, kind in nested.items():
        changed = altered(first, f"ADD x {kind} AFTER {name}, RENAME {name} TO y, ALTER y DROP NOT NULL")
        assert (
            changed.schema.column("x").type
            == changed.schema.column("y").type
            == first.schema.column(name).type
        )
        assert changed.schema.column("y").id == first.schema.column(name).id
        assert changed.schema.column("y").nullable
        assert name not in altered(first, f"DROP {name}").schema
        again = altered(first, f"DROP {name}, ADD {name} {kind}").schema.column(name)
        assert again.id not in {column.id for column in first.schema.columns}
    for name, wider in (
        ("l", "ARRAY<INT>"), ("l", "ARRAY<BIGINT NOT NULL>"), ("m", "MAP<BIGINT, CHAR(2)>"), ("m", "MAP<INT, CHAR(3)>"),
        ("r", "ROW<a BIGINT, b STRING>"), ("r", "ROW<a INT, b STRING, c INT>"), ("r", "ROW<a INT>"), ("r", "STRING"),
    ):  # fmt: skip
        with pytest.raises(TableError, match="the types inside of a nested type"):
            altered(first, f"MODIFY {name} {wider}")
