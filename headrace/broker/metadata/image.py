"""The image of a cluster: the basis of all decisions. Immutable; every change makes another image with a higher
version.

- **ClusterImage**: topics and brokers, and the controller epoch under which its holder may change them.
- **TopicEntry**: a topic as all brokers are told of it, and the states of its partitions in chunks of STATES_PER_CHUNK.
  The versions are those of the nodes in the coordination store that it was read from (`broker.metadata.tree`): a
  decision is written only if the store still has these versions.
- **Changes**: how far the journal of changes in the store was read. Every change of topics or brokers adds one entry.
  So an image is the store's at that version, and decisions of an older image are refused.
- **PartitionState**: replicas, leader, ISR and the eligible replicas (KIP-966) of one partition. Its leader epoch goes
  up with every leader and never down, its partition epoch with every change (KIP-497).

The brokers in an image are those that are alive. A broker's epoch is the number of its registration in the store, so it
is another one after each start (KIP-903).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from headrace.broker.metadata.features import FIRST_LEVEL
from headrace.broker.partitions.topic import TopicImage

K = TypeVar("K")
V = TypeVar("V")

STATES_PER_CHUNK: Final = 100
NO_LEADER: Final = -1
_SHARDS: Final = 256
CHANGES_KEPT: Final = 32
CHANGED_NAMES_MAX: Final = 100
"""Maximum number of names: together 100 kB at most, with 10 names of a usual length. A broker that has missed more
reads everything.
"""
BROKERS: Final = ""
"""Stands for the brokers among the names of topics in the journal of changes."""


class PartitionState(msgspec.Struct, frozen=True, array_like=True):
    """`replicas` begins with the preferred leader. Replicas in `elr` are out of the ISR and still have everything that
    is committed. `adding` and `removing` are replicas of a move (`broker.metadata.reassignment`).

    Fields may be added at the end, with defaults, because it is stored as an array.
    """

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class StatesChunk(msgspec.Struct, frozen=True):
    """Some consecutive partitions; `version` is that of the node."""

    version: int
    states: tuple[PartitionState, ...]


class TopicEntry(msgspec.Struct, frozen=True):
    """`version` is that of the topic's node. `chunks` is empty for a topic of an earlier layout, whose partitions have
    no states yet.
    """

    topic: TopicImage
    version: int
    chunks: tuple[StatesChunk, ...]

    def state(self, index: int) -> PartitionState:
        return self.chunks[index // STATES_PER_CHUNK].states[index % STATES_PER_CHUNK]

    def states(self) -> Iterator[PartitionState]:
        return chain.from_iterable(chunk.states for chunk in self.chunks)


class BrokerImage(msgspec.Struct, frozen=True):
    """A broker that is alive. `endpoints`: (listener, host, port). `leaving`: it is about to stop. `levels`: the lowest
    and the highest metadata level that it knows (`broker.metadata.features`).
    """

    broker_id: int
    epoch: int
    incarnation: str
    endpoints: tuple[tuple[str, str, int], ...] = ()
    rack: str | None = None
    leaving: bool = False
    levels: tuple[int, int] = (FIRST_LEVEL, FIRST_LEVEL)


class Registered(msgspec.Struct, frozen=True):
    """A registered broker, for the controller: how its last stop was, and whether it is about to stop."""

    broker: BrokerImage
    clean: bool
    kept: bool = False
    synced: bool = False
    leaving: bool = False


class Changes(msgspec.Struct, frozen=True):
    """`version` is that of the journal's node, -1 before it exists. `recent` are its last entries, the newest last: the
    topics that one change has touched (`BROKERS` among them for the brokers), or None for too many names.
    """

    version: int = -1
    recent: tuple[tuple[str, ...] | None, ...] = ()

    def followed_by(self, names: tuple[str, ...]) -> Changes:
        entry = names if len(names) <= CHANGED_NAMES_MAX else None
        return Changes(self.version + 1, (*self.recent, entry)[-CHANGES_KEPT:])

    def since(self, version: int) -> set[str] | None:
        """Return the names that have changed after that version; None if they are not known any more."""
        missed = self.version - version
        if not 0 <= missed <= len(self.recent) or version < 0:
            return None
        names: set[str] = set()
        for entry in self.recent[len(self.recent) - missed :]:
            if entry is None:
                return None
            names.update(entry)
        return names


def _shard(key: object) -> int:
    """Return a shard that is the same in every process, so that maps have the same order everywhere."""
    return (zlib.crc32(key.encode()) if isinstance(key, str) else hash(key)) % _SHARDS


class FrozenMap(Generic[K, V]):
    """An immutable mapping. `changed` returns another one and copies a 256th of it for each key."""

    __slots__ = ("_length", "_shards")

    def __init__(self, shards: tuple[dict[K, V], ...] | None = None, length: int = 0) -> None:
        """Make an empty mapping; the arguments are for `changed` only."""
        self._shards = tuple({} for _ in range(_SHARDS)) if shards is None else shards
        self._length = length

    def changed(self, changes: Mapping[K, V | None]) -> FrozenMap[K, V]:
        """Return the mapping with these values; None removes a key."""
        shards, copied, length = list(self._shards), set(), self._length
        for key, value in changes.items():
            number = _shard(key)
            if number not in copied:
                shards[number] = dict(shards[number])
                copied.add(number)
            shard = shards[number]
            length -= key in shard
            if value is None:
                shard.pop(key, None)
            else:
                shard[key] = value
                length += 1
        return FrozenMap(tuple(shards), length)

    def get(self, key: K) -> V | None:
        return self._shards[_shard(key)].get(key)

    def __getitem__(self, key: K) -> V:
        return self._shards[_shard(key)][key]

    def __contains__(self, key: K) -> bool:
        return key in self._shards[_shard(key)]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._shards)

    def values(self) -> Iterator[V]:
        return chain.from_iterable(shard.values() for shard in self._shards)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenMap) and self._shards == other._shards

    __hash__ = None  # type: ignore[assignment]


class ClusterImage(msgspec.Struct, frozen=True):
    """`controller_epoch` and `controller_version` (of the epoch's node) are those of the controller that reads or wrote
    the image; -1 for a broker that is not the controller. `controller_id` is the controller that this broker knows of,
    -1 if there is none. `brokers_version` is that of the node of the brokers, -1 before it exists. `level` is the
    finalized metadata level, and `level_version` the version of its node.
    """

    version: int = 0
    controller_epoch: int = -1
    controller_version: int = -1
    controller_id: int = -1
    changes: Changes = Changes()
    brokers_version: int = -1
    level: int = FIRST_LEVEL
    level_version: int = -1
    topics: FrozenMap[str, TopicEntry] = msgspec.field(default_factory=FrozenMap)
    brokers: Mapping[int, BrokerImage] = msgspec.field(default_factory=dict)

    def with_topics(self, changes: Mapping[str, TopicEntry | None]) -> ClusterImage:
        return replace(self, version=self.version + 1, topics=self.topics.changed(changes))

    def with_broker(self, broker: BrokerImage) -> ClusterImage:
        brokers = {**self.brokers, broker.broker_id: broker}
        return replace(self, version=self.version + 1, brokers=brokers)

    def without_broker(self, broker_id: int) -> ClusterImage:
        brokers = {number: broker for number, broker in self.brokers.items() if number != broker_id}
        return replace(self, version=self.version + 1, brokers=brokers)


def chunks_of(states: Iterable[PartitionState]) -> tuple[StatesChunk, ...]:
    """Return new chunks, at version 0."""
    listed = tuple(states)
    return tuple(
        StatesChunk(0, listed[first : first + STATES_PER_CHUNK])
        for first in range(0, len(listed), STATES_PER_CHUNK)
    )
