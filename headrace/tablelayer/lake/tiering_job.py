"""Tiering job, `headrace tier`: takes rounds from the coordinator, runs them in Spark, and reports each outcome.

A table that cannot be tiered does not delay the others. Spark starts with the first round that has work.
"""

from __future__ import annotations

import datetime
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any
from uuid import UUID

from headrace.tablelayer.client import connect
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.lake.adapter import LakeError, LakeState, LakeTable
from headrace.tablelayer.lake.catalogs import lake_catalog
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.lake.coordinator import Heartbeats, ServerCoordinator, TieringRound, list_lake
from headrace.tablelayer.lake.partition_expiry import PartitionExpiry
from headrace.tablelayer.lake.tiering_options import DailyWindow, SparkOptions
from headrace.tablelayer.lake.tiering_round import Expire, Outcome, RoundResult, first_line, tier_round
from headrace.tablelayer.lake.topics import Topic, TopicSource
from headrace.tablelayer.model.lake.offsets import Offsets
from headrace.tablelayer.model.lake.topics import TopicLake
from headrace.tablelayer.model.options.lake_options import expiration_check_ms
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.spark.jars import SparkSetupError
from headrace.tablelayer.spark.sessions import activate, session

KEPT_OUT = 3
"""Exit code of a run with `once` that tiered nothing because another tiering job held all of its tables."""
_NAMES_TOLD = 5
_KEPT_OUT_OUTCOMES = frozenset({Outcome.BUSY, Outcome.LOST, Outcome.FENCED})


def run_tiering(
    bootstrap: Bootstrap,
    *,
    tables: Sequence[str] = (),
    topics: Sequence[str] = (),
    databases: Sequence[str] = (),
    once: bool = True,
    interval_s: float = 10.0,
    warehouse: str | None = None,
    report: Callable[[str], None] = lambda _: None,
    spark: SparkOptions = SparkOptions(),  # noqa: B008 - it cannot change
    parallelism: int = 1,
    maintenance: DailyWindow | None = None,
) -> int:
    """Run `headrace tier`; return its exit code: 0, 1 if a table could not be tiered, or KEPT_OUT.

    `tables` are names "db.t", `topics` plain topics, `databases` names of databases with all of their tables; without
    any, all tables with `table.datalake.enabled` and topics with `datalake.enabled` are tiered. `once`: bring each up
    to date and return. Otherwise run until interrupted, take rounds as they fall due, and ask every `interval_s`
    seconds when none is due. `warehouse` overrides the server's `datalake.<format>.warehouse`. `report` receives one
    line per round. `parallelism` is the number of rounds at the same time. Compaction and expiry run in the time of
    `maintenance`; None: at any time.
    """
    settings = ConnectionSettings.make(bootstrap)
    with connect(settings) as connection:
        root = _RootSession(spark)
        jobs = [
            _Job(connection, settings, warehouse, report, root, maintenance, lane)
            for lane in range(parallelism)
        ]
        wanted = _Wanted([*(TablePath.parse(table) for table in tables), *topics], frozenset(databases))
        try:
            if once:
                return _run_once(connection, jobs, wanted, report)
            return _run_forever(connection, jobs, wanted, interval_s)
        except SparkSetupError as error:
            report(str(error))
            return 1


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Tables and topics by name, and databases; nothing: all that is tiered."""

    named: Sequence[TablePath | str]
    databases: frozenset[str]

    def listed(self, connection: Any) -> list[TablePath | str]:
        """Return the tables and topics that are to be tiered now."""
        if self.named and not self.databases:
            return list(self.named)
        found = [each.name if each.is_topic else TablePath.parse(each.name) for each in list_lake(connection)]
        if not self.databases:
            return found
        of_databases = [
            path for path in found if isinstance(path, TablePath) and path.database in self.databases
        ]
        return list(dict.fromkeys([*self.named, *of_databases]))


def _run_once(connection: Any, jobs: Sequence[_Job], wanted: _Wanted, report: Callable[[str], None]) -> int:
    chosen = wanted.listed(connection)
    if not chosen:
        where = f" in {', '.join(sorted(wanted.databases))}" if wanted.databases else ""
        report(
            f"no table{where} has 'table.datalake.enabled'='true' and no topic 'datalake.enabled'='true': nothing to"
            " tier"
        )
    left = deque(chosen)
    outcomes: list[Outcome | None] = []

    def take(job: _Job) -> None:
        while left:
            try:
                path = left.popleft()
            except IndexError:
                return  # another lane took the last one
            outcomes.append(job.bring_up_to_date(path))

    _in_lanes(jobs[: max(1, len(chosen))], take)
    if None in outcomes:
        return 1
    if not chosen or not all(outcome in _KEPT_OUT_OUTCOMES for outcome in outcomes):
        return 0
    report(
        "nothing was tiered: another tiering job holds every selected table. `headrace tables lake` shows its"
        " rounds; try again when they have ended"
    )
    return KEPT_OUT


def _run_forever(connection: Any, jobs: Sequence[_Job], wanted: _Wanted, interval_s: float) -> int:
    """Tier until KeyboardInterrupt. A table that cannot be tiered is reported and does not delay the others."""

    def take(job: _Job) -> None:
        while True:
            paths: list[TablePath | str | None] = [None]
            if wanted.named or wanted.databases:
                paths = [*wanted.listed(connection)]
            results = [job.attempt(path, force=False) for path in paths]
            if not any(result is not None and result.outcome is Outcome.COMMITTED for result in results):
                time.sleep(interval_s)

    _in_lanes(jobs, take)
    return 0


def _in_lanes(jobs: Sequence[_Job], work: Callable[[_Job], None]) -> None:
    """Do the work with each job, at the same time. An interruption gives back the rounds that they hold."""
    if len(jobs) == 1:
        return work(jobs[0])
    lanes = ThreadPoolExecutor(len(jobs), thread_name_prefix="tiering")
    try:
        for done in as_completed([lanes.submit(work, job) for job in jobs]):
            done.result()
    except BaseException:
        for job in jobs:
            job.give_back()
        lanes.shutdown(wait=False, cancel_futures=True)
        raise
    lanes.shutdown()
    return None


class _RootSession:
    """The Spark session from which each round's session is made. It starts with the first work."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._spark: Any = None
        self.expiry_checked_at: dict[UUID, float] = {}
        """Time of the last check for old partitions, by table."""

    def get(self) -> Any:
        with self._lock:
            if self._spark is None:
                before = signal.getsignal(signal.SIGINT)
                self._spark = session("headrace tier", **self._options.arguments())
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, before)  # Spark has set its own
            return self._spark


class _Job:
    """A lane of the tiering job, which has one round at a time."""

    def __init__(
        self,
        connection: Any,
        bootstrap: Bootstrap,
        warehouse: str | None,
        report: Callable[[str], None],
        root: _RootSession,
        maintenance: DailyWindow | None,
        lane: int,
    ) -> None:
        self._connection = connection
        self._bootstrap = bootstrap
        self._warehouse = warehouse
        self._report = report
        self._root = root
        self._maintenance = maintenance
        worker = f"{socket.gethostname()}-{os.getpid()}"
        self._coordinator = ServerCoordinator(connection, f"{worker}-{lane}" if lane else worker)
        self._held: TieringRound | None = None

    def give_back(self) -> None:
        """Release the round that this lane holds, if any. Never raises."""
        held = self._held
        if held is not None:
            self._coordinator.release(held)

    def bring_up_to_date(self, path: TablePath | str) -> Outcome | None:
        """Tier all that the log has; return the first round's outcome, None if one failed."""
        first = result = self.attempt(path, force=True)
        while result is not None and result.more:
            result = self.attempt(path, force=True)
        return None if first is None or result is None else first.outcome

    def _may_maintain(self) -> bool:
        return self._maintenance is None or self._maintenance.is_open(datetime.datetime.now(datetime.UTC))

    def attempt(self, path: TablePath | str | None, *, force: bool) -> RoundResult | None:
        """Run and report one round; return None if it failed. Without `force`, no line is reported when none is due."""
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
        except Exception as error:  # noqa: BLE001 - Spark, the lake, the server: reported, and the job goes on
            self._report(str(error) if isinstance(error, LakeError) else f"{named}: {first_line(error)}")
            return None
        self._report(str(result))
        return result

    def _tier_and_release(self, granted: TieringRound) -> RoundResult:
        """Tier and release the round. A failure is reported to the coordinator, which delays the table's next round.

        An interruption ends the round without a failure.
        """
        failure = None
        self._held = granted
        try:
            return self._tier(granted)
        except Exception as error:
            failure = first_line(error)
            raise
        finally:
            self._held = None
            self._coordinator.release(granted, failure)

    def _tier(self, granted: TieringRound) -> RoundResult:
        if isinstance(granted.path, str):
            return self._tier_topic(granted, granted.path)
        definition = self._connection.admin.describe_table(granted.path)
        if definition.table_id != granted.table_id:
            raise LakeError(
                f"{granted.path} was dropped and created again while its round began: run the tiering again"
            )
        status = self._coordinator.describe(granted.table_id)
        catalog = lake_catalog(status, self._warehouse, granted.path)
        with self._spark_of(granted) as spark:
            lake = catalog.table(spark, definition)
            source = TableChanges(self._connection, self._bootstrap, definition, system_columns=True)
            return tier_round(
                granted,
                self._coordinator,
                lake,
                source,
                spark,
                may_maintain=self._may_maintain,
                expire=self._expiry(granted, lake, definition),
            )

    def _expiry(self, granted: TieringRound, lake: Any, definition: StoredTable) -> Expire | None:
        """Return the expiry of a table's partitions if a check is due; the first one of this job always is."""
        interval_ms, now = expiration_check_ms(definition.options), time.monotonic()
        checked = self._root.expiry_checked_at
        if interval_ms is None or now - checked.get(granted.table_id, -inf) < interval_ms / 1000:
            return None
        expiry = PartitionExpiry(granted, self._coordinator, lake, self._connection, definition)

        def expire(base: LakeState) -> tuple[LakeState, str]:
            found = expiry.run(base)
            checked[granted.table_id] = now
            return found

        return expire

    def _tier_topic(self, granted: TieringRound, name: str) -> RoundResult:
        """Tier a plain topic. See `topics.py`."""
        described = self._connection.kafka.describe_topic(name)
        if described.topic_id != granted.table_id:
            raise LakeError(
                f"topic {name} was deleted and created again while its round began: run the tiering again"
            )
        config = TopicLake.parse(name, described.required_configs())
        topic = Topic(name, described.topic_id, len(described.leaders), config)
        status = self._coordinator.describe(granted.table_id)
        catalog = lake_catalog(status, self._warehouse, name)
        with self._spark_of(granted) as spark:
            found = catalog.table(spark, config.undefined(topic.topic_id))
            stored = found.stored_definition()
            with Heartbeats(self._coordinator, granted) as heartbeats:
                heartbeats.doing = "looking"
                source = TopicSource(self._connection, self._bootstrap, topic)
                definition = source.define(spark, stored, found.find_committed(status.snapshot_id))
            if definition is None:
                return RoundResult(name, Outcome.NOTHING_NEW)
            lake = catalog.table(spark, definition)

            def dead_letters() -> LakeTable:
                return catalog.table(spark.newSession(), config.dead_letters(topic.topic_id))

            def put_away(start: Offsets, end: Offsets) -> None:
                source.before_commit(spark, dead_letters, start, end, granted.epoch)

            result = tier_round(granted, self._coordinator, lake, source, spark, put_away, self._may_maintain)
            if result.outcome is Outcome.COMMITTED:
                told = [result.detail, *source.renamed[:_NAMES_TOLD]]
                if len(source.renamed) > _NAMES_TOLD:
                    told.append(
                        f"{len(source.renamed) - _NAMES_TOLD} more fields have columns with other names"
                    )
                if source.dead_letters:
                    told.append(
                        f"{source.dead_letters:,} records do not fit and were written to {config.dead_letters_path}"
                    )
                result = replace(result, detail="; ".join(each for each in told if each))
            return result

    @contextmanager
    def _spark_of(self, granted: TieringRound) -> Iterator[Any]:
        """Open a session for one round, with heartbeats while Spark starts, which takes seconds."""
        with Heartbeats(self._coordinator, granted) as heartbeats:
            heartbeats.doing = "starting Spark"
            root = self._root.get()
            spark = root.newSession()
        try:
            yield spark
        finally:
            activate(root)
