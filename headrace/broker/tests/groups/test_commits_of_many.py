"""Answers to commits of hundreds of thousands of offsets, and the memory that they free at their end."""

from __future__ import annotations

import sys
from itertools import islice

from headrace.broker.groups.handlers.offset_commit import _commit_response
from headrace.broker.runtime.slices import finish
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)


def commit(count: int) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in range(count)]
    return OffsetCommitRequest(topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])


def test_partitions_that_may_not_have_an_offset_are_told_so_and_the_others_how_it_went() -> None:
    unknown, too_long = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_METADATA_TOO_LARGE
    response = finish(_commit_response(commit(6), 0, {("t", 1): too_long}, [(range(3), unknown)]))
    told = [(each.partition_index, each.error_code) for each in response.topics[0].partitions]
    assert told == [(0, 0), (1, too_long), (2, 0), (3, unknown), (4, unknown), (5, unknown)]
    refused = finish(_commit_response(commit(2), ErrorCode.NOT_COORDINATOR, {}))
    assert {each.error_code for each in refused.topics[0].partitions} == {ErrorCode.NOT_COORDINATOR}


def test_partitions_of_the_request_are_let_go_one_after_the_other() -> None:
    request = commit(100)
    partitions = list(request.topics[0].partitions)
    (before,) = {sys.getrefcount(each) for each in partitions}
    work = _commit_response(request, 0, {})
    for _ in islice(work, 51):
        pass
    assert [before - sys.getrefcount(each) for each in partitions] == [1] * 49 + [0] * 51
