"""The state of the cluster and of its partitions, also while brokers are away."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.tablelayer.client.admin.configs import ConfigKind
from headrace.tablelayer.client.errors import ConnectionFailed, OutcomeUnknown, UnsupportedRequest
from headrace.tablelayer.client.wire.retry import Backoff, Deadline, raise_for, retrying, together

if TYPE_CHECKING:
    from headrace.protocol.messages.metadata import MetadataResponsePartition
    from headrace.tablelayer.client.wire.cluster import Cluster

EARLIEST, LATEST = -2, -1
ATTEMPTS = 10
"""Attempts to find the offsets of partitions that change their leader. Partitions without an answer are left out."""
PARTITIONS_PER_REQUEST = 5_000
_MIN_IN_SYNC = "min.insync.replicas"
_FENCED_SINCE = 2


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A live broker: its advertised address, and the number of partitions that it leads."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    partitions_led: int


@dataclass(frozen=True, slots=True)
class MissingBroker:
    """A broker that is not alive: its last address (empty, -1: not known) and the number of its replicas."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    replicas: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The replicas of a partition, the preferred leader first. `leader` is -1 while there is none."""

    leader: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster. `controller` is -1 while there is none. Partitions are (topic, partition): `offline` without a leader,
    `under_replicated` with replicas that are not in sync, `under_min_isr` with fewer in sync than min.insync.replicas.
    `not_eligible` are those of `offline` whose replicas are all alive: none of them may lead, as it may lack records.
    """

    cluster_id: str
    controller: int
    brokers: Sequence[BrokerDescription]
    topic_count: int
    partition_count: int
    offline: Sequence[tuple[str, int]]
    under_replicated: Sequence[tuple[str, int]] = ()
    under_min_isr: Sequence[tuple[str, int]] = ()
    missing: Sequence[MissingBroker] = ()
    not_eligible: Sequence[tuple[str, int]] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether all brokers are alive, one is the controller, and all replicas are in sync."""
        return self.controller >= 0 and not (self.missing or self.offline or self.under_replicated)


class OffsetRange(NamedTuple):
    """The offsets that a partition has: the first one, and the end of its log."""

    first: int
    end: int


def described(partition: MetadataResponsePartition) -> PartitionDescription:
    return PartitionDescription(
        partition.leader_id,
        tuple(partition.replica_nodes),
        tuple(sorted(partition.isr_nodes)),
        tuple(sorted(partition.offline_replicas)),
    )


async def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """See `AsyncKafkaAdmin.describe_cluster`."""

    async def attempt(deadline: Deadline) -> ClusterDescription:
        answer = await cluster.metadata(None, deadline)
        places = {
            (topic.name or "", each.partition_index): each
            for topic in answer.topics
            for each in topic.partitions
        }
        led = Counter(each.leader_id for each in places.values())
        held = Counter(replica for each in places.values() for replica in each.replica_nodes)
        behind = sorted(
            place for place, each in places.items() if len(each.isr_nodes) < len(each.replica_nodes)
        )
        needed = await _min_in_sync(cluster, sorted({topic for topic, _ in behind}), deadline)
        alive = {each.node_id for each in answer.brokers}
        return ClusterDescription(
            answer.cluster_id or "",
            answer.controller_id,
            [
                BrokerDescription(each.node_id, each.host, each.port, each.rack, led[each.node_id])
                for each in sorted(answer.brokers, key=lambda each: each.node_id)
            ],
            len(answer.topics),
            len(places),
            sorted(place for place, each in places.items() if each.leader_id < 0),
            behind,
            [
                place
                for place in behind
                if len(places[place].isr_nodes)
                < min(needed.get(place[0], 1), len(places[place].replica_nodes))
            ],
            await _missing(cluster, alive, held, deadline),
            sorted(
                place
                for place, each in places.items()
                if each.leader_id < 0 and alive.issuperset(each.replica_nodes)
            ),
        )

    return await retrying(attempt, config=cluster.config, repeatable=True)


async def _missing(
    cluster: Cluster, alive: set[int], held: Mapping[int, int], deadline: Deadline
) -> list[MissingBroker]:
    """Return the brokers that are registered or have replicas, and are not alive."""
    missing = {
        each: MissingBroker(each, "", -1, None, count) for each, count in held.items() if each not in alive
    }
    connection = await cluster.connection(None)
    try:
        if connection.version_for(DescribeClusterRequest) < _FENCED_SINCE:
            return [missing[each] for each in sorted(missing)]
    except UnsupportedRequest:
        return [missing[each] for each in sorted(missing)]
    answer = await cluster.send(
        DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse, deadline=deadline
    )
    raise_for(answer.error_code, answer.error_message, doing="describe the cluster")
    for each in answer.brokers:
        if each.is_fenced and each.broker_id not in alive:
            number = each.broker_id
            missing[number] = MissingBroker(number, each.host, each.port, each.rack, held.get(number, 0))
    return [missing[each] for each in sorted(missing)]


async def _min_in_sync(cluster: Cluster, topics: Sequence[str], deadline: Deadline) -> dict[str, int]:
    """Return min.insync.replicas of the topics whose configurations the client may see."""
    if not topics:
        return {}
    resources = [
        DescribeConfigsResource(
            resource_type=ConfigKind.TOPIC.value, resource_name=topic, configuration_keys=[_MIN_IN_SYNC]
        )
        for topic in topics
    ]
    answer = await cluster.send(
        DescribeConfigsRequest(resources=resources), DescribeConfigsResponse, deadline=deadline
    )
    return {
        result.resource_name: int(each.value)
        for result in answer.results
        for each in result.configs
        if each.name == _MIN_IN_SYNC and each.value is not None
    }


async def offset_ranges(cluster: Cluster, topics: Sequence[str] | None) -> dict[str, dict[int, OffsetRange]]:
    """See `AsyncKafkaAdmin.offset_ranges`."""
    deadline = Deadline(cluster.config.delivery_timeout_ms)
    backoff = Backoff(cluster.config)
    leaders = await _leaders(cluster, topics, deadline)
    found: dict[str, dict[int, OffsetRange]] = {name: {} for name in leaders}
    left = {(name, partition) for name, of_topic in leaders.items() for partition in of_topic}
    for _ in range(ATTEMPTS):
        led = defaultdict(list)
        for name, partition in sorted(left):
            leader = leaders.get(name, {}).get(partition, -1)
            if leader >= 0:
                led[leader].append((name, partition))
        answers = await together(
            _ranges_at(cluster, leader, places[first : first + PARTITIONS_PER_REQUEST], deadline)
            for leader, places in led.items()
            for first in range(0, len(places), PARTITIONS_PER_REQUEST)
        )
        for ranges, _again in answers:
            for (name, partition), each in ranges.items():
                found[name][partition] = each
        left = {place for _, again in answers for place in again}
        if not left or deadline.passed:
            break
        await backoff.pause(deadline)
        leaders = await _leaders(cluster, sorted({name for name, _ in left}), deadline)
    return {name: dict(sorted(ranges.items())) for name, ranges in sorted(found.items())}


async def _leaders(
    cluster: Cluster, topics: Sequence[str] | None, deadline: Deadline
) -> dict[str, dict[int, int]]:
    """Return the leaders by topic and partition, -1 for none. Topics that do not exist are left out."""

    async def attempt(deadline: Deadline) -> dict[str, dict[int, int]]:
        answer = await cluster.metadata(topics, deadline)
        for topic in answer.topics:
            if topic.error_code not in _GONE:
                raise_for(topic.error_code, None, doing=f"find topic {topic.name}")
        return {
            topic.name or "": {each.partition_index: each.leader_id for each in topic.partitions}
            for topic in answer.topics
            if topic.error_code not in _GONE
        }

    return await retrying(attempt, config=cluster.config, deadline=deadline, repeatable=True)


_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def _ranges_at(
    cluster: Cluster, leader: int, places: Sequence[tuple[str, int]], deadline: Deadline
) -> tuple[dict[tuple[str, int], OffsetRange], set[tuple[str, int]]]:
    """Return the offsets that a leader knows, and the partitions to ask for again."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    first: dict[tuple[str, int], int] = {}
    end: dict[tuple[str, int], int] = {}
    again: set[tuple[str, int]] = set()
    for at, offsets in ((EARLIEST, first), (LATEST, end)):
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=each, timestamp=at) for each in partitions
                    ],
                )
                for topic, partitions in by_topic.items()
            ],
        )
        try:
            answer = await cluster.send(request, ListOffsetsResponse, node_id=leader, deadline=deadline)
        except (ConnectionFailed, OutcomeUnknown):
            return {}, set(places)
        for found in answer.topics:
            for part in found.partitions:
                place = found.name, part.partition_index
                if part.error_code == ErrorCode.NONE:
                    offsets[place] = part.offset
                elif part.error_code not in _GONE:
                    error = KafkaError(ErrorCode(part.error_code), f"could not find offsets of {found.name}")
                    if not error.code.retriable:
                        raise error
                    again.add(place)
    return {place: OffsetRange(first[place], end[place]) for place in first.keys() & end.keys()}, again
