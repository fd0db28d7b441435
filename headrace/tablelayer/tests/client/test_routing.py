"""Addresses, leaders that move, and the errors after a deadline."""

import asyncio

import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.tablelayer.client import ClientConfig, connect_async
from headrace.tablelayer.client.errors import ConnectionFailed
from headrace.tablelayer.client.wire.cluster import parse_bootstrap
from headrace.tablelayer.model.messages import CountRowsRequest, CountRowsResponse, CountRowsResult
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.text import parse_type
from simulator.ports import free_port


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1:9092", [("127.0.0.1", 9092)]),
        ("a:1, b:65535", [("a", 1), ("b", 65535)]),
        ("kafka.example", [("kafka.example", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_addresses(text, addresses):
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", ":9092", "host:", "host:0", "host:65536", "host:port", "a:1,,b:2"])
def test_a_malformed_bootstrap_address_is_refused(text):
    with pytest.raises(ValueError, match="give host:port"):
        parse_bootstrap(text)


def table_of(tools, connection):
    schema = Schema.of([("id", parse_type("BIGINT"))])
    definition = StoredTable(TablePath("db", "t"), schema, bucket_count=2, table_id=tools.TABLE_ID)
    return connection.open_table(definition)


def counted(request, code=ErrorCode.NONE):
    buckets = [
        CountRowsResult(bucket=bucket, count=10 + bucket, error_code=code) for bucket in request.buckets
    ]
    return CountRowsResponse(buckets=buckets)


def test_groups_are_listed_of_all_brokers_and_again_where_one_still_loads_its_own(fake, tools, impatient):
    async def scenario():
        async with fake() as one, fake() as two:
            both = MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=1, host="127.0.0.1", port=one.port),
                    MetadataResponseBroker(node_id=2, host="127.0.0.1", port=two.port),
                ]
            )
            loading = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

            def listing(*names):
                def answer(_):
                    code = loading.pop() if loading and "b" in names else ErrorCode.NONE
                    groups = [ListedGroup(group_id=name, protocol_type="consumer") for name in names]
                    return ListGroupsResponse(error_code=code, groups=[] if code else groups)

                return answer

            for server, names in ((one, "ca"), (two, "b")):
                server.handlers |= {MetadataRequest: lambda _: both, ListGroupsRequest: listing(*names)}
            async with await connect_async(one.address, impatient) as connection:
                assert [each.group for each in await connection.kafka.list_groups()] == ["a", "b", "c"]

    tools.run(scenario())


def test_buckets_whose_leader_has_moved_are_asked_there_alone(fake, tools, impatient):
    async def scenario():
        async with fake() as old, fake() as new:
            moved = False

            def metadata(request):
                return MetadataResponse(
                    brokers=[
                        MetadataResponseBroker(node_id=1, host="127.0.0.1", port=old.port),
                        MetadataResponseBroker(node_id=2, host="127.0.0.1", port=new.port),
                    ],
                    topics=[
                        MetadataResponseTopic(
                            name=request.topics[0].name,
                            partitions=[
                                MetadataResponsePartition(partition_index=0, leader_id=1),
                                MetadataResponsePartition(partition_index=1, leader_id=2 if moved else 1),
                            ],
                        )
                    ],
                )

            def count_on_old(request):
                nonlocal moved
                answer = counted(request)
                for entry in answer.buckets:
                    if entry.bucket == 1:
                        entry.error_code, moved = ErrorCode.NOT_LEADER_OR_FOLLOWER, True
                return answer

            old.handlers |= {MetadataRequest: metadata, CountRowsRequest: count_on_old}
            new.handlers |= {MetadataRequest: metadata, CountRowsRequest: counted}
            async with await connect_async(old.address, impatient) as connection:
                assert await table_of(tools, connection).count() == 21
            asked = [request.buckets for request in old.requests if isinstance(request, CountRowsRequest)]
            assert asked == [[0, 1]]
            assert [r.buckets for r in new.requests if isinstance(r, CountRowsRequest)] == [[1]]

    tools.run(scenario())


def test_a_server_that_restarts_is_found_again(fake, tools, impatient):
    async def scenario():
        async with fake(port=free_port()) as server:
            server.handlers[CountRowsRequest] = counted
            async with await connect_async(server.address, impatient) as connection:
                table = table_of(tools, connection)
                assert await table.count() == 21
                await server.stop()
                await server.start()
                assert await table.count() == 21

    tools.run(scenario())


def test_a_delivery_timeout_names_the_last_error(fake, tools):
    async def scenario():
        async with fake() as server:
            server.handlers[CountRowsRequest] = lambda request: counted(
                request, ErrorCode.KAFKA_STORAGE_ERROR
            )
            config = ClientConfig(delivery_timeout_ms=200, retry_backoff_ms=20)
            async with await connect_async(server.address, config) as connection:
                now = asyncio.get_running_loop().time
                started = now()
                with pytest.raises(KafkaError) as caught:
                    await table_of(tools, connection).count()
                assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
                assert 0.15 < now() - started < 2

    tools.run(scenario())


def test_an_unreachable_advertised_address_names_its_broker(fake, tools):
    """The case of a server in a container with a wrong advertised.listeners; an address of the user needs no hint."""

    async def scenario():
        async with fake() as server:

            def elsewhere(request):
                answer = server.metadata(request)
                answer.brokers = [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=nowhere)]
                return answer

            nowhere = free_port()
            server.handlers[MetadataRequest] = elsewhere
            config = ClientConfig(delivery_timeout_ms=200, retry_backoff_ms=20)
            async with await connect_async(server.address, config) as connection:
                with pytest.raises(
                    ConnectionFailed,
                    match=rf"cannot connect to 127\.0\.0\.1:{nowhere}: .*advertised\.listeners",
                ):
                    await table_of(tools, connection).count()
            with pytest.raises(ConnectionFailed) as caught:
                await connect_async(f"127.0.0.1:{nowhere}", config)
            assert "advertised" not in str(caught.value)

    tools.run(scenario())
