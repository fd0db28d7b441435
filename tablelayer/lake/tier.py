"""The tiering job: rounds that move what is new in a table's log into its lake table, exactly once.

One round of one table:
1. take a round from the coordinator (epoch, lease; a thread renews it);
2. find what is tiered **in the lake**, and tell the coordinator if it does not know it (a tierer may have died
   between its commit and its report);
3. pin the log's end offsets; nothing new: the round ends and changes nothing;
4. read the range in the executors, for a PK table the last change of each key, or at its very first round the
   state of its key-value store; write it on a branch together with the new offsets; move `main` onto it if
   nobody moved it in between;
5. tell the coordinator; go on with 4 until the pinned end, or until the coordinator wants the round to finish;
6. compact and expire if the table's options say so; end the round.

Whoever dies anywhere leaves either a branch that nobody sees or a complete round. Two tierers at once: the
coordinator gives the round to one of them; should both have one all the same, the lake takes one commit and
the other is told that it lost.

What is read and committed at once has at most `ROUND_ROWS_MAX` changes per bucket, so that memory does not grow
with the backlog; a table that is further behind takes several commits, and each of them is final.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from tablelayer.lake.adapter import LakeError, LakeState, LakeTable, RoundLostError
from tablelayer.lake.coordinator import (
    TOKEN_VARIABLE,
    Coordinator,
    Heartbeats,
    LakeStatus,
    ServerCoordinator,
    TieringRound,
    list_lake,
)
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.lake_offsets import Offsets, PartitionBucket, in_order, without_dropped
from tablelayer.model.options import ChangelogImage
from tablelayer.model.partitions import Partition
from tablelayer.model.table import TableDefinition, TablePath
from tablelayer.model.topic_lake import TopicLake

ROUND_ROWS_MAX = 2_000_000
"""Offsets per bucket and commit: some hundred megabytes of Arrow in one worker for rows of 100 bytes."""

CATALOG_PROPERTY_PREFIX = "datalake.{format}."
"""Of the server's settings for the catalogs of a lake format; what follows is the format's own word."""


class Outcome(StrEnum):
    """How a round ended."""

    COMMITTED = "committed"
    NOTHING_NEW = "nothing new"
    BUSY = "another tierer has this table"
    LOST = "lost to another tierer"
    FENCED = "fenced by another tierer"


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one round did. `changes`: offsets moved into the lake, over all buckets."""

    path: TablePath | str | None
    outcome: Outcome
    changes: int = 0
    snapshot: int | None = None
    offsets: Offsets = field(default_factory=dict)
    seconds: float = 0.0
    more: bool = False
    detail: str = ""

    def __str__(self) -> str:
        if self.outcome is Outcome.COMMITTED:
            text = (
                f"{self.path}: {self.changes:,} changes into snapshot {self.snapshot} in {self.seconds:.1f} s"
            )
        elif self.outcome is Outcome.NOTHING_NEW:
            text = f"{self.path}: nothing new, the lake is at snapshot {self.snapshot}"
        else:
            text = f"{self.path}: {self.outcome.value}"
        return f"{text} ({self.detail})" if self.detail else text


class ChangeSource(Protocol):
    """The log of one table, or of all partitions of a partitioned one: offsets by place."""

    def earliest(self) -> dict[Any, int]:
        """The first offset each place still has."""

    def latest(self) -> dict[Any, int]:
        """The end (exclusive) of each place's log, as readers may see it now: these are the places that there are."""

    def state(self, spark: Any, end: Offsets) -> Any | None:
        """A DataFrame in this session of a PK table's rows at `end`, with a column `_deleted` that is false.

        None for a log table, and where the log itself is to be read.
        """

    def changes(self, spark: Any, start: Offsets, end: Offsets) -> Any:
        """A DataFrame in this session of what is in `[start, end)`: a log table's rows; for a PK table the
        last change of each key with a column `_deleted`."""


class TableChanges:
    """`ChangeSource` over the table client."""

    def __init__(self, connection: Any, bootstrap: str, definition: TableDefinition) -> None:
        self._table = connection.table(str(definition.path))
        self._bootstrap = bootstrap
        self._definition = definition
        self._partitions: dict[UUID, Partition] = {}

    def earliest(self) -> dict[Any, int]:
        return self._offsets("earliest")

    def latest(self) -> dict[Any, int]:
        return self._offsets("latest")

    def _offsets(self, at: str) -> dict[Any, int]:
        if not self._definition.is_partitioned:
            return dict(self._table.offsets(at))
        before = {each.name: each for each in self._table.partitions()}
        found = self._table.partition_offsets(at)
        after = {each.name: each.table_id for each in self._table.partitions()}
        # What was dropped, or dropped and made anew, while we asked is left to the next round.
        self._partitions |= {each.table_id: each for each in before.values()}
        return {
            PartitionBucket(name, before[name].table_id, bucket): offset
            for name, by_bucket in found.items()
            if name in before and after.get(name) == before[name].table_id
            for bucket, offset in by_bucket.items()
        }

    def state(self, spark: Any, end: Offsets) -> Any | None:
        """From the key-value store: a long changelog need not be read, and may have been shortened.

        A changelog without old images (WAL) cannot be undone back to `end`, so it is read itself while it is
        whole. Where it is not, the lake's first state is that of a moment after `end`; the rounds from `end` on
        repeat what it has already, and readers of lake and log together see no difference.
        """
        from pyspark.sql import functions

        from tablelayer.spark.frames import splits_frame
        from tablelayer.spark.splits import DELETED_COLUMN, Split, TableRead

        definition = self._definition
        if not definition.is_primary_key_table:
            return None
        wal = definition.settings.changelog_image is ChangelogImage.WAL
        if wal and not any(offset for place, offset in self.earliest().items() if place in end):
            return None
        read = TableRead(self._bootstrap, definition, definition.schema.columns, "current")
        splits = [
            Split(bucket, 0, stop, state=True, partition=partition)
            for partition, ends in self.by_partition(end)
            for bucket, stop in sorted(ends.items())
            if stop
        ]
        return splits_frame(spark, read, splits).withColumn(DELETED_COLUMN, functions.lit(False))

    def changes(self, spark: Any, start: Offsets, end: Offsets) -> Any:
        from tablelayer.spark.frames import splits_frame
        from tablelayer.spark.splits import ReadMode, TableRead, plan_splits

        schema = self._definition.schema
        mode: ReadMode = "last" if self._definition.is_primary_key_table else "current"
        read = TableRead(self._bootstrap, self._definition, schema.columns, mode)
        starts = dict(self.by_partition(start))
        splits = [
            replace(split, partition=partition)
            for partition, ends in self.by_partition(end)
            for split in plan_splits(starts.get(partition, {}), ends)
        ]
        return splits_frame(spark, read, splits)

    def by_partition(self, offsets: Offsets) -> list[tuple[Partition | None, dict[int, int]]]:
        """Offsets by bucket: of the table, or of each of its partitions."""
        found: dict[Partition | None, dict[int, int]] = {}
        for place, offset in in_order(offsets):
            if isinstance(place, PartitionBucket):
                partition = self._partitions[place.table_id]
                found.setdefault(partition, {})[place.bucket] = offset
            else:
                found.setdefault(None, {})[place] = offset
        return list(found.items())


def with_state(
    state: Any | None, new: Collection[Any], source: ChangeSource, spark: Any, start: Offsets, end: Offsets
) -> Any:
    """The changes from `start` to `end`, but for the `new` places their `state` at the end, if there is one."""
    if state is None:
        return source.changes(spark, start, end)
    known = {place: offset for place, offset in end.items() if place not in new}
    if all(start[place] == offset for place, offset in known.items()):
        return state
    return state.unionByName(source.changes(spark, {place: start[place] for place in known}, known))


def tier_round(
    granted: TieringRound,
    coordinator: Coordinator,
    lake: LakeTable,
    source: ChangeSource,
    spark: Any,
    before_commit: Callable[[Offsets, Offsets], None] = lambda _start, _end: None,
) -> RoundResult:
    """Carry out one round, up to the log's end as it is now; its holder ends it, with the coordinator.

    `before_commit` is told of each piece, from where to where, when it is written and nobody sees it yet. Raises
    LakeError for what a person must mend, and the source's errors.
    """
    started = time.monotonic()
    with Heartbeats(coordinator, granted) as heartbeats:
        heartbeats.doing = "looking"
        base = lake.find_committed(coordinator.describe(granted.table_id).snapshot_id)
        start, end = _plan(granted.path, base, source)
        new = {place: offset for place, offset in end.items() if place not in base.offsets}
        state = source.state(spark, new) if new else None
        if state is not None:
            start |= dict.fromkeys(new, 0)  # whatever the log still has of it
        if base.committed is not None and start == end:
            detail = _report(coordinator, granted, base.committed, base.offsets)
            nothing = Outcome.NOTHING_NEW
            return RoundResult(granted.path, nothing, 0, base.committed, base.offsets, detail=detail)
        if start == end:
            return RoundResult(granted.path, Outcome.NOTHING_NEW)
        first = start
        details = []
        while start != end and not (base.committed is not None and heartbeats.finish.is_set()):
            heartbeats.doing = "writing"
            upto = {place: min(offset, start[place] + ROUND_ROWS_MAX) for place, offset in end.items()}
            if state is not None:
                upto |= new
            changes = with_state(state, new, source, spark, start, upto)
            state = None
            offsets = without_dropped({**base.offsets, **upto}, end)
            try:
                snapshot = lake.write(base, changes, offsets, granted.epoch)
                if heartbeats.fenced.is_set():
                    return RoundResult(granted.path, Outcome.FENCED)
                heartbeats.doing = "committing"
                before_commit(start, upto)
                lake.commit(base, snapshot, granted.epoch)
            except RoundLostError as error:
                return RoundResult(granted.path, Outcome.LOST, detail=str(error))
            finally:
                lake.discard(granted.epoch)
            details = [_report(coordinator, granted, snapshot, offsets)]
            base = LakeState(snapshot, snapshot, offsets, granted.epoch)
            start = upto
            heartbeats.changes = sum(upto[place] - first[place] for place in upto)
        heartbeats.doing = "maintaining"
        details.append(_maintain(lake))
        detail = "; ".join(each for each in details if each)
        more, seconds = start != end, time.monotonic() - started
        committed = Outcome.COMMITTED
        return RoundResult(
            granted.path, committed, heartbeats.changes, base.committed, base.offsets, seconds, more, detail
        )


def _plan(
    path: TablePath | str, base: LakeState, source: ChangeSource
) -> tuple[dict[Any, int], dict[Any, int]]:
    """(start, end) by place: from what is tiered to what is there now. What was never tiered begins with the log."""
    earliest, latest = source.earliest(), source.latest()
    start = {place: base.offsets.get(place, earliest.get(place, 0)) for place in latest}
    for place, first in start.items():
        if earliest.get(place, 0) > first:
            raise LakeError(
                f"{path}: bucket {place} is tiered up to offset {first}, but its log begins at"
                f" {earliest[place]}: the rows in between are gone from the log. Drop the lake table to"
                " begin again from what is there."
            )
        if latest[place] < first:
            raise LakeError(
                f"{path}: bucket {place} is tiered up to offset {first}, but its log ends at"
                f" {latest[place]}: the log was cut, or the lake is another server's. Check the data"
                " directory."
            )
    return start, latest


def _maintain(lake: LakeTable) -> str:
    """What is tiered is tiered: that maintenance failed is worth a line, and the next round tries again."""
    try:
        return lake.maintain()
    except Exception as error:  # noqa: BLE001 - see above
        return f"maintenance failed: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    """Errors of the JVM come with their whole stack, behind a line that says no more than which call it was."""
    lines = (str(error).strip() or repr(error)).splitlines()
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        return lines[1].removeprefix(": ")
    return lines[0]


def _report(coordinator: Coordinator, granted: TieringRound, snapshot: int, offsets: Offsets) -> str:
    """Tell the coordinator; that it cannot be told does not undo the commit. Text for the person, usually
    empty.
    """
    try:
        coordinator.commit(granted, snapshot, offsets)
    except TableError as error:
        if error.code is not TableErrorCode.FENCED_TIERING_EPOCH:
            raise
        return f"the server did not take the report, the next round repeats it: {error.message}"
    except Exception as error:  # noqa: BLE001 - the lake holds the truth
        return f"the server was not told, the next round reports it: {error}"
    return ""


def run_tiering(
    bootstrap: str,
    *,
    tables: Sequence[str] = (),
    topics: Sequence[str] = (),
    once: bool = True,
    interval_s: float = 10.0,
    warehouse: str | None = None,
    report: Callable[[str], None] = lambda _: None,
    cores: int = 2,
    memory: str = "1g",
) -> int:
    """What `headrace tier` does; the exit code: 0, or 1 if a table could not be tiered.

    `tables`: "db.t" each, and plain `topics`; without either all that have `table.datalake.enabled`, or
    `datalake.enabled`. `once`: bring each up to what is there
    now and return; otherwise go on for ever, taking rounds as they fall due, asking every `interval_s`
    seconds when none is.
    `warehouse` overrides the server's `datalake.<format>.warehouse`. `report` is told one line per round.
    """
    from tablelayer.client import connect
    from tablelayer.spark.jars import SparkSetupError

    with connect(bootstrap) as connection:
        job = _Job(connection, bootstrap, warehouse, report, cores, memory)
        named: list[TablePath | str] = [*(TablePath.parse(table) for table in tables), *topics]
        try:
            if once:
                return job.run_once(named)
            return job.run_forever(named, interval_s)
        except SparkSetupError as error:
            report(str(error))
            return 1


class _Job:
    """A tierer: one connection, one Spark session, started when there is something to do."""

    def __init__(
        self,
        connection: Any,
        bootstrap: str,
        warehouse: str | None,
        report: Callable[[str], None],
        cores: int,
        memory: str,
    ) -> None:
        self._connection = connection
        self._bootstrap = bootstrap
        self._warehouse = warehouse
        self._report = report
        self._cores = cores
        self._memory = memory
        self._coordinator = ServerCoordinator(connection, f"{socket.gethostname()}-{os.getpid()}")
        self._spark: Any = None

    def run_once(self, paths: Sequence[TablePath | str]) -> int:
        failures = 0
        chosen = list(paths) or [
            each.name if each.is_topic else TablePath.parse(each.name) for each in list_lake(self._connection)
        ]
        if not chosen:
            self._report(
                "no table has 'table.datalake.enabled'='true' and no topic 'datalake.enabled'='true': nothing to tier"
            )
        for path in chosen:
            more = True
            while more:
                result = self._attempt(path, force=True)
                failures += result is None
                more = result is not None and result.more
        return 1 if failures else 0

    def run_forever(self, paths: Sequence[TablePath | str], interval_s: float) -> int:
        """Ends with KeyboardInterrupt. A table that cannot be tiered is reported and does not hold up the
        others.
        """
        wanted: list[TablePath | str | None] = list(paths) or [None]
        while True:
            results = [self._attempt(path, force=False) for path in wanted]
            if not any(result is not None and result.outcome is Outcome.COMMITTED for result in results):
                time.sleep(interval_s)

    def _attempt(self, path: TablePath | str | None, *, force: bool) -> RoundResult | None:
        """One round, reported; None if it failed. Without `force`, that none is due is not worth a line."""
        named = path
        try:
            granted = self._coordinator.begin(path, force=force)
            if granted is None:
                result = RoundResult(path, Outcome.BUSY)
                if not force:
                    return result
            else:
                named = granted.path
                result = self._tier_and_release(granted)
        except Exception as error:  # noqa: BLE001 - Spark, the lake, the server: reported, and the job lives on
            self._report(str(error) if isinstance(error, LakeError) else f"{named}: {_first_line(error)}")
            return None
        self._report(str(result))
        return result

    def _tier_and_release(self, granted: TieringRound) -> RoundResult:
        """A failure is told to the coordinator, which puts the table off; an interruption just ends the round."""
        failure = None
        try:
            return self._tier(granted)
        except Exception as error:
            failure = _first_line(error)
            raise
        finally:
            self._coordinator.release(granted, failure)

    def _tier(self, granted: TieringRound) -> RoundResult:
        if isinstance(granted.path, str):
            return self._tier_topic(granted, granted.path)
        definition = self._connection.admin.describe_table(granted.path)
        if definition.table_id != granted.table_id:
            raise LakeError(
                f"{granted.path} was dropped and created again while its round began: tier it again"
            )
        status = self._coordinator.describe(granted.table_id)
        check_lake(status, self._warehouse, granted.path)
        with self._spark_of(granted) as spark:
            lake = open_lake(spark, definition, status, self._warehouse)
            source = TableChanges(self._connection, self._bootstrap, definition)
            return tier_round(granted, self._coordinator, lake, source, spark)

    def _tier_topic(self, granted: TieringRound, name: str) -> RoundResult:
        """See `topics.py`."""
        from tablelayer.lake.topics import Topic, TopicSource

        described = self._connection.kafka.describe_topic(name)
        if described.topic_id != granted.table_id:
            raise LakeError(
                f"topic {name} was deleted and created again while its round began: tier it again"
            )
        config = TopicLake.parse(name, described.configs)
        topic = Topic(name, described.topic_id, len(described.leaders), config)
        status = self._coordinator.describe(granted.table_id)
        check_lake(status, self._warehouse, name)
        with self._spark_of(granted) as spark:
            found = open_lake(spark, config.undefined(topic.topic_id), status, self._warehouse)
            stored = found.stored_definition()
            with Heartbeats(self._coordinator, granted) as heartbeats:
                heartbeats.doing = "looking"
                source = TopicSource(self._connection, self._bootstrap, topic)
                definition = source.define(spark, stored, found.find_committed(status.snapshot_id))
            if definition is None:
                return RoundResult(name, Outcome.NOTHING_NEW)
            lake = open_lake(spark, definition, status, self._warehouse)

            def dead_letters() -> LakeTable:
                letters = config.dead_letters(topic.topic_id)
                return open_lake(spark.newSession(), letters, status, self._warehouse)

            def put_away(start: Offsets, end: Offsets) -> None:
                source.before_commit(spark, dead_letters, start, end, granted.epoch)

            result = tier_round(granted, self._coordinator, lake, source, spark, put_away)
            if result.outcome is Outcome.COMMITTED and source.dead_letters:
                told = f"{source.dead_letters:,} records do not fit and went to {config.dead_letters_path}"
                result = replace(result, detail="; ".join(each for each in (result.detail, told) if each))
            return result

    @contextmanager
    def _spark_of(self, granted: TieringRound) -> Iterator[Any]:
        """A session for one round, with heartbeats while Spark starts, which takes seconds."""
        with Heartbeats(self._coordinator, granted) as heartbeats:
            heartbeats.doing = "starting Spark"
            from tablelayer.spark.session import activate

            root = self._session()
            spark = root.newSession()
        try:
            yield spark
        finally:
            activate(root)

    def _session(self) -> Any:
        if self._spark is None:
            from tablelayer.spark.session import session

            self._spark = session("headrace tier", cores=self._cores, memory=self._memory)
        return self._spark


def open_lake(
    spark: Any, definition: TableDefinition, status: LakeStatus, warehouse: str | None
) -> LakeTable:
    """The table's copy in the lake of its format: the one place that knows the adapters. Raises LakeError."""
    properties = check_lake(status, warehouse, definition.path)
    if status.format == "paimon":
        from tablelayer.lake.paimon import PaimonTable

        return PaimonTable(spark, definition, properties)
    from tablelayer.lake.iceberg import IcebergTable

    return IcebergTable(spark, definition, properties)


def check_lake(status: LakeStatus, warehouse: str | None, path: TablePath | str) -> dict[str, str]:
    """The lake catalog's properties: the server's `datalake.<format>.*`, the warehouse given by hand first.

    Raises LakeError when the table is not tiered, or nobody says where to.
    """
    from tablelayer.spark.session import iceberg_catalog_properties

    if not status.enabled:
        option = "datalake.enabled" if isinstance(path, str) else "table.datalake.enabled"
        raise LakeError(f"{path} is not tiered: it was created without '{option}'='true'")
    prefix = CATALOG_PROPERTY_PREFIX.format(format=status.format)
    kept = [name for name, value in status.properties.items() if name.startswith(prefix) and value is None]
    if kept:
        raise LakeError(
            f"the server tells {', '.join(kept)} to nobody who does not present its tiering token: set"
            f" datalake.tiering.token there, and {TOKEN_VARIABLE} to the same text in the environment of this process"
        )
    given = {
        name.removeprefix(prefix): value
        for name, value in status.properties.items()
        if name.startswith(prefix) and value
    }
    place = warehouse or given.pop("warehouse", None)
    given.pop("warehouse", None)
    if status.format == "paimon":
        if given.get("metastore", "filesystem") != "filesystem":
            raise LakeError(
                f"{path}: '{prefix}metastore' is '{given['metastore']}', but Paimon tables are tiered into"
                " filesystem catalogs only"
            )
    elif status.format != "iceberg":
        raise LakeError(
            f"{path} asks for lake format '{status.format}': tables are tiered into iceberg or paimon"
        )
    elif given.get("type", "hadoop") != "hadoop" or "catalog-impl" in given:
        # What a warehouse is, such a catalog knows.
        return {**given, **({"warehouse": place} if place else {})}
    if not place:
        raise LakeError(
            f"nobody says where the lake of {path} is: start the server with"
            f" --set {prefix}warehouse=FOLDER, or give the warehouse to this command"
        )
    if status.format == "paimon":
        return {**given, "warehouse": place if "://" in place else str(Path(place).resolve())}
    return {**iceberg_catalog_properties(place), **given}
