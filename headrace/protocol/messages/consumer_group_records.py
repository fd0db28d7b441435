"""The records of `__consumer_offsets` for groups of the consumer protocol (KIP-848), in Kafka's own format.

As with the older records (`protocol.messages.consumer_offsets`) key and value each begin with an int16. In a key it
is the kind of record, 3 to 8 and 16; in a value the version of the value. Keys are never flexible, values always are.
"""

from __future__ import annotations

from uuid import UUID

from headrace.protocol.schema import Message, Struct, array, binary, int8, int32, int64, string, struct, uuid


class ConsumerGroupMetadataKey(Message, versions="3"):
    group_id: str = string()


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+"):
    """The epoch of a group, and a hash of its subscriptions: when the hash changes, the assignment must change."""

    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class ConsumerGroupPartitionMetadataKey(Message, versions="4"):
    """Written by Kafka 4.0 alone; `metadata_hash` took its place (KIP-1101)."""

    group_id: str = string()


class ConsumerGroupMemberMetadataKey(Message, versions="5"):
    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Struct):
    name: str = string()
    metadata: bytes = binary()


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """A member's subscription. `classic_member_metadata` is set while it uses the classic protocol."""

    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+")
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = struct(
        ClassicMemberMetadata, nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="6"):
    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """The group epoch that the target assignment was computed for, and when, in milliseconds."""

    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="7"):
    group_id: str = string()
    member_id: str = string()


class TargetTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    topic_partitions: list[TargetTopicPartitions] = array(TargetTopicPartitions)


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="8"):
    group_id: str = string()
    member_id: str = string()


class CurrentTopicPartitions(Struct):
    """`assignment_epochs` is as long as `partitions`: the member epoch at which each was assigned (KIP-1251)."""

    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)
    assignment_epochs: list[int] | None = array(int32, nullable="0+", tag=0, default=None)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[CurrentTopicPartitions] = array(CurrentTopicPartitions)
    partitions_pending_revocation: list[CurrentTopicPartitions] = array(CurrentTopicPartitions)


class ConsumerGroupRegularExpressionKey(Message, versions="16"):
    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible="0+"):
    """The topics that matched at `version` of the metadata, resolved at `timestamp` (milliseconds)."""

    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()
