"""Records are encoded by reference, and the error of a message names the field that does not fit."""

import array

import pytest

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.schema import ApiMessage, Struct, boolean, int16, int32, int64, records, string, struct
from headrace.protocol.schema import array as array_of


class Region:
    """A range of a file, as far as the encoder is concerned."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self.content = content

    def read(self) -> bytes:
        return self.content


def response(*values):
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t",
                partitions=[
                    PartitionData(partition_index=index, records=value) for index, value in enumerate(values)
                ],
            )
        ]
    )


@pytest.mark.parametrize("version", [4, 11, 12])
def test_records_are_parts_of_their_own(version):
    region, data, view = Region(b"R" * 300), b"D" * 100, memoryview(b"V" * 7)
    parts = response(region, None, data, b"", view).encode_parts(version)
    assert [part for part in parts if part in (region, data, view)] == [region, data, view]
    assert any(part is region for part in parts)
    assert any(part is data for part in parts)
    assert len(parts) <= 7
    joined = b"".join(part.read() if part is region else part for part in parts)
    assert joined == response(region.read(), None, data, b"", view).encode(version)
    assert joined == response(region, None, data, b"", view).encode(version)


@pytest.mark.parametrize("version", [4, 12])
def test_decoded_records_are_views_of_the_frame(version):
    frame = response(b"some records").encode(version)
    (partition,) = FetchResponse.decode(frame, version).responses[0].partitions
    assert isinstance(partition.records, memoryview)
    assert partition.records.obj is frame
    assert partition.records == b"some records"


def test_any_buffer_serves_as_records():
    numbers = array.array("i", [1, 2, 3])
    expected = response(numbers.tobytes()).encode(12)
    assert response(numbers).encode(12) == expected
    assert response(bytearray(numbers.tobytes())).encode(12) == expected
    assert response(memoryview(numbers)).encode(12) == expected


def test_a_region_needs_a_size_and_to_be_joined_a_read():
    class Sizeless:
        size = "large"

    class Negative:
        size = -1

    class Unreadable:
        size = 10

    with pytest.raises(EncodeError, match="neither a buffer nor a region"):
        response(Sizeless()).encode_parts(12)
    with pytest.raises(EncodeError, match="is -1 bytes"):
        response(Negative()).encode_parts(12)
    assert response(Unreadable()).encode_parts(12)
    with pytest.raises(EncodeError, match=r"no read\(\)"):
        response(Unreadable()).encode(12)
    with pytest.raises(EncodeError, match="'text' is neither a buffer nor a region"):
        response("text").encode(12)


def test_a_produce_request_is_not_copied():
    batch = bytes(1_000_000)
    request = ProduceRequest(
        acks=-1,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
        ],
    )
    parts = request.encode_parts(9)
    assert [part is batch for part in parts] == [False, True, False]


@pytest.mark.parametrize(
    ("message", "version", "words"),
    [
        (FetchRequest(min_bytes=2**31), 4, r"min_bytes is 2147483648, which is not a valid int32"),
        (FetchRequest(max_wait_ms="5"), 4, r"max_wait_ms is '5'"),
        (FetchRequest(topics=[FetchTopic(), FetchTopic(topic=None)]), 4, r"topics\[\].topic is None, which"),
        (FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(fetch_offset=1.5)])]), 4, r"is 1.5"),
        (FetchRequest(topics=[FetchTopic(topic="x" * 40_000)]), 4, r"40000 bytes, more than the 32767"),
        (FetchRequest(topics=[FetchTopic(topic="\ud800")]), 12, r"cannot be written as UTF-8"),
        (FetchRequest(topics=["x"]), 12, r"topics\[0\] is 'x', not a FetchTopic"),
        (FetchRequest(topics=[None]), 12, r"topics\[0\] is None"),
        (FetchRequest(topics=5), 12, r"topics is 5, not a list"),
        (FetchRequest(topics=[FetchTopic(topic=7)]), 12, r"topic is 7, which is not a valid string"),
        (FetchRequest(topics=[FetchTopic(topic_id="a")]), 13, r"topic_id is 'a', which is not a valid uuid"),
        (FetchRequest(replica_id=3), 15, r"replica_id is 3, but version 15 has no such field"),
        (FetchRequest(), 3, r"versions 4 to 18, not 3"),
        (FetchRequest(), 19, r"versions 4 to 18, not 19"),
        (MetadataRequest(topics=None), 0, r"topics is None, which version 0 does not allow"),
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9, r"name is None, which version 9"),
        (JoinGroupRequest(protocols=[JoinGroupRequestProtocol(metadata="x")]), 0, r"is 'x'.*valid binary"),
        (JoinGroupRequest(protocols=[JoinGroupRequestProtocol(metadata=None)]), 0, r"metadata is None"),
    ],
)  # fmt: skip
def test_an_unencodable_value_is_named(message, version, words):
    with pytest.raises(EncodeError, match=words):
        message.encode(version)
    with pytest.raises(EncodeError, match=words):
        message.encode_parts(version)


def test_a_string_has_no_such_limit_in_flexible_versions():
    message = FetchRequest(topics=[FetchTopic(topic="x" * 40_000)])
    assert FetchRequest.decode(message.encode(12), 12) == message


def test_nothing_at_all_is_not_set_by_accident():
    with pytest.raises(TypeError, match="fetch_offset_"):
        FetchPartition(fetch_offset_=3)
    with pytest.raises(TypeError, match="positional"):
        FetchPartition(1)
    with pytest.raises(AttributeError):
        FetchPartition().fetch_ofset = 3
    with pytest.raises(TypeError, match="unknown keyword 'nulable'"):
        string(nulable="3+")


def test_repr_shows_what_is_set_and_hides_records():
    data = PartitionData(
        partition_index=3,
        records=b"x" * 5000,
        aborted_transactions=[AbortedTransaction(producer_id=9)],
        current_leader=LeaderIdAndEpoch(leader_id=1),
    )
    assert repr(data) == (
        "PartitionData(partition_index=3, current_leader=LeaderIdAndEpoch(leader_id=1), "
        "aborted_transactions=[AbortedTransaction(producer_id=9)], records=<5000 bytes>)"
    )
    assert repr(PartitionData(records=Region(b"12"))) == "PartitionData(records=<2 bytes>)"
    assert repr(PartitionData(records=b"")) == "PartitionData(records=<0 bytes>)"


class Bucket(Struct):
    bucket: int = int32()
    batch: object = records()


class Inner(Struct):
    flag: bool = boolean(default=True)
    ids: list[int] = array_of(int64)


class AppendRequest(ApiMessage, key=10_010, kind="request", versions="0", flexible="0+"):
    buckets: list[Bucket] = array_of(Bucket)
    columns: list[int] | None = array_of(int32, nullable="0+", default=None)
    inner: Inner = struct(Inner)
    maybe: Inner | None = struct(Inner, nullable="0+", default=None)


def test_messages_can_be_declared_anywhere():
    """The table extension does the same: own API keys, one flexible version, plain and nullable structs."""
    assert (AppendRequest.API_KEY, AppendRequest.MIN_VERSION, AppendRequest.MAX_VERSION) == (10_010, 0, 0)
    assert AppendRequest.FLEXIBLE_FROM == 0
    assert AppendRequest.header_version(0) == 2
    message = AppendRequest(
        buckets=[Bucket(bucket=4, batch=b"arrow")], columns=[], maybe=Inner(ids=[-1, 2**40])
    )
    assert message.inner == Inner()
    assert message.inner is not AppendRequest().inner
    assert AppendRequest.decode(message.encode(0), 0) == message
    assert AppendRequest().encode(0) == b"\x01" + b"\x00" + b"\x01\x01\x00" + b"\xff" + b"\x00"
    for mark in (b"\x00", b"\x02"):
        with pytest.raises(DecodeError, match="the mark of a struct"):
            AppendRequest.decode(b"\x01\x00\x01\x01\x00" + mark + b"\x00", 0)
    empty = AppendRequest(buckets=[Bucket(batch=None)])
    with pytest.raises(EncodeError, match="batch is None"):
        empty.encode(0)


class Answer(ApiMessage):
    error_code: int = int16()
    note: str | None = string(nullable="0+", default=None)


class CountResponse(Answer, key=10_016, kind="response", versions="0", flexible="0+"):
    count: int = int64()


def test_a_message_begins_with_the_fields_that_it_inherits():
    assert Answer(error_code=1) != Answer()
    assert list(CountResponse.FIELDS) == ["error_code", "note", "count"]
    message = CountResponse(error_code=3, count=5)
    assert message.encode(0) == b"\x00\x03" + b"\x00" + b"\x00" * 7 + b"\x05" + b"\x00"
    assert CountResponse.decode(message.encode(0), 0) == message
    assert message != CountResponse(error_code=4, count=5)
    assert repr(message) == "CountResponse(error_code=3, count=5)"


def test_fields_are_inherited_from_a_structure_that_has_been_used():
    assert Bucket(bucket=4).bucket == 4

    class Counted(Bucket):
        count: int = int64(default=-1)

    assert Counted(bucket=4, batch=b"").count == -1
    assert [Counted.FIELDS["bucket"], Bucket(bucket=1).bucket] == [Bucket.FIELDS["bucket"], 1]
