"""What a consumer group is made of: its members, its limits, and the values that are journalled.

What survives a crash: `StoredGroup` (generation, members, their assignments) and `CommittedOffset`.
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from headrace.broker.groups.modern.model import ModernRecord
from headrace.broker.runtime.invariants import InvariantError

NEVER = math.inf
CONSUMER_PROTOCOL_TYPE = "consumer"


class Phase(Enum):
    """Kafka's states of a classic group; the values are the names that clients are shown."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Now(msgspec.Struct, frozen=True):
    """The two kinds of time of a step: `monotonic` seconds for deadlines, `time_ms` for what is stored."""

    monotonic: float
    time_ms: int


class Limits(msgspec.Struct, frozen=True):
    """Bounds of the coordinator. Defaults are Kafka's unless said otherwise."""

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    group_size_max: int = 2_147_483_647
    new_member_join_timeout_ms: int = 300_000
    """How long a joining client that has never been told its member id is kept: it cannot send heartbeats."""
    pending_members_max: int = 10_000
    """Member ids handed out and not used yet, per group. Ours: Kafka has no bound, so a loop of joins fills
    memory.
    """
    offset_metadata_size_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    consumer_session_timeout_ms: int = 45_000
    """In groups of the consumer protocol the broker sets the times (KIP-848)."""
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_group_size_max: int = 2_147_483_647
    allows_upgrade: bool = True
    """A classic group becomes one of the consumer protocol when the first member of that joins it."""
    allows_downgrade: bool = True
    """It becomes a classic group again when the last member of the consumer protocol is gone."""
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Names of assignors that members may ask for; the first is for those who do not."""


class CommittedOffset(msgspec.Struct, frozen=True):
    """A consumer's position. `expire_timestamp_ms` is -1 unless an old client (OffsetCommit v2-v4) asked for one."""

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
    """The journalled part of a group: one generation with its assignment, or an empty group."""

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


JournalRecord = PutGroup | DropGroup | PutOffset | DropOffset | ModernRecord


class Member(msgspec.Struct):
    """A member of the group. `awaiting_join` and `awaiting_sync` are the tokens of requests it waits in."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    awaiting_join: int | None = None
    awaiting_sync: int | None = None
    is_new: bool = False
    """It joined and has not been answered yet."""
    knows_its_id: bool = True
    """False for a client before JoinGroup v4 until its first answer: if that answer is lost, nobody is this
    member.
    """
    deadline: float = NEVER

    def metadata(self, protocol: str | None) -> bytes:
        """The member's subscription under `protocol`; empty if it did not offer it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def stored(self, protocol: str | None, assignment: bytes) -> StoredMember:
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    def vote(self, candidates: set[str]) -> str:
        """The first of its protocols, in its own order of preference, that everybody supports."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise InvariantError(f"member {self.member_id} supports none of the protocols {sorted(candidates)}")
