"""The data directory of several broker processes on one machine (`headrace serve --processes`).

.lock             locked by the supervisor
meta.properties   cluster.processes: the number of processes; node.id: that of the first
meta.db           the coordination store of all processes, which the supervisor's coordinator serves
broker-<id>/      the data directory of one process, a member of the cluster in the store

More processes may be added at any start. A number is lowered only if the processes that would go hold no partition;
they are then forgotten. A single broker's directory becomes the first process's if it is moved to its folder: its
topics are adopted (`broker.cluster.adoption`), as into ZooKeeper.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headrace.broker.cluster.adoption import adopt
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.metadata.membership import cluster_id
from headrace.broker.metadata.nodes import modify, modify_all
from headrace.broker.metadata.reading import read_image
from headrace.broker.partitions.data_dir import (
    LAYOUT_VERSION,
    Properties,
    lock_directory,
    make_directory,
    read_properties,
    store_of,
    to_base64,
    write_properties,
)
from headrace.broker.runtime.ports import StoreError
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.runtime.ports import CoordinationStore, Disk, DiskLock, Entropy

_FOLDER: Final = "broker-"


def folder_of(path: Path, broker_id: int) -> Path:
    """Return the data directory of one process."""
    return path / f"{_FOLDER}{broker_id}"


def folders_of(disk: Disk, path: Path) -> list[Path]:
    """Return the data directories of all processes of a directory; none if it is not one of processes. Raises
    ConfigError.
    """
    found = read_properties(disk, path)
    ids = [] if found is None else range(found.node_id, found.node_id + found.processes)
    return [folder_of(path, broker_id) for broker_id in ids]


class ProcessesRoot:
    """The locked directory and its open store. `open` makes one."""

    def __init__(self, lock: DiskLock, store: EmbeddedStore) -> None:
        self.store = store
        self._lock = lock

    @classmethod
    async def open(cls, path: Path, first_id: int, count: int, disk: Disk, entropy: Entropy) -> ProcessesRoot:
        """Open the directory for `count` processes. Raises ConfigError, and changes nothing then."""
        make_directory(disk, path)
        lock = lock_directory(disk, path)
        store: EmbeddedStore | None = None
        try:
            properties = read_properties(disk, path)
            if properties is not None:
                _check(path, properties, first_id)
            store = EmbeddedStore(store_of(path))
            await store.open()
            if properties is None:
                properties = await _begin(path, first_id, count, store, disk, entropy)
            elif count < properties.processes:
                await _forget(store, range(first_id + count, first_id + properties.processes), count, path)
            if properties != (wanted := replace(properties, processes=count)):
                write_properties(disk, path, wanted)
        except BaseException as error:
            if store is not None:
                await store.close()
            lock.release()
            if isinstance(error, sqlite3.Error | StoreError | KafkaError):
                raise ConfigError(f"{store_of(path)} cannot be used: {error}") from error
            raise
        return cls(lock, store)

    async def close(self) -> None:
        await self.store.close()
        self._lock.release()


def _check(path: Path, properties: Properties, first_id: int) -> None:
    if not properties.processes and properties.is_member:
        raise ConfigError(
            f"the data directory {path} belongs to broker {properties.node_id} of the cluster"
            f" {properties.cluster_id}, whose topics are in ZooKeeper: start it without --processes"
        )
    if not properties.processes:
        raise ConfigError(
            f"the data directory {path} belongs to a single broker: start it without --processes. To spread it over"
            f" processes, move it into a new directory as the first one's, and start that:"
            f" mkdir NEW && mv {path} NEW/{_FOLDER}{properties.node_id}"
        )
    if properties.node_id != first_id:
        raise ConfigError(
            f"the first process of the data directory {path} is broker {properties.node_id}, not {first_id}; set"
            f" node.id={properties.node_id}"
        )


async def _begin(
    path: Path, first_id: int, count: int, store: EmbeddedStore, disk: Disk, entropy: Entropy
) -> Properties:
    """Return the properties of a new directory. A single broker in the first process's folder is adopted; if that was
    interrupted, it is continued.
    """
    first = folder_of(path, first_id)
    if read_properties(disk, first) is None:
        found = await cluster_id(store, known=None, new=to_base64(entropy.uuid()))
    else:
        found = (await adopt(first, store, disk, entropy, node_id=first_id, dry_run=False)).cluster_id
    disk.sync_above(path)
    return Properties(LAYOUT_VERSION, found, first_id, is_member=True)


async def _forget(store: CoordinationStore, gone: Iterable[int], count: int, path: Path) -> None:
    """Forget processes that hold no partition. Raises ConfigError if one holds some."""
    image = await read_image(store)
    held = dict.fromkeys(gone, 0)
    for entry in image.topics.values():
        for state in entry.states():
            for broker_id in held.keys() & set(state.replicas):
                held[broker_id] += 1
    for broker_id, partitions in held.items():
        if partitions:
            raise ConfigError(
                f"broker {broker_id} in {path} holds replicas of partitions ({partitions}), and --processes {count}"
                f" leaves it out: start with --processes {len(held) + count}, move them with"
                f" `headrace cluster drain {broker_id}`, and start again"
            )
    for broker_id in held:
        deleted = [f"{tree.DELETED}/{topic_id}" for topic_id in await store.children(tree.DELETED)]
        await modify_all(store, deleted, partial(tree.deletion_without, broker_id=broker_id))
        await modify(store, f"{tree.KNOWN_BROKERS}/{broker_id}", lambda _: None)
