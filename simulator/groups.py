"""A consumer group in a test: virtual time, a journal in memory, crashes, and invariants after every step.

`GroupHarness` plays the coordinator's shell for one group. After every step it checks the invariants of `check_group`.
`crash` forgets everything but the journal, which it passes through Kafka's record format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from uuid import UUID

from headrace.broker.groups.journal.records import decode_record, encode_record
from headrace.broker.groups.journal.replay import Replay, live_records
from headrace.broker.groups.model.assignment import Assignment, MemberState, ResolvedPattern
from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.consumer import ConsumerGroup
from headrace.broker.groups.model.events import (
    Append,
    Appended,
    Commit,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Effect,
    Event,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    Leaver,
    LeaveResult,
    OffsetsResult,
    Reply,
    Result,
    Sync,
    SyncResult,
    Tick,
)
from headrace.broker.groups.model.group import Group
from headrace.broker.groups.model.limits import NEVER, Limits, Now
from headrace.broker.groups.model.records import (
    CommittedOffset,
    JournalRecord,
    PutCurrent,
    PutPattern,
    PutTarget,
)
from headrace.broker.groups.state import step
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.invariants import invariant
from headrace.protocol.errors import ErrorCode

GROUP_ID = "group"
START_MS = 1_700_000_000_000


class CrashError(Exception):
    """The broker crashed in the middle of a step."""


class CrashAt(Enum):
    BEFORE_APPEND = "before the record is on the journal"
    AFTER_APPEND = "after it is, before any answer"


def check_group(group: Group, *, appending: bool = False) -> None:
    """Raise InvariantError if the group contradicts itself. `appending`: an append is under way."""

    def holds(condition: bool, text: str) -> None:
        invariant(condition, f"group {group.group_id} in {group.phase.value}: {text}")

    members = group.members
    holds(all(name == member.member_id for name, member in members.items()), "members are not filed by id")
    holds(
        group.static_members
        == {member.instance_id: name for name, member in members.items() if member.instance_id is not None},
        "the static members are not the members with an instance id",
    )
    holds(not (members.keys() & group.pending_members.keys()), "a member is pending too")
    holds(group.pending_sync <= members.keys(), "a sync is awaited of a client that is not a member")
    holds((group.leader in members) if members else group.leader is None, "the leader is not a member")
    holds(group.earliest_deadline() >= group.next_wake, "a deadline would be missed")

    if group.consumer is not None:
        holds(not members and group.journalled is None, "it is a group of both protocols")
        check_consumer_group(group.consumer)
    if group.phase in (Phase.EMPTY, Phase.DEAD):
        holds(not members, "it has members")
    if group.phase in (Phase.COMPLETING_REBALANCE, Phase.STABLE):
        holds(bool(members), "it has no members")
        for member in members.values():
            names = [name for name, _ in member.protocols]
            holds(group.protocol in names, f"{member.member_id} does not support {group.protocol}")
            holds(
                member.awaiting_join is None or appending,
                f"{member.member_id} waits for a generation that has begun",
            )
    if group.phase is Phase.COMPLETING_REBALANCE:
        holds(group.sync_deadline != NEVER, "nothing ends the wait for its leader")
    if group.phase is Phase.PREPARING_REBALANCE:
        holds(group.join_deadline != NEVER, "nothing ends the join phase")
    if group.phase is Phase.STABLE:
        holds(group.journalled is not None, "its assignment is not on the journal")
        stored = {
            member.member_id: member.assignment for member in (group.journalled or group.stored()).members
        }
        for member in members.values():
            holds(member.awaiting_sync is None, f"{member.member_id} waits for an assignment that is there")
            holds(member.deadline != NEVER, f"{member.member_id} has no session")
            holds(
                stored.get(member.member_id) == member.assignment or appending,
                f"{member.member_id} differs from the journal",
            )


def check_consumer_group(consumer: ConsumerGroup) -> None:
    """Raise InvariantError if a group of the consumer protocol contradicts itself."""

    def holds(condition: bool, text: str) -> None:
        invariant(condition, f"consumer group at epoch {consumer.epoch}: {text}")

    holders: dict[tuple[UUID, int], str] = {}
    for name, member in consumer.members.items():
        holds(name == member.member_id, "members are not filed by id")
        holds(name in consumer.sessions, f"{name} has no session")
        holds(member.current.epoch <= consumer.target_epoch, f"{name} is ahead of the target")
        holds(
            (member.current.state is MemberState.UNREVOKED_PARTITIONS) == bool(member.current.revoking),
            f"{name} has partitions to give up and is {member.current.state.name}",
        )
        for held in (member.current.assigned, member.current.revoking):
            for topic_id, partitions in held.items():
                holds(bool(partitions), f"{name} has a topic without partitions")
                for index in partitions:
                    other = holders.setdefault((topic_id, index), name)
                    holds(other == name, f"partition {index} belongs to {other} and to {name}")
    filed = {
        (topic_id, index): name
        for topic_id, partitions in consumer.owners.items()
        for index, name in partitions.items()
    }
    holds(filed == holders, "the owners differ from the members that have the partitions")
    holds(consumer.sessions.keys() <= consumer.members.keys(), "a client that is not a member has a session")
    holds(consumer.target.keys() <= consumer.members.keys(), "a client that is not a member has a target")
    holds(
        consumer.static_members
        == {
            member.subscription.instance_id: name
            for name, member in consumer.members.items()
            if member.subscription.instance_id is not None
        },
        "the static members are not the members with an instance id",
    )
    holds(consumer.target_epoch <= consumer.epoch, "the target is ahead of the group")
    wanted: set[tuple[UUID, int]] = set()
    for name, target in consumer.target.items():
        for topic_id, indexes in target.items():
            for index in indexes:
                holds(
                    (topic_id, index) not in wanted, f"the target gives partition {index} to two, {name} too"
                )
                wanted.add((topic_id, index))


def durable(group: Group) -> list[str]:
    """Return the state that a restart must find again, in a fixed order."""
    return sorted(map(repr, (_normal(record) for record in live_records(group))))


def _normal(record: object) -> object:
    if isinstance(record, PutCurrent):
        return (
            record.member_id,
            record.current.epoch,
            record.current.previous_epoch,
            record.current.state,
            [
                sorted((str(topic_id), sorted(held.items())) for topic_id, held in part.items())
                for part in (record.current.assigned, record.current.revoking)
            ],
        )
    if isinstance(record, PutTarget):
        return record.member_id, sorted((str(name), sorted(held)) for name, held in record.assignment.items())
    if isinstance(record, PutPattern):
        return record.pattern, sorted(record.resolved.topics)
    return record


class FakeTopics:
    """Topics by name; each creation has another id."""

    def __init__(self) -> None:
        self.version = 0
        self._topics: dict[str, TopicImage] = {}
        self._last_id = 0

    def put(self, name: str, partitions: int) -> UUID:
        """Create a topic, or give it more partitions."""
        known = self._topics.get(name)
        if known is None:
            self._last_id += 1
        topic_id = UUID(int=self._last_id) if known is None else known.topic_id
        self._topics[name] = TopicImage(name, topic_id, partitions)
        self.version += 1
        return topic_id

    def delete(self, name: str) -> None:
        if self._topics.pop(name, None) is not None:
            self.version += 1

    def names(self) -> list[str]:
        return sorted(self._topics)

    def topic(self, name: str) -> TopicImage | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        return next((image for image in self._topics.values() if image.topic_id == topic_id), None)


class GroupHarness:
    """A coordinator's shell for one group. Requests return a token; `results` has each answered token once."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits if limits is not None else Limits(initial_rebalance_delay_ms=0)
        self.seconds = 1_000.0
        self.group = Group(GROUP_ID)
        self.results: dict[int, Result] = {}
        self.topics = FakeTopics()
        self.journal: list[tuple[bytes, bytes | None]] = []
        self.batches: list[tuple[JournalRecord, ...]] = []
        self.append_error = ErrorCode.NONE
        self.crash_at: CrashAt | None = None
        """The stage of the next append at which CrashError is raised; call `crash` then."""
        self.holds_appends = False
        """Whether the journal is slow: appends are kept in `held` until `release`."""
        self.held: list[Append] = []
        self.on_reply: Callable[[int, Result], None] | None = None
        self.last_token = 0

    # -- the shell -------------------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return Now(self.seconds, START_MS + int(self.seconds * 1000))

    def send(self, event: Event) -> None:
        effects: deque[Effect] = deque(step(self.group, event, self.now, self.limits, self.topics))
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Append) and self.holds_appends:
                self.held.append(effect)
            elif isinstance(effect, Append):
                self._append(effect.records)
                appended = Appended(effect.pending, self.append_error)
                effects.extendleft(reversed(step(self.group, appended, self.now, self.limits, self.topics)))
            else:
                self._answer(effect)
        check_group(self.group, appending=bool(self.held))

    def release(self) -> None:
        """Store all held appends in the journal, in order."""
        while self.held:
            effect = self.held.pop(0)
            self._append(effect.records)
            self.send(Appended(effect.pending, self.append_error))

    def _append(self, records: tuple[JournalRecord, ...]) -> None:
        if self.crash_at is CrashAt.BEFORE_APPEND:
            raise CrashError
        if self.append_error is ErrorCode.NONE:
            self.batches.append(records)
            self.journal.extend(encode_record(record) for record in records)
        if self.crash_at is CrashAt.AFTER_APPEND:
            raise CrashError

    def _answer(self, reply: Reply) -> None:
        invariant(reply.token not in self.results, f"request {reply.token} is answered twice")
        self.results[reply.token] = reply.result
        if self.on_reply is not None:
            self.on_reply(reply.token, reply.result)

    def token(self) -> int:
        self.last_token += 1
        return self.last_token

    def advance(self, seconds: float) -> None:
        """Let time pass, and stop at every deadline on the way as the scheduler would."""
        end = self.seconds + seconds
        while self.group.next_wake <= end:
            self.seconds = max(self.seconds, self.group.next_wake)
            before = self.group.next_wake
            self.send(Tick())
            if self.group.next_wake == before:
                self.seconds += 0.001  # a deadline of "now" is due in the next turn of the loop
        self.seconds = max(self.seconds, end)

    def tick(self) -> None:
        self.send(Tick())

    def crash(self) -> None:
        """Lose everything but the journal, and start again."""
        self.crash_at = None
        replay = Replay()
        for key, value in self.journal:
            record = decode_record(key, value)
            if record is not None:
                replay.apply([record])
        self.group = replay.groups(self.now, self.limits).get(GROUP_ID) or Group(GROUP_ID)
        check_group(self.group)

    def consumer_heartbeat(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        topics: Iterable[str] | None = None,
        owned: Assignment | None = None,
        pattern: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = -1,
        resolved: ResolvedPattern | None = None,
    ) -> ConsumerHeartbeatResult:
        """Send a heartbeat of the consumer protocol; the first one has all fields that a joining client sends."""
        joins = epoch == 0
        token = self.token()
        self.send(
            ConsumerHeartbeat(
                token=token,
                member_id=member_id,
                epoch=epoch,
                instance_id=instance_id,
                rack_id=None,
                client_id="client",
                client_host="/127.0.0.1",
                rebalance_timeout_ms=60_000 if joins and rebalance_ms < 0 else rebalance_ms,
                topics=() if joins and topics is None else None if topics is None else tuple(topics),
                pattern=pattern,
                assignor=assignor,
                owned={} if joins and owned is None else owned,
                resolved=resolved,
            )
        )
        result = self.results[token]
        assert isinstance(result, ConsumerHeartbeatResult)
        return result

    # -- requests --------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        new_member_id: str = "",
        instance_id: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 3,
    ) -> int:
        token = self.token()
        self.send(
            Join(
                token=token,
                member_id=member_id,
                new_member_id=new_member_id or f"member-{token}",
                instance_id=instance_id,
                client_id="client",
                client_host="/127.0.0.1",
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=tuple((protocols or {"range": b"subscription"}).items()),
                must_know_id=version >= 4,
                can_skip_assignment=version >= 9,
            )
        )
        return token

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> int:
        token = self.token()
        self.send(Sync(token, member_id, instance_id, generation, protocol_type, protocol, assignments or {}))
        return token

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        token = self.token()
        self.send(Heartbeat(token, member_id, instance_id, generation))
        result = self.results[token]
        assert isinstance(result, HeartbeatResult)
        return result.error

    def leave(self, *leavers: Leaver) -> tuple[ErrorCode, ...]:
        token = self.token()
        self.send(Leave(token, leavers))
        result = self.results[token]
        assert isinstance(result, LeaveResult)
        return tuple(error for _, error in result.members)

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        metadata: str = "",
        expire_ms: int = -1,
        knows_epochs: bool = True,
    ) -> OffsetsResult:
        token = self.token()
        committed = {
            key: CommittedOffset(offset, -1, metadata, self.now.time_ms, expire_ms)
            for key, offset in offsets.items()
        }
        self.send(Commit(token, member_id, instance_id, generation, committed, knows_epochs))
        result = self.results[token]
        assert isinstance(result, OffsetsResult)
        return result

    # -- answers ---------------------------------------------------------------------------------------------

    def joined(self, token: int) -> JoinResult:
        result = self.results[token]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, token: int) -> SyncResult:
        result = self.results[token]
        assert isinstance(result, SyncResult)
        return result

    def stable(self, count: int = 1, **join: object) -> list[str]:
        """Bring `count` new members into a stable group; return their ids, the leader's first."""
        tokens = [self.join(**join) for _ in range(count)]  # type: ignore[arg-type]
        self.tick()
        results = [self.joined(token) for token in tokens]
        generation = results[0].generation
        names = sorted((result.member_id for result in results), key=lambda name: name != self.group.leader)
        for name in reversed(names):
            self.sync(
                name, generation, {other: other.encode() for other in names} if name == names[0] else None
            )
        return names
