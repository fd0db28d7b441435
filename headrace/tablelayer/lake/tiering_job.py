"""Tiering job, `headrace tier`: takes rounds from the coordinator, runs them in Spark, and reports each outcome.

A table that cannot be tiered does not delay the others. Spark starts with the first round that has work.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headrace.tablelayer.client import connect
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.lake.adapter import LakeError, LakeTable
from headrace.tablelayer.lake.catalogs import lake_catalog
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.lake.coordinator import Heartbeats, ServerCoordinator, TieringRound, list_lake
from headrace.tablelayer.lake.tiering_round import Outcome, RoundResult, first_line, tier_round
from headrace.tablelayer.lake.topics import Topic, TopicSource
from headrace.tablelayer.model.lake.offsets import Offsets
from headrace.tablelayer.model.lake.topics import TopicLake
from headrace.tablelayer.model.table.definition import TablePath
from headrace.tablelayer.spark.jars import SparkSetupError
from headrace.tablelayer.spark.sessions import activate, session

KEPT_OUT = 3
"""Exit code of a run with `once` that tiered nothing because another tierer held all of its tables."""
_NAMES_TOLD = 5
_KEPT_OUT_OUTCOMES = frozenset({Outcome.BUSY, Outcome.LOST, Outcome.FENCED})


def run_tiering(
    bootstrap: Bootstrap,
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
    """Run `headrace tier`; return its exit code: 0, 1 if a table could not be tiered, or KEPT_OUT.

    `tables` are names "db.t", `topics` plain topics; without either, all tables with `table.datalake.enabled` and
    topics with `datalake.enabled` are tiered. `once`: bring each up to date and return. Otherwise run until
    interrupted, take rounds as they fall due, and ask every `interval_s` seconds when none is due. `warehouse`
    overrides the server's `datalake.<format>.warehouse`. `report` receives one line per round.
    """
    settings = ConnectionSettings.make(bootstrap)
    with connect(settings) as connection:
        job = _Job(connection, settings, warehouse, report, cores, memory)
        named: list[TablePath | str] = [*(TablePath.parse(table) for table in tables), *topics]
        try:
            if once:
                return job.run_once(named)
            return job.run_forever(named, interval_s)
        except SparkSetupError as error:
            report(str(error))
            return 1


class _Job:
    """A tierer: one connection, and one Spark session that starts with the first work."""

    def __init__(
        self,
        connection: Any,
        bootstrap: Bootstrap,
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
        failures, kept_out = 0, 0
        chosen = list(paths) or [
            each.name if each.is_topic else TablePath.parse(each.name) for each in list_lake(self._connection)
        ]
        if not chosen:
            self._report(
                "no table has 'table.datalake.enabled'='true' and no topic 'datalake.enabled'='true': nothing to tier"
            )
        for path in chosen:
            result = self._attempt(path, force=True)
            kept_out += result is not None and result.outcome in _KEPT_OUT_OUTCOMES
            while result is not None and result.more:
                result = self._attempt(path, force=True)
            failures += result is None
        if failures:
            return 1
        if not chosen or kept_out < len(chosen):
            return 0
        self._report(
            "nothing was tiered: another tierer holds every selected table. `headrace tables lake` shows its"
            " rounds; try again when they have ended"
        )
        return KEPT_OUT

    def run_forever(self, paths: Sequence[TablePath | str], interval_s: float) -> int:
        """Tier until KeyboardInterrupt. A table that cannot be tiered is reported and does not delay the others."""
        wanted: list[TablePath | str | None] = list(paths) or [None]
        while True:
            results = [self._attempt(path, force=False) for path in wanted]
            if not any(result is not None and result.outcome is Outcome.COMMITTED for result in results):
                time.sleep(interval_s)

    def _attempt(self, path: TablePath | str | None, *, force: bool) -> RoundResult | None:
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
        try:
            return self._tier(granted)
        except Exception as error:
            failure = first_line(error)
            raise
        finally:
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
            source = TableChanges(self._connection, self._bootstrap, definition)
            return tier_round(granted, self._coordinator, lake, source, spark)

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

            result = tier_round(granted, self._coordinator, lake, source, spark, put_away)
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
            root = self._session()
            spark = root.newSession()
        try:
            yield spark
        finally:
            activate(root)

    def _session(self) -> Any:
        if self._spark is None:
            self._spark = session("headrace tier", cores=self._cores, memory=self._memory)
        return self._spark
