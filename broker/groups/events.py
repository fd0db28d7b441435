"""What can happen to a group, and what the group wants done about it.

A request carries a `token`, chosen by the shell; its answer is the `Reply` effect with the same token, now or
in a later step. `Append` asks for records on the journal; the shell answers with the event `Appended`,
carrying the same `pending`, once they are durable or have failed. Effects are carried out in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.groups.model import CommittedOffset, JournalRecord, Member, StoredGroup
from broker.groups.modern.model import Assignment, ConsumerGroup, ResolvedPattern
from protocol.errors import ErrorCode

# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
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


@dataclass(frozen=True, slots=True)
class Sync:
    token: int
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    token: int
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Leaver:
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class Leave:
    token: int
    leavers: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """`generation` -1 with an empty `member_id` is a consumer that only stores its offsets here."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    """Or the member epoch, in a group of the consumer protocol."""
    offsets: Mapping[tuple[str, int], CommittedOffset]
    knows_epochs: bool = True
    """OffsetCommit v9+: the client can be told that its epoch is stale."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
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


@dataclass(frozen=True, slots=True)
class PatternsResolved:
    """Topics have changed: what the patterns of a group match now."""

    patterns: Mapping[str, ResolvedPattern]


@dataclass(frozen=True, slots=True)
class TransactionalCommit:
    """A commit that counts when the producer's transaction does. Old clients name no member (KIP-447)."""

    commit: Commit
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """Offsets of a transaction whose marker is on the journal."""

    offsets: Mapping[tuple[str, int], CommittedOffset]


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """`in_transactions`, here and below: partitions with positions of the group in open transactions."""

    token: int
    partitions: tuple[tuple[str, int], ...]
    in_transactions: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    token: int
    in_transactions: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: whatever is due happens."""


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Drop offsets beyond their retention, and the group if nothing is left of it."""

    in_transactions: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """The topic was deleted: its committed offsets mean nothing any more."""

    topic: str
    in_transactions: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The client of a waiting request is gone; its reply would reach nobody."""

    token: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an `Append`: `error` NONE means that its records survive a crash."""

    pending: Pending
    error: ErrorCode


# -- what waits for the journal ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingAssignment:
    stored: StoredGroup


@dataclass(frozen=True, slots=True)
class PendingStaticMember:
    """A static member came back under a new id; `previous` is put back if that cannot be stored."""

    stored: StoredGroup
    member_id: str
    previous: Member
    previous_leader: str | None
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class PendingCommit:
    token: int
    offsets: Mapping[tuple[str, int], CommittedOffset]
    errors: Mapping[tuple[str, int], ErrorCode]


@dataclass(frozen=True, slots=True)
class PendingTransactionalCommit:
    commit: PendingCommit
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class PendingOffsetDeletion:
    token: int | None
    partitions: tuple[tuple[str, int], ...]
    errors: Mapping[tuple[str, int], ErrorCode]


@dataclass(frozen=True, slots=True)
class PendingGroupDeletion:
    token: int | None


@dataclass(frozen=True, slots=True)
class PendingEmpty:
    """The group became empty. If storing that fails, the last generation comes back after a crash and times
    out.
    """

    stored: StoredGroup


@dataclass(frozen=True, slots=True)
class PendingConsumerChange:
    """`state` is the consumer group once its records are stored."""

    token: int | None
    state: ConsumerGroup
    result: ConsumerHeartbeatResult | JoinResult | HeartbeatResult | LeaveResult | None
    heard_of: str | None = None
    """The member whose session begins anew."""
    late: tuple[str, ...] = ()
    """Members that are removed because their time is over."""


@dataclass(frozen=True, slots=True)
class PendingConversion:
    """An empty group of the consumer protocol becomes a classic one, which `join` joins."""

    join: Join


@dataclass(frozen=True, slots=True)
class PendingDowngrade:
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


@dataclass(frozen=True, slots=True)
class JoinResult:
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """For the leader: (member id, instance id, metadata) of everybody."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResult:
    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None if it has not changed."""


@dataclass(frozen=True, slots=True)
class LeaveResult:
    error: ErrorCode
    members: tuple[tuple[Leaver, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetsResult:
    """`error` refuses everything; otherwise `errors` names the partitions that were refused."""

    error: ErrorCode
    errors: Mapping[tuple[str, int], ErrorCode]


@dataclass(frozen=True, slots=True)
class DeleteGroupResult:
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


@dataclass(frozen=True, slots=True)
class Reply:
    token: int
    result: Result


@dataclass(frozen=True, slots=True)
class Append:
    """Put these on the journal, all or nothing, then step with `Appended(pending, ...)`."""

    records: tuple[JournalRecord, ...]
    pending: Pending


Effect = Reply | Append
