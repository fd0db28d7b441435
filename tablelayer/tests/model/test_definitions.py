"""Types, schemas, options and definitions: what is accepted, what is refused, and every way out and back."""

from __future__ import annotations

import pickle
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablelayer.model import options as table_options
from tablelayer.model import types as t
from tablelayer.model.ddl import CreateTable, create_table_sql, parse
from tablelayer.model.errors import RowError, TableError, TableErrorCode
from tablelayer.model.evolution import changed_topic_config
from tablelayer.model.options import DECLARED, ChangelogImage, DatalakeFormat, DeleteBehavior
from tablelayer.model.schema import Column, Schema
from tablelayer.model.table import TableDefinition, TablePath

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
    key = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
    bucket_key = draw(st.lists(st.sampled_from(key or names), unique=True, max_size=2))
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
    definition = definition.with_id(table_id)
    assert TableDefinition.from_json(definition.to_json()) == definition
    assert pickle.loads(pickle.dumps(definition)) == definition
    config = definition.to_topic_config()
    again = TableDefinition.from_topic_config(definition.path, table_id, definition.bucket_count, config)
    assert again == definition
    assert again.to_topic_config() == config
    assert again.settings == definition.settings


@settings(max_examples=100, deadline=None)
@given(definitions())
def test_create_table_sql_is_parsed_back(definition):
    assert parse(create_table_sql(definition)) == [CreateTable(definition)]


@given(data_types)
def test_type_is_parsed_back(data_type):
    assert t.parse_type(str(data_type)) == data_type
    assert t.parse_type(str(data_type).lower()) == data_type
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
    assert t.parse_type(text) == data_type


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("VARCHAR(5)", "use STRING"),
        ("ARRAY<INT>", "nested types are not in this release"),
        ("INT(5)", "takes no parameters"),
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
        t.parse_type(text)
    assert caught.value.code is TableErrorCode.INVALID_TABLE


@pytest.mark.parametrize(
    "arrow_type", [pa.list_(pa.int32()), pa.uint64(), pa.null(), pa.decimal256(50, 2), pa.duration("s")]
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
    assert definition.settings == table_options.effective({})
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
        ({"bucket_count": 0}, "between 1 and 4096"),
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
        ({"table__kv__ttl": "1 d"}, "not in this release"),
        ({"table__datalake__enabled": "perhaps"}, "'true' or 'false'"),
        ({"table__datalake__format": "delta"}, "'iceberg'"),
        ({"key": ("id", "line"), "bucket_count": 2, "table__datalake__format": "iceberg"}, "by one column"),
        ({"key": ("price",), "bucket_count": 2, "table__datalake__enabled": "true"}, "no buckets by DOUBLE"),
    ],
)
def test_definition_is_refused(arguments, reason):
    with pytest.raises(TableError, match=reason) as caught:
        orders(**arguments)
    assert caught.value.code is TableErrorCode.INVALID_TABLE


def test_iceberg_tables_with_one_bucket_or_one_bucket_column_are_fine():
    assert orders(("id", "line"), table__datalake__enabled="true").uses_iceberg_buckets
    lake = orders(("id", "line"), ("id",), 4, table__datalake__enabled="true")
    assert lake.settings.datalake_format is DatalakeFormat.ICEBERG
    assert lake.options["table.datalake.format"] == "iceberg"
    assert not orders().uses_iceberg_buckets


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ([], "at least one column"),
        ([("a", t.INT), ("a", t.INT)], "given twice"),
        ([("__offset", t.INT)], "reserved"),
        ([("_change_type", t.INT)], "reserved"),
        ([("", t.INT)], "1 to 255 characters"),
        ([("a`b", t.INT)], "no backticks"),
        ([("a\nb", t.INT)], "control characters"),
        ([(f"c{index}", t.INT) for index in range(1001)], "too many"),
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
    "text", ["a.b.c", "a.", ".b", "a b.c", "x" * 201, "__x.t", "d." + "y" * 248, "ä.t", "d.t$lake"]
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
    definition = TableDefinition.from_topic_config(PATH, TABLE, 3, config)
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
        ({"table.schema": '{"columns": 5}'}, "a schema in JSON is"),
        ({"table.schema": "id INT PRIMARY KEY NOT ENFORCED, line INT"}, "says PRIMARY KEY"),
        ({"table.log.ttl": "2 s"}, "contradict"),
    ]:
        bad = {name: value for name, value in {**config, **change}.items() if value is not None}
        with pytest.raises(TableError, match=reason):
            TableDefinition.from_topic_config(PATH, TABLE, 3, bad)


def test_time_to_live_drives_retention():
    config = orders(table__log__ttl="2 h").to_topic_config()
    assert config["retention.ms"] == "7200000"
    changed = changed_topic_config(PATH, 1, config, {**config, "table.log.ttl": "3 h"})
    assert (changed["retention.ms"], changed["table.log.ttl"]) == ("10800000", "3 h")
    without = {name: value for name, value in config.items() if name != "table.log.ttl"}
    assert "retention.ms" not in changed_topic_config(PATH, 1, config, without)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"table.schema": "id BIGINT, line INT"}, "schema of table"),
        ({"table.bucket-key": "id"}, "bucket key"),
        ({"table.delete.behavior": "DISABLE"}, "fixed at creation"),
        ({"table.datalake.enabled": "true"}, "without the lake's bucket function"),
    ],
)
def test_what_is_fixed_at_creation_cannot_be_changed(change, reason):
    old = orders(("id", "line"), bucket_count=2).to_topic_config()
    if "table.datalake.enabled" in change:
        old = orders(bucket_count=2).to_topic_config()
    with pytest.raises(TableError, match=reason):
        changed_topic_config(PATH, 2, old, {**old, **change})


def test_what_can_be_changed():
    old = orders().to_topic_config()
    new = changed_topic_config(
        PATH, 1, old, {**old, "table.datalake.enabled": "true", "segment.bytes": "2097152"}
    )
    assert new["table.datalake.format"] == "iceberg"
    assert new["segment.bytes"] == "2097152"
    lake = orders(bucket_count=4, table__datalake__format="iceberg").to_topic_config()
    assert changed_topic_config(PATH, 4, lake, {**lake, "table.datalake.enabled": "true"})


def test_every_option_has_a_sound_default_and_documentation():
    for name, option in DECLARED.items():
        assert option.name == name
        assert option.doc.endswith(".")
        if option.default is not None:
            assert option.render(option.parse(option.default)) == option.default


@given(st.integers(1, 10**12))
def test_duration_is_parsed_back(milliseconds):
    assert table_options.parse_duration_ms(table_options.format_duration(milliseconds)) == milliseconds


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
def test_json_that_is_no_definition_is_refused(text):
    with pytest.raises(TableError) as caught:
        TableDefinition.from_json(text)
    assert caught.value.code is TableErrorCode.INVALID_TABLE
