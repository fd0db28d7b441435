"""Every type in both lakes: it has a type there, or a table with it is refused when the lake is enabled."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock
from uuid import UUID

import pytest

from headrace.tablelayer.lake.adapter import TABLE_ID_PROPERTY
from headrace.tablelayer.lake.columns import column_properties, in_lake, stored_definition
from headrace.tablelayer.lake.iceberg_columns import spark_ddl_type
from headrace.tablelayer.lake.paimon_columns import paimon_type
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.lake_shape import has_system_columns, lake_complaint
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.model.types.text import parse_type

EXPECTED: dict[str, tuple[str, str] | None] = {
    "BOOLEAN": ("boolean", "BOOLEAN"),
    "TINYINT": ("int", "TINYINT"),
    "SMALLINT": ("int", "SMALLINT"),
    "INT": ("int", "INT"),
    "BIGINT": ("bigint", "BIGINT"),
    "FLOAT": ("float", "FLOAT"),
    "DOUBLE": ("double", "DOUBLE"),
    "CHAR(3)": ("string", "STRING"),
    "STRING": ("string", "STRING"),
    "DECIMAL(20, 3)": ("decimal(20,3)", "DECIMAL(20, 3)"),
    "DATE": ("date", "DATE"),
    "TIME(0)": None,
    "TIME(9)": None,
    "TIMESTAMP(0)": ("timestamp_ntz", "TIMESTAMP(6)"),
    "TIMESTAMP(6)": ("timestamp_ntz", "TIMESTAMP(6)"),
    "TIMESTAMP(7)": None,
    "TIMESTAMP(9)": None,
    "TIMESTAMP_LTZ(3)": ("timestamp", "TIMESTAMP_WITH_LOCAL_TIME_ZONE(6)"),
    "TIMESTAMP_LTZ(9)": None,
    "BINARY(4)": ("binary", "BYTES"),
    "BYTES": ("binary", "BYTES"),
    "ARRAY<CHAR(2)>": ("ARRAY<string>", "ARRAY"),
    "MAP<STRING, BINARY(2)>": ("MAP<string, binary>", "MAP"),
    "ROW<a INT>": ("STRUCT<`a`: int>", "ROW"),
    "ROW<a ARRAY<TIMESTAMP(8)>>": None,
}
"""The type in Spark's DDL for Iceberg, and Paimon's; None: the table is refused."""


def table(lake: str, data_type: DataType, name: str = "c", **options: str) -> TableDefinition:
    given = {"table.datalake.enabled": "true", "table.datalake.format": lake, **options}
    schema = Schema.of([("id", parse_type("INT")), (name, data_type)])
    return TableDefinition(TablePath("default", "t"), schema, bucket_count=1, options=given)


def test_every_data_type_is_tested() -> None:
    assert {parse_type(text).kind for text in EXPECTED} == set(TypeKind)


@pytest.mark.parametrize("text", EXPECTED)
def test_a_type_is_in_both_lakes_or_is_refused(text: str) -> None:
    data_type, expected = parse_type(text), EXPECTED[text]
    for place, lake in enumerate(("iceberg", "paimon")):
        found = lake_complaint(table(lake, data_type))
        if expected is None:
            assert found is not None
            assert str(data_type) in found
            continue
        assert found is None
        column = Column(1, "c", data_type)
        made = spark_ddl_type(column) if lake == "iceberg" else in_paimon(column)
        assert made == expected[place]


def in_paimon(column: Column) -> str:
    """Return the call of Paimon's factory of types that makes a column's type."""
    jvm: Any = MagicMock()
    paimon_type(jvm, column)
    if jvm.paimon.types.RowType.called:
        return "ROW"
    name, given, _ = jvm.paimon.types.DataTypes.mock_calls[-2]
    given = () if column.type.is_nested else given
    return f"{name}({', '.join(map(str, given))})" if given else name


@pytest.mark.parametrize("name", ["__Offset", "__BUCKET", "__TimeStamp"])
def test_a_name_of_a_system_column_is_refused_in_any_case(name: str) -> None:
    given = table("paimon", parse_type("INT"), name)
    assert "has a name that is reserved" in str(lake_complaint(given))
    assert not has_system_columns(given)
    assert has_system_columns(table("paimon", parse_type("INT")))
    assert not has_system_columns(
        table("paimon", parse_type("INT"), **{"table.datalake.system-columns": "false"})
    )


def test_a_table_itself_never_has_system_columns() -> None:
    stored = table("iceberg", parse_type("INT")).with_id(UUID(int=1))
    wider = stored.with_system_columns()
    assert wider.schema.names == ["id", "c", "__bucket", "__offset", "__timestamp"]
    assert wider.without_system_columns() == stored
    with pytest.raises(Exception, match="'__bucket' is reserved for lake tables"):
        TableDefinition.from_json(wider.to_json())


def test_a_lake_table_has_the_system_columns_that_it_records() -> None:
    plain = table("iceberg", parse_type("INT")).with_id(UUID(int=1))
    wider = plain.with_system_columns()
    assert in_lake(plain, None) == wider
    assert in_lake(plain, {}) == plain
    for shape in (plain, wider):
        fields = {column.id: place for place, column in enumerate(shape.schema.columns)}
        properties = {TABLE_ID_PROPERTY: str(plain.table_id), **column_properties(shape, fields)}
        assert in_lake(plain, properties) == shape
        assert stored_definition(plain, properties) == plain


@pytest.mark.parametrize(
    ("form", "text", "name", "said"),
    [
        ("orc", "TIMESTAMP(3)", "c", "ORC's times cannot be read exactly"),
        ("orc", "ARRAY<TIMESTAMP_LTZ(3)>", "c", "ORC's times cannot be read exactly"),
        ("orc", "ROW<`ä` DATE>", "c", None),
        ("avro", "TIMESTAMP(6)", "c", None),
        ("avro", "INT", "a b", "a name that Avro does not have"),
        ("avro", "ARRAY<ROW<`ä` INT>>", "c", "a name that Avro does not have"),
        ("parquet", "ROW<`ä` TIMESTAMP(3)>", "a b", None),
    ],
)
def test_a_file_format_that_cannot_have_a_column_is_refused(
    form: str, text: str, name: str, said: str | None
) -> None:
    found = lake_complaint(table("paimon", parse_type(text), name, **{"paimon.file.format": form}))
    assert found is None if said is None else said in str(found)
