"""Choose the replica on a consumer's rack (KIP-392).

- The chosen replica is in sync, alive, on the consumer's rack, and has the wanted offset; of several, the one with the
  highest end. If the leader is on that rack, or no replica is, the leader answers. Kafka's RackAwareReplicaSelector.
- Followers answer only consumers that give a rack: others believe that the broker still is the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.metadata.image import BrokerImage
    from headrace.broker.replication.leading import ReplicatedPartition

NOBODY = -1


def nearest_replica(
    partition: ReplicatedPartition, rack: str, fetch_offset: int, brokers: Mapping[int, BrokerImage]
) -> int:
    """Return the follower that a consumer on `rack` should read from `fetch_offset` on; -1 for none. `brokers` are
    alive.
    """
    state, replicas = partition.state, partition.progress.replicas
    leader = brokers.get(state.leader)
    if leader is None or leader.rack == rack:
        return NOBODY
    ends = {
        broker: replicas[broker].end_offset
        for broker in state.isr
        if broker in replicas and broker in brokers and brokers[broker].rack == rack
    }
    ends = {broker: end for broker, end in ends.items() if end >= fetch_offset}
    return max(ends, key=lambda broker: (ends[broker], -broker), default=NOBODY)
