"""Appends: accepted, refused and stamped batches (rules B1 to B6 of the log), and config parsing."""

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.topics import TOPIC_CONFIGS
from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import AppendOrigin
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import read_header, verify_crc, write_crc
from simulator.log import batches_of


def changed(batch: bytes, position: int, data: bytes) -> bytes:
    """Return the batch with other bytes and a matching CRC."""
    result = bytearray(batch)
    result[position : position + len(data)] = data
    write_crc(result)
    return bytes(result)


def refused(log, batch, code: ErrorCode, origin=AppendOrigin.CLIENT) -> str:
    end_offset, size = log.log_end_offset, log.size_bytes
    with pytest.raises(KafkaError) as error:
        log.append(batch, leader_epoch=0, origin=origin)
    assert error.value.code == code, error.value
    assert (log.log_end_offset, log.size_bytes) == (end_offset, size)
    return error.value.message


def test_offsets_and_epoch_are_stamped_and_the_senders_buffer_is_left_alone(world):
    log = world.open()
    world.append(log, 3)
    sent = bytearray(world.batch(2))
    copy = bytes(sent)
    info = log.append(sent, leader_epoch=7)
    assert (info.base_offset, info.last_offset, info.log_append_time_ms, info.duplicate) == (3, 4, -1, False)
    assert bytes(sent) == copy
    stored = log.read(3, 1 << 20, up_to=5).read()
    header = read_header(stored)
    assert (header.base_offset, header.partition_leader_epoch) == (3, 7)
    assert stored[16:] == copy[16:]
    assert verify_crc(stored)
    with pytest.raises(KafkaError) as error:
        log.append(copy, leader_epoch=6)
    assert error.value.code == ErrorCode.FENCED_LEADER_EPOCH


def test_b1_exactly_one_batch(world):
    log, batch = world.open(), world.batch()
    assert "no batch" in refused(log, b"", ErrorCode.INVALID_RECORD)
    refused(log, batch[:60], ErrorCode.INVALID_RECORD)
    assert "exactly one batch" in refused(log, batch + batch, ErrorCode.INVALID_RECORD)
    refused(log, batch + b"x", ErrorCode.INVALID_RECORD)
    refused(log, batch[:-1], ErrorCode.CORRUPT_MESSAGE)
    for old_magic in (0, 1):
        refused(log, changed(batch, 16, bytes([old_magic])), ErrorCode.INVALID_RECORD)
    refused(log, changed(batch, 16, b"\x03"), ErrorCode.CORRUPT_MESSAGE)
    refused(log, changed(world.batch(2), 16, b"\x64"), ErrorCode.INVALID_RECORD)
    log.append(changed(world.batch(2), 16, b"\x64"), leader_epoch=0, origin=AppendOrigin.EXTENSION)


def test_b2_a_clients_batch_has_no_offsets_and_honest_counts(world):
    log, batch = world.open(), world.batch(3)
    refused(log, changed(batch, 0, (5).to_bytes(8, "big")), ErrorCode.INVALID_RECORD)
    refused(log, changed(batch, 57, (4).to_bytes(4, "big")), ErrorCode.INVALID_RECORD)
    refused(log, changed(batch, 23, (9).to_bytes(4, "big")), ErrorCode.INVALID_RECORD)
    refused(log, world.batch(0), ErrorCode.INVALID_RECORD)
    assert "control bit" in refused(log, world.batch(attributes=0x20), ErrorCode.INVALID_RECORD)
    refused(log, world.batch(producer_id=3, producer_epoch=0), ErrorCode.INVALID_RECORD)
    refused(log, world.batch(producer_id=3, base_sequence=0), ErrorCode.INVALID_RECORD)
    refused(log, world.batch(producer_id=-2, producer_epoch=0, base_sequence=0), ErrorCode.INVALID_RECORD)
    refused(log, changed(batch, 21, b"\x00\x05"), ErrorCode.INVALID_RECORD)
    assert "transactional bit" in refused(log, world.batch(attributes=0x10), ErrorCode.INVALID_RECORD)


def test_b3_the_crc_must_match(world):
    log, batch = world.open(), bytearray(world.batch())
    for position in range(17, len(batch)):
        batch[position] ^= 0x10
        with pytest.raises(KafkaError):
            log.append(batch, leader_epoch=0, origin=AppendOrigin.EXTENSION)
        batch[position] ^= 0x10
    assert log.log_end_offset == 0
    batch[-1] ^= 1
    assert "CRC" in refused(log, batch, ErrorCode.CORRUPT_MESSAGE)


def test_b4_sizes(world):
    batch = world.batch(value=b"x" * 500)
    log = world.open(max_message_bytes=len(batch))
    log.append(batch, leader_epoch=0)
    log.reconfigure(LogConfig(max_message_bytes=len(batch) - 1))
    assert "max.message.bytes" in refused(log, batch, ErrorCode.MESSAGE_TOO_LARGE)
    log.append(batch, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    log.reconfigure(LogConfig(segment_bytes=len(batch) - 1))
    assert "segment.bytes" in refused(log, batch, ErrorCode.RECORD_LIST_TOO_LARGE)


def test_a_segment_ends_before_its_offsets_no_longer_fit_into_an_index(world):
    log = world.open(index_interval_bytes=0)
    batch = bytearray(world.batch())
    batch[23:27] = (1 << 30).to_bytes(4, "big")  # its last offset delta: offsets without records
    write_crc(batch)
    for _ in range(3):
        log.append(batch, leader_epoch=0, origin=AppendOrigin.EXTENSION)
    assert log.segment_count == 3
    log.close()
    assert [offset for offset, _ in batches_of(world.open())] == [0, (1 << 30) + 1, (2 << 30) + 2]


def test_b5_timestamps(world):
    now = world.clock.now_ms
    log = world.open(message_timestamp_after_max_ms=1000)
    world.append(log, at=now + 1000)
    world.append(log, at=0)
    world.append(log, at=-1)
    assert "timestamp.after" in refused(log, world.batch(at=now + 1001), ErrorCode.INVALID_TIMESTAMP)
    late = [Record(b"k", b"v", (), stamp) for stamp in (now, now + 1001)]
    refused(log, build_batch(late), ErrorCode.INVALID_TIMESTAMP)
    refused(log, world.batch(attributes=8), ErrorCode.INVALID_TIMESTAMP)
    log.reconfigure(LogConfig(message_timestamp_before_max_ms=500))
    records = [Record(b"k", b"v", (), stamp) for stamp in (now, now - 501, -1)]
    assert "timestamp.before" in refused(log, build_batch(records), ErrorCode.INVALID_TIMESTAMP)
    log.append(build_batch([records[0], records[2]]), leader_epoch=0)


def test_b6_log_append_time_is_stamped_into_a_batch_that_stays_valid(world):
    log = world.open(message_timestamp_type="LogAppendTime")
    sent = world.batch(4, at=5, producer_id=1, producer_epoch=0, base_sequence=0)
    info = log.append(sent, leader_epoch=3)
    assert info.log_append_time_ms == world.clock.now_ms
    stored = log.read(0, 1 << 20, up_to=4).read()
    header = read_header(stored)
    assert verify_crc(stored)
    assert (header.is_log_append_time, header.max_timestamp) == (True, world.clock.now_ms)
    assert (header.base_timestamp, header.producer_id, header.record_count) == (5, 1, 4)
    assert stored[61:] == sent[61:]
    world.clock.now_ms += 50
    retry = log.append(sent, leader_epoch=3)
    assert (retry.duplicate, retry.log_append_time_ms) == (True, world.clock.now_ms - 50)


def test_defaults_of_the_declared_table_are_those_of_the_parsed_config():
    assert LogConfig.parse({}) == LogConfig()
    defaults = {name: key.default for name, key in TOPIC_CONFIGS.items()}
    assert LogConfig.parse(defaults) == LogConfig()
    fields = LogConfig.__struct_fields__
    topics_own = {*fields[: fields.index("strict_records")]}
    assert topics_own <= {name.replace(".", "_") for name in TOPIC_CONFIGS}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cleanup.policy", "compacted", "one of: compact, delete"),
        ("compression.type", "none", "uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "1 to 9, or -1"),
        ("compression.lz4.level", "18", "from 1 to 17"),
        ("compression.zstd.level", "23", "from -131072 to 22"),
        ("min.cleanable.dirty.ratio", "1.5", "no more than 1"),
        ("max.compaction.lag.ms", "0", "at least 1"),
        ("file.delete.delay.ms", "-1", "at least 0"),
        ("local.retention.ms", "-3", "at least -2"),
        ("leader.replication.throttled.replicas", "none", r"leader.* literal '\*' or a list of replicas"),
        (
            "follower.replication.throttled.replicas",
            "0:0,*",
            r"follower.*format: \[partitionId\]:\[brokerId\]",
        ),
        ("retention.ms", "-2", "at least -1"),
        ("segment.bytes", "many", "Not a number of type INT"),
        ("segment.bytes", "1_048_576", "Not a number of type INT"),
        ("min.cleanable.dirty.ratio", "0.1_5", "Not a number of type DOUBLE"),
        ("message.timestamp.type", "logappendtime", "LogAppendTime"),
        ("retention.msec", "1", "did you mean 'retention.ms'"),
    ],
)
def test_an_unsupported_topic_configuration_is_refused(name, value, message):
    with pytest.raises(ConfigError, match=message):
        LogConfig.parse({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preallocate", "true"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_a_configuration_without_effect_is_accepted_and_documented(name, value):
    assert LogConfig.parse({name: value}) == LogConfig()
    assert ". No effect here: " in TOPIC_CONFIGS[name].doc


def test_a_compaction_lag_cannot_be_longer_at_least_than_at_most():
    with pytest.raises(ConfigError, match=r"\(10\) > max\.compaction\.lag\.ms \(9\)"):
        LogConfig.parse({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})
