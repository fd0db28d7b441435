"""A table as a Spark stream: micro-batches of its changes, after its state if wanted.

    spark.readStream.format("headrace").option("table", "db.t").option("mode", "upsert")...

- **Start**: a PK table begins with its state at the moment of the first micro-batch and goes on with every change
  after it, no gap and no overlap (`startingOffsets=full`, its default); a log table at its earliest offset.
- **Checkpoint**: Spark keeps the offsets; a restart reads the same ranges again. It also keeps the table's id: a
  table that was dropped and made again under the same name is an error, not a continuation.
- **Admission**: `maxOffsetsPerTrigger` bounds a micro-batch. The state that opens a "full" stream is one
  micro-batch, whatever its size; its tasks hold a few Arrow batches at a time.
- **Trigger.AvailableNow**: on Spark 4.1 a source is asked once how far it goes, and cannot learn that the trigger
  is AvailableNow. Give `availableNow=true` here too when `maxOffsetsPerTrigger` is set: all that is there then is
  one micro-batch. Without it the query ends after one capped micro-batch, and goes on when it is run again.
- **Lost rows**: when retention has deleted what the stream has not read yet, `failOnDataLoss` (default true) stops
  the query; false goes on where the log begins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.spark.options import ReadOptions
from tablelayer.spark.positions import Offsets, Position, admit, batch_start, lost_ranges
from tablelayer.spark.source import SplitPartition, plan_read, read_partition, resolve
from tablelayer.spark.splits import Split, plan_splits
from tablelayer.spark.worker import connection
from tablelayer.spark.worker import table as open_table

logger = logging.getLogger("headrace.spark")


class HeadraceStreamReader(DataSourceStreamReader):
    """Lives on the driver as long as the query; `read` runs in the executors.

    Spark 4.1 calls `latestOffset`, `initialOffset`, `partitions` in a new query; after a restart first
    `partitions` with the last range in the checkpoint, which tells where the query is.
    """

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self.options = options
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        if definition.is_partitioned:
            raise TableError(
                TableErrorCode.PARTITION_NEEDED,
                f"{definition.path} is partitioned: a stream reads one partition, table '{definition.path}.<name>'; "
                "Spark's Kafka source reads all of them, new ones too, with subscribePattern",
            )
        if definition.is_primary_key_table and options.mode == "current":
            raise ValueError(
                f"a stream of {definition.path}, which has a primary key, needs mode 'upsert' (+I +U -D in"
                " _change_type) or 'changelog' (-U too): rows alone could not say what was deleted"
            )
        if options.start == "full" and not definition.is_primary_key_table:
            raise ValueError(f"{definition.path} is a log table: it has no state; start at 'earliest'")
        if options.limit >= 0:
            raise ValueError("'limit' is for batches: a stream has no end")
        self.read_plan = plan_read(options, definition, names)
        self._initial: Position | None = None
        self._at: Position | None = None

    # -- where ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._initial is None:
            start = self.options.start
            if start is None:
                start = "full" if self.read_plan.primary_key else "earliest"
            if start == "full":
                self._initial = Position(self._table_id, {}, "full", initial=True)
            else:
                table = self._table()
                offsets = resolve(table, "earliest") | resolve(table, start)
                self._initial = Position(self._table_id, offsets, offsets, initial=True)
        return self._initial.to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """The end of the next micro-batch. Spark from 4.2 on says where it begins, and a limit that is not ours."""
        at = (
            Position.from_json(start)
            if start is not None
            else self._at or Position.from_json(self.initialOffset())
        )
        table = self._table()
        latest = resolve(table, "latest")
        if not isinstance(self.options.end, str):
            stop = resolve(table, self.options.end)
            latest = {bucket: min(offset, stop.get(bucket, offset)) for bucket, offset in latest.items()}
        if at.initial and at.began == "full":
            ends = latest
        else:
            most = None if self.options.available_now else self.options.max_offsets
            ends = admit(at.offsets, latest, most)
            ends = {bucket: max(offset, at.offsets.get(bucket, 0)) for bucket, offset in ends.items()}
        end = Position(self._table_id, ends, at.began)
        if start is None:
            self._at = end
        return end.to_json()

    # -- what ----------------------------------------------------------------------------------------------

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[SplitPartition]:
        first, last = Position.from_json(start), Position.from_json(end)
        for position in (first, last):
            self._check_table(position)
        if self._at is None:
            self._at = last  # after a restart: this is the last range that the checkpoint knows
        begin = batch_start(first, last)
        if isinstance(begin, str):
            splits = [
                Split(bucket, 0, stop, state=True) for bucket, stop in sorted(last.offsets.items()) if stop
            ]
        else:
            splits = plan_splits(
                self._still_there(begin, last.offsets),
                last.offsets,
                min_count=self.options.min_partitions,
                max_rows=self.options.max_records,
            )
        return [SplitPartition(split) for split in splits or [Split(0, 0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.read_plan, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing to do: the server keeps the log by its own rules, whoever has read it."""

    def stop(self) -> None:
        """The connection is the process's, which ends with the query."""

    # -- inside --------------------------------------------------------------------------------------------

    @property
    def _table_id(self) -> str:
        return str(self.read_plan.definition.table_id)

    def _table(self) -> Any:
        """The table, after a look whether it is still the same."""
        present = connection(self.options.bootstrap).admin.describe_table(self.options.table)
        self._check_table(Position(str(present.table_id), {}, "full"), self._table_id)
        return open_table(self.options.bootstrap, self.read_plan.definition)

    def _check_table(self, position: Position, expected: str | None = None) -> None:
        if position.table != (expected or self._table_id):
            raise TableError(
                TableErrorCode.TABLE_NOT_FOUND,
                f"table {self.options.table} was dropped and created anew since this stream began (then"
                f" {expected or position.table}, now {self._table_id if expected is None else position.table}): its"
                " offsets mean nothing in the new table; start with a new checkpoint location",
            )

    def _still_there(self, start: Offsets, end: Offsets) -> Offsets:
        """The start, or what is left of it when retention has deleted some of it and that is allowed."""
        if all(start.get(bucket, 0) >= stop for bucket, stop in end.items()):
            return start
        table = open_table(self.options.bootstrap, self.read_plan.definition)
        lost = lost_ranges(
            {bucket: start.get(bucket, 0) for bucket in end},
            resolve(table, "earliest"),
            resolve(table, "latest"),
        )
        if not lost:
            return start
        bucket, (wanted, instead) = next(iter(lost.items()))
        what = (
            f"bucket {bucket} of {self.options.table} should be read from offset {wanted}, but its log"
            f" {'begins' if instead > wanted else 'ends'} at {instead}"
        )
        if self.options.fail_on_data_loss:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"{what}: rows were deleted before this stream has read them. Start with a new checkpoint location,"
                " or give failOnDataLoss=false to go on with what is there",
            )
        logger.warning("%s: %d offsets are skipped (failOnDataLoss=false)", what, max(0, instead - wanted))
        return {**start, **{bucket: max(instead, 0) for bucket, (_, instead) in lost.items()}}
