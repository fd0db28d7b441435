"""What can happen to a group, and what the group wants done about it.

A request carries a `token`, chosen by the shell; its answer is the `Reply` effect with the same token, now or
in a later step. `Append` asks for records on the journal; the shell answers with the event `Appended`,
carrying the same `pending`, once they are durable or have failed. Effects are carried out in order.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.broker.groups.model import CommittedOffset, JournalRecord, Member, StoredGroup
from headrace.broker.groups.modern.model import Assignment, ConsumerGroup, ResolvedPattern
from headrace.protocol.errors import ErrorCode

# -- events --------------------------------------------------------------------------------------------------


class Join(msgspec.Struct, frozen=True):
    token: int
    member_id: str
    new_member_id: str
    """The id to use if the group has to give one; unique, made by the shell."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    must_know_id: bool
    """JoinGroup v4+: a client without a member id is given one and sent back (KIP-394)."""
    can_skip_assignment: bool
    """JoinGroup v9+: a returning static leader is told to leave the assignment alone (KIP-814)."""


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
    """`generation` -1 with an empty `member_id` is a consumer that only stores its offsets here."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    """Or the member epoch, in a group of the consumer protocol."""
    offsets: Mapping[tuple[str, int], CommittedOffset]
    knows_epochs: bool = True
    """OffsetCommit v9+: the client can be told that its epoch is stale."""
    batch: bytes | None = None
    """What the journal shall have of it, made beforehand: then every metadata text is short enough."""


class ConsumerHeartbeat(msgspec.Struct, frozen=True):
    """ConsumerGroupHeartbeat (KIP-848). None, or -1, is what has not changed since the last one."""

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
    """Version 1: the member brings its own id."""
    resolved: ResolvedPattern | None = None
    """The topics that `pattern` matches, if it is a new one."""


class PatternsResolved(msgspec.Struct, frozen=True):
    """Topics have changed: what the patterns of a group match now."""

    patterns: Mapping[str, ResolvedPattern]


class TransactionalCommit(msgspec.Struct, frozen=True):
    """A commit that counts when the producer's transaction does. Old clients name no member (KIP-447)."""

    commit: Commit
    producer_id: int
    producer_epoch: int


class TransactionCommitted(msgspec.Struct, frozen=True):
    """Offsets of a transaction whose marker is on the journal."""

    offsets: Mapping[tuple[str, int], CommittedOffset]


class DeleteOffsets(msgspec.Struct, frozen=True):
    """`in_transactions`, here and below: partitions with positions of the group in open transactions."""

    token: int
    partitions: tuple[tuple[str, int], ...]
    in_transactions: frozenset[tuple[str, int]] = frozenset()


class DeleteGroup(msgspec.Struct, frozen=True):
    token: int
    in_transactions: frozenset[tuple[str, int]] = frozenset()


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: whatever is due happens."""


class ExpireOffsets(msgspec.Struct, frozen=True):
    """Drop offsets beyond their retention, and the group if nothing is left of it."""

    in_transactions: frozenset[tuple[str, int]] = frozenset()


class ForgetTopic(msgspec.Struct, frozen=True):
    """The topic was deleted: its committed offsets mean nothing any more."""

    topic: str
    in_transactions: frozenset[tuple[str, int]] = frozenset()


class Abandoned(msgspec.Struct, frozen=True):
    """The client of a waiting request is gone; its reply would reach nobody."""

    token: int


class Appended(msgspec.Struct, frozen=True):
    """The outcome of an `Append`: `error` NONE means that its records survive a crash."""

    pending: Pending
    error: ErrorCode


# -- what waits for the journal ------------------------------------------------------------------------------


class PendingAssignment(msgspec.Struct, frozen=True):
    stored: StoredGroup


class PendingStaticMember(msgspec.Struct, frozen=True):
    """A static member came back under a new id; `previous` is put back if that cannot be stored."""

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
    """The group became empty. If storing that fails, the last generation comes back after a crash and times out."""

    stored: StoredGroup


class PendingConsumerChange(msgspec.Struct, frozen=True):
    """`state` is the consumer group once its records are stored."""

    token: int | None
    state: ConsumerGroup
    result: ConsumerHeartbeatResult | JoinResult | HeartbeatResult | LeaveResult | None
    heard_of: str | None = None
    """The member whose session begins anew."""
    late: tuple[str, ...] = ()
    """Members that are removed because their time is over."""


class PendingConversion(msgspec.Struct, frozen=True):
    """An empty group of the consumer protocol becomes a classic one, which `join` joins."""

    join: Join


class PendingDowngrade(msgspec.Struct, frozen=True):
    """A group of the consumer protocol goes on as the classic group `stored`, after `change` took members out."""

    stored: StoredGroup
    protocols: Mapping[str, tuple[tuple[str, bytes], ...]]
    """Member id -> all that the member offers; `stored` has only what was chosen."""
    change: PendingConsumerChange
    join: Join | None = None
    """Whoever took the place of the last member of the consumer protocol."""


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
    """For the leader: (member id, instance id, metadata) of everybody."""
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
    """`error` refuses everything; otherwise `errors` names the partitions that were refused."""

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
    """Put these on the journal, all or nothing, then step with `Appended(pending, ...)`."""

    records: tuple[JournalRecord, ...]
    pending: Pending
    batch: bytes | None = None
    """What `records` would be encoded to, if that was done before; there are none then."""


Effect = Reply | Append
