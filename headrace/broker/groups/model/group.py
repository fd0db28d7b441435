"""The state of a group. Only `broker.groups.state.step` changes it, and `journal.replay` when it is loaded.

`broker.groups.model.records` has the part that survives a crash. Waiting requests, pending members and a rebalance in
progress do not. A group that is loaded with members is Stable in the generation of its last acknowledged assignment,
and each member begins a session.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.broker.groups.model.classic import CONSUMER_PROTOCOL_TYPE, Member, Phase
from headrace.broker.groups.model.consumer import ConsumerGroup
from headrace.broker.groups.model.events import Event
from headrace.broker.groups.model.limits import NEVER, Now
from headrace.broker.groups.model.records import CommittedOffset, StoredGroup
from headrace.broker.runtime.invariants import invariant

_LEGAL_BEFORE: dict[Phase, frozenset[Phase]] = {
    Phase.EMPTY: frozenset({Phase.PREPARING_REBALANCE}),
    Phase.PREPARING_REBALANCE: frozenset({Phase.EMPTY, Phase.COMPLETING_REBALANCE, Phase.STABLE}),
    Phase.COMPLETING_REBALANCE: frozenset({Phase.PREPARING_REBALANCE}),
    Phase.STABLE: frozenset({Phase.COMPLETING_REBALANCE}),
    Phase.DEAD: frozenset({Phase.EMPTY}),
}


class Group(msgspec.Struct):
    """A group and the offsets committed to it.

    `consumer` is set while the group uses the consumer protocol (KIP-848). All other fields about members are those of
    the classic protocol, and are empty then.
    """

    group_id: str
    phase: Phase = Phase.EMPTY
    previous_phase: Phase = Phase.DEAD
    generation: int = 0
    protocol_type: str | None = None
    """None for a group that only stores offsets (a "simple" consumer)."""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = msgspec.field(default_factory=dict)
    static_members: dict[str, str] = msgspec.field(default_factory=dict)
    """group.instance.id -> member id."""
    pending_members: dict[str, float] = msgspec.field(default_factory=dict)
    """Ids that were given with MEMBER_ID_REQUIRED and are not used yet -> the time when they expire."""
    pending_sync: set[str] = msgspec.field(default_factory=set)
    """Members that have got the generation and have not sent SyncGroup yet."""
    join_deadline: float = NEVER
    sync_deadline: float = NEVER
    initial_delay_ms: int = 0
    """Length of the current slice of the initial rebalance delay, 0 outside of it."""
    initial_remaining_ms: int = 0
    new_member_added: bool = False
    """A member has joined during the current slice of the initial delay, so the delay will be extended."""
    state_timestamp_ms: int = -1
    subscribed_topics: frozenset[str] | None = None
    """The topics that members read. None if the protocol type is not `consumer`, or a subscription cannot be read."""
    offsets: dict[str, dict[int, CommittedOffset]] = msgspec.field(default_factory=dict)
    journalled: StoredGroup | None = None
    """The group's record on the journal. A restart reads it, and a deletion needs a tombstone for it."""
    consumer: ConsumerGroup | None = None
    appending: bool = False
    """Whether a change of `consumer` is being stored. Events in `backlog` wait for it."""
    backlog: list[Event] = msgspec.field(default_factory=list)
    next_wake: float = NEVER
    """A time not after the earliest deadline. It stays when a deadline moves later: an early tick is cheap."""

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def is_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def is_disposable(self) -> bool:
        """Whether nothing is lost if the group is removed from memory."""
        return (
            self.phase is Phase.EMPTY
            and self.journalled is None
            and not self.offsets
            and not self.members
            and not self.pending_members
            and (self.consumer is None or not self.consumer.stored)
            and not self.appending
        )

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members and no member ids that are not used yet."""
        return (
            self.phase is Phase.EMPTY
            and not self.pending_members
            and (self.consumer is None or not self.consumer.members)
        )

    @property
    def is_live(self) -> bool:
        """Whether the group has members of the classic protocol."""
        return self.phase in (Phase.STABLE, Phase.PREPARING_REBALANCE, Phase.COMPLETING_REBALANCE)

    @property
    def state_name(self) -> str:
        """Kafka's name of the state."""
        return self.phase.value if self.consumer is None else self.consumer.state_name

    @property
    def all_members_joined(self) -> bool:
        return not self.pending_members and all(m.awaiting_join is not None for m in self.members.values())

    @property
    def awaiting_join_count(self) -> int:
        return sum(m.awaiting_join is not None for m in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def candidate_protocols(self) -> set[str]:
        """Protocols that every member supports."""
        candidates: set[str] | None = None
        for member in self.members.values():
            names = {name for name, _ in member.protocols}
            candidates = names if candidates is None else candidates & names
        return candidates or set()

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a member with these protocols may join."""
        if self.phase is Phase.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type:
            return False
        if not self.members:
            return bool(protocols)
        candidates = self.candidate_protocols()
        return any(name in candidates for name, _ in protocols)

    def select_protocol(self) -> str:
        """The common protocol with most votes; among equals the one voted for first (by the longest-standing
        member).
        """
        candidates = self.candidate_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads `topic`. True for a group of consumers if a subscription cannot be read."""
        if self.consumer is not None:
            return topic in self.consumer.subscribed_topics()
        if self.subscribed_topics is not None:
            return topic in self.subscribed_topics
        return self.is_consumer_protocol

    def stored(self, assignments: Mapping[str, bytes] | None = None) -> StoredGroup:
        """Return the group as the journal stores it, with `assignments` instead of the members' own if given."""
        return StoredGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                member.stored(
                    self.protocol,
                    member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    # -- changes ---------------------------------------------------------------------------------------------

    def transition_to(self, phase: Phase, now: Now) -> None:
        invariant(
            self.phase in _LEGAL_BEFORE[phase],
            f"group {self.group_id} cannot go from {self.phase.value} to {phase.value}",
        )
        self.previous_phase = self.phase
        self.phase = phase
        self.state_timestamp_ms = now.time_ms

    def become_consumer_group(self) -> None:
        """Clear all state of the classic protocol. The offsets stay."""
        waits = any(m.awaiting_join is not None or m.awaiting_sync is not None for m in self.members.values())
        invariant(not waits, f"requests wait in the classic group {self.group_id}")
        self.phase, self.previous_phase = Phase.EMPTY, Phase.DEAD
        self.join_deadline = self.sync_deadline = NEVER
        self.initial_delay_ms = self.initial_remaining_ms = 0
        for members in (self.members, self.static_members, self.pending_members, self.pending_sync):
            members.clear()
        self.generation = 0
        self.protocol_type = self.protocol = self.leader = None
        self.subscribed_topics = self.journalled = None
        self.state_timestamp_ms = -1

    def take_members(self, stored: StoredGroup, now: Now) -> None:
        """Become the stored classic group. With members it is Stable, and each begins a session."""
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.state_timestamp_ms = stored.state_timestamp_ms
        for kept in stored.members:
            member = Member(
                member_id=kept.member_id,
                instance_id=kept.instance_id,
                client_id=kept.client_id,
                client_host=kept.client_host,
                rebalance_timeout_ms=kept.rebalance_timeout_ms,
                session_timeout_ms=kept.session_timeout_ms,
                protocols=((stored.protocol or "", kept.subscription),),
                assignment=kept.assignment,
            )
            member.deadline = self.wake_by(now.monotonic + kept.session_timeout_ms / 1000)
            self.members[kept.member_id] = member
            if kept.instance_id is not None:
                self.static_members[kept.instance_id] = kept.member_id
        if self.members:
            self.phase, self.previous_phase = Phase.STABLE, Phase.COMPLETING_REBALANCE
            self.protocol = stored.protocol
            self.leader = stored.leader if stored.leader in self.members else next(iter(self.members))

    def wake_by(self, deadline: float) -> float:
        """Get a tick by `deadline`, which is returned."""
        if deadline < self.next_wake:
            self.next_wake = deadline
        return deadline

    def earliest_deadline(self) -> float:
        earliest = min(self.join_deadline, self.sync_deadline)
        for member in self.members.values():
            if member.deadline < earliest:
                earliest = member.deadline
        for deadline in self.pending_members.values():
            if deadline < earliest:
                earliest = deadline
        return earliest if self.consumer is None else min(earliest, self.consumer.earliest_deadline())

    def put_offset(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        self.offsets.setdefault(topic, {})[partition] = committed

    def drop_offset(self, topic: str, partition: int) -> None:
        partitions = self.offsets.get(topic)
        if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
            del self.offsets[topic]
