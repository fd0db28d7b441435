"""Which replica a consumer is sent to by its rack (KIP-392).

- Who is chosen is in sync, alive, on the consumer's rack, and has what is asked for; of several the one that is
  furthest. Where the leader is on that rack, or nobody, the leader answers itself. Kafka's RackAwareReplicaSelector.
- Only who says a rack is answered by a replica: others take it for the leader that it was.
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
    """The follower that a consumer on `rack` is to ask from `fetch_offset` on; -1 for none. `brokers` are alive."""
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
