"""The parts of a broker that its remote log uses."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.broker.cluster.metadata_follower import MetadataFollower
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.partitions.data_dir import DataDirectory
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.replication.topic_policy import TopicPolicy
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import AgeClock, Clock, CoordinationStore, Disk, Entropy, Threads


class RemoteParts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of a broker that its remote log uses."""

    config: BrokerConfig
    metadata: ClusterMetadata
    replicas: LocalReplicas
    following: MetadataFollower
    policies: Sequence[TopicPolicy]
    store: CoordinationStore
    disk: Disk
    ages: AgeClock
    clock: Clock
    entropy: Entropy
    threads: Threads
    executor: Executor
    background: BackgroundTasks
    directory: DataDirectory
