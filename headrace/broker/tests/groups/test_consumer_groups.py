"""The rules of the consumer group protocol (KIP-848), one by one. Schedules are in test_consumer_schedules."""

import pytest
from msgspec.structs import replace

from headrace.broker.groups.model.assignment import ResolvedPattern
from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import DeleteGroup, ExpireOffsets, Leaver, PatternsResolved
from headrace.broker.groups.model.limits import Limits
from headrace.broker.groups.offsets.validation import fetch_error
from headrace.protocol.errors import ErrorCode
from simulator.groups import GroupHarness, durable

LIMITS = Limits(initial_rebalance_delay_ms=0, consumer_group_size_max=3)


@pytest.fixture
def group():
    harness = GroupHarness(LIMITS)
    harness.topics.put("t", 4)
    return harness


def partitions(result):
    return sorted(index for part in result.assignment.values() for index in part)


def owned(group, *indexes, topic="t"):
    return {group.topics.topic(topic).topic_id: frozenset(indexes)} if indexes else {}


def join(group, name, **extra):
    return group.consumer_heartbeat(name, topics=["t"], **extra)


def two_members(group):
    """`a` has 0 and 1, `b` has 2 and 3."""
    assert partitions(join(group, "a")) == [0, 1, 2, 3]
    second = join(group, "b")
    assert (second.epoch, partitions(second)) == (2, [])
    told = group.consumer_heartbeat("a", 1)
    assert (told.epoch, partitions(told)) == (1, [0, 1])
    done = group.consumer_heartbeat("a", 1, owned=owned(group, 0, 1))
    assert (done.epoch, done.assignment) == (2, None)
    assert partitions(group.consumer_heartbeat("b", 2)) == [2, 3]
    assert group.group.state_name == "Stable"


class TestJoining:
    def test_the_first_member_gets_everything_at_once(self, group):
        result = join(group, "a")
        assert (result.error, result.member_id, result.epoch) == (ErrorCode.NONE, "a", 1)
        assert result.heartbeat_interval_ms == 5_000
        assert partitions(result) == [0, 1, 2, 3]

    def test_a_partition_is_revoked_before_it_is_assigned(self, group):
        two_members(group)

    def test_nothing_new_says_and_writes_nothing(self, group):
        two_members(group)
        written = len(group.journal)
        result = group.consumer_heartbeat("a", 2)
        assert (result.error, result.epoch, result.assignment) == (ErrorCode.NONE, 2, None)
        assert len(group.journal) == written

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"owned": {0: frozenset((1,))}}, "TopicPartitions must be empty"),
            ({"instance_id": " "}, "InstanceId can't be empty"),
            ({"epoch": -2}, "InstanceId can't be null"),
            ({"epoch": -3}, "MemberEpoch is invalid"),
            ({"member_id": ""}, "MemberId can't be empty"),
        ],
    )
    def test_malformed_requests(self, group, changes, message):
        result = group.consumer_heartbeat(**{"member_id": "a", "topics": ["t"], **changes})
        assert result.error is ErrorCode.INVALID_REQUEST
        assert message in result.message

    def test_unknown_assignor(self, group):
        result = join(group, "a", assignor="sticky")
        assert result.error is ErrorCode.UNSUPPORTED_ASSIGNOR
        assert "uniform, range" in result.message

    def test_the_assignor_most_members_ask_for_is_taken(self, group):
        for name, assignor in (("a", "range"), ("b", "range"), ("c", "uniform")):
            join(group, name, assignor=assignor)
        assert group.group.consumer.assignor("uniform") == "range"

    def test_group_max_size(self, group):
        for name in "abc":
            assert join(group, name).error is ErrorCode.NONE
        assert join(group, "d").error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert join(group, "a").error is ErrorCode.NONE

    def test_a_group_that_does_not_exist(self, group):
        assert group.consumer_heartbeat("a", 5).error is ErrorCode.GROUP_ID_NOT_FOUND
        assert group.consumer_heartbeat("a", -1).error is ErrorCode.GROUP_ID_NOT_FOUND

    def test_a_member_that_is_not_known(self, group):
        join(group, "a")
        assert group.consumer_heartbeat("b", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert group.consumer_heartbeat("b", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


class TestEpochs:
    def test_an_epoch_ahead_is_fenced(self, group):
        join(group, "a")
        assert group.consumer_heartbeat("a", 2).error is ErrorCode.FENCED_MEMBER_EPOCH

    def test_the_epoch_before_is_taken_if_the_answer_was_lost(self, group):
        two_members(group)
        result = group.consumer_heartbeat("a", 1, owned=owned(group, 0, 1), topics=["t"], rebalance_ms=60_000)
        assert (result.error, result.epoch, partitions(result)) == (ErrorCode.NONE, 2, [0, 1])

    def test_the_second_previous_epoch_is_fenced(self, group):
        two_members(group)
        join(group, "c")
        for owns in ((0, 1), (0,)):
            group.consumer_heartbeat("a", 2, owned=owned(group, *owns))
        current = group.group.consumer.members["a"].current
        assert (current.epoch, current.previous_epoch) == (3, 2)
        assert group.consumer_heartbeat("a", 2, owned=owned(group, 0)).error is ErrorCode.NONE
        assert group.consumer_heartbeat("a", 1, owned=owned(group, 0)).error is ErrorCode.FENCED_MEMBER_EPOCH

    def test_the_previous_epoch_is_fenced_with_foreign_partitions(self, group):
        two_members(group)
        for claimed in (owned(group, 0, 1, 2), None):
            assert group.consumer_heartbeat("a", 1, owned=claimed).error is ErrorCode.FENCED_MEMBER_EPOCH

    def test_a_member_may_begin_again_at_epoch_zero(self, group):
        two_members(group)
        result = join(group, "a")
        assert (result.error, result.epoch, partitions(result)) == (ErrorCode.NONE, 2, [0, 1])

    def test_a_member_that_does_not_let_go_in_time_is_removed(self, group):
        assert join(group, "a", rebalance_ms=10_000).error is ErrorCode.NONE
        join(group, "b")
        assert partitions(group.consumer_heartbeat("a", 1)) == [0, 1]
        group.advance(9)
        assert group.consumer_heartbeat("a", 1).error is ErrorCode.NONE
        group.advance(2)
        assert group.consumer_heartbeat("a", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert partitions(group.consumer_heartbeat("b", 2)) == [0, 1, 2, 3]

    def test_a_silent_member_is_removed_after_its_session(self, group):
        two_members(group)
        group.advance(40)
        assert group.consumer_heartbeat("b", 2).error is ErrorCode.NONE
        group.advance(6)
        assert group.consumer_heartbeat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert partitions(group.consumer_heartbeat("b", 2)) == [0, 1, 2, 3]

    def test_sessions_start_again_after_a_restart(self, group):
        two_members(group)
        group.advance(40)
        group.crash()
        group.advance(40)
        assert group.consumer_heartbeat("a", 2).error is ErrorCode.NONE
        group.advance(6)
        assert "b" not in group.group.consumer.members


def test_offsets_are_fetched_by_members_of_the_present_epoch_and_by_administrators(group):
    two_members(group)
    consumer = group.group.consumer
    assert fetch_error(consumer, "a", 2) is ErrorCode.NONE
    assert fetch_error(consumer, "a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_error(consumer, "a", 3) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_error(consumer, "nobody", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_error(consumer, None, -1) is ErrorCode.NONE


class TestStaticMembers:
    def test_an_instance_in_use_is_not_given_to_another(self, group):
        join(group, "a", instance_id="i")
        assert join(group, "b", instance_id="i").error is ErrorCode.UNRELEASED_INSTANCE_ID

    def test_a_member_that_left_for_a_moment_is_replaced_without_a_new_target(self, group):
        join(group, "a", instance_id="i")
        assert group.consumer_heartbeat("a", -2, instance_id="i").epoch == -2
        before = group.group.consumer.epoch
        result = join(group, "b", instance_id="i")
        assert (result.error, partitions(result)) == (ErrorCode.NONE, [0, 1, 2, 3])
        assert group.group.consumer.epoch == before
        assert list(group.group.consumer.members) == ["b"]

    def test_partitions_of_an_absent_static_member_are_kept_for_it(self, group):
        join(group, "a", instance_id="i")
        join(group, "b")
        group.consumer_heartbeat("a", 1, instance_id="i", owned=owned(group, 0, 1))
        group.consumer_heartbeat("b", 2)
        group.consumer_heartbeat("a", -2, instance_id="i")
        group.topics.put("t", 6)
        given = group.consumer_heartbeat("b", 2)
        assert set(partitions(given)).isdisjoint({0, 1})
        assert {0, 1} <= set(partitions(join(group, "c", instance_id="i")))

    def test_an_absent_static_member_survives_a_broker_restart(self, group):
        join(group, "a", instance_id="i")
        group.consumer_heartbeat("a", -2, instance_id="i")
        group.crash()
        assert partitions(join(group, "b", instance_id="i")) == [0, 1, 2, 3]

    def test_the_predecessor_is_fenced(self, group):
        join(group, "a", instance_id="i")
        group.consumer_heartbeat("a", -2, instance_id="i")
        join(group, "b", instance_id="i")
        assert group.consumer_heartbeat("a", 1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID

    def test_an_absent_static_member_is_removed_after_its_session(self, group):
        join(group, "a", instance_id="i")
        group.consumer_heartbeat("a", -2, instance_id="i")
        group.advance(46)
        assert group.group.state_name == "Empty"
        assert group.consumer_heartbeat("a", 1, instance_id="i").error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_an_administrator_removes_it_by_name(self, group):
        join(group, "a", instance_id="i")
        join(group, "b")
        outcomes = group.leave(Leaver("", "i"), Leaver("", "other"), Leaver("b", None))
        assert outcomes == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID)
        assert list(group.group.consumer.members) == ["b"]


class TestTopics:
    def test_new_partitions_and_topics_are_assigned(self, group):
        group.consumer_heartbeat("a", topics=["t", "later"])
        group.topics.put("t", 6)
        assert partitions(group.consumer_heartbeat("a", 1)) == [0, 1, 2, 3, 4, 5]
        group.topics.put("later", 1)
        assert len(group.consumer_heartbeat("a", 2).assignment) == 2

    def test_a_topic_of_the_same_name_is_another_one(self, group):
        join(group, "a")
        group.topics.delete("t")
        assert group.consumer_heartbeat("a", 1).assignment == {}
        group.consumer_heartbeat("a", 1, owned={})
        new_id = group.topics.put("t", 2)
        result = group.consumer_heartbeat("a", group.group.consumer.members["a"].current.epoch)
        assert result.assignment == {new_id: frozenset((0, 1))}

    def test_a_pattern_matches_topics_created_later(self, group):
        def resolved(*topics):
            return ResolvedPattern(frozenset(topics), group.topics.version, 0)

        result = group.consumer_heartbeat("a", pattern="t.*", resolved=resolved("t"))
        assert partitions(result) == [0, 1, 2, 3]
        group.topics.put("two", 1)
        group.send(PatternsResolved({"t.*": resolved("t", "two")}))
        assert len(group.consumer_heartbeat("a", 1).assignment) == 2
        group.crash()
        assert group.group.is_subscribed_to("two")
        group.consumer_heartbeat("a", 2, pattern="", topics=["t"])
        assert not group.group.consumer.patterns

    def test_a_member_may_change_to_a_pattern_that_others_use(self, group):
        """No pattern is matched again, and the member's topics change all the same."""
        two = group.topics.put("two", 1)

        def resolved(*topics):
            return ResolvedPattern(frozenset(topics), group.topics.version, 0)

        group.consumer_heartbeat("a", pattern="t.*", resolved=resolved("t", "two"))
        group.consumer_heartbeat("b", pattern="t", resolved=resolved("t"))
        group.consumer_heartbeat("c", pattern="t.*", resolved=resolved("t", "two"))
        for name in ("a", "c"):
            epoch = group.group.consumer.epoch
            group.consumer_heartbeat(name, 0, pattern="t", owned={}, resolved=resolved("t"))
            assert group.group.consumer.epoch == epoch + 1
            assert two not in group.group.consumer.target[name]

    def test_a_malformed_pattern_is_refused(self, group):
        result = group.consumer_heartbeat("a", pattern="(")
        assert result.error is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "missing )" in result.message
        assert group.group.is_disposable


class TestOffsets:
    def test_the_epoch_of_the_member_counts(self, group):
        two_members(group)
        key = {("t", 0): 7}
        assert group.commit(key, "a", 2).error is ErrorCode.NONE
        assert group.commit(key, "a", 3).error is ErrorCode.STALE_MEMBER_EPOCH
        assert group.commit(key, "c", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert group.commit(key).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert group.commit(key, "a", 2, knows_epochs=False).error is ErrorCode.UNSUPPORTED_VERSION

    def test_an_older_epoch_may_commit_partitions_that_it_still_owns(self, group):
        """KIP-1251: the commit was sent before its sender heard of the new epoch."""
        two_members(group)
        assert group.commit({("t", 0): 7}, "a", 1).error is ErrorCode.NONE
        assert group.commit({("t", 2): 7}, "a", 1).error is ErrorCode.STALE_MEMBER_EPOCH
        assert group.commit({("t", 2): 7}, "b", 1).error is ErrorCode.STALE_MEMBER_EPOCH

    def test_a_client_without_membership_may_commit_to_an_empty_group(self, group):
        join(group, "a")
        group.consumer_heartbeat("a", -1)
        assert group.commit({("t", 0): 7}).error is ErrorCode.NONE

    def test_offsets_of_subscribed_topics_do_not_expire(self, group):
        join(group, "a")
        group.commit({("t", 0): 7, ("other", 0): 8}, "a", 1)
        group.limits = Limits(offsets_retention_ms=1_000, consumer_session_timeout_ms=10**9)
        group.crash()
        group.advance(10)
        group.send(ExpireOffsets())
        assert group.group.offsets.keys() == {"t"}

    def test_an_empty_group_goes_with_its_last_offset(self, group):
        join(group, "a")
        group.commit({("t", 0): 7}, "a", 1)
        group.consumer_heartbeat("a", -1)
        group.advance(8 * 24 * 3_600)
        group.send(ExpireOffsets())
        assert group.group.phase is Phase.DEAD
        group.crash()
        assert durable(group.group) == []


class TestBothProtocols:
    def test_an_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets(self, group):
        (name,) = group.stable()
        group.commit({("t", 0): 7}, name, 1)
        group.leave(Leaver(name, None))
        assert join(group, "a").error is ErrorCode.NONE
        group.crash()
        assert (group.group.state_name, group.group.journalled) == ("Stable", None)
        assert group.group.offsets["t"][0].offset == 7

    def test_an_empty_consumer_group_becomes_a_classic_group(self, group):
        join(group, "a")
        group.commit({("t", 0): 7}, "a", 1)
        group.consumer_heartbeat("a", -1)
        group.stable()
        group.crash()
        assert (group.group.consumer, group.group.phase) == (None, Phase.STABLE)
        assert group.group.offsets["t"][0].offset == 7

    def test_a_live_group_keeps_its_protocol_if_migration_is_disabled(self, group):
        group.limits = replace(group.limits, allows_upgrade=False, allows_downgrade=False)
        (name,) = group.stable()
        result = join(group, "a")
        assert result.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert "online upgrade is disabled" in result.message
        group.leave(Leaver(name, None))
        join(group, "a")
        assert group.joined(group.join()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert group.heartbeat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_deletion(self, group):
        join(group, "a")
        token = group.token()
        group.send(DeleteGroup(token))
        assert group.results[token].error is ErrorCode.NON_EMPTY_GROUP
        group.consumer_heartbeat("a", -1)
        token = group.token()
        group.send(DeleteGroup(token))
        assert group.results[token].error is ErrorCode.NONE
        group.crash()
        assert durable(group.group) == []


class TestSlowJournal:
    def test_requests_wait_for_the_change_before_them(self, group):
        group.holds_appends = True
        first, second = group.last_token + 1, group.last_token + 2
        for name in ("a", "b"):
            with pytest.raises(KeyError):
                join(group, name)
        assert len(group.held) == 1
        group.release()
        assert [group.results[token].epoch for token in (first, second)] == [1, 2]

    def test_a_failed_write_changes_nothing(self, group):
        two_members(group)
        before = durable(group.group)
        group.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert join(group, "c").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert group.consumer_heartbeat("a", -1).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        group.advance(46)
        assert durable(group.group) == before
        group.append_error = ErrorCode.NONE
        group.advance(2)
        assert group.group.state_name == "Empty"
