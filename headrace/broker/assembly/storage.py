"""The broker's storage: its data directory, the coordination store, and the configurations in it.

Starts: the lock on the data directory, threads for slow work, the embedded store if the broker is alone.
Stops:  the embedded store, the threads, the data directory (marked clean if every log was closed well), and last the
        store of a cluster.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.metadata.broker_configs import BrokerConfigs
from headrace.broker.metadata.membership import check_free, cluster_id
from headrace.broker.partitions.data_dir import DataDirectory, read_properties, to_base64
from headrace.broker.runtime.slices import Slices
from headrace.broker.runtime.usage import ChargingExecutor
from headrace.broker.stores.embedded import EmbeddedStore

if TYPE_CHECKING:
    from headrace.broker.assembly.network import Listeners
    from headrace.broker.assembly.ports import Ports
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import CoordinationStore

logger = logging.getLogger("headrace.server")

EXECUTOR_THREADS: Final = 4
"""Threads for recovery, RocksDB and Arrow, which release the GIL. More threads than cores gain nothing."""


class Storage:
    """The opened storage of one broker. `open` makes one."""

    def __init__(self, directory: DataDirectory, slices: Slices) -> None:
        self.directory = directory
        self.slices = slices
        self.executor: Executor
        self.store: CoordinationStore
        self.configs: BrokerConfigs
        self.was_clean = directory.was_clean
        """Whether the last stop was clean, so that no log needs recovery."""
        self.loaded: LocalReplicas | None = None
        """The replicas whose logs were loaded; None before."""

    @classmethod
    async def open(
        cls, config: BrokerConfig, data_dir: Path, ports: Ports, listeners: Listeners, undo: AsyncExitStack
    ) -> Storage:
        """Open the data directory, the store and the configurations. Raises ConfigError for one that is not usable."""
        directory = await _open_directory(config, data_dir, ports, undo)
        storage = cls(directory, Slices(ports.clock.monotonic))
        undo.push(storage._release)
        config.tell(
            {
                "listeners": ",".join(map(str, listeners.by_name.values())),
                "log.dirs": str(directory.path),
                "broker.id": str(config["node.id"]),
            }
        )
        storage.executor = _open_executor(ports, undo)
        storage.store = await _open_store(directory, ports, undo)
        storage.configs = BrokerConfigs(storage.store, config, config["node.id"])
        await storage.configs.load()
        return storage

    @property
    def is_alone(self) -> bool:
        """Return whether the broker has no cluster: no other process uses its store."""
        return self.store.lease_end() == math.inf

    def _release(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close the data directory. It is clean if everything stopped without an error and every log was closed well.
        If no log was loaded, it is as clean as at the start.
        """
        clean = self.was_clean if self.loaded is None else _closed_well(self.loaded)
        self.slices.collector.end()
        self.directory.close(clean=clean and error is None)


async def _open_directory(
    config: BrokerConfig, data_dir: Path, ports: Ports, undo: AsyncExitStack
) -> DataDirectory:
    """Open and lock the data directory; in a cluster, only one that belongs to it."""
    store, new_id = ports.store, ports.entropy.uuid()
    cluster = None
    if store is not None:
        undo.push_async_callback(store.close)
        known = read_properties(ports.disk, data_dir)
        if known is None:
            await check_free(store, config["node.id"])
        if known is None or known.is_member:
            cluster = await cluster_id(store, known=known, new=to_base64(new_id))
    return DataDirectory(
        data_dir,
        config["node.id"],
        new_id,
        ports.disk,
        ports.clock,
        member_of="" if store is not None and cluster is None else cluster,
    )


def _open_executor(ports: Ports, undo: AsyncExitStack) -> Executor:
    if ports.executor is not None:
        return ports.executor
    executor = ChargingExecutor(ports.threads.pool(EXECUTOR_THREADS, "broker"))
    undo.callback(executor.shutdown, wait=True)
    return executor


async def _open_store(directory: DataDirectory, ports: Ports, undo: AsyncExitStack) -> CoordinationStore:
    if ports.store is not None:
        return ports.store
    store = EmbeddedStore(directory.store_path, ports.threads)
    undo.push_async_callback(store.close)
    await store.open()
    return store


def _closed_well(replicas: LocalReplicas) -> bool:
    failed = [partition for partition in replicas.all_partitions() if partition.failure is not None]
    for follower in replicas.followers():
        if follower.failure is not None:
            follower.partition.failure = follower.failure
            failed.append(follower.partition)
    if failed:
        first = failed[0]
        logger.warning(
            "%d of %d partitions were not closed cleanly, first %s-%d (%s): the next start recovers them",
            len(failed),
            len(replicas.all_partitions()),
            first.topic.name,
            first.index,
            first.failure,
        )
    return not failed
