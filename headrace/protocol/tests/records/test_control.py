"""Control batches: the same bytes as Kafka's, and only DecodeError for anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.control import EndMarker, build_end_marker, read_end_marker
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.header import read_header, verify_crc, write_crc


def marker(**changes):
    values = {
        "producer_id": 7,
        "producer_epoch": 3,
        "commit": True,
        "coordinator_epoch": 5,
        "timestamp_ms": 1000,
    }
    return build_end_marker(**{**values, **changes})


def test_t3_a_marker_is_spelled_as_kafka_spells_it():
    batch = marker()
    header = read_header(batch)
    assert (header.size, header.is_control, header.is_transactional) == (len(batch), True, True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert (header.record_count, header.last_offset_delta, header.max_timestamp) == (1, 0, 1000)
    assert verify_crc(batch)
    assert batch[61:].hex(" ") == "20 00 00 00 08 00 00 00 01 0c 00 00 00 00 00 05 00"
    assert marker(commit=False)[61:].hex(" ") == "20 00 00 00 08 00 00 00 00 0c 00 00 00 00 00 05 00"
    records = decode_records(batch)
    assert records.keys() == [bytes.fromhex("00000001")]
    assert records.values() == [bytes.fromhex("000000000005")]


@given(st.booleans(), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
def test_an_end_marker_round_trips(commit, coordinator_epoch, producer_id, epoch):
    batch = marker(
        producer_id=producer_id, producer_epoch=epoch, commit=commit, coordinator_epoch=coordinator_epoch
    )
    assert read_end_marker(b"xyz" + batch, 3) == EndMarker(commit, coordinator_epoch)


def test_an_unknown_type_ends_nothing():
    batch = bytearray(marker())
    batch[61 + 8] = 9
    write_crc(batch)
    assert read_end_marker(batch).commit is None


@given(st.binary(max_size=17), st.integers(0, 16))
def test_damaged_records_are_decode_errors(noise, at):
    batch = bytearray(marker())
    batch[61 + at : 61 + at + len(noise)] = noise[: 17 - at]
    try:
        read_end_marker(batch)
    except DecodeError:
        return
    with pytest.raises(DecodeError):
        read_end_marker(batch[: 61 + 10])
