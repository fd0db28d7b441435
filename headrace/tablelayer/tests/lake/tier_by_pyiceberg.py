"""Tiering rounds without Spark: pyiceberg writes what `headrace tier` would, and the server learns it the same way."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.adapter import (
    EPOCH_PROPERTY,
    OFFSETS_PROPERTY,
    TABLE_ID_PROPERTY,
    LakeState,
    replaced_partitions,
)
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.lake.columns import COLUMNS_PROPERTY
from headrace.tablelayer.lake.coordinator import ServerCoordinator
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.lake.offsets import PartitionBucket, offsets_to_json, without_dropped
from headrace.tablelayer.model.schema.schema import SYSTEM_COLUMNS
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.spark.splits import Rows, with_metadata
from headrace.tablelayer.tests.lake.hadoop_folder import HadoopFolder

_TYPES = {
    TypeKind.BIGINT: LongType,
    TypeKind.INT: IntegerType,
    TypeKind.STRING: StringType,
    TypeKind.TIMESTAMP_LTZ: TimestamptzType,
}


class Tierer:
    """The lake of one table of the types BIGINT, INT and STRING, as an Iceberg table in the server's warehouse.

    That of a log table has system columns.
    """

    def __init__(self, client: Connection, path: str) -> None:
        self.client, self.path = client, path
        tiered = tiered_table(client, path, None)
        self.definition = tiered.definition
        warehouse = Path(str(tiered.catalog.properties["warehouse"]).removeprefix("file:"))
        folder = warehouse / self.definition.path.database / self.definition.path.table
        (folder / "metadata").mkdir(parents=True)
        columns = self.definition.schema.columns
        if not self.definition.is_primary_key_table:
            columns = (*columns, *SYSTEM_COLUMNS)
        schema = IcebergSchema(
            *(
                NestedField(at + 1, column.name, _TYPES[column.type.kind]())
                for at, column in enumerate(columns)
            )
        )
        metadata = new_table_metadata(
            schema,
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
            str(folder),
            {
                TABLE_ID_PROPERTY: str(self.definition.table_id),
                COLUMNS_PROPERTY: json.dumps({str(column.id): at + 1 for at, column in enumerate(columns)}),
            },
        )
        catalog = HadoopFolder(folder)
        location = catalog.write(metadata)
        self.table = Table(
            self.definition.path.topic.split("."), metadata, location, load_file_io({}, location), catalog
        )
        self.coordinator = ServerCoordinator(client, "a test")
        self.offsets: dict[Any, int] = {}
        self.rows = pa.schema([column.field().with_nullable(True) for column in columns]).empty_table()

    def round(self) -> None:
        """Tier everything that the log has now, as `tier_round` does."""
        granted = self.coordinator.begin(self.definition.path, force=True)
        assert granted is not None
        log = TableChanges(self.client, "", self.definition)
        ends = log.latest()
        new = [
            self._of(None if place is None else place.name, bucket, begin, end[bucket])
            for place, end in log.by_partition(ends)
            for bucket, begin in {
                bucket: self.offsets.get(
                    bucket if place is None else PartitionBucket(place.name, place.table_id, bucket), 0
                )
                for bucket in end
            }.items()
        ]
        dropped = self.coordinator.describe(self.definition.table_id).dropped
        base = LakeState(offsets=self.offsets, dropped=dropped)
        for name in replaced_partitions(base, ends):
            if (
                self.table.scan(f"day == '{name}'").to_arrow().num_rows
            ):  # an empty commit would need a catalog
                self.table.delete(f"day == '{name}'")
        self.offsets = without_dropped({**self.offsets, **ends}, ends)
        properties = {
            OFFSETS_PROPERTY: offsets_to_json(self.offsets),
            TABLE_ID_PROPERTY: str(self.definition.table_id),
            EPOCH_PROPERTY: str(granted.epoch),
        }
        if self.definition.is_primary_key_table:
            self._merge(new, properties)
        else:
            self.table.append(pa.concat_tables([self.rows, *new]), snapshot_properties=properties)
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        self.coordinator.commit(granted, snapshot.snapshot_id, self.offsets)
        self.coordinator.release(granted)

    def _merge(self, new: list[pa.Table], properties: dict[str, str]) -> None:
        key = self.definition.schema.primary_key
        living = {tuple(row[name] for name in key): row for row in self.table.scan().to_arrow().to_pylist()}
        for row in (row for each in new for row in each.to_pylist()):
            place, kind = tuple(row[name] for name in key), row.pop("_change")
            living.pop(place, None)
            if kind in (ChangeType.INSERT, ChangeType.UPDATE_AFTER):
                living[place] = row
        rows = pa.Table.from_pylist(list(living.values()), self.rows.schema)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # there was no row
            self.table.overwrite(rows, snapshot_properties=properties)

    def _of(self, partition: str | None, bucket: int, begin: int, end: int) -> pa.Table:
        """Return the rows of a range of the log; of a primary-key table its changes with their kind."""
        table = self.client.table(self.path)
        table = table if partition is None else table.partition(partition)
        found = []
        with table.scan(start={bucket: begin}, until={bucket: end}) as scan:
            for piece in scan:
                if self.definition.is_primary_key_table:
                    rows = pa.table(piece.batch).cast(self.rows.schema)
                    rows = rows.append_column("_change", pa.array(piece.change_types, pa.uint8()))
                else:
                    placed = Rows(piece.batch, piece.change_types, piece.offsets, piece.timestamp_ms)
                    batch = with_metadata(placed, bucket, [column.name for column in SYSTEM_COLUMNS])
                    rows = pa.table(batch).cast(self.rows.schema)
                found.append(rows)
        return pa.concat_tables(found) if found else self.rows
