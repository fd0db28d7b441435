"""Headers of requests and responses, in both versions of each, against kio and against truncation."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2
from kio.serial import entity_writer

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    peek_request,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

INT16 = st.integers(-(2**15), 2**15 - 1)
HEADERS = st.builds(
    RequestHeader, INT16, INT16, st.integers(-(2**31), 2**31 - 1), st.none() | st.text(max_size=20)
)


@given(HEADERS, st.sampled_from([1, 2]), st.binary(max_size=5))
def test_request_headers_agree_with_kio_and_come_back(header, version, body):
    encoded = encode_request_header(header, version)
    buffer = io.BytesIO()
    kio_kind = KioHeader1 if version == 1 else KioHeader2
    entity_writer(kio_kind)(
        buffer,
        kio_kind(
            request_api_key=header.api_key,
            request_api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
        ),
    )
    assert encoded == buffer.getvalue()
    assert decode_request_header(encoded + body, version) == (header, len(encoded))
    assert decode_request_header(memoryview(encoded + body), version) == (header, len(encoded))
    assert peek_request(encoded) == header[:3]
    for end in range(len(encoded)):
        with pytest.raises(DecodeError):
            decode_request_header(encoded[:end], version)


@given(st.binary(max_size=30), st.sampled_from([1, 2]))
def test_noise_is_a_header_or_an_error(data, version):
    for decode in (decode_request_header, lambda frame, version: decode_response_header(frame, version - 1)):
        try:
            _, position = decode(data, version)
        except DecodeError:
            continue
        assert position <= len(data)


@pytest.mark.parametrize("version", [0, 1])
def test_response_headers_come_back(version):
    encoded = encode_response_header(77, version)
    assert encoded == b"\0\0\0\x4d" + b"\0" * version
    assert decode_response_header(encoded + b"body", version) == (77, len(encoded))
    for end in range(len(encoded)):
        with pytest.raises(DecodeError):
            decode_response_header(encoded[:end], version)


def test_unknown_tagged_fields_of_headers_are_skipped():
    start = encode_request_header(RequestHeader(1, 12, 5, "c"), 1)
    assert decode_request_header(start + b"\x02\x00\x03abc\x07\x00" + b"body", 2)[1] == len(start) + 8
    assert decode_response_header(b"\0\0\0\x05\x01\x00\x01?body", 1) == (5, 8)


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        (b"\x02\x01\x00\x01\x00", "1 comes after 1"),
        (b"\x01\x00\x05abc", "announces 5 bytes, but only 3"),
        (b"\xff\xff\xff\xff\xff\x01", "longer than the 5 bytes"),
    ],
)
def test_malformed_tagged_fields_of_headers_are_refused(tags, words):
    with pytest.raises(DecodeError, match=words):
        decode_request_header(encode_request_header(RequestHeader(1, 12, 5, None), 1) + tags, 2)


@pytest.mark.parametrize(
    ("size", "words"), [(b"\xff\xfe", "-2 is not a length"), (b"\x00\x09", "only 1 are left")]
)
def test_malformed_client_ids_are_refused(size, words):
    with pytest.raises(DecodeError, match=words):
        decode_request_header(bytes(8) + size + b"x", 1)
    with pytest.raises(DecodeError, match="not UTF-8"):
        decode_request_header(bytes(8) + b"\x00\x01\xff", 1)


def test_header_that_does_not_fit():
    with pytest.raises(EncodeError, match="does not fit"):
        encode_request_header(RequestHeader(40000, 0, 0, None), 1)


def test_header_versions_follow_from_message_versions():
    assert [FetchRequest.header_version(version) for version in (4, 11, 12, 17)] == [1, 1, 2, 2]
    assert [FetchResponse.header_version(version) for version in (4, 11, 12, 17)] == [0, 0, 1, 1]
    assert [ApiVersionsRequest.header_version(version) for version in (0, 2, 3, 4)] == [1, 1, 2, 2]
    assert [ApiVersionsResponse.header_version(version) for version in (0, 2, 3, 4)] == [0, 0, 0, 0]
    assert (OffsetDeleteRequest.header_version(0), OffsetDeleteResponse.header_version(0)) == (1, 0)
