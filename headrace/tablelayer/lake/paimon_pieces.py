"""A snapshot of a Paimon table as a DataFrame whose tasks read it by `PaimonReader`.

This is for files that Spark does not read: Avro, ORC with Paimon's types, and files with deletion vectors. Filters and
columns are not pushed down; the plain name in Spark's catalog and source does so (`union_parts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from headrace.tablelayer.lake.paimon_reader import PaimonReader
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.types import conform, spark_arrow_schema, spark_schema


def read_pieces(
    spark: Any, definition: StoredTable, shape: StoredTable, properties: Mapping[str, str], snapshot: int
) -> Any:
    """Return the rows of a snapshot in the columns of `shape`: the table, or the table as its lake table has it."""
    columns = shape.schema.columns
    keys = [each.key for each in PaimonReader(definition, properties).pieces(snapshot)]
    if not keys:
        return spark.createDataFrame([], spark_schema(columns))
    reading = _Reading(definition, dict(properties), snapshot, tuple(columns), tuple(keys))
    numbers = spark.range(0, len(keys), 1, len(keys))
    return numbers.mapInArrow(reading, spark_schema(columns))


class _Reading:
    """Worker's side: numbers of pieces in, their rows out."""

    def __init__(
        self,
        definition: StoredTable,
        properties: Mapping[str, str],
        snapshot: int,
        columns: tuple[Any, ...],
        keys: tuple[str, ...],
    ) -> None:
        self._definition, self._properties, self._snapshot = definition, properties, snapshot
        self._columns, self._keys = columns, keys

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = PaimonReader(self._definition, self._properties)
        schema = spark_arrow_schema(self._columns)
        for batch in numbers:
            wanted = {self._keys[number] for number in batch.column(0).to_pylist()}
            for rows in reader.read(self._snapshot, self._columns, pieces=wanted):
                yield conform(rows, schema)
