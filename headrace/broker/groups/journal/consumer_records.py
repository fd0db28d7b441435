"""The bytes of the consumer protocol's records on `__consumer_offsets`, as Kafka writes them.

Key 4 (partition metadata, Kafka 4.0 only) is skipped when reading: the hash in key 3 has replaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.broker.groups.model.assignment import (
    Assignment,
    ClassicSide,
    Current,
    MemberState,
    PartitionEpochs,
    ResolvedPattern,
    Subscription,
)
from headrace.broker.groups.model.records import (
    DropCurrent,
    DropEpoch,
    DropPattern,
    DropSubscription,
    DropTarget,
    DropTargetEpoch,
    ModernRecord,
    PutCurrent,
    PutEpoch,
    PutPattern,
    PutSubscription,
    PutTarget,
    PutTargetEpoch,
)
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
)
from headrace.protocol.messages.consumer_offsets import decode_versioned, encode_versioned, peek_version
from headrace.protocol.schema import Message

_KEYS: dict[int, tuple[type[Message], type[Message]]] = {
    key.MIN_VERSION: (key, value)
    for key, value in (
        (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
        (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    )
}


def encode_modern(record: ModernRecord) -> tuple[bytes, bytes | None]:
    """Return key and value of a journal record. A value of None is a tombstone. Raises EncodeError."""
    key, value = _messages(record)
    return encode_versioned(key, key.MIN_VERSION), None if value is None else encode_versioned(value, 0)


def _messages(record: ModernRecord) -> tuple[Message, Message | None]:
    value: Message | None = None
    match record:
        case PutEpoch(group_id, epoch, metadata_hash):
            value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
            return ConsumerGroupMetadataKey(group_id=group_id), value
        case DropEpoch(group_id):
            return ConsumerGroupMetadataKey(group_id=group_id), None
        case PutSubscription(group_id, member_id, subscription):
            value = _subscription_value(subscription)
            return ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value
        case DropSubscription(group_id, member_id):
            return ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None
        case PutTargetEpoch(group_id, epoch, time_ms):
            value = ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=epoch, assignment_timestamp=time_ms
            )
            return ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value
        case DropTargetEpoch(group_id):
            return ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None
        case PutTarget(group_id, member_id, assignment):
            value = ConsumerGroupTargetAssignmentMemberValue(
                topic_partitions=[
                    TargetTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in assignment.items()
                ]
            )
            return ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value
        case DropTarget(group_id, member_id):
            return ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None
        case PutCurrent(group_id, member_id, current):
            value = ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=current.epoch,
                previous_member_epoch=current.previous_epoch,
                state=current.state,
                assigned_partitions=_with_epochs(current.assigned),
                partitions_pending_revocation=_with_epochs(current.revoking),
            )
            return ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), value
        case DropCurrent(group_id, member_id):
            return ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None
        case PutPattern(group_id, pattern, resolved):
            value = ConsumerGroupRegularExpressionValue(
                topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.time_ms
            )
            return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern), value
        case DropPattern(group_id, pattern):
            return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern), None


def _subscription_value(subscription: Subscription) -> ConsumerGroupMemberMetadataValue:
    classic = subscription.classic
    return ConsumerGroupMemberMetadataValue(
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=list(subscription.topics),
        subscribed_topic_regex=subscription.pattern or "",
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        server_assignor=subscription.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
            ],
        ),
    )


def _with_epochs(held: PartitionEpochs) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[index] for index in sorted(partitions)],
        )
        for topic_id, partitions in held.items()
    ]


def decode_modern(key: bytes, value: bytes | None) -> ModernRecord | None:
    """Return the record, or None for an unknown kind. Raises DecodeError if it is malformed."""
    kinds = _KEYS.get(peek_version(key))
    if kinds is None:
        return None
    decoded: Any = decode_versioned(kinds[0], key)[0]
    if value is None:
        return _tombstone(decoded)
    return _READERS[type(decoded)](decoded, decode_versioned(kinds[1], value)[0])


def _tombstone(key: Any) -> ModernRecord:
    match key:
        case ConsumerGroupMetadataKey():
            return DropEpoch(key.group_id)
        case ConsumerGroupMemberMetadataKey():
            return DropSubscription(key.group_id, key.member_id)
        case ConsumerGroupTargetAssignmentMetadataKey():
            return DropTargetEpoch(key.group_id)
        case ConsumerGroupTargetAssignmentMemberKey():
            return DropTarget(key.group_id, key.member_id)
        case ConsumerGroupCurrentMemberAssignmentKey():
            return DropCurrent(key.group_id, key.member_id)
        case _:
            return DropPattern(key.group_id, key.regular_expression)


def _read_subscription(
    key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue
) -> PutSubscription:
    classic = value.classic_member_metadata
    subscription = Subscription(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=tuple(sorted(set(value.subscribed_topic_names))),
        pattern=value.subscribed_topic_regex or None,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None
        if classic is None or not classic.supported_protocols
        else ClassicSide(
            classic.session_timeout_ms,
            tuple((known.name, known.metadata) for known in classic.supported_protocols),
        ),
    )
    return PutSubscription(key.group_id, key.member_id, subscription)


def _read_target(
    key: ConsumerGroupTargetAssignmentMemberKey, value: ConsumerGroupTargetAssignmentMemberValue
) -> PutTarget:
    assignment: Assignment = {
        entry.topic_id: frozenset(entry.partitions) for entry in value.topic_partitions if entry.partitions
    }
    return PutTarget(key.group_id, key.member_id, assignment)


def _read_current(
    key: ConsumerGroupCurrentMemberAssignmentKey, value: ConsumerGroupCurrentMemberAssignmentValue
) -> PutCurrent:
    current = Current(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_epochs(value.assigned_partitions, value.member_epoch),
        revoking=_epochs(value.partitions_pending_revocation, value.member_epoch),
    )
    return PutCurrent(key.group_id, key.member_id, current)


def _epochs(entries: Sequence[CurrentTopicPartitions], member_epoch: int) -> PartitionEpochs:
    """Read partitions with their epochs. Before Kafka 4.3 they have none, so they get their member's."""
    held: dict[Any, dict[int, int]] = {}
    for entry in entries:
        epochs = entry.assignment_epochs
        if epochs is None:
            epochs = [member_epoch] * len(entry.partitions)
        if len(epochs) != len(entry.partitions):
            raise DecodeError(
                f"{len(entry.partitions)} partitions of topic {entry.topic_id} come with {len(epochs)} epochs"
            )
        if entry.partitions:
            held[entry.topic_id] = dict(zip(entry.partitions, epochs, strict=True))
    return held


_READERS: dict[type[Message], Callable[[Any, Any], ModernRecord]] = {
    ConsumerGroupMetadataKey: lambda key, value: PutEpoch(key.group_id, value.epoch, value.metadata_hash),
    ConsumerGroupMemberMetadataKey: _read_subscription,
    ConsumerGroupTargetAssignmentMetadataKey: lambda key, value: PutTargetEpoch(
        key.group_id, value.assignment_epoch, value.assignment_timestamp
    ),
    ConsumerGroupTargetAssignmentMemberKey: _read_target,
    ConsumerGroupCurrentMemberAssignmentKey: _read_current,
    ConsumerGroupRegularExpressionKey: lambda key, value: PutPattern(
        key.group_id,
        key.regular_expression,
        ResolvedPattern(frozenset(value.topics), value.version, value.timestamp),
    ),
}
