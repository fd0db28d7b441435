"""The time between an append and its outcome, when the journal is replicated and slow."""

import pytest

from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import DeleteGroup, Leaver
from headrace.protocol.errors import ErrorCode


@pytest.fixture
def group(group):
    group.holds_appends = True
    return group


def begin(group, count=2):
    tokens = [group.join(new_member_id=f"m{index}") for index in range(count)]
    group.tick()
    assert all(token in group.results for token in tokens)
    return [f"m{index}" for index in range(count)]


def commit(group, offset, member_id="", generation=-1):
    """Like `group.commit`, but the answer may have to wait."""
    with pytest.raises(KeyError):
        group.commit({("t", 0): offset}, member_id, generation)
    return group.last_token


def test_an_assignment_is_delivered_after_it_is_stored(group):
    names = begin(group)
    tokens = [group.sync(names[1], 1), group.sync(names[0], 1, dict.fromkeys(names, b"x"))]
    assert not any(token in group.results for token in tokens)
    group.release()
    assert [group.synced(token).assignment for token in tokens] == [b"x", b"x"]


def test_assignment_overtaken_by_a_rebalance_is_never_given_out(group):
    names = begin(group)
    waiting = group.sync(names[0], 1, dict.fromkeys(names, b"old"))
    joining = group.join(new_member_id="m2")
    assert group.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    for name in names:
        group.join(name)
    assert group.joined(joining).generation == 2
    late = group.sync(names[1], 2)
    group.release()
    assert group.group.phase is Phase.COMPLETING_REBALANCE
    assert late not in group.results
    group.sync(names[0], 2, dict.fromkeys([*names, "m2"], b"new"))
    group.release()
    assert group.synced(late).assignment == b"new"


def test_commit_shows_only_once_it_is_stored(group):
    first, second = commit(group, 1), commit(group, 2)
    assert not group.group.offsets
    group.release()
    assert group.group.offsets["t"][0].offset == 2
    assert all(group.results[token].error is ErrorCode.NONE for token in (first, second))


def test_group_that_is_joined_while_its_tombstone_is_written_goes_on_without_its_past(group):
    commit(group, 1)
    group.release()
    token = group.token()
    group.send(DeleteGroup(token))
    joining = group.join()
    group.release()
    assert group.results[token].error is ErrorCode.NONE
    assert not group.group.offsets
    group.tick()
    assert group.joined(joining).generation == 1


def test_static_member_that_leaves_while_its_return_is_stored(group):
    joining = group.join(instance_id="a", new_member_id="a-1", version=9)
    group.tick()
    assert joining in group.results
    group.sync("a-1", 1, {"a-1": b"x"}, instance_id="a")
    group.release()
    returning = group.join(instance_id="a", new_member_id="a-2", version=9)
    assert returning not in group.results
    group.leave(Leaver("", "a"))
    assert group.joined(returning).error is ErrorCode.UNKNOWN_MEMBER_ID
    group.release()
    assert group.group.phase is Phase.EMPTY
