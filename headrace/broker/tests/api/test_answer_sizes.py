"""The size of an answer is bounded: repeated names are answered once, and requests for too much are refused."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.requests import answers
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from simulator.direct import direct_broker


def run(tmp_path, scenario, **config):
    async def test() -> None:
        async with direct_broker(tmp_path, config) as broker:
            await scenario(broker)

    asyncio.run(test())


def test_repeated_names_are_answered_once(tmp_path):
    async def scenario(broker):
        await broker.create_topic("t", 100)
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name="t"), MetadataRequestTopic(name="u")] * 1000
        )
        asked.allow_auto_topic_creation = False
        assert [topic.name for topic in (await broker.send(asked, 9)).topics] == ["t", "u"]
        asked = DescribeGroupsRequest(groups=["g"] * 1000)
        assert len((await broker.send(asked)).groups) == 1
        asked = ConsumerGroupDescribeRequest(group_ids=["g"] * 1000)
        assert len((await broker.send(asked)).groups) == 1
        asked = DescribeTransactionsRequest(transactional_ids=["x"] * 1000)
        assert len((await broker.send(asked)).transaction_states) == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize("times", [10, 1000])
def test_an_answer_that_would_be_too_large_is_an_error(tmp_path, monkeypatch, times):
    monkeypatch.setattr(answers, "ANSWER_BYTES_MAX", 1 << 20)

    async def scenario(broker):
        await broker.create_topic("t")
        resource = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
        answer = await broker.send(DescribeConfigsRequest(resources=[resource] * times), 4)
        codes = {result.error_code for result in answer.results}
        assert codes == ({0} if times == 10 else {0, ErrorCode.INVALID_REQUEST})

    run(tmp_path, scenario)


@pytest.mark.parametrize(("count", "code"), [(1000, 0), (40_000, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)])
def test_a_commit_of_more_offsets_than_the_journal_takes_at_once_is_refused(tmp_path, count, code):
    async def scenario(broker):
        await broker.create_topic("t", count)
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=index, committed_metadata="x" * 40
            )
            for index in range(count)
        ]
        topic = OffsetCommitRequestTopic(name="t", partitions=partitions)
        answer = await broker.send(OffsetCommitRequest(group_id="g", topics=[topic]), 7)
        assert {each.error_code for each in answer.topics[0].partitions} == {code}
        assert len(answer.topics[0].partitions) == count

    run(tmp_path, scenario)


def test_thousands_of_topics_are_created_by_one_request_for_their_metadata(tmp_path):
    async def scenario(broker):
        names = [f"topic-{number}" for number in range(2000)]
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
        answer = await broker.send(asked, 12)
        assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in answer.topics] == [
            (name, 0, 1) for name in names
        ]
        answer = await broker.send(MetadataRequest(topics=[MetadataRequestTopic(name="topic.7")]), 12)
        assert answer.topics[0].error_code == 0
        answer = await broker.send(MetadataRequest(topics=[MetadataRequestTopic(name="a.b")]), 12)
        answer = await broker.send(MetadataRequest(topics=[MetadataRequestTopic(name="a_b")]), 12)
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert [image.name for image in broker.context.metadata.topics()] == sorted(
            [*names, "topic.7", "a.b"]
        )
        await broker.context.topics.delete_topic("a.b")
        answer = await broker.send(MetadataRequest(topics=[MetadataRequestTopic(name="a_b")]), 12)
        assert answer.topics[0].error_code == 0

    run(tmp_path, scenario)
