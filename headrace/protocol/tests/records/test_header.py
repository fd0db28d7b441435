"""The header view: exact, total (any bytes give a header or a DecodeError), and arithmetic that wraps as Kafka's."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import (
    HEADER_SIZE,
    MAGIC_ARROW,
    MAX_SEQUENCE,
    BatchHeader,
    advance_sequence,
    iter_headers,
    read_header,
    verify_crc,
    write_base_offset_and_epoch,
    write_crc,
)


def batch(count: int = 3, **options) -> bytes:
    return build_batch([Record(b"k", b"v%d" % i, (), 1000 + i) for i in range(count)], **options)


def test_every_field_is_read_from_its_place():
    data = batch(
        3,
        base_offset=77,
        leader_epoch=5,
        producer_id=1 << 40,
        producer_epoch=9,
        base_sequence=MAX_SEQUENCE,
        attributes=0x10,
        last_offset_delta=6,
    )
    header = read_header(b"junk" + data, 4)
    assert header == BatchHeader(
        base_offset=77,
        batch_length=len(data) - 12,
        partition_leader_epoch=5,
        magic=2,
        crc=int.from_bytes(data[17:21], "big"),
        attributes=0x10,
        last_offset_delta=6,
        base_timestamp=1000,
        max_timestamp=1002,
        producer_id=1 << 40,
        producer_epoch=9,
        base_sequence=MAX_SEQUENCE,
        record_count=3,
        sequence_count=7,
    )
    assert (header.size, header.last_offset, header.next_offset) == (len(data), 83, 84)
    assert header.last_sequence == 5
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time


@st.composite
def framed(draw):
    """Any bytes with the magic of a batch and a length that may be right."""
    data = bytearray(draw(st.binary(min_size=HEADER_SIZE, max_size=120)))
    data[0] &= 0x7F
    struct.pack_into(
        ">i", data, 8, draw(st.sampled_from([len(data) - 12, HEADER_SIZE - 12, draw(st.integers(0, 200))]))
    )
    data[16] = 2
    struct.pack_into(">i", data, 23, draw(st.integers(-1, 200)))
    struct.pack_into(">i", data, 57, draw(st.integers(-1, 200)))
    return bytes(data)


@settings(deadline=None)
@given(st.binary(max_size=120) | framed())
def test_any_bytes_give_a_header_or_a_decode_error(data):
    try:
        header = read_header(data)
    except DecodeError:
        return
    assert len(data) >= HEADER_SIZE
    assert header.size >= HEADER_SIZE
    assert header.last_offset >= header.base_offset >= 0


@settings(deadline=None)
@given(st.integers(0, 64), st.binary(min_size=1, max_size=4))
def test_a_header_with_damaged_bytes_gives_a_header_or_a_decode_error(position, junk):
    data = bytearray(batch())
    data[position : position + len(junk)] = junk
    with contextlib.suppress(DecodeError):
        assert read_header(data).size >= HEADER_SIZE


def test_a_cut_header_is_refused_at_every_length():
    data = batch()
    for size in range(HEADER_SIZE):
        with pytest.raises(DecodeError):
            read_header(data[:size])
    read_header(data[:HEADER_SIZE])


def test_sequence_numbers_wrap_to_zero():
    assert advance_sequence(MAX_SEQUENCE, 1) == 0
    assert advance_sequence(MAX_SEQUENCE - 1, 5) == 3


def test_an_arrow_batch_counts_its_sequences_apart_from_its_records():
    data = bytearray(batch(1, producer_id=1, producer_epoch=0, base_sequence=MAX_SEQUENCE - 1))
    data[16] = MAGIC_ARROW
    data[57:61] = bytes(4)
    data[61:65] = (10).to_bytes(4, "big")
    header = read_header(data)
    assert (header.record_count, header.next_offset, header.last_sequence) == (0, 1, 7)
    data[61:65] = bytes(4)
    assert read_header(data).last_sequence == MAX_SEQUENCE - 1


def test_stamping_leaves_the_crc_valid():
    data = bytearray(b"xx" + batch())
    write_base_offset_and_epoch(data, 2, 1 << 40, 12)
    assert verify_crc(data, 2)
    header = read_header(data, 2)
    assert (header.base_offset, header.partition_leader_epoch) == (1 << 40, 12)


def test_one_changed_bit_under_the_crc_is_noticed():
    data = bytearray(batch())
    for position in range(21, len(data)):
        data[position] ^= 1
        assert not verify_crc(data)
        data[position] ^= 1
    write_crc(data)
    assert verify_crc(data)


def test_walking_over_batches_stops_at_the_first_bad_one():
    parts = [batch(n) for n in (1, 2, 3)]
    assert [position for position, _ in iter_headers(b"".join(parts))] == [
        0,
        len(parts[0]),
        len(parts[0]) + len(parts[1]),
    ]
    with pytest.raises(DecodeError, match="runs past the end"):
        list(iter_headers(b"".join(parts)[:-1]))


def test_the_header_module_imports_neither_numba_nor_numpy():
    import subprocess
    import sys

    code = "import headrace.protocol.records.header, sys; assert not {'numba', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
