"""A table as a Spark batch: its log between two offsets, or a PK table's rows at the ending offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.planning import (
    SplitPartition,
    partitions_needed,
    parts_of_both,
    plan_read,
    read_partition,
    resolve,
    resolve_partitions,
)
from headrace.tablelayer.spark.splits import Split, plan_splits, state_splits
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table


class HeadraceReader(DataSourceReader):
    """Data source reader: plans on the driver, reads in the executors."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        if options.start == "full":
            raise ValueError(
                "startingOffsets 'full' is for streams only: a batch in mode 'current' already reads the whole state"
            )
        if options.start is not None and options.mode == "current" and definition.is_primary_key_table:
            raise ValueError(
                f"{definition.path} has a primary key: mode 'current' returns its rows at the ending offsets and has"
                " no start; use mode 'changelog' or 'upsert' to read its log from an offset"
            )
        self.read_plan = plan_read(options, definition, names)
        self.options = options
        self.snapshot: int | None = None
        """The lake's snapshot of a read of lake and log."""

    def partitions(self) -> list[InputPartition]:
        definition = self.read_plan.definition
        table = open_table(self.options.bootstrap, definition)
        if self._is_whole and table.reads_lake():
            return self._parts_of_both(table)
        if not definition.is_partitioned:
            splits = self._splits(table, self.options.min_partitions)
        else:
            splits = self._splits_of_partitions(table)
        if self._is_whole and table.reads_lake():  # rows left the server while the splits were planned
            return self._parts_of_both(table)
        return [SplitPartition(split) for split in splits or [Split(0, 0, 0)]]

    def _splits(self, table: Any, min_count: int) -> list[Split]:
        end = self._ends(table, ())[""]
        if self._of_state:
            return state_splits(end)
        start = resolve(table, "earliest")
        if self.options.start is not None:
            start |= resolve(table, self.options.start)
        return plan_splits(start, end, min_count=min_count, max_rows=self.options.max_records)

    def _splits_of_partitions(self, table: Any) -> list[Split]:
        kept = partitions_needed(table.definition, table.partitions(), self.options.predicate)
        ends = self._ends(table, kept)
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
                state_splits(end)
                if self._of_state
                else plan_splits(
                    starts.get(each.name, {}), end, min_count=least, max_rows=self.options.max_records
                )
            )
            splits += [replace(split, partition=each) for split in found]
        return splits

    def _ends(self, table: Any, partitions: Sequence[Partition]) -> dict[str, dict[int, int]]:
        """Return the ending offsets by partition ("" without partitions) and bucket.

        Raises ValueError for an offset behind the log's end: a batch would wait until the log is that long.
        """
        place = self.options.end
        is_whole = not table.definition.is_partitioned
        ends = {"": resolve(table, place)} if is_whole else resolve_partitions(table, place, partitions)
        is_sure = self.options.of_now or isinstance(place, (str, int))
        latest = {} if is_sure else table.partition_offsets("latest")
        for name, offsets in ends.items() if latest else ():
            for bucket, offset in offsets.items():
                last = latest.get(name, {}).get(bucket, offset)
                if offset > last:
                    where = f"bucket {bucket} of {table.path}{f', partition {name},' if name else ''}"
                    raise ValueError(f"the read ends at offset {offset}, but {where} ends at {last}")
        return ends

    @property
    def _is_whole(self) -> bool:
        """Whether the lake's rows belong to this read: it is of the plain name, from the table's beginning."""
        options = self.options
        return (
            options.mode == "current" and options.start in (None, "earliest") and options.scan_mode == "full"
        )

    def _parts_of_both(self, table: Any) -> list[InputPartition]:
        existing = table.partitions() if table.definition.is_partitioned else []
        ends = None if self.options.end == "latest" else self._ends(table, existing)
        parts, self.snapshot = parts_of_both(
            self.options,
            self.read_plan,
            partitions_needed(table.definition, existing, self.options.predicate),
            ends,
            expired=ends is None or self.options.of_now,
        )
        return parts

    @property
    def _of_state(self) -> bool:
        return self.options.mode == "current" and self.read_plan.definition.is_primary_key_table

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.read_plan, partition)
