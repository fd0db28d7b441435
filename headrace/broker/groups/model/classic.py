"""The states and members of a group of the classic protocol."""

from __future__ import annotations

from enum import Enum

import msgspec

from headrace.broker.groups.model.limits import NEVER
from headrace.broker.groups.model.records import StoredMember
from headrace.broker.runtime.invariants import InvariantError

CONSUMER_PROTOCOL_TYPE = "consumer"


class Phase(Enum):
    """The states of a classic group. The values are Kafka's names, which clients are shown."""

    EMPTY = "Empty"
    """No members. The group may have committed offsets. The first JoinGroup begins a rebalance."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The join phase: JoinGroup requests wait until all members have joined, or a deadline passes."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The sync phase: SyncGroup requests wait until the leader's assignment is stored."""
    STABLE = "Stable"
    """Every member has its assignment. A changed, new or lost member begins a rebalance."""
    DEAD = "Dead"
    """The group was deleted. Requests that still find it are answered with COORDINATOR_NOT_AVAILABLE."""


class Member(msgspec.Struct):
    """A member. `awaiting_join` and `awaiting_sync` are the tokens of its requests that are not answered yet."""

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
    """Its first JoinGroup is not answered yet."""
    knows_its_id: bool = True
    """False for a client before JoinGroup v4 until its first answer. If that answer is lost, no client can use the
    member.
    """
    deadline: float = NEVER

    def metadata(self, protocol: str | None) -> bytes:
        """The member's subscription under `protocol`; empty if it does not support `protocol`."""
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
        """The first of its protocols, in its order of preference, that is one of `candidates`."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise InvariantError(f"member {self.member_id} supports none of the protocols {sorted(candidates)}")
