"""DescribeLogDirs (35), the data directory, its free space and the size of each partition, and AlterReplicaLogDirs
(34).

There is one directory: a replica is always in it and cannot be moved to another. The size of a partition is that of its
log files, without indexes, as in Kafka. For a log that is not open, a thread reads it from the file system, so that the
request opens no log.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication.replicas import LocalReplicas
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.ports import Disk, DiskUsage
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.requirement import whole, within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


class LogDirsApi:
    def __init__(
        self,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        data_dir: Path,
        executor: Executor,
        slices: Slices,
        disk: Disk,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._executor = executor
        self._slices = slices
        self._disk = disk
        self._directory = Path(os.path.abspath(data_dir))

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                AlterReplicaLogDirsRequest,
                AlterReplicaLogDirsResponse,
                self.alter,
                within(cluster=Operation.ALTER),
            ),
            ApiDeclaration(
                DescribeLogDirsRequest, DescribeLogDirsResponse, self.describe, whole(Operation.DESCRIBE)
            ),
        ]

    def alter(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> Work[AlterReplicaLogDirsResponse]:
        """Answer LOG_DIR_NOT_FOUND for another directory, whatever the partition is, as in Kafka."""
        may_alter = context.may(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        for wanted in request.dirs:
            yield
            is_own = os.path.abspath(wanted.path) == str(self._directory)
            for topic in wanted.topics:
                yield
                result = results.setdefault(
                    topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[])
                )
                for index in topic.partitions:
                    yield
                    code: int = ErrorCode.NONE
                    if not may_alter:
                        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    elif not is_own:
                        code = ErrorCode.LOG_DIR_NOT_FOUND
                    else:
                        try:
                            self._replicas.partition(topic.name, index)
                        except KafkaError as error:
                            code = error.code
                    result.partitions.append(
                        AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    )
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    async def describe(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse:
        """Describe the directory. Topics and partitions that are not here are left out, as in Kafka."""
        slices = self._slices
        wanted = await slices.run(self._existing(request))
        unopened = [
            partition for partitions in wanted.values() for partition in partitions if not partition.is_open
        ]
        loop = asyncio.get_running_loop()
        volume, on_disk = await loop.run_in_executor(self._executor, self._look, unopened)
        result = DescribeLogDirsResult(
            log_dir=str(self._directory),
            topics=await slices.run(_sizes(wanted, on_disk)),
            total_bytes=volume.total_bytes,
            usable_bytes=volume.free_bytes,
        )
        return DescribeLogDirsResponse(results=[result])

    def _existing(self, request: DescribeLogDirsRequest) -> Work[dict[str, dict[Partition, None]]]:
        """Return the partitions that the request names, each once."""
        wanted: dict[str, dict[Partition, None]] = {}
        if request.topics is None:
            for image in self._metadata.topics():
                yield
                here = (each for each in self._replicas.partitions(image.name) if self._is_here(each))
                wanted[image.name] = dict.fromkeys(here)
            return wanted
        for topic in request.topics:
            yield
            found = wanted.setdefault(topic.topic, {})
            for index in topic.partitions:
                yield
                partition = self._replicas.find_partition(topic.topic, index)
                if partition is not None and self._is_here(partition):
                    found[partition] = None
        return wanted

    def _is_here(self, partition: Partition) -> bool:
        """Return whether this broker leads or follows the partition."""
        return (
            not partition.closed or self._replicas.follower(partition.topic.name, partition.index) is not None
        )

    def _look(self, unopened: list[Partition]) -> tuple[DiskUsage, dict[Partition, int]]:
        return self._disk.usage(self._directory), sizes_on_disk(self._disk, self._directory, unopened)


def _sizes(
    wanted: dict[str, dict[Partition, None]], on_disk: dict[Partition, int]
) -> Work[list[DescribeLogDirsTopic]]:
    topics = []
    for name, partitions in wanted.items():
        yield
        if not partitions:
            continue
        topic = DescribeLogDirsTopic(name=name)
        topics.append(topic)
        for partition in partitions:
            yield
            size = partition.log.size_bytes if partition.is_open else on_disk.get(partition, 0)
            topic.partitions.append(
                DescribeLogDirsPartition(partition_index=partition.index, partition_size=size)
            )
    return topics


def sizes_on_disk(disk: Disk, directory: Path, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the bytes of log files of partitions below a data directory, from the file system. Blocking."""
    return {each: _log_bytes(disk, directory / f"{each.topic.name}-{each.index}") for each in partitions}


def _log_bytes(disk: Disk, directory: Path) -> int:
    """Return the bytes of a partition's log files, 0 where nothing was written yet, or was deleted meanwhile."""
    return sum(disk.size(directory / name) or 0 for name in disk.names(directory) if name.endswith(".log"))
