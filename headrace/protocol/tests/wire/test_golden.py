"""Frames written byte by byte from Kafka's protocol guide: an error that all codecs share would show."""

import pytest

from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import (
    RequestHeader,
    decode_request_header,
    encode_request_header,
    encode_response_header,
)
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_versioned,
    encode_versioned,
)
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.messages.transaction_state import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)


def spelled(*parts):
    return b"".join(part if isinstance(part, bytes) else bytes.fromhex(part) for part in parts)


def test_api_versions_request_3():
    frame = spelled(
        "0012 0003 00000007", "0003", b"cli", "00",  # header 2: the client id keeps the old encoding
        "05", b"java", "06", b"4.1.0", "00",
    )  # fmt: skip
    header, position = decode_request_header(frame, ApiVersionsRequest.header_version(3))
    assert header == RequestHeader(18, 3, 7, "cli")
    body = ApiVersionsRequest.decode(frame, 3, position=position)
    assert body == ApiVersionsRequest(client_software_name="java", client_software_version="4.1.0")
    assert encode_request_header(header, 2) + body.encode(3) == frame


def test_api_versions_response_3():
    """The header has no tagged fields although the body has."""
    message = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=18, max_version=4)], finalized_features_epoch=2
    )
    frame = encode_response_header(7, message.header_version(3)) + message.encode(3)
    assert frame == spelled(
        "00000007", "0000", "02", "0012 0000 0004 00", "00000000", "01 01 08 0000000000000002"
    )


def test_answer_to_an_unknown_api_version():
    message = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=4)])
    assert encode_response_header(7, 0) + message.encode(0) == spelled(
        "00000007", "0023", "00000001", "0012 0000 0004"
    )


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, ["ffff ffff 00007530", "00000001", "0001", b"t", "00000001", "00000002", "00000003", b"abc"]),
        (9, ["00", "ffff", "00007530", "02", "02", b"t", "02", "00000002", "04", b"abc", "00", "00", "00"]),
    ],
)  # fmt: skip
def test_produce_request(version, body):
    partition = PartitionProduceData(index=2, records=b"abc")
    message = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )
    assert message.encode(version) == spelled(*body)
    assert ProduceRequest.decode(spelled(*body), version) == message


def test_fetch_request_12():
    body = spelled(
        "ffffffff", "000001f4", "00000001", "03200000", "00", "00000000", "ffffffff",
        "02", "02", b"t", "02", "00000000", "ffffffff", "000000000000002a", "ffffffff", "ffffffffffffffff",
        "00100000", "00", "00", "01", "01", "00",
    )  # fmt: skip
    message = FetchRequest.decode(body, 12)
    assert (message.max_wait_ms, message.min_bytes, message.max_bytes) == (500, 1, 52_428_800)
    assert message.topics[0].topic == "t"
    assert message.topics[0].partitions[0].fetch_offset == 42
    assert message.encode(12) == body


def test_keys_of_consumer_offsets():
    position = OffsetCommitKey(group="g", topic="t", partition=3)
    assert encode_versioned(position, 1) == spelled("0001", "0001", b"g", "0001", b"t", "00000003")
    assert decode_key(encode_versioned(position, 0)) == position
    assert decode_key(encode_versioned(position, 1)) == position
    group = GroupMetadataKey(group="g")
    assert encode_versioned(group, 2) == spelled("0002", "0001", b"g")
    assert decode_key(encode_versioned(group, 2)) == group
    for malformed in (b"", b"\0", b"\0\x03\0\x01g", b"\xff\xff\0\x01g", b"\0\x02\0\x02g"):
        with pytest.raises(DecodeError):
            decode_key(malformed)


def test_values_of_consumer_offsets():
    value = OffsetCommitValue(offset=5, leader_epoch=1, metadata="m", commit_timestamp=1000)
    assert encode_versioned(value, 3) == spelled(
        "0003", "0000000000000005", "00000001", "0001", b"m", "00000000000003e8"
    )
    assert encode_versioned(value, 1) == spelled(
        "0001", "0000000000000005", "0001", b"m", "00000000000003e8", "ffffffffffffffff"
    )
    assert decode_versioned(OffsetCommitValue, encode_versioned(value, 3)) == (value, 3)
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=9,
        session_timeout=8,
        subscription=b"s",
    )
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol=None,
        leader="m",
        current_state_timestamp=2,
        members=[member],
    )
    assert encode_versioned(group, 3) == spelled(
        "0003", "0008", b"consumer", "00000004", "ffff", "0001", b"m", "0000000000000002", "00000001",
        "0001", b"m", "ffff", "0001", b"c", "0002", b"/h",
        "00000009", "00000008", "00000001", b"s", "00000000",
    )  # fmt: skip
    assert decode_versioned(GroupMetadataValue, encode_versioned(group, 3)) == (group, 3)


def test_transaction_state_records():
    """The records as Kafka 4 writes them; version 0 has no tagged fields."""
    key = encode_versioned(TransactionLogKey(transactional_id="tx"), 0)
    assert key == spelled("0000", "0002", b"tx")
    value = TransactionLogValue(
        producer_id=7,
        previous_producer_id=6,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=1,
        transaction_partitions=[PartitionsSchema(topic="t", partition_ids=[0, 2])],
        transaction_last_update_timestamp_ms=10,
        transaction_start_timestamp_ms=9,
        client_transaction_version=2,
    )
    fixed = ["0000000000000007", "0003", "0000ea60", "01"]
    times = ["000000000000000a", "0000000000000009"]
    assert encode_versioned(value, 1) == spelled(
        "0001", *fixed, "02", "02", b"t", "03", "00000000 00000002", "00", *times,
        "02", "00 08 0000000000000006", "02 02 0002",
    )  # fmt: skip
    assert encode_versioned(value, 0) == spelled(
        "0000", *fixed, "00000001", "0001", b"t", "00000002", "00000000 00000002", *times
    )
    assert decode_versioned(TransactionLogValue, encode_versioned(value, 1)) == (value, 1)
