"""The composition root: a whole broker put together from its parts, started and stopped in one place.

Start:  data directory (lock, layout) - store - extensions - topics and partitions (recovered if the last stop was not
        a clean one) - groups - transactions - APIs - listener. `start` returns when clients are served.
Stop:   listener - waiting requests are answered - requests under way - background tasks and extensions - partitions
        (flushed, closed) - store - data directory, marked clean if every log was closed.

A broker killed at any time starts again: topics are what the store says, records what the logs hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import resource
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.broker.api import not_offered
from headrace.broker.api.acls import AclsApi
from headrace.broker.api.api_versions import ApiVersionsApi
from headrace.broker.api.brokers import BrokersApi
from headrace.broker.api.configs import ConfigsApi
from headrace.broker.api.delegation_tokens import DelegationTokensApi
from headrace.broker.api.dispatch import Dispatcher
from headrace.broker.api.fetch import FetchApi
from headrace.broker.api.log_dirs import LogDirsApi
from headrace.broker.api.metadata import MetadataApi
from headrace.broker.api.offsets import OffsetsApi
from headrace.broker.api.produce import ProduceApi
from headrace.broker.api.producer_ids import ProducerIdsApi
from headrace.broker.api.quotas import QuotasApi
from headrace.broker.api.replicas import ReplicasApi
from headrace.broker.api.sasl import SaslApi, SaslDoor
from headrace.broker.api.topics import TopicsApi
from headrace.broker.api.users import UsersApi
from headrace.broker.backup.cut import Backups
from headrace.broker.cluster.cleaner import LogCleaner
from headrace.broker.cluster.endpoints import address_of
from headrace.broker.cluster.flushing import LogFlushing
from headrace.broker.cluster.follower_fetches import FollowerFetches
from headrace.broker.cluster.lookout import Lookout
from headrace.broker.cluster.replication import Replication
from headrace.broker.cluster.retention import Retention
from headrace.broker.cluster.topics import TopicManager
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.connections import OVERRIDES, PER_ADDRESS, UNLIMITED
from headrace.broker.configs.listeners import Listener, SecurityProtocol, inter_broker_listener
from headrace.broker.context import BrokerContext
from headrace.broker.extension import Extension
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.groups.handlers.apis import group_apis
from headrace.broker.groups.handlers.patterns import PatternResolver
from headrace.broker.groups.journal.records import TOPIC as OFFSETS_TOPIC
from headrace.broker.log.config import LogConfig
from headrace.broker.log.disk import SystemDisk
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.metadata.broker_configs import BrokerConfigs
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.metadata.membership import Registration, check_free, cluster_id
from headrace.broker.metadata.producer_ids import ProducerIds
from headrace.broker.metadata.topic_config import TopicConfigs
from headrace.broker.metrics.access import shown_to
from headrace.broker.metrics.collect import BROKER_METRICS, BrokerCollector
from headrace.broker.metrics.event_loop import TURN_CPU_SECONDS, TURN_SECONDS, LoopMeter
from headrace.broker.metrics.model import Metrics
from headrace.broker.metrics.requests import REQUEST_SECONDS, RequestMeter
from headrace.broker.net.address_slots import addresses_of
from headrace.broker.net.connection_rates import ConnectionRates
from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.net.peers import Address, Peers
from headrace.broker.net.poller import measure_turns
from headrace.broker.net.sockets import SystemSockets
from headrace.broker.partitions.data_dir import (
    FROM_REMOTE_STORAGE,
    PARTITION_METADATA,
    POSITIONS_PENDING,
    DataDirectory,
    read_properties,
    to_base64,
)
from headrace.broker.partitions.deleted_files import DeletedFiles
from headrace.broker.partitions.fence import Fence
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication.throttle import Throttle
from headrace.broker.requests.declaration import ApiDeclaration
from headrace.broker.runtime.background import BackgroundTasks
from headrace.broker.runtime.compiler_memory import INTERVAL_SECONDS, CompilerMemory
from headrace.broker.runtime.ports import (
    STORE_LOST,
    AgeClock,
    Clock,
    CoordinationStore,
    Disk,
    Entropy,
    Sockets,
    SystemClock,
    SystemEntropy,
    SystemThreads,
    Threads,
)
from headrace.broker.runtime.slices import Slices
from headrace.broker.runtime.usage import ChargingExecutor
from headrace.broker.security.acl.authorization import Authorization
from headrace.broker.security.quotas.quotas import BURST_PART, Quotas
from headrace.broker.security.quotas.store import QuotaStore
from headrace.broker.security.sasl.service import SaslService
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.handlers import TransactionHandlers
from headrace.broker.transactions.journal import TOPIC as TRANSACTION_TOPIC
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.net.certificates import Certificates
    from headrace.broker.remote.manager import RemoteLogManager

logger = logging.getLogger("headrace.server")

EXECUTOR_THREADS = 4  # recovery, RocksDB, Arrow: they release the GIL; more threads than cores gain nothing
LEAVING_SECONDS = 5.0  # for others to lead what this broker leads; clients are served meanwhile
HANDSHAKE_THREADS = 1  # of TLS: they leave the rest of the cores to those who are served already
WILDCARD_HOSTS = ("0.0.0.0", "::", "")


def _descriptors_for_connections() -> int:
    """A quarter of what the process may have, and at most 4096, is kept for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft - min(soft // 4, 4096)


class Broker:
    """One broker. `host` and `port` are where it listens unless its configuration has `listeners`; port 0 takes a free
    one. After `start` they are the first listener's.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        data_dir: Path,
        host: str = "127.0.0.1",
        port: int = 9092,
        extensions: Sequence[Extension] = (),
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        disk: Disk | None = None,
        threads: Threads | None = None,
        sockets: Sockets | None = None,
        store: CoordinationStore | None = None,
        executor: Executor | None = None,
        measured: bool = False,
    ) -> None:
        """The ports are the system's own where none is given. `store`: opened already, the broker closes it; the
        embedded one otherwise. `executor`: where slow work is done, instead of threads of its own; it is the caller's
        to shut down. `measured`: requests are timed, for `context.metrics`.
        """
        self.config = config
        self.host = host
        self.port = port
        self.listeners: dict[str, Listener] = {}
        """By name, in their order, as they are bound; known once it has started."""
        self._certificates: Certificates | None = None
        self._connection_overrides: tuple[str, dict[str, int]] = ("", {})
        """As configured, and by address."""
        self.metrics = Metrics()
        """What can be measured of it; all that there is once it has started."""
        self.context: BrokerContext
        self.dispatcher: Dispatcher
        self.sasl: SaslService
        self._data_dir = data_dir
        self._extensions = tuple(extensions)
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._disk = disk or SystemDisk()
        self._threads = threads or SystemThreads()
        self._sockets: Sockets = sockets or SystemSockets()
        self._store = store
        self._executor = executor
        self._measured = measured
        self._background = BackgroundTasks()
        self._stopped = asyncio.Event()
        self._undo = contextlib.AsyncExitStack()
        self._stopping = False
        self._metadata: TopicManager
        self._remote: RemoteLogManager | None = None
        self._loaded = False

    @property
    def cluster_id(self) -> str:
        return self.context.identity.cluster_id

    # -- start ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve clients. Raises ConfigError when the data directory or the address cannot be used, or the store that
        it has with others is lost meanwhile.
        """
        try:
            await self._start()
        except BaseException as error:
            self._stopping = True
            await self._undo.aclose()
            if isinstance(error, STORE_LOST):
                raise ConfigError(
                    f"ZooKeeper was lost while this broker started ({error.message}): start it again when ZooKeeper is"
                    " there"
                ) from None
            raise

    async def _start(self) -> None:
        """Each part registers how it is stopped as soon as it is started; `_undo` runs these in reverse."""
        loop = asyncio.get_running_loop()
        config, undo = self.config, self._undo
        network = self._network = self._bind(loop)

        cluster, new_id = None, self._entropy.uuid()
        if self._store is not None:
            undo.push_async_callback(self._store.close)
            known = read_properties(self._disk, self._data_dir)
            if known is None:
                await check_free(self._store, config["node.id"])
            if known is None or known.is_member:
                cluster = await cluster_id(self._store, known=known, new=to_base64(new_id))
        self._directory = DataDirectory(
            self._data_dir,
            config["node.id"],
            new_id,
            self._disk,
            self._clock,
            member_of="" if self._store is not None and cluster is None else cluster,
        )
        slices = self._slices = Slices(self._clock.monotonic)
        undo.push(self._release_directory)
        config.tell(
            {
                "listeners": ",".join(map(str, self.listeners.values())),
                "log.dirs": str(self._directory.path),
                "broker.id": str(config["node.id"]),
            }
        )
        self._clean_start = self._directory.was_clean
        executor = self._executor
        if executor is None:
            executor = ChargingExecutor(self._threads.pool(EXECUTOR_THREADS, "broker"))
            undo.callback(executor.shutdown, wait=True)
        store = self._store
        if store is None:
            store = embedded = EmbeddedStore(self._directory.store_path, self._threads)
            undo.push_async_callback(store.close)
            await embedded.open()
        configs = self._configs = BrokerConfigs(store, config, config["node.id"])
        await configs.load()
        network.limits = self._network_limits()
        window_seconds = config["quota.window.num"] * config["quota.window.size.seconds"]
        network.rates = ConnectionRates(window_seconds / BURST_PART, config["quota.window.size.seconds"])
        self._set_connection_rates()
        self._set_connections_max()
        await self._set_connections_per_address()
        configs.slow_checks.append(self._check_connections_per_address)
        if self._certificates is not None:
            await self._certificates.load()
            configs.slow_checks.append(self._certificates.check)
            configs.listeners.append(self._certificates.reload)
            self._background.keep(self._certificates.run, "new certificates")

        self._incarnation = str(self._entropy.uuid())
        is_alone = store.lease_end() == math.inf
        replication = (
            None if is_alone else Replication(config["node.id"], config, self._clock, self._background)
        )
        if not is_alone:
            self._directory.note_incarnation(self._incarnation)
        keys = [key for extension in self._extensions for key in extension.topic_configs()]
        self._metadata = TopicManager(
            store=store,
            entropy=self._entropy,
            executor=executor,
            directory=self._directory,
            open_log=self._open_log,
            topic_configs=TopicConfigs(
                config.topic_defaults(),
                keys,
                strict=config["log.strict.records"],
                remote_storage=config["remote.log.storage.system.enable"],
                producer_id_expiration_ms=config["producer.id.expiration.ms"],
            ),
            policies=self._extensions,
            default_partitions=config["num.partitions"],
            slices=slices,
            fence=None if is_alone else Fence(store, self._clock),
            replication=replication,
            default_replication_factor=config["default.replication.factor"],
            journals={
                OFFSETS_TOPIC: (config["offsets.topic.replication.factor"], None),
                TRANSACTION_TOPIC: (
                    config["transaction.state.log.replication.factor"],
                    config["transaction.state.log.min.isr"],
                ),
            },
            registration=Registration(
                config["node.id"],
                self._incarnation,
                self._clean_start,
                [(name, *self._advertised(name)) for name in self.listeners],
                config["broker.rack"],
                self._directory.was_kept,
                self._directory.was_synced,
                previous=self._directory.last_incarnations,
            ),
        )
        undo.push_async_callback(self._metadata.close)
        flushing = LogFlushing(config, self._metadata.changes, executor, self._background)
        removals = asyncio.Lock()
        self._deleted_files = DeletedFiles(
            executor, self._clock, self._disk, self._directory.path, self._file_delete_delay_ms, removals
        )
        backups = Backups(
            self._metadata,
            store.copy if isinstance(store, EmbeddedStore) else None,
            self._checkpoint_extensions,
            removals,
            data_dir=self._directory.path,
            disk=self._disk,
            executor=executor,
            clock=self._clock,
            entropy=self._entropy,
        )
        await backups.clear()
        identity = BrokerIdentity(
            config["node.id"], self._directory.cluster_id, config["broker.rack"], self._advertised
        )
        self.context = BrokerContext(
            config=config,
            clock=self._clock,
            entropy=self._entropy,
            store=store,
            data_dir=self._directory.path,
            disk=self._disk,
            threads=self._threads,
            executor=executor,
            metadata=self._metadata,
            identity=identity,
            allocate_producer_id=ProducerIds(store).allocate,
            ages=AgeClock(self._clock),
            background=self._background,
            peers=self._make_peers(network, identity),
            metrics=self.metrics,
            backups=backups,
        )
        undo.callback(self._close_remote_log)
        undo.push_async_callback(self._background.cancel)
        undo.callback(backups.stop)
        authorization = Authorization.configured(config, store, self._clock, slices)
        if authorization is not None:
            undo.callback(authorization.audit.close)
            authorization.audit.start()
            self._background.keep(authorization.audit.run, "what the audit log leaves out")
            await authorization.acls.load()
            authorization.authorizer.judged_as = self._judged_as
            self._background.keep(authorization.acls.run, "what others change of the ACLs")
            self.context.authorizer, self.context.acls = authorization.authorizer, authorization.acls
            if principal := config["metrics.principal"]:
                self.metrics.shown = shown_to(principal, authorization.authorizer)
        self._remote = self._remote_log(store, executor)
        for extension in self._extensions:
            await extension.start(self.context)
            self._background.keep(partial(extension.run, self.context), f"extension {extension.name}")
        try:
            await self._metadata.load(
                open_all=not self._clean_start,
                prepare=None if self._remote is None else self._remote.make_missing,
            )
        except KafkaError as error:
            if error.code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                raise
            raise ConfigError(error.message) from None
        self._loaded = True
        if not is_alone:
            self._note_life()
        configs.checks.append(self._check_config)
        configs.listeners.append(self._config_changed)

        groups = GroupCoordinator(
            config,
            GroupConfigs(store, config),
            self._metadata,
            executor,
            self.context.ages,
            self._clock,
            self._background,
        )
        undo.push_async_callback(groups.stop)
        await self._enter_positions(groups, executor)
        await groups.start()
        self._metadata.deletion_listeners.append(lambda topic: groups.forget_topic(topic.name))
        transactions = TransactionCoordinator(
            config,
            groups,
            self._metadata,
            executor,
            self.context.ages,
            self._clock,
            self._background,
            self.context.peers,
            identity.broker_id,
        )
        undo.push_async_callback(transactions.stop)
        await transactions.start()
        self._background.keep(self._metadata.run, "what happens in the cluster")
        self._background.keep(configs.run, "what others set of the broker configurations")
        self._background.keep(groups.configs.run, "what others set of groups")
        sasl = self.sasl = SaslService(config, store, self._clock, self._entropy, executor, self._background)
        await sasl.start(name for name, listener in self.listeners.items() if listener.protocol.has_sasl)
        if self._store is not None:
            await self._introduce_to_others(executor)
        followers = None
        if replication is not None:
            throttle = Throttle("leader", config["node.id"], config, self._clock.monotonic)
            followers = FollowerFetches(
                self._metadata, slices, throttle, self._entropy.random, self._clock.monotonic
            )
            replication.start(self._metadata, self.context.peers, executor, followers, slices)
        fetches = FetchApi(config, self._metadata, identity, self._clock, self._entropy, slices, followers)
        quotas = QuotaStore(
            store,
            Quotas(
                self._clock.monotonic,
                window_seconds,
                config["controller.quota.window.num"] * config["controller.quota.window.size.seconds"],
                config["quota.window.size.seconds"],
            ),
        )
        await quotas.load()
        self._background.keep(quotas.run, "what others change of the quotas")
        network.connection_delay = quotas.quotas.connected
        declarations = self._declarations(groups, transactions, fetches, configs, quotas, slices)
        audit = None if authorization is None else authorization.audit
        if audit is not None:
            audit.names = {each.key: each.request.__name__.removesuffix("Request") for each in declarations}
        network.answerer = self.dispatcher = Dispatcher(
            declarations, slices, self.context.authorizer, audit, quotas.quotas, self._clock.monotonic
        )
        metrics = self.context.metrics
        collector = BrokerCollector(
            self._metadata,
            self._directory.path,
            self._disk,
            executor,
            self._background,
            network,
            groups,
            transactions,
        )
        metrics.add(BROKER_METRICS, collector.collect)
        if self._measured:
            network.answerer = meter = RequestMeter(self.dispatcher, declarations)
            metrics.add((REQUEST_SECONDS,), meter.collect)
            if measure_turns(loop, turns := LoopMeter()):
                metrics.add((TURN_SECONDS, TURN_CPU_SECONDS), turns.collect)

        if sasl.mechanisms:
            network.answerer = SaslDoor(
                network.answerer,
                sasl.mechanisms,
                loop.time,
                self._clock.time_ms,
                lambda: config["connection.failed.authentication.delay.ms"] / 1000,
            )

        async def drain() -> None:
            if replication is not None and config["controlled.shutdown.enable"]:
                await self._metadata.leave(LEAVING_SECONDS)
            network.stop_listening()
            fetches.stop()
            await groups.stop()
            await transactions.stop()
            await network.drain(network.limits.drain_seconds)
            network.close()
            await network.cancel_requests()

        undo.push_async_callback(drain)
        self._background.keep(network.reap_idle, "close idle connections")
        self._background.keep(self._deleted_files.run, "removal of deleted segments")
        retention = Retention(
            config,
            self._metadata,
            self._extensions,
            self._deleted_files,
            self.context.ages,
            self._background,
            removals,
        )
        self._background.keep(retention.run, "retention")
        if self._remote is not None:
            self._background.keep(self._remote.run, "the remote log")
            self._remote.follow_groups(groups, slices)
            self._background.keep(
                self._remote.run_positions, "the positions of consumer groups in remote storage"
            )
            self._measure_remote_log(self._remote)
        cleaner = LogCleaner(
            config,
            self._metadata,
            self._directory.path,
            executor,
            self.context.ages,
            self._background,
            self._disk,
            self._entropy,
            removals,
        )
        self._metadata.deletion_listeners.append(lambda topic: cleaner.forget_topic(topic.name))
        self._background.keep(cleaner.run, "log cleaner")
        self._background.keep(flushing.run, "flush logs")
        network.start_listening()
        if not is_alone:
            Lookout(config["node.id"], self._metadata, self.context.peers, store, self._background).start()
        logger.info("serving on %s, data in %s", config.layers("listeners")[0][0], self._directory.path)

    def _note_life(self) -> None:
        """What the next start can rely on."""
        self._directory.note_life(
            self._incarnation, synced=LogConfig.parse(self.config.topic_defaults()).flush_messages == 1
        )

    def _bind(self, loop: asyncio.AbstractEventLoop) -> Network:
        """Take the addresses of all listeners. Raises ConfigError."""
        listeners = self.config.listeners((self.host, self.port))
        threads = None
        with_tls = [listener for listener in listeners if listener.protocol.has_tls]
        if with_tls:
            from headrace.broker.net.certificates import Certificates  # and what it reads them with

            threads = self._threads.pool(HANDSHAKE_THREADS, "handshakes")
            self._undo.callback(threads.shutdown, wait=True)
            self._certificates = Certificates(self.config, with_tls, threads)
        network = Network(
            Dispatcher(()), self._network_limits(), loop=loop, handshakes_in=threads, sockets=self._sockets
        )
        self._undo.callback(network.close)
        for listener in listeners:
            encryption = None
            if self._certificates is not None and listener.protocol.has_tls:
                encryption = self._certificates.of(listener)
            try:
                bound = network.bind(
                    listener.host or "0.0.0.0",
                    listener.port,
                    name=listener.name,
                    encryption=encryption,
                    with_sasl=listener.protocol.has_sasl,
                )
            except OSError as error:
                raise ConfigError(
                    f"cannot listen on {listener.host}:{listener.port}: {error.strerror or error}; "
                    "is another broker running there? Choose another port"
                ) from error
            # As a name that clients resolve, localhost might be an address nobody listens on.
            host = bound.host if listener.host in ("localhost", "") else listener.host
            self.listeners[listener.name] = replace(listener, host=host, port=bound.port)
        first = next(iter(self.listeners.values()))
        self.host, self.port = first.host, first.port
        return network

    async def _introduce_to_others(self, executor: Executor) -> None:
        """How connections to other brokers show who this one is. Raises ConfigError."""
        listener = self._inter_broker_listener()
        if listener.protocol is not SecurityProtocol.PLAINTEXT:
            from headrace.broker.net.introductions import InterBroker  # and what it reads certificates with

            introduction = InterBroker(self.config, listener, self._entropy, executor)
            await introduction.check()
            self._network.introduction = introduction

    @property
    def has_certificates(self) -> bool:
        """There is a listener with TLS; known once the broker has started."""
        return self._certificates is not None

    async def reload_certificates(self) -> None:
        """Look now, not in a while, whether files of certificates have changed."""
        if self._certificates is not None:
            await self._certificates.reload()

    def _make_peers(self, network: Network, identity: BrokerIdentity) -> Peers:
        """Raises ConfigError if brokers of a cluster could not reach each other."""
        metadata, listener = self._metadata, self._inter_broker_listener()

        def find(broker_id: int) -> Address | None:
            broker = metadata.image.brokers.get(broker_id)
            where = None if broker is None else address_of(identity, broker, listener.name)
            return None if broker is None or where is None else Address(*where, broker.epoch)

        return Peers(network, find, client_id=f"broker-{identity.broker_id}")

    def _inter_broker_listener(self) -> Listener:
        """The one that brokers of the cluster use; a broker that has one listener has no other. Raises ConfigError."""
        config = self.config
        name = inter_broker_listener(
            config["inter.broker.listener.name"], config["security.inter.broker.protocol"]
        )
        if name in self.listeners:
            return self.listeners[name]
        if self._store is not None and len(self.listeners) > 1:
            raise ConfigError(
                f"inter.broker.listener.name is not set, and listeners has no {name}: say which of"
                f" {', '.join(self.listeners)} the brokers of the cluster use among themselves"
            )
        return next(iter(self.listeners.values()))

    def _set_connection_rates(self) -> None:
        config, name = self.config, "max.connection.creation.rate"
        rate = config[name]
        own = inter_broker_listener(
            config["inter.broker.listener.name"], config["security.inter.broker.protocol"]
        )
        self._network.set_rates(
            None if rate == UNLIMITED else rate,
            {
                listener: config.of_listener(listener, name)
                for listener in self.listeners
                if config.is_set_for(listener, name)
            },
            own if len(self.listeners) > 1 else None,
        )

    def _set_connections_max(self) -> None:
        config, name = self.config, "max.connections"
        most = config[name]
        own = inter_broker_listener(
            config["inter.broker.listener.name"], config["security.inter.broker.protocol"]
        )
        self._network.set_connections_max(
            None if most == UNLIMITED else most,
            {listener: config.of_listener(listener, name) for listener in self.listeners},
            own if len(self.listeners) > 1 else None,
        )

    async def _set_connections_per_address(self) -> None:
        """Raises ConfigError for a host without an address."""
        config, network = self.config, self._network
        if config[OVERRIDES] != self._connection_overrides[0]:
            self._connection_overrides = (
                config[OVERRIDES],
                await addresses_of(config[OVERRIDES], network.sockets),
            )
        network.set_connections_per_address(config[PER_ADDRESS], self._connection_overrides[1])

    async def _check_connections_per_address(self, config: BrokerConfig, names: Collection[str]) -> None:
        if OVERRIDES in names:
            try:
                await addresses_of(config[OVERRIDES], self._network.sockets)
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def _network_limits(self) -> Limits:
        config = self.config
        return Limits(
            request_bytes_max=config["socket.request.max.bytes"],
            idle_seconds_max=config["connections.max.idle.ms"] / 1000,
            backlog=config["socket.listen.backlog.size"],
            send_buffer_bytes=config["socket.send.buffer.bytes"],
            receive_buffer_bytes=config["socket.receive.buffer.bytes"],
            descriptors_max=_descriptors_for_connections(),
            stranger_request_bytes_max=config["sasl.server.max.receive.size"],
        )

    def _check_config(self, config: BrokerConfig) -> None:
        try:
            LogConfig.parse(config.topic_defaults())
            self.sasl.check(config)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        self._metadata.check_defaults(config.topic_defaults())

    async def _config_changed(self) -> None:
        """Those that are not read where they are used."""
        config = self.config
        self._network.limits = self._network_limits()
        self._set_connection_rates()
        self._set_connections_max()
        try:
            await self._set_connections_per_address()
        except ConfigError as error:
            logger.error("connections per address stay as they were: %s", error)
        if self._metadata.is_loaded and not self._metadata.is_alone:
            self._note_life()
        self.sasl.refresh()
        await self._metadata.defaults_changed(config.topic_defaults(), config["producer.id.expiration.ms"])

    def _declarations(
        self,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        fetches: FetchApi,
        configs: BrokerConfigs,
        quotas: QuotaStore,
        slices: Slices,
    ) -> list[ApiDeclaration]:
        context, config, metadata = self.context, self.config, self._metadata
        identity, clock, entropy = context.identity, context.clock, context.entropy
        executor = context.executor
        allocate_producer_id = context.allocate_producer_id
        patterns = PatternResolver(groups, metadata, executor, clock, self._background)
        declarations = [
            *ProduceApi(transactions, metadata, identity, executor, slices).declarations(),
            *fetches.declarations(),
            *OffsetsApi(metadata, executor).declarations(),
            *MetadataApi(config, metadata, identity).declarations(),
            *TopicsApi(config, metadata, slices).declarations(),
            *ConfigsApi(config, configs, groups.configs, metadata, identity, slices).declarations(),
            *LogDirsApi(metadata, context.data_dir, executor, slices, context.disk).declarations(),
            *ReplicasApi(metadata, slices).declarations(),
            *QuotasApi(quotas).declarations(),
            *AclsApi(context.acls, slices).declarations(),
            *SaslApi().declarations(),
            *UsersApi(self.sasl.users).declarations(),
            *DelegationTokensApi(self.sasl.tokens, clock, entropy, executor).declarations(),
            *BrokersApi(metadata).declarations(),
            *not_offered.declarations(),
            *ProducerIdsApi(transactions, allocate_producer_id).declarations(),
            *group_apis(groups, transactions, patterns, metadata, identity, clock, entropy, slices),
            *TransactionHandlers(
                transactions, metadata, allocate_producer_id, executor, clock, slices
            ).declarations(),
        ]
        for extension in self._extensions:
            declarations.extend(extension.apis())
        declarations.extend(ApiVersionsApi(lambda: declarations, metadata).declarations())
        return declarations

    def _judged_as(self, topic: str) -> str:
        for extension in self._extensions:
            topic = extension.judged_as(topic)
        return topic

    def _open_log(self, partition: Partition) -> PartitionLog:
        topic, index = partition.topic, partition.index
        if self._remote is not None:
            self._remote.check_known(partition)
        new = self._directory.make_partition_dir(topic, index)
        log = PartitionLog.open(
            new or self._directory.prepare_partition_dir(topic, index),
            self._metadata.topic_configs.log_config(partition.topic),
            clock=self._clock,
            disk=self._disk,
            background=self.context.executor.submit,
            discard=self._deleted_files.remove_later,
            is_new=new is not None,
            companions=(PARTITION_METADATA,),
        )
        if self._remote is not None:
            partition.remote = self._remote.of(partition, log)
        return log

    def _remote_log(self, store: CoordinationStore, executor: Executor) -> RemoteLogManager | None:
        """None without remote storage. Raises ConfigError."""
        config = self.config
        if not config["remote.log.storage.system.enable"]:
            if self._disk.size(self._directory.path / FROM_REMOTE_STORAGE) is not None:
                raise ConfigError(
                    f"the data directory {self._directory.path} was restored from remote storage, and its records are "
                    "there: start it with remote.log.storage.system.enable=true and that remote.log.storage.directory"
                )
            return None
        location = config["remote.log.storage.directory"]
        if not location:
            raise ConfigError(
                "remote.log.storage.system.enable is true, and remote.log.storage.directory does not say where to: set "
                "it to a directory or a URL, such as s3://bucket/path"
            )
        from headrace.broker.objects.files import open_files
        from headrace.broker.remote.manager import RemoteLogManager

        try:
            files = open_files(location, self._disk, self._entropy)
        except (ValueError, OSError) as error:
            raise ConfigError(f"remote.log.storage.directory: {error}") from error
        return RemoteLogManager(
            config,
            files,
            location,
            self._metadata,
            self._extensions,
            store=store,
            disk=self._disk,
            ages=self.context.ages,
            clock=self._clock,
            entropy=self._entropy,
            threads=self._threads,
            executor=executor,
            background=self._background,
            directory=self._directory,
        )

    async def _enter_positions(self, groups: GroupCoordinator, executor: Executor) -> None:
        """Of a data directory that was restored from remote storage. Raises ConfigError."""
        if self._disk.size(self._directory.path / POSITIONS_PENDING) is None:
            return
        from headrace.broker.remote.cluster_copy import ClusterCopyError
        from headrace.broker.remote.entering import enter

        try:
            entered = await enter(
                self._disk, self._directory.path, groups, self._metadata, self._clock, executor
            )
        except (KafkaError, OSError, ClusterCopyError) as error:
            raise ConfigError(
                f"the positions of consumer groups that remote storage had cannot be entered: {error}; start again "
                f"when that is mended, or without them: remove {self._directory.path / POSITIONS_PENDING}"
            ) from error
        logger.info("%s", entered)

    def _measure_remote_log(self, remote: RemoteLogManager) -> None:
        from headrace.broker.metrics.remote_log import REMOTE_METRICS, collect

        self.context.metrics.add(REMOTE_METRICS, partial(collect, remote))

    def _close_remote_log(self) -> None:
        if self._remote is not None:
            self._remote.close()

    async def _checkpoint_extensions(self, folder: Path) -> None:
        for extension in self._extensions:
            await extension.checkpoint(folder / extension.name)

    def _file_delete_delay_ms(self, topic: str, index: int) -> int | None:
        partition = self._metadata.find_partition(topic, index)
        if partition is None:
            return None
        return self._metadata.topic_configs.log_config(partition.topic).file_delete_delay_ms

    def _advertised(self, name: str) -> tuple[str, int]:
        listener = self.listeners.get(name) or next(iter(self.listeners.values()))
        if listener.advertised is not None:
            host, port = listener.advertised
            return host, port or listener.port
        if listener.host in WILDCARD_HOSTS:
            return self._sockets.host_name(), listener.port
        return listener.host, listener.port

    # -- stop ----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop cleanly; see the module's contract for the order. Safe to call twice."""
        if self._stopping:
            return
        self._stopping = True
        await self._undo.aclose()
        self._stopped.set()
        logger.info("stopped")

    def _release_directory(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Clean: every log was closed well, or none was opened since the last time they were; and everything else was
        stopped without an error.
        """
        clean = self._clean_start and error is None
        if self._loaded:
            failed = [
                partition for partition in self._metadata.all_partitions() if partition.failure is not None
            ]
            for follower in self._metadata.followers_here():
                if follower.failure is not None:
                    follower.partition.failure = follower.failure
                    failed.append(follower.partition)
            clean = error is None and not failed
            if failed:
                first = failed[0]
                logger.warning(
                    "%d of %d partitions were not closed cleanly, first %s-%d (%s): the next start recovers them",
                    len(failed),
                    len(self._metadata.all_partitions()),
                    first.topic.name,
                    first.index,
                    first.failure,
                )
        self._slices.collector.end()
        self._directory.close(clean=clean)

    async def run_forever(self) -> None:
        """Wait until `stop` is called elsewhere. What fails in the background never stops the broker.

        The process is taken to be the broker's own: what start-up left behind (modules, code, topics) is never looked
        at again by the garbage collector, whose full passes would otherwise stop everything for tens of milliseconds.
        Whoever starts the process may have switched the collector off until then: it is on afterwards. The compiler of
        the kernels is taken out of memory when it has been used.
        """
        gc.collect()
        gc.freeze()
        gc.enable()
        compiler, loop = CompilerMemory(), asyncio.get_running_loop()
        while not self._stopped.is_set():
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._stopped.wait()
            except TimeoutError:
                if not self._stopping:  # the executor ends before the rest
                    await loop.run_in_executor(self._executor, compiler.give_back)
