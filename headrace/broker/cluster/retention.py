"""Retention: deletes the old segments of every partition, one partition after the other, repeatedly.

The topic's configuration decides which segments are old (`PartitionLog.delete_old_segments`); the high watermark and
the floors of hooks and policies limit it. A partition whose segments cannot be deleted is reported and tried again in
the next round. A log that is not open is opened only when it has something old (`ClosedLogs`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from headrace.broker.runtime.disk_errors import is_disk_full, is_passing
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.log.retention import RetentionLimits
    from headrace.broker.partitions.deleted_files import DeletedFiles
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.replication.topic_policy import TopicPolicy
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import AgeClock

logger = logging.getLogger("headrace.server")

PARTITIONS_TOGETHER: Final = 32
"""Number of partitions that are looked at in one turn of the event loop."""


class ClosedLogs:
    """The times from which logs that are not open have something to delete; a closed log does not change.

    Both functions may be called in any thread. `limits` returns those of a partition's local log, and `due_ms` reads
    the time from its folder (`broker.log.closed`).
    """

    def __init__(
        self,
        executor: Executor,
        limits: Callable[[Partition], RetentionLimits],
        due_ms: Callable[[Partition, RetentionLimits], float],
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._due_ms = due_ms
        self._known: dict[Partition, tuple[RetentionLimits, float]] = {}
        self._known_before: dict[Partition, tuple[RetentionLimits, float]] = {}
        """The times of the round before; a partition that does not exist any more is not taken over."""

    def begin_round(self) -> None:
        self._known_before, self._known = self._known, {}

    async def due(self, partitions: Sequence[Partition], now_ms: int) -> list[Partition]:
        """Return those of the partitions that retention has to look at: open logs, and closed ones with something
        old.
        """
        idle = [each for each in partitions if _is_idle(each)]
        due = list(set(partitions).difference(idle))
        if idle:
            loop = asyncio.get_running_loop()
            due += await loop.run_in_executor(self._executor, self._due_of, idle, now_ms)
        return due

    def _due_of(self, idle: Sequence[Partition], now_ms: int) -> list[Partition]:
        """Return those of the closed logs that have something old."""
        due = []
        for partition in idle:
            limits = self._limits(partition)
            known = self._known_before.get(partition)
            if known is None or known[0] != limits:
                try:
                    known = limits, self._due_ms(partition, limits)
                except OSError as error:  # the open meets it again, and reports it
                    logger.debug("the folder of %r cannot be read: %s", partition, error)
                    known = limits, 0.0
            self._known[partition] = known
            if known[1] <= now_ms:
                due.append(partition)
        return due


def _is_idle(partition: Partition) -> bool:
    return not (partition.closed or partition.is_open or partition.failure is not None)


class Retention:
    """One object per broker, on the event loop, which runs other work between two partitions."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: LocalReplicas,
        policies: Sequence[TopicPolicy],
        deleted_files: DeletedFiles,
        ages: AgeClock,
        background: BackgroundTasks,
        closed_logs: ClosedLogs,
        removals: asyncio.Lock | None = None,
    ) -> None:
        """`removals`: the lock of tasks that need the files of all segments to stay."""
        self._closed_logs = closed_logs
        self._removals = removals or asyncio.Lock()
        self._config = config
        self._replicas = replicas
        self._policies = policies
        self._deleted_files = deleted_files
        self._ages = ages
        self._background = background

    async def run(self) -> None:
        """Delete old segments until cancelled."""
        await asyncio.sleep(self._config["log.initial.task.delay.ms"] / 1000)
        while True:
            await self._round()
            await asyncio.sleep(self._config["log.retention.check.interval.ms"] / 1000)

    async def _round(self) -> None:
        self._closed_logs.begin_round()
        partitions = self._replicas.all_partitions()
        for first in range(0, len(partitions), PARTITIONS_TOGETHER):
            some = partitions[first : first + PARTITIONS_TOGETHER]
            for partition in await self._closed_logs.due(some, self._ages.time_ms()):
                await self._apply(partition)
                await asyncio.sleep(0)  # let requests in between
            await asyncio.sleep(0)

    async def _apply(self, partition: Partition) -> None:
        try:
            async with self._removals:
                # A partition that has closed meanwhile has no hooks, which know what they need of the log.
                if partition.closed:
                    return
                deleted = partition.apply_retention(self._ages.time_ms(), self._floor(partition))
        except (KafkaError, OSError) as error:
            if is_disk_full(error):
                self._deleted_files.hurry()
            if not is_passing(error):  # a passing error was reported
                logger.error("retention of %r failed: %s", partition, error)
        except Exception as error:  # noqa: BLE001 - of one partition: told
            self._background.failed(f"retention of {partition!r}", error)
        else:
            if deleted:
                logger.info("retention removed %d segments of %r", deleted, partition)

    def _floor(self, partition: Partition) -> int | None:
        """Return the lowest offset that policies keep, of a partition without hooks; hooks know their own."""
        floors = [] if partition.hooks else [policy.retention_floor(partition) for policy in self._policies]
        return min((floor for floor in floors if floor is not None), default=None)
