"""The nodes of a cluster's coordination store in a backup: those that the copy in remote storage has (`shared_copy`).

They are read before and after the cut (`broker.backup.member`). Most are taken from the second reading, which is not
older than anything in the logs. Extensions name nodes that must not be ahead of the logs, which are taken from the
first reading, and nodes that must be the same in both.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.backup.logs import again
from headrace.broker.metadata.image import NO_LEADER
from headrace.broker.metadata.reading import read_on
from headrace.broker.metadata.tree import decode_topic, is_topic
from headrace.broker.remote.cluster_copy import OF_SEVERAL, ClusterImage
from headrace.broker.remote.shared_copy import essentials, read_nodes
from headrace.broker.runtime.ports import STORE_LOST, CreateNode, DeleteNode
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.backup.cut import Cut
    from headrace.broker.metadata.image import ClusterImage as TopicsImage
    from headrace.broker.metadata.image import FrozenMap, TopicEntry
    from headrace.broker.runtime.ports import CoordinationStore

IMAGE_NAME: Final = "image.json.gz"
LEADERS_NAME: Final = "leaders.json.gz"
_MARK: Final = "/backup-mark"
_NAMED: Final = 5

Leaders = dict[str, list[tuple[int, int]]]
"""Leader and leader epoch of each partition, by the id of the topic."""


class BackupNodes:
    """The nodes, for one backup after the other. `image` returns the member's topics; `early` and `still` are the roots
    of nodes that are taken from the first reading, and of those that must not change.
    """

    def __init__(
        self,
        store: CoordinationStore,
        image: Callable[[], TopicsImage],
        *,
        cluster_id: str,
        broker_id: int,
        early: Sequence[str],
        still: Sequence[str],
        time_ms: Callable[[], int],
        executor: Executor,
    ) -> None:
        self._store = store
        self._image = image
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._early = tuple(early)
        self._still = tuple(still)
        self._time_ms = time_ms
        self._executor = executor
        self._before: dict[str, bytes] | None = None

    async def read(self) -> None:
        """Read the nodes before the cut. Raises KafkaError."""
        try:
            self._before = await read_nodes(self._store)
        except STORE_LOST as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error

    async def image(self) -> dict[str, bytes]:
        """Read nodes and topics after the cut; return the files of both. Raises KafkaError."""
        before, self._before = self._before, None
        if before is None:
            raise again("the nodes were not read before the cut")
        try:
            # A session reads at least what was written before its own last write.
            await self._store.transact([CreateNode(_MARK), DeleteNode(_MARK, 0)])
            after = await read_nodes(self._store)
            image, _ = await read_on(self._store, self._image())
        except STORE_LOST as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        for root in self._still:
            if _below(before, root) != _below(after, root):
                raise again(f"the nodes below {root} changed during the cut")
        nodes = {path: data for path, data in after.items() if not _is_below(path, self._early)}
        for root in self._early:
            nodes |= _below(before, root)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: self._encode(nodes, image.topics))

    def _encode(self, nodes: dict[str, bytes], topics: FrozenMap[str, TopicEntry]) -> dict[str, bytes]:
        image = ClusterImage(
            self._cluster_id,
            self._broker_id,
            "backup",
            self._time_ms(),
            essentials(nodes, topics),
            version=OF_SEVERAL,
        )
        leaders: Leaders = {
            str(entry.topic.topic_id): [(state.leader, state.leader_epoch) for state in entry.states()]
            for entry in topics.values()
        }
        return {
            IMAGE_NAME: image.encode(),
            LEADERS_NAME: gzip.compress(msgspec.json.encode(leaders), 1, mtime=0),
        }


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _below(nodes: Mapping[str, bytes], root: str) -> dict[str, bytes]:
    return {path: data for path, data in nodes.items() if _is_below(path, (root,))}


def decode_leaders(data: bytes) -> Leaders:
    return msgspec.json.decode(gzip.decompress(data), type=Leaders)


def check_parts(image: ClusterImage, leaders: Leaders, cuts: Mapping[int, Cut]) -> None:
    """Check that each partition of the image was given by its leader alone, under the epoch of the image. `cuts`: by
    broker. Pure. Raises KafkaError if the cut has to be made again.
    """
    given: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for broker, cut in cuts.items():
        for each in cut.partitions:
            given.setdefault((each.topic_id, each.index), []).append((broker, each.leader_epoch))
    topics = {
        str(topic.topic_id): topic.name
        for topic in (decode_topic(data) for path, data, _ in image.store.nodes if is_topic(path))
    }
    without, moved = [], []
    for topic_id, states in leaders.items():
        for index, (leader, epoch) in enumerate(states):
            found = given.pop((topic_id, index), [])
            if leader == NO_LEADER:
                without.append(f"{topics[topic_id]}-{index}")
            elif found != [(leader, epoch)]:
                moved.append(f"{topics[topic_id]}-{index}")
    if without:
        raise again(f"partitions without a leader cannot be backed up: {_list_of(without)}")
    if moved:
        raise again(f"partitions got another leader during the cut: {_list_of(moved)}")
    if given:
        raise again(f"{len(given)} partitions were deleted during the cut")


def _list_of(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
