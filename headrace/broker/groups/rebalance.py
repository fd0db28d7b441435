"""The classic rebalance protocol: how members come, agree on a generation, get their assignment, and go.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^             |    ^                 |                 |
      +-------------+    +-----------------+-----------------+

PreparingRebalance collects JoinGroup requests until every member has joined again or the longest rebalance timeout is
over; the answers start a generation (CompletingRebalance). The leader's SyncGroup brings the assignment, which goes
to the journal first and then to everybody (Stable). Any change of membership starts over.

Invariants
- Every request is answered exactly once. A request that waits is superseded, never forgotten, when its member
  asks again.
- An assignment reaches only members of the generation it was made for, each its own, as the very bytes of the
  leader; a member the leader left out gets empty bytes.
- Members of one generation share its protocol.
- While a group has members there is a deadline that moves it on: it cannot wait for ever for anybody.

Sources: KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 and KIP-814 (static members), KIP-394
(member id required), KIP-559 (protocol in the answers), KIP-389 (group size).
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.broker.groups.consumer_protocol import subscribed_topics
from headrace.broker.groups.events import (
    Append,
    Effect,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    Leaver,
    LeaveResult,
    PendingAssignment,
    PendingEmpty,
    PendingStaticMember,
    Reply,
    Result,
    Sync,
    SyncResult,
)
from headrace.broker.groups.group import Group
from headrace.broker.groups.model import NEVER, Limits, Member, Now, Phase, PutGroup
from headrace.broker.groups.modern.model import Topics
from headrace.broker.runtime.invariants import invariant
from headrace.protocol.errors import ErrorCode


class Rebalance:
    """One step of one group. Lives for a call of `step`; collects effects in the order they must happen."""

    __slots__ = ("effects", "group", "limits", "now", "topics")

    def __init__(self, group: Group, now: Now, limits: Limits, topics: Topics) -> None:
        self.group = group
        self.now = now
        self.limits = limits
        self.topics = topics
        self.effects: list[Effect] = []

    # -- JoinGroup -------------------------------------------------------------------------------------------

    def join(self, event: Join) -> None:
        group = self.group
        if group.phase is Phase.DEAD:
            self._refuse_join(event, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._session_timeout_is_legal(event.session_timeout_ms):
            self._refuse_join(event, ErrorCode.INVALID_SESSION_TIMEOUT)
        elif not self._has_room_for(event.member_id):
            self._turn_away(event)
        elif not group.supports(event.protocol_type, event.protocols):
            self._refuse_join(event, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif event.member_id == "":
            self._join_new_member(event)
        elif event.member_id in group.pending_members and event.instance_id is None:
            self._add_member(event, event.member_id)
        elif (error := self.member_error(event.member_id, event.instance_id)) is not ErrorCode.NONE:
            self._refuse_join(event, error)
        else:
            self._rejoin(event, group.members[event.member_id])

    def _session_timeout_is_legal(self, timeout_ms: int) -> bool:
        return self.limits.session_timeout_ms_min <= timeout_ms <= self.limits.session_timeout_ms_max

    def _refuse_join(self, event: Join, error: ErrorCode, member_id: str | None = None) -> None:
        answered = event.member_id if member_id is None else member_id
        self._reply(event.token, JoinResult(error, answered))

    def _has_room_for(self, member_id: str) -> bool:
        """Existing members stay; while a rebalance is prepared those who joined again first count."""
        group = self.group
        member = group.members.get(member_id)
        if group.phase is Phase.EMPTY:
            return True
        if group.phase is Phase.PREPARING_REBALANCE:
            joined_already = member is not None and member.awaiting_join is not None
            return joined_already or group.awaiting_join_count < self.limits.group_size_max
        return member is not None or len(group.members) < self.limits.group_size_max

    def _turn_away(self, event: Join) -> None:
        self._remove(event.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self._refuse_join(event, ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")
        self._complete_join_if_all_joined()

    def _join_new_member(self, event: Join) -> None:
        group = self.group
        if event.instance_id is not None:
            current = group.static_members.get(event.instance_id)
            if current is None:
                self._add_member(event, event.new_member_id)
            else:
                self._replace_static_member(event, group.members[current])
        elif event.must_know_id:
            if len(group.pending_members) >= self.limits.pending_members_max:
                self._refuse_join(event, ErrorCode.GROUP_MAX_SIZE_REACHED)
                return
            deadline = self.now.monotonic + event.session_timeout_ms / 1000
            group.pending_members[event.new_member_id] = group.wake_by(deadline)
            self._refuse_join(event, ErrorCode.MEMBER_ID_REQUIRED, event.new_member_id)
        else:
            self._add_member(event, event.new_member_id)

    def _add_member(self, event: Join, member_id: str) -> None:
        group = self.group
        invariant(member_id not in group.members, f"member {member_id} joins {group.group_id} twice")
        if group.phase is Phase.PREPARING_REBALANCE and group.previous_phase is Phase.EMPTY:
            group.new_member_added = True
        if not group.members:
            group.protocol_type = event.protocol_type
        member = Member(
            member_id=member_id,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            session_timeout_ms=event.session_timeout_ms,
            protocols=event.protocols,
            awaiting_join=event.token,
            is_new=True,
            knows_its_id=group.pending_members.pop(member_id, None) is not None,
        )
        # A new member cannot send heartbeats while it waits, so its session timeout does not apply yet.
        member.deadline = group.wake_by(self.now.monotonic + self.limits.new_member_join_timeout_ms / 1000)
        group.members[member_id] = member
        if event.instance_id is not None:
            group.static_members[event.instance_id] = member_id
        if group.leader is None:
            group.leader = member_id
        self._rebalance_or_complete()

    def _rejoin(self, event: Join, member: Member) -> None:
        group = self.group
        unchanged = member.protocols == event.protocols
        # A stable group's leader may ask for a rebalance without a change of its own: topics may have
        # changed.
        keeps_generation = unchanged and (
            group.phase is Phase.COMPLETING_REBALANCE
            or (group.phase is Phase.STABLE and group.leader != member.member_id)
        )
        if keeps_generation:
            self._reply(event.token, self._generation_for(member))
        else:
            self._update_member(event, member)
            self._rebalance_or_complete()

    def _update_member(self, event: Join, member: Member) -> None:
        if member.awaiting_join is not None and member.awaiting_join != event.token:
            self._reply(member.awaiting_join, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.protocols = event.protocols
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.session_timeout_ms = event.session_timeout_ms
        member.awaiting_join = event.token

    def _replace_static_member(self, event: Join, previous: Member) -> None:
        """A restarted static member takes its place again under a new id; users of the old id are fenced."""
        group = self.group
        self._finish_waiting(previous, ErrorCode.FENCED_INSTANCE_ID)
        previous_leader = group.leader
        member = replace(previous, member_id=event.new_member_id, is_new=False, knows_its_id=True)
        # The new member takes the old one's place in the order too, so leadership and votes do not move.
        group.members = {
            (member.member_id if key == previous.member_id else key): (
                member if key == previous.member_id else kept
            )
            for key, kept in group.members.items()
        }
        group.pending_sync.discard(previous.member_id)
        if event.instance_id is not None:
            group.static_members[event.instance_id] = member.member_id
        if group.leader == previous.member_id:
            group.leader = member.member_id
        self._update_member(event, member)
        self._extend_session(member)

        if group.phase is Phase.STABLE and group.select_protocol() == group.protocol:
            stored = group.stored()
            pending = PendingStaticMember(
                stored, member.member_id, previous, previous_leader, event.can_skip_assignment
            )
            self.effects.append(Append((PutGroup(stored),), pending))
        elif group.phase is Phase.COMPLETING_REBALANCE:
            # The old id may be with the leader already, whose assignment would miss the new one.
            self.begin()
        else:
            self._rebalance_or_complete()

    def static_member_stored(self, pending: PendingStaticMember, error: ErrorCode) -> None:
        group = self.group
        if error is ErrorCode.NONE:
            group.journalled = pending.stored
        member = group.members.get(pending.member_id)
        if member is None or member.awaiting_join is None or group.phase is not Phase.STABLE:
            return
        token, member.awaiting_join = member.awaiting_join, None
        if error is not ErrorCode.NONE:
            previous = pending.previous
            del group.members[member.member_id]
            group.members[previous.member_id] = previous
            if previous.instance_id is not None:
                group.static_members[previous.instance_id] = previous.member_id
            group.leader = pending.previous_leader
            self._extend_session(previous)
            self._reply(token, JoinResult(error, ""))
            return
        result = self._generation_for(member)
        if pending.can_skip_assignment:
            result = replace(result, skip_assignment=group.leader == member.member_id)
        else:
            # Not told that it leads, an older client does not compute an assignment that nobody waits for.
            result = replace(result, leader=pending.previous_leader or "", members=())
        self._reply(token, result)

    def _generation_for(self, member: Member) -> JoinResult:
        group = self.group
        everybody: tuple[tuple[str, str | None, bytes], ...] = ()
        if group.leader == member.member_id:
            everybody = tuple(
                (other.member_id, other.instance_id, other.metadata(group.protocol))
                for other in group.members.values()
            )
        return JoinResult(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=group.leader or "",
            members=everybody,
        )

    # -- the join phase --------------------------------------------------------------------------------------

    def _rebalance_or_complete(self) -> None:
        if self.group.phase is Phase.PREPARING_REBALANCE:
            if self.group.initial_delay_ms == 0:
                self._complete_join_if_all_joined()
        else:
            self.begin()

    def begin(self) -> None:
        """Prepare a rebalance: everybody has to join again."""
        group = self.group
        if group.phase is Phase.COMPLETING_REBALANCE:
            for member in group.members.values():
                self._reply_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        group.pending_sync.clear()
        group.sync_deadline = NEVER
        initial = group.phase is Phase.EMPTY
        group.transition_to(Phase.PREPARING_REBALANCE, self.now)
        if initial:
            delay_ms = self.limits.initial_rebalance_delay_ms
            # Even without a delay the join phase ends in a tick of its own, so that 0 is no special case. The
            # slice counts as at least 1 ms because 0 means "not in the initial rebalance".
            group.initial_delay_ms = max(delay_ms, 1)
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0) if delay_ms else 0
            group.new_member_added = False
            group.join_deadline = group.wake_by(self.now.monotonic + delay_ms / 1000)
        elif group.all_members_joined:
            self._complete_join()
        else:
            group.join_deadline = group.wake_by(self.now.monotonic + group.rebalance_timeout_ms / 1000)

    def _complete_join_if_all_joined(self) -> None:
        group = self.group
        if (
            group.phase is Phase.PREPARING_REBALANCE
            and group.initial_delay_ms == 0
            and group.all_members_joined
        ):
            self._complete_join()

    def join_deadline_passed(self) -> None:
        group = self.group
        group.join_deadline = NEVER
        if group.initial_delay_ms and group.new_member_added and group.initial_remaining_ms:
            group.new_member_added = False
            slice_ms = min(self.limits.initial_rebalance_delay_ms, group.initial_remaining_ms)
            group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = slice_ms
            group.join_deadline = group.wake_by(self.now.monotonic + slice_ms / 1000)
        else:
            self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation with whoever has joined; static members keep their place while away."""
        group = self.group
        group.join_deadline = NEVER
        group.initial_delay_ms = group.initial_remaining_ms = 0
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.instance_id is None:
                self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if group.members and not self._elect_joined_leader():
            # Only absent static members are left: wait for them until their sessions end.
            group.join_deadline = group.wake_by(
                self.now.monotonic + max(group.rebalance_timeout_ms, 1_000) / 1000
            )
            return
        group.generation += 1
        group.pending_sync.clear()
        if not group.members:
            group.protocol = None
            group.leader = None
            group.subscribed_topics = subscribed_topics(group)
            group.transition_to(Phase.EMPTY, self.now)
            stored = group.stored()
            self.effects.append(Append((PutGroup(stored),), PendingEmpty(stored)))
            return
        group.protocol = group.select_protocol()
        group.subscribed_topics = subscribed_topics(group)
        group.transition_to(Phase.COMPLETING_REBALANCE, self.now)
        for member in group.members.values():
            member.assignment = b""
            member.is_new = False
            member.knows_its_id = True
            group.pending_sync.add(member.member_id)
            if member.awaiting_join is not None:
                token, member.awaiting_join = member.awaiting_join, None
                self._reply(token, self._generation_for(member))
                self._extend_session(member)
        group.sync_deadline = group.wake_by(self.now.monotonic + group.rebalance_timeout_ms / 1000)

    def _elect_joined_leader(self) -> bool:
        """Keep the leader if it joined, else take the first member that did; False if nobody did."""
        group = self.group
        leader = group.members.get(group.leader or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in group.members.values():
            if member.awaiting_join is not None:
                group.leader = member.member_id
                return True
        return False

    # -- SyncGroup -------------------------------------------------------------------------------------------

    def sync(self, event: Sync) -> None:
        group = self.group
        error = self._sync_error(event)
        if error is not ErrorCode.NONE:
            self._reply(event.token, SyncResult(error))
            return
        member = group.members[event.member_id]
        group.pending_sync.discard(member.member_id)
        if group.phase is Phase.STABLE:
            self._reply(event.token, self._assignment_of(member))
            return
        if member.awaiting_sync is not None:
            self._reply(member.awaiting_sync, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = event.token
        if group.leader == member.member_id:
            assignments = {name: bytes(event.assignments.get(name, b"")) for name in group.members}
            stored = group.stored(assignments)
            self.effects.append(Append((PutGroup(stored),), PendingAssignment(stored)))

    def _sync_error(self, event: Sync) -> ErrorCode:
        group = self.group
        if group.phase is Phase.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if event.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if (event.protocol_type is not None and event.protocol_type != group.protocol_type) or (
            event.protocol is not None and event.protocol != group.protocol
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.phase is Phase.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def assignment_stored(self, pending: PendingAssignment, error: ErrorCode) -> None:
        group = self.group
        if error is ErrorCode.NONE:
            group.journalled = pending.stored
        if group.phase is not Phase.COMPLETING_REBALANCE or group.generation != pending.stored.generation:
            return  # overtaken by a rebalance, which has told everybody
        if error is not ErrorCode.NONE:
            for member in group.members.values():
                self._reply_sync(member, SyncResult(error))
            self.begin()
            return
        for kept in pending.stored.members:
            member = group.members[kept.member_id]
            member.assignment = kept.assignment
            self._reply_sync(member, self._assignment_of(member))
        group.transition_to(Phase.STABLE, self.now)

    def empty_stored(self, pending: PendingEmpty, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self.group.journalled = pending.stored

    def _assignment_of(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.group.protocol_type, self.group.protocol, member.assignment)

    def _reply_sync(self, member: Member, result: SyncResult) -> None:
        if member.awaiting_sync is not None:
            token, member.awaiting_sync = member.awaiting_sync, None
            self._reply(token, result)
            # A session that ran out while its member waited was let pass, and no deadline is left: start it
            # again.
            self._extend_session(member)

    def sync_deadline_passed(self) -> None:
        """Whoever did not fetch its assignment in time is out."""
        group = self.group
        group.sync_deadline = NEVER
        if group.phase in (Phase.COMPLETING_REBALANCE, Phase.STABLE) and group.pending_sync:
            for member_id in list(group.pending_sync):
                self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            self.begin()

    # -- Heartbeat, LeaveGroup, death ------------------------------------------------------------------------

    def heartbeat(self, event: Heartbeat) -> None:
        group = self.group
        error = self.member_error(event.member_id, event.instance_id)
        if group.phase is Phase.DEAD:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif error is ErrorCode.NONE and event.generation != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        elif error is ErrorCode.NONE:
            self._extend_session(group.members[event.member_id])
            if group.phase is Phase.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self._reply(event.token, HeartbeatResult(error))

    def leave(self, event: Leave) -> None:
        group = self.group
        if group.phase is Phase.DEAD:
            self._reply(event.token, LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        outcomes = tuple((leaver, self._leave_one(leaver)) for leaver in event.leavers)
        self._reply(event.token, LeaveResult(ErrorCode.NONE, outcomes))
        if any(error is ErrorCode.NONE for _, error in outcomes):
            self._membership_shrank()

    def _leave_one(self, leaver: Leaver) -> ErrorCode:
        group = self.group
        member_id = leaver.member_id
        if member_id == "" and leaver.instance_id is not None:
            # An administrator removes a static member by its name (KIP-345).
            member_id = group.static_members.get(leaver.instance_id, "")
        elif member_id in group.pending_members:
            del group.pending_members[member_id]
            return ErrorCode.NONE
        error = self.member_error(member_id, leaver.instance_id)
        if error is ErrorCode.NONE:
            self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return error

    def member_deadline_passed(self, member: Member) -> None:
        member.deadline = NEVER
        waits = member.awaiting_join is not None or member.awaiting_sync is not None
        if waits and not member.is_new:
            return  # it will get a new session with its answer
        self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self._membership_shrank()

    def pending_deadline_passed(self, member_id: str) -> None:
        del self.group.pending_members[member_id]
        self._complete_join_if_all_joined()

    def abandoned(self, token: int) -> None:
        """The requester is gone. If it was never told its member id, nobody can ever be this member."""
        for member in self.group.members.values():
            if member.awaiting_join == token and member.is_new and not member.knows_its_id:
                if member.instance_id is None:
                    self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
                    self._membership_shrank()
                return

    def _membership_shrank(self) -> None:
        group = self.group
        if group.phase in (Phase.STABLE, Phase.COMPLETING_REBALANCE):
            self.begin()
        elif group.phase is Phase.PREPARING_REBALANCE and not group.members and not group.pending_members:
            self._complete_join()
        else:
            self._complete_join_if_all_joined()

    # -- shared ----------------------------------------------------------------------------------------------

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        group = self.group
        if instance_id is not None:
            current = group.static_members.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _remove(self, member_id: str, error: ErrorCode) -> None:
        """Take a member (or a pending id) out; requests it still waits in are answered with `error`."""
        group = self.group
        group.pending_members.pop(member_id, None)
        group.pending_sync.discard(member_id)
        member = group.members.pop(member_id, None)
        if member is None:
            return
        self._finish_waiting(member, error)
        if member.instance_id is not None:
            group.static_members.pop(member.instance_id, None)
        if group.leader == member_id:
            group.leader = next(iter(group.members), None)

    def _finish_waiting(self, member: Member, error: ErrorCode) -> None:
        if member.awaiting_join is not None:
            token, member.awaiting_join = member.awaiting_join, None
            # An unknown member starts over with an empty id; a fenced one must learn that this very id is
            # fenced, and who has to join again keeps its own.
            answered = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            self._reply(token, JoinResult(error, answered))
        self._reply_sync(member, SyncResult(error))

    def dismiss_waiting(self) -> None:
        """The group is about to become one of the consumer protocol: whoever waits has to join that."""
        for member in self.group.members.values():
            self._finish_waiting(member, ErrorCode.REBALANCE_IN_PROGRESS)

    def _extend_session(self, member: Member) -> None:
        member.deadline = self.group.wake_by(self.now.monotonic + member.session_timeout_ms / 1000)

    def extend_session(self, member_id: str) -> None:
        """A commit is a sign of life too."""
        member = self.group.members.get(member_id)
        if member is not None and self.group.phase in (Phase.STABLE, Phase.PREPARING_REBALANCE):
            self._extend_session(member)

    def _reply(self, token: int, result: Result) -> None:
        self.effects.append(Reply(token, result))
