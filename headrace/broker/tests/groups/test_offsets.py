"""Committed offsets: who may commit, refusals, expiry."""

import struct

import pytest

from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import DeleteGroup, DeleteOffsets, ExpireOffsets, ForgetTopic, Leaver
from headrace.broker.groups.model.limits import Limits
from headrace.broker.groups.model.records import DropGroup, DropOffset
from headrace.protocol.errors import ErrorCode

T0 = ("topic", 0)
T1 = ("topic", 1)


def subscription(*topics):
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def position(group, key=T0):
    committed = group.group.offsets.get(key[0], {}).get(key[1])
    return None if committed is None else committed.offset


def delete_offsets(group, *keys):
    token = group.token()
    group.send(DeleteOffsets(token, keys))
    return group.results[token]


def delete_group(group):
    token = group.token()
    group.send(DeleteGroup(token))
    return group.results[token].error


def test_simple_consumer_commits_to_a_group_without_members(group):
    assert group.commit({T0: 7}).error is ErrorCode.NONE
    assert position(group) == 7
    assert group.group.protocol_type is None


def test_simple_consumer_cannot_overwrite_a_live_group(group):
    group.stable(1)
    assert group.commit({T0: 7}).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert position(group) is None


def test_member_commits_in_its_generation_only(group):
    (name,) = group.stable(1)
    assert group.commit({T0: 1}, name, 1).error is ErrorCode.NONE
    assert group.commit({T0: 2}, name, 0).error is ErrorCode.ILLEGAL_GENERATION
    assert group.commit({T0: 2}, name, 2).error is ErrorCode.ILLEGAL_GENERATION
    assert group.commit({T0: 2}, "nobody", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.commit({T0: 2}, name, -1).error is ErrorCode.ILLEGAL_GENERATION
    assert position(group) == 1


def test_commit_while_others_rejoin_is_accepted(group):
    names = group.stable(2)
    group.join(names[0])
    assert group.commit({T0: 5}, names[1], 1).error is ErrorCode.NONE


def test_commit_while_the_assignment_is_made_is_refused(group):
    names = group.stable(2)
    for name in names:
        group.join(name)
    assert group.commit({T0: 5}, names[0], 2).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_is_a_sign_of_life(group):
    (name,) = group.stable(1)
    for offset in range(5):
        group.advance(9)
        assert group.commit({T0: offset}, name, 1).error is ErrorCode.NONE


@pytest.mark.parametrize(("text", "fits"), [("x" * 4096, True), ("x" * 4097, False), ("é" * 2049, False)])
def test_metadata_is_bounded_in_bytes(group, text, fits):
    result = group.commit({T0: 3, T1: 4}, metadata=text)
    assert result.error is ErrorCode.NONE
    expected = {} if fits else dict.fromkeys((T0, T1), ErrorCode.OFFSET_METADATA_TOO_LARGE)
    assert result.errors == expected
    assert position(group) == (3 if fits else None)


def test_one_commit_is_one_journal_batch(group):
    group.commit({("topic", index): index for index in range(100)})
    assert [len(batch) for batch in group.batches] == [100]


def test_commit_that_cannot_be_stored_does_not_show(group):
    group.commit({T0: 1})
    group.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.commit({T0: 2}).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert position(group) == 1


def test_commits_survive_a_crash(group):
    (name,) = group.stable(1)
    group.commit({T0: 1, T1: 2}, name, 1, metadata="here")
    group.commit({T0: 3}, name, 1)
    group.crash()
    assert (position(group, T0), position(group, T1)) == (3, 2)
    assert group.group.offsets["topic"][1].metadata == "here"


class TestDeleteOffsets:
    def test_offsets_of_an_empty_group_are_deleted(self, group):
        group.commit({T0: 1, T1: 2})
        assert delete_offsets(group, T0, ("other", 9)).errors == {}
        assert (position(group, T0), position(group, T1)) == (None, 2)
        group.crash()
        assert (position(group, T0), position(group, T1)) == (None, 2)

    def test_offsets_of_a_subscribed_topic_are_not_deleted(self, group):
        (name,) = group.stable(1, protocols={"range": subscription("topic")})
        group.commit({T0: 1, ("other", 0): 2}, name, 1)
        result = delete_offsets(group, T0, ("other", 0))
        assert result.errors == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        assert (position(group), position(group, ("other", 0))) == (1, None)

    def test_offsets_of_a_live_non_consumer_group_are_not_deleted(self, group):
        group.stable(1, protocol_type="connect")
        assert delete_offsets(group, T0).error is ErrorCode.NON_EMPTY_GROUP


class TestDeleteGroup:
    def test_a_group_with_members_is_not_deleted(self, group):
        group.stable(1)
        assert delete_group(group) is ErrorCode.NON_EMPTY_GROUP

    def test_deleting_a_group_deletes_its_offsets(self, group):
        (name,) = group.stable(1)
        group.commit({T0: 1}, name, 1)
        group.leave(Leaver(name, None))
        assert delete_group(group) is ErrorCode.NONE
        assert group.group.phase is Phase.DEAD
        assert {type(record) for record in group.batches[-1]} == {DropGroup, DropOffset}
        group.crash()
        assert group.group.is_disposable

    def test_a_group_deletion_that_cannot_be_stored_changes_nothing(self, group):
        group.commit({T0: 1})
        group.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert delete_group(group) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert position(group) == 1

    def test_a_dead_group_is_not_deleted_again(self, group):
        group.commit({T0: 1})
        delete_group(group)
        assert delete_group(group) is ErrorCode.GROUP_ID_NOT_FOUND
        assert group.commit({T0: 1}).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert group.joined(group.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert group.heartbeat("x", 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE


class TestExpiry:
    DAY = 86_400

    def test_expiry_of_a_simple_consumer_counts_from_each_commit(self, group):
        group.commit({T0: 1})
        group.advance(4 * self.DAY)
        group.commit({T1: 2})
        group.advance(3 * self.DAY)
        group.send(ExpireOffsets())
        assert (position(group, T0), position(group, T1)) == (None, 2)

    def test_expiry_of_an_empty_group_counts_from_its_last_member(self, group):
        (name,) = group.stable(1, session_ms=1_800_000)
        group.commit({T0: 1}, name, 1)
        for _ in range(3 * 48):
            group.advance(1_800 - 1)
            group.heartbeat(name, 1)
        group.leave(Leaver(name, None))
        group.advance(7 * self.DAY - 1)
        group.send(ExpireOffsets())
        assert position(group) == 1
        group.advance(1)
        group.send(ExpireOffsets())
        assert group.group.phase is Phase.DEAD
        group.crash()
        assert group.group.is_disposable

    def test_expiry_spares_offsets_of_subscribed_topics(self, group):
        group.limits = Limits(initial_rebalance_delay_ms=0, offsets_retention_ms=5_000)
        (name,) = group.stable(1, protocols={"range": subscription("topic")})
        group.commit({T0: 1, ("other", 0): 2}, name, 1)
        group.advance(6)
        group.send(ExpireOffsets())
        assert (position(group), position(group, ("other", 0))) == (1, None)

    def test_expiry_spares_all_offsets_of_unreadable_subscriptions(self, group):
        group.limits = Limits(initial_rebalance_delay_ms=0, offsets_retention_ms=5_000)
        (name,) = group.stable(1, protocols={"range": b"\x00"})
        group.commit({T0: 1}, name, 1)
        group.advance(6)
        group.send(ExpireOffsets())
        assert position(group) == 1

    def test_explicit_expiry_of_old_clients_goes_first(self, group):
        group.commit({T0: 1}, expire_ms=group.now.time_ms + 1_000)
        group.crash()
        group.advance(1)
        group.send(ExpireOffsets())
        assert position(group) is None

    def test_expiry_spares_offsets_in_an_open_transaction(self, group):
        group.commit({T0: 1, T1: 2}, expire_ms=group.now.time_ms + 1_000)
        group.crash()
        group.advance(1)
        group.send(ExpireOffsets(frozenset([T0])))
        assert (position(group), position(group, T1)) == (1, None)
        assert group.group.phase is Phase.EMPTY
        group.send(ExpireOffsets())
        assert group.group.phase is Phase.DEAD

    def test_empty_group_without_offsets_goes(self, group):
        (name,) = group.stable(1)
        group.leave(Leaver(name, None))
        group.send(ExpireOffsets())
        assert group.group.phase is Phase.DEAD


def test_deleted_topic_takes_its_offsets_along(group):
    group.commit({T0: 1, T1: 2, ("other", 0): 3})
    group.send(ForgetTopic("topic"))
    assert list(group.group.offsets) == ["other"]
    group.crash()
    assert list(group.group.offsets) == ["other"]
