"""Metrics of a cluster's health: brokers, leaders, in-sync replicas. They are Kafka's, under the house's names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.broker.metadata.image import NO_LEADER
from headrace.broker.metrics.model import Metric, MetricKind
from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.runtime.ports import STORE_LOST

if TYPE_CHECKING:
    from headrace.broker.metadata.change_counts import ChangeCounts
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.image import BrokerImage
    from headrace.broker.metrics.model import Gathering
    from headrace.broker.replication.replicas import LocalReplicas

STORE_SECONDS: Final = 1.0
"""Longest time that a scrape waits for the coordination store; then it shows the last known value."""

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
PARTITIONS = Metric(
    "headrace_partitions", _GAUGE, "Replicas on this broker, leaders and followers. Kafka: PartitionCount."
)
LED = Metric("headrace_partitions_led", _GAUGE, "Partitions that this broker leads. Kafka: LeaderCount.")
OFFLINE = Metric(
    "headrace_offline_partitions",
    _GAUGE,
    "Partitions of the cluster without a live leader, as every broker knows them, and failed partitions of this "
    "broker. Kafka: OfflinePartitionsCount.",
)
OFFLINE_REPLICAS = Metric(
    "headrace_offline_replicas",
    _GAUGE,
    "Replicas of this broker that are not served because of a failure. Kafka: OfflineReplicaCount.",
)
UNDER_REPLICATED = Metric(
    "headrace_under_replicated_partitions",
    _GAUGE,
    "Partitions that this broker leads and that have replicas out of sync. Kafka: UnderReplicatedPartitions.",
)
UNDER_MIN_ISR = Metric(
    "headrace_under_min_isr_partitions",
    _GAUGE,
    "Partitions that this broker leads with fewer in-sync replicas than min.insync.replicas: they refuse acks=all. "
    "Kafka: UnderMinIsrPartitionCount.",
)
AT_MIN_ISR = Metric(
    "headrace_at_min_isr_partitions",
    _GAUGE,
    "Partitions that this broker leads with exactly min.insync.replicas in sync, or with their only replica. "
    "Kafka: AtMinIsrPartitionCount.",
)
ISR_SHRINKS = Metric(
    "headrace_isr_shrinks_total",
    _COUNTER,
    "Changes, written by this broker, with which a replica left an ISR. Kafka: IsrShrinksPerSec.",
)
ISR_EXPANDS = Metric(
    "headrace_isr_expands_total",
    _COUNTER,
    "Changes, written by this broker, with which a replica joined an ISR. Kafka: IsrExpandsPerSec.",
)
UNCLEAN_ELECTIONS = Metric(
    "headrace_unclean_leader_elections_total",
    _COUNTER,
    "Elections, written by this broker, of a leader that may lack acknowledged records. "
    "Kafka: UncleanLeaderElectionsPerSec.",
)
ACTIVE_CONTROLLER = Metric(
    "headrace_active_controller",
    _GAUGE,
    "1 if this broker is the controller, otherwise 0; the sum over the brokers is 1. Kafka: ActiveControllerCount.",
)
LIVE_BROKERS = Metric(
    "headrace_live_brokers", _GAUGE, "Brokers that are alive, as this broker knows. Kafka: ActiveBrokerCount."
)
FENCED_BROKERS = Metric(
    "headrace_fenced_brokers",
    _GAUGE,
    "Brokers that have registered, were not removed, and are not alive. Kafka: FencedBrokerCount.",
)
REPLICATION_LAG = Metric(
    "headrace_replication_lag_records",
    _GAUGE,
    "Records that a follower's logs lack, over the partitions that this broker leads; all records until its first "
    "fetch. Kafka: ConsumerLag of FetcherLagMetrics.",
    ("topic", "follower"),
)
REPLICATION_METRICS: Final = (
    PARTITIONS, LED, OFFLINE, OFFLINE_REPLICAS, UNDER_REPLICATED, UNDER_MIN_ISR, AT_MIN_ISR, ISR_SHRINKS, ISR_EXPANDS,
    UNCLEAN_ELECTIONS, ACTIVE_CONTROLLER, LIVE_BROKERS, FENCED_BROKERS, REPLICATION_LAG,
)  # fmt: skip


class ReplicationCollector:
    """Collects the values from the image and from the partitions of this broker."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        counts: ChangeCounts,
        known_brokers: Callable[[], Awaitable[Sequence[BrokerImage]]],
        label: Callable[[str], str],
    ) -> None:
        """`label`: returns a topic's label, of which there is a bounded number."""
        self._metadata = metadata
        self._replicas = replicas
        self._counts = counts
        self._known_brokers = known_brokers
        self._label = label
        self._known: frozenset[int] = frozenset()
        self._without_leader = -1, 0
        """The version of the metadata, and the number of partitions without a leader in it."""

    async def collect(self, gathering: Gathering) -> None:
        metadata, counts = self._metadata, self._counts
        gathering.put(ISR_SHRINKS, counts.isr_shrinks)
        gathering.put(ISR_EXPANDS, counts.isr_expands)
        gathering.put(UNCLEAN_ELECTIONS, counts.unclean_elections)
        gathering.put(ACTIVE_CONTROLLER, int(metadata.is_controller))
        alive = metadata.image.brokers.keys() - metadata.ended.keys()
        gathering.put(LIVE_BROKERS, len(alive))
        gathering.put(FENCED_BROKERS, len(await self._registered() - alive))
        failed = await self._collect_led(gathering)
        gathering.put(OFFLINE, await self._count_leaderless(gathering) + failed)
        followers = self._replicas.followers()
        gathering.add(PARTITIONS, len(followers))
        for follower in followers:
            await gathering.breathe()
            gathering.add(OFFLINE_REPLICAS, follower.failure is not None)

    async def _registered(self) -> frozenset[int]:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                self._known = frozenset(each.broker_id for each in await self._known_brokers())
        except (TimeoutError, *STORE_LOST):
            pass
        return self._known

    async def _collect_led(self, gathering: Gathering) -> int:
        """Collect the values of the partitions that this broker leads; return the number of failed ones."""
        for metric in (PARTITIONS, LED, OFFLINE_REPLICAS, UNDER_REPLICATED, UNDER_MIN_ISR, AT_MIN_ISR):
            gathering.put(metric, 0)
        failed = 0
        for partition in self._replicas.all_partitions():
            await gathering.breathe()
            if partition.closed:
                continue
            gathering.add(PARTITIONS, 1)
            gathering.add(LED, 1)
            if partition.failure is not None:
                failed += 1
                continue
            if not isinstance(partition, ReplicatedPartition):
                gathering.add(AT_MIN_ISR, 1)  # its log may not be open, and its only replica is enough
                continue
            in_sync = partition.in_sync_count
            gathering.add(UNDER_REPLICATED, in_sync < partition.replica_count)
            if not partition.is_open:
                continue
            needed = partition.needed_in_sync
            gathering.add(UNDER_MIN_ISR, in_sync < needed)
            gathering.add(AT_MIN_ISR, in_sync == needed)
            if not partition.topic.internal:
                label = self._label(partition.topic.name)
                for broker, lag in partition.lags().items():
                    gathering.add(REPLICATION_LAG, lag, label, str(broker))
        gathering.add(OFFLINE_REPLICAS, failed)
        return failed

    async def _count_leaderless(self, gathering: Gathering) -> int:
        """Return the number of partitions without a live leader, which is counted again only after a change."""
        metadata = self._metadata
        version, image, ended = metadata.version, metadata.image, metadata.ended
        if self._without_leader[0] != version:
            led_by = image.brokers.keys() - ended.keys()
            count = 0
            for entry in image.topics.values():
                await gathering.breathe()
                for chunk in entry.chunks:
                    count += sum(
                        state.leader == NO_LEADER or state.leader not in led_by for state in chunk.states
                    )
            self._without_leader = version, count
        return self._without_leader[1]
