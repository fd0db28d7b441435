"""Where the cluster stands in the coordination store, and how its nodes are written.

/controller                         ephemeral: which broker is the controller
/controller_epoch                   goes up with every controller; every change of a topic checks it
/brokers/ids/<id>                   ephemeral: a broker that is alive; the number of its creation is its epoch
/brokers/known/<id>                 every broker that ever was
/topics/<name>                      id, number of partitions, configuration
/topics/<name>/states/<chunk>       states of the partitions from STATES_PER_CHUNK * chunk on
/deleted/<topic id>                 a deleted topic whose files are still to be removed

Nodes hold JSON, whose objects say the version of their layout where it is not the first. A topic of the first layout of
all has no states: `/leader_epoch` holds the one epoch of all partitions then.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Final

import msgspec

from broker.cluster.image import BrokerImage, PartitionState, StatesChunk, TopicEntry
from broker.cluster.topic import TopicImage
from broker.cluster.topic_names import INTERNAL_TOPICS
from broker.ports import CreateNode, DeleteNode, Node, StoreOperation

CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKER_IDS: Final = "/brokers/ids"
KNOWN_BROKERS: Final = "/brokers/known"
TOPICS: Final = "/topics"
DELETED: Final = "/deleted"
LEADER_EPOCH: Final = "/leader_epoch"
"""Of the layout before states."""

_states_decoder = msgspec.json.Decoder(tuple[PartitionState, ...])


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


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


def encode_broker(broker: BrokerImage, *, clean: bool) -> bytes:
    """`clean`: whether its last stop was, which whoever is the controller has to know."""
    fields = {
        "incarnation": broker.incarnation,
        "endpoints": broker.endpoints,
        "rack": broker.rack,
        "clean": clean,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_broker(broker_id: int, node: Node) -> BrokerImage:
    fields = json.loads(node.data)
    endpoints = tuple((listener, host, port) for listener, host, port in fields["endpoints"])
    return BrokerImage(broker_id, node.created, fields["incarnation"], endpoints, fields["rack"])


def creation(entry: TopicEntry) -> list[StoreOperation]:
    """The nodes of a new topic."""
    return [CreateNode(topic_path(entry.topic.name), encode_topic(entry.topic)), *states_creation(entry)]


def states_creation(entry: TopicEntry) -> list[StoreOperation]:
    """The nodes of the states of a topic that has none yet."""
    name = entry.topic.name
    chunks = enumerate(entry.chunks)
    return [
        CreateNode(states_path(name)),
        *(CreateNode(chunk_path(name, number), encode_states(chunk.states)) for number, chunk in chunks),
    ]


def deletion(entry: TopicEntry) -> list[StoreOperation]:
    """All nodes of a topic; what is left to do is under `/deleted`."""
    name = entry.topic.name
    operations: list[StoreOperation] = [
        DeleteNode(chunk_path(name, number), chunk.version) for number, chunk in enumerate(entry.chunks)
    ]
    if entry.chunks:
        operations.append(DeleteNode(states_path(name), 0))
    operations.append(DeleteNode(topic_path(name), entry.version))
    operations.append(CreateNode(deleted_path(entry.topic.topic_id), encode_topic(entry.topic)))
    return operations
