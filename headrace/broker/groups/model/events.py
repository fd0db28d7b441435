"""The events that change a group, and the effects of its steps.

The coordinator gives each request a `token`. Its answer is a `Reply` with the same token, in this step or a later one.
`Append` stores records on the journal. When they are stored or have failed, the coordinator reports it by the event
`Appended` with the same `pending`. Effects are carried out in order.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.broker.groups.model.assignment import Assignment, ResolvedPattern
from headrace.broker.groups.model.classic import Member
from headrace.broker.groups.model.consumer import ConsumerGroup
from headrace.broker.groups.model.records import CommittedOffset, JournalRecord, StoredGroup
from headrace.protocol.errors import ErrorCode

# -- events --------------------------------------------------------------------------------------------------


class Join(msgspec.Struct, frozen=True):
    token: int
    member_id: str
    new_member_id: str
    """The member id for a new member. It is unique, and the coordinator has made it."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    must_know_id: bool
    """JoinGroup v4+: a client without a member id is given one, and has to send the request again (KIP-394)."""
    can_skip_assignment: bool
    """JoinGroup v9+: a returning static leader is told to make no assignment (KIP-814)."""


class Sync(msgspec.Struct, frozen=True):
    token: int
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class Heartbeat(msgspec.Struct, frozen=True):
    token: int
    member_id: str
    instance_id: str | None
    generation: int


class Leaver(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None


class Leave(msgspec.Struct, frozen=True):
    token: int
    leavers: tuple[Leaver, ...]


class Commit(msgspec.Struct, frozen=True):
    """A commit. A consumer that only stores offsets has generation -1 and an empty member id."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    """The generation, or the member epoch in a group of the consumer protocol."""
    offsets: Mapping[tuple[str, int], CommittedOffset]
    knows_epochs: bool = True
    """OffsetCommit v9+: the client understands STALE_MEMBER_EPOCH."""
    batch: bytes | None = None
    """The encoded journal records, if they exist already. Then the size of all metadata is checked."""


class ConsumerHeartbeat(msgspec.Struct, frozen=True):
    """ConsumerGroupHeartbeat (KIP-848). A field that has not changed since the last one is None or -1."""

    token: int
    member_id: str
    epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...] | None
    pattern: str | None
    assignor: str | None
    owned: Assignment | None
    chooses_its_id: bool = True
    """Version 1: the member has made its own id."""
    resolved: ResolvedPattern | None = None
    """The topics that `pattern` matches, if it is a new one."""


class PatternsResolved(msgspec.Struct, frozen=True):
    """The topics that the group's patterns match now, after topics have changed."""

    patterns: Mapping[str, ResolvedPattern]


class TransactionalCommit(msgspec.Struct, frozen=True):
    """A commit that takes effect when the producer's transaction commits. Old clients name no member (KIP-447)."""

    commit: Commit
    producer_id: int
    producer_epoch: int


class TransactionCommitted(msgspec.Struct, frozen=True):
    """The offsets of a transaction whose commit marker is on the journal."""

    offsets: Mapping[tuple[str, int], CommittedOffset]


class DeleteOffsets(msgspec.Struct, frozen=True):
    """OffsetDelete. `in_transactions`, also below: partitions with offsets of the group in open transactions."""

    token: int
    partitions: tuple[tuple[str, int], ...]
    in_transactions: frozenset[tuple[str, int]] = frozenset()


class DeleteGroup(msgspec.Struct, frozen=True):
    token: int
    in_transactions: frozenset[tuple[str, int]] = frozenset()


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: deadlines that are over take effect."""


class ExpireOffsets(msgspec.Struct, frozen=True):
    """Drop offsets that have passed their retention, and the group if it has none left."""

    in_transactions: frozenset[tuple[str, int]] = frozenset()


class ForgetTopic(msgspec.Struct, frozen=True):
    """A topic was deleted: drop its committed offsets."""

    topic: str
    in_transactions: frozenset[tuple[str, int]] = frozenset()


class Abandoned(msgspec.Struct, frozen=True):
    """The client of a waiting request has closed its connection."""

    token: int


class Appended(msgspec.Struct, frozen=True):
    """The outcome of an `Append`. If `error` is NONE, its records survive a crash."""

    pending: Pending
    error: ErrorCode


# -- changes that wait for the journal -----------------------------------------------------------------------


class PendingAssignment(msgspec.Struct, frozen=True):
    stored: StoredGroup


class PendingStaticMember(msgspec.Struct, frozen=True):
    """A static member has a new member id. `previous` is put back if that cannot be stored."""

    stored: StoredGroup
    member_id: str
    previous: Member
    previous_leader: str | None
    can_skip_assignment: bool


class PendingCommit(msgspec.Struct, frozen=True):
    token: int
    offsets: Mapping[tuple[str, int], CommittedOffset]
    errors: Mapping[tuple[str, int], ErrorCode]


class PendingTransactionalCommit(msgspec.Struct, frozen=True):
    commit: PendingCommit
    producer_id: int
    producer_epoch: int


class PendingOffsetDeletion(msgspec.Struct, frozen=True):
    token: int | None
    partitions: tuple[tuple[str, int], ...]
    errors: Mapping[tuple[str, int], ErrorCode]


class PendingGroupDeletion(msgspec.Struct, frozen=True):
    token: int | None


class PendingEmpty(msgspec.Struct, frozen=True):
    """The group became empty. If that is not stored, a restart reads the last generation, which times out."""

    stored: StoredGroup


class PendingConsumerChange(msgspec.Struct, frozen=True):
    """A change of a group of the consumer protocol. `state` is the group when the records are stored."""

    token: int | None
    state: ConsumerGroup
    result: ConsumerHeartbeatResult | JoinResult | HeartbeatResult | LeaveResult | None
    heard_of: str | None = None
    """The member whose session begins again."""
    late: tuple[str, ...] = ()
    """Members that are removed because a deadline has passed."""


class PendingConversion(msgspec.Struct, frozen=True):
    """An empty group of the consumer protocol becomes a classic one. Then `join` is applied."""

    join: Join


class PendingDowngrade(msgspec.Struct, frozen=True):
    """A group of the consumer protocol becomes the classic group `stored`, after `change` has removed members."""

    stored: StoredGroup
    protocols: Mapping[str, tuple[tuple[str, bytes], ...]]
    """Member id -> all its assignors and subscriptions. `stored` has only the chosen assignor's."""
    change: PendingConsumerChange
    join: Join | None = None
    """The join that replaced the last member of the consumer protocol."""


Pending = (
    PendingAssignment
    | PendingStaticMember
    | PendingCommit
    | PendingTransactionalCommit
    | PendingOffsetDeletion
    | PendingGroupDeletion
    | PendingEmpty
    | PendingConsumerChange
    | PendingConversion
    | PendingDowngrade
)

Event = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | Commit
    | TransactionalCommit
    | TransactionCommitted
    | ConsumerHeartbeat
    | PatternsResolved
    | DeleteOffsets
    | DeleteGroup
    | Tick
    | ExpireOffsets
    | ForgetTopic
    | Abandoned
    | Appended
)

# -- results and effects -------------------------------------------------------------------------------------


class JoinResult(msgspec.Struct, frozen=True):
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """For the leader: (member id, instance id, metadata) of all members."""
    skip_assignment: bool = False


class SyncResult(msgspec.Struct, frozen=True):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class HeartbeatResult(msgspec.Struct, frozen=True):
    error: ErrorCode


class ConsumerHeartbeatResult(msgspec.Struct, frozen=True):
    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None if it has not changed."""


class LeaveResult(msgspec.Struct, frozen=True):
    error: ErrorCode
    members: tuple[tuple[Leaver, ErrorCode], ...] = ()


class OffsetsResult(msgspec.Struct, frozen=True):
    """The answer to a commit or OffsetDelete. `error` refuses all; otherwise `errors` has the refused partitions."""

    error: ErrorCode
    errors: Mapping[tuple[str, int], ErrorCode]


class DeleteGroupResult(msgspec.Struct, frozen=True):
    error: ErrorCode


Result = (
    JoinResult
    | SyncResult
    | HeartbeatResult
    | ConsumerHeartbeatResult
    | LeaveResult
    | OffsetsResult
    | DeleteGroupResult
)


class Reply(msgspec.Struct, frozen=True):
    token: int
    result: Result


class Append(msgspec.Struct, frozen=True):
    """Store these records, all or none. The event `Appended(pending, ...)` follows."""

    records: tuple[JournalRecord, ...]
    pending: Pending
    batch: bytes | None = None
    """The encoded records, if they exist already. Then `records` is empty."""


Effect = Reply | Append
