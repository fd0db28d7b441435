"""Who leads a partition now, for answers that say NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH (KIP-951).

A client that hears it need not ask Metadata first.
"""

from __future__ import annotations

from typing import Any

from broker.cluster.identity import BrokerIdentity
from broker.cluster.metadata import TopicManager


def current_leader(
    metadata: TopicManager, identity: BrokerIdentity, topic: str, index: int
) -> dict[str, int] | None:
    """The fields of a LeaderIdAndEpoch; None if there is no such partition."""
    partition = metadata.find_partition(topic, index)
    if partition is None:
        return None
    return {"leader_id": identity.broker_id, "leader_epoch": partition.leader_epoch}


def endpoint(identity: BrokerIdentity, listener: str) -> dict[str, Any]:
    """The fields of a NodeEndpoint: this broker, for clients of the listener."""
    host, port = identity.advertised(listener)
    return {"node_id": identity.broker_id, "host": host, "port": port, "rack": identity.rack}
