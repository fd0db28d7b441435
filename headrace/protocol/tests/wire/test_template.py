"""A template finds the same as the codec in a frame, or nothing."""

from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.headers import RequestHeader, decode_request_header, encode_request_header
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.protocol.template import CORRELATION_END, NumbersTemplate, RecordsTemplate

VERSIONS = st.integers(3, 13)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
PLACES = (0x6B1DA2E497C35F08, 0x2E9704D8B16AF35C, 0x51F83C6E0AD972B4)
TOPIC_ID = uuid.UUID(int=0x1234)


def request(version: int, records: bytes | None, *, topic: str = "t", index: int = 0) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=records)
    one = TopicProduceData(name=topic, topic_id=TOPIC_ID, partition_data=[data])
    return ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[one])


def framed(message: ProduceRequest, version: int, correlation_id: int, client_id: str | None = "c") -> bytes:
    header = RequestHeader(0, version, correlation_id, client_id)
    return encode_request_header(header, message.header_version(version)) + message.encode(version)


def template_of(frame: bytes, version: int) -> RecordsTemplate | None:
    _, position = decode_request_header(frame, ProduceRequest.header_version(version))
    return RecordsTemplate.of(frame, position, ProduceRequest.decode(frame, version, None, position), version)


def fits(template: RecordsTemplate, frame: bytes) -> bool:
    return frame[:4] == template.key and frame[CORRELATION_END:].startswith(template.prefix)


@given(VERSIONS, st.binary(min_size=1, max_size=300), st.binary(max_size=40_000), st.integers(0, 99))
def test_the_records_are_those_that_decoding_gives(version, first, records, correlation_id) -> None:
    template = template_of(framed(request(version, first), version, 1), version)
    assert template is not None
    frame = framed(request(version, records), version, correlation_id)
    assert fits(template, frame)
    found = template.records(frame)
    assert (b"" if found is None else bytes(found)) == records


@given(VERSIONS, st.binary(min_size=1, max_size=200), st.data())
def test_a_frame_with_any_byte_changed_is_decoded_alike_or_left_alone(version, records, data) -> None:
    original = framed(request(version, records), version, 7)
    template = template_of(original, version)
    assert template is not None
    changed = bytearray(original)
    position = data.draw(st.integers(0, len(original) - 1))
    changed[position] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(changed)))
    for frame in (bytes(changed), bytes(changed[:cut]), bytes(changed) + b"\0"):
        if len(frame) < CORRELATION_END or not fits(template, frame):
            continue
        found = template.records(frame)
        if found is None:
            continue
        _, body = decode_request_header(frame, ProduceRequest.header_version(version))
        decoded = ProduceRequest.decode(frame, version, None, body)
        assert bytes(decoded.topic_data[0].partition_data[0].records) == bytes(found)
        decoded.topic_data[0].partition_data[0].records = records
        assert framed(decoded, version, 7) == original


@pytest.mark.parametrize("version", [8, 9, 12])
def test_a_request_of_another_shape_makes_no_template(version) -> None:
    two = request(version, b"x")
    two.topic_data.append(request(version, b"y").topic_data[0])
    assert template_of(framed(two, version, 1), version) is None
    assert template_of(framed(request(version, b""), version, 1), version) is None
    assert template_of(framed(request(version, None), version, 1), version) is None


def test_a_request_with_unknown_tagged_fields_is_left_to_the_decoder() -> None:
    frame = framed(request(9, b"x"), 9, 1)[:-1] + b"\x01\x07\x01z"
    assert template_of(frame, 9) is None


@given(st.integers(5, 13), st.text(max_size=40), NUMBERS, NUMBERS, NUMBERS, st.integers(0, 1 << 31))
def test_numbers_are_encoded_as_the_encoder_does(version, name, base, time, start, correlation_id) -> None:
    def response(*numbers: int) -> ProduceResponse:
        answer = PartitionProduceResponse(
            index=3, base_offset=numbers[0], log_append_time_ms=numbers[1], log_start_offset=numbers[2]
        )
        topic = TopicProduceResponse(name=name, topic_id=TOPIC_ID, partition_responses=[answer])
        return ProduceResponse(responses=[topic])

    correlation_id &= 0x7FFFFFFF
    template = NumbersTemplate.of(response(*PLACES), version, PLACES)
    assert template is not None
    header = struct.pack(">i", correlation_id) + (b"\0" if version >= 9 else b"")
    expected = header + response(base, time, start).encode(version)
    assert template.encode(correlation_id, (base, time, start)) == expected


def test_no_template_where_a_number_has_no_place_or_two() -> None:
    answer = PartitionProduceResponse(
        base_offset=PLACES[0], log_append_time_ms=PLACES[1], log_start_offset=PLACES[2]
    )
    topic = TopicProduceResponse(name="t", partition_responses=[answer])
    assert NumbersTemplate.of(ProduceResponse(responses=[topic]), 4, PLACES) is None
    topic.partition_responses = [answer, answer]
    assert NumbersTemplate.of(ProduceResponse(responses=[topic]), 5, PLACES) is None
