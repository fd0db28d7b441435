"""A consumer group in a test: virtual time, a journal in memory, crashes, and what must hold at every step.

`GroupHarness` plays the coordinator's shell for one group. After every step it checks the invariants of
`check_group`; `crash` forgets everything but the journal, which it passes through Kafka's record format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from broker.groups.events import (
    Append,
    Appended,
    Commit,
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
from broker.groups.journal import decode_record, encode_record
from broker.groups.model import NEVER, CommittedOffset, Group, JournalRecord, Limits, Now, Phase, invariant
from broker.groups.replay import Replay
from broker.groups.state import step
from protocol.errors import ErrorCode

GROUP_ID = "group"
START_MS = 1_700_000_000_000


class CrashError(Exception):
    """The broker died in the middle of a step."""


class CrashAt(Enum):
    BEFORE_APPEND = "before the record is on the journal"
    AFTER_APPEND = "after it is, before anybody is told"


def check_group(group: Group, *, appending: bool = False) -> None:
    """Raises GroupInvariantError if the group contradicts itself. `appending`: an append is under way."""

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
    holds(group.pending_sync <= members.keys(), "somebody who is no member is awaited for its sync")
    holds((group.leader in members) if members else group.leader is None, "the leader is not a member")
    holds(group.earliest_deadline() >= group.next_wake, "a deadline would be missed")

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


class GroupHarness:
    """Requests return their token; `results` has what was answered so far, each token once."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits if limits is not None else Limits(initial_rebalance_delay_ms=0)
        self.seconds = 1_000.0
        self.group = Group(GROUP_ID)
        self.results: dict[int, Result] = {}
        self.journal: list[tuple[bytes, bytes | None]] = []
        self.batches: list[tuple[JournalRecord, ...]] = []
        self.append_error = ErrorCode.NONE
        self.crash_at: CrashAt | None = None
        """Where the next append raises CrashError; call `crash` then."""
        self.holds_appends = False
        """A slow journal: appends are kept in `held` until `release`."""
        self.held: list[Append] = []
        self.on_reply: Callable[[int, Result], None] | None = None
        self.last_token = 0

    # -- the shell -------------------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return Now(self.seconds, START_MS + int(self.seconds * 1000))

    def send(self, event: Event) -> None:
        effects: deque[Effect] = deque(step(self.group, event, self.now, self.limits))
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Append) and self.holds_appends:
                self.held.append(effect)
            elif isinstance(effect, Append):
                self._append(effect.records)
                appended = Appended(effect.pending, self.append_error)
                effects.extendleft(reversed(step(self.group, appended, self.now, self.limits)))
            else:
                self._answer(effect)
        check_group(self.group, appending=bool(self.held))

    def release(self) -> None:
        """The journal has caught up with everything that is held, in order."""
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
        """Let time pass, stopping at every deadline on the way as the scheduler would."""
        end = self.seconds + seconds
        while self.group.next_wake <= end:
            self.seconds = max(self.seconds, self.group.next_wake)
            before = self.group.next_wake
            self.send(Tick())
            if self.group.next_wake == before:
                self.seconds += 0.001  # a deadline of "now" comes up in the next turn of the loop
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
        self.group = replay.groups(self.now).get(GROUP_ID) or Group(GROUP_ID)
        check_group(self.group)

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
    ) -> OffsetsResult:
        token = self.token()
        committed = {
            key: CommittedOffset(offset, -1, metadata, self.now.time_ms, expire_ms)
            for key, offset in offsets.items()
        }
        self.send(Commit(token, member_id, instance_id, generation, committed))
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
        """Bring `count` new members into a stable group; their ids, the leader's first."""
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
