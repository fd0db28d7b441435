"""The logs of this broker's partitions: how one is opened, and when its deleted segments are removed."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from headrace.broker.log import closed
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.partitions.data_dir import PARTITION_METADATA, DataDirectory
from headrace.broker.partitions.deleted_files import DeletedFiles
from headrace.broker.partitions.partition import Partition

if TYPE_CHECKING:
    from headrace.broker.assembly.ports import Ports
    from headrace.broker.log.retention import RetentionLimits
    from headrace.broker.metadata.topic_config import TopicConfigs
    from headrace.broker.remote.manager import RemoteLogManager
    from headrace.broker.replication.replicas import LocalReplicas


class PartitionLogs:
    """Opens logs in the data directory. `replicas` is set before the first log is opened."""

    def __init__(
        self, directory: DataDirectory, topic_configs: TopicConfigs, executor: Executor, ports: Ports
    ) -> None:
        self.replicas: LocalReplicas
        self.remote: RemoteLogManager | None = None
        """The remote log; None without remote storage."""
        self.removals = asyncio.Lock()
        """Held by work that needs all files to stay where they are."""
        self.deleted_files = DeletedFiles(
            executor, ports.clock, ports.disk, directory.path, self._file_delete_delay_ms, self.removals
        )
        self._directory = directory
        self._topic_configs = topic_configs
        self._ports = ports
        self._background = executor.submit
        self._discard = self.deleted_files.remove_later

    def open(self, partition: Partition) -> PartitionLog:
        """Open a partition's log; make its folder if it has none."""
        if self.remote is not None:
            self.remote.check_known(partition)
        topic, index = partition.topic, partition.index
        new = self._directory.make_partition_dir(topic, index)
        log = PartitionLog.open(
            new or self._directory.prepare_partition_dir(topic, index),
            self._topic_configs.log_config(partition.topic),
            clock=self._ports.clock,
            disk=self._ports.disk,
            background=self._background,
            discard=self._discard,
            is_new=new is not None,
            companions=(PARTITION_METADATA,),
        )
        if self.remote is not None:
            partition.remote = self.remote.of(partition, log)
        return log

    def clean_end_offset(self, partition: Partition) -> int | None:
        """Return the end offset of a partition's log that was closed cleanly; None if its open has to find it. Slow;
        call it in a thread. Raises OSError.
        """
        return closed.clean_end_offset(self._ports.disk, self._directory.partition_dir(*partition.place))

    def retention_limits(self, partition: Partition) -> RetentionLimits:
        """Return the limits of the local part of a partition's log."""
        config = self._topic_configs.log_config(partition.topic)
        return config.local_retention if config.remote_storage_enable else config.retention

    def retention_due_ms(self, partition: Partition, limits: RetentionLimits) -> float:
        """Return the time from which retention may delete something of a closed log. Slow; call it in a thread. Raises
        OSError.
        """
        folder = self._directory.partition_dir(*partition.place)
        return closed.retention_due_ms(self._ports.disk, folder, limits)

    def _file_delete_delay_ms(self, topic: str, index: int) -> int | None:
        partition = self.replicas.find_partition(topic, index)
        return (
            None
            if partition is None
            else self._topic_configs.log_config(partition.topic).file_delete_delay_ms
        )
