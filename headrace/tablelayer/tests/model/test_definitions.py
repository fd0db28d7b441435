"""Types, schemas, options and definitions: accepted and refused ones, and their encodings."""

from __future__ import annotations

import pickle
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.ddl import CreateTable, create_table_sql, parse
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.options.option import markdown_rows
from headrace.tablelayer.model.options.option_types import format_duration, parse_duration_ms
from headrace.tablelayer.model.options.table_options import (
    DECLARED,
    ChangelogImage,
    DatalakeFormat,
    DeleteBehavior,
    TableOptions,
)
from headrace.tablelayer.model.schema.aggregates import Aggregate, AggregateFunction
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.topic_config import changed_table, from_topic_config
from headrace.tablelayer.model.types import column_types as t
from headrace.tablelayer.model.types.text import parse_type

TABLE = UUID("6f7c2a52-92f4-4f0e-8f2b-7d6a0a4f1c11")
PATH = TablePath("shop", "orders")

data_types = st.one_of(
    st.sampled_from([t.BOOLEAN, t.TINYINT, t.SMALLINT, t.INT, t.BIGINT, t.FLOAT, t.DOUBLE, t.STRING, t.DATE]),
    st.just(t.BYTES),
    st.integers(1, 2**31 - 1).map(t.char),
    st.integers(1, 2**31 - 1).map(t.binary),
    st.integers(0, 9).map(t.time),
    st.integers(0, 9).map(t.timestamp),
    st.integers(0, 9).map(t.timestamp_ltz),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: t.decimal(p, s))),
)
map_keys = data_types
data_types = st.recursive(
    data_types,
    lambda inner: st.one_of(
        st.builds(t.array_of, inner, nullable=st.booleans()),
        st.builds(t.map_of, map_keys, inner, nullable=st.booleans()),
        st.lists(
            st.builds(t.Field, st.deferred(lambda: column_names), inner, st.booleans(),
                      st.none() | st.deferred(lambda: free_texts)),
            min_size=1, max_size=3, unique_by=lambda field: field.name,
        ).map(lambda fields: t.row_of(*fields)),
    ),
    max_leaves=4,
)  # fmt: skip
column_names = st.one_of(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
    st.sampled_from(["primary", "key", "constraint", "watermark", "select", "größe", "two words", "it's", "-", "1st"]),
    st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="`,"), min_size=1, max_size=5),
)  # fmt: skip
free_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
path_names = st.from_regex(r"[A-Za-z0-9-][A-Za-z0-9_-]{0,20}", fullmatch=True)


@st.composite
def definitions(draw, max_buckets=4096):
    names = draw(st.lists(column_names, min_size=1, max_size=6, unique_by=str.lower))
    columns = [
        Column(0, name, draw(data_types), draw(st.booleans()), draw(st.none() | free_texts)) for name in names
    ]
    plain = [column.name for column in columns if not column.type.is_nested]
    key = draw(st.lists(st.sampled_from(plain), unique=True, max_size=3)) if plain else []
    bucket_key = draw(st.lists(st.sampled_from(key or plain), unique=True, max_size=2)) if plain else []
    options = {
        "table.log.ttl": ["7 d", "90 s", "1500ms"],
        "table.log.arrow.compression.type": ["ZSTD", "lz4_frame", "NONE"],
        "table.datalake.freshness": ["3min", "10 s"],
        "table.kafka.unknown-fields": ["fail", "ignore"],
        "segment.bytes": ["1048576"],
    }
    if key:
        options |= {
            "table.delete.behavior": ["allow", "IGNORE", "DISABLE"],
            "table.changelog.image": ["WAL", "full"],
            "table.kafka.changelog": ["full", "compact"],
        }
    given_options = {
        name: draw(st.sampled_from(values))
        for name, values in options.items()
        if draw(st.integers(0, 3)) == 0
    }
    bucket_count = draw(st.integers(1, max_buckets))
    if draw(st.booleans()) and (bucket_count == 1 or not (bucket_key or key)):
        given_options["table.datalake.enabled"] = "true"
    return TableDefinition(
        TablePath(draw(path_names), draw(path_names)),
        Schema.of(columns, key),
        tuple(bucket_key),
        bucket_count,
        given_options,
        draw(st.none() | free_texts),
    )


@settings(max_examples=100, deadline=None)
@given(definitions(), st.none() | st.uuids())
def test_definition_goes_out_and_comes_back_in_every_form(definition, table_id):
    definition = definition if table_id is None else definition.with_id(table_id)
    assert TableDefinition.from_json(definition.to_json()) == definition
    assert pickle.loads(pickle.dumps(definition)) == definition
    config = definition.to_topic_config()
    again = from_topic_config(definition.path, definition.bucket_count, config)
    assert (again if table_id is None else again.with_id(table_id)) == definition
    assert again.to_topic_config() == config
    assert again.settings == definition.settings


@settings(max_examples=100, deadline=None)
@given(definitions())
def test_create_table_sql_is_parsed_back(definition):
    assert parse(create_table_sql(definition)) == [CreateTable(definition)]


@given(data_types)
def test_type_is_parsed_back(data_type):
    assert parse_type(str(data_type)) == data_type
    if not data_type.is_nested:  # names and comments keep their case
        assert parse_type(str(data_type).lower()) == data_type
    widest = t.from_arrow(data_type.arrow())
    assert widest.arrow() == data_type.arrow()


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("integer", t.INT), ("decimal", t.decimal(10, 0)), ("NUMERIC(5)", t.decimal(5, 0)), ("CHAR", t.char(1)),
        ("double precision", t.DOUBLE),
        ("TIMESTAMP", t.timestamp(6)), ("TIME", t.time(0)),
        ("timestamp(3) with local time zone", t.timestamp_ltz(3)),
        ("TIMESTAMP(3) WITHOUT TIME ZONE", t.timestamp(3)),
    ],
)  # fmt: skip
def test_type_synonyms_and_defaults(text, data_type):
    assert parse_type(text) == data_type


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("VARCHAR(5)", "use STRING"),
        ("ARRAY", "expected '<'"),
        ("ARRAY<INT", "expected '>', but the text ends here"),
        ("MAP<INT>", "the type of the values"),
        ("MAP<ARRAY<INT>, INT>", "a key cannot be of the nested type ARRAY"),
        ("ROW<>", "the name of a field"),
        ("ROW<a INT, a INT>", "'a' is given twice"),
        ("ROW<a INT b>", "expected ',' or '>'"),
        ("STRUCT<a: INT>", "use ROW"),
        ("MULTISET<INT>", "use MAP"),
        ("INT NOT NULL", "is not a type"),
        ("ARRAY<" * 16 + "INT" + ">" * 16, "nested at most 16 levels deep"),
        ("ROW<" + ", ".join(f"f{i} INT" for i in range(1001)) + ">", "at most 1000 types"),
        ("INT(5)", "has no parameters"),
        ("DECIMAL(39, 2)", "between 1 and 38"),
        ("DECIMAL(5, 6)", "between 0 and the precision"),
        ("CHAR(0)", "between 1 and"),
        ("TIMESTAMP(10)", "between 0 and 9"),
        ("DECIMAL(a)", "whole numbers"),
        ("BIGNUM", "is not known"),
        ("", "is not a type"),
    ],
)
def test_type_is_refused(text, reason):
    with pytest.raises(TableError, match=reason) as caught:
        parse_type(text)
    assert caught.value.code is TableErrorCode.INVALID_TABLE


@pytest.mark.parametrize(
    "arrow_type", [pa.list_(pa.null()), pa.uint64(), pa.null(), pa.decimal256(50, 2), pa.duration("s")]
)
def test_arrow_type_that_no_column_holds_is_refused(arrow_type):
    with pytest.raises(TableError, match="no column type can hold"):
        t.from_arrow(arrow_type)


def orders(key=("id",), bucket_key=(), bucket_count=1, **options):
    schema = Schema.of([("id", t.BIGINT), ("line", t.INT), ("price", t.DOUBLE), ("note", t.STRING)], key)
    return TableDefinition(
        PATH, schema, bucket_key, bucket_count, {k.replace("__", "."): v for k, v in options.items()}
    )


def test_defaults_are_those_of_the_documentation():
    definition = orders()
    assert definition.bucket_key == ("id",)
    assert definition.schema.column("id").nullable is False
    assert definition.settings == TableOptions({})
    assert definition.settings.log_ttl_ms == 7 * 86_400_000
    assert definition.settings.delete_behavior is DeleteBehavior.ALLOW
    assert definition.settings.changelog_image is ChangelogImage.FULL
    assert definition.settings.datalake_format is None
    assert orders(key=()).bucket_key == ()


def test_bucket_options_are_folded_into_the_fields():
    definition = TableDefinition(
        PATH, orders(("id", "line")).schema, options={"bucket.num": "8", "bucket.key": " id "}
    )
    assert (definition.bucket_count, definition.bucket_key, definition.options) == (8, ("id",), {})
    assert definition.allows_prefix_lookup
    assert not orders(("id", "line")).allows_prefix_lookup
    assert not orders(("id", "line"), bucket_key=("line",)).allows_prefix_lookup


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"bucket_count": -1}, "between 1 and 4096"),
        ({"bucket_count": 4097}, "between 1 and 4096"),
        ({"key": ("nope",)}, "primary key column 'nope' is not a column"),
        ({"key": ("id", "id")}, "twice in the primary key"),
        ({"bucket_key": ("line",)}, "'line' is not in the primary key"),
        ({"key": (), "bucket_key": ("nope",)}, "'nope' is not a column"),
        ({"key": (), "table__delete__behavior": "IGNORE"}, "for tables with a primary key"),
        ({"key": (), "table__changelog__image": "WAL"}, "for tables with a primary key"),
        ({"key": (), "table__kafka__changelog": "full"}, "for tables with a primary key"),
        ({"table__delete__behavior": "MAYBE"}, "'ALLOW' or 'IGNORE' or 'DISABLE'"),
        ({"table__log__ttl": "soon"}, "a duration is a number and a unit"),
        ({"table__log__ttl": "0"}, "at least 1 ms"),
        ({"table__log__tll": "1 d"}, "did you mean 'table.log.ttl'"),
        ({"table__kv__format": "x"}, "not in this release"),
        ({"table__log__tiered__local_segments": "2"}, "'remote.storage.enable' = 'true'"),
        ({"table.kv.standby-replica.enabled": "true"}, "'table.replication.factor'"),
        ({"table__datalake__enabled": "perhaps"}, "'true' or 'false'"),
        ({"table__datalake__format": "delta"}, "'iceberg'"),
        ({"key": ("id", "line"), "bucket_count": 2, "table__datalake__format": "iceberg"}, "use one column"),
        (
            {"key": ("price",), "bucket_count": 2, "table__datalake__format": "iceberg"},
            "no bucket function for DOUBLE",
        ),
        (
            {"paimon__snapshot": "5"},
            "'paimon.snapshot' is for tables with 'table.datalake.format' = 'paimon'",
        ),
        ({"table__datalake__format": "paimon", "paimon__bucket": "5"}, "tiering into Paimon sets it itself"),
        (
            {"table__datalake__format": "paimon", "iceberg__a": "5"},
            "'iceberg.a' is for tables with .*'iceberg'",
        ),
        (
            {"table__datalake__enabled": "true", "iceberg__write__merge__mode": "x"},
            "into Iceberg sets it itself",
        ),
        ({"table__datalake__enabled": "true", "iceberg__": "x"}, "does not name an option of Iceberg"),
        ({"table__datalake__format": "paimon", "paimon__scan__mode": "x"}, "sets it itself"),
        (
            {"table__datalake__format": "paimon", "paimon__changelog-producer": "input"},
            "'lookup', 'full-comp",
        ),
    ],
)
def test_definition_is_refused(arguments, reason):
    with pytest.raises(TableError, match=reason) as caught:
        orders(**arguments)
    assert caught.value.code is TableErrorCode.INVALID_TABLE


def test_iceberg_tables_with_one_bucket_or_one_bucket_column_are_fine():
    assert orders(("id", "line"), table__datalake__format="iceberg").bucket_format is DatalakeFormat.ICEBERG
    assert orders(("id", "line"), ("id",), 4, table__datalake__format="iceberg")
    assert orders(table__datalake__enabled="true").bucket_format is None, "the server chooses"
    passed = orders(table__datalake__enabled="true", iceberg__history__expire__a=" 1 ")
    assert passed.to_topic_config()["iceberg.history.expire.a"] == " 1 "


def test_paimon_takes_bucket_keys_of_every_type_and_its_own_options():
    options = {"table.datalake.format": "paimon", "paimon.changelog-producer": "lookup", "paimon.a": " x "}
    lake = TableDefinition(PATH, orders(("id", "price")).schema, ("id", "price"), 4, options)
    assert lake.bucket_format is DatalakeFormat.PAIMON
    config = lake.to_topic_config()
    assert config["paimon.a"] == " x "
    assert from_topic_config(PATH, 4, config) == lake


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ([], "at least one column"),
        ([("a", t.INT), ("a", t.INT)], "given twice"),
        ([("__offset", t.INT)], "reserved"),
        ([("_change_type", t.INT)], "reserved"),
        ([("", t.INT)], "1 to 255 characters"),
        ([("a`b", t.INT)], "backticks, commas"),
        ([("a\nb", t.INT)], "control characters"),
        ([(f"c{index}", t.INT) for index in range(1001)], "at most 1000 columns"),
    ],
)
def test_schema_is_refused(columns, reason):
    with pytest.raises(TableError, match=reason):
        Schema.of(columns)


def test_lake_tables_need_names_that_differ_by_more_than_case():
    schema = Schema.of([("a", t.INT), ("A", t.INT)])
    TableDefinition(PATH, schema)
    with pytest.raises(TableError, match="differ only by case"):
        TableDefinition(PATH, schema, options={"table.datalake.enabled": "true"})


@pytest.mark.parametrize(
    "text",
    [
        "a.b.",
        "a.b.c d",
        "a.b..c",
        "a.b.__c",
        "a.",
        ".b",
        "a b.c",
        "x" * 201,
        "__x.t",
        "d." + "y" * 248,
        "ä.t",
        "d.t$lake",
    ],
)
def test_path_is_refused(text):
    with pytest.raises(TableError):
        TablePath.parse(text)


def test_paths():
    assert TablePath.parse("t") == TablePath("default", "t")
    assert TablePath.parse("t", "shop") == TablePath("shop", "t")
    assert TablePath.parse("d.t").topic == str(TablePath("d", "t")) == "d.t"


def test_topic_configuration_as_a_kafka_client_writes_it():
    config = {
        "table.schema": "id BIGINT, line INT COMMENT 'of the order', price DECIMAL(15,2)",
        "table.primary-key": "id, line",
        "table.bucket-key": "id",
        "retention.ms": "1000",
    }
    definition = from_topic_config(PATH, 3, config).with_id(TABLE)
    assert definition.schema.primary_key == ("id", "line")
    assert definition.bucket_key == ("id",)
    assert (definition.bucket_count, definition.table_id) == (3, TABLE)
    normal = definition.to_topic_config()
    assert normal["table.schema"].startswith("{")
    assert "table.primary-key" not in normal
    assert normal["retention.ms"] == "1000"
    for change, reason in [
        ({"table.schema": None}, "a table needs 'table.schema'"),
        ({"table.schema": "id BIGNT"}, "type BIGNT is not known"),
        ({"table.schema": '{"columns": 5}'}, "a schema in JSON must be"),
        ({"table.schema": "id INT PRIMARY KEY NOT ENFORCED, line INT"}, "says PRIMARY KEY"),
        ({"table.log.ttl": "2 s"}, "contradict"),
    ]:
        bad = {name: value for name, value in {**config, **change}.items() if value is not None}
        with pytest.raises(TableError, match=reason):
            from_topic_config(PATH, 3, bad)


def test_time_to_live_drives_retention():
    config = orders(table__log__ttl="2 h").to_topic_config()
    assert config["retention.ms"] == "7200000"
    changed = changed_table(PATH, 1, config, {**config, "table.log.ttl": "3 h"}).to_topic_config()
    assert (changed["retention.ms"], changed["table.log.ttl"]) == ("10800000", "3 h")
    without = {name: value for name, value in config.items() if name != "table.log.ttl"}
    assert "retention.ms" not in changed_table(PATH, 1, config, without).to_topic_config()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"table.schema": "id BIGINT, line INT"}, "schema of table"),
        ({"table.bucket-key": "id"}, "bucket key"),
        ({"table.delete.behavior": "DISABLE"}, "fixed at creation"),
        ({"table.datalake.format": "iceberg"}, "not computed by the lake's function"),
    ],
)
def test_options_fixed_at_creation_cannot_be_changed(change, reason):
    old = orders(("id", "line"), bucket_count=2).to_topic_config()
    if "table.datalake.format" in change:
        old = orders(bucket_count=2).to_topic_config()
    with pytest.raises(TableError, match=reason):
        changed_table(PATH, 2, old, {**old, **change})


def test_changeable_options_of_a_table_are_changed():
    old = orders().to_topic_config()
    new = changed_table(
        PATH, 1, old, {**old, "table.datalake.format": "paimon", "segment.bytes": "2097152"}
    ).to_topic_config()
    assert new["table.datalake.format"] == "paimon"
    assert new["segment.bytes"] == "2097152"
    lake = orders(bucket_count=4, table__datalake__format="iceberg").to_topic_config()
    assert changed_table(PATH, 4, lake, {**lake, "table.datalake.enabled": "true"})


def test_every_option_has_a_sound_default_and_documentation():
    for name, option in DECLARED.items():
        assert option.name == name
        assert option.doc.endswith(".")
        if option.default_text is not None:
            assert (
                option.value_type.render(option.value_type.parse(option.default_text)) == option.default_text
            )
        if option.default is not None:
            assert option.value_type.parse(option.default_text) == option.default


def test_the_page_lists_every_option_with_its_words():
    expected = markdown_rows(DECLARED[name] for name in sorted(DECLARED))
    lines = (Path(__file__).parents[2] / "OPTIONS.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("| `")] == expected, "\n".join(expected)


PARTITIONED_ONLY = sorted(name for name, option in DECLARED.items() if option.partitioned_only)


@pytest.mark.parametrize("name", PARTITIONED_ONLY)
def test_options_of_partitioned_tables_are_refused_for_others(name):
    with pytest.raises(TableError, match="is for tables with PARTITIONED BY"):
        orders(**{name: DECLARED[name].default_text or "UTC"})


def test_a_declaration_is_read_from_the_class_and_its_value_from_a_table():
    assert TableOptions.kv_ttl_ms is DECLARED["table.kv.ttl"]
    assert defined(table__kv__ttl="2 h").settings.kv_ttl_ms == 7_200_000
    assert defined().settings.kv_ttl_ms is None
    with pytest.raises(AttributeError, match="cannot be set"):
        defined().settings.kv_ttl_ms = 1


@given(st.integers(1, 10**12))
def test_duration_is_parsed_back(milliseconds):
    assert parse_duration_ms(format_duration(milliseconds)) == milliseconds


def test_errors_survive_pickling_and_know_whether_to_retry():
    row = pickle.loads(pickle.dumps(RowError(3, "price", "too long")))
    assert (row.index, row.column, row.reason, row.message) == (
        3,
        "price",
        "too long",
        "row 3, column 'price': too long",
    )
    full = pickle.loads(pickle.dumps(TableError(TableErrorCode.BUFFER_EXHAUSTED, "later")))
    assert full.retriable
    assert not row.retriable


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"database":"d"}', '{"database":"d","table":"t","schema":[]}', "[" * 100_000]
)
def test_json_that_is_not_a_definition_is_refused(text):
    with pytest.raises(TableError) as caught:
        TableDefinition.from_json(text)
    assert caught.value.code is TableErrorCode.INVALID_TABLE


VERSION = "table.merge-engine.versioned.ver-column"
WITH_KEY = (
    "id BIGINT, n INT, s STRING, ts TIMESTAMP(3), flag BOOLEAN, raw BYTES, PRIMARY KEY (id) NOT ENFORCED"
)


def defined(columns: str = WITH_KEY, **options: str) -> TableDefinition:
    from headrace.tablelayer.model.ddl.clauses import parse_columns

    named = {name.replace("__", "."): value for name, value in options.items()}
    return TableDefinition(PATH, parse_columns(columns), options=named)


def refused(options, reason):
    with pytest.raises(TableError, match=reason) as caught:
        defined(**options)
    assert caught.value.code is TableErrorCode.INVALID_TABLE


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table__merge-engine": "first_row", "table__delete__behavior": "ALLOW"}, "no deletes"),
        ({"table__merge-engine": "versioned", VERSION: "n", "table__delete__behavior": "ALLOW"}, "no deletes"),
    ],
)  # fmt: skip
def test_r5_no_deletes_where_the_engine_cannot_take_them(options, reason):
    refused(options, reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table__merge-engine": "versioned"}, "must be given"),
        ({"table__merge-engine": "versioned", VERSION: "nope"}, "no column 'nope'"),
        ({"table__merge-engine": "versioned", VERSION: "s"}, "version column 's' is STRING"),
        ({VERSION: "n"}, "is for 'table.merge-engine' = 'versioned'"),
        ({"table__merge-engine": "aggregation", VERSION: "n"}, "is for 'table.merge-engine'"),
    ],
)  # fmt: skip
def test_r8_the_version_is_a_column_that_can_be_one(options, reason):
    refused(options, reason)


def test_r9_3_an_aggregation_has_the_full_changelog():
    refused({"table__merge-engine": "aggregation", "table__changelog__image": "WAL"}, "full changelog")
    settings = defined(**{"table.merge-engine": "aggregation", "table.changelog.image": "FULL"}).settings
    assert settings.changelog_image is ChangelogImage.FULL


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fields__n__agg": "sum"}, "does not aggregate"),
        ({"table__merge-engine": "first_row", "fields__n__agg": "sum"}, "does not aggregate"),
        ({"table__merge-engine": "aggregation", "fields__s__agg": "sum"}, "sum does not accept STRING"),
        ({"table__merge-engine": "aggregation", "fields__flag__agg": "max"}, "max does not accept BOOLEAN"),
        ({"table__merge-engine": "aggregation", "fields__n__agg": "listagg"}, "it accepts CHAR, STRING"),
        ({"table__merge-engine": "aggregation", "fields__n__agg": "bool_or"}, "it accepts BOOLEAN"),
        ({"table__merge-engine": "aggregation", "fields__s__agg": "rbm32"}, "it accepts BYTES"),
        ({"table__merge-engine": "aggregation", "fields__n__agg": "summ"}, "did you mean 'sum'"),
        ({"table__merge-engine": "aggregation", "fields__nope__agg": "sum"}, "no column 'nope'"),
        ({"table__merge-engine": "aggregation", "fields__id__agg": "sum"}, "key column 'id'"),
        ({"table__merge-engine": "aggregation", "fields__s__sum__delimiter": ";"}, "unknown option"),
        ({"table__merge-engine": "aggregation", "fields__s__listagg__delimiter": ";"}, "is the default"),
    ],
)  # fmt: skip
def test_r9_4_a_function_fits_its_column_and_its_table(options, reason):
    refused(options, reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"auto-increment__fields": "nope"}, "no such column"),
        ({"auto-increment__fields": "id"}, "a key column cannot"),
        ({"auto-increment__fields": "s"}, "it must be INT or BIGINT"),
        ({"auto-increment__fields": "n,s"}, "the name of one column"),
        ({"table__auto-increment__cache-size": "5"}, "needs 'auto-increment.fields'"),
        ({"auto-increment__fields": "n", "table__auto-increment__cache-size": "0"}, "from 1 to"),
    ],
)  # fmt: skip
def test_r10_the_numbered_column_can_hold_numbers(options, reason):
    refused(options, reason)


def test_r16_an_unknown_merge_engine_is_refused():
    refused({"table__merge-engine": "no_row"}, "'first_row' or 'versioned' or 'aggregation'")


def test_r10_the_numbered_column_is_nullable_and_has_no_function():
    with pytest.raises(TableError, match="leave out NOT NULL"):
        defined("id INT, n INT NOT NULL, PRIMARY KEY (id) NOT ENFORCED", **{"auto-increment.fields": "n"})
    with pytest.raises(TableError, match="cannot be a version, have a function or a default"):
        defined(**{"table.merge-engine": "aggregation", "fields.n.agg": "sum", "auto-increment.fields": "n"})


@pytest.mark.parametrize(
    "options",
    [
        {"table.merge-engine": "first_row"}, {"table.delete.behavior": "ALLOW"}, {"fields.n.agg": "sum"},
        {"auto-increment.fields": "n"}, {"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
    ],
)  # fmt: skip
def test_r16_a_log_table_has_no_engine_functions_delete_behavior_or_numbers(options):
    with pytest.raises(TableError) as caught:
        defined("id BIGINT, n INT", **options)
    assert caught.value.code is TableErrorCode.INVALID_TABLE


def test_r5_the_default_is_allow_and_ignore_with_a_merge_engine():
    assert defined().settings.delete_behavior is DeleteBehavior.ALLOW
    for engine, more in (("first_row", {}), ("versioned", {VERSION: "ts"}), ("aggregation", {})):
        settings = defined(**{"table.merge-engine": engine, **more}).settings
        assert settings.delete_behavior is DeleteBehavior.IGNORE
    allowed = {"table.merge-engine": "aggregation", "table.delete.behavior": "ALLOW"}
    assert defined(**allowed).settings.delete_behavior is DeleteBehavior.ALLOW


def test_r9_functions_go_out_and_come_back_in_every_form():
    from headrace.tablelayer.model.ddl import create_table_sql, parse

    table = defined(
        **{
            "table.merge-engine": "aggregation", "fields.n.agg": "SUM", "fields.s.agg": "string_agg",
            "fields.s.string_agg.delimiter": " | ", "fields.raw.agg": "rbm64",
        }
    )  # fmt: skip
    assert table.schema.column("s").aggregate == Aggregate(AggregateFunction.STRING_AGG, " | ")
    assert TableDefinition.from_json(table.to_json()) == table
    assert from_topic_config(PATH, table.bucket_count, table.to_topic_config()) == table
    assert pickle.loads(pickle.dumps(table)) == table
    (created,) = parse(create_table_sql(table))
    assert created.definition == table
    assert "'fields.s.string_agg.delimiter' = ' | '" in create_table_sql(table)


@pytest.mark.parametrize("nested", ["l", "m", "r"])
@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ({"key": ["id", "{}"]}, "primary key column '{}' is nested"),
        ({"key": ["id"], "bucket_key": ("{}",)}, "bucket key column '{}' of .* is nested"),
        ({"bucket_key": ("{}",)}, "bucket key column '{}' of .* is nested"),
        ({"partition_keys": ("{}",)}, "partition column '{}' is "),
        ({"key": ["id"], "table.merge-engine": "versioned", VERSION: "{}"}, "version column '{}' is "),
        ({"key": ["id"], "table.kv.ttl": "1 h", "table.kv.ttl.time-column": "{}"}, "'{}': the column is .* BIGINT"),
        ({"key": ["id"], "auto-increment.fields": "{}"}, "it must be INT or BIGINT"),
        ({"table.statistics.columns": "{}"}, "column '{}' is nested, and has no statistics"),
    ],
)  # fmt: skip
def test_r20_3_a_nested_column_cannot_be_a_key_partition_version_time_or_number(use, reason, nested):
    given = {
        name: value.format(nested) if isinstance(value, str) else type(value)(v.format(nested) for v in value)
        for name, value in use.items()
    }
    columns = [
        ("id", t.BIGINT),
        ("l", t.array_of(t.INT)),
        ("m", t.map_of(t.INT, t.INT)),
        ("r", t.row_of(("a", t.INT))),
    ]
    with pytest.raises(TableError, match=reason.format(nested)) as caught:
        TableDefinition(
            PATH,
            Schema.of(columns, given.pop("key", [])),
            bucket_key=given.pop("bucket_key", ()),
            partition_keys=given.pop("partition_keys", ()),
            options=given,
        )
    assert caught.value.code is TableErrorCode.INVALID_TABLE


@pytest.mark.parametrize("function", AggregateFunction)
@pytest.mark.parametrize("column", ["l ARRAY<INT>", "l MAP<STRING, INT>", "l ROW<a INT>"])
def test_r20_5_only_functions_that_keep_whole_values_take_nested_columns(function, column):
    columns, options = f"id BIGINT, {column}, PRIMARY KEY (id) NOT ENFORCED", {"fields.l.agg": function.value}
    keeps = {"first_value", "last_value", "first_value_ignore_nulls", "last_value_ignore_nulls"}
    if function.value in keeps:
        table = defined(columns, **{"table.merge-engine": "aggregation", **options})
        assert table.schema.column("l").aggregate == Aggregate(function)
        return
    with pytest.raises(TableError, match=f"{function} does not accept"):
        defined(columns, **{"table.merge-engine": "aggregation", **options})


@pytest.mark.parametrize(("name", "meant"), [("bucket.nun", "bucket.num"), ("buckets.key", "bucket.key")])
def test_nearly_the_options_of_statements(name, meant):
    with pytest.raises(TableError, match=f"unknown option '{name}'; did you mean '{meant}'"):
        orders(**{name: "4"})
    with pytest.raises(TableError, match=f"did you mean '{meant}'"):
        parse(f"CREATE TABLE t (id INT) WITH ('{name}' = '4')")


def test_equal_columns_share_one_arrow_schema() -> None:
    def schema(kind: t.DataType = t.STRING, schema_id: int = 0) -> Schema:
        return Schema.of([("id", t.BIGINT), ("v", kind)], ["id"], schema_id=schema_id)

    assert schema().arrow() is schema(schema_id=1).arrow()
    assert schema().key_arrow(1) is schema(t.BIGINT).key_arrow(1)
    assert schema().arrow() == pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    assert schema(t.BYTES).arrow().field("v").type == pa.binary()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("'merge-engine' = 'deduplicate'", "the last row wins, as by 'deduplicate'"),
        ("'client.writer.bucket.no-key-assigner' = 'round_robin'", "no_key_assigner='round_robin'"),
    ],
)
def test_words_of_paimon_and_fluss_name_what_gives_the_same(option, told):
    with pytest.raises(TableError, match=told):
        parse(f"CREATE TABLE t (id INT) WITH ({option})")
