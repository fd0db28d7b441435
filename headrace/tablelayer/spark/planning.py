"""Planning that batches and streams share: columns, partitions, offsets, and the splits of the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.tablelayer import plugins
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import Predicate, arrow_expression, columns_of
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.spark.options import PartitionOffsets, Place, ReadOptions
from headrace.tablelayer.spark.positions import Offsets
from headrace.tablelayer.spark.splits import Split, TableRead, plan_splits, read_split
from headrace.tablelayer.spark.types import METADATA_FIELDS, choose_columns


class SplitPartition(InputPartition):
    """A split, as Spark passes it to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


def plan_read(options: ReadOptions, definition: StoredTable, names: list[str]) -> TableRead:
    """Return the part of the plan that all splits share. Raises TableError for columns that do not exist."""
    columns = choose_columns(definition.schema, [name for name in names if name not in METADATA_FIELDS])
    metadata = tuple(name for name in names if name in METADATA_FIELDS)
    ordered = [column.name for column in columns] + list(metadata)
    if len(set(names)) < len(names):
        raise TableError(TableErrorCode.INVALID_PROJECTION, f"a column is selected twice: {', '.join(names)}")
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


def partitions_needed(
    definition: StoredTable, partitions: Sequence[Partition], predicate: Predicate | None
) -> list[Partition]:
    """Return the partitions that may have matching rows, by the predicate's parts about partition columns alone."""
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


def resolve(table: Any, place: Place) -> dict[int, int]:
    """Return the offsets of every bucket; in offsets by bucket, a missing bucket stands for its earliest offset."""
    if isinstance(place, (str, int)):
        return dict(table.offsets(place))
    if any(isinstance(bucket, str) for bucket in place):
        raise ValueError(
            f"offsets are given by partition, but {table.path} is not partitioned: give {{bucket: offset}}"
        )
    offsets = cast(Offsets, place)
    _check_buckets(table.path, offsets, table.definition.bucket_count)
    return dict(offsets)


def resolve_partitions(
    table: Any, place: Place, partitions: Sequence[Partition]
) -> dict[str, dict[int, int]]:
    """Resolve a place for these partitions of a partitioned table, by partition and bucket; see `resolve`.

    Partitions that the offsets do not name, and partitions that no longer exist, are absent.
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
            f"offsets are given for partition {min(missing)} of {table.path}, which does not exist",
        )
    return {name: dict(cast(PartitionOffsets, place)[name]) for name in known if name in place}


def parts_of_both(
    options: ReadOptions,
    read: TableRead,
    partitions: Sequence[Partition],
    ends: Mapping[str, Mapping[int, int]] | None,
    *,
    expired: bool,
) -> tuple[list[InputPartition], int | None]:
    """Return tasks for the lake's rows, and splits of the log from where they end; and the lake's snapshot.

    `ends` are offsets by partition ("" without partitions) and bucket; None: the present ends. `partitions` are those
    whose log is read. `expired`: the lake's rows of partitions that the server does not have belong to it.
    """
    both = plugins.union_parts(options, read, ends, expired)
    found: list[InputPartition] = list(both.parts)
    if read.definition.is_primary_key_table:
        return found, both.snapshot
    known = {each.name: each for each in partitions}
    for name, starts in both.log_starts.items():
        if not read.definition.is_partitioned or name in known:
            splits = plan_splits(
                starts, both.log_ends[name], min_count=options.min_partitions, max_rows=options.max_records
            )
            found += [SplitPartition(replace(split, partition=known.get(name))) for split in splits]
    return found, both.snapshot


def _check_buckets(path: Any, offsets: Offsets, count: int) -> None:
    unknown = [bucket for bucket in offsets if not 0 <= bucket < count]
    if unknown:
        raise ValueError(
            f"offsets are given for bucket {unknown[0]}, but {path} has buckets 0 to {count - 1}"
        )


def read_partition(read: TableRead, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition, on the worker."""
    if not isinstance(partition, SplitPartition):
        yield from plugins.read_union_part(read, partition)
        return
    split = partition.split
    if split.end_offset > (0 if split.state else split.start_offset):
        is_tiered = read.definition.settings.datalake_enabled and not read.definition.is_primary_key_table
        yield from read_split(read, split, rest_in_lake=is_tiered)
