"""A broker in its cluster: topics, its partitions, their replication and their backups.

Starts: nothing that runs by itself before `load`, which registers the broker and opens logs.
Stops:  backups, all background tasks, the remote log, then every partition (flushed and closed).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.assembly.logs import PartitionLogs
from headrace.broker.backup.cut import Backups
from headrace.broker.backup.member import ClusterParts
from headrace.broker.cluster.brokers import ClusterBrokers
from headrace.broker.cluster.flushing import LogFlushing
from headrace.broker.cluster.metadata_follower import MetadataFollower
from headrace.broker.cluster.replica_changes import ReplicaChanges
from headrace.broker.cluster.replication import Replication
from headrace.broker.cluster.topic_changes import TopicChanges, TopicDefaults
from headrace.broker.cluster.topic_files import TopicFiles
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.context import BrokerContext
from headrace.broker.groups.journal.records import TOPIC as OFFSETS_TOPIC
from headrace.broker.log.config import LogConfig
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.metadata.member import Member
from headrace.broker.metadata.membership import Registration
from headrace.broker.metadata.producer_ids import ProducerIds
from headrace.broker.metadata.topic_config import TopicConfigs
from headrace.broker.partitions.fence import Fence
from headrace.broker.remote.backup_nodes import BackupNodes
from headrace.broker.remote.opening import open_remote_log
from headrace.broker.remote.parts import RemoteParts
from headrace.broker.replication.follower_fetches import FollowerFetches
from headrace.broker.replication.replicas import LocalReplicas
from headrace.broker.replication.throttle import Throttle
from headrace.broker.runtime.ports import AgeClock
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.broker.transactions.journal import TOPIC as TRANSACTION_TOPIC
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.assembly.network import Listeners
    from headrace.broker.assembly.ports import Ports
    from headrace.broker.assembly.storage import Storage
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.extension import Extension
    from headrace.broker.metrics.model import Metrics
    from headrace.broker.remote.manager import RemoteLogManager
    from headrace.broker.runtime.background import BackgroundTasks


class Cluster:
    """The topics of the cluster and this broker's part in it. `assemble` makes one; `load` has it serve."""

    def __init__(
        self,
        config: BrokerConfig,
        ports: Ports,
        storage: Storage,
        listeners: Listeners,
        extensions: Sequence[Extension],
        background: BackgroundTasks,
    ) -> None:
        """Called through `assemble`."""
        self._config = config
        self._ports = ports
        self._storage = storage
        self._extensions = extensions
        self._background = background
        self._incarnation = str(ports.entropy.uuid())
        self.replication = (
            None if storage.is_alone else Replication(config["node.id"], config, ports.clock, background)
        )
        """None if the broker is alone."""
        if not storage.is_alone:
            storage.directory.note_incarnation(self._incarnation)
        broker_id, store, executor = config["node.id"], storage.store, storage.executor
        topic_configs, registration = self._topic_configs(), self._registration(listeners)
        fence = None if storage.is_alone else Fence(store, ports.clock)
        member = Member(store, registration, fence)
        self.logs = PartitionLogs(storage.directory, topic_configs, executor, ports)
        self.metadata = ClusterMetadata(topic_configs, member, fence, levels=registration.levels)
        files = TopicFiles(store, storage.directory, executor, broker_id, extensions)
        self.replicas = self.logs.replicas = LocalReplicas(
            broker_id,
            executor=executor,
            open_log=self.logs.open,
            log_config=topic_configs.log_config,
            policies=extensions,
            fence=fence,
            replication=self.replication,
            remove=files.remove_replica,
            clean_end_offset=self.logs.clean_end_offset,
        )
        self.following = MetadataFollower(store, self.metadata, member, self.replicas, files, broker_id)
        self.brokers = ClusterBrokers(store, self.metadata, member, self.following, files, broker_id)
        self.topics = TopicChanges(
            self.metadata,
            self.following,
            self.brokers,
            self.replicas,
            defaults=self._topic_defaults(),
            policies=extensions,
            entropy=ports.entropy,
            slices=storage.slices,
            free_files=lambda: ports.disk.usage(storage.directory.path).free_files,
        )
        self.replica_changes = ReplicaChanges(
            self.metadata, self.following, self.brokers, files, broker_id, storage.slices
        )
        self.flushing = LogFlushing(config, self.replicas.changes, storage.executor, background)
        self.context: BrokerContext
        self.backups: Backups

    @classmethod
    async def assemble(
        cls,
        config: BrokerConfig,
        ports: Ports,
        storage: Storage,
        listeners: Listeners,
        extensions: Sequence[Extension],
        background: BackgroundTasks,
        metrics: Metrics,
        undo: AsyncExitStack,
    ) -> Cluster:
        """Make the parts, not loaded yet. Raises ConfigError if brokers of a cluster could not reach each other."""
        cluster = cls(config, ports, storage, listeners, extensions, background)
        undo.push_async_callback(cluster.following.close)
        cluster.backups = cluster._backups()
        await cluster.backups.clear()
        cluster.context = cluster._context(listeners, metrics)
        undo.callback(cluster._close_remote_log)
        undo.push_async_callback(background.cancel)
        undo.callback(cluster.backups.stop)
        return cluster

    def open_remote_log(self) -> None:
        """Open the remote log, if there is remote storage. Raises ConfigError."""
        context = self.context
        self.logs.remote = open_remote_log(
            RemoteParts(
                config=self._config,
                metadata=self.metadata,
                replicas=self.replicas,
                following=self.following,
                policies=self._extensions,
                store=context.store,
                disk=context.disk,
                ages=context.ages,
                clock=context.clock,
                entropy=context.entropy,
                threads=context.threads,
                executor=context.executor,
                background=context.background,
                directory=self._storage.directory,
            )
        )

    @property
    def remote(self) -> RemoteLogManager | None:
        return self.logs.remote

    async def load(self) -> None:
        """Register the broker and open its partitions; after an unclean stop, recover their logs. Raises ConfigError if
        another broker is registered under this one's id.
        """
        storage = self._storage
        try:
            await self.following.load(
                recover=not storage.was_clean,
                prepare=None if self.remote is None else self.remote.make_missing,
            )
        except KafkaError as error:
            if error.code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                raise
            raise ConfigError(error.message) from None
        storage.loaded = self.replicas
        if not storage.is_alone:
            self._note_life()
        storage.configs.checks.append(self._check_defaults)
        storage.configs.listeners.append(self._defaults_changed)

    def replicate(self) -> FollowerFetches | None:
        """Start to copy partitions and to answer followers; None if the broker is alone."""
        if self.replication is None:
            return None
        config, context, clock = self._config, self.context, self._ports.clock.monotonic
        slices = self._storage.slices
        throttle = Throttle("leader", config["node.id"], config, clock)
        followers = FollowerFetches(
            self.metadata, self.replicas, slices, throttle, context.entropy.random, clock
        )
        self.replication.start(
            self.metadata, self.replica_changes, context.peers, context.executor, followers, slices
        )
        return followers

    # -- the configuration of topics ---------------------------------------------------------------------------

    def _check_defaults(self, config: BrokerConfig) -> None:
        """Raises KafkaError if these defaults are not valid for topics."""
        defaults = config.topic_defaults()
        try:
            LogConfig.parse(defaults)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        self.metadata.check_defaults(defaults)

    async def _defaults_changed(self) -> None:
        config = self._config
        if not self._storage.is_alone:
            self._note_life()
        await self.following.defaults_changed(config.topic_defaults(), config["producer.id.expiration.ms"])

    def _note_life(self) -> None:
        """Record the state on which the next start can rely if this process is killed."""
        flushes_each = LogConfig.parse(self._config.topic_defaults()).flush_messages == 1
        self._storage.directory.note_life(self._incarnation, synced=flushes_each)

    # -- the parts -----------------------------------------------------------------------------------------------

    def _topic_configs(self) -> TopicConfigs:
        config = self._config
        return TopicConfigs(
            config.topic_defaults(),
            [key for extension in self._extensions for key in extension.topic_configs()],
            strict=config["log.strict.records"],
            remote_storage=config["remote.log.storage.system.enable"],
            producer_id_expiration_ms=config["producer.id.expiration.ms"],
        )

    def _registration(self, listeners: Listeners) -> Registration:
        config, storage = self._config, self._storage
        return Registration(
            config["node.id"],
            self._incarnation,
            storage.was_clean,
            listeners.endpoints(),
            config["broker.rack"],
            storage.directory.was_kept,
            storage.directory.was_synced,
            previous=storage.directory.last_incarnations,
        )

    def _topic_defaults(self) -> TopicDefaults:
        config = self._config
        return TopicDefaults(
            config["num.partitions"],
            config["default.replication.factor"],
            {
                OFFSETS_TOPIC: (config["offsets.topic.replication.factor"], None),
                TRANSACTION_TOPIC: (
                    config["transaction.state.log.replication.factor"],
                    config["transaction.state.log.min.isr"],
                ),
            },
        )

    def _backups(self) -> Backups:
        ports, storage = self._ports, self._storage
        return Backups(
            self.replicas,
            storage.store.copy if isinstance(storage.store, EmbeddedStore) else None,
            self._checkpoint_extensions,
            self.logs.removals,
            data_dir=storage.directory.path,
            disk=ports.disk,
            executor=storage.executor,
            clock=ports.clock,
            entropy=ports.entropy,
            cluster=None if storage.is_alone else ClusterParts(self._backup_nodes(), OFFSETS_TOPIC),
        )

    def _backup_nodes(self) -> BackupNodes:
        storage = self._storage
        return BackupNodes(
            storage.store,
            lambda: self.metadata.image,
            cluster_id=storage.directory.cluster_id,
            broker_id=self._config["node.id"],
            early=[root for extension in self._extensions for root in extension.early_nodes()],
            still=[root for extension in self._extensions for root in extension.still_nodes()],
            time_ms=self._ports.clock.time_ms,
            executor=storage.executor,
        )

    async def _checkpoint_extensions(self, folder: Path) -> None:
        for extension in self._extensions:
            await extension.checkpoint(folder / extension.name)

    def _context(self, listeners: Listeners, metrics: Metrics) -> BrokerContext:
        config, ports, storage = self._config, self._ports, self._storage
        identity = BrokerIdentity(
            config["node.id"], storage.directory.cluster_id, config["broker.rack"], listeners.advertised
        )
        return BrokerContext(
            config=config,
            clock=ports.clock,
            entropy=ports.entropy,
            store=storage.store,
            data_dir=storage.directory.path,
            disk=ports.disk,
            threads=ports.threads,
            executor=storage.executor,
            metadata=self.metadata,
            topics=self.topics,
            replicas=self.replicas,
            replica_changes=self.replica_changes,
            brokers=self.brokers,
            following=self.following,
            identity=identity,
            allocate_producer_id=ProducerIds(storage.store).allocate,
            ages=AgeClock(ports.clock),
            background=self._background,
            peers=listeners.peers(self.metadata, identity),
            metrics=metrics,
            backups=self.backups,
        )

    def _close_remote_log(self) -> None:
        if self.remote is not None:
            self.remote.close()
