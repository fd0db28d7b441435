"""A table as a Spark stream: micro-batches of its changes, optionally after its state.

    spark.readStream.format("headrace").option("table", "db.t").option("mode", "upsert")...

- **Start**: a PK table begins with its state at the moment of the first micro-batch and continues with every later
  change, without gap or overlap (`startingOffsets=full`, its default). A log table begins at its earliest offset. If
  its log lacks rows that are in the lake, the first micro-batch has all rows of lake and log, as `full` has them, and
  the stream goes on in the log. `scan.mode=log` reads the log alone.
- **Checkpoint**: Spark keeps the offsets; a restart reads the same ranges again. It also keeps the table's id: a
  table that was dropped and created again under the same name is an error, not a continuation.
- **Admission**: `maxOffsetsPerTrigger` bounds a micro-batch. The state that opens a "full" stream is one micro-batch
  of any size; its tasks hold a few Arrow batches at a time.
- **Trigger.AvailableNow** reads in one run the rows that existed when the query started, also when a batch was left
  over from an interrupted run. `register` and `session` enable Spark's wrapper for that
  (`spark.sql.streaming.triggerAvailableNowWrapper.enabled`). Without it Spark 4.1 makes one micro-batch, which may be
  the left-over one.
  Spark 4.1 asks a source once for the end, before the source knows the query's position, and the source cannot learn
  that the trigger is AvailableNow. (4.1's `PythonMicroBatchStream` implements neither SupportsAdmissionControl nor
  SupportsTriggerAvailableNow, and no call to a Python source carries the trigger.) With `maxOffsetsPerTrigger` there
  are therefore two ways. `availableNow=true` makes one micro-batch of all present rows. `availableNow=capped`
  together with `tablelayer.spark.run_available_now(writer)`, instead of the trigger, makes capped micro-batches up to
  the table's end when the run began. With neither, the query ends after one capped micro-batch. A warning is logged,
  unless `availableNow=false` says that the trigger is another one, and a second run is refused.
  A catalog's stream (`readStream.table("headrace.db.t")`, `tablelayer.spark.catalog.streams`) implements both
  interfaces: there the trigger alone is enough.
- **Partitioned tables** are read as a whole. Partitions that are added are read from their beginning; dropped ones
  end, R18.3. Rows of an expired partition that were not read yet come from the lake, even if late rows have made a
  new partition of its name, or if the partition was made after the last micro-batch. `maxOffsetsPerTrigger` does not
  bound them. A partition that is new to the stream, and whose log does not reach back to offset 0, begins with its
  state (a PK table whose stream began "full"); otherwise its rows count as lost.
- **Lost rows**: if retention deletes rows that the stream has not read yet, they are read from the lake, each once
  (`lake.missed_rows`). Where they are not in the lake (no tiering, a primary-key table), `failOnDataLoss` (default
  true) stops the query; with false it continues where the log begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.tablelayer import plugins
from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.model.messages.lake import DescribeLakeRequest, DescribeLakeResponse
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
from headrace.tablelayer.spark.positions import (
    Began,
    Offsets,
    PartitionAt,
    PartitionedPosition,
    Position,
    admit,
    batch_start,
    lake_snapshots,
    lost_ranges,
    lost_text,
    partition_starts,
    places_of,
    replaced_partitions,
)
from headrace.tablelayer.spark.splits import Split, plan_splits, state_splits
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

logger = logging.getLogger("headrace.spark")
_LISTED_AT_MOST = 5
"""Maximum number of attempts to list the partitions while the server learns of no snapshot of the lake."""


def stream_reader(options: ReadOptions, names: list[str]) -> HeadraceStreamReader:
    """Return the reader for the kind of table."""
    if options.view:
        raise ValueError(
            f"a stream reads the log of {options.table}, not its lake: to read the lake and then the later changes, use"
            " tablelayer.lake.union_read.lake_then_stream"
        )
    definition = connection(options.bootstrap).admin.describe_table(options.table)
    kind = PartitionedStreamReader if definition.is_partitioned else HeadraceStreamReader
    return kind(options, names)


def reader_or_refusal(given: Callable[[], ReadOptions], names: list[str]) -> DataSourceStreamReader:
    """Return the reader, or one that fails with the error.

    Spark 4.1 hides an error raised before it has a reader behind an `UnboundLocalError`, because it has no reader to
    stop.
    """
    try:
        return stream_reader(given(), names)
    except Exception as error:  # noqa: BLE001 - any error must end the query
        return RefusedStreamReader(error)


class RefusedStreamReader(DataSourceStreamReader):
    """Reader that cannot read: every call raises the reason."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self.error

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self.error

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self.error

    def stop(self) -> None:
        """Do nothing: no resource is open."""


def run_available_now(writer: Any) -> Any:
    """Run a stream up to the present end of its tables, in micro-batches of `maxOffsetsPerTrigger`.

    Return the query, which has stopped. `writer` is a `DataStreamWriter` without a trigger whose sources were loaded
    with `availableNow=capped`. Raises the query's error. Call it again with the same checkpoint to read later changes.
    """
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


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


class PartitionedStreamReader(HeadraceStreamReader):
    """Stream reader of a partitioned table as a whole; see `PartitionedPosition`."""

    def _initial_offset(self) -> dict[str, Any]:
        if self._initial is None:
            began: dict[str, PartitionAt] = {}
            table, lake = self._table(), self._lake_snapshot()
            if not self._begins_full and not self._begins_in_lake(table):
                present = self._present(table)
                start = self._start
                found = resolve_partitions(table, "earliest", present)
                if start != "earliest":
                    for name, given in resolve_partitions(table, start, present).items():
                        found[name] = {**found.get(name, {}), **given}
                began = {
                    each.name: PartitionAt(str(each.table_id), found[each.name])
                    for each in present
                    if each.name in found
                }
            self._initial = PartitionedPosition(
                self._table_id, began, began, initial=True, lake=lake, began_lake=lake
            )
        value: dict[str, Any] = self._initial.to_json()
        return value

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch, as for one table.

        A new partition begins at offset 0 if its log reaches back there, and shares the cap with the others. A
        partition that begins with its state is not capped.
        """
        given = PartitionedPosition.from_json(start) if start is not None else self._at
        at: PartitionedPosition = given or PartitionedPosition.from_json(self._initial_offset())
        table = self._table()
        present = self._ends(table, at.lake)
        if self.options.available_now == "capped":
            present = self._pinned = self._pinned or present
        latest = present.partitions
        known = {name: each for name, each in at.partitions.items() if self._same(each, latest.get(name))}
        new = [name for name in latest if name not in known]
        full = self._read_in_full(table, new, at.initial and not at.began)
        begins = {
            (name, bucket): known[name].offsets.get(bucket, 0) if name in known else 0
            for name, each in latest.items()
            if name not in full
            for bucket in each.offsets
        }
        wanted = {place: latest[place[0]].offsets[place[1]] for place in begins}
        ends = admit(begins, wanted, self._most)
        self._tell_of_cap(start, sum(wanted.values()) - sum(ends.values()))
        partitions = {
            name: replace(each, full=True)
            if name in full
            else PartitionAt(
                each.table,
                {bucket: max(ends[name, bucket], begins[name, bucket]) for bucket in each.offsets},
                name in known and known[name].full,
            )
            for name, each in latest.items()
        }
        end = PartitionedPosition(
            self._table_id, partitions, at.began, lake=present.lake, began_lake=at.began_lake
        )
        if start is None:
            self._at = end
        return end.to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        first, last = PartitionedPosition.from_json(start), PartitionedPosition.from_json(end)
        for position in (first, last):
            self._check_table(position)
        self._resume(last)
        table = open_table(self.options.bootstrap, self.read_plan.definition)
        present = {each.name: each for each in table.partitions()}
        found: list[InputPartition] = []
        whole: dict[str, Offsets] = {}
        is_first = first.initial and not last.began and (self._begins_full or self._takes_lake)
        in_lake = is_first and self._is_tiered and bool(table.reads_lake())
        tiered: Mapping[PartitionBucket, int] | None = None
        earliest: Mapping[str, Offsets] = {}
        if in_lake and last.lake is not None:
            parts, tiered = plugins.snapshot_parts(self.options, self.read_plan, last.lake, places_of(last))
            found += parts
            earliest = table.partition_offsets("earliest")
        ranges = list(partition_starts(first, last))
        least = -(-self.options.min_partitions // max(1, len(ranges)))
        for name, at, given in ranges:
            partition, begin = present.get(name), given
            if partition is not None and str(partition.table_id) != at.table:
                partition = None
            if tiered is not None:
                log_starts = {} if partition is None else earliest.get(name, {})
                places = {bucket: PartitionBucket(name, UUID(at.table), bucket) for bucket in at.offsets}
                begin = {
                    bucket: tiered.get(each, log_starts.get(bucket, 0)) for bucket, each in places.items()
                }
            elif isinstance(begin, str) and (is_first or self._begins_full):
                if partition is not None:
                    whole[name] = at.offsets
                    continue
                if in_lake:
                    self._tell_lost(
                        f"partition {name} of {table.path} is gone, and this stream begins with it"
                    )
            elif isinstance(begin, str):
                # AvailableNow asked for the end before it knew the start. The lake may have rows of an earlier
                # partition of this name, which the stream has read.
                begin = dict.fromkeys(at.offsets, 0)
            if partition is None:
                found += self._of_gone(table, name, at, begin, present.get(name))
            else:
                found += self._planned(table, partition, begin, at.offsets, least)
        if isinstance(self.options.end, str):
            for name, before in replaced_partitions(first, last).items():
                found += self._of_expired(table, name, before.table, before.offsets, None, present.get(name))
            if not is_first:
                found += self._of_passed(table, first, last, present)
        union: list[InputPartition] | None = None
        if whole or (is_first and tiered is None):
            union = self._whole(table, whole, list(present.values()), expired=is_first)
        if union is None:
            for name, ends in whole.items():
                splits = self._of_server(ends)
                found += [SplitPartition(replace(split, partition=present[name])) for split in splits]
        return [*(union or ()), *found] or [SplitPartition(Split(0, 0, 0))]

    def _of_passed(
        self,
        table: Any,
        first: PartitionedPosition,
        last: PartitionedPosition,
        present: Mapping[str, Partition],
    ) -> list[InputPartition]:
        """Return the tasks for the rows of partitions that were made and expired between the ends of a batch."""
        snapshots = lake_snapshots(first, last)
        if snapshots is None:
            return []
        try:
            server = connection(self.options.bootstrap)
            passed = plugins.partitions_between(server, table.path, *snapshots)
        except ClientError as error:
            self._tell_lost(str(error))
            return []
        before = last.began if first.initial else first.partitions
        known = {each.table for each in (*before.values(), *last.partitions.values())}
        return [
            part
            for each in partitions_needed(self.read_plan.definition, passed, self.options.predicate)
            if str(each.table_id) not in known
            for part in self._of_expired(
                table,
                each.name,
                str(each.table_id),
                dict.fromkeys(range(each.bucket_count), 0),
                None,
                present.get(each.name),
            )
        ]

    def _of_gone(
        self, table: Any, name: str, at: PartitionAt, begin: Began, successor: Partition | None
    ) -> list[InputPartition]:
        """Return the tasks for the rows up to `at` of a partition that the server does not have any more."""
        if begin == at.offsets:
            return []
        found = self._of_expired(table, name, at.table, begin, at.offsets, successor)
        if not found:
            logger.warning("partition %s of %s was dropped: its unread rows are skipped", name, table.path)
        return found

    def _of_expired(
        self,
        table: Any,
        name: str,
        partition_id: str,
        begin: Began,
        end: Offsets | None,
        successor: Partition | None,
    ) -> list[InputPartition]:
        """Return the tasks for rows of a partition that has expired; none if a client dropped it.

        Without `end` they are all rows from `begin` on. `successor` is the present partition of that name.
        """
        if not self._lake_has_log or isinstance(begin, str):
            return []
        path = table.path.of_partition(name)
        later = None if successor is None else successor.table_id
        try:
            expired = UUID(partition_id)
            return list(plugins.missed_parts(self.options, path, begin, end, expired=expired, later=later)[0])
        except ClientError as error:
            self._tell_lost(f"rows of partition {name} of {table.path}, which has expired: {error}")
            return []

    def _of_server(self, ends: Offsets) -> list[Split]:
        """Return the splits of a partition whose rows are all on the server."""
        if self.read_plan.definition.is_primary_key_table:
            return state_splits(ends)
        return plan_splits({}, ends, max_rows=self.options.max_records)

    def _planned(
        self, table: Any, partition: Partition, begin: Offsets, end: Offsets, least: int
    ) -> list[InputPartition]:
        try:
            return self._ranges(table.partition(partition.name), begin, end, least, partition)
        except TableError as error:
            if error.code not in (TableErrorCode.TABLE_NOT_FOUND, TableErrorCode.PARTITION_NOT_FOUND):
                raise
            return []

    def _present(self, table: Any) -> list[Partition]:
        return partitions_needed(self.read_plan.definition, table.partitions(), self.options.predicate)

    def _ends(self, table: Any, lake: int | None = None) -> PartitionedPosition:
        """Return the present ends, and the lake's snapshot that the server knows before and after it lists them.

        A partition that has expired has all of its rows in this snapshot, and a partition that is made later is not in
        it. `lake` is a snapshot that the server knew earlier.
        """
        for _ in range(_LISTED_AT_MOST):
            partitions, before = self._listed(table), lake
            lake = self._lake_snapshot()
            if lake == before:
                break
        return PartitionedPosition(self._table_id, partitions, lake=before)

    def _lake_snapshot(self) -> int | None:
        """Return the snapshot of the lake that the server knows (-1: none); None if the lake does not have the log."""
        if not self._lake_has_log:
            return None
        answer = connection(self.options.bootstrap).call(
            DescribeLakeRequest(table_id=self.read_plan.definition.table_id),
            DescribeLakeResponse,
            doing=f"describe the lake of {self.options.table}",
            to_controller=True,
        )
        return int(answer.snapshot_id)

    def _listed(self, table: Any) -> dict[str, PartitionAt]:
        """Return the end of each partition, without partitions that changed during the calls."""
        before = self._present(table)
        latest = resolve_partitions(table, "latest", before)
        if not isinstance(self.options.end, str):
            stops = resolve_partitions(table, self.options.end, before)
            latest = {
                name: {
                    bucket: min(offset, stops[name].get(bucket, offset)) for bucket, offset in ends.items()
                }
                for name, ends in latest.items()
                if name in stops
            }
        after = {(each.name, each.table_id) for each in table.partitions()}
        return {
            each.name: PartitionAt(str(each.table_id), latest[each.name])
            for each in before
            if each.name in latest and (each.name, each.table_id) in after
        }

    def _read_in_full(self, table: Any, names: Sequence[str], initial: bool) -> set[str]:
        """Return the new partitions whose read begins with their state."""
        if not (self._begins_full or self._takes_lake) or not names:
            return set()
        if initial:
            return set(names)
        earliest = table.partition_offsets("earliest")
        return {name for name in names if any(earliest.get(name, {}).values())}

    @staticmethod
    def _same(one: PartitionAt, other: PartitionAt | None) -> bool:
        return other is not None and one.table == other.table
