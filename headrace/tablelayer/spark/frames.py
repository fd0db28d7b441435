"""DataFrames over splits: `mapInArrow` over one partition per split.

This is the fastest way from Python into Spark: no planning worker is started, and only Arrow is transferred. Tiering
and union read use it; users have the `headrace` data source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.tablelayer.spark.splits import DELETED_COLUMN, Split, TableRead, read_split
from headrace.tablelayer.spark.types import spark_schema


def frame_schema(read: TableRead) -> Any:
    """Return the `StructType` of the rows of `splits_frame`."""
    schema = spark_schema(read.columns, read.metadata)
    return schema.add(DELETED_COLUMN, "boolean", False) if read.mode == "last" else schema


def splits_frame(spark: Any, read: TableRead, splits: Sequence[Split]) -> Any:
    """Return a DataFrame whose partition i is split i. Lazy: every action reads the same pinned offsets again."""
    if not splits:
        return spark.createDataFrame([], frame_schema(read))
    numbers = spark.range(0, len(splits), 1, len(splits))
    return numbers.mapInArrow(SplitReader(read, tuple(splits)), frame_schema(read))


class SplitReader:
    """Worker's side: numbers of splits in, their rows out."""

    def __init__(self, read: TableRead, splits: tuple[Split, ...]) -> None:
        self.read = read
        self.splits = splits

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_split(self.read, self.splits[number])
