"""Read the image of a cluster from the coordination store: as a whole, or the changes since an image was read.

Reads of many nodes are not of one moment. So the journal of changes is read before and after, and topics that it names
meanwhile are read again, until nothing has changed. An image is therefore the store's state at the version of its
`changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.metadata.features import FIRST_LEVEL, decode_level
from headrace.broker.metadata.image import BROKERS, STATES_PER_CHUNK, ClusterImage, FrozenMap, TopicEntry
from headrace.broker.runtime.ports import CoordinationStore

Contents = TypeVar("Contents")
Decoded = TypeVar("Decoded")

_ATTEMPTS: Final = 10
"""Attempts to find as many states of a topic as it has partitions: between two reads of its nodes it may have grown."""


async def read_image(store: CoordinationStore) -> ClusterImage:
    """Read the whole image. Raises ConfigError when topics and states do not belong together, StoreUnavailableError."""
    changes = tree.decode_changes(await store.get(tree.CHANGES))
    names = await store.children(tree.TOPICS)
    topics = await read_topics(store, names, {})
    image = await _with_brokers(store, ClusterImage(topics=FrozenMap[str, TopicEntry]().changed(topics)))
    image, _ = await read_on(store, replace(image, changes=changes))
    return image


async def read_on(
    store: CoordinationStore, image: ClusterImage, *, everything: bool = False
) -> tuple[ClusterImage, set[str]]:
    """Return the new image, and the names of topics that may have changed. `everything`: regardless of the journal."""
    touched: set[str] = set()
    while True:
        changes = tree.decode_changes(await store.get(tree.CHANGES))
        if changes.version == image.changes.version and not everything:
            return image, touched
        names = None if everything else changes.since(image.changes.version)
        everything = False
        if names is None:
            names = {BROKERS, *image.topics, *await store.children(tree.TOPICS)}
        image = replace(image, changes=changes)
        if BROKERS in names:
            image = await _with_brokers(store, image)
            names.discard(BROKERS)
        image = image.with_topics(await read_topics(store, names, image.topics))
        touched |= names


async def read_topics(
    store: CoordinationStore,
    names: Collection[str],
    known: FrozenMap[str, TopicEntry] | Mapping[str, TopicEntry],
) -> dict[str, TopicEntry | None]:
    """Return each topic as in the store, None if it does not exist. An unchanged topic is the object that is
    `known`.
    """
    entries: dict[str, TopicEntry | None] = {}
    wanted = list(names)
    for _ in range(_ATTEMPTS):
        torn = []
        found = await _read_some(store, wanted)
        for name in wanted:
            entry, before = found[name], known.get(name)
            if entry is not None and entry.chunks:
                count = sum(len(chunk.states) for chunk in entry.chunks)
                if count != entry.topic.partition_count:
                    torn.append(name)
                    continue
            if entry is not None and before is not None and entry.topic == before.topic:
                entry = replace(entry, topic=before.topic)
            entries[name] = before if entry == before else entry
        if not torn:
            return entries
        wanted = torn
    raise ConfigError(
        f"the states of topic {wanted[0]} in the coordination store are not those of its partitions; "
        "restore it from a backup"
    )


async def _read_some(store: CoordinationStore, names: Collection[str]) -> dict[str, TopicEntry | None]:
    nodes = await store.get_many([tree.topic_path(name) for name in names])
    found = {
        name: (_decoded(tree.topic_path(name), tree.decode_topic, node.data), node.version)
        for name, node in zip(names, nodes, strict=True)
        if node is not None and node.data
    }
    counts = {name: -(-topic.partition_count // STATES_PER_CHUNK) for name, (topic, _) in found.items()}
    paths = [tree.chunk_path(name, number) for name, count in counts.items() for number in range(count)]
    chunks = zip(paths, await store.get_many(paths), strict=True)
    entries: dict[str, TopicEntry | None] = dict.fromkeys(names)
    for name, (topic, version) in found.items():
        mine = [next(chunks) for _ in range(counts[name])]
        states = tuple(_decoded(path, tree.decode_chunk, node) for path, node in mine if node is not None)
        entries[name] = TopicEntry(topic, version, states)
    return entries


def _decoded(path: str, decode: Callable[[Contents], Decoded], contents: Contents) -> Decoded:
    try:
        return decode(contents)
    except tree.UNREADABLE as error:
        raise ConfigError(
            f"node {path} of the coordination store cannot be read ({error!r}); restore it from a backup"
        ) from error


async def _with_brokers(store: CoordinationStore, image: ClusterImage) -> ClusterImage:
    node, levels = await store.get_many([tree.LIVE_BROKERS, tree.FEATURES])
    return replace(
        image,
        version=image.version + 1,
        brokers=tree.decode_live_brokers(node),
        brokers_version=-1 if node is None else node.version,
        level=FIRST_LEVEL if levels is None else decode_level(levels.data),
        level_version=-1 if levels is None else levels.version,
    )
