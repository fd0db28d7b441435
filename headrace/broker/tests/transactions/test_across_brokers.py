"""Transactions whose coordinator, partitions and groups are on several brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.broker.transactions import journal
from headrace.broker.transactions.others import SendersOfMarkers
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from simulator.cluster import DirectCluster, Routed, direct_cluster
from simulator.transactional_client import TV1, TV2, Client, committed_values, position, until

CONFIG = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
PLACES = [("t", 0), ("t", 1), ("t", 2)]


async def spread(cluster: DirectCluster) -> Routed:
    """A topic with a partition on each broker, and the journals."""
    await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == len(cluster.brokers))
    first = next(iter(cluster.brokers.values()))
    await first.create_topic("t", 3)
    for key_type in (0, 1):
        answer = await first.send(FindCoordinatorRequest(key="tx", key_type=key_type), 3)
        assert not answer.error_code, answer
    return Routed(cluster)


def leader(cluster: DirectCluster, topic: str, index: int) -> int:
    state = next(iter(cluster.brokers.values())).context.metadata.state(topic, index)
    assert state is not None
    return state.leader


def coordinated_by(cluster: DirectCluster, node_id: int) -> str:
    """A transactional id whose coordinator is this broker."""
    coordinator = cluster.brokers[node_id].broker
    for number in range(100):
        name = f"tx{number}"
        index = hash_of(name)
        if leader(cluster, journal.TOPIC, index) == coordinator.config["node.id"]:
            return name
    raise AssertionError


def hash_of(name: str) -> int:
    from headrace.broker.cluster.journal_topic import partition_of

    return partition_of(name, 3)


def group_of(cluster: DirectCluster, node_id: int) -> str:
    for number in range(100):
        if leader(cluster, "__consumer_offsets", hash_of(f"g{number}")) == node_id:
            return f"g{number}"
    raise AssertionError


async def add_offsets(client: Client, group: str) -> int:
    producer_id, epoch = client.identity
    request = AddOffsetsToTxnRequest(
        transactional_id=client.name, producer_id=producer_id, producer_epoch=epoch, group_id=group
    )
    code: int = (await client.broker.send(request, 3)).error_code
    return code


async def written(client: Client, value: bytes, group: str, offset: int) -> None:
    for place in PLACES:
        if client.version == TV1:
            assert await client.add(place) == [ErrorCode.NONE]
        answer = await client.send([value], *place)
        assert answer.error_code == ErrorCode.NONE, answer
    if client.version == TV1:
        assert await add_offsets(client, group) == 0
    assert await client.commit_offsets(group, {("t", 0): offset}) == [ErrorCode.NONE]


@pytest.mark.parametrize("version", [TV1, TV2])
async def test_transactions_over_brokers_are_atomic_with_any_coordinator(
    tmp_path: Path, version: int
) -> None:
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        routed = await spread(cluster)
        assert {leader(cluster, *place) for place in PLACES} == {1, 2, 3}
        for coordinator in (1, 2, 3):
            group = group_of(cluster, coordinator % 3 + 1)
            client = Client(routed, coordinated_by(cluster, coordinator), version)  # type: ignore[arg-type]
            before = [await committed_values(routed, *place) for place in PLACES]  # type: ignore[arg-type]
            assert await client.init() is ErrorCode.NONE
            await written(client, b"yes%d" % coordinator, group, 10 + coordinator)
            for place, values in zip(PLACES, before, strict=True):
                assert await committed_values(routed, *place) == values, "nothing before its end"  # type: ignore[arg-type]
            assert await client.end(True) is ErrorCode.NONE
            await written(client, b"no", group, 99)
            assert await client.end(False) is ErrorCode.NONE
            for place, values in zip(PLACES, before, strict=True):
                found = await committed_values(routed, *place)  # type: ignore[arg-type]
                assert found == [*values, b"yes%d" % coordinator]
            assert await position(routed, group, "t", stable=True) == 10 + coordinator  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [TV1, TV2])
async def test_a_leader_verifies_transactional_writes_with_the_coordinator(
    tmp_path: Path, version: int
) -> None:
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        routed = await spread(cluster)
        other = leader(cluster, "t", 0) % 3 + 1
        client = Client(routed, coordinated_by(cluster, other), version)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        if version == TV1:
            refused = await client.send([b"x"], *PLACES[0])
            assert refused.error_code == ErrorCode.TRANSACTION_ABORTABLE
            assert (
                await client.send([b"x"], *PLACES[0], version=9)
            ).error_code == ErrorCode.INVALID_TXN_STATE
        else:
            assert (await client.send([b"x"], *PLACES[0])).error_code == ErrorCode.NONE
        zombie = Client(routed, client.name, version)  # type: ignore[arg-type]
        zombie.identity = client.identity
        assert await until(client.init, lambda code: code is not ErrorCode.CONCURRENT_TRANSACTIONS) == 0
        late = await zombie.send([b"late"], *PLACES[0], sequence=0)
        assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await committed_values(routed, *PLACES[0]) == []  # type: ignore[arg-type]


async def test_an_absent_leader_gets_its_marker_when_it_returns(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        routed = await spread(cluster)
        away = leader(cluster, "t", 1)
        client = Client(routed, coordinated_by(cluster, away % 3 + 1), TV2)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        for place in PLACES:
            assert (await client.send([b"v"], *place)).error_code == ErrorCode.NONE
        await cluster.stop(away)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        assert await client.end(True) is ErrorCode.NONE, "it is decided, even if a broker is away"
        described = await routed.send(DescribeTransactionsRequest(transactional_ids=[client.name]))
        assert described.transaction_states[0].transaction_state == "PrepareCommit"
        await cluster.start(away, CONFIG)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)

        async def read() -> list[bytes | None]:
            return await committed_values(routed, "t", 1)  # type: ignore[arg-type]

        async with asyncio.timeout(60):
            while await read() != [b"v"]:  # noqa: ASYNC110 - what is waited for is another's
                await asyncio.sleep(0.05)


async def test_a_restarted_coordinator_completes_decided_transactions(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        routed = await spread(cluster)
        away = leader(cluster, "t", 1)
        coordinator = away % 3 + 1
        client = Client(routed, coordinated_by(cluster, coordinator), TV2)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        assert (await client.send([b"v"], "t", 1)).error_code == ErrorCode.NONE
        await cluster.stop(away)
        assert await client.end(True) is ErrorCode.NONE
        await cluster.stop(coordinator)
        await cluster.start(away, CONFIG)
        await cluster.start(coordinator, CONFIG)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        async with asyncio.timeout(60):
            while await committed_values(routed, "t", 1) != [b"v"]:  # type: ignore[arg-type]  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_verification_before_a_marker_does_not_count_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 2, config=CONFIG) as cluster:
        routed = await spread(cluster)
        here = leader(cluster, "t", 0)
        client = Client(routed, coordinated_by(cluster, 3 - here), TV1)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        assert await client.add(PLACES[0]) == [ErrorCode.NONE]
        from headrace.broker.transactions.coordinator import TransactionCoordinator

        ask = TransactionCoordinator.ask_coordinator

        async def slow(self, *arguments, **options):
            answer = await ask(self, *arguments, **options)
            monkeypatch.undo()
            assert await client.end(False) is ErrorCode.NONE
            return answer

        monkeypatch.setattr(TransactionCoordinator, "ask_coordinator", slow)
        answer = await client.send([b"x"], *PLACES[0])
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "has ended" in answer.error_message
        partition = cluster.brokers[here].context.replicas.partition("t", 0)
        assert not partition.log.open_transactions()


async def test_brokers_ask_in_versions_that_clients_do_not_know(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 2, config=CONFIG) as cluster:
        routed = await spread(cluster)
        client = Client(routed, "tx", TV1)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        assert await client.add(PLACES[0]) == [ErrorCode.NONE]

        def asked(verify_only: bool, index: int) -> AddPartitionsToTxnRequest:
            return AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="",
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id="tx",
                        producer_id=client.identity[0],
                        producer_epoch=client.identity[1],
                        verify_only=verify_only,
                        topics=[AddPartitionsToTxnTopic(name="t", partitions=[index])],
                    )
                ],
            )

        coordinator = cluster.brokers[leader(cluster, journal.TOPIC, hash_of("tx"))]
        codes = []
        for version, verify_only, index in (
            (5, True, 0),
            (5, True, 1),
            (4, True, 1),
            (5, False, 1),
            (5, True, 1),
        ):
            answer = await coordinator.send(asked(verify_only, index), version)
            (result,) = answer.results_by_transaction
            assert not answer.error_code
            codes.append(result.topic_results[0].results_by_partition[0].partition_error_code)
        assert codes == [
            0,
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.INVALID_TXN_STATE,
            0,
            0,
        ]


def test_markers_over_an_older_connection_of_a_broker_are_late() -> None:
    senders = SendersOfMarkers(lambda name: name.startswith("broker-"))
    senders.check("broker-1", 7)
    senders.check("broker-1", 7)
    senders.check("broker-2", 3)
    senders.check("broker-1", 9)
    with pytest.raises(KafkaError, match="over another connection"):
        senders.check("broker-1", 7)
    senders.check("a tool", 9)
    senders.check("a tool", 1)
    senders.check(None, 1)
