"""The Python data source `headrace`: a table as a Spark batch.

    spark.read.format("headrace").option("bootstrap.servers", "127.0.0.1:9092").option("table", "db.t").load()

- `bootstrap.servers`, `table`: required.
- `columns`: `a,b`, only these are read from the server (Spark's Python sources have no column pruning).
- `mode`: `current` (default) gives a PK table's rows as they are, a log table's rows; `changelog` gives every
  change, with `_change_type` (+A +I -U +U -D), `_log_offset` and `_commit_timestamp`.
- `starting.offsets`, `ending.offsets`: `earliest`, `latest` or JSON `{"0": 17}` by bucket, for a log.

Offsets are pinned at the frame's first action, one split per bucket; `load()` again to see later rows. The
current rows of a PK table are read from one moment per bucket, which is not before the planning. A schema
given by `.schema(...)` chooses columns as `columns` does. Predicates are not pushed down: Spark's push-down
for Python sources is wrong in 4.1 when a frame is used twice. Reading and writing streams goes through
Spark's Kafka connector.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.schema import Column
from tablelayer.spark.splits import ReadMode, Split, TableRead, plan_splits, read_split
from tablelayer.spark.types import CHANGELOG_ARROW_FIELDS, choose_columns, spark_schema
from tablelayer.spark.worker import connection
from tablelayer.spark.worker import table as open_table

_OPTIONS = ("bootstrap.servers", "table", "columns", "mode", "starting.offsets", "ending.offsets")
_METADATA_COLUMNS = frozenset(field.name for field in CHANGELOG_ARROW_FIELDS)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options. Raises ValueError for one that is missing, unknown or malformed."""

    bootstrap: str
    table: str
    columns: tuple[str, ...] | None
    mode: ReadMode
    start: str | dict[int, int]
    end: str | dict[int, int]

    @classmethod
    def parse(cls, options: Any) -> ReadOptions:
        given = {str(name).lower(): str(value) for name, value in dict(options).items()}
        unknown = [name for name in given if name not in _OPTIONS]
        if unknown:
            raise ValueError(f"unknown option {', '.join(unknown)}; the options are {', '.join(_OPTIONS)}")
        for name in ("bootstrap.servers", "table"):
            if not given.get(name):
                raise ValueError(
                    f"option '{name}' is missing, for example .option('{name}', '{_EXAMPLES[name]}')"
                )
        mode = given.get("mode", "current")
        if mode not in ("current", "changelog"):
            raise ValueError(f"mode is '{mode}': use 'current' or 'changelog'")
        names = given.get("columns")
        columns = None if names is None else tuple(name.strip() for name in names.split(",") if name.strip())
        if columns == ():
            raise ValueError("option 'columns' names no column: write a,b or leave it out for all")
        return cls(
            given["bootstrap.servers"],
            given["table"],
            columns,
            "current" if mode == "current" else "changelog",
            _offsets(given.get("starting.offsets", "earliest"), "starting.offsets"),
            _offsets(given.get("ending.offsets", "latest"), "ending.offsets"),
        )


_EXAMPLES = {"bootstrap.servers": "127.0.0.1:9092", "table": "default.orders"}


def _offsets(text: str, option: str) -> str | dict[int, int]:
    if text in ("earliest", "latest"):
        return text
    try:
        return {int(bucket): int(offset) for bucket, offset in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f"""{option} is '{text}': use earliest, latest, or JSON such as {{"0": 17}}"""
        ) from None


@dataclass
class SplitPartition(InputPartition):
    """A split, as Spark hands it to a task."""

    split: Split

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class HeadraceDataSource(DataSource):
    """Registered by `tablelayer.spark.session`; elsewhere:
    `spark.dataSource.register(HeadraceDataSource)`.
    """

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> Any:
        options = ReadOptions.parse(self.options)
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        columns = choose_columns(definition.schema, options.columns)
        return spark_schema(columns, changelog=options.mode == "changelog")

    def reader(self, schema: Any) -> HeadraceReader:
        return HeadraceReader(ReadOptions.parse(self.options), schema.fieldNames())


class HeadraceReader(DataSourceReader):
    """Plans on the driver, reads in the executors."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        columns: list[Column] = choose_columns(
            definition.schema, [name for name in names if name not in _METADATA_COLUMNS]
        )
        read = TableRead(options.bootstrap, definition, tuple(columns), options.mode)
        if list(read.arrow_schema().names) != names:
            raise TableError(
                TableErrorCode.INVALID_PROJECTION,
                f"the columns {', '.join(names)} cannot be read in mode '{options.mode}':"
                f" it gives {', '.join(read.arrow_schema().names)}",
            )
        self.read_plan = read
        self.options = options

    def partitions(self) -> list[SplitPartition]:
        table = open_table(self.options.bootstrap, self.read_plan.definition)
        start = (
            self.options.start if isinstance(self.options.start, dict) else table.offsets(self.options.start)
        )
        end = self.options.end if isinstance(self.options.end, dict) else table.offsets(self.options.end)
        if self.options.mode == "current" and table.definition.is_primary_key_table:
            return [SplitPartition(Split(bucket, 0, offset)) for bucket, offset in sorted(end.items())]
        splits = plan_splits({bucket: start.get(bucket, 0) for bucket in end}, end)
        return [SplitPartition(split) for split in splits or [Split(0, 0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if (
            isinstance(partition, SplitPartition)
            and partition.split.end_offset > partition.split.start_offset
        ):
            yield from read_split(self.read_plan, partition.split)
