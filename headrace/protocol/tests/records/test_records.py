"""Records to batches and back, against other implementations and against hostile bytes."""

import contextlib
import random
import tracemalloc
import warnings
from itertools import pairwise

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.records import compression
from headrace.protocol.records.compression import Compression, compress, decompress
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch, encode_batch
from headrace.protocol.records.gather import gather
from headrace.protocol.records.header import HEADER_SIZE, read_header, verify_crc, write_crc
from headrace.protocol.records.small import build_small, read_small

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas by an old call
    from kafka.record.default_records import DefaultRecordBatchBuilder

CODECS = list(Compression)

optional_bytes = st.none() | st.binary(max_size=40) | st.sampled_from([b"", b"x" * 127, b"y" * 300])
records = st.lists(
    st.builds(
        Record,
        key=optional_bytes,
        value=optional_bytes,
        headers=st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=3).map(tuple),
        timestamp=st.integers(0, 1 << 41),
    ),
    min_size=1,
    max_size=20,
)
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(records, st.sampled_from(CODECS), st.integers(0, 1 << 50))
def test_encoded_records_are_decoded_unchanged(originals, codec, base_offset):
    data = build_batch(originals, compression=codec, base_offset=base_offset)
    columns = decode_records(data + b"next batch")
    assert verify_crc(data)
    assert columns.keys() == [record.key for record in originals]
    assert columns.values() == [record.value for record in originals]
    assert [columns.headers(i) for i in range(len(columns))] == [list(record.headers) for record in originals]
    assert columns.timestamps.tolist() == [record.timestamp for record in originals]
    assert columns.offsets.tolist() == [base_offset + i for i in range(len(originals))]
    assert columns.header.max_timestamp == max(record.timestamp for record in originals)


@relaxed
@given(records, st.sampled_from(CODECS), st.integers(0, 1 << 50))
def test_few_records_are_read_without_arrays_too(originals, codec, base_offset):
    data = build_batch(originals, compression=codec, base_offset=base_offset)
    assert list(read_small(data + b"next batch")) == [
        (base_offset + index, record.key, record.value) for index, record in enumerate(originals)
    ]


@settings(relaxed, max_examples=300)
@given(records, st.data())
def test_damaged_records_read_without_arrays_are_refused_or_what_arrays_give(originals, data):
    damaged = bytearray(build_batch(originals))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(HEADER_SIZE, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = list(read_small(damaged))
    except DecodeError:
        return
    columns = decode_records(damaged)
    assert found == list(zip(columns.offsets.tolist(), columns.keys(), columns.values(), strict=True))


@relaxed
@given(records)
def test_uncompressed_batches_are_the_bytes_that_kafka_python_builds(originals):
    builder = DefaultRecordBatchBuilder(2, 0, 0, 12, 3, 4, 1 << 30)
    for i, record in enumerate(originals):
        builder.append(i, record.timestamp, record.key, record.value, list(record.headers))
    theirs = bytes(builder.build())
    ours = build_batch(originals, producer_id=12, producer_epoch=3, base_sequence=4)
    # kafka-python writes leader epoch 0 where a producer has none; the field is outside the CRC.
    assert ours[:12] + ours[16:] == theirs[:12] + theirs[16:]


@relaxed
@given(records, st.integers(-1, 1 << 40), st.sampled_from([0, 0x10, 0x30]))
def test_few_records_are_the_same_bytes_as_by_arrays(originals, producer_id, attributes):
    options = {"base_offset": 7, "producer_id": producer_id, "base_sequence": 3, "attributes": attributes}
    assert build_small(originals, **options) == build_batch(originals, compression=0, **options)
    assert build_batch([]) == build_batch([], compression=0)


@relaxed
@given(records, st.sampled_from(CODECS))
def test_aiokafka_reads_every_codec(originals, codec):
    theirs = AiokafkaBatch(bytearray(build_batch(originals, compression=codec)))
    assert theirs.validate_crc()
    read = [(r.key, r.value, tuple(r.headers), r.timestamp) for r in theirs]
    assert read == [(r.key, r.value, r.headers, r.timestamp) for r in originals]


def test_lz4_blocks_are_independent():
    data = bytes(compress(Compression.LZ4, b"abc" * 100_000))
    assert data[4] & 0x20, "Java's client refuses frames with dependent blocks"
    assert bytes(decompress(Compression.LZ4, data)) == b"abc" * 100_000


@relaxed
@given(st.binary(max_size=70_000) | st.just(b"ab" * 80_000), st.sampled_from(CODECS))
def test_compression_round_trip(data, codec):
    assert bytes(decompress(codec, compress(codec, data))) == data


def test_snappy_is_read_raw_and_in_java_framing():
    import cramjam

    data = random.Random(1).randbytes(100_000)
    framed = bytes(compress(Compression.SNAPPY, data))
    assert framed.startswith(b"\x82SNAPPY\x00")
    assert bytes(decompress(Compression.SNAPPY, framed)) == data
    assert bytes(decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data)))) == data


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0x7FFFFF00, 0xFFFFFFFF, 0x80000000, 0])
def test_cve_2023_34455_an_announced_snappy_length_allocates_nothing(size):
    """The length of a block in Java's framing, and that of the data in the block itself."""
    header = bytes(compress(Compression.SNAPPY, b"x"))[:16]
    announced = bytes((size >> shift & 0x7F) | 0x80 for shift in (0, 7, 14, 21)) + bytes([size >> 28])
    tracemalloc.start()
    try:
        for data in (
            header + size.to_bytes(4, "big") + b"x" * 100,
            announced + b"x" * 100,
            header + (105).to_bytes(4, "big") + announced + b"x" * 100,
        ):
            with pytest.raises(DecodeError):
                decompress(Compression.SNAPPY, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_f7_a_decompression_bomb_stops_at_the_bound(codec):
    """The case of CVE-2026-111073: the compressed size says nothing about the decompressed one."""
    bomb = compress(codec, bytes(8 << 20))
    with pytest.raises(DecodeError, match="more than the allowed 1048576 bytes"):
        decompress(codec, bomb, max_bytes=1 << 20)
    assert len(decompress(codec, bomb, max_bytes=8 << 20)) == 8 << 20


@pytest.mark.parametrize("codec", CODECS)
def test_f7_the_check_notices_a_missing_bound(codec, monkeypatch):
    def unbounded(codec, data, *, max_bytes, bounded=decompress):
        return bounded(codec, data)

    monkeypatch.setitem(globals(), "decompress", unbounded)
    with pytest.raises(pytest.fail.Exception):
        test_f7_a_decompression_bomb_stops_at_the_bound(codec)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_f7_a_bomb_is_opened_twice_at_most(codec, monkeypatch):
    """A bomb is opened once up to the size of most batches, and once up to the bound."""
    bomb = compress(codec, bytes(64 << 20))
    rooms = []

    class Counting:
        @staticmethod
        def decompress_into(data, output, real=compression._STREAMS[codec]):
            rooms.append(len(output))
            return real.decompress_into(data, output)

    monkeypatch.setitem(compression._STREAMS, codec, Counting)
    with pytest.raises(DecodeError, match="more than the allowed"):
        decompress(codec, bomb, max_bytes=60 << 20)
    assert len(rooms) == 2
    assert rooms[1] == 60 << 20


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damaged_compressed_data_is_a_decode_error(codec):
    data = bytes(compress(codec, random.Random(2).randbytes(3000) + bytes(3000)))
    for size in range(0, len(data) - 1, 37):
        with contextlib.suppress(DecodeError):
            assert len(decompress(codec, data[:size], max_bytes=10_000)) <= 10_000
    with pytest.raises(DecodeError):
        decompress(codec, b"\x00" * 40 + data, max_bytes=10_000)


def uncompressed(originals):
    return bytearray(build_batch(originals))


SAMPLE = [Record(b"key%d" % i, b"v" * i * 30, (("h", b"x"), ("", None)), 10 + i) for i in range(6)] + [
    Record(None, None)
]


def test_a_cut_batch_is_refused_at_every_length():
    data = uncompressed(SAMPLE)
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decode_records(data[:size])
        if size >= HEADER_SIZE:  # and with a header that admits the shorter length
            cut = data[:size]
            cut[8:12] = (size - 12).to_bytes(4, "big")
            with pytest.raises(DecodeError):
                decode_records(cut)


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_damaged_records_give_records_within_the_payload_or_a_decode_error(data):
    batch = uncompressed(SAMPLE)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER_SIZE - 4, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    try:
        columns = decode_records(batch)
    except DecodeError:
        return
    size = len(columns.payload)
    for start, length in (
        (columns.key_start, columns.key_length),
        (columns.value_start, columns.value_length),
    ):
        assert np.all(start >= 0)
        assert np.all(start + np.maximum(length, 0) <= size)
    assert np.all(np.diff(columns.offsets) > 0)
    for i in range(len(columns)):
        with contextlib.suppress(DecodeError):  # a header key that is not UTF-8
            columns.headers(i)


@pytest.mark.parametrize("count", [-1, 0, 6, 8, 1 << 20, (1 << 31) - 1])
def test_a_record_count_that_lies_is_refused_before_anything_is_allocated(count):
    batch = uncompressed(SAMPLE)
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    batch[23:27] = ((1 << 31) - 1).to_bytes(4, "big")
    with pytest.raises(DecodeError):
        decode_records(batch)


def test_the_error_names_the_record():
    batch = uncompressed([Record(b"a", b"b"), Record(b"c", b"d")])
    batch[-1] = 9  # the header count of the last record
    with pytest.raises(DecodeError, match="record 1 of the batch at offset 0 is malformed"):
        decode_records(batch)


def test_offsets_may_have_gaps_and_append_time_wins():
    value_offsets = np.array([0, 1, 2], np.int32)
    batch = bytearray(
        encode_batch(
            timestamps=np.array([5, 6]),
            value_offsets=value_offsets,
            value_data=np.frombuffer(b"ab", np.uint8),
            offset_deltas=np.array([2, 7], np.int32),
            last_offset_delta=9,
            base_offset=100,
            attributes=8,
        )
    )
    columns = decode_records(batch)
    assert columns.offsets.tolist() == [102, 107]
    assert columns.timestamps.tolist() == [6, 6]
    assert columns.keys() == [None, None]
    assert columns.header.next_offset == 110


def test_a_batch_without_records_covers_offsets():
    batch = encode_batch(
        timestamps=np.empty(0, np.int64),
        value_offsets=None,
        base_offset=5,
        last_offset_delta=3,
        compression=4,
    )
    header = read_header(batch)
    assert (len(batch), header.record_count, header.next_offset, header.compression) == (61, 0, 9, 0)
    assert len(decode_records(batch)) == 0
    assert list(AiokafkaBatch(bytearray(batch))) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value_offsets": np.array([0, 1], np.int32)}, "value offsets must have 3 elements"),
        ({"value_offsets": np.array([0, 2, 1], np.int32)}, "must ascend"),
        ({"value_offsets": np.array([0, 1, 9], np.int32)}, "within the 2 bytes"),
        ({"value_valid": np.array([True])}, "validity must have 2"),
        ({"offset_deltas": np.array([1, 1], np.int32)}, "ascending"),
        ({"last_offset_delta": 0}, "below that of the last record"),
        ({"compression": 7}, "codec 7 is unknown"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(change, message):
    arguments = {
        "timestamps": np.array([1, 2]),
        "value_offsets": np.array([0, 1, 2], np.int32),
        "value_data": np.frombuffer(b"ab", np.uint8),
    }
    with pytest.raises((EncodeError, DecodeError), match=message):
        encode_batch(**{**arguments, **change})


@relaxed
@given(records)
def test_gather_makes_the_buffers_of_an_arrow_column(originals):
    columns = decode_records(build_batch(originals))
    offsets, data = gather(columns.payload, columns.value_start, columns.value_length)
    pieces = [data[a:b].tobytes() for a, b in pairwise(offsets)]
    assert pieces == [record.value or b"" for record in originals]
    assert offsets.dtype == np.int32


def test_gather_refuses_pieces_outside_the_payload():
    payload = np.zeros(10, np.uint8)
    for start, length in ((8, 3), (-1, 2), (1 << 40, 1)):
        with pytest.raises(DecodeError, match="piece 0 lies outside"):
            gather(payload, np.array([start]), np.array([length]))
    with pytest.raises(DecodeError, match="more than 2147483647"):
        gather(payload, np.zeros(3, np.int64), np.full(3, 1 << 30))


def test_many_records_of_one_batch():
    count = 50_000
    values = np.arange(count * 8, dtype=np.uint8)
    batch = encode_batch(
        timestamps=np.arange(count) * 7 - 20,
        value_offsets=np.arange(0, count * 8 + 1, 8, dtype=np.int32),
        value_data=values,
    )
    columns = decode_records(batch)
    assert np.array_equal(columns.timestamps, np.arange(count) * 7 - 20)
    assert np.array_equal(gather(columns.payload, columns.value_start, columns.value_length)[1], values)


def test_the_crc_is_over_the_compressed_bytes():
    batch = bytearray(build_batch(SAMPLE, compression=Compression.ZSTD))
    batch[-1] ^= 1
    assert not verify_crc(batch)
    write_crc(batch)
    with pytest.raises(DecodeError):
        decode_records(batch)
