"""Copy the metadata of a cluster to remote storage, as `cluster_copy` does for a single broker.

The controller writes it after each change; if two brokers believe that they are the controller, the later epoch wins.
All members check whether remote storage has a new owner: a machine that started from it (`bootstrap`), or another
cluster.

Claims show the owner. A single broker makes one at each start; a cluster makes its claim once, when its first
controller with remote storage writes: an object `claim-<n>.json`, then the node `/remote-claim` with n. A claim with a
higher number is that of a later owner: from then on the cluster only reads. An earlier owner may still write for a
moment; its objects have its claim, and are ignored.

Left out: live brokers, leaders, and data of single brokers. Only the replicas and the leader epoch of a partition are
copied.

On the event loop; a thread waits for the network, and does work that takes time with large metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headrace.broker.metadata import tree
from headrace.broker.metadata.image import (
    NO_LEADER,
    STATES_PER_CHUNK,
    FrozenMap,
    PartitionState,
    StatesChunk,
    TopicEntry,
)
from headrace.broker.remote.cluster_copy import (
    OF_ONE,
    OF_SEVERAL,
    ClusterCopyError,
    ClusterImage,
    Place,
    ReplacedError,
    claim_name,
    name_of,
)
from headrace.broker.runtime.ports import CreateNode, NodeExistsError
from headrace.broker.stores.embedded import StoreImage

if TYPE_CHECKING:
    from headrace.broker.metadata.image import ClusterImage as TopicsImage
    from headrace.broker.runtime.ports import CoordinationStore

CLAIM: Final = "/remote-claim"
_LEFT_OUT: Final = frozenset(
    ("/zookeeper", "/controller", "/brokers", "/changes", "/cluster", tree.TOPICS, tree.DELETED, CLAIM)
)
_CONFIGS: Final = "/broker-configs"
_DEFAULT_CONFIGS: Final = f"{_CONFIGS}/default"
_MINIMUM: Final = "min.insync.replicas"
_READS: Final = 200
"""Maximum number of concurrent requests to the store."""
_TAKEN_MAX: Final = 64


class SharedCopy:
    """The copy, as one member handles it. `image`: the member's topics."""

    def __init__(self, place: Place, store: CoordinationStore, image: Callable[[], TopicsImage]) -> None:
        self._place = place
        self._store = store
        self._image = image
        self.claim: int | None = None
        """The number of the cluster's claim; None before it is known."""
        self._epoch = -1
        self._number = 0
        self._written: StoreImage | None = None
        self._has_removed = False
        """True once the objects of earlier owners were removed."""
        self._older: list[int] = []
        """Numbers to remove."""
        self._changes: tuple[int, int] | None = None

    @property
    def is_writer(self) -> bool:
        """Return whether this member is the controller, which writes."""
        return self._image().controller_epoch >= 0

    async def keep(self) -> bool:
        """Check that the cluster owns remote storage; as the controller, copy changed metadata. Return True if the copy
        is known to be current. Raises ReplacedError, OSError, StoreError, StoreOutcomeUnknownError.
        """
        metadata, newest = await self._place.newest_numbers()
        epoch = self._image().controller_epoch
        node = await self._store.get(CLAIM)
        if node is None:
            if epoch < 0:
                return False
            own = newest = await self._make_claim(max(metadata, newest) + 1)
        else:
            own = int(json.loads(node.data)["number"])
        if newest > own:
            raise ReplacedError(f"{claim_name(self._place.cluster_id, newest)} is not this cluster's")
        self.claim = own
        return epoch >= 0 and await self._keep_image(epoch, metadata)

    async def _make_claim(self, number: int) -> int:
        await self._place.make_claim(number)
        try:
            await self._store.transact([CreateNode(CLAIM, json.dumps({"number": number}).encode())])
        except NodeExistsError:
            raise OSError("another controller has just taken over remote storage") from None
        return number

    async def _keep_image(self, epoch: int, newest: int) -> bool:
        if epoch != self._epoch:
            self._epoch, self._written = epoch, None
        if newest > self._number:
            if not await self._place.run(self._may_follow, newest):
                return False
            self._older.append(self._number)
            self._number, self._written = newest, None
        cluster = self._image()
        changes = self._store.changes, cluster.version
        if self._written is not None and changes == self._changes:
            return True
        nodes = await self._read()
        if nodes is None:
            return False
        image = await self._place.run(essentials, nodes, cluster.topics)
        if image != self._written:
            if not await self._place.run(self._write, image):
                return False
            self._written = image
        self._changes = changes
        return True

    def _may_follow(self, number: int) -> bool:
        """Return whether the copy with this number was not written by a later controller or a later owner."""
        try:
            return self._place.read(number).right <= (self.claim or 0, self._epoch)
        except FileNotFoundError:
            return True
        except ClusterCopyError as error:
            raise ReplacedError(str(error)) from error

    def _write(self, store: StoreImage) -> bool:
        """Write a copy. False if a later controller writes."""
        place = self._place
        image = ClusterImage(
            place.cluster_id,
            place.broker_id,
            place.writer,
            place.time_ms(),
            store,
            version=OF_SEVERAL,
            controller_epoch=self._epoch,
            claim=self.claim or 0,
        )
        data = image.encode()
        first = max(self._number + 1, self.claim or 0)
        for number in range(first, first + _TAKEN_MAX):
            try:
                place.create(number, data)
            except FileExistsError:
                if not self._may_follow(number):
                    return False
                self._older.append(number)  # an earlier controller's, or this one's if an answer was lost
                continue
            self._older.append(self._number)
            self._number = number
            self._remove_older()
            return True
        raise OSError(f"{name_of(place.cluster_id, first)} changes faster than it can be written")

    def _remove_older(self) -> None:
        if not self._has_removed:
            self._place.remove_older(self.claim or 0)
            self._has_removed = True
        with contextlib.suppress(OSError):  # objects that stay are removed with the next one
            while self._older:
                self._place.remove(self._older[-1])
                self._older.pop()

    async def _read(self) -> dict[str, bytes] | None:
        """Return the nodes of the copy, without topics; None if another broker is the controller."""
        nodes = await read_nodes(self._store)
        return nodes if int(nodes.get(tree.CONTROLLER_EPOCH, b"-1")) == self._epoch else None


async def read_nodes(store: CoordinationStore) -> dict[str, bytes]:
    """Return the nodes that are neither topics' nor left out."""
    nodes: dict[str, bytes] = {}
    level = [path for name in await store.children("/") if (path := f"/{name}") not in _LEFT_OUT]
    while level:
        parents = []
        for path, node in zip(level, await store.get_many(level), strict=True):
            if node is not None and not node.owner:
                nodes[path] = node.data
                parents.append(path)
        level = []
        for first in range(0, len(parents), _READS):
            some = parents[first : first + _READS]
            names = await asyncio.gather(*map(store.children, some))
            level += [f"{path}/{name}" for path, each in zip(some, names, strict=True) for name in each]
    return nodes


def _is_chunk(path: str) -> bool:
    """Return whether the node has the states of some partitions; it has no children."""
    return path.startswith(f"{tree.TOPICS}/") and path.count("/") == 4


def essentials(nodes: dict[str, bytes], topics: FrozenMap[str, TopicEntry]) -> StoreImage:
    """Return the metadata without the state of live brokers."""
    kept = {**nodes, tree.TOPICS: b""}
    for entry in topics.values():
        for operation in tree.creation(replace(entry, chunks=tuple(map(_essential, entry.chunks)))):
            assert isinstance(operation, CreateNode)
            kept[operation.path] = operation.data
    return StoreImage(tuple((path, kept[path], 0) for path in sorted(kept)), ())


def _essential(chunk: StatesChunk) -> StatesChunk:
    states = (PartitionState(each.replicas, NO_LEADER, each.leader_epoch, ()) for each in chunk.states)
    return StatesChunk(0, tuple(states))


def made_single(
    image: ClusterImage, broker_id: int, last_epoch: Callable[[str, int], int]
) -> tuple[ClusterImage, list[str]]:
    """Return a cluster's metadata as that of a single broker with all partitions. Also return the topics (or "" for the
    default of all) whose `min.insync.replicas` was too high for one broker and was removed. `last_epoch` returns the
    last known leader epoch of a topic's partition, -1 for none. Pure.
    """
    kept, lowered = [], []
    for path, data, version in image.store.nodes:
        if path == _DEFAULT_CONFIGS:
            config = json.loads(data)
            if _is_too_much(config):
                lowered.append("")
                data = json.dumps(_without_minimum(config), separators=(",", ":")).encode()
        elif path.startswith(f"{_CONFIGS}/"):
            continue
        elif tree.is_topic(path):
            topic = tree.decode_topic(data)
            if _is_too_much(topic.config):
                lowered.append(topic.name)
                data = tree.encode_topic(replace(topic, config=_without_minimum(topic.config)))
        elif _is_chunk(path):
            _, _, name, _, chunk = path.split("/")
            first = int(chunk) * STATES_PER_CHUNK
            states = []
            for index, state in enumerate(tree.decode_states(data), first):
                epoch = max(state.leader_epoch, last_epoch(name, index)) + 1
                states.append(PartitionState((broker_id,), broker_id, epoch, (broker_id,)))
            data = tree.encode_states(states)
        kept.append((path, data, version))
    single = replace(image, broker_id=broker_id, store=StoreImage(tuple(kept), ()), version=OF_ONE)
    return single, lowered


def _is_too_much(config: Mapping[str, str]) -> bool:
    return int(config.get(_MINIMUM, "1")) > 1


def _without_minimum(config: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in config.items() if name != _MINIMUM}
