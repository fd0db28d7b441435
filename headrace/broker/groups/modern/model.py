"""What a group of the consumer protocol is: its epochs, members and assignments, and the records of these.

Everything durable changes only by `apply`, which takes one journal record: the same function builds the
state when requests come and when the journal is read at start, so a restart finds what was there. What is
not journalled: how long sessions still run, and the deadlines of revocations and of what members of the classic
protocol are to do next. They begin anew at start.

Three epochs tell how far a group is. The *group epoch* moves when members or subscriptions change; the
*target epoch* is the group epoch that the target assignment was made for; the *member epoch* is the target
that a member has been brought to. Sources: KIP-848, KIP-1251 (epochs of assigned partitions).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    from headrace.broker.partitions.topic import TopicImage

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
LEAVING_STATIC_EPOCH = -2
"""Sent by a static member that will be back; it keeps its partitions until its session is over."""

Assignment = Mapping[UUID, frozenset[int]]
"""Topic id -> partitions. No topic without partitions."""
PartitionEpochs = Mapping[UUID, Mapping[int, int]]
"""Topic id -> partition -> the member epoch at which the member was given it."""

NOTHING: Assignment = {}


class Topics(Protocol):
    """The topics that exist, as the broker's metadata has them. `version` moves with every change."""

    @property
    def version(self) -> int: ...

    def topic(self, name: str) -> TopicImage | None: ...

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None: ...


class NoTopics:
    """For steps that do not look at topics."""

    version = 0

    def topic(self, name: str) -> TopicImage | None:
        return None

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        return None


class MemberState(IntEnum):
    """How a member stands to its target; the values are those on the journal."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has to give partitions up before it may move on."""
    UNRELEASED_PARTITIONS = 2
    """It has arrived, but others have not given up yet what it is to get."""
    UNKNOWN = 127
    """Written by a later version: the member has to join anew."""

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


class ClassicSide(msgspec.Struct, frozen=True):
    """What a member that speaks the classic protocol brings to a group of the consumer protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Names of its assignors in its order of preference, each with its subscription. Never empty."""

    @property
    def protocol(self) -> str:
        """The one it is told that the group has chosen: here nobody assigns by it."""
        return self.protocols[0][0]


class Subscription(msgspec.Struct, frozen=True):
    """What a member says about itself."""

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
    """None for a member that speaks the consumer protocol."""


class Current(msgspec.Struct, frozen=True):
    """What a member has. A partition stays its own until it is in neither `assigned` nor `revoking`."""

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


class ConsumerMember(msgspec.Struct):
    member_id: str
    subscription: Subscription = msgspec.field(default_factory=Subscription)
    current: Current = msgspec.field(default_factory=Current)

    @property
    def is_classic(self) -> bool:
        """It speaks the classic protocol: its member epoch is the generation it is told."""
        return self.subscription.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.epoch == target_epoch


# -- journal records -----------------------------------------------------------------------------------------


class PutEpoch(msgspec.Struct, frozen=True):
    group_id: str
    epoch: int
    metadata_hash: int


class DropEpoch(msgspec.Struct, frozen=True):
    """The group is gone."""

    group_id: str


class PutSubscription(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    subscription: Subscription


class DropSubscription(msgspec.Struct, frozen=True):
    """The member is gone."""

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


# -- the state -----------------------------------------------------------------------------------------------


class ConsumerGroup(msgspec.Struct):
    """The consumer-protocol side of a group: its members and what they are to have."""

    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    target_time_ms: int = 0
    members: dict[str, ConsumerMember] = msgspec.field(default_factory=dict)
    static_members: dict[str, str] = msgspec.field(default_factory=dict)
    """group.instance.id -> member id."""
    target: dict[str, Assignment] = msgspec.field(default_factory=dict)
    patterns: dict[str, ResolvedPattern] = msgspec.field(default_factory=dict)
    owners: dict[UUID, dict[int, str]] = msgspec.field(default_factory=dict)
    """Topic id -> partition -> the member that has it, or has not given it up yet."""
    stored: bool = False
    """Something of the group is on the journal."""

    # Not journalled.
    sessions: dict[str, float] = msgspec.field(default_factory=dict)
    """When each member is given up, unless it is heard of."""
    revocations: dict[str, tuple[float, Current]] = msgspec.field(default_factory=dict)
    """By when a member must have given up what it was told to, and the state in which it was told."""
    joins: dict[str, float] = msgspec.field(default_factory=dict)
    """By when a member of the classic protocol that was told of a rebalance must have joined again."""
    syncs: dict[str, float] = msgspec.field(default_factory=dict)
    """By when one that has joined must have asked for its assignment."""
    seen_version: int = -1
    """The metadata version for which `metadata_hash` was last compared."""

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """Kafka's name of the state, as clients are shown it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """Named by the member, or matched by its pattern."""
        resolved = self.patterns.get(subscription.pattern) if subscription.pattern else None
        if resolved is None:
            return frozenset(subscription.topics)
        return resolved.topics.union(subscription.topics)

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset(
            topic for member in self.members.values() for topic in self.topics_of(member.subscription)
        )

    def assignor(self, default: str) -> str:
        """The one that most members ask for."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if (name := member.subscription.assignor) is not None:
                votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__) if votes else default

    def pattern_users(self) -> dict[str, int]:
        """Each pattern and how many members subscribe by it."""
        users: dict[str, int] = {}
        for member in self.members.values():
            if pattern := member.subscription.pattern:
                users[pattern] = users.get(pattern, 0) + 1
        return users

    def owner(self, topic_id: UUID, partition: int) -> str | None:
        partitions = self.owners.get(topic_id)
        return partitions.get(partition) if partitions is not None else None

    def earliest_deadline(self) -> float:
        earliest = min(self.sessions.values(), default=float("inf"))
        return min(
            [
                earliest,
                *self.joins.values(),
                *self.syncs.values(),
                *(deadline for deadline, _ in self.revocations.values()),
            ]
        )

    def copy(self) -> ConsumerGroup:
        """One that can be changed without this one changing; what is immutable is shared."""
        return ConsumerGroup(
            epoch=self.epoch,
            metadata_hash=self.metadata_hash,
            target_epoch=self.target_epoch,
            target_time_ms=self.target_time_ms,
            members={
                name: ConsumerMember(name, member.subscription, member.current)
                for name, member in self.members.items()
            },
            static_members=dict(self.static_members),
            target=dict(self.target),
            patterns=dict(self.patterns),
            owners={topic_id: dict(partitions) for topic_id, partitions in self.owners.items()},
            stored=self.stored,
            sessions=dict(self.sessions),
            revocations=dict(self.revocations),
            joins=dict(self.joins),
            syncs=dict(self.syncs),
            seen_version=self.seen_version,
        )

    # -- changes ---------------------------------------------------------------------------------------------

    def apply(self, record: ModernRecord) -> None:
        """Let one record of the journal take effect. Records of a member that is not known make it known:
        compaction may leave them in any order.
        """
        match record:
            case PutEpoch(_, epoch, metadata_hash):
                self.epoch, self.metadata_hash, self.stored = epoch, metadata_hash, True
            case PutSubscription(_, member_id, subscription):
                member = self._member(member_id)
                self._forget_instance(member)
                member.subscription = subscription
                if subscription.instance_id is not None:
                    self.static_members[subscription.instance_id] = member_id
            case DropSubscription(_, member_id):
                if (gone := self.members.pop(member_id, None)) is not None:
                    self._forget_instance(gone)
                    self._disown(gone)
                for deadlines in (self.sessions, self.revocations, self.joins, self.syncs):
                    deadlines.pop(member_id, None)
            case PutTargetEpoch(_, epoch, time_ms):
                self.target_epoch, self.target_time_ms, self.stored = epoch, time_ms, True
            case DropTargetEpoch():
                self.target_epoch = self.target_time_ms = 0
            case PutTarget(_, member_id, assignment):
                self.target[member_id] = assignment
            case DropTarget(_, member_id):
                self.target.pop(member_id, None)
            case PutCurrent(_, member_id, current):
                self._put_current(self._member(member_id), current)
            case DropCurrent(_, member_id):
                if (known := self.members.get(member_id)) is not None:
                    self._put_current(known, Current())
            case PutPattern(_, pattern, resolved):
                self.patterns[pattern] = resolved
            case DropPattern(_, pattern):
                self.patterns.pop(pattern, None)
            case DropEpoch():
                self.epoch = self.metadata_hash = 0
                self.stored = False

    def _member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id)
            self.stored = True
        return member

    def _forget_instance(self, member: ConsumerMember) -> None:
        instance_id = member.subscription.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def _put_current(self, member: ConsumerMember, current: Current) -> None:
        self._disown(member)
        member.current = current
        for held in (current.assigned, current.revoking):
            for topic_id, partitions in held.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member.member_id))

    def _disown(self, member: ConsumerMember) -> None:
        for held in (member.current.assigned, member.current.revoking):
            for topic_id, partitions in held.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    del self.owners[topic_id]


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """A number that differs when one of these topics comes, goes, is made anew or grows.

    Kafka's own hash is another one; it compares numbers it has made itself with numbers it has made itself.
    """
    digest = hashlib.blake2b(digest_size=8)
    found = False
    for name in sorted(names):
        image = topics.topic(name)
        if image is not None:
            found = True
            digest.update(b"%s\0%b%d\0" % (name.encode(), image.topic_id.bytes, image.partition_count))
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0


def records_of(group_id: str, consumer: ConsumerGroup) -> Iterator[ModernRecord]:
    """The records from which `apply` builds this group again."""
    if not consumer.stored:
        return
    for member in consumer.members.values():
        yield PutSubscription(group_id, member.member_id, member.subscription)
    yield PutEpoch(group_id, consumer.epoch, consumer.metadata_hash)
    for pattern, resolved in consumer.patterns.items():
        yield PutPattern(group_id, pattern, resolved)
    for member_id, assignment in consumer.target.items():
        yield PutTarget(group_id, member_id, assignment)
    yield PutTargetEpoch(group_id, consumer.target_epoch, consumer.target_time_ms)
    for member in consumer.members.values():
        yield PutCurrent(group_id, member.member_id, member.current)


def tombstones_of(group_id: str, consumer: ConsumerGroup) -> Iterator[ModernRecord]:
    """The records that bury everything of this group, in Kafka's order."""
    for member_id in consumer.members:
        yield DropCurrent(group_id, member_id)
    for member_id in consumer.target:
        yield DropTarget(group_id, member_id)
    yield DropTargetEpoch(group_id)
    for member_id in consumer.members:
        yield DropSubscription(group_id, member_id)
    for pattern in consumer.patterns:
        yield DropPattern(group_id, pattern)
    yield DropEpoch(group_id)
