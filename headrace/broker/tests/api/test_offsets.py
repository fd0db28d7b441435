"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import threading

import msgspec
import pytest

from headrace.broker.log.partition_log import AppendOrigin
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.protocol.records import check
from headrace.protocol.records.check import Effort
from headrace.protocol.records.encode import Record, build_batch
from simulator.direct import DirectBroker, direct_broker

START = 1_750_000_000_000


async def look_up(
    broker: DirectBroker, timestamp: int, version: int = 9, partition: int = 0, epoch: int = -1
):
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
    response = await broker.send(request, version)
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


async def filled(broker: DirectBroker) -> None:
    """Offsets 0-9, a second apart, two to a batch; the records before 3 are deleted."""
    await broker.create_topic("t", retention_ms="-1")
    for number in range(0, 10, 2):
        records = [Record(None, b"v", (), START + 1000 * (number + i)) for i in range(2)]
        assert (await broker.produce("t", build_batch(records))).error_code == 0
    broker.context.replicas.partition("t", 0).delete_records(3)


@pytest.mark.parametrize("version", range(1, 12))
async def test_earliest_latest_and_by_time(tmp_path, version) -> None:
    async with direct_broker(tmp_path) as broker:
        await filled(broker)
        assert await look_up(broker, -2, version) == (0, 3, -1)
        assert await look_up(broker, -1, version) == (0, 10, -1)
        assert await look_up(broker, START + 4000, version) == (0, 4, START + 4000)
        assert await look_up(broker, START + 4001, version) == (0, 5, START + 5000)
        assert await look_up(broker, START + 9001, version) == (0, -1, -1)
        assert (await look_up(broker, 0, version))[:2] == (0, 3)


@pytest.mark.parametrize("version", range(1, 12))
async def test_an_offset_found_in_a_thread_is_answered_in_every_version(
    tmp_path, monkeypatch, version
) -> None:
    """Versions 1 to 3 have no place for an epoch."""
    monkeypatch.setattr("headrace.broker.api.offsets.Effort", lambda: Effort(-1))
    async with direct_broker(tmp_path) as broker:
        await filled(broker)
        assert await look_up(broker, START + 4001, version) == (0, 5, START + 5000)


@pytest.mark.parametrize(("timestamp", "first_version"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-77, 99)])
async def test_special_timestamps_mean_something_from_their_version_on(
    tmp_path, timestamp, first_version
) -> None:
    expected = {-3: (0, 9, START + 9000), -4: (0, 3, -1), -5: (0, -1, -1), -6: (0, -1, -1)}
    async with direct_broker(tmp_path) as broker:
        await filled(broker)
        for version in range(1, 12):
            answer = await look_up(broker, timestamp, version)
            if version < first_version:
                assert answer == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
            else:
                assert answer == expected[timestamp]


async def test_errors_of_list_offsets_are_per_partition(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await filled(broker)
        assert (await look_up(broker, -1, partition=4))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await look_up(broker, -1, epoch=8))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        broker.context.replicas.partition("t", 0).fail("the test says so")
        assert (await look_up(broker, -1))[0] == ErrorCode.KAFKA_STORAGE_ERROR


async def test_the_earliest_offset_has_the_epoch_of_its_record_or_of_the_one_to_come(tmp_path) -> None:
    """Kafka 4.3 does the same. Consumers that begin there notice by it that their log was replaced."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        partition = broker.context.replicas.partition("t", 0)

        async def epoch(timestamp: int) -> int:
            wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsetsTopic(name="t", partitions=[wanted])
            response = await broker.send(ListOffsetsRequest(replica_id=-1, topics=[topic]))
            return response.topics[0].partitions[0].leader_epoch

        assert [await epoch(each) for each in (-2, -4, -1)] == [partition.leader_epoch] * 3
        await broker.produce("t", [b"x"])
        partition.leader_epoch += 3
        latest = partition.leader_epoch
        assert [await epoch(each) for each in (-2, -4, -1)] == [latest - 3, latest - 3, latest]
        partition.delete_records(1)
        assert [await epoch(each) for each in (-2, -4, -1)] == [latest] * 3


@pytest.mark.parametrize("level", [-1, 2])
async def test_an_unknown_isolation_level_is_refused(tmp_path, level) -> None:
    async with direct_broker(tmp_path) as broker:
        await filled(broker)
        assert (await broker.fetch("t", 3, isolation_level=level)).error_code == ErrorCode.INVALID_REQUEST
        topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=[topic])
        answer = (await broker.send(request)).topics[0].partitions[0]
        assert (answer.error_code, answer.offset) == (ErrorCode.INVALID_REQUEST, -1)


async def test_an_empty_partition(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        for timestamp, offset in [(-2, 0), (-1, 0), (-3, -1), (START, -1)]:
            assert await look_up(broker, timestamp) == (0, offset, -1)


async def test_e1_the_end_of_leader_epochs(tmp_path) -> None:
    async def ask(broker: DirectBroker, epoch: int, current: int = -1):
        wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[wanted])])
        answer = (await broker.send(request)).topics[0].partitions[0]
        return answer.error_code, answer.leader_epoch, answer.end_offset

    for _ in range(2):
        async with direct_broker(tmp_path) as broker:
            if broker.context.metadata.topic("t") is None:
                await broker.create_topic("t")
            await broker.produce("t", [b"a", b"b"])
        (tmp_path / ".kafka_cleanshutdown").unlink()
    async with direct_broker(tmp_path) as broker:
        assert await ask(broker, 0) == (0, 0, 2)
        assert await ask(broker, 1) == (0, 1, 4)
        assert await ask(broker, 2) == (0, 2, 4)
        assert await ask(broker, 9) == (0, -1, -1)
        assert (await ask(broker, 0, current=1))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await ask(broker, 0, current=5))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("offset", "code", "low_watermark"),
    [
        (5, 0, 5),
        (-1, 0, 10),
        (10, 0, 10),
        (2, 0, 3),
        (11, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (-2, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
    ],
)
async def test_delete_records_moves_the_start_for_good(tmp_path, offset, code, low_watermark) -> None:
    async with direct_broker(tmp_path) as broker:
        await filled(broker)
        wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[wanted])])
        answer = (await broker.send(request)).topics[0].partitions[0]
        assert (answer.error_code, answer.low_watermark) == (code, low_watermark)
    async with direct_broker(tmp_path) as broker:
        assert (await look_up(broker, -2))[1] == max(low_watermark, 3)
        assert (await look_up(broker, -1))[1] == 10


async def test_a_search_by_time_opens_large_batches_in_a_thread(tmp_path, monkeypatch) -> None:
    loop_thread, opened = threading.get_ident(), []
    original = check.decompress

    def decompress(codec, data, *, max_bytes):
        result = original(codec, data, max_bytes=max_bytes)
        opened.append((threading.get_ident() == loop_thread, len(result)))
        return result

    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 20, retention_ms="-1")
        records = [Record(None, bytes(2_000_000), (), START + 1000 * i) for i in range(4)]
        for partition in range(20):
            for shift in (0, 4000):
                batch = build_batch(
                    [msgspec.structs.replace(r, timestamp=r.timestamp + shift) for r in records],
                    compression=4,
                )
                assert (await broker.produce("t", batch, partition=partition)).error_code == 0
        monkeypatch.setattr(check, "decompress", decompress)
        for timestamp, expected in ((START + 6000, 6), (START + 1, 1), (-3, 7)):
            wanted = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in range(20)]
            topics = [ListOffsetsTopic(name="t", partitions=wanted)]
            response = await broker.send(ListOffsetsRequest(replica_id=-1, topics=topics), 9)
            answers = [(p.error_code, p.offset) for p in response.topics[0].partitions]
            assert answers == [(0, expected)] * 20
        assert sum(is_loops for is_loops, _ in opened) <= 3
        assert sum(not is_loops for is_loops, _ in opened) == 60


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
async def test_records_of_the_brokers_own_topics_are_not_deleted_by_clients(tmp_path, topic) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic(topic)
        partition = broker.context.replicas.partition(topic, 0)
        partition.append(build_batch([Record(b"k", b"v", (), START)]), AppendOrigin.COORDINATOR)
        wanted = DeleteRecordsPartition(partition_index=0, offset=1)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])])
        answer = (await broker.send(request)).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert partition.log.log_start_offset == 0
