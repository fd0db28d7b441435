"""Reader of a table without partitions as a stream, and what partitioned tables share with it: see `spark.stream`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.tablelayer import plugins
from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.planning import (
    SplitPartition,
    parts_of_both,
    plan_read,
    read_partition,
    resolve,
)
from headrace.tablelayer.spark.positions import (
    Offsets,
    PartitionedPosition,
    Position,
    admit,
    batch_start,
    lost_ranges,
    lost_text,
)
from headrace.tablelayer.spark.splits import Split, plan_splits, state_splits
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

logger = logging.getLogger("headrace.spark")


class _FailedPart(InputPartition):
    """A batch that cannot be planned. After a restart Spark plans the last one again, and reads it only if it must."""

    def __init__(self, reason: str) -> None:
        super().__init__(None)
        self.reason = reason


class HeadraceStreamReader(DataSourceStreamReader):
    """Stream reader. It stays on the driver as long as the query; `read` runs in the executors.

    In a new query Spark 4.1 calls `latestOffset`, `initialOffset`, `partitions`. After a restart it first calls
    `partitions` with the last range in the checkpoint, which shows the query's position.
    """

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self.options = options
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        if definition.is_primary_key_table and options.mode == "current":
            raise ValueError(
                f"a stream of {definition.path}, which has a primary key, needs mode 'upsert' (+I +U -D in"
                " _change_type) or 'changelog' (-U too): rows alone cannot show what was deleted"
            )
        if options.limit >= 0:
            raise ValueError("'limit' applies to batches: a stream has no end")
        self.read_plan = plan_read(options, definition, names)
        self._begins_full = definition.is_primary_key_table and options.start in (None, "full")
        self._initial: Any = None
        self._at: Any = None
        self._pinned: Any = None
        self._warned = False
        self._is_new = False

    # -- offsets ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._is_new = True
        return self._initial_offset()

    def _initial_offset(self) -> dict[str, Any]:
        if self._initial is None:
            start = self._start
            if self._begins_full or self._begins_in_lake(self._table()):
                self._initial = Position(self._table_id, {}, "full", initial=True)
            else:
                table = self._table()
                offsets = resolve(table, "earliest") | resolve(table, start)
                self._initial = Position(self._table_id, offsets, offsets, initial=True)
        value: dict[str, Any] = self._initial.to_json()
        return value

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch. From 4.2 on, Spark passes its start, and a limit that is not ours."""
        at = (
            Position.from_json(start)
            if start is not None
            else self._at or Position.from_json(self._initial_offset())
        )
        latest = self._ends(self._table())
        if self.options.available_now == "capped":
            self._pinned = self._pinned or latest
            latest = self._pinned
        if at.initial and at.began == "full":
            ends = latest
        else:
            ends = admit(at.offsets, latest, self._most)
            ends = {bucket: max(offset, at.offsets.get(bucket, 0)) for bucket, offset in ends.items()}
            self._tell_of_cap(start, sum(latest.values()) - sum(ends.values()))
        end = Position(self._table_id, ends, at.began)
        if start is None:
            self._at = end
        return end.to_json()

    def without_cap(self) -> Self:
        """Return a copy of this reader without a cap, for one batch of all present rows."""
        found = copy(self)
        found.options = replace(self.options, max_offsets=None)
        return found

    def pinned(self) -> Self:
        """Return a copy of this reader that ends at the table's present end."""
        found = copy(self)
        found.options = replace(self.options, available_now="capped", max_offsets=self._most)
        found._pinned = self._ends(self._table())
        return found

    def _ends(self, table: Any) -> Any:
        """Return the present end for the stream."""
        latest = resolve(table, "latest")
        if not isinstance(self.options.end, str):
            stop = resolve(table, self.options.end)
            latest = {bucket: min(offset, stop.get(bucket, offset)) for bucket, offset in latest.items()}
        return latest

    def _resume(self, last: Any) -> None:
        """Note the position from the first range after a restart, which is the last one in the checkpoint.

        If Spark asked for the end before, the trigger is AvailableNow, and that end was computed from an outdated
        start.
        """
        if self._at is None:
            self._at = last
        elif not self._is_new and self._most is not None and self.options.available_now is None:
            raise ValueError(
                f"{self.options.table}: Trigger.AvailableNow with maxOffsetsPerTrigger={self._most} cannot continue"
                " from its checkpoint on this Spark; set availableNow=true for one micro-batch of all present rows, or"
                " availableNow=capped and run_available_now for several"
            )
        self._is_new = True

    @property
    def _most(self) -> int | None:
        return None if self.options.available_now == "true" else self.options.max_offsets

    def _tell_of_cap(self, start: object, waiting: int) -> None:
        """Warn once, unless the options exclude Spark 4.1's Trigger.AvailableNow."""
        if start is None and waiting > 0 and self.options.available_now is None and not self._warned:
            self._warned = True
            logger.warning(
                "maxOffsetsPerTrigger=%s leaves %d offsets of %s to the next batch. With Trigger.AvailableNow there is"
                " no next batch, and this query ends before them: set availableNow=true for one micro-batch of all, or"
                " availableNow=capped and run_available_now for several. With another trigger nothing is wrong:"
                " set availableNow=false to silence this warning",
                self.options.max_offsets,
                waiting,
                self.options.table,
            )

    @property
    def _start(self) -> Any:
        start = self.options.start
        return "earliest" if start is None or start == "full" else start

    @property
    def _beginning(self) -> str:
        """The rows with which a stream begins if its options name no offsets."""
        definition = self.read_plan.definition
        if definition.is_primary_key_table:
            return "the present rows"
        return "all rows of lake and log" if self._lake_has_log else "the rows of the log"

    @property
    def _is_tiered(self) -> bool:
        return self.read_plan.definition.settings.datalake_enabled and self.options.scan_mode == "full"

    @property
    def _lake_has_log(self) -> bool:
        """Whether the lake may have rows that left the log."""
        return self._is_tiered and not self.read_plan.definition.is_primary_key_table

    @property
    def _takes_lake(self) -> bool:
        """Whether this is a stream of a log table's rows from their beginning, which may be in the lake."""
        options = self.options
        return (
            self._lake_has_log and options.mode == "current" and options.start in (None, "full", "earliest")
        )

    def _begins_in_lake(self, table: Any) -> bool:
        return self._takes_lake and bool(table.reads_lake())

    def _whole(
        self, table: Any, ends: Mapping[str, Offsets], partitions: Sequence[Partition], *, expired: bool
    ) -> list[InputPartition] | None:
        """Return the tasks for all rows up to these ends, of lake and log; None if the server has all of them."""
        if self.options.scan_mode == "log" or not table.reads_lake():
            return None
        parts, _ = parts_of_both(self.options, self.read_plan, partitions, ends, expired=expired)
        return parts

    # -- splits ----------------------------------------------------------------------------------------------

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        is_restart = not self._is_new
        try:
            return self._plan(start, end)
        except (ClientError, TableError) as error:
            if not is_restart or self._at is None:
                raise
            return [_FailedPart(str(error))]

    def _plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        first, last = Position.from_json(start), Position.from_json(end)
        for position in (first, last):
            self._check_table(position)
        self._resume(last)
        begin = batch_start(first, last)
        table = open_table(self.options.bootstrap, self.read_plan.definition)
        if isinstance(begin, str) and self.read_plan.definition.is_primary_key_table:
            splits = state_splits(last.offsets)
        else:
            if isinstance(begin, str):
                whole = self._whole(table, {"": last.offsets}, (), expired=True)
                if whole is not None:
                    return whole or [SplitPartition(Split(0, 0, 0))]
                begin = dict.fromkeys(last.offsets, 0)
            found = self._ranges(table, begin, last.offsets, self.options.min_partitions)
            return found or [SplitPartition(Split(0, 0, 0))]
        return [SplitPartition(split) for split in splits or [Split(0, 0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _FailedPart):
            raise TableError(TableErrorCode.SCAN_EXPIRED, partition.reason)
        return read_partition(self.read_plan, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the log's retention does not depend on its readers."""

    def stop(self) -> None:
        """Do nothing: the connection belongs to the process, which ends with the query."""

    # -- helpers ---------------------------------------------------------------------------------------------

    @property
    def _table_id(self) -> str:
        return str(self.read_plan.definition.table_id)

    def _table(self) -> Any:
        """Return the table, after a check that it is still the same."""
        present = connection(self.options.bootstrap).admin.describe_table(self.options.table)
        self._check_table(Position(str(present.table_id), {}, "full"), self._table_id)
        return open_table(self.options.bootstrap, self.read_plan.definition)

    def _check_table(self, position: Position | PartitionedPosition, expected: str | None = None) -> None:
        if position.table != (expected or self._table_id):
            raise TableError(
                TableErrorCode.TABLE_NOT_FOUND,
                f"table {self.options.table} was dropped and created again since this stream began (then"
                f" {expected or position.table}, now {self._table_id if expected is None else position.table}): its"
                " offsets are meaningless in the new table; start with a new checkpoint location",
            )

    def _ranges(
        self, table: Any, start: Offsets, end: Offsets, least: int, partition: Partition | None = None
    ) -> list[InputPartition]:
        """Return the tasks for the rows of a table or partition between these offsets.

        Rows that retention has deleted come from the lake, or are skipped if that is allowed.
        """
        begin: Offsets = start
        parts: Sequence[InputPartition] = ()
        if any(start.get(bucket, 0) < stop for bucket, stop in end.items()):
            begin, parts = self._still_there(table, start, end)
        splits = plan_splits(begin, end, min_count=least, max_rows=self.options.max_records)
        return [*parts, *(SplitPartition(replace(split, partition=partition)) for split in splits)]

    def _still_there(
        self, table: Any, start: Offsets, end: Offsets
    ) -> tuple[Offsets, Sequence[InputPartition]]:
        """Return the start in the log, and tasks for the rows before it that the lake has."""
        lost = lost_ranges(
            {bucket: start.get(bucket, 0) for bucket in end},
            resolve(table, "earliest"),
            resolve(table, "latest"),
        )
        if not lost:
            return start, ()
        why = ""
        if self._lake_has_log and all(instead > wanted for wanted, instead in lost.values()):
            try:
                missed = {bucket: wanted for bucket, (wanted, _) in lost.items()}
                parts, log_starts = plugins.missed_parts(self.options, table.path, missed, end)
            except ClientError as error:
                why = f". The lake does not help: {error}"
            else:
                return {**start, **log_starts}, parts
        self._tell_lost(f"{lost_text(table.path, lost)}{why}")
        return {**start, **{bucket: max(instead, 0) for bucket, (_, instead) in lost.items()}}, ()

    def _tell_lost(self, what: str) -> None:
        """Raise an error about lost rows, or log it if that is allowed."""
        if self.options.fail_on_data_loss:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"{what}. Start with a new checkpoint location, where a stream begins with {self._beginning}, or set"
                " failOnDataLoss=false to continue with the remaining rows",
            )
        logger.warning("%s. They are skipped (failOnDataLoss=false)", what)
