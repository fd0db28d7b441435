"""The answers to produce requests."""

from __future__ import annotations

import asyncio
import errno
import threading
import uuid
from functools import partial

import pytest

from headrace.broker.net.reply import CloseConnection
from headrace.broker.runtime.disk_errors import DISK_LOG
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records import check
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import write_crc
from simulator.direct import direct_broker, values_of
from simulator.log import StillClock

NOW = 1_750_000_000_000
BATCH = build_batch([Record(None, b"v", (), NOW)])


@pytest.mark.parametrize("version", range(3, 14))
async def test_batches_get_consecutive_offsets_in_every_version(tmp_path, version) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        first = await broker.produce("t", [b"a", b"b"], version=version, acks=1)
        second = await broker.produce("t", [b"c"], version=version)
        assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
        assert (first.log_append_time_ms, first.log_start_offset) == (-1, 0 if version >= 5 else -1)
        fetched = await broker.fetch("t")
        assert values_of(fetched.records) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_acks_0_has_no_answer_and_its_failure_closes_the_connection(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")

        def request(topic: str) -> ProduceRequest:
            data = [PartitionProduceData(index=0, records=BATCH)]
            return ProduceRequest(acks=0, topic_data=[TopicProduceData(name=topic, partition_data=data)])

        assert await broker.send(request("t"), 12) is None
        assert broker.context.replicas.partition("t", 0).log.log_end_offset == 1
        with pytest.raises(CloseConnection, match="acks=0 to missing-0 failed"):
            await broker.send(request("missing"), 12)
        with pytest.raises(CloseConnection, match=r"acks=0 to a\\nb-0 failed") as forged:
            await broker.send(request("a\nb"), 12)
        assert "\n" not in str(forged.value)


def with_attributes(bits: int) -> bytes:
    batch = bytearray(BATCH)
    batch[22] |= bits
    return bytes(batch)


def with_magic(magic: int) -> bytes:
    batch = bytearray(BATCH)
    batch[16] = magic
    return bytes(batch)


@pytest.mark.parametrize(
    ("batch", "options", "code", "message"),
    [
        (BATCH, {"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS, "acks is 2"),
        (BATCH, {"partition": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partition 5"),
        (b"", {}, ErrorCode.INVALID_RECORD, "0 bytes"),
        (BATCH[:60], {}, ErrorCode.INVALID_RECORD, "60 bytes"),
        (BATCH + BATCH, {}, ErrorCode.INVALID_RECORD, ""),
        (with_magic(1), {}, ErrorCode.INVALID_RECORD, "format 1"),
        (with_magic(100), {}, ErrorCode.INVALID_RECORD, "format 100"),
        (with_attributes(0x10), {}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no transactional id"),
        (with_attributes(4), {"version": 6}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce 7"),
        (BATCH[:-1] + b"x", {}, ErrorCode.CORRUPT_MESSAGE, ""),
    ],
)
async def test_a_refused_batch_has_kafkas_error_code(tmp_path, batch, options, code, message) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        answer = await broker.produce("t", batch, **options)
        assert answer.error_code == code
        assert answer.base_offset == -1
        if options.get("version", 12) >= 8:
            assert message in (answer.error_message or "")
        assert broker.context.replicas.partition("t", 0).log.log_end_offset == 0


async def test_acks_all_needs_the_replicas_that_the_topic_asks_for(tmp_path, monkeypatch) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", min_insync_replicas="2")
        monkeypatch.setattr(type(broker.context.replicas.partition("t", 0)), "replica_count", 3)
        assert (await broker.produce("t", [b"v"])).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await broker.produce("t", [b"v"], acks=1)).error_code == 0
        assert broker.context.replicas.partition("t", 0).log.log_end_offset == 1


async def test_acks_all_needs_no_more_replicas_than_there_are(tmp_path) -> None:
    """Kafka does the same since 3.7: a topic of one replica can be written to where min.insync.replicas is 2 by
    default.
    """
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", min_insync_replicas="2")
        assert (await broker.produce("t", [b"v"])).error_code == ErrorCode.NONE
        assert (await broker.fetch("t", 0)).high_watermark == 1


async def test_clients_cannot_write_to_the_brokers_own_topics(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("__consumer_offsets")
        answer = await broker.produce("__consumer_offsets", [b"v"])
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_one_bad_partition_does_not_spoil_the_others(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 3)
        data = [
            PartitionProduceData(index=0, records=BATCH),
            PartitionProduceData(index=1, records=b"junk"),
            PartitionProduceData(index=9, records=BATCH),
            PartitionProduceData(index=2, records=BATCH),
        ]
        response = await broker.send(
            ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)]), 12
        )
        codes = [(p.index, p.error_code) for p in response.responses[0].partition_responses]
        assert codes == [
            (0, 0),
            (1, ErrorCode.INVALID_RECORD),
            (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (2, 0),
        ]


async def test_an_unknown_topic_id_is_told_per_partition_and_the_others_are_written(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        image = await broker.create_topic("t")
        gone = uuid.uuid4()
        request = ProduceRequest(
            acks=-1,
            topic_data=[
                TopicProduceData(
                    topic_id=topic_id, partition_data=[PartitionProduceData(index=0, records=BATCH)]
                )
                for topic_id in (gone, image.topic_id)
            ],
        )
        response = await broker.send(request, 13)
        unknown, known = response.responses
        assert (unknown.topic_id, known.topic_id) == (gone, image.topic_id)
        answer = unknown.partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)
        assert (known.partition_responses[0].error_code, known.partition_responses[0].base_offset) == (
            0,
            0,
        )
        request.acks = 0
        with pytest.raises(CloseConnection, match="acks=0"):
            await broker.send(request, 13)


@pytest.mark.parametrize("version", range(8, 14))
async def test_a_closing_partition_answers_with_the_current_leader(tmp_path, version) -> None:
    """KIP-951: Produce 10 and Fetch 16 carry the leader and its address."""
    async with direct_broker(tmp_path, {"broker.rack": "r1"}) as broker:
        image = await broker.create_topic("t")
        await broker.context.replicas.partition("t", 0).close()
        request = ProduceRequest(
            acks=-1,
            topic_data=[
                TopicProduceData(
                    name="t",
                    topic_id=image.topic_id,
                    partition_data=[PartitionProduceData(index=0, records=BATCH)],
                )
            ],
        )
        response = await broker.send(request, version)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version < 10:
            assert (answer.current_leader, response.node_endpoints) == (None, [])
            return
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (0, 0)
        (node,) = response.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (
            0,
            "127.0.0.1",
            broker.broker.port,
            "r1",
        )


async def test_a_repeated_batch_gets_the_first_answer(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        options = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        await broker.produce("t", [b"other"])
        first = await broker.produce("t", [b"v"], **options)
        again = await broker.produce("t", [b"v"], **options)
        assert (first.base_offset, again.base_offset, again.error_code) == (1, 1, 0)
        assert broker.context.replicas.partition("t", 0).high_watermark == 2
        gap = await broker.produce("t", [b"v"], producer_id=5, producer_epoch=0, base_sequence=7)
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_log_append_time_is_told(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", message_timestamp_type="LogAppendTime")
        before = broker.context.clock.time_ms()
        answer = await broker.produce("t", BATCH)
        assert before <= answer.log_append_time_ms <= broker.context.clock.time_ms()


async def test_a_full_disk_fails_the_partition_and_nothing_else(tmp_path, monkeypatch, caplog) -> None:
    DISK_LOG.forget()
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("full")
        await broker.create_topic("fine")
        await broker.produce("full", [b"before"])
        log = broker.context.replicas.partition("full", 0).log
        real = type(log.segments[-1].file).write

        def write(file, parts, position):
            if file is log.segments[-1].file:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(file, parts, position)

        with monkeypatch.context() as patch:
            patch.setattr(type(log.segments[-1].file), "write", write)
            answer = await broker.produce("full", [b"lost"])
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "disk is full" in answer.error_message
            assert (await broker.produce("fine", [b"ok"])).error_code == 0
            assert values_of((await broker.fetch("full")).records) == [(0, b"before")]
        assert "disk is full" in caplog.text
        assert (await broker.produce("full", [b"after"])).base_offset == 1


def lying(position: int, data: bytes) -> bytes:
    batch = bytearray(build_batch([Record(b"k", b"value")]))
    batch[position : position + len(data)] = data
    write_crc(batch)
    return bytes(batch)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lying(61, b"\xff" * 9), "record 0"),
        (lying(57, (1000).to_bytes(4, "big")), "disagree"),
        (lying(23, (999).to_bytes(4, "big") + BATCH[27:57] + (1000).to_bytes(4, "big")), "record 1"),
        (lying(61, b"\x02"), "record 0"),
        (lying(64, b"\x02"), "record 0"),
    ],
)
async def test_a_batch_that_lies_about_its_records_is_refused(
    tmp_path, monkeypatch, batch, message, few
) -> None:
    monkeypatch.setattr(check, "_kernel", None if few else check.load())
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        for _ in range(2):  # the second one takes the fast path of repeated requests
            assert (await broker.produce("t", BATCH)).error_code == 0
            answer = await broker.produce("t", batch)
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert message in answer.error_message
        assert broker.context.replicas.partition("t", 0).log.log_end_offset == 2


@pytest.mark.parametrize("config", [{}, {"cleanup_policy": "compact"}, {"compression_type": "lz4"}])
async def test_the_event_loop_decompresses_a_bounded_part_of_a_request(tmp_path, monkeypatch, config) -> None:
    loop_thread, opened = threading.get_ident(), []
    original = check.decompress

    under_way: list[int] = []
    at_a_time: list[int] = []

    def decompress(codec, data, *, max_bytes):
        under_way.append(threading.get_ident())
        at_a_time.append(len(set(under_way) - {loop_thread}))
        try:
            result = original(codec, data, max_bytes=max_bytes)
        finally:
            under_way.remove(threading.get_ident())
        opened.append((threading.get_ident() == loop_thread, len(result)))
        return result

    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 65, **config)
        small = build_batch([Record(b"k", b"v" * 100)], compression=4)
        for _ in range(2):
            assert (await broker.produce("t", small)).error_code == 0
        monkeypatch.setattr(check, "decompress", decompress)
        assert (await broker.produce("t", small)).error_code == 0
        assert [is_loops for is_loops, _ in opened] == [True]
        opened.clear()
        large = build_batch([Record(b"k", bytes(200_000))] * 2, compression=4)
        assert len(large) < 8192
        data = [PartitionProduceData(index=index, records=large) for index in range(65)]
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)])
        response = await broker.send(request, 12)
        assert {p.error_code for p in response.responses[0].partition_responses} == {0}
        assert sum(size for is_loops, size in opened if is_loops) < 1_000_000
        assert sum(size for is_loops, size in opened if not is_loops) > 60 * 400_000
        assert max(at_a_time) == 1


async def test_a_request_rests_between_its_partitions_whatever_their_batches_take(
    tmp_path, monkeypatch
) -> None:
    clock, turns, appended_in = StillClock(NOW), 0, []

    def slowly(original, *arguments, **options):
        clock.seconds += 0.002
        appended_in.append(turns)
        return original(*arguments, **options)

    async def innocent() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with direct_broker(tmp_path, clock=clock) as broker:
        await broker.create_topic("t", 6)
        for index in range(6):
            log = broker.context.replicas.partition("t", index).log
            monkeypatch.setattr(log, "append", partial(slowly, log.append))
        other = asyncio.ensure_future(innocent())
        data = [PartitionProduceData(index=index, records=BATCH) for index in range(6)]
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)])
        response = await broker.send(request, 12)
        other.cancel()
        assert {p.error_code for p in response.responses[0].partition_responses} == {0}
        assert len(set(appended_in)) == 6
