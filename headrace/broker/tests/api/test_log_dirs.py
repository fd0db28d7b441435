"""DescribeLogDirs: sizes are those of the files, for open and closed logs."""

from __future__ import annotations

import shutil

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from simulator.direct import direct_broker


def sizes_of(response) -> dict[tuple[str, int], int]:
    (directory,) = response.results
    assert directory.error_code == 0
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
async def test_sizes_of_partitions_and_of_the_volume(tmp_path, version) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        await broker.produce("t", [b"x" * 1000])
        written = sum(file.stat().st_size for file in (tmp_path / "t-0").glob("*.log"))
        assert written > 1000
        sizes = {("t", 0): written, ("t", 1): 0}
        response = await broker.send(DescribeLogDirsRequest(topics=None), version)
        assert sizes_of(response) == sizes
        directory = response.results[0]
        assert directory.log_dir == str(tmp_path)
        if version >= 4:
            assert directory.total_bytes == shutil.disk_usage(tmp_path).total
            assert 0 < directory.usable_bytes <= directory.total_bytes
    async with direct_broker(tmp_path) as broker:  # no log is open now, and none is opened
        response = await broker.send(DescribeLogDirsRequest(topics=None), version)
        assert sizes_of(response) == sizes
        assert not any(part.is_open for part in broker.context.replicas.partitions("t"))


async def test_only_requested_partitions_that_exist_are_described(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        await broker.create_topic("u")
        wanted = [
            DescribableLogDirTopic(topic="t", partitions=[1, 9]),
            DescribableLogDirTopic(topic="missing", partitions=[0]),
        ]
        response = await broker.send(DescribeLogDirsRequest(topics=wanted))
        assert sizes_of(response) == {("t", 1): 0}


@pytest.mark.parametrize("version", [1, 2])
async def test_a_replica_is_where_it_is_and_cannot_be_moved_elsewhere(tmp_path, version) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 3)
        wanted = {
            f"{tmp_path}/": [("t", [0, 3]), ("missing", [0])],
            f"{tmp_path}/t-0": [("t", [1]), ("missing", [1])],
        }
        dirs = [
            AlterReplicaLogDir(
                path=path,
                topics=[AlterReplicaLogDirTopic(name=name, partitions=indexes) for name, indexes in topics],
            )
            for path, topics in wanted.items()
        ]
        response = await broker.send(AlterReplicaLogDirsRequest(dirs=dirs), version)
        assert {
            (result.topic_name, partition.partition_index): partition.error_code
            for result in response.results
            for partition in result.partitions
        } == {
            ("t", 0): 0,
            ("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("t", 1): ErrorCode.LOG_DIR_NOT_FOUND,
            ("missing", 1): ErrorCode.LOG_DIR_NOT_FOUND,
        }
        assert [result.topic_name for result in response.results] == ["t", "missing"]
