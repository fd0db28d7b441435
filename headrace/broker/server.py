"""The composition root: a whole broker put together from its parts, started and stopped in one place.

`Broker._start` states the order in which the parts start; `broker.assembly` has one module for each. `start` returns
when clients are served. A part registers how it is stopped as soon as it is started, so that `stop`, and a start that
fails, stop what has been started, in reverse:

- The broker leaves: other brokers lead what it led, waiting requests are answered, requests under way end.
- Background tasks and extensions are cancelled.
- Partitions are flushed and closed.
- The store and the data directory are closed; the directory is marked clean if every log was closed well.

A broker that was killed starts again: its topics are those of the store, its records those of the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.assembly import background, security
from headrace.broker.assembly.apis import Apis, answer, assemble_apis
from headrace.broker.assembly.cluster import Cluster
from headrace.broker.assembly.coordinators import Coordinators, start_coordinators
from headrace.broker.assembly.network import Listeners
from headrace.broker.assembly.ports import Ports
from headrace.broker.assembly.storage import Storage
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import Listener
from headrace.broker.context import BrokerContext
from headrace.broker.extension import Extension
from headrace.broker.metadata.tree import UNREADABLE
from headrace.broker.metrics.model import Metrics
from headrace.broker.net.sockets import SystemSockets
from headrace.broker.partitions.data_dir import store_of
from headrace.broker.runtime.background import BackgroundTasks
from headrace.broker.runtime.compiler_memory import INTERVAL_SECONDS, CompilerMemory
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import STORE_LOST, SystemClock, SystemEntropy, SystemThreads
from headrace.broker.security.sasl.users import DECOY
from headrace.broker.stores.embedded import without_json
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.api.dispatch import Dispatcher
    from headrace.broker.net.listener import Network
    from headrace.broker.runtime.ports import Clock, CoordinationStore, Disk, Entropy, Sockets, Threads
    from headrace.broker.security.sasl.service import SaslService

logger = logging.getLogger("headrace.server")

LEAVING_SECONDS: Final = 5.0
"""Time in which other brokers take over the partitions of a stopping broker, in seconds; it serves clients meanwhile.
"""


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
        """Ports that are None are those of the system. `store`: the open store of a cluster, which the broker
        closes; without it the broker has an embedded one. `executor`: runs slow work, instead of threads of the broker;
        the caller shuts it down. `measured`: time requests, for `context.metrics`.
        """
        self.config = config
        self.host = host
        self.port = port
        self.metrics = Metrics()
        """The metrics of this broker; complete once it has started."""
        self.context: BrokerContext
        self.sasl: SaslService
        self._data_dir = data_dir
        self._extensions = tuple(extensions)
        self._ports = Ports(
            clock=clock or SystemClock(),
            entropy=entropy or SystemEntropy(),
            disk=disk or SystemDisk(),
            threads=threads or SystemThreads(),
            sockets=sockets or SystemSockets(),
            store=store,
            executor=executor,
        )
        self._measured = measured
        self._background = BackgroundTasks()
        self._stopped = asyncio.Event()
        self._undo = contextlib.AsyncExitStack()
        self._stopping = False
        self._listeners: Listeners | None = None
        self._storage: Storage | None = None
        self._cluster: Cluster
        self._coordinators: Coordinators
        self._apis: Apis

    # -- start ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve clients. Raises ConfigError when the data directory or an address cannot be used, or when the store of
        the cluster is lost during the start.
        """
        try:
            await self._start()
        except BaseException as error:
            self._stopping = True
            await self._undo.aclose()
            if isinstance(error, STORE_LOST):
                raise ConfigError(
                    f"the coordination store was lost while this broker started ({error.message}): start it again when"
                    " that is there"
                ) from None
            if isinstance(error, KafkaError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                raise ConfigError(f"{self._data_dir} cannot be used: {error.message}") from error
            if isinstance(error, sqlite3.DatabaseError):
                raise ConfigError(
                    f"{store_of(self._data_dir)} cannot be used ({error}); if it is damaged, restore it from a backup"
                ) from error
            if isinstance(error, UNREADABLE) and self._ports.store is None:
                self._blame_store(error)
            raise

    def _blame_store(self, error: BaseException) -> None:
        """Raises ConfigError if nodes of the embedded store are not JSON, which a start then failed by."""
        path = store_of(self._data_dir)
        damaged = (
            [each for each in without_json(path) if each != DECOY] if self._ports.disk.size(path) else []
        )
        if damaged:
            raise ConfigError(
                f"{path} has nodes that cannot be read: {', '.join(damaged[:10])}; restore it from a backup"
            ) from error

    async def _start(self) -> None:
        """Start the parts in their order. `_undo` stops them in reverse."""
        config, ports, undo, extensions = self.config, self._ports, self._undo, self._extensions
        listeners = self._listeners = Listeners.bind(config, (self.host, self.port), ports, undo)
        self.host, self.port = listeners.first.host, listeners.first.port
        storage = self._storage = await Storage.open(config, self._data_dir, ports, listeners, undo)
        await listeners.configure(storage.configs, self._background)
        cluster = self._cluster = await Cluster.assemble(
            config, ports, storage, listeners, extensions, self._background, self.metrics, undo
        )
        context = self.context = cluster.context
        audit = await security.start_authorization(context, storage.slices, extensions, undo)
        cluster.open_remote_log()
        await self._start_extensions()
        await cluster.load()
        coordinators = self._coordinators = await start_coordinators(context, undo)
        background.follow_the_store(context, storage, coordinators)
        sasl = self.sasl = await security.start_authentication(context, storage.configs, listeners)
        await listeners.introduce_to_others(context.executor)
        followers = cluster.replicate()
        quotas = await security.start_quotas(context, listeners)
        apis = self._apis = assemble_apis(
            context, storage, coordinators, sasl, quotas, followers, audit, extensions
        )
        answer(listeners, apis, context, coordinators, sasl, measured=self._measured)
        undo.push_async_callback(self._leave)
        background.start_background_work(cluster, storage, listeners, coordinators, extensions)
        listeners.network.start_listening()
        background.watch_other_brokers(context)
        logger.info("serving on %s, data in %s", config.layers("listeners")[0][0], storage.directory.path)

    async def _start_extensions(self) -> None:
        for extension in self._extensions:
            await extension.start(self.context)
            self._background.keep(partial(extension.run, self.context), f"extension {extension.name}")

    # -- state after the start -----------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self.context.identity.cluster_id

    @property
    def listeners(self) -> dict[str, Listener]:
        """The listeners by name, in the order of the configuration, as they are bound."""
        return {} if self._listeners is None else self._listeners.by_name

    @property
    def network(self) -> Network:
        if self._listeners is None:
            raise RuntimeError("the broker has not been started")
        return self._listeners.network

    @property
    def dispatcher(self) -> Dispatcher:
        return self._apis.dispatcher

    @property
    def is_loaded(self) -> bool:
        """Return whether the logs of this broker have been loaded."""
        return self._storage is not None and self._storage.loaded is not None

    async def reload_certificates(self) -> None:
        """Read changed files of certificates now, instead of at the next check."""
        if self._listeners is not None and self._listeners.certificates is not None:
            await self._listeners.certificates.reload()

    # -- stop ----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop cleanly, in the order that the module's docstring states. Safe to call twice."""
        if self._stopping:
            return
        self._stopping = True
        await self._undo.aclose()
        self._stopped.set()
        logger.info("stopped")

    async def _leave(self) -> None:
        """Hand leadership to other brokers, answer waiting requests, and end every connection."""
        network = self.network
        if self._cluster.replication is not None and self.config["controlled.shutdown.enable"]:
            await self.context.brokers.leave(LEAVING_SECONDS)
        network.stop_listening()
        self._apis.fetches.stop()
        await self._coordinators.stop()
        await network.drain(network.limits.drain_seconds)
        network.close()
        await network.cancel_requests()

    async def run_forever(self) -> None:
        """Wait until `stop` is called elsewhere. A failure of background work does not stop the broker.

        The broker owns the process. It exempts the objects that exist after the start (modules, code, topics) from
        garbage collection: a full one over them would stop everything for tens of milliseconds. The compiler of the
        kernels is unloaded after use.
        """
        assert self._storage is not None
        self._storage.slices.collector.own_process()
        compiler, loop = CompilerMemory(), asyncio.get_running_loop()
        while not self._stopped.is_set():
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._stopped.wait()
            except TimeoutError:
                if not self._stopping:  # the executor ends before the rest
                    await loop.run_in_executor(self._ports.executor, compiler.give_back)
