"""Spark's upper limit for a Python data source: one that only yields ready Arrow batches.

spark.dataSource.register(ReadyBatches)
    spark.read.format("ready").option("rows", 1_000_000).option("columns", "id,price").load()

Batches have 65,536 rows, the fastest size; the option `tasks` sets the number of tasks. As a stream it has 100 new rows
at every request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

BATCH_ROWS = 65_536
STREAM_ROWS = 100
_TYPES = {"id": "bigint", "kind": "int", "price": "double", "text": "string", "at": "timestamp_ntz"}


class Rows(InputPartition):
    """A number of rows."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class ReadyBatches(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return ", ".join(f"{name} {_TYPES[name]}" for name in self.options["columns"].split(","))

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(schema.fieldNames(), int(self.options["rows"]), int(self.options["tasks"]))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _StreamReader(schema.fieldNames())


def _batches(names: list[str], count: int) -> Iterator[pa.RecordBatch]:
    from bench.spark_world import rows_of

    ready = rows_of(np.arange(min(count, BATCH_ROWS), dtype=np.int64)).select(names)
    for start in range(0, count, BATCH_ROWS):
        yield ready if count - start >= BATCH_ROWS else ready.slice(0, count - start)


class _Reader(DataSourceReader):
    def __init__(self, names: list[str], rows: int, tasks: int) -> None:
        self.names, self.rows, self.tasks = names, rows, tasks

    def partitions(self) -> list[Rows]:
        return [Rows(self.rows // self.tasks) for _ in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return _batches(self.names, partition.count)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, names: list[str]) -> None:
        self.names, self.at = names, 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        self.at += STREAM_ROWS
        return {"rows": self.at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Rows]:
        return [Rows(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return _batches(self.names, partition.count)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: no state is kept."""

    def stop(self) -> None:
        """Do nothing: there is nothing to close."""
