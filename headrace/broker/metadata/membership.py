"""A broker's nodes in the coordination store: its registration while it is alive, and that of the controller.

Both are ephemeral nodes of its session. The controller's is made together with the next controller epoch, so that later
writes of an earlier controller are refused. The nodes of a killed process stay until its session is over: its next
start waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.metadata.features import LEVELS
from headrace.broker.metadata.image import BrokerImage, Registered
from headrace.broker.metadata.nodes import OUTDATED, modify
from headrace.broker.runtime.ports import (
    CoordinationStore,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    SetNode,
    StoreOperation,
    StoreUnavailableError,
)
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.partitions.data_dir import Properties

logger = logging.getLogger("headrace.metadata")

WAIT_SECONDS: Final = 30.0
"""Seconds to wait for the end of a former process's session; longer than any session should be."""


class Claim(msgspec.Struct, frozen=True):
    """The controller's epoch, and the version of its node."""

    epoch: int
    version: int


class Registration(msgspec.Struct, frozen=True):
    """The data that a broker registers.

    - `clean`: its last stop was clean
    - `kept`: it was not, but everything that was written is there
    - `synced`: it had acknowledged only records on disk, for topics without a durability of their own
    - `endpoints`: (listener, host, port)
    - `leaving`: it is about to stop
    """

    broker_id: int
    incarnation: str
    clean: bool
    endpoints: Sequence[tuple[str, str, int]] = ()
    rack: str | None = None
    kept: bool = False
    synced: bool = False
    leaving: bool = False
    previous: tuple[str, ...] = ()
    """Incarnations that had this broker's data directory before: their processes have ended."""
    levels: tuple[int, int] = LEVELS
    """Metadata levels that this version knows."""

    def encode(self) -> bytes:
        """Encode the contents of its node."""
        broker = BrokerImage(
            self.broker_id,
            0,
            self.incarnation,
            tuple(self.endpoints),
            self.rack,
            leaving=self.leaving,
            levels=self.levels,
        )
        return tree.encode_broker(broker, clean=self.clean, kept=self.kept, synced=self.synced)


async def register(
    store: CoordinationStore, registration: Registration, *, wait_seconds: float = WAIT_SECONDS
) -> tuple[BrokerImage, int]:
    """Register the broker; return it as registered, and the session.

    Raises KafkaError(DUPLICATE_BROKER_REGISTRATION) if a broker with this id stays alive.
    """
    path = f"{tree.BROKER_IDS}/{registration.broker_id}"
    data = registration.encode()
    node = await store.get(path)
    # An earlier attempt may have made it, although the answer was lost.
    if node is None or node.owner != store.session or node.data != data:
        if (
            node is not None
            and tree.decode_broker(registration.broker_id, node).incarnation in registration.previous
        ):
            await remove(store, path, node)
            node = await store.get(path)
        if node is not None and wait_seconds:
            logger.warning(
                "a broker with node.id=%d is registered: waiting until its session is over",
                registration.broker_id,
            )
        await _gone(store, path, wait_seconds)
        try:
            await store.transact([CreateNode(path, data, ephemeral=True)])
        except OUTDATED:
            there = await store.get(path) or node
            other = None if there is None else tree.decode_broker(registration.broker_id, there)
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                alive_already(other or BrokerImage(registration.broker_id, 0, "")),
            ) from None
        node = await store.get(path)
    if node is None or node.owner != store.session:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"the registration at {path} is lost")
    known = tree.encode_known(registration.rack, registration.endpoints)
    await modify(store, f"{tree.KNOWN_BROKERS}/{registration.broker_id}", lambda _: known)
    return tree.decode_broker(registration.broker_id, node), node.owner


async def check_free(store: CoordinationStore, broker_id: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Check, before a broker makes its data directory, that its id is free. Nodes of a killed process go with its
    session. Raises ConfigError.
    """
    path = f"{tree.BROKER_IDS}/{broker_id}"
    node = await store.get(path)
    if node is None:
        return
    logger.warning("a broker with node.id=%d is registered: waiting until its session is over", broker_id)
    if not await _gone(store, path, wait_seconds):
        raise ConfigError(alive_already(tree.decode_broker(broker_id, node)))


def alive_already(broker: BrokerImage) -> str:
    where = ", ".join(f"{host}:{port}" for _, host, port in broker.endpoints) or "an unknown address"
    return (
        f"a broker with node.id={broker.broker_id} is alive already, at {where}; give this broker another "
        "node.id and its own data directory"
    )


async def remove(store: CoordinationStore, path: str, node: Node) -> None:
    """Remove the nodes of an ended process: its registration `node` and the other nodes of the same session. Nothing
    happens if the registration has changed.
    """
    operations: list[StoreOperation] = [DeleteNode(path, node.version)]
    others = (tree.CONTROLLER, f"{tree.SEEN}/{path.rpartition('/')[2]}")
    for other, found in zip(others, await store.get_many(others), strict=True):
        if found is not None and found.owner == node.owner:
            operations.append(DeleteNode(other, found.version))
    with contextlib.suppress(*OUTDATED):
        await store.transact(operations)


async def cluster_id(store: CoordinationStore, *, known: Properties | None, new: str) -> str:
    """Return the id of the cluster in the store. `known` are the properties of this broker's data directory if it is a
    member's; a new cluster gets the id `new`. Ends an adoption that has made the directory a member's.

    Raises ConfigError if the directory is a member's and the store has no cluster, or if its cluster is still being
    made.
    """
    node = await store.get(tree.CLUSTER_ID)
    if node is None and known is not None:
        raise ConfigError(
            "there is no cluster at this address and path of ZooKeeper, and the data directory belongs to "
            f"the cluster {known.cluster_id}: check the path behind the address"
        )
    if node is None:
        with contextlib.suppress(NodeExistsError):  # one of two brokers that begin at the same time
            await store.transact([CreateNode(tree.CLUSTER_ID, new.encode())])
        node = await store.get(tree.CLUSTER_ID)
    if node is None:
        raise StoreUnavailableError("the cluster's id was deleted")
    adoption = await store.get(tree.ADOPTION)  # a broker that has found neither makes both together
    if adoption is not None:
        own = None if known is None else known.adoption
        if own is None or own != decode_adoption(adoption).token:
            raise ConfigError(adoption_under_way(decode_adoption(adoption)))
        with contextlib.suppress(*OUTDATED):
            await store.transact([DeleteNode(tree.ADOPTION, adoption.version)])
    return node.data.decode()


class Adoption(msgspec.Struct, frozen=True):
    """The adoption of a single broker's data directory, which becomes a cluster's. `token` identifies this adoption."""

    cluster_id: str
    node_id: int
    token: str

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decode_adoption(node: Node) -> Adoption:
    return msgspec.json.decode(node.data, type=Adoption)


def adoption_under_way(adoption: Adoption) -> str:
    return (
        f"the data directory of broker {adoption.node_id} (cluster {adoption.cluster_id}) is being adopted "
        "at this address and path of ZooKeeper, and the adoption was not finished: run `headrace cluster "
        "adopt` for it again"
    )


async def become_controller(
    store: CoordinationStore, broker_id: int, *, wait_seconds: float = WAIT_SECONDS
) -> Claim | None:
    """Return None if another broker stays the controller, or became it meanwhile."""
    if not await _gone(store, tree.CONTROLLER, wait_seconds):
        return None
    node = await store.get(tree.CONTROLLER_EPOCH)
    epoch = 1 if node is None else int(node.data) + 1
    data = str(epoch).encode()
    raised: StoreOperation
    if node is None:
        raised, version = CreateNode(tree.CONTROLLER_EPOCH, data), 0
    else:
        raised, version = SetNode(tree.CONTROLLER_EPOCH, data, node.version), node.version + 1
    who = json.dumps({"broker": broker_id, "epoch": epoch}, separators=(",", ":")).encode()
    try:
        await store.transact([CreateNode(tree.CONTROLLER, who, ephemeral=True), raised])
    except OUTDATED:
        return None
    return Claim(epoch, version)


async def _gone(store: CoordinationStore, path: str, wait_seconds: float) -> bool:
    """Return whether the node is gone in time."""
    if await store.get(path) is None:
        return True
    changed = asyncio.Event()
    end = store.watch(path, changed.set)
    await asyncio.sleep(0)  # the watch is set before the node is read
    try:
        async with asyncio.timeout(wait_seconds):
            while await store.get(path) is not None:
                await changed.wait()
                changed.clear()
    except TimeoutError:
        return False
    finally:
        end()
    return True


async def read_registrations(store: CoordinationStore) -> dict[int, Registered]:
    """Return the registered brokers by id."""
    names = await store.children(tree.BROKER_IDS)
    nodes = await store.get_many([f"{tree.BROKER_IDS}/{name}" for name in names])
    return {
        int(name): tree.decode_registered(int(name), node)
        for name, node in zip(names, nodes, strict=True)
        if node is not None
    }
