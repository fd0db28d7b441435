"""SyncGroup, Heartbeat, LeaveGroup: from a generation to its assignment, and its end."""

import pytest

from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import Leaver
from headrace.protocol.errors import ErrorCode


def begin(group, count):
    tokens = [group.join(new_member_id=f"m{index}") for index in range(count)]
    group.tick()
    return [group.joined(token).member_id for token in tokens]


def test_each_member_gets_the_bytes_that_the_leader_assigned_to_it(group):
    names = begin(group, 3)
    followers = [group.sync(name, 1) for name in names[1:]]
    assert not any(token in group.results for token in followers)
    leader = group.sync(names[0], 1, {name: b"\x00\xff" + name.encode() for name in names})
    for name, token in zip(names, [leader, *followers], strict=True):
        result = group.synced(token)
        assert (result.error, result.assignment) == (ErrorCode.NONE, b"\x00\xff" + name.encode())
        assert (result.protocol_type, result.protocol) == ("consumer", "range")


def test_unassigned_member_gets_empty_bytes(group):
    names = begin(group, 2)
    group.sync(names[0], 1, {names[0]: b"all"})
    assert group.synced(group.sync(names[1], 1)).assignment == b""


def test_assignment_for_an_unknown_member_is_left_out(group):
    names = begin(group, 1)
    group.sync(names[0], 1, {names[0]: b"mine", "stranger": b"x"})
    assert [member.member_id for member in group.group.journalled.members] == names


def test_assignments_of_a_follower_are_ignored(group):
    names = begin(group, 2)
    group.sync(names[1], 1, {names[1]: b"I want it all"})
    assert group.group.phase is Phase.COMPLETING_REBALANCE
    group.sync(names[0], 1, dict.fromkeys(names, b"half"))
    assert group.group.members[names[1]].assignment == b"half"


def test_sync_of_a_stable_group_repeats_the_assignment(group):
    names = group.stable(2)
    assert group.synced(group.sync(names[1], 1)).assignment == names[1].encode()


@pytest.mark.parametrize(
    ("member", "generation", "protocol_type", "protocol", "error"),
    [
        ("nobody", 1, None, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m0", 0, None, None, ErrorCode.ILLEGAL_GENERATION),
        ("m0", 2, None, None, ErrorCode.ILLEGAL_GENERATION),
        ("m0", 1, "connect", None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("m0", 1, "consumer", "sticky", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_sync_that_does_not_fit_is_refused(group, member, generation, protocol_type, protocol, error):
    begin(group, 1)
    token = group.sync(member, generation, {"m0": b"x"}, protocol_type=protocol_type, protocol=protocol)
    assert group.synced(token).error is error
    assert group.group.phase is Phase.COMPLETING_REBALANCE


def test_stale_leader_cannot_assign_the_next_generation(group):
    names = group.stable(2)
    tokens = [group.join(name) for name in names]
    assert group.joined(tokens[0]).generation == 2
    assert group.synced(group.sync(names[0], 1, {names[1]: b"old"})).error is ErrorCode.ILLEGAL_GENERATION
    assert group.group.phase is Phase.COMPLETING_REBALANCE


def test_a_new_member_makes_waiting_members_join_again(group):
    names = begin(group, 2)
    waiting = group.sync(names[1], 1)
    group.join(new_member_id="m2")
    assert group.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    late = group.sync(names[0], 1, dict.fromkeys(names, b"x"))
    assert group.synced(late).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_second_sync_supersedes_the_first(group):
    names = begin(group, 2)
    first, second = group.sync(names[1], 1), group.sync(names[1], 1)
    assert group.synced(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    group.sync(names[0], 1, {names[1]: b"x"})
    assert group.synced(second).assignment == b"x"


def test_assignment_that_cannot_be_stored_is_not_given_out(group):
    names = begin(group, 2)
    follower = group.sync(names[1], 1)
    group.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    leader = group.sync(names[0], 1, dict.fromkeys(names, b"x"))
    assert group.synced(follower).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.synced(leader).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.group.phase is Phase.PREPARING_REBALANCE
    group.append_error = ErrorCode.NONE
    tokens = [group.join(name) for name in names]
    assert group.joined(tokens[0]).generation == 2


def test_assignment_is_journaled_before_members_get_it(group):
    names = begin(group, 2)
    seen = []
    group.on_reply = lambda token, result: seen.append(len(group.batches))
    group.sync(names[1], 1)
    group.sync(names[0], 1, {})
    assert seen == [1, 1]


def test_a_member_that_never_syncs_is_removed(group):
    names = begin(group, 2)
    group.sync(names[0], 1, dict.fromkeys(names, b"x"))
    for _ in range(13):
        group.advance(5)
        group.heartbeat(names[0], 1)
        group.heartbeat(names[1], 1)
    assert list(group.group.members) == [names[0]]
    assert group.group.phase is Phase.PREPARING_REBALANCE


def test_leader_that_never_syncs_is_out(group):
    names = begin(group, 2)
    waiting = group.sync(names[1], 1)
    group.advance(10)
    assert group.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(group.group.members) == [names[1]]


def test_waiting_for_the_assignment_does_not_cost_the_session(group):
    names = begin(group, 2)
    waiting = group.sync(names[1], 1)
    for _ in range(3):
        group.advance(5)
        assert group.heartbeat(names[0], 1) is ErrorCode.NONE
    group.sync(names[0], 1, dict.fromkeys(names, b"x"))
    assert group.synced(waiting).assignment == b"x"
    group.advance(9)
    assert group.heartbeat(names[1], 1) is ErrorCode.NONE


class TestHeartbeat:
    def test_heartbeat_keeps_the_session(self, group):
        names = group.stable(1)
        for _ in range(5):
            group.advance(9.9)
            assert group.heartbeat(names[0], 1) is ErrorCode.NONE

    def test_missing_heartbeats_end_the_session(self, group):
        names = group.stable(2)
        group.advance(5)
        group.heartbeat(names[1], 1)
        group.advance(5)
        assert list(group.group.members) == [names[1]]
        assert group.heartbeat(names[1], 1) is ErrorCode.REBALANCE_IN_PROGRESS
        assert group.heartbeat(names[0], 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_heartbeat_of_another_generation_is_refused(self, group):
        names = group.stable(1)
        assert group.heartbeat(names[0], 0) is ErrorCode.ILLEGAL_GENERATION
        assert group.heartbeat(names[0], 2) is ErrorCode.ILLEGAL_GENERATION

    def test_heartbeat_of_an_unknown_member_is_refused(self, group):
        group.stable(1)
        assert group.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_heartbeat_while_the_assignment_is_made_is_accepted(self, group):
        names = begin(group, 1)
        assert group.heartbeat(names[0], 1) is ErrorCode.NONE


class TestLeave:
    def test_last_member_leaves_an_empty_group_on_the_journal(self, group):
        names = group.stable(1)
        assert group.leave(Leaver(names[0], None)) == (ErrorCode.NONE,)
        assert group.group.phase is Phase.EMPTY
        assert (group.group.generation, group.group.journalled.members) == (2, ())

    def test_leave_of_one_member_rebalances_the_others_at_once(self, group):
        names = group.stable(2)
        group.leave(Leaver(names[0], None))
        assert group.joined(group.join(names[1])).leader == names[1]

    def test_several_members_leave_at_once(self, group):
        names = group.stable(3)
        errors = group.leave(Leaver(names[0], None), Leaver("nobody", None), Leaver(names[2], None))
        assert errors == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE)
        assert list(group.group.members) == [names[1]]

    def test_leave_answers_the_waiting_join(self, group):
        names = group.stable(2)
        waiting = group.join(names[0])
        group.leave(Leaver(names[0], None))
        assert group.joined(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_leave_of_an_unknown_member_changes_nothing(self, group):
        group.stable(1)
        assert group.leave(Leaver("nobody", None)) == (ErrorCode.UNKNOWN_MEMBER_ID,)
        assert group.group.phase is Phase.STABLE
