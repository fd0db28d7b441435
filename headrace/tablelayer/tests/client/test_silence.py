"""Brokers that do not answer: the client asks others whether they are there, and goes on with the new leader."""

import asyncio

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.tablelayer.client import ClientConfig, connect_async
from headrace.tablelayer.client.wire.retry import Deadline
from headrace.tablelayer.model.messages import (
    CountRowsRequest,
    CountRowsResponse,
    CountRowsResult,
    PutRowsRequest,
    PutRowsResponse,
)
from headrace.tablelayer.model.messages.write import WrittenBucket
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.text import parse_type

STOPPED, OTHER = 1, 2
MISSED_SECONDS = 3.0
"""Time from the beginning until the other broker leads."""
CONFIG = ClientConfig(request_timeout_ms=30_000, delivery_timeout_ms=50_000)


class Two:
    """A leader that answers only what the test allows, and another broker that takes over."""

    def __init__(self, stopped, other) -> None:
        self.stopped, self.other = stopped, other
        self.now = asyncio.get_running_loop().time
        self.began = self.now()
        self.is_missed_ever = True
        self.stopped.handlers |= {MetadataRequest: self.metadata, CountRowsRequest: self.silence}
        self.other.handlers |= {MetadataRequest: self.metadata, CountRowsRequest: self.counted}

    @property
    def seconds(self) -> float:
        return self.now() - self.began

    def metadata(self, request) -> MetadataResponse:
        is_missed = self.is_missed_ever and self.seconds >= MISSED_SECONDS
        ports = {OTHER: self.other.port} | ({} if is_missed else {STOPPED: self.stopped.port})
        leader = OTHER if is_missed else STOPPED
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=number, host="127.0.0.1", port=port)
                for number, port in ports.items()
            ],
            topics=[
                MetadataResponseTopic(
                    name=topic.name,
                    partitions=[
                        MetadataResponsePartition(partition_index=0, leader_id=leader, isr_nodes=[leader])
                    ],
                )
                for topic in request.topics
            ],
        )

    @staticmethod
    def counted(request) -> CountRowsResponse:
        return CountRowsResponse(
            buckets=[
                CountRowsResult(bucket=bucket, count=7, error_code=ErrorCode.NONE)
                for bucket in request.buckets
            ]
        )

    async def silence(self, _) -> None:
        await asyncio.sleep(1_000)

    def stop(self) -> None:
        """Stop answering."""
        self.stopped.handlers = dict.fromkeys(self.stopped.handlers, self.silence)


def table_of(tools, connection):
    schema = Schema.of([("id", parse_type("BIGINT"))], primary_key=["id"])
    definition = StoredTable(
        TablePath("db", "t"), schema, bucket_key=("id",), bucket_count=1, table_id=tools.TABLE_ID
    )
    return connection.open_table(definition)


@pytest.fixture
def two(fake):
    import contextlib

    @contextlib.asynccontextmanager
    async def make():
        async with fake() as stopped, fake() as other:
            yield Two(stopped, other)

    return make


def test_a_read_from_a_hung_leader_moves_to_the_next_leader(two, tools):
    async def scenario():
        async with two() as both, await connect_async(both.stopped.address, CONFIG) as connection:
            assert await table_of(tools, connection).count() == 7
            assert MISSED_SECONDS < both.seconds < MISSED_SECONDS + 1.5
            assert connection.metrics().requests["CountRows"].failed == 1

    tools.run(scenario())


def test_rows_for_a_hung_leader_go_to_the_next_leader(two, tools):
    async def scenario():
        async with two() as both, await connect_async(both.stopped.address, CONFIG) as connection:
            both.stopped.handlers[PutRowsRequest] = both.silence
            both.other.handlers[PutRowsRequest] = lambda request: PutRowsResponse(
                buckets=[WrittenBucket(bucket=each.bucket, end_offset=1) for each in request.buckets]
            )
            await table_of(tools, connection).upsert([{"id": 1}])
            assert MISSED_SECONDS < both.seconds < MISSED_SECONDS + 1.5

    tools.run(scenario())


def test_requests_waiting_for_a_hung_connection_are_rerouted(two, tools):
    async def scenario():
        async with two() as both:
            both.stopped.handlers[ApiVersionsRequest] = both.silence
            async with await connect_async(both.other.address, CONFIG) as connection:
                assert await table_of(tools, connection).count() == 7
            assert MISSED_SECONDS < both.seconds < MISSED_SECONDS + 1.5

    tools.run(scenario())


def test_metadata_is_requested_from_another_broker_when_one_hangs(two, tools):
    async def scenario():
        async with two() as both:
            bootstrap = f"{both.stopped.address},{both.other.address}"
            async with await connect_async(bootstrap, CONFIG) as connection:
                both.is_missed_ever = False
                both.stop()
                routes = await connection.cluster.routes("db.t", Deadline(20_000))
                assert routes.leaders == {0: STOPPED}
                assert both.seconds < 4

    tools.run(scenario())


def test_a_broker_that_is_slow_but_there_is_waited_for(two, tools):
    async def scenario():
        async with two() as both, await connect_async(both.stopped.address, CONFIG) as connection:
            both.is_missed_ever = False

            async def late(request):
                await asyncio.sleep(5)
                return both.counted(request)

            both.stopped.handlers[CountRowsRequest] = late
            assert await table_of(tools, connection).count() == 7
            assert connection.metrics().requests["CountRows"].count == 1
            assert both.seconds > 5

    tools.run(scenario())


def test_metadata_of_a_broker_outside_the_cluster_is_not_used(two, tools):
    async def scenario():
        async with two() as both, await connect_async(both.stopped.address, CONFIG) as connection:

            async def late(request):
                await asyncio.sleep(5)
                return both.counted(request)

            def nobody(request):
                answer = both.metadata(request)
                if not request.topics:
                    answer.brokers = []
                return answer

            both.is_missed_ever = False
            both.stopped.handlers[CountRowsRequest] = late
            both.other.handlers[MetadataRequest] = nobody
            assert await table_of(tools, connection).count() == 7
            assert connection.metrics().requests["CountRows"].count == 1
            assert any(isinstance(each, MetadataRequest) for each in both.other.requests)

    tools.run(scenario())


def test_a_broker_that_is_cut_off_and_goes_on_naming_itself_is_not_asked_again(two, tools):
    async def scenario():
        async with two() as both, await connect_async(both.stopped.address, CONFIG) as connection:

            def refused(request):
                answer = both.counted(request)
                answer.buckets[0].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                return answer

            def as_ever(request):
                answer = both.metadata(request)
                answer.topics[0].partitions[0].leader_id = STOPPED
                return answer

            both.began -= MISSED_SECONDS
            both.stopped.handlers |= {CountRowsRequest: refused}
            both.stopped.handlers[MetadataRequest] = lambda request: MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=number, host="127.0.0.1", port=server.port)
                    for number, server in ((STOPPED, both.stopped), (OTHER, both.other))
                ],
                topics=as_ever(request).topics,
            )
            began = both.now()
            assert await table_of(tools, connection).count() == 7
            assert both.now() - began < 1
            asked = [each for each in both.stopped.requests if isinstance(each, CountRowsRequest)]
            assert len(asked) == 1

    tools.run(scenario())
