"""The lake read by pyiceberg alone: state, columns by id, types, pruning.

`test_failpoints.py` and `spark/test_union_read.py` read what Spark writes, including deletes.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

from headrace.tablelayer.lake.adapter import LakeError, LakeState
from headrace.tablelayer.lake.iceberg_reader import IcebergReader
from headrace.tablelayer.model.ddl import AlterTable, CreateTable, parse
from headrace.tablelayer.model.filters.conditions import filter_of_sql
from headrace.tablelayer.model.filters.filters import Filter, encode_filter
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import evolve
from headrace.tablelayer.tests.lake.hadoop_folder import HadoopFolder

SQL = (
    "CREATE TABLE shop.t (id BIGINT, n SMALLINT, name STRING, code BINARY(2), price DECIMAL(10, 2), at TIMESTAMP(3))"
    " WITH ('bucket.num'='2', 'table.datalake.enabled'='true', 'table.datalake.format'='iceberg')"
)
FIELDS = (LongType(), IntegerType(), StringType(), BinaryType(), DecimalType(10, 2), TimestampType())
MOMENT = datetime.datetime(2024, 9, 19, 12, 0, 0, 123000)


class Lake:
    def __init__(self, folder: Path) -> None:
        (statement,) = parse(SQL)
        assert isinstance(statement, CreateTable)
        self.definition = statement.definition.with_id(UUID(int=5))
        self.warehouse = folder
        self.catalog = HadoopFolder(folder / "shop" / "t")
        (folder / "shop" / "t" / "metadata").mkdir(parents=True)
        columns = self.definition.schema.columns
        names = zip(columns, FIELDS, strict=True)
        schema = IcebergSchema(
            *(NestedField(at + 1, column.name, field) for at, (column, field) in enumerate(names))
        )
        properties = {
            "headrace.table-id": str(self.definition.table_id),
            "headrace.columns": json.dumps({str(column.id): at + 1 for at, column in enumerate(columns)}),
        }
        metadata = new_table_metadata(
            schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, str(self.catalog.folder), properties
        )
        location = self.catalog.write(metadata)
        self.table = Table(("shop", "t"), metadata, location, load_file_io({}, location), self.catalog)

    def append(self, ids: range, offsets: Mapping[int, int] | None = None) -> int:
        """Add a snapshot of rows and return its id; one without offsets belongs to another engine."""
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "n": pa.array([number % 7 for number in ids], pa.int32()),
                "name": pa.array([None if number % 5 == 0 else f"n{number}" for number in ids], pa.string()),
                "code": pa.array([b"ab"] * len(ids), pa.binary()),
                "price": pa.array([decimal.Decimal(number) / 100 for number in ids], pa.decimal128(10, 2)),
                "at": pa.array([MOMENT] * len(ids), pa.timestamp("us")),
            }
        )
        properties = {}
        if offsets is not None:
            text = json.dumps({str(bucket): offset for bucket, offset in offsets.items()})
            properties = {"headrace.offsets": text, "headrace.table-id": str(self.definition.table_id)}
            properties["headrace.epoch"] = "3"
        self.table.append(rows, snapshot_properties=properties)
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return int(snapshot.snapshot_id)

    def reader(self, definition: TableDefinition | None = None) -> IcebergReader:
        return IcebergReader(
            definition or self.definition, {"type": "hadoop", "warehouse": str(self.warehouse)}
        )


def rows_of(
    reader: IcebergReader, snapshot: int, names: list[str], condition: str | None = None
) -> list[Any]:
    schema = reader.definition.schema
    wanted = None if condition is None else Filter.parse(
        encode_filter(filter_of_sql(condition, schema), schema), schema
    )  # fmt: skip
    needed = [*names, *([] if wanted is None else [schema.columns[at].name for at in wanted.columns])]
    columns = list(schema.select(list(dict.fromkeys(needed))))
    batches = list(reader.read(snapshot, columns, wanted))
    assert all(
        batch.schema.field(name).type == schema.column(name).type.arrow()
        for batch in batches
        for name in names
    )
    return [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]


def test_rows_in_the_tables_own_types_at_a_snapshot(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    first = lake.append(range(3), {0: 2, 1: 1})
    second = lake.append(range(3, 10), {0: 6, 1: 4})
    reader = lake.reader()
    assert reader.state(None) == LakeState(second, second, {0: 6, 1: 4}, 3)
    names = [column.name for column in lake.definition.schema.columns]
    assert rows_of(reader, first, names)[1] == (1, 1, "n1", b"ab", decimal.Decimal("0.01"), MOMENT)
    assert sorted(rows_of(reader, second, ["id"])) == [(number,) for number in range(10)]
    assert rows_of(reader, second, ["price"], "id >= 8") == [
        (decimal.Decimal("0.08"),),
        (decimal.Decimal("0.09"),),
    ]
    assert sorted(rows_of(reader, second, ["id"], "name IS NULL")) == [(0,), (5,)]
    found = reader.snapshots().to_pylist()
    assert [(row["snapshot_id"], row["epoch"], row["offsets"]) for row in found] == [
        (first, 3, [(0, 2), (1, 1)]),
        (second, 3, [(0, 6), (1, 4)]),
    ]


def test_the_lakes_own_tables(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(range(3), {0: 3})
    second = lake.append(range(3, 10), {0: 10})
    reader = lake.reader()
    assert reader.metadata("snapshots")["total_record_count"].to_pylist() == [3, 10]
    files = reader.metadata("files")
    assert sorted(files["record_count"].to_pylist()) == [3, 7]
    assert "partition" not in files.column_names  # Spark has no struct without fields
    assert reader.metadata("partitions")["file_count"].to_pylist() == [2]
    assert reader.metadata("manifests")["added_data_files_count"].to_pylist() == [1, 1]
    assert reader.metadata("history").num_rows == 2
    (branch,) = reader.metadata("branches").to_pylist()
    assert (branch["name"], branch["snapshot_id"]) == ("main", second)
    assert reader.metadata("tags").num_rows == 0
    (schema,) = reader.metadata("schemas").to_pylist()
    assert [each["name"] for each in json.loads(schema["fields"])] == lake.definition.schema.names
    options = dict(zip(*reader.metadata("options").to_pydict().values(), strict=True))
    assert options["headrace.table-id"] == str(lake.definition.table_id)
    with pytest.raises(LakeError, match=r"no table 'audit_log': it has \$lake\$branches, \$lake\$files"):
        reader.metadata("audit_log")
    empty = IcebergReader(lake.definition, {"type": "hadoop", "warehouse": str(tmp_path / "none")})
    assert empty.metadata("snapshots").num_rows == 0
    with pytest.raises(LakeError, match="not in the lake yet"):
        empty.metadata("files")


def test_the_newest_ancestor_with_offsets_counts_and_a_hint_may_be_behind(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.reader().state(None) == LakeState()
    tiered = lake.append(range(3), {0: 3})
    hint = lake.catalog.folder / "metadata" / "version-hint.text"
    before = hint.read_text()
    other = lake.append(range(3, 5))  # a compaction has no offsets either
    hint.write_text(before)
    assert lake.reader().state(None) == LakeState(other, tiered, {0: 3}, 3)
    hint.unlink()
    assert lake.reader().state(None).head == other
    another = lake.definition.with_id(UUID(int=6))
    with pytest.raises(LakeError, match="dropped and created again"):
        lake.reader(another).state(None)
    assert not IcebergReader(
        lake.definition, {"type": "hadoop", "warehouse": str(tmp_path / "none")}
    ).exists()


def test_statistics_of_files_spare_those_without_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(range(100), {0: 100})
    head = lake.append(range(100, 200), {0: 200})
    first = min(lake.catalog.folder.glob("data/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    first.unlink()  # who opens it fails
    reader, schema = lake.reader(), lake.definition.schema
    columns = [schema.column("id")]
    pruned = reader.read(head, columns, None, ["and", [">=", "id", 150], ["=", "name", "never looked at"]])
    assert [row["id"] for batch in pruned for row in batch.to_pylist()] == list(range(150, 200))
    with pytest.raises(FileNotFoundError):
        list(reader.read(head, columns, None, ["or", [">=", "id", 150], ["like", "name", "n%"]]))


def test_columns_are_known_by_id(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    head = lake.append(range(2), {0: 2})
    clauses = "RENAME n TO number, MODIFY code BINARY(4), ADD note STRING DEFAULT 'old', DROP name"
    (statement,) = parse(f"ALTER TABLE shop.t {clauses}")
    assert isinstance(statement, AlterTable)
    altered = evolve(lake.definition, statement.changes)
    assert rows_of(lake.reader(altered), head, ["number", "code", "note"]) == [
        (0, b"ab\0\0", "old"),
        (1, b"ab\0\0", "old"),
    ]
