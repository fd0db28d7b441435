"""Records that a table refused, on their way into its dead-letter topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.broker.log.validation import AppendOrigin
from headrace.broker.net.peers import PeerLostError
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.messages.between import KeepDeadLettersRequest, KeepDeadLettersResponse
from headrace.tablelayer.server.catalog.catalog import is_partition, is_table

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext
    from headrace.broker.partitions.topic import TopicImage

_MESSAGE_BYTES_MAX: Final = 100 << 20
"""`max.message.bytes` of a dead-letter topic that the broker creates: as large as the largest request of a table."""
_CHANNEL: Final = "dead-letters"
_MORE_SECONDS: Final = 2.0
"""Added to the request's own timeout when the broker waits for another broker."""


async def write_dead_letters(
    context: BrokerContext, topic: str, batches: Sequence[bytes], timeout_ms: int
) -> None:
    """Append batches to the dead-letter topic, and wait until they are acknowledged.

    The topic is created if it does not exist; another broker may lead its partition. Raises KafkaError.
    """
    metadata = context.metadata
    if metadata.topic(topic) is None:
        try:
            await context.topics.create_topic(topic, 1, {"max.message.bytes": str(_MESSAGE_BYTES_MAX)})
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:  # while too few brokers are alive
                raise KafkaError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"dead-letter topic {topic} cannot be created: {error.message}",
                ) from error
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
    index, leader = _led_near(context, _plain(context, topic))
    for batch in batches:
        if leader == context.identity.broker_id:
            await append_dead_letters(context, topic, index, batch, timeout_ms)
        else:
            await _send(context, leader, topic, index, batch, timeout_ms)


async def append_dead_letters(
    context: BrokerContext, topic: str, index: int, batch: bytes, timeout_ms: int
) -> None:
    """Append a batch to a partition that this broker leads, and wait for it. Raises KafkaError."""
    _plain(context, topic)
    partition = context.replicas.partition(topic, index)
    partition.check_served()
    needed, there = partition.needed_in_sync, partition.in_sync_count
    if there < needed:
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"dead-letter topic {topic} needs min.insync.replicas={needed}, and {there} replica(s) are in sync",
        )
    info = partition.append(batch, AppendOrigin.CLIENT)
    if not await partition.wait_acknowledged(info.last_offset + 1, -1, timeout_ms):
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"dead letters were written to {topic}, but not to all replicas in sync within {timeout_ms} ms",
        )


def _plain(context: BrokerContext, topic: str) -> TopicImage:
    """Return the topic. Raises KafkaError if it is missing, internal or a table."""
    image = context.metadata.topic(topic)
    if image is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"dead-letter topic {topic} does not exist")
    if image.internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"dead-letter topic {topic} is an internal topic")
    if is_table(image.config) or is_partition(image.config):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"dead-letter topic {topic} is a table; dead letters need a plain topic",
        )
    return image


def _led_near(context: BrokerContext, image: TopicImage) -> tuple[int, int]:
    """Return a partition and its leader; a partition that this broker leads is preferred."""
    own = context.identity.broker_id
    led: dict[int, int] = {}
    for index in range(image.partition_count):
        leader = context.metadata.leader(image.name, index)
        if leader is not None:
            led.setdefault(leader.broker_id, index)
    if not led:
        raise KafkaError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"no partition of dead-letter topic {image.name} has a leader now"
        )
    leader_id = own if own in led else next(iter(led))
    return led[leader_id], leader_id


async def _send(
    context: BrokerContext, leader: int, topic: str, index: int, batch: bytes, timeout_ms: int
) -> None:
    """Send a batch to another broker. It does not check rights: the client that named the topic had them."""
    request = KeepDeadLettersRequest(topic=topic, partition=index, batch=batch, timeout_ms=timeout_ms)
    try:
        answer = await context.peers.ask(
            leader,
            request,
            KeepDeadLettersResponse,
            channel=_CHANNEL,
            seconds=timeout_ms / 1000 + _MORE_SECONDS,
        )
    except PeerLostError as error:
        raise KafkaError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"dead-letter topic {topic}: {error.message}"
        ) from None
    if answer.error_code:
        raise KafkaError(
            ErrorCode(answer.error_code),
            f"broker {leader} refuses dead letters: {answer.error_message or ErrorCode(answer.error_code).name}",
        )
