"""A topic's requirements for a client's batch beyond its header: B5 (oldest stamp), B7, B8, B9."""

import contextlib

import numpy as np
import pytest

from headrace.broker.log.config import LogConfig
from headrace.broker.log.errors import RecordErrors
from headrace.broker.log.partition_log import AppendOrigin
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.check import Effort, TakesTime
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import read_header, verify_crc, write_crc

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def refused(log, batch: bytes, code: ErrorCode) -> KafkaError:
    end_offset = log.log_end_offset
    with pytest.raises(KafkaError) as error:
        log.append(batch, leader_epoch=0)
    assert error.value.code == code, error.value
    assert log.log_end_offset == end_offset
    return error.value


def stored(log, offset: int = 0) -> bytes:
    data = log.read(offset, 1 << 20, up_to=log.log_end_offset).read()
    return data[: read_header(data).size]


def rows(batch: bytes) -> list[tuple]:
    columns = decode_records(batch)
    return [
        (key, value, stamp, tuple(columns.headers(index)))
        for index, (key, value, stamp) in enumerate(
            zip(columns.keys(), columns.values(), columns.timestamps.tolist(), strict=True)
        )
    ]


def test_b5_the_oldest_stamp_is_checked_and_named(world):
    now = world.clock.now_ms
    log = world.open(message_timestamp_before_max_ms=500)
    batch = build_batch([Record(b"k", b"v", (), stamp) for stamp in (now, now - 501, -1, now - 900)])
    error = refused(log, batch, ErrorCode.INVALID_TIMESTAMP)
    assert isinstance(error, RecordErrors)
    assert [index for index, _ in error.errors] == [1, 3]
    log.append(build_batch([Record(b"k", b"v", (), now - 500)]), leader_epoch=0)


@pytest.mark.parametrize("codec", range(5))
def test_b5_stamps_too_far_in_the_future_are_named(world, codec):
    now = world.clock.now_ms
    log = world.open(message_timestamp_after_max_ms=500)
    stamps = [now, now + 501, now + 500, now + 900]
    batch = build_batch([Record(b"k", b"v", (), stamp) for stamp in stamps], compression=codec)
    error = refused(log, batch, ErrorCode.INVALID_TIMESTAMP)
    rule = f"more than 500 ms after {now}, the broker's time (message.timestamp.after.max.ms)"
    assert isinstance(error, RecordErrors)
    assert error.message == f"record 1 of the batch: it is stamped {now + 501}, {rule} (2 records are)"
    assert error.errors == tuple((index, f"it is stamped {stamps[index]}, {rule}") for index in (1, 3))
    with pytest.raises(TakesTime):
        log.append(batch, leader_epoch=0, effort=Effort(10))
    assert log.log_end_offset == 0


@pytest.mark.parametrize("codec", range(5))
def test_b7_a_compacted_topic_takes_no_record_without_a_key_and_says_which(world, codec):
    log = world.open(cleanup_policy=("compact",))
    keys = [b"a", None, b"", None]
    batch = build_batch([Record(key, b"v", (), world.clock.now_ms) for key in keys], compression=codec)
    error = refused(log, batch, ErrorCode.INVALID_RECORD)
    assert isinstance(error, RecordErrors)
    assert [index for index, _ in error.errors] == [1, 3]
    log.append(build_batch([Record(b"", None)], compression=codec), leader_epoch=0)
    log.append(batch, leader_epoch=0, origin=AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("wanted", CODECS)
@pytest.mark.parametrize("sent", range(5))
def test_b8_another_codec_recompresses_and_the_same_passes_through(world, sent, wanted):
    log = world.open(compression_type=wanted)
    records = [Record(b"k%d" % i, b"value " * i, (("h", b"x"),), world.clock.now_ms + i) for i in range(40)]
    records += [Record(None, None, (), world.clock.now_ms)]
    batch = build_batch(records, compression=sent, producer_id=9, producer_epoch=1, base_sequence=0)
    info = log.append(batch, leader_epoch=4)
    assert (info.base_offset, info.last_offset) == (0, 40)
    kept = stored(log)
    header = read_header(kept)
    assert header.compression == CODECS[wanted]
    assert verify_crc(kept)
    assert rows(kept) == rows(batch)
    assert (header.producer_id, header.base_sequence, header.last_offset_delta) == (9, 0, 40)
    if sent == CODECS[wanted]:
        assert kept[16:] == batch[16:]
    assert log.append(batch, leader_epoch=4).duplicate


def test_b8_levels_are_those_of_the_configuration(world):
    words = np.random.default_rng(1).integers(0, 300, 20_000)
    data = " ".join(f"word{word}" for word in words.tolist()).encode()
    batch = build_batch([Record(b"k", data, (), world.clock.now_ms)])
    sizes = {}
    for codec, levels in {"gzip": (1, 9), "zstd": (-50, 3, 19), "lz4": (9, 12)}.items():
        for level in levels:
            log = world.open(compression_type=codec, **{f"compression_{codec}_level": level})
            base_offset = log.append(batch, leader_epoch=0).base_offset
            kept = stored(log, base_offset)
            assert rows(kept) == rows(batch)
            sizes[codec, level] = len(kept)
            log.close()
    assert sizes["gzip", 9] < sizes["gzip", 1]
    assert sizes["zstd", 19] < sizes["zstd", 3] < sizes["zstd", -50]
    assert sizes["lz4", 12] < sizes["lz4", 9]


def test_b8_a_batch_that_grows_past_the_limit_when_recompressed_is_refused(world):
    log = world.open(compression_type="uncompressed", max_message_bytes=2000)
    small = build_batch([Record(b"k", bytes(5000))], compression=4)
    assert len(small) < 200
    assert "max.message.bytes" in refused(log, small, ErrorCode.MESSAGE_TOO_LARGE).message


def test_b8_with_log_append_time(world):
    log = world.open(compression_type="zstd", message_timestamp_type="LogAppendTime")
    info = log.append(build_batch([Record(b"k", b"v", (), 5)] * 3), leader_epoch=0)
    kept = stored(log)
    assert verify_crc(kept)
    assert info.log_append_time_ms == world.clock.now_ms
    assert {row[2] for row in rows(kept)} == {world.clock.now_ms}


def lying(batch: bytes, position: int, data: bytes) -> bytes:
    result = bytearray(batch)
    result[position : position + len(data)] = data
    write_crc(result)
    return bytes(result)


def test_b9_without_strictness_the_header_is_believed_and_with_it_the_records_are(world):
    three = build_batch([Record(b"k", b"v", (), world.clock.now_ms + i) for i in range(3)])
    four = lying(lying(three, 57, (4).to_bytes(4, "big")), 23, (3).to_bytes(4, "big"))
    garbage = lying(three, 70, b"\xff" * 8)
    world.open(strict_records=False).append(four, leader_epoch=0)
    log = world.open(strict_records=True)
    for batch in (four, garbage):
        refused(log, batch, ErrorCode.INVALID_RECORD)
    gaps = build_batch([Record(b"k", b"v")] * 2, offset_deltas=np.array([0, 2], np.int32))
    gaps = lying(gaps, 57, (3).to_bytes(4, "big"))
    refused(log, gaps, ErrorCode.INVALID_RECORD)
    assert LogConfig().looks_into_batches
    assert not LogConfig(strict_records=False).looks_into_batches


def test_b9_a_wrong_largest_timestamp_is_put_right(world):
    now = world.clock.now_ms
    batch = build_batch([Record(b"k", b"v", (), now + i) for i in (0, 7, 3)])
    log = world.open(strict_records=True)
    log.append(lying(batch, 35, now.to_bytes(8, "big")), leader_epoch=0)
    assert stored(log)[21:] == batch[21:]


def test_b9_fuzz_nothing_that_cannot_be_decoded_gets_in(world):
    rng = np.random.default_rng(20)
    log = world.open(strict_records=True)
    batches = [
        build_batch([Record(b"key", b"value" * 9, (("h", None),), world.clock.now_ms)] * 5, compression=codec)
        for codec in range(5)
    ]
    accepted = 0
    for _ in range(1500):
        batch = bytearray(batches[rng.integers(5)])
        for _ in range(rng.integers(1, 4)):
            batch[rng.integers(61, len(batch))] ^= 1 << rng.integers(8)
        write_crc(batch)
        offset = log.log_end_offset
        with contextlib.suppress(KafkaError):
            log.append(batch, leader_epoch=0)
            accepted += 1
            assert len(decode_records(stored(log, offset))) == 5
    assert 0 < accepted < 1500


@pytest.mark.parametrize("cleanup_policy", ["delete", "compact"])
def test_b9_a_batch_that_decompresses_past_the_limit_is_too_large(world, cleanup_policy):
    log = world.open(cleanup_policy=(cleanup_policy,))
    records = [Record(b"k", bytes(1 << 20), (), world.clock.now_ms)]
    log.append(build_batch(records * 63, compression=4), leader_epoch=0)
    batch = build_batch(records * 64, compression=4)
    assert len(batch) < log.config.max_message_bytes
    error = refused(log, batch, ErrorCode.MESSAGE_TOO_LARGE)
    assert str(64 << 20) in error.message


def test_b9_larger_messages_may_decompress_to_more(world):
    records = [Record(b"k", bytes(1 << 20), (), world.clock.now_ms)] * 70
    log = world.open(max_message_bytes=20 << 20)
    log.append(build_batch(records, compression=4), leader_epoch=0)


def test_b9_a_long_check_is_left_to_a_thread_without_effect(world):
    log = world.open(strict_records=True)
    batch = build_batch([Record(b"k", bytes(8 << 20), (), world.clock.now_ms)], compression=4)
    with pytest.raises(TakesTime):
        log.append(batch, leader_epoch=0, effort=Effort())
    assert log.log_end_offset == 0
    assert log.append(log.prepare(batch), leader_epoch=0, prepared=True).last_offset == 0


def test_b8_recompression_is_bounded_too(world):
    log = world.open(compression_type="zstd", compression_zstd_level=19)
    batch = build_batch([Record(b"k", b"v" * 400, (), world.clock.now_ms)])
    log.append(batch, leader_epoch=0)
    with pytest.raises(TakesTime):
        log.append(batch, leader_epoch=0, effort=Effort())
