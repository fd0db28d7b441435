"""The parts of one broker that extensions may use. The broker's own parts get only what they use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.metrics.model import Metrics
from headrace.broker.runtime.background import BackgroundTasks
from headrace.broker.security.rights import OPEN, Authorizer

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from headrace.broker.backup.cut import Backups
    from headrace.broker.cluster.brokers import ClusterBrokers
    from headrace.broker.cluster.metadata_follower import MetadataFollower
    from headrace.broker.cluster.replica_changes import ReplicaChanges
    from headrace.broker.cluster.topic_changes import TopicChanges
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.identity import BrokerIdentity
    from headrace.broker.net.peers import Peers
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import AgeClock, Clock, CoordinationStore, Disk, Entropy, Threads
    from headrace.broker.security.acl.store import AclStore


class BrokerContext(msgspec.Struct):
    """Parts of one broker, made by `broker.server`; alive as long as it is."""

    config: BrokerConfig
    clock: Clock
    entropy: Entropy
    store: CoordinationStore
    data_dir: Path
    disk: Disk
    threads: Threads
    executor: Executor
    metadata: ClusterMetadata
    """Topics, states of partitions and brokers, to read."""
    topics: TopicChanges
    """Creates, alters and deletes topics."""
    replicas: LocalReplicas
    """The partitions of this broker."""
    replica_changes: ReplicaChanges
    """Reassigns partitions and elects leaders."""
    brokers: ClusterBrokers
    """The brokers of the cluster, and requests to them."""
    following: MetadataFollower
    """Follows the coordination store."""
    identity: BrokerIdentity
    allocate_producer_id: Callable[[], Awaitable[int]]
    ages: AgeClock
    """The clock of retention and expiry."""
    background: BackgroundTasks
    """Work beside the requests, whose failure stops nothing else."""
    peers: Peers
    """Connections to the other brokers of the cluster."""
    authorizer: Authorizer = OPEN
    acls: AclStore | None = None
    """The ACLs of the authorizer; None without one."""
    backups: Backups | None = None
    metrics: Metrics = msgspec.field(default_factory=Metrics)
    """The metrics that parts add theirs to."""

    def extension_dir(self, name: str) -> Path:
        """Return the extension's own folder under the data directory, created if missing."""
        path = self.data_dir / "extensions" / name
        self.disk.make_directory(path)
        return path
