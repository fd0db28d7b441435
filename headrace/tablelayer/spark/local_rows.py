"""Rows that the driver has read, in Spark's plans: `headrace.spark.LocalRows` and `UnchangedKeys` of the catalog's jar.

Spark's own local rows are converted one by one on the driver, again for each place of the plan that uses them. These
stay in Arrow's format until a task reads its columns. A set of keys becomes a filter in the code that Spark generates
for a scan, where a join would be a job of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.java_gateway import JavaClass

from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.spark.splits import BATCH_ROWS

_FLOATING = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
"""Keys of these types are equal to Spark if their bytes are not: 0.0 and -0.0."""


def has_local_rows(spark: Any) -> bool:
    """Return whether the session has the catalog's jar."""
    return isinstance(spark._jvm.headrace.spark.LocalRows, JavaClass)


def local_rows(spark: Any, name: str, rows: pa.Table, schema: Any) -> Any:
    """Return a DataFrame of these rows, with a task for every BATCH_ROWS. `name` is shown by EXPLAIN."""
    from pyspark.sql import DataFrame

    with tempfile.TemporaryDirectory(prefix="headrace-rows-") as folder:
        for start in range(0, rows.num_rows, BATCH_ROWS):
            _write(rows.slice(start, BATCH_ROWS), Path(folder) / f"{start:012}")
        made = spark._jvm.headrace.spark.LocalRows.of(
            spark._jsparkSession, name, schema.json(), folder, rows.num_rows
        )
    return DataFrame(made, spark)


def is_filter_key(columns: list[Column]) -> bool:
    """Return whether `without_keys` knows the types of these key columns."""
    return all(column.type.kind not in _FLOATING for column in columns)


def without_keys(frame: Any, keys: pa.Table, schema: Any) -> Any:
    """Return the rows of a DataFrame whose key is not among `keys`; `schema` has the key's columns as in the frame."""
    from pyspark.sql import DataFrame

    spark = frame.sparkSession
    with tempfile.NamedTemporaryFile(prefix="headrace-keys-") as file:
        _write(keys, Path(file.name))
        made = spark._jvm.headrace.spark.UnchangedKeys.of(frame._jdf, schema.json(), file.name)
    return DataFrame(made, spark)


def _write(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, rows.schema) as stream:
        stream.write_table(rows)
