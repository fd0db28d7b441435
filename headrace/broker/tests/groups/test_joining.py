"""JoinGroup: accepted and refused members, and the beginning of a generation."""

import pytest

from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import Abandoned, Leaver
from headrace.broker.groups.model.limits import Limits
from headrace.protocol.errors import ErrorCode
from simulator.groups import GroupHarness


def test_first_member_leads_generation_one(group):
    token = group.join(protocols={"range": b"meta"})
    group.tick()
    result = group.joined(token)
    assert (result.error, result.generation, result.leader) == (ErrorCode.NONE, 1, result.member_id)
    assert result.members == ((result.member_id, None, b"meta"),)
    assert (result.protocol_type, result.protocol) == ("consumer", "range")


def test_only_the_leader_is_sent_the_members(group):
    first, second = group.join(), group.join()
    group.tick()
    assert len(group.joined(first).members) == 2
    assert group.joined(second).members == ()
    assert group.joined(second).leader == group.joined(first).member_id


def test_member_id_required_since_version_4(group):
    token = group.join(new_member_id="client-1", version=4)
    assert group.joined(token).error is ErrorCode.MEMBER_ID_REQUIRED
    assert group.joined(token).member_id == "client-1"
    assert not group.group.members
    again = group.join("client-1", version=4)
    group.tick()
    assert group.joined(again).error is ErrorCode.NONE
    assert group.joined(again).member_id == "client-1"


def test_pending_member_holds_the_rebalance_until_it_joins_or_its_session_ends(group):
    (leader,) = group.stable()
    group.join(new_member_id="late", version=4, session_ms=6_000)
    again = group.join(leader)
    assert again not in group.results
    group.advance(6)
    assert group.joined(again).generation == 2


def test_pending_member_that_leaves_frees_the_rebalance(group):
    (leader,) = group.stable()
    group.join(new_member_id="late", version=4)
    again = group.join(leader)
    assert group.leave(Leaver("late", None)) == (ErrorCode.NONE,)
    assert group.joined(again).generation == 2


def test_unknown_member_id_is_refused(group):
    assert group.joined(group.join("nobody")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.group.is_disposable


@pytest.mark.parametrize("session_ms", [0, 5_999, 1_800_001])
def test_session_timeout_outside_of_the_limits_is_refused(group, session_ms):
    assert group.joined(group.join(session_ms=session_ms)).error is ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_session_timeout_at_the_limits_is_accepted(group, session_ms):
    token = group.join(session_ms=session_ms)
    group.tick()
    assert group.joined(token).error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", {"range": b""}), ("consumer", {"sticky": b""}), ("", {"range": b""})],
)
def test_member_without_a_common_protocol_is_refused(group, protocol_type, protocols):
    group.stable()
    token = group.join(protocol_type=protocol_type, protocols=protocols)
    assert group.joined(token).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.group.phase is Phase.STABLE


def test_empty_group_takes_any_protocol_type_again(group):
    (member,) = group.stable()
    group.leave(Leaver(member, None))
    token = group.join(protocol_type="connect", protocols={"default": b""})
    group.tick()
    assert group.joined(token).protocol_type == "connect"


def test_protocol_with_most_votes_among_the_common_ones_wins(group):
    tokens = [
        group.join(protocols={"exotic": b"", "range": b"", "sticky": b""}),
        group.join(protocols={"sticky": b"", "range": b""}),
        group.join(protocols={"sticky": b"", "range": b""}),
    ]
    group.tick()
    assert {group.joined(token).protocol for token in tokens} == {"sticky"}


def test_group_size_limit(group):
    group.limits = Limits(initial_rebalance_delay_ms=0, group_size_max=2)
    names = group.stable(2)
    token = group.join()
    assert group.joined(token).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group.joined(token).member_id == ""
    assert group.heartbeat(names[0], 1) is ErrorCode.NONE


def test_lowered_group_size_limit_turns_the_last_to_rejoin_away():
    group = GroupHarness()
    names = group.stable(3)
    group.limits = Limits(initial_rebalance_delay_ms=0, group_size_max=2)
    tokens = [group.join(name) for name in names]
    assert [group.joined(token).error for token in tokens] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]
    assert list(group.group.members) == names[:2]


def test_loaded_group_above_the_size_limit_joins_again_and_turns_the_last_away():
    group = GroupHarness()
    names = group.stable(3)
    group.commit({("t", 0): 1}, names[2], 1)
    group.limits = Limits(initial_rebalance_delay_ms=0, group_size_max=2)
    group.crash()
    assert group.group.phase is Phase.PREPARING_REBALANCE
    assert [group.heartbeat(name, 1) for name in names] == [ErrorCode.REBALANCE_IN_PROGRESS] * 3
    assert group.commit({("t", 0): 2}, names[2], 1).error is ErrorCode.NONE, "before it goes it may commit"
    tokens = [group.join(name) for name in names]
    assert [group.joined(token).error for token in tokens] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]
    group.crash()
    group.limits = Limits(initial_rebalance_delay_ms=0)
    group.crash()
    assert group.group.phase is Phase.STABLE, "a group of legal size is left alone"


def test_pending_members_are_bounded(group):
    group.limits = Limits(initial_rebalance_delay_ms=0, pending_members_max=2)
    errors = [group.joined(group.join(version=4)).error for _ in range(3)]
    assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * 2 + [ErrorCode.GROUP_MAX_SIZE_REACHED]


class TestInitialDelay:
    @pytest.fixture
    def group(self) -> GroupHarness:
        return GroupHarness(Limits(initial_rebalance_delay_ms=3_000))

    def test_first_generation_waits_for_the_delay(self, group):
        token = group.join()
        group.advance(2.9)
        assert token not in group.results
        group.advance(0.1)
        assert group.joined(token).generation == 1

    def test_each_new_member_extends_the_initial_delay(self, group):
        first = group.join()
        group.advance(2)
        second = group.join()
        group.advance(2)
        assert not group.results
        group.advance(2)
        assert group.joined(first).generation == group.joined(second).generation == 1

    def test_the_initial_delay_ends_at_the_rebalance_timeout(self, group):
        first = group.join(rebalance_ms=7_000)
        for _ in range(6):
            group.advance(1)
            group.join(rebalance_ms=7_000)
        group.advance(0.99)
        assert first not in group.results
        group.advance(0.01)
        assert len(group.joined(first).members) == 7

    def test_later_rebalances_do_not_wait(self, group):
        (leader,) = self.stable(group)
        token = group.join()
        again = group.join(leader)
        assert group.joined(again).generation == group.joined(token).generation == 2

    def test_group_whose_members_all_leave_during_the_delay_becomes_empty(self, group):
        group.join(new_member_id="a")
        assert group.leave(Leaver("a", None)) == (ErrorCode.NONE,)
        assert group.group.phase is Phase.EMPTY

    @staticmethod
    def stable(group):
        token = group.join()
        group.advance(3)
        name = group.joined(token).member_id
        group.sync(name, 1, {name: b""})
        return (name,)


def test_rebalance_timeout_removes_members_that_did_not_rejoin(group):
    names = group.stable(3)
    again = group.join(names[0], rebalance_ms=30_000)
    group.group.members[names[1]].rebalance_timeout_ms = 20_000
    group.group.members[names[2]].rebalance_timeout_ms = 20_000
    for _ in range(6):
        group.advance(5)
        for name in names[1:]:
            if name in group.group.members and again not in group.results:
                assert group.heartbeat(name, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    group.advance(31)
    assert group.joined(again).generation == 2
    assert [name for name, _, _ in group.joined(again).members] == [names[0]]


def test_leader_that_does_not_rejoin_is_succeeded(group):
    names = group.stable(2)
    assert group.group.leader == names[0]
    again = group.join(names[1], protocols={"range": b"changed"})
    group.advance(10)  # the leader's session ends
    assert group.joined(again).leader == names[1]


def test_rejoin_of_a_follower_without_change_keeps_the_generation(group):
    names = group.stable(2)
    result = group.joined(group.join(names[1]))
    assert (result.error, result.generation) == (ErrorCode.NONE, 1)
    assert group.group.phase is Phase.STABLE


def test_rejoin_of_a_follower_with_other_metadata_rebalances(group):
    names = group.stable(2)
    assert group.join(names[1], protocols={"range": b"other topics"}) not in group.results
    assert group.group.phase is Phase.PREPARING_REBALANCE


def test_rejoin_of_the_leader_rebalances_without_change(group):
    names = group.stable(2)
    token = group.join(names[0])
    assert token not in group.results
    group.join(names[1])
    assert group.joined(token).generation == 2


def test_rejoin_while_the_assignment_is_made_repeats_the_answer(group):
    token = group.join(new_member_id="a")
    group.tick()
    again = group.join("a")
    assert group.joined(again) == group.joined(token)


def test_a_second_join_of_a_waiting_member_supersedes_the_first(group):
    names = group.stable(2)
    first = group.join(names[0])
    second = group.join(names[0])
    assert group.joined(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    group.join(names[1])
    assert group.joined(second).error is ErrorCode.NONE


def test_client_that_never_learned_its_id_goes_with_its_connection(group):
    names = group.stable(1)
    token = group.join(version=3)
    group.send(Abandoned(token))
    assert list(group.group.members) == names
    again = group.join(names[0])
    assert group.joined(again).generation == 2


def test_client_that_knows_its_id_may_come_back(group):
    (leader,) = group.stable(1)
    group.join(new_member_id="b", version=4)
    token = group.join("b", version=4)
    group.send(Abandoned(token))
    assert "b" in group.group.members
    second = group.join("b", version=4)
    group.join(leader)
    assert group.joined(second).generation == 2


def test_new_member_that_waits_too_long_is_dropped(group):
    (leader,) = group.stable(1, session_ms=1_000_000, rebalance_ms=1_000_000)
    token = group.join(session_ms=6_000)
    group.advance(299)
    assert token not in group.results
    group.advance(1)
    assert group.joined(token).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(group.group.members) == [leader]
