"""The Python data source `headrace`: a table as a Spark batch, stream, or sink.

    spark.read.format("headrace").option("bootstrap.servers", "127.0.0.1:9092").option("table", "db.t").load()

Reading (`spark.read`, `spark.readStream`); `bootstrap.servers` and `table` are required:
- `columns`: `a,b`, only these are read from the server (Spark's Python sources have no column pruning); metadata
  columns may be among them. A schema given by `.schema(...)` does the same.
- `mode`: `current` (default) gives a log table's rows, or a PK table's rows as they are (batches only);
  `changelog` every change (+A +I -U +U -D); `upsert` the same without -U.
- metadata columns `_change_type`, `_log_offset`, `_commit_timestamp`, `_bucket`: all four in `changelog` and
  `upsert`, on request (`columns`) in `current`.
- `startingOffsets`: `earliest`, `latest`, `full` (a PK table's state, then its changes; streams only, and their
  default for PK tables), or JSON `{"0": 17}` by bucket; or `startingTimestamp` in ms or ISO 8601.
- `endingOffsets` (`latest` or JSON) or `endingTimestamp`. A stream that has arrived there has no more rows.
  The rows of a PK table in mode `current` are those it had at these offsets.
- `maxOffsetsPerTrigger`, `availableNow`, `failOnDataLoss`: `tablelayer.spark.stream`.
- `minPartitions`, `maxRecordsPerPartition` (default a million): how a log is cut into tasks. A PK table's state
  is one task per bucket.
- Of a partitioned table the partitions that `where` leaves are read, by a stream new ones too as they come; one
  partition is table `db.t.name`. Offsets are by partition and bucket: `{"2024-09-19": {"0": 17}}`; where the ending
  offsets name partitions, the others are not read.
- `limit`: rows per task; `where`: the predicate that `tablelayer.spark.table` makes.

Offsets are pinned at the frame's first action; `load()` again to see later rows. Filters of Spark are not pushed
down: that is wrong in Spark 4.1 to 4.3 when a frame is used twice. `tablelayer.spark.table` does it by options.

Writing (`df.write`, `df.writeStream`, mode append): `tablelayer.spark.sink`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tablelayer.model.conditions import Predicate, arrow_expression, columns_of
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.partitions import Partition
from tablelayer.model.table import TableDefinition
from tablelayer.spark.options import PartitionOffsets, Place, ReadOptions
from tablelayer.spark.positions import Offsets
from tablelayer.spark.splits import Split, TableRead, plan_splits, read_split
from tablelayer.spark.types import METADATA_FIELDS, choose_columns, spark_schema
from tablelayer.spark.worker import connection
from tablelayer.spark.worker import table as open_table


class SplitPartition(InputPartition):
    """A split, as Spark hands it to a task."""

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
        options = ReadOptions.parse(dict(self.options))
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        if options.columns is not None:
            names = list(options.columns)
        else:
            names = [*definition.schema.names, *(METADATA_FIELDS if options.mode != "current" else ())]
        read = plan_read(options, definition, names)
        schema = spark_schema(read.columns, read.metadata)
        return type(schema)([schema[name] for name in names])

    def reader(self, schema: Any) -> HeadraceReader:
        return HeadraceReader(ReadOptions.parse(dict(self.options)), schema.fieldNames())

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        from tablelayer.spark.stream import stream_reader

        return stream_reader(ReadOptions.parse(dict(self.options)), schema.fieldNames())

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from tablelayer.spark.sink import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        from tablelayer.spark.sink import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)


def plan_read(options: ReadOptions, definition: TableDefinition, names: list[str]) -> TableRead:
    """What is common to all splits. Raises TableError for columns that are not there."""
    columns = choose_columns(definition.schema, [name for name in names if name not in METADATA_FIELDS])
    metadata = tuple(name for name in names if name in METADATA_FIELDS)
    ordered = [column.name for column in columns] + list(metadata)
    if len(set(names)) < len(names):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION, f"a column is asked for twice: {', '.join(names)}"
        )
    return TableRead(
        options.bootstrap,
        definition,
        tuple(columns),
        options.mode,
        metadata,
        None if ordered == names else tuple(names),
        options.predicate,
        options.limit,
    )


def resolve(table: Any, place: Place) -> dict[int, int]:
    """Offsets of every bucket; those that offsets by bucket leave out begin at the earliest."""
    if isinstance(place, (str, int)):
        return dict(table.offsets(place))
    if any(isinstance(bucket, str) for bucket in place):
        raise ValueError(
            f"offsets are given by partition, but {table.path} is not partitioned: {{bucket: offset}}"
        )
    offsets = cast(Offsets, place)
    _check_buckets(table.path, offsets, table.definition.bucket_count)
    return dict(offsets)


def resolve_partitions(
    table: Any, place: Place, partitions: Sequence[Partition]
) -> dict[str, dict[int, int]]:
    """As `resolve` for these partitions of a partitioned table; those that offsets do not name are absent, and so are
    those that are gone by now.
    """
    known = {each.name: each for each in partitions}
    if isinstance(place, (str, int)):
        found = table.partition_offsets(place)
        return {name: dict(found[name]) for name in known if name in found}
    for name, offsets in place.items():
        if not isinstance(name, str) or not isinstance(offsets, Mapping):
            raise ValueError(
                f"{table.path} is partitioned: its offsets are by partition and bucket,"
                f""" such as {{"{next(iter(known), "2024-09-19")}": {{"0": 17}}}}"""
            )
        if name in known:
            _check_buckets(table.path.of_partition(name), offsets, known[name].bucket_count)
    missing = {name for name in place if isinstance(name, str)} - {each.name for each in table.partitions()}
    if missing:
        raise TableError(
            TableErrorCode.PARTITION_NOT_FOUND,
            f"offsets are given for partition {min(missing)} of {table.path}, which is not there",
        )
    return {name: dict(cast(PartitionOffsets, place)[name]) for name in known if name in place}


def _check_buckets(path: Any, offsets: Offsets, count: int) -> None:
    unknown = [bucket for bucket in offsets if not 0 <= bucket < count]
    if unknown:
        raise ValueError(
            f"offsets are given for bucket {unknown[0]}, but {path} has buckets 0 to {count - 1}"
        )


def partitions_needed(
    definition: TableDefinition, partitions: Sequence[Partition], predicate: Predicate | None
) -> list[Partition]:
    """Those that may have rows for which the predicate holds: its parts about partition columns alone decide."""
    parts = [] if predicate is None else predicate[1:] if predicate[0] == "and" else [predicate]
    keys = definition.partition_keys
    deciding = [part for part in parts if columns_of(part) <= set(keys)]
    if not deciding or not partitions:
        return list(partitions)
    columns = [definition.schema.column(key) for key in keys]
    values = pa.table(
        [
            pa.array([each.values[place] for each in partitions], pa.string()).cast(column.type.arrow())
            for place, column in enumerate(columns)
        ],
        names=list(keys),
    )
    numbered = values.append_column("", pa.array(range(len(partitions))))
    for part in deciding:
        numbered = numbered.filter(arrow_expression(part, values.schema))
    return [partitions[place] for place in numbered.column("").to_pylist()]


class HeadraceReader(DataSourceReader):
    """Plans on the driver, reads in the executors."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        if options.start == "full":
            raise ValueError(
                "startingOffsets 'full' is for streams: a batch in mode 'current' reads the state anyway"
            )
        if options.start is not None and options.mode == "current" and definition.is_primary_key_table:
            raise ValueError(
                f"{definition.path} has a primary key: mode 'current' gives its rows at the ending offsets and has"
                " no start; use mode 'changelog' or 'upsert' to read its log from somewhere"
            )
        self.read_plan = plan_read(options, definition, names)
        self.options = options

    def partitions(self) -> list[SplitPartition]:
        definition = self.read_plan.definition
        table = open_table(self.options.bootstrap, definition)
        if not definition.is_partitioned:
            splits = self._splits(table, self.options.min_partitions)
        else:
            splits = self._splits_of_partitions(table)
        return [SplitPartition(split) for split in splits or [Split(0, 0, 0)]]

    def _splits(self, table: Any, min_count: int) -> list[Split]:
        end = resolve(table, self.options.end)
        if self._of_state:
            return _state_splits(end)
        start = resolve(table, "earliest")
        if self.options.start is not None:
            start |= resolve(table, self.options.start)
        return plan_splits(start, end, min_count=min_count, max_rows=self.options.max_records)

    def _splits_of_partitions(self, table: Any) -> list[Split]:
        kept = partitions_needed(table.definition, table.partitions(), self.options.predicate)
        ends = resolve_partitions(table, self.options.end, kept)
        starts: dict[str, dict[int, int]] = {}
        if not self._of_state:
            starts = resolve_partitions(table, "earliest", kept)
            if self.options.start is not None:
                for name, given in resolve_partitions(table, self.options.start, kept).items():
                    starts[name] = {**starts.get(name, {}), **given}
        least = -(-self.options.min_partitions // max(1, len(kept)))
        splits = []
        for each in kept:
            if each.name not in ends:
                continue
            end = ends[each.name]
            found = (
                _state_splits(end)
                if self._of_state
                else plan_splits(
                    starts.get(each.name, {}), end, min_count=least, max_rows=self.options.max_records
                )
            )
            splits += [replace(split, partition=each) for split in found]
        return splits

    @property
    def _of_state(self) -> bool:
        return self.options.mode == "current" and self.read_plan.definition.is_primary_key_table

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.read_plan, partition)


def _state_splits(end: Offsets) -> list[Split]:
    return [Split(bucket, 0, offset, state=True) for bucket, offset in sorted(end.items())]


def read_partition(read: TableRead, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The worker's side of a read."""
    if isinstance(partition, SplitPartition):
        split = partition.split
        if split.end_offset > (0 if split.state else split.start_offset):
            yield from read_split(read, split)
