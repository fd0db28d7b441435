"""Calls of Spark's catalog become our SQL; the Java half and Spark are in `test_catalog.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.evolution import (
    AddColumn,
    DropColumn,
    ModifyColumn,
    RenameColumn,
    ResetOptions,
    SetOptions,
)
from headrace.tablelayer.spark.catalog.statements import (
    alter_statement,
    create_statement,
    overwritten_columns,
)


def column(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": json.dumps(kind), "nullable": True, **more}


def create(*columns: dict[str, Any], key: tuple[str, ...] = (), **more: Any) -> Any:
    properties = more.pop("properties", {})
    request = {
        "database": "shop", "table": "t", "columns": columns, "primary_key": key, "properties": properties,
        "partitions": more.pop("partitions", ()), **more,
    }  # fmt: skip
    (statement,) = parse(create_statement(request))
    assert isinstance(statement, CreateTable)
    return statement.definition


def test_a_table_as_spark_says_it() -> None:
    day = column("day", "string", nullable=False)
    made = create(
        column("id", "long", nullable=False, comment="it's"), day, column("state", "string", default="'new'"),
        key=("id", "day"), partitions=["day"], buckets=4, bucket_key=["id"],
        properties={
            "provider": "headrace", "owner": "ann", "comment": "bought", "option.table.log.ttl": "7 d",
            "table.log.ttl": "7 d",
        },
    )  # fmt: skip
    assert str(made.path) == "shop.t"
    assert (made.schema.primary_key, made.partition_keys, made.bucket_key) == (
        ("id", "day"),
        ("day",),
        ("id",),
    )
    assert (made.bucket_count, made.comment, made.options["table.log.ttl"]) == (4, "bought", "7 d")
    assert not any(name.startswith("option.") or name == "owner" for name in made.options)
    assert (made.schema.column("id").comment, made.schema.column("state").default) == ("it's", "new")
    for name in ("primary-key", "primary.key"):
        named = create(column("a", "long", nullable=False), column("b", "long"), properties={name: "a"})
        assert named.schema.primary_key == ("a",)


@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        ("byte", "TINYINT"), ("decimal(38,9)", "DECIMAL(38, 9)"), ("char(3)", "CHAR(3)"), ("varchar(9)", "STRING"),
        ("timestamp", "TIMESTAMP_LTZ(6)"), ("timestamp_ntz", "TIMESTAMP(6)"), ("time(3)", "TIME(3)"),
        ("binary", "BYTES"),
        ({"type": "array", "elementType": "date", "containsNull": True}, "ARRAY<DATE>"),
        ({"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": "long"}},
         "MAP<STRING, ARRAY<BIGINT>>"),
        ({"type": "struct", "fields": [{"name": "x y", "type": "integer"}]}, "ROW<`x y` INT>"),
    ],
)  # fmt: skip
def test_types(kind: Any, ours: str) -> None:
    assert str(create(column("c", kind)).schema.column("c").type) == ours


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"properties": {"provider": "parquet"}}, "leave USING out"),
        ({"properties": {"location": "/x"}}, "'location' = '/x'"),
        (
            {"properties": {"primary-key": "b"}, "key": ("a",)},
            "the primary key is (a), but 'primary-key' = 'b'",
        ),
        ({"properties": {"bucket.nums": "2"}}, "bucket.nums"),
    ],
)
def test_unsupported_table_features_are_refused(more: Any, said: str) -> None:
    with pytest.raises(TableError, match=said.replace("(", r"\(").replace(")", r"\)")):
        create(column("a", "long", nullable=False), **more)
    with pytest.raises(TableError, match="column 'v' is variant"):
        create(column("v", "variant"))


def test_changes_as_spark_says_them() -> None:
    changes = [
        {"kind": "add", **column("n", "integer", default="7"), "name": ["n"], "after": "id"},
        {"kind": "rename", "name": ["a"], "new": "b c"},
        {"kind": "type", "name": ["d"], "type": '"long"'},
        {"kind": "nullable", "name": ["d"], "nullable": True},
        {"kind": "comment", "name": ["d"], "comment": None},
        {"kind": "default", "name": ["d"], "default": ""},
        {"kind": "position", "name": ["d"], "after": ""},
        {"kind": "drop", "name": ["e"], "if_exists": True},
        {"kind": "set", "name": "table.log.ttl", "value": "7 d"},
        {"kind": "remove", "name": "table.log.ttl", "value": None},
    ]
    found = alter_statement({"database": "shop", "table": "t", "changes": changes})
    assert [type(each) for each in found] == [
        AddColumn, RenameColumn, *[ModifyColumn] * 5, DropColumn, SetOptions, ResetOptions,
    ]  # fmt: skip
    assert (found[0].default, found[0].after, found[1].new_name, found[4].comment) == ("7", "id", "b c", "")
    assert (found[5].drop_default, found[6].after, found[7].if_exists) == (True, "", True)
    with pytest.raises(TableError, match=r"p\.x is inside column 'p'"):
        alter_statement(
            {"database": "a", "table": "b", "changes": [{"kind": "rename", "name": ["p", "x"], "new": "y"}]}
        )


def test_columns_that_an_insert_overwrites_without_naming_them() -> None:
    """Only existing rows are affected: the Java half refuses an INSERT in which Spark has filled one of these
    columns.
    """

    def overwritten(options: str, key: str = ", PRIMARY KEY (id) NOT ENFORCED") -> list[str]:
        (statement,) = parse(f"CREATE TABLE shop.t (id BIGINT, n BIGINT, v STRING{key}) WITH ({options})")
        assert isinstance(statement, CreateTable)
        return overwritten_columns(statement.definition)

    assert overwritten("'bucket.num' = '1'") == ["n", "v"]
    assert overwritten("'auto-increment.fields' = 'n'") == ["v"]
    assert overwritten("'table.merge-engine' = 'first_row'") == []
    assert overwritten("'bucket.num' = '1'", key="") == []
