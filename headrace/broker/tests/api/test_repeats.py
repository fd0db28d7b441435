"""A connection that repeats a request gets the answers that a new connection would get."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from headrace.broker.api.repeats import FORMS_MAX
from headrace.broker.net.reply import CloseConnection, Peer
from headrace.broker.security.principal import ANONYMOUS, Session
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.encode import Record, build_batch
from simulator.direct import DirectBroker, direct_broker, values_of

NOW = 1_750_000_000_000
BATCH = build_batch([Record(None, b"v", (), NOW)])
VERSIONS = range(5, 14)


async def repeating(broker: DirectBroker, topic: str = "t", **options) -> None:
    """Send until the connection's requests to this topic are on the fast path, and check that they are."""
    await broker.produce(topic, BATCH, **options)
    with patch.object(type(broker.broker.dispatcher), "_learn", side_effect=AssertionError("decoded")):
        assert (await broker.produce(topic, BATCH, **options)).error_code == 0


def answers(answer) -> tuple:
    return answer.index, answer.error_code, answer.error_message, answer.base_offset, answer.log_start_offset


def changed(position: int, value: int) -> bytes:
    batch = bytearray(BATCH)
    batch[position] = value
    return bytes(batch)


def numbered(sequence: int, **options) -> bytes:
    record = Record(None, b"p", (), NOW)
    return build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence, **options)


@pytest.mark.parametrize("version", VERSIONS)
async def test_repeated_requests_are_appended_and_answered_like_the_first(tmp_path, version) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 3)
        for round_ in range(3):
            for partition in range(3):
                value = bytes([65 + round_ + partition]) * (1 + 100 * round_)
                answer = await broker.produce("t", [value], partition=partition, version=version)
                assert answers(answer) == (partition, 0, None, round_, 0)
        await repeating(broker, version=version)
        fetched = await broker.fetch("t", partition=2)
        assert values_of(fetched.records) == [(0, b"C"), (1, b"D" * 101), (2, b"E" * 201)]


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"x",
        BATCH[:60],
        BATCH + BATCH,
        BATCH[:-1] + b"x",
        changed(16, 1),
        changed(16, 100),
        changed(22, 0x10),
        changed(22, 4),
        changed(0, 1),
        numbered(0, attributes=0x10),
    ],
)
@pytest.mark.parametrize("version", [6, 12])
async def test_a_bad_batch_is_refused_in_the_same_words(tmp_path, batch, version) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await repeating(broker, version=version)
        first = await broker.produce("t", batch, version=version)
        broker.peer = Peer(2, "127.0.0.1", 1, "PLAINTEXT", Session(ANONYMOUS, "PLAINTEXT"))
        assert answers(await broker.produce("t", batch, version=version)) == answers(first)
        assert first.error_code != 0
        assert broker.context.replicas.partition("t", 0).log.log_end_offset == 2


async def test_a_retry_of_an_idempotent_producer_gets_the_offset_of_the_first(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await repeating(broker)
        sent = [numbered(sequence) for sequence in range(3)]
        offsets = [(await broker.produce("t", batch)).base_offset for batch in (*sent, sent[1])]
        assert offsets == [2, 3, 4, 3]
        answer = await broker.produce("t", numbered(9))
        assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_topic_change_counts_for_the_next_repeated_request(tmp_path, monkeypatch) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        monkeypatch.setattr(type(broker.context.replicas.partition("t", 0)), "replica_count", 3)
        await repeating(broker)
        await broker.context.topics.alter_config("t", {"min.insync.replicas": "2"})
        assert (await broker.produce("t", BATCH)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        await broker.context.topics.alter_config(
            "t", {"min.insync.replicas": None, "max.message.bytes": "60"}
        )
        assert (await broker.produce("t", BATCH)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        await broker.context.topics.alter_config("t", {"max.message.bytes": None})
        await repeating(broker)
        await broker.context.topics.delete_topic("t")
        assert (await broker.produce("t", BATCH)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.create_topic("t")
        assert (await broker.produce("t", BATCH)).base_offset == 0
        await repeating(broker)
        await broker.context.replicas.partition("t", 0).close()
        assert (await broker.produce("t", BATCH)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_request_of_another_version_is_answered_in_its_own(tmp_path) -> None:
    """The bytes behind the header are the same in Produce 7 and 8, the answer has more fields."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await repeating(broker, version=7)
        for version, offset in ((8, 2), (7, 3), (8, 4)):
            answer = await broker.produce("t", BATCH, version=version)
            assert answers(answer) == (0, 0, None, offset, 0)


async def test_replicas_that_are_not_there_are_missing_at_each_request(tmp_path, monkeypatch) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", min_insync_replicas="2")
        monkeypatch.setattr(type(broker.context.replicas.partition("t", 0)), "replica_count", 3)
        for _ in range(3):
            assert (await broker.produce("t", BATCH)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert broker.context.replicas.partition("t", 0).log.log_end_offset == 0


async def test_remembered_requests_of_a_connection_are_bounded(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 3 * FORMS_MAX)
        for round_ in range(2):
            for partition in range(3 * FORMS_MAX):
                assert (await broker.produce("t", BATCH, partition=partition)).base_offset == round_
        assert 0 < len(broker.peer.memory._forms) <= FORMS_MAX


async def test_a_failure_of_the_broker_ends_the_connection_and_is_not_tried_again(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await repeating(broker)
        log = broker.context.replicas.partition("t", 0).log
        with (
            patch.object(log, "append", side_effect=RuntimeError("broken")) as append,
            pytest.raises(CloseConnection, match="the broker failed"),
        ):
            await broker.produce("t", BATCH)
        assert append.call_count == 1
        assert (await broker.produce("t", BATCH)).base_offset == 2


@pytest.mark.parametrize(
    "config", [{"flush_messages": "3"}, {"durability": "power"}, {"compression_type": "lz4"}]
)
async def test_topics_whose_batches_may_have_to_wait_are_left_to_the_handler(tmp_path, config) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", **config)
        for offset in range(4):
            assert (await broker.produce("t", BATCH)).base_offset == offset
        assert broker.peer.memory is None
