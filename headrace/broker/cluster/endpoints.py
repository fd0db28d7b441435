"""The leader of a partition and its address, for clients of a listener.

Answers with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH carry it too (KIP-951), so that a client need not ask
Metadata first.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.metadata.image import BrokerImage


def current_leader(metadata: ClusterMetadata, topic: str, index: int) -> dict[str, int] | None:
    """Return the fields of a LeaderIdAndEpoch; None if the partition does not exist."""
    state = metadata.state(topic, index)
    return None if state is None else {"leader_id": state.leader, "leader_epoch": state.leader_epoch}


def address_of(identity: BrokerIdentity, broker: BrokerImage, listener: str) -> tuple[str, int] | None:
    """Return host and port of a broker for clients of the listener; None if it does not have the listener."""
    if broker.broker_id == identity.broker_id:
        return identity.advertised(listener)
    return next(((host, port) for name, host, port in broker.endpoints if name == listener), None)


def endpoint(
    metadata: ClusterMetadata, identity: BrokerIdentity, broker_id: int, listener: str
) -> dict[str, Any] | None:
    """Return the fields of a NodeEndpoint: a broker, for clients of the listener; None if they cannot reach it."""
    broker = metadata.image.brokers.get(broker_id)
    address = None if broker is None else address_of(identity, broker, listener)
    if broker is None or address is None:
        return None
    return {"node_id": broker_id, "host": address[0], "port": address[1], "rack": broker.rack}


def endpoints(metadata: ClusterMetadata, identity: BrokerIdentity, listener: str) -> list[dict[str, Any]]:
    """Return all live brokers by their ids, with their addresses for clients of the listener."""
    found = (endpoint(metadata, identity, each, listener) for each in sorted(metadata.image.brokers))
    return [each for each in found if each is not None]
