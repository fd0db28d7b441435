"""Reader of a partitioned table as one stream: see `tablelayer.spark.stream`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from headrace.tablelayer import plugins
from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.model.messages.lake import DescribeLakeRequest, DescribeLakeResponse
from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.spark.planning import SplitPartition, partitions_needed, resolve_partitions
from headrace.tablelayer.spark.positions import (
    Began,
    Offsets,
    PartitionAt,
    PartitionedPosition,
    admit,
    lake_snapshots,
    partition_starts,
    places_of,
    replaced_partitions,
)
from headrace.tablelayer.spark.splits import Split, plan_splits, state_splits
from headrace.tablelayer.spark.table_stream import HeadraceStreamReader
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

logger = logging.getLogger("headrace.spark")
_LISTED_AT_MOST = 5
"""Maximum number of attempts to list the partitions while the server learns of no snapshot of the lake."""

_ASKED_EVERY_S = 1.0
"""Time after which a stream whose partitions stay the same asks for the lake's snapshot again: the answer is large."""


@dataclass(frozen=True, slots=True)
class _Lake:
    """The server's answer about a lake: its snapshot (-1: none), the ids of the table's partitions, and the counts of
    those that expired and that are gone. `snapshot` is None if the lake does not have the log.
    """

    snapshot: int | None = None
    ids: frozenset[str] = frozenset()
    counts: tuple[int, ...] = ()

    def gone(self, listed: frozenset[str]) -> tuple[int, ...]:
        """Return the counts for a position with these partitions; the second one only if these are all."""
        return self.counts if listed == self.ids else self.counts[:1]


_asked: dict[tuple[str, str], tuple[float, _Lake, frozenset[str]]] = {}
"""The last answers by table id and filter, with their times, and the ids that a stream listed then. A reader of the
catalog lives for one request only."""


class PartitionedStreamReader(HeadraceStreamReader):
    """Stream reader of a partitioned table as a whole; see `PartitionedPosition`."""

    def _initial_offset(self) -> dict[str, Any]:
        if self._initial is None:
            began: dict[str, PartitionAt] = {}
            table, lake = self._table(), self._ask_lake().snapshot
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
        present = self._ends(table, at)
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
        if at.gone and present.gone == at.gone and partitions == at.partitions:
            end = at  # a round of tiering alone makes no batch
        else:
            end = replace(present, partitions=partitions, began=at.began, began_lake=at.began_lake)
        if start is None:
            self._at = end
        return end.to_json()

    def _plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
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
            elif not isinstance(begin, str):
                found += self._planned(table, partition, begin, at.offsets, least)
        if isinstance(self.options.end, str):
            for name, before in replaced_partitions(first, last).items():
                found += self._of_expired(table, name, before.table, before.offsets, None, present.get(name))
            if not is_first:
                found += self._of_passed(table, first, last, present)
        union: list[InputPartition] | None = None
        if (in_lake and tiered is None) or (whole and not is_first):
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

    def _ends(self, table: Any, at: PartitionedPosition | None = None) -> PartitionedPosition:
        """Return the present ends, and the lake's snapshot that the server knows before and after it lists them.

        A partition that has expired has all of its rows in this snapshot, and a partition that is made later is not in
        it. An answer from before is as good if it has the same partitions.
        """
        key = self._table_id, str(self.options.predicate)
        asked_at, lake, ids = _asked.get(key, (-math.inf, _Lake(), frozenset()))
        since, is_recent = None, False
        if at is not None and not at.initial:
            is_recent = time.monotonic() < asked_at + _ASKED_EVERY_S
            if at.gone and at.gone == lake.gone(ids) and _ids(at.partitions) == ids:
                since = lake.snapshot
        for _ in range(_LISTED_AT_MOST):
            partitions, before = self._listed(table), lake
            ids = _ids(partitions)
            if is_recent and ids == before.ids:
                break
            asked_at, lake, is_recent = time.monotonic(), self._ask_lake(), True
            if lake.snapshot == before.snapshot:
                before = lake
                break
        else:
            before = _Lake(before.snapshot)
        _asked[key] = asked_at, before, ids
        return PartitionedPosition(
            self._table_id, partitions, lake=before.snapshot, since_lake=since, gone=before.gone(ids)
        )

    def _ask_lake(self) -> _Lake:
        if not self._lake_has_log:
            return _Lake()
        answer = connection(self.options.bootstrap).call(
            DescribeLakeRequest(table_id=self.read_plan.definition.table_id),
            DescribeLakeResponse,
            doing=f"describe the lake of {self.options.table}",
            to_controller=True,
        )
        ids = frozenset(str(partition_id) for partition_id in {each.partition_id for each in answer.ends})
        counts = (answer.expired_count, answer.gone_count) if answer.gone_count >= 0 else ()
        return _Lake(int(answer.snapshot_id), ids, counts)

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


def _ids(partitions: Mapping[str, PartitionAt]) -> frozenset[str]:
    return frozenset(each.table for each in partitions.values())
