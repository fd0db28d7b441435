"""Nested values of an Iceberg table, read by pyiceberg: what was written with pyarrow is the oracle.

pyiceberg cannot write these files, because it loses NULL lists of rows there too.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from headrace.tablelayer.lake.iceberg_reader import IcebergReader
from headrace.tablelayer.model.rows import nested
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.tests.lake.hadoop_folder import HadoopFolder

IN_LAKE = {
    TypeKind.TINYINT: pa.int32(), TypeKind.SMALLINT: pa.int32(), TypeKind.BINARY: pa.binary(),
    TypeKind.TIMESTAMP: pa.timestamp("us"), TypeKind.TIMESTAMP_LTZ: pa.timestamp("us", "UTC"),
}  # fmt: skip
PLAIN = [
    "INT",
    "SMALLINT",
    "STRING",
    "DECIMAL(15, 2)",
    "BINARY(3)",
    "TIMESTAMP(3)",
    "TIMESTAMP_LTZ(6)",
    "DATE",
]
VALUES: dict[TypeKind, list[Any]] = {
    TypeKind.INT: [-(2**31), 2**31 - 1, 0], TypeKind.SMALLINT: [-(2**15), 7], TypeKind.STRING: ["", "é", "null"],
    TypeKind.DECIMAL: ["-1.05", "9999999999999.99"], TypeKind.BINARY: [b"abc", b"\0\0\0"],
    TypeKind.TIMESTAMP: [-1, 253402300799999], TypeKind.TIMESTAMP_LTZ: [-62135596800000000, 1],
    TypeKind.DATE: [-719162, 0, 2932896],
}  # fmt: skip


def stored_field(name: str, data_type: DataType, ids: Iterator[int]) -> pa.Field:
    """A type as Spark's Iceberg writer stores it, with the ids of the fields inside."""
    number = str(next(ids))
    stored = IN_LAKE.get(data_type.kind) or (None if data_type.is_nested else data_type.arrow())
    if stored is None:
        inside = [stored_field(each.name, each.type, ids) for each in data_type.fields]
        if data_type.kind is TypeKind.ROW:
            stored = pa.struct(inside)
        elif data_type.kind is TypeKind.ARRAY:
            stored = pa.list_(inside[0])
        else:
            stored = pa.map_(inside[0].with_nullable(False), inside[1])
    return pa.field(name, stored, metadata={"PARQUET:field_id": number})


class Lake:
    """A lake table of one data file with these rows."""

    def __init__(self, folder: Path, schema: Schema, rows: pa.Table) -> None:
        self.definition = TableDefinition(TablePath("shop", "t"), schema).with_id(UUID(int=5))
        self.folder = folder
        catalog = HadoopFolder(folder / "shop" / "t")
        (folder / "shop" / "t" / "metadata").mkdir(parents=True)
        ids = itertools.count(1)
        given = pa.schema([stored_field(column.name, column.type, ids) for column in schema.columns])
        properties = {
            "headrace.table-id": str(self.definition.table_id),
            "headrace.columns": json.dumps(
                {str(column.id): at for at, column in enumerate(schema.columns, 1)}
            ),
        }
        metadata = new_table_metadata(  # it numbers the fields again
            pyarrow_to_schema(given), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, str(catalog.folder), properties
        )  # fmt: skip
        location = catalog.write(metadata)
        self.table = Table(("shop", "t"), metadata, location, load_file_io({}, location), catalog)
        stored = schema_to_pyarrow(metadata.schema(), include_field_ids=True)
        arrays = [rows.column(field.name).cast(field.type) for field in stored]
        path = self.path = str(folder / "rows.parquet")
        parquet.write_table(
            pa.Table.from_arrays(arrays, schema=stored), path, row_group_size=7, store_schema=False
        )
        self.append()

    def append(self) -> None:
        """A snapshot more, with the same file again."""
        path, rows = self.path, parquet.read_metadata(self.path).num_rows
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(
                DataFile.from_args(
                    content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET,
                    partition=Record(), record_count=rows, file_size_in_bytes=Path(path).stat().st_size,
                    column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={}, lower_bounds={},
                    upper_bounds={}, spec_id=0, sort_order_id=None, equality_ids=None, key_metadata=None,
                    split_offsets=[4],
                )
            )  # fmt: skip

    def read(self) -> pa.Table:
        reader = IcebergReader(self.definition, {"type": "hadoop", "warehouse": str(self.folder)})
        schema = self.definition.schema
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        found = list(reader.read(snapshot.snapshot_id, schema.columns))
        return pa.Table.from_batches(found, schema=schema.arrow())


def random_type(source: random.Random, depth: int) -> str:
    if depth == 0:
        return source.choice(PLAIN)
    inner = random_type(source, depth - 1)
    return source.choice(
        [
            f"ARRAY<{inner}>",
            f"MAP<{source.choice(['STRING', 'INT'])}, {inner}>",
            f"ROW<a {inner}, `two words` {source.choice(PLAIN)}>",
            f"ROW<a {source.choice(PLAIN)} NOT NULL, b {inner}>",
        ]
    )


def random_array(source: random.Random, data_type: DataType, count: int, nullable: bool = True) -> pa.Array:
    """Values of which a third is NULL; there are values under the NULLs too."""
    valid = np.array([not nullable or source.random() > 0.3 for _ in range(count)], np.bool_)
    if data_type.kind is TypeKind.ROW:
        inside = [random_array(source, each.type, count, each.nullable) for each in data_type.fields]
        return nested.make_row(data_type.arrow(), count, inside, valid)
    if data_type.is_nested:
        counts = np.array([source.randrange(3) for _ in range(count)], np.int64)
        total = int(counts.sum())
        parts = [random_array(source, each.type, total, each.nullable) for each in data_type.fields]
        if data_type.kind is TypeKind.MAP:
            kind = data_type.fields[0].type
            parts[0] = pa.array(
                [at if kind.kind is TypeKind.INT else f"k{at}" for at in range(total)], kind.arrow()
            )
        return nested.make_entries(data_type.arrow(), counts, parts, valid)
    chosen = [source.choice(VALUES[data_type.kind]) if each else None for each in valid]
    if data_type.kind in (TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ):
        return pa.array(chosen, pa.int64()).view(data_type.arrow())
    if data_type.kind is TypeKind.DATE:
        return pa.array(chosen, pa.int32()).view(data_type.arrow())
    if data_type.kind is TypeKind.DECIMAL:
        return pa.array(chosen, pa.string()).cast(data_type.arrow())
    return pa.array(chosen, data_type.arrow())


@pytest.mark.parametrize("seed", range(8))
def test_nested_values_are_read_as_they_were_written(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    columns = [Column(at, f"c{at}", parse_type(random_type(source, 1 + at % 4))) for at in range(12)]
    schema = Schema.of(columns, schema_id=0)
    arrays = [random_array(source, column.type, 20) for column in columns]
    rows = pa.Table.from_arrays(arrays, schema=schema.arrow())
    found = Lake(tmp_path, schema, rows).read()
    for column in columns:
        assert found.column(column.name).to_pylist() == rows.column(column.name).to_pylist(), column.type


NULLS = {
    "ARRAY<ROW<a INT>>": [None, [], [None, {"a": None}]],
    "MAP<STRING, ROW<a INT>>": [None, [], [("k", None), ("l", {"a": 1})]],
    "ROW<l ARRAY<ROW<a INT>>>": [None, {"l": None}, {"l": []}, {"l": [{"a": 1}]}],
    "ARRAY<ARRAY<ROW<a INT>>>": [None, [], [None, [], [{"a": 1}, None]]],
    "MAP<INT, MAP<INT, ROW<a INT>>>": [None, [(1, None), (2, [])], [(3, [(4, None)])]],
    "ROW<m MAP<INT, ARRAY<ROW<a INT>>>>": [None, {"m": None}, {"m": [(1, None), (2, []), (3, [None])]}],
}


def test_null_is_not_empty(tmp_path: Path) -> None:
    columns = [Column(at, f"c{at}", parse_type(text)) for at, text in enumerate(NULLS)]
    schema = Schema.of(columns, schema_id=0)
    longest = max(len(values) for values in NULLS.values())
    given = [values + [None] * (longest - len(values)) for values in NULLS.values()]
    arrays = [pa.array(values, column.type.arrow()) for values, column in zip(given, columns, strict=True)]
    lake = Lake(tmp_path, schema, pa.Table.from_arrays(arrays, schema=schema.arrow()))
    assert [lake.read().column(column.name).to_pylist() for column in columns] == given


def test_a_field_that_was_added_to_a_row_in_the_lake_is_left_out(tmp_path: Path) -> None:
    """Only another engine can have added it: the columns of a table keep what is inside of them."""
    columns = [
        Column(at, f"c{at}", parse_type(text))
        for at, text in enumerate(["ARRAY<ROW<a INT>>", "MAP<INT, ROW<a INT>>", "ROW<r ROW<a INT>>"])
    ]
    schema = Schema.of(columns, schema_id=0)
    given = [[None, [{"a": 1}, None]], [None, [(1, {"a": 2})]], [None, {"r": {"a": 3}}]]
    arrays = [pa.array(values, column.type.arrow()) for values, column in zip(given, columns, strict=True)]
    lake = Lake(tmp_path, schema, pa.Table.from_arrays(arrays, schema=schema.arrow()))
    with lake.table.update_schema() as update:
        for place in (("c0", "element", "b"), ("c1", "value", "b"), ("c2", "r", "b")):
            update.add_column(place, StringType())
    lake.append()  # a snapshot is read in the schema that it was written under
    assert [lake.read().column(column.name).to_pylist() for column in columns] == [2 * each for each in given]
