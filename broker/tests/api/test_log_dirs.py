"""DescribeLogDirs: sizes are those of the files, whether the log is open or not."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from broker.testing.direct import direct_broker
from protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest


def sizes_of(response) -> dict[tuple[str, int], int]:
    (directory,) = response.results
    assert directory.error_code == 0
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_sizes_of_partitions_and_of_the_volume(tmp_path, version) -> None:
    async def test() -> None:
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
        async with direct_broker(tmp_path) as broker:  # nothing is open now, nor is it opened
            response = await broker.send(DescribeLogDirsRequest(topics=None), version)
            assert sizes_of(response) == sizes
            assert not any(part.is_open for part in broker.context.metadata.partitions("t"))

    asyncio.run(test())


def test_only_what_is_asked_for_and_exists(tmp_path) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("t", 2)
            await broker.create_topic("u")
            wanted = [
                DescribableLogDirTopic(topic="t", partitions=[1, 9]),
                DescribableLogDirTopic(topic="missing", partitions=[0]),
            ]
            response = await broker.send(DescribeLogDirsRequest(topics=wanted))
            assert sizes_of(response) == {("t", 1): 0}

    asyncio.run(test())
