"""The records of the journal `__consumer_offsets`, as values: the part of a group that survives a crash.

`Put…` sets a key and `Drop…` is its tombstone. `broker.groups.journal` has their bytes.
"""

from __future__ import annotations

import msgspec

from headrace.broker.groups.model.assignment import Assignment, Current, ResolvedPattern, Subscription

# -- offsets and the classic protocol ------------------------------------------------------------------------


class CommittedOffset(msgspec.Struct, frozen=True):
    """A consumer's position. `expire_timestamp_ms` is -1 unless an old client (OffsetCommit v2-v4) sent one."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = 0
    expire_timestamp_ms: int = -1


class StoredMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(msgspec.Struct, frozen=True):
    """The stored part of a classic group: one generation with its assignment, or an empty group."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]


class PutGroup(msgspec.Struct, frozen=True):
    stored: StoredGroup


class DropGroup(msgspec.Struct, frozen=True):
    group_id: str


class PutOffset(msgspec.Struct, frozen=True):
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset


class DropOffset(msgspec.Struct, frozen=True):
    group_id: str
    topic: str
    partition: int


# -- the consumer protocol -----------------------------------------------------------------------------------


class PutEpoch(msgspec.Struct, frozen=True):
    group_id: str
    epoch: int
    metadata_hash: int


class DropEpoch(msgspec.Struct, frozen=True):
    """Remove the group."""

    group_id: str


class PutSubscription(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    subscription: Subscription


class DropSubscription(msgspec.Struct, frozen=True):
    """Remove the member."""

    group_id: str
    member_id: str


class PutTargetEpoch(msgspec.Struct, frozen=True):
    group_id: str
    epoch: int
    time_ms: int


class DropTargetEpoch(msgspec.Struct, frozen=True):
    group_id: str


class PutTarget(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    assignment: Assignment


class DropTarget(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class PutCurrent(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    current: Current


class DropCurrent(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class PutPattern(msgspec.Struct, frozen=True):
    group_id: str
    pattern: str
    resolved: ResolvedPattern


class DropPattern(msgspec.Struct, frozen=True):
    group_id: str
    pattern: str


ModernRecord = (
    PutEpoch
    | DropEpoch
    | PutSubscription
    | DropSubscription
    | PutTargetEpoch
    | DropTargetEpoch
    | PutTarget
    | DropTarget
    | PutCurrent
    | DropCurrent
    | PutPattern
    | DropPattern
)

JournalRecord = PutGroup | DropGroup | PutOffset | DropOffset | ModernRecord
