"""Records that a table refused, on their way into its dead-letter topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.log.validation import AppendOrigin
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.cluster.partition import Partition
    from broker.context import BrokerContext

_MESSAGE_BYTES_MAX: Final = 100 << 20
"""Of a topic that is made: tables take whatever a request can hold, and so must the place of what they refuse."""


async def write_dead_letters(
    context: BrokerContext, topic: str, batches: Sequence[bytes], timeout_ms: int
) -> None:
    """Append the batches to the topic, which is made if it is not there, and wait until they count as acknowledged.
    Raises KafkaError.
    """
    metadata = context.metadata
    if metadata.topic(topic) is None:
        try:
            await metadata.create_topic(topic, 1, {"max.message.bytes": str(_MESSAGE_BYTES_MAX)})
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
    partition = _served_here(context, topic)
    for batch in batches:
        info = partition.append(batch, AppendOrigin.CLIENT)
        if not await partition.wait_for_high_watermark(info.last_offset + 1, timeout_ms):
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"dead letters are in {topic}, but not on disk within {timeout_ms} ms",
            )


def _served_here(context: BrokerContext, topic: str) -> Partition:
    image = context.metadata.topic(topic)
    if image is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"dead-letter topic {topic} was deleted")
    if image.internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"dead-letter topic {topic} is the broker's own")
    own = context.identity.broker_id
    for index in range(image.partition_count):
        leader = context.metadata.leader(topic, index)
        if leader is not None and leader.broker_id != own:
            continue
        partition = context.partition(topic, index)
        if partition.hooks is not None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"dead-letter topic {topic} is a table; dead letters need a plain topic",
            )
        return partition
    raise KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"no partition of dead-letter topic {topic} is on broker {own}, where the table is",
    )
