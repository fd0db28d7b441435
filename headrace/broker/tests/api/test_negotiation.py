"""Rules N1-N13 that need a socket or a whole exchange; the others stand beside the API they are about.

N1-N6, N8: test_versions.py. N9, N11-N13: test_metadata.py, test_fetch.py. Here: N5, N7, N8, N9, N10.
"""

from __future__ import annotations

import asyncio
import struct
import time

import pytest

from headrace.broker.net.reply import CloseConnection
from headrace.protocol.errors import ErrorCode
from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.schema import ApiMessage
from simulator.direct import direct_broker

NAMED = {"client_software_name": "tester", "client_software_version": "1.0"}


def frame_of(request: ApiMessage, version: int, correlation_id: int) -> bytes:
    header = RequestHeader(request.API_KEY, version, correlation_id, "n")
    body = encode_request_header(header, request.header_version(version)) + request.encode(version)
    return struct.pack(">i", len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])


async def test_n5_nothing_unstable_is_advertised(tmp_path) -> None:
    """InitProducerId 6 (two-phase commit) never is."""
    async with direct_broker(tmp_path) as broker:
        response = await broker.send(ApiVersionsRequest(**NAMED))
        newest = {api.api_key: api.max_version for api in response.api_keys}
        assert newest[22] == 5
        with pytest.raises(CloseConnection):
            await broker.send_frame(struct.pack(">hhih", 22, 6, 1, -1))


async def test_n7_api_versions_comes_first_and_is_cheap(tmp_path) -> None:
    """The first bytes of a connection may be an ApiVersions of any version; it takes about 50 CPU µs.

    The handler before authentication is the same one.
    """
    async with direct_broker(tmp_path) as broker:
        for version in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.broker.port)
            writer.write(frame_of(ApiVersionsRequest(**NAMED if version >= 3 else {}), version, 9))
            answer = await read_frame(reader)
            assert decode_response_header(answer, 0)[0] == 9
            decoded = ApiVersionsResponse.decode(answer, version, None, 4)
            assert decoded.error_code == 0
            writer.close()
        frame = frame_of(ApiVersionsRequest(**NAMED), 3, 1)[4:]
        await broker.send_frame(frame)
        started = time.thread_time()
        for _ in range(500):
            await broker.send_frame(frame)
        assert (time.thread_time() - started) / 500 < 0.0005  # generous: a shared machine


@pytest.mark.parametrize(
    "body",
    [
        b"\x80\x80\x80\x80\x80\x00",  # a varint of six bytes
        b"\xff\xff\xff\xff\x0f",  # 2^32-2 elements
        b"\x7f",  # 126 elements in no bytes
    ],
)
async def test_n8_lengths_beyond_the_frame_close_the_connection(tmp_path, body) -> None:
    async with direct_broker(tmp_path) as broker:
        with pytest.raises(CloseConnection, match="cannot be decoded"):
            await broker.send_frame(struct.pack(">hhih", 3, 9, 1, -1) + b"\0" + body)
        with pytest.raises(CloseConnection, match="cannot be decoded"):
            await broker.send_frame(struct.pack(">hhihi", 3, 1, 1, -1, -2))


async def test_n9_null_means_all_or_automatic(tmp_path) -> None:
    """OffsetFetch topics, CreatePartitions assignments, DescribeConfigs keys (Metadata: test_metadata.py)."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        grow = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)], timeout_ms=60_000
        )
        assert (await broker.send(grow)).results[0].error_code == 0
        assert broker.context.metadata.topic("t").partition_count == 3
        for keys, many in ((None, True), ([], True), (["retention.ms"], False)):
            resource = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=keys)
            (result,) = (await broker.send(DescribeConfigsRequest(resources=[resource]))).results
            assert (len(result.configs) > 10) == many
            assert many or len(result.configs) == len(keys or ())
        answer = await broker.send(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert (answer.error_code, answer.topics) == (0, [])


async def test_n10_a_long_poll_holds_back_what_was_asked_after_it(tmp_path) -> None:
    """A waiting Fetch, then Metadata, then ApiVersions: answered in this order, when the fetch is."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.broker.port)
        wanted = FetchTopic(topic="t", partitions=[FetchPartition(partition_max_bytes=1000)])
        fetch = FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=[wanted])
        writer.write(frame_of(fetch, 12, 1) + frame_of(MetadataRequest(topics=[]), 9, 2))
        writer.write(frame_of(ApiVersionsRequest(), 0, 3))
        answers = asyncio.ensure_future(read_frame(reader))
        await asyncio.sleep(0.05)
        assert not answers.done()
        await broker.produce("t", [b"now"])
        async with asyncio.timeout(60):
            order = [struct.unpack_from(">i", await answers)[0]]
            order += [struct.unpack_from(">i", await read_frame(reader))[0] for _ in range(2)]
        assert order == [1, 2, 3]
        writer.close()


async def test_n10_acks_0_has_no_answer_and_an_error_closes(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        batch = build_batch([Record(None, b"v", (), 1_750_000_000_000)])

        def produce(topic: str) -> ProduceRequest:
            data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
            return ProduceRequest(acks=0, timeout_ms=60_000, topic_data=[data])

        reader, writer = await asyncio.open_connection("127.0.0.1", broker.broker.port)
        writer.write(frame_of(produce("t"), 9, 1) + frame_of(ApiVersionsRequest(), 0, 2))
        async with asyncio.timeout(60):
            assert struct.unpack_from(">ih", await read_frame(reader)) == (2, ErrorCode.NONE)
            writer.write(frame_of(produce("missing"), 9, 3) + frame_of(ApiVersionsRequest(), 0, 4))
            assert await reader.read() == b""
        assert broker.context.replicas.partition("t", 0).log.log_end_offset == 1
        writer.close()
