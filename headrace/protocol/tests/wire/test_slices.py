"""Decoding and encoding in slices has the same results as in one go, and rests often enough."""

from __future__ import annotations

import pytest

from headrace.protocol.budget import BudgetExceeded, DecodeBudget
from headrace.protocol.errors import DecodeError, EncodeTooLarge
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.tests.wire.values import API_MESSAGES, full, name_of


def finish(work):
    """Return (the result, the number of rests)."""
    rests = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, rests
        rests += 1


@pytest.mark.parametrize("kind", API_MESSAGES, ids=name_of)
def test_the_same_bytes_and_the_same_message(kind):
    for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1):
        message = full(kind, version, elements=3)
        encoded = message.encode(version)
        assert b"".join(finish(message.encode_in_slices(version, 1 << 20))[0]) == encoded
        decoded, _ = finish(kind.decode_in_slices(encoded, version, DecodeBudget()))
        assert decoded == kind.decode(encoded, version)
        for end in {0, len(encoded) // 2, len(encoded) - 1} if encoded else ():
            with pytest.raises(DecodeError):
                finish(kind.decode_in_slices(encoded[:end], version, DecodeBudget()))
        with pytest.raises(DecodeError):
            finish(kind.decode_in_slices(encoded + b"x", version, DecodeBudget()))


def commit(topics: int, partitions: int) -> OffsetCommitRequest:
    each = OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition()] * partitions)
    return OffsetCommitRequest(group_id="g", topics=[each] * topics)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 10_000), (10_000, 1), (100, 100)])
def test_slices_end_within_every_array(topics, partitions):
    message = commit(topics, partitions)
    encoded = message.encode(8)
    parts, rests = finish(message.encode_in_slices(8, 1 << 30))
    assert rests >= 300
    assert len(parts) > 10  # so that joining them is not long work either
    assert b"".join(parts) == encoded
    decoded, rests = finish(OffsetCommitRequest.decode_in_slices(encoded, 8, DecodeBudget()))
    assert rests >= 300
    assert decoded == message


def test_bytes_bound_both():
    message = commit(100, 100)
    size = len(message.encode(8))
    finish(message.encode_in_slices(8, size))
    with pytest.raises(EncodeTooLarge):
        finish(message.encode_in_slices(8, size - 1))
    with pytest.raises(BudgetExceeded):
        finish(OffsetCommitRequest.decode_in_slices(message.encode(8), 8, DecodeBudget(100_000)))


@pytest.mark.parametrize(("length", "is_accepted"), [(32_767, True), (32_768, False)])
def test_a_string_of_kafka_s_messages_is_no_longer_than_kafka_accepts(length, is_accepted):
    frame = MetadataRequest(topics=[MetadataRequestTopic(name="x" * length)]).encode(12)
    decoding = MetadataRequest.decode_in_slices(frame, 12, DecodeBudget())
    if is_accepted:
        assert finish(decoding)[0].topics[0].name == "x" * length
    else:
        with pytest.raises(DecodeError, match="32767"):
            finish(decoding)
