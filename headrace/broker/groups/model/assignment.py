"""Values of the consumer protocol (KIP-848): subscriptions, assignments, and a member's place between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from uuid import UUID

import msgspec

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
LEAVING_STATIC_EPOCH = -2
"""Sent by a static member that will come back. It keeps its partitions until its session ends."""

Assignment = Mapping[UUID, frozenset[int]]
"""Topic id -> partitions. Every topic has at least one."""
PartitionEpochs = Mapping[UUID, Mapping[int, int]]
"""Topic id -> partition -> the member epoch in which the member was given it (KIP-1251)."""

NOTHING: Assignment = {}


class MemberState(IntEnum):
    """The states of a member on the way to its target assignment. The values are those on the journal."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """The member must give up partitions before it can move on."""
    UNRELEASED_PARTITIONS = 2
    """The member is in the target epoch, but other members still hold partitions of its target."""
    UNKNOWN = 127
    """A value of a later version: the member must join again."""

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


class ClassicSide(msgspec.Struct, frozen=True):
    """The JoinGroup fields of a member that uses the classic protocol in a group of the consumer protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Its assignors in order of preference, each with its subscription. Never empty."""

    @property
    def protocol(self) -> str:
        """The assignor that the member is told. The member does not assign with it: the broker does."""
        return self.protocols[0][0]


class Subscription(msgspec.Struct, frozen=True):
    """The fields that a member declares about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Sorted, without duplicates."""
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None
    """None for a member that uses the consumer protocol."""


class Current(msgspec.Struct, frozen=True):
    """The current assignment of a member. It owns the partitions of `assigned` and of `revoking`."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = msgspec.field(default_factory=dict)
    revoking: PartitionEpochs = msgspec.field(default_factory=dict)


class ResolvedPattern(msgspec.Struct, frozen=True):
    """The topics that a regular expression matched when the metadata had `version`, at `time_ms`."""

    topics: frozenset[str]
    version: int
    time_ms: int
