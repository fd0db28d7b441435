"""Members with a group.instance.id (KIP-345, KIP-814)."""

import pytest

from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import Leaver
from headrace.protocol.errors import ErrorCode


@pytest.fixture
def pair(group):
    """A stable group of static members "a" (the leader) and "b"."""
    tokens = [group.join(instance_id=name, new_member_id=f"{name}-1", version=9) for name in "ab"]
    group.tick()
    assert [group.joined(token).generation for token in tokens] == [1, 1]
    group.sync("b-1", 1, instance_id="b")
    group.sync("a-1", 1, {"a-1": b"A", "b-1": b"B"}, instance_id="a")
    assert group.group.phase is Phase.STABLE
    return group


def test_no_member_id_round_trip(group):
    token = group.join(instance_id="a", version=9)
    group.tick()
    assert group.joined(token).error is ErrorCode.NONE


def test_restart_of_a_follower_does_not_rebalance_and_gets_the_assignment_back(pair):
    result = pair.joined(pair.join(instance_id="b", new_member_id="b-2", version=9))
    assert (result.error, result.generation, result.member_id) == (ErrorCode.NONE, 1, "b-2")
    assert (result.skip_assignment, result.leader, result.members) == (False, "a-1", ())
    assert pair.group.phase is Phase.STABLE
    assert pair.synced(pair.sync("b-2", 1, instance_id="b")).assignment == b"B"


def test_restart_of_the_leader_skips_the_assignment(pair):
    result = pair.joined(pair.join(instance_id="a", new_member_id="a-2", version=9))
    assert (result.skip_assignment, result.leader) == (True, "a-2")
    assert [member for member, _, _ in result.members] == ["a-2", "b-1"]
    assert pair.synced(pair.sync("a-2", 1, instance_id="a")).assignment == b"A"


def test_restart_of_an_older_leader_is_not_told_that_it_leads(pair):
    result = pair.joined(pair.join(instance_id="a", new_member_id="a-2", version=8))
    assert (result.skip_assignment, result.leader, result.members) == (False, "a-1", ())
    assert pair.group.leader == "a-2"


def test_new_id_survives_a_crash(pair):
    pair.join(instance_id="b", new_member_id="b-2", version=9)
    pair.crash()
    assert pair.heartbeat("b-2", 1, "b") is ErrorCode.NONE


def test_old_id_is_fenced(pair):
    pair.join(instance_id="b", new_member_id="b-2", version=9)
    assert pair.heartbeat("b-1", 1, "b") is ErrorCode.FENCED_INSTANCE_ID
    assert pair.synced(pair.sync("b-1", 1, instance_id="b")).error is ErrorCode.FENCED_INSTANCE_ID
    assert pair.joined(pair.join("b-1", instance_id="b")).error is ErrorCode.FENCED_INSTANCE_ID
    assert pair.commit({("t", 0): 1}, "b-1", 1, "b").error is ErrorCode.FENCED_INSTANCE_ID
    assert pair.leave(Leaver("b-1", "b")) == (ErrorCode.FENCED_INSTANCE_ID,)


def test_old_id_that_waits_is_fenced_at_once(pair):
    waiting = pair.join("a-1", instance_id="a")
    pair.join(instance_id="a", new_member_id="a-2", version=9)
    result = pair.joined(waiting)
    assert (result.error, result.member_id) == (ErrorCode.FENCED_INSTANCE_ID, "a-1")


def test_restart_while_the_assignment_is_made_rebalances(group):
    for name in "ab":
        group.join(instance_id=name, new_member_id=f"{name}-1", version=9)
    group.tick()
    waiting = group.sync("b-1", 1, instance_id="b")
    token = group.join(instance_id="b", new_member_id="b-2", version=9)
    assert group.synced(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    assert group.group.phase is Phase.PREPARING_REBALANCE
    group.join("a-1", instance_id="a")
    assert group.joined(token).generation == 2


def test_restart_with_other_metadata_still_keeps_the_generation_if_the_protocol_stays(pair):
    token = pair.join(instance_id="b", new_member_id="b-2", protocols={"range": b"new"}, version=9)
    assert pair.joined(token).generation == 1


def test_restart_that_changes_the_protocol_rebalances(group):
    both = {"sticky": b"", "range": b""}
    for name in "ab":
        group.join(instance_id=name, new_member_id=f"{name}-1", protocols=both, version=9)
    group.tick()
    group.sync("b-1", 1, instance_id="b")
    group.sync("a-1", 1, {}, instance_id="a")
    assert group.group.protocol == "sticky"
    token = group.join(instance_id="b", new_member_id="b-2", protocols={"range": b""}, version=9)
    assert token not in group.results
    group.join("a-1", instance_id="a", protocols=both)
    assert group.joined(token).protocol == "range"


def test_restart_that_cannot_be_stored_leaves_the_old_id_in_place(pair):
    pair.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    token = pair.join(instance_id="a", new_member_id="a-2", version=9)
    assert pair.joined(token).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert pair.heartbeat("a-1", 1, "a") is ErrorCode.NONE
    assert pair.group.leader == "a-1"


def test_an_absent_static_member_stays_through_a_rebalance(pair):
    token = pair.join("a-1", instance_id="a", session_ms=100_000, rebalance_ms=7_000, version=9)
    pair.group.members["b-1"].session_timeout_ms = 100_000
    pair.group.members["b-1"].rebalance_timeout_ms = 7_000
    pair.heartbeat("b-1", 1, "b")
    pair.advance(60)
    assert pair.joined(token).generation == 2
    assert [member for member, _, _ in pair.joined(token).members] == ["a-1", "b-1"]


def test_an_absent_static_leader_stays_a_member_and_a_joined_member_leads(pair):
    leader = pair.group.members["a-1"]
    leader.session_timeout_ms, leader.rebalance_timeout_ms = 100_000, 7_000
    pair.heartbeat("a-1", 1, "a")
    changed = {"session_ms": 100_000, "rebalance_ms": 7_000, "protocols": {"range": b"new"}}
    token = pair.join("b-1", instance_id="b", version=9, **changed)
    pair.advance(60)
    result = pair.joined(token)
    assert (result.generation, result.leader) == (2, "b-1")
    assert [member for member, _, _ in result.members] == ["a-1", "b-1"]


def test_group_of_absent_static_members_waits_and_then_empties(pair):
    pair.join("a-1", instance_id="a")
    pair.leave(Leaver("a-1", "a"))
    pair.advance(11)
    assert pair.group.phase is Phase.EMPTY


def test_administrator_removes_by_instance_id(pair):
    assert pair.leave(Leaver("", "b"), Leaver("", "unknown")) == (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    assert list(pair.group.members) == ["a-1"]


def test_instance_id_of_another_member(pair):
    assert pair.heartbeat("a-1", 1, "b") is ErrorCode.FENCED_INSTANCE_ID
    assert pair.commit({("t", 0): 1}, "a-1", 1, "b").error is ErrorCode.FENCED_INSTANCE_ID


def test_unknown_instance_id(pair):
    assert pair.heartbeat("a-1", 1, "c") is ErrorCode.UNKNOWN_MEMBER_ID
    assert pair.commit({("t", 0): 1}, "a-1", 1, "c").error is ErrorCode.UNKNOWN_MEMBER_ID
