"""The cluster's nodes in the coordination store, and their encoding.

/controller                         ephemeral: the broker that is the controller
/controller_epoch                   goes up with every controller; every change of a topic checks it
/brokers/ids/<id>                   ephemeral: a broker that is alive; the number of its creation is its epoch
/brokers/known/<id>                 every broker that has registered and was not removed: its rack and address
/brokers/seen/<id>                  ephemeral: the version of `/changes` that a broker has followed up to
/brokers/live                       brokers that the controller has seen: they may lead and get partitions
/changes                            the last changes of topics and brokers; its version counts all of them
/cluster/id                         the cluster's id, which its data directories have, too
/cluster/adoption                   while a single broker becomes its first member (`broker.cluster.adoption`)
/features                           finalized levels (`broker.metadata.features`); changes noted as for brokers
/topics/<name>                      id, number of partitions, configuration
/topics/<name>/states/<chunk>       states of the partitions from STATES_PER_CHUNK * chunk on
/remote-claim                       the claim of the cluster to its remote storage (`broker.remote.shared_copy`)
/deleted/<topic id>                 a deleted topic whose files are still to be removed

A change of topics or of the live brokers adds an entry to `/changes` in the same transaction, at the version that it
was decided by. So all changes have one order, and one watch is enough to follow them. Reads during which `/changes` has
stayed the same are of one moment.

Nodes hold JSON objects, which have the version of their layout if it is not the first. A topic of the very first layout
has no states: `/leader_epoch` holds the one epoch of all partitions then.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from headrace.broker.metadata.features import FIRST_LEVEL, METADATA_VERSION
from headrace.broker.metadata.image import (
    BrokerImage,
    Changes,
    PartitionState,
    Registered,
    StatesChunk,
    TopicEntry,
)
from headrace.broker.metadata.topic_names import INTERNAL_TOPICS
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.ports import CreateNode, DeleteNode, Node, SetNode, StoreOperation

CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKER_IDS: Final = "/brokers/ids"
KNOWN_BROKERS: Final = "/brokers/known"
SEEN: Final = "/brokers/seen"
LIVE_BROKERS: Final = "/brokers/live"
CHANGES: Final = "/changes"
CLUSTER_ID: Final = "/cluster/id"
FEATURES: Final = "/features"
ADOPTION: Final = "/cluster/adoption"
TOPICS: Final = "/topics"
DELETED: Final = "/deleted"
LEADER_EPOCH: Final = "/leader_epoch"
"""A node of the layout before states."""

UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, msgspec.MsgspecError)
"""The errors of a node whose contents are not what this version writes."""

_states_decoder = msgspec.json.Decoder(tuple[PartitionState, ...])
_changes_decoder = msgspec.json.Decoder(tuple[tuple[str, ...] | None, ...])
_brokers_decoder = msgspec.json.Decoder(tuple[BrokerImage, ...])


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def is_topic(path: str) -> bool:
    """Return whether it is the node of a topic."""
    return path.startswith(f"{TOPICS}/") and path.count("/") == 2


def states_path(name: str) -> str:
    return f"{TOPICS}/{name}/states"


def chunk_path(name: str, chunk: int) -> str:
    return f"{TOPICS}/{name}/states/{chunk}"


def deleted_path(topic_id: uuid.UUID) -> str:
    return f"{DELETED}/{topic_id}"


def encode_topic(image: TopicImage) -> bytes:
    return json.dumps(
        {
            "name": image.name,
            "id": str(image.topic_id),
            "partitions": image.partition_count,
            "config": dict(image.config),
        },
        separators=(",", ":"),
    ).encode()


def decode_topic(data: bytes) -> TopicImage:
    fields = json.loads(data)
    name = fields["name"]
    return TopicImage(
        name, uuid.UUID(fields["id"]), fields["partitions"], fields["config"], name in INTERNAL_TOPICS
    )


def encode_states(states: Sequence[PartitionState]) -> bytes:
    return msgspec.json.encode(states)


def decode_states(data: bytes) -> tuple[PartitionState, ...]:
    return _states_decoder.decode(data)


def decode_chunk(node: Node) -> StatesChunk:
    return StatesChunk(node.version, decode_states(node.data))


def encode_broker(broker: BrokerImage, *, clean: bool, kept: bool = False, synced: bool = False) -> bytes:
    """Encode a broker for the controller. `clean`: its last stop was clean; `kept`: everything that was written is
    there although it was not; `synced`: it had acknowledged only records on disk.
    """
    fields = {
        "incarnation": broker.incarnation,
        "endpoints": broker.endpoints,
        "rack": broker.rack,
        "clean": clean,
        "kept": kept,
        "synced": synced,
        "leaving": broker.leaving,
        "features": {METADATA_VERSION: broker.levels},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_broker(broker_id: int, node: Node) -> BrokerImage:
    fields = json.loads(node.data)
    endpoints = tuple((listener, host, port) for listener, host, port in fields["endpoints"])
    lowest, highest = fields.get("features", {}).get(METADATA_VERSION, (FIRST_LEVEL, FIRST_LEVEL))
    return BrokerImage(
        broker_id,
        node.created,
        fields["incarnation"],
        endpoints,
        fields["rack"],
        levels=(lowest, highest),
    )


def decode_registered(broker_id: int, node: Node) -> Registered:
    fields = json.loads(node.data)
    return Registered(
        decode_broker(broker_id, node),
        clean=bool(fields["clean"]),
        kept=bool(fields.get("kept")),
        synced=bool(fields.get("synced")),
        leaving=bool(fields.get("leaving")),
    )


def encode_known(rack: str | None, endpoints: Sequence[tuple[str, str, int]]) -> bytes:
    """Encode the rack and the endpoints of a broker that is not alive."""
    return json.dumps({"rack": rack, "endpoints": list(endpoints)}, separators=(",", ":")).encode()


def decode_known(broker_id: int, node: Node) -> BrokerImage:
    fields = json.loads(node.data)
    endpoints = tuple((listener, host, port) for listener, host, port in fields.get("endpoints", ()))
    return BrokerImage(broker_id, -1, "", endpoints, fields.get("rack"))


def decode_changes(node: Node | None) -> Changes:
    return Changes() if node is None else Changes(node.version, _changes_decoder.decode(node.data))


def changes_operation(changes: Changes) -> StoreOperation:
    """Return the operation that adds the newest entry to the journal's node."""
    data = msgspec.json.encode(changes.recent)
    if changes.version == 0:
        return CreateNode(CHANGES, data)
    return SetNode(CHANGES, data, changes.version - 1)


def decode_live_brokers(node: Node | None) -> dict[int, BrokerImage]:
    if node is None:
        return {}
    return {broker.broker_id: broker for broker in _brokers_decoder.decode(node.data)}


def live_brokers_operation(brokers: Mapping[int, BrokerImage], version: int) -> StoreOperation:
    """`version` is that of the node as it was read, -1 if it does not exist."""
    data = msgspec.json.encode([brokers[number] for number in sorted(brokers)])
    return CreateNode(LIVE_BROKERS, data) if version < 0 else SetNode(LIVE_BROKERS, data, version)


def encode_deletion(topic: TopicImage, brokers: Iterable[int]) -> bytes:
    """`brokers` still have files of the topic."""
    fields = {**json.loads(encode_topic(topic)), "brokers": sorted(brokers)}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_deletion(data: bytes) -> tuple[TopicImage, list[int] | None]:
    """Return the topic, and the brokers that still have files of it; None: the only broker."""
    return decode_topic(data), json.loads(data).get("brokers")


def deletion_without(data: bytes | None, broker_id: int) -> bytes | None:
    """Return the contents of a deleted topic's node without a broker that had files of it; None after the last one. In
    the layout without brokers, any broker is the last.
    """
    if data is None:
        return None
    topic, holders = decode_deletion(data)
    left = [broker for broker in holders or () if broker != broker_id]
    return encode_deletion(topic, left) if left else None


def creation(entry: TopicEntry) -> list[StoreOperation]:
    """Return the operations that create the nodes of a new topic."""
    return [CreateNode(topic_path(entry.topic.name), encode_topic(entry.topic)), *states_creation(entry)]


def states_creation(entry: TopicEntry) -> list[StoreOperation]:
    """Return the operations that create the states of a topic that has none yet."""
    name = entry.topic.name
    chunks = enumerate(entry.chunks)
    return [
        CreateNode(states_path(name)),
        *(CreateNode(chunk_path(name, number), encode_states(chunk.states)) for number, chunk in chunks),
    ]


def deletion(entry: TopicEntry) -> list[StoreOperation]:
    """Return the operations that delete all nodes of a topic; `/deleted` gets the remaining work."""
    name = entry.topic.name
    operations: list[StoreOperation] = [
        DeleteNode(chunk_path(name, number), chunk.version) for number, chunk in enumerate(entry.chunks)
    ]
    if entry.chunks:
        operations.append(DeleteNode(states_path(name), 0))
    operations.append(DeleteNode(topic_path(name), entry.version))
    holders = {broker for state in entry.states() for broker in state.replicas}
    operations.append(CreateNode(deleted_path(entry.topic.topic_id), encode_deletion(entry.topic, holders)))
    return operations
