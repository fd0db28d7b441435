"""A group of the consumer protocol: its epochs, members and assignments (KIP-848).

`apply` is the only way to change the stored part, one journal record at a time. It builds the state both when requests
come and when the journal is read at start, so a restart gives the same state. Sessions, the deadlines of revocations
and those of classic members are not stored: they begin again at start.

Three epochs tell how far a group is. The *group epoch* rises when members or subscriptions change. The *target epoch*
is the group epoch for which the target assignment was computed. The *member epoch* is the target epoch that a member
has reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from uuid import UUID

import msgspec

from headrace.broker.groups.model.assignment import (
    Assignment,
    Current,
    MemberState,
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
from headrace.broker.groups.model.topics import Topics


class ConsumerMember(msgspec.Struct):
    member_id: str
    subscription: Subscription = msgspec.field(default_factory=Subscription)
    current: Current = msgspec.field(default_factory=Current)

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol. Its member epoch is the generation that it is told."""
        return self.subscription.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.epoch == target_epoch


class ConsumerGroup(msgspec.Struct):
    """The members of a group, their current assignments and the target assignment."""

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
    """Topic id -> partition -> its owner: the member that has it or has not given it up yet."""
    stored: bool = False
    """Whether the journal has records of the group."""

    # Not journalled.
    sessions: dict[str, float] = msgspec.field(default_factory=dict)
    """Member id -> the end of its session."""
    revocations: dict[str, tuple[float, Current]] = msgspec.field(default_factory=dict)
    """Member id -> the deadline of its revocation, and the state in which it was told to revoke."""
    joins: dict[str, float] = msgspec.field(default_factory=dict)
    """Id of a classic member that was told of a rebalance -> its deadline to join again."""
    syncs: dict[str, float] = msgspec.field(default_factory=dict)
    """Id of a classic member that has joined -> its deadline to send SyncGroup."""
    seen_version: int = -1
    """The metadata version at which `metadata_hash` was last compared."""

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """Kafka's name of the state."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """The topics that the member names and those that its pattern matches."""
        resolved = self.patterns.get(subscription.pattern) if subscription.pattern else None
        if resolved is None:
            return frozenset(subscription.topics)
        return resolved.topics.union(subscription.topics)

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset(
            topic for member in self.members.values() for topic in self.topics_of(member.subscription)
        )

    def assignor(self, default: str) -> str:
        """The assignor that most members name, or `default`."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if (name := member.subscription.assignor) is not None:
                votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__) if votes else default

    def pattern_users(self) -> dict[str, int]:
        """Each pattern with the number of members that subscribe by it."""
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
        """A copy that can be changed independently. Immutable values are shared."""
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
        """Apply one journal record. A record of an unknown member creates it: compaction can change their order."""
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
    """Return a number that changes when one of these topics is created, deleted, recreated or gets partitions.

    It differs from Kafka's own hash. Each implementation compares only its own numbers.
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
    """Yield the records from which `apply` builds this group again."""
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
    """Yield the tombstones of all records of this group, in Kafka's order."""
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
