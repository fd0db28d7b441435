"""The journal on a real log."""

import uuid

import pytest

from headrace.broker.cluster import journal_topic
from headrace.broker.groups.journal import records as journal
from headrace.broker.groups.model.records import CommittedOffset, PutOffset
from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import AppendOrigin, PartitionLog
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.ports import SystemClock
from headrace.protocol.errors import ErrorCode, KafkaError


@pytest.fixture
def partition(tmp_path):
    image = TopicImage(journal.TOPIC, uuid.uuid4(), 1, {}, internal=True)
    config = LogConfig.parse({"retention.ms": "-1", "max.message.bytes": "1000000"})

    def open_log(partition):
        return PartitionLog.open(tmp_path, config, clock=SystemClock())

    partition = Partition(image, 0, open_log)
    yield partition
    partition.log.close()


def commit(offset, partition=0, metadata=""):
    return PutOffset("g", "t", partition, CommittedOffset(offset, -1, metadata, 1, -1))


def append(partition, records):
    partition.append(journal.encode_journal_batch(records, 1_000), AppendOrigin.COORDINATOR)


def test_everything_is_read_back_in_order_however_it_is_sliced(partition, monkeypatch):
    written = []
    for batch in range(20):
        records = [commit(batch, index, "m" * 50) for index in range(1 + batch % 3)]
        append(partition, records)
        written.extend(records)
    for size in (1, 500, 1 << 20):
        monkeypatch.setattr(journal_topic, "READ_SIZE_BYTES", size)
        assert list(journal.read_partition(partition)) == written


def test_reading_begins_where_the_log_does(partition):
    for offset in range(10):
        append(partition, [commit(offset)])
    partition.delete_records(7)
    assert list(journal.read_partition(partition)) == [commit(offset) for offset in (7, 8, 9)]


def test_empty_journal(partition):
    assert list(journal.read_partition(partition)) == []


def test_record_that_does_not_fit_is_refused_as_the_clients_fault():
    record = PutOffset("g" * 40_000, "t", 0, CommittedOffset(1))
    with pytest.raises(KafkaError) as raised:
        journal.encode_journal_batch([record], 1_000)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
