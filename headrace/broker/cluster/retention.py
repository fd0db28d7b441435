"""Retention: deletes the old segments of every partition, one partition after the other, repeatedly.

The topic's configuration decides which segments are old (`PartitionLog.delete_old_segments`); the high watermark and
the floors of hooks and policies limit it. A partition whose segments cannot be deleted is reported and tried again in
the next round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.runtime.disk_errors import is_disk_full, is_passing
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.partitions.deleted_files import DeletedFiles
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.replication.topic_policy import TopicPolicy
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import AgeClock

logger = logging.getLogger("headrace.server")


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
        removals: asyncio.Lock | None = None,
    ) -> None:
        """`removals`: the lock of tasks that need the files of all segments to stay."""
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
            for partition in self._replicas.all_partitions():
                if partition.closed:  # its topic was deleted meanwhile
                    continue
                try:
                    async with self._removals:
                        deleted = partition.apply_retention(self._ages.time_ms(), self._floor(partition))
                except (KafkaError, OSError) as error:
                    if is_disk_full(error):
                        self._deleted_files.hurry()
                    if not is_passing(error):  # a passing error was reported
                        logger.error("retention of %r failed: %s", partition, error)
                    continue
                except Exception as error:  # noqa: BLE001 - of one partition: told
                    self._background.failed(f"retention of {partition!r}", error)
                    continue
                if deleted:
                    logger.info("retention removed %d segments of %r", deleted, partition)
                await asyncio.sleep(0)  # let requests in between
            await asyncio.sleep(self._config["log.retention.check.interval.ms"] / 1000)

    def _floor(self, partition: Partition) -> int | None:
        """Return the lowest offset that policies keep, of a partition without hooks; hooks know their own."""
        floors = [] if partition.hooks else [policy.retention_floor(partition) for policy in self._policies]
        return min((floor for floor in floors if floor is not None), default=None)
