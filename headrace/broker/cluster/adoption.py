"""Make the data directory of a single broker the first member of a new cluster, while no broker uses it.

The content of its embedded store is written into the cluster's store, under an empty path. Logs and files of extensions
stay where they are. Left out: registrations of brokers and the journal of changes, which start again.

The adoption takes effect when `meta.properties` names the directory a member: before that the broker is alone, whatever
the store holds, and afterwards the store has everything. Until its end the node `/cluster/adoption` exists, so that no
broker takes half-written content for a cluster. An adoption that starts again first removes that content; if only the
end is missing, the start of the broker completes it. So it can be interrupted anywhere and repeated.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.metadata.membership import Adoption, adoption_under_way, cluster_id, decode_adoption
from headrace.broker.partitions.data_dir import (
    FROM_REMOTE_STORAGE,
    LAYOUT_VERSION,
    POSITIONS_PENDING,
    Properties,
    is_clean,
    lock_directory,
    read_properties,
    store_of,
    write_properties,
)
from headrace.broker.runtime.ports import CoordinationStore, CreateNode, DeleteNode, NodeExistsError, SetNode
from headrace.broker.stores.embedded import StoreImage, read_store

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import Disk, Entropy

NODE_BYTES_MAX: Final = 900_000
"""Maximum size of a node. ZooKeeper's limit for requests and answers is 1,048,575 bytes."""
NAME_BYTES: Final = 4
"""Bytes of each child in a list of children, in addition to its name."""
TRANSACTION_BYTES: Final = 400_000
TRANSACTION_NODES: Final = 500
_LEFT_OUT: Final = ("/changes", "/controller", "/brokers/ids", "/brokers/live", "/brokers/seen", "/cluster")
_OWN: Final = ("zookeeper",)
"""ZooKeeper's own nodes at the root."""


class Adopted(msgspec.Struct, frozen=True):
    """The result: counts of topics and their partitions, of nodes and their bytes. `is_new`: the directory was not a
    member.
    """

    cluster_id: str
    node_id: int
    was_clean: bool
    is_new: bool
    topics: int = 0
    partitions: int = 0
    nodes: int = 0
    size_bytes: int = 0


async def adopt(
    path: Path, store: CoordinationStore, disk: Disk, entropy: Entropy, *, node_id: int | None, dry_run: bool
) -> Adopted:
    """Make a data directory that of the first broker of a cluster, whose `store` is empty. `node_id`: the directory's
    expected id, or None. `dry_run`: check whether that is possible, and change nothing.

    Raises ConfigError; the broker is still alone then. A repeated call completes the adoption.
    """
    if not disk.is_directory(path):
        raise ConfigError(f"the data directory {path} does not exist")
    lock = lock_directory(disk, path)
    try:
        properties = read_properties(disk, path)
        if properties is None:
            raise ConfigError(
                f"{path} is not the data directory of a broker: a new broker joins a cluster by"
                " `headrace serve --zookeeper ...`"
            )
        if node_id not in (None, properties.node_id):
            raise ConfigError(
                f"the data directory {path} belongs to broker {properties.node_id}, not {node_id}: its id"
                f" cannot change, so set node.id={properties.node_id} or leave it out"
            )
        found = Adopted(
            properties.cluster_id, properties.node_id, is_clean(disk, path), not properties.is_member
        )
        if properties.is_member:
            if not dry_run:
                await cluster_id(store, known=properties, new="")
            await _check_same(store, properties)
            return found
        _check_directory(path, disk, properties)
        image = _read(path, properties)
        found = replace(
            found,
            topics=sum(tree.is_topic(each) for each, _, _ in image.nodes),
            partitions=sum(
                tree.decode_topic(data).partition_count
                for each, data, _ in image.nodes
                if tree.is_topic(each)
            ),
            nodes=len(image.nodes),
            size_bytes=sum(len(data) for _, data, _ in image.nodes),
        )
        begun = await _begun(store, properties)
        if dry_run:
            return found
        adoption = Adoption(properties.cluster_id, properties.node_id, str(entropy.uuid()))
        await _begin(store, adoption, begun)
        for operations in _packed(image):
            await store.transact(operations)
        adopted = replace(properties, is_member=True, adoption=adoption.token)
        write_properties(disk, path, adopted)
        await cluster_id(store, known=adopted, new="")
        return found
    finally:
        lock.release()


def _check_directory(path: Path, disk: Disk, properties: Properties) -> None:
    if properties.version < LAYOUT_VERSION:
        raise ConfigError(
            f"the data directory {path} has an earlier layout ({properties.version}): start a broker of this version"
            " with it once, without a cluster, and stop it"
        )
    if any(disk.size(path / name) is not None for name in (FROM_REMOTE_STORAGE, POSITIONS_PENDING)):
        raise ConfigError(
            f"the data directory {path} was restored from remote storage, and the restore is not complete:"
            " start it once without a cluster, and stop it"
        )
    if disk.size(store_of(path)) is None:
        raise ConfigError(f"the data directory {path} has no {store_of(path).name}; restore it from a backup")


def _read(path: Path, properties: Properties) -> StoreImage:
    """Return the content for the cluster's store, parents first."""
    try:
        image = read_store(store_of(path))
    except sqlite3.Error as error:
        raise ConfigError(f"{store_of(path)} cannot be read ({error}); restore it from a backup") from error
    nodes = []
    children: Counter[str] = Counter()
    for node, data, version in sorted(image.nodes):
        if any(node == each or node.startswith(f"{each}/") for each in _LEFT_OUT):
            continue
        if len(data) > NODE_BYTES_MAX:
            raise ConfigError(
                f"{node} of {store_of(path)} has {len(data):,} bytes; a ZooKeeper node has at most {NODE_BYTES_MAX:,}"
            )
        parent, _, name = node.rpartition("/")
        children[parent] += len(name.encode()) + NAME_BYTES
        if node.startswith(f"{tree.DELETED}/"):
            topic, holders = tree.decode_deletion(data)
            data = tree.encode_deletion(topic, [properties.node_id] if holders is None else holders)
        elif node.startswith(f"{tree.TOPICS}/") and "/states/" in node:
            named = {each for state in tree.decode_states(data) for each in state.replicas}
            if named != {properties.node_id}:
                raise ConfigError(
                    f"{node} of {store_of(path)} names the brokers {sorted(named)}, but the directory belongs to"
                    f" broker {properties.node_id} alone; restore it from a backup"
                )
        nodes.append((node, data, version))
    for parent, size in children.items():
        if size > NODE_BYTES_MAX:
            raise ConfigError(
                f"the names below {parent} have {size:,} bytes; a list in ZooKeeper has at most {NODE_BYTES_MAX:,}"
            )
    return StoreImage(tuple(nodes), ())


async def _check_same(store: CoordinationStore, properties: Properties) -> None:
    node = await store.get(tree.CLUSTER_ID)
    there = "no cluster" if node is None else f"the cluster {node.data.decode()}"
    if node is None or node.data.decode() != properties.cluster_id:
        raise ConfigError(
            f"the data directory already belongs to broker {properties.node_id} of the cluster {properties.cluster_id},"
            f" but this address and path of ZooKeeper has {there}"
        )


async def _begun(store: CoordinationStore, properties: Properties) -> int | None:
    """Return the version of the node of an interrupted adoption of this directory. Raises ConfigError if the store is
    used otherwise.
    """
    node, known = await store.get_many([tree.ADOPTION, tree.CLUSTER_ID])
    if node is not None:
        before = decode_adoption(node)
        if (before.cluster_id, before.node_id) != (properties.cluster_id, properties.node_id):
            raise ConfigError(adoption_under_way(before))
        return node.version
    if known is not None:
        brokers = ", ".join(await store.children(tree.KNOWN_BROKERS)) or "none"
        raise ConfigError(
            f"this address and path of ZooKeeper already has the cluster {known.data.decode()} (its brokers:"
            f" {brokers}), but adoption needs an empty path: mirror the topics there, or choose another path"
        )
    names = [name for name in await store.children("/") if name not in _OWN]
    if names:
        raise ConfigError(
            f"the path in ZooKeeper is not empty ({', '.join(names[:5])}): choose another one, as in host:port/headrace"
        )
    return None


async def _begin(store: CoordinationStore, adoption: Adoption, begun: int | None) -> None:
    """Claim the path in the store, and remove what an interrupted adoption wrote."""
    if begun is None:
        identity = CreateNode(tree.CLUSTER_ID, adoption.cluster_id.encode())
        try:
            await store.transact(
                [CreateNode("/cluster"), identity, CreateNode(tree.ADOPTION, adoption.encode())]
            )
        except NodeExistsError:
            raise ConfigError(
                "another cluster was created at this address and path of ZooKeeper just now: choose another path"
            ) from None
        return
    await store.transact([SetNode(tree.ADOPTION, adoption.encode(), begun)])
    for name in await store.children("/"):
        if name != "cluster" and name not in _OWN:
            await _remove(store, f"/{name}")


async def _remove(store: CoordinationStore, path: str) -> None:
    for name in await store.children(path):
        await _remove(store, f"{path}/{name}")
    node = await store.get(path)
    if node is not None:
        await store.transact([DeleteNode(path, node.version)])


def _packed(image: StoreImage) -> Iterator[list[CreateNode]]:
    some: list[CreateNode] = []
    size = 0
    for path, data, _ in image.nodes:
        if some and (size + len(data) > TRANSACTION_BYTES or len(some) == TRANSACTION_NODES):
            yield some
            some, size = [], 0
        some.append(CreateNode(path, data))
        size += len(data)
    if some:
        yield some
