"""What the members of a cluster know together, kept in remote storage as `cluster_copy` does for a broker alone.

The controller writes it, whenever something of it has changed; of two that take themselves for the controller the one
of the later epoch goes on. All members look whether somebody else has gone on with what is there: a machine that was
made of it (`bootstrap`), or another cluster.

That is told by claims. A cluster makes its own once, when its first controller with remote storage writes: an object
`claim-<n>.json`, then the node `/remote-claim` that says n. A claim of a higher number is somebody else's, who came
later: from then on the cluster only reads.

Left out: who is alive and leads, and what is about a broker and not the cluster. What is kept of a partition are its
replicas and its leader epoch.

On the event loop; what waits for the network, or takes as long as the metadata is large, is done in a thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from broker.cluster import tree
from broker.cluster.image import NO_LEADER, STATES_PER_CHUNK, PartitionState
from broker.cluster.store import StoreImage
from broker.ports import CreateNode, NodeExistsError
from broker.remote.cluster_copy import (
    OF_ONE,
    OF_SEVERAL,
    ClusterCopyError,
    ClusterImage,
    ReplacedError,
    claim_name,
    make_claim,
    name_of,
    newest_numbers,
)

if TYPE_CHECKING:
    from broker.objects.files import RemoteFiles
    from broker.ports import CoordinationStore

Result = TypeVar("Result")

CLAIM: Final = "/remote-claim"
_LEFT_OUT: Final = frozenset(
    ("/zookeeper", "/controller", "/brokers", "/changes", "/cluster", tree.DELETED, CLAIM)
)
_CONFIGS: Final = "/broker-configs"
_DEFAULT_CONFIGS: Final = f"{_CONFIGS}/default"
_MINIMUM: Final = "min.insync.replicas"
_READS: Final = 200
"""Requests to the store at a time."""
_ATTEMPTS: Final = 3
_TAKEN_MAX: Final = 64


class SharedCopy:
    """Of one member. `controller_epoch`: of this one, negative if another one is the controller; `executor`: where the
    network is waited for.
    """

    def __init__(
        self,
        files: RemoteFiles,
        store: CoordinationStore,
        *,
        cluster_id: str,
        broker_id: int,
        writer: str,
        time_ms: Callable[[], int],
        executor: Executor,
        controller_epoch: Callable[[], int],
    ) -> None:
        self._files = files
        self._store = store
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._writer = writer
        self._time_ms = time_ms
        self._executor = executor
        self._controller_epoch = controller_epoch
        self.claim: int | None = None
        """The number by which the cluster has what is there; None before it is known."""
        self._epoch = -1
        self._number = 0
        self._written: StoreImage | None = None
        self._changes: int | None = None

    async def keep(self) -> None:
        """See that what is there is the cluster's, and, of the controller, as it is now. Raises ReplacedError, OSError,
        StoreError, StoreOutcomeUnknownError.
        """
        metadata, newest = await self._run(newest_numbers, self._files, self._cluster_id)
        epoch = self._controller_epoch()
        node = await self._store.get(CLAIM)
        if node is None:
            if epoch < 0:
                return
            own = await self._make_claim(max(metadata, newest) + 1)
        else:
            own = int(json.loads(node.data)["number"])
        if newest > own:
            raise ReplacedError(f"{claim_name(self._cluster_id, newest)} is not this cluster's")
        self.claim = own
        if epoch >= 0:
            await self._keep_image(epoch, metadata)

    async def _make_claim(self, number: int) -> int:
        await self._run(make_claim, self._files, self._cluster_id, number, self._writer)
        try:
            await self._store.transact([CreateNode(CLAIM, json.dumps({"number": number}).encode())])
        except NodeExistsError:
            raise OSError("another controller has claimed what is there just now") from None
        return number

    async def _keep_image(self, epoch: int, newest: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._written = epoch, None
        if newest > self._number:
            if not await self._run(self._may_follow, newest):
                return
            self._number, self._written = newest, None
        changes = self._store.changes
        if self._written is not None and changes == self._changes:
            return
        nodes = await self._read(epoch)
        if nodes is None:
            return
        image = await self._run(_essentials, nodes)
        if image != self._written:
            if not await self._run(self._write, image):
                return
            self._written = image
        self._changes = changes

    def _may_follow(self, number: int) -> bool:
        """Whether what is there under a number was not written by a later controller."""
        name = name_of(self._cluster_id, number)
        try:
            return ClusterImage.decode(name, self._files.read(name)).controller_epoch <= self._epoch
        except FileNotFoundError:
            return True
        except ClusterCopyError as error:
            raise ReplacedError(str(error)) from error

    def _write(self, store: StoreImage) -> bool:
        """False if a later controller writes."""
        image = ClusterImage(
            self._cluster_id,
            self._broker_id,
            self._writer,
            self._time_ms(),
            store,
            version=OF_SEVERAL,
            controller_epoch=self._epoch,
        )
        data = image.encode()
        first = max(self._number + 1, self.claim or 0)
        for number in range(first, first + _TAKEN_MAX):
            try:
                self._files.put(name_of(self._cluster_id, number), data, create=True)
            except FileExistsError:
                if not self._may_follow(number):
                    return False
                continue  # an earlier controller's, or this one's if an answer was lost
            older, self._number = self._number, number
            for gone in range(max(older, 1), number):
                self._remove(gone)
            return True
        raise OSError(f"{name_of(self._cluster_id, first)} changes faster than it can be written")

    def _remove(self, number: int) -> None:
        try:
            self._files.remove(name_of(self._cluster_id, number))
        except OSError:
            return  # the next claim removes it

    async def _read(self, epoch: int) -> dict[str, bytes] | None:
        """All that is not left out, as of one moment as far as topics go; None if the store changes too fast, or has
        another controller.
        """
        for _ in range(_ATTEMPTS):
            before = await self._store.get_many([tree.CHANGES, tree.CONTROLLER_EPOCH])
            if before[1] is None or int(before[1].data) != epoch:
                return None
            nodes = await self._read_nodes()
            if await self._store.get_many([tree.CHANGES, tree.CONTROLLER_EPOCH]) == before:
                return nodes
        return None

    async def _read_nodes(self) -> dict[str, bytes]:
        nodes: dict[str, bytes] = {}
        level = [path for name in await self._store.children("/") if (path := f"/{name}") not in _LEFT_OUT]
        while level:
            parents = []
            for path, node in zip(level, await self._store.get_many(level), strict=True):
                if node is not None and not node.owner:
                    nodes[path] = node.data
                    if not _is_chunk(path):
                        parents.append(path)
            level = []
            for first in range(0, len(parents), _READS):
                some = parents[first : first + _READS]
                names = await asyncio.gather(*map(self._store.children, some))
                level += [f"{path}/{name}" for path, each in zip(some, names, strict=True) for name in each]
        return nodes

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)


def _is_chunk(path: str) -> bool:
    """The node of some partitions' states, which has no children."""
    return path.startswith(f"{tree.TOPICS}/") and path.count("/") == 4


def _essentials(nodes: dict[str, bytes]) -> StoreImage:
    """Without what comes and goes with brokers."""
    kept = []
    for path in sorted(nodes):
        data = nodes[path]
        if _is_chunk(path):
            states = tree.decode_states(data)
            data = tree.encode_states(
                [PartitionState(each.replicas, NO_LEADER, each.leader_epoch, ()) for each in states]
            )
        kept.append((path, data, 0))
    return StoreImage(tuple(kept), ())


def made_single(
    image: ClusterImage, broker_id: int, last_epoch: Callable[[str, int], int]
) -> tuple[ClusterImage, list[str]]:
    """A cluster's metadata as that of a broker alone which has all partitions; and the topics, or "" for the default of
    all, whose `min.insync.replicas` was more than it can have and is gone. `last_epoch`: the last one that is known of
    a topic's partition, -1 for none. Pure.
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
