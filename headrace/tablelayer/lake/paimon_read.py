"""A Paimon table as a DataFrame, without paimon-spark: Paimon plans, Spark reads the Parquet files.

The driver asks Paimon's library for the data files of a snapshot with their levels and schemas. Spark reads them with
its own vectorised reader, in every executor. For a log table that is all.

The files of a PK table hold versions of rows, with `_SEQUENCE_NUMBER` and `_VALUE_KIND`. Within one sorted run (all
files of one level, or one file of level 0) a key occurs once, and every run is newer than the runs of higher levels. So
the oldest run of each bucket is read as it is, without the keys of any newer run. For a key in the newer runs, the
version with the highest sequence number counts, unless it is a delete. Compaction leaves one run,
and then nothing has to be merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from headrace.tablelayer.lake.paimon_columns import columns_of_files, file_fields
from headrace.tablelayer.lake.paimon_files import DeletionVector
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.spark.types import spark_schema

SEQUENCE_COLUMN, KIND_COLUMN = "_SEQUENCE_NUMBER", "_VALUE_KIND"
GONE_KINDS = (1, 3)
"""Paimon's row kinds -U and -D."""
_BROADCAST_ROWS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file of a snapshot.

    `run`: files of a bucket with the same run form a sorted run; a smaller one is older. `partition`: Paimon's row.
    `bucket`: folder and number, so buckets of different partitions differ.
    """

    path: str
    bucket: tuple[str, int]
    run: tuple[int, int]
    schema_id: int
    rows: int
    partition: Any = None
    size_bytes: int = 0
    deleted: DeletionVector | None = None

    @property
    def is_read_by_spark(self) -> bool:
        """Whether Spark's own reader has all of the file's rows, and no other."""
        return self.path.endswith(".parquet") and self.deleted is None


def data_files(table: Any, snapshot: int) -> list[DataFile]:
    """Return the data files of a snapshot."""
    found = []
    for split in table.newSnapshotReader().withSnapshot(snapshot).read().splits():
        folder, partition = split.bucketPath(), split.partition()
        files = list(split.dataFiles())
        vectors = list(split.deletionFiles().orElse(None) or [None] * len(files))
        for file, vector in zip(files, vectors, strict=True):
            name, level = file.fileName(), file.level()
            path = file.externalPath().orElse(f"{folder}/{name}")
            # In level 0 every file is a run, ordered by sequence number.
            run = (-level, 0 if level else file.maxSequenceNumber())
            place = folder, split.bucket()
            deleted = vector and DeletionVector(vector.path(), vector.offset(), vector.length())
            found.append(
                DataFile(path, place, run, file.schemaId(), file.rowCount(), partition, deleted=deleted)
            )
    return found


def read_rows(spark: Any, table: Any, definition: TableDefinition, files: Sequence[DataFile]) -> Any:
    """Return the rows of a snapshot's files in the table's present columns."""
    if not files:
        return spark.createDataFrame([], spark_schema(definition.schema.columns))
    if not definition.is_primary_key_table:
        return _scan(spark, table, definition, files, [])
    oldest: dict[tuple[str, int], tuple[int, int]] = {}
    for file in files:
        oldest[file.bucket] = min(file.run, oldest.get(file.bucket, file.run))
    first = [file for file in files if file.run == oldest[file.bucket]]
    newer = [file for file in files if file.run != oldest[file.bucket]]
    names = [f"`{name}`" for name in definition.schema.names]
    gone = ", ".join(str(kind) for kind in GONE_KINDS)
    oldest_rows = _scan(spark, table, definition, first, [KIND_COLUMN])
    living = oldest_rows.where(f"{KIND_COLUMN} NOT IN ({gone})").select(*names)
    if not newer:
        return living
    versions = _scan(spark, table, definition, newer, [SEQUENCE_COLUMN, KIND_COLUMN])
    keys = list(definition.schema.primary_key)
    few = sum(file.rows for file in newer) <= _BROADCAST_ROWS_MAX
    newer_keys = versions.select(*[f"`{key}`" for key in keys]).hint("broadcast" if few else "merge")
    untouched = living.join(newer_keys, keys, "left_anti")
    latest = versions
    if len({file.run for file in newer}) > 1:
        ranked = versions.selectExpr(
            "*",
            f"row_number() OVER (PARTITION BY {', '.join(f'`{key}`' for key in keys)}"
            f" ORDER BY {SEQUENCE_COLUMN} DESC) AS _headrace_rank",
        )
        latest = ranked.where("_headrace_rank = 1")
    return untouched.select(*names).unionAll(latest.where(f"{KIND_COLUMN} NOT IN ({gone})").select(*names))


def _scan(
    spark: Any, table: Any, definition: TableDefinition, files: Sequence[DataFile], system: Sequence[str]
) -> Any:
    """Return all rows of these files in the table's columns, followed by Paimon's `system` columns."""
    kinds = {SEQUENCE_COLUMN: "bigint", KIND_COLUMN: "tinyint"}
    parts = []
    for schema_id in sorted({file.schema_id for file in files}):
        known = file_fields(table, schema_id)
        ddl = ", ".join(
            f"`{name}` {kind}" for name, kind in [*known.values(), *((each, kinds[each]) for each in system)]
        )
        paths = [file.path for file in files if file.schema_id == schema_id]
        chosen = columns_of_files(table, definition, definition.schema.columns, known)
        parts.append(spark.read.schema(ddl).parquet(*paths).select(*chosen, *system))
    return reduce(lambda one, other: one.unionAll(other), parts)
