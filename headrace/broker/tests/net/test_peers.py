"""Requests to other brokers: one connection to each, known outcomes, and only with the right to send them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from headrace.broker.net.peers import Address, PeerLostError, Peers
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from simulator.certificates import identity
from simulator.cluster import direct_cluster
from simulator.direct import direct_broker


def peers_of(broker, address) -> Peers:
    return Peers(broker.broker.network, lambda _: address, client_id="broker-7")


async def test_one_connection_is_kept_until_the_broker_registers_again(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        network = broker.broker.network
        address = Address("127.0.0.1", broker.broker.port, 1)
        peers = Peers(network, lambda _: address, client_id="broker-7")
        request = MetadataRequest(topics=[])
        answers = await asyncio.gather(*(peers.ask(3, request, MetadataResponse, 12) for _ in range(5)))
        assert [answer.cluster_id for answer in answers] == [broker.broker.cluster_id] * 5
        assert len(network._outgoing) == 1
        await peers.ask(3, request, MetadataResponse, 12, channel="other")
        assert len(network._outgoing) == 2
        before = set(network._outgoing)
        address = Address("127.0.0.1", broker.broker.port, 2)
        await peers.ask(3, request, MetadataResponse, 12)
        assert len(network._outgoing) == 2
        assert len(before & set(network._outgoing)) == 1
        peers.close()
        assert not network._outgoing


async def test_unsent_requests_are_told_from_unanswered_ones(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        with pytest.raises(PeerLostError, match="is not alive") as lost:
            await peers_of(broker, None).ask(3, MetadataRequest(topics=[]), MetadataResponse)
        assert not lost.value.sent
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            nobody = Address("127.0.0.1", silent.getsockname()[1], 1)
            with pytest.raises(PeerLostError, match="cannot connect") as lost:
                await peers_of(broker, nobody).ask(3, MetadataRequest(topics=[]), MetadataResponse)
            assert not lost.value.sent
            silent.listen()
            peers = peers_of(broker, nobody)
            with pytest.raises(PeerLostError, match="has not answered") as lost:
                await peers.ask(3, MetadataRequest(topics=[]), MetadataResponse, seconds=1.0)
            assert lost.value.sent
            assert not broker.broker.network._outgoing, "its answer would be taken for the next one's"


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SSL", "SASL_SSL"])
@pytest.mark.parametrize("may", [True, False])
async def test_brokers_ask_each_other_over_the_listener_that_is_theirs(
    tmp_path: Path, protocol: str, may: bool
) -> None:
    authority = identity("ca")
    own = identity("broker", authority)
    name = "User:broker" if protocol.startswith("SASL") else "User:CN=broker"
    config = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": f"CLIENTS:PLAINTEXT,BROKERS:{protocol}",
        "inter.broker.listener.name": "BROKERS",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;{name}" if may else "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.brokers.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule"
        ' required username="broker" password="secret" user_broker="secret";',
        "listener.name.brokers.ssl.keystore.type": "PEM",
        "listener.name.brokers.ssl.keystore.certificate.chain": own.certificate_pem,
        "listener.name.brokers.ssl.keystore.key": own.key_pem(),
        "listener.name.brokers.ssl.truststore.type": "PEM",
        "listener.name.brokers.ssl.truststore.certificates": authority.certificate_pem,
        "listener.name.brokers.ssl.client.auth": "required",
    }
    if "SSL" not in protocol:
        config = {key: value for key, value in config.items() if ".ssl." not in key}
    if "SASL" not in protocol:
        config = {key: value for key, value in config.items() if "sasl." not in key}
    async with direct_cluster(tmp_path, 2, config=config) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        for broker, other in zip(cluster.brokers.values(), (2, 1), strict=True):
            answer = await broker.context.peers.ask(
                other, AddPartitionsToTxnRequest(), AddPartitionsToTxnResponse
            )
            expected = ErrorCode.NONE if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert answer.error_code == expected
            own_network = cluster.brokers[other].broker.network
            served = [each.peer for each in own_network._connections if each.peer.session is not None]
            assert {each.listener for each in served} == {"BROKERS"}
            assert {str(each.session.principal) for each in served if each.session is not None} == {name}
