"""A group with members changes its protocol (`group.consumer.migration.policy`), rule by rule.

Schedules are in test_migration_schedules.
"""

import struct

import pytest
from msgspec.structs import replace

from headrace.broker.groups.model.assignment import MemberState
from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import Leaver
from headrace.broker.groups.model.limits import Limits
from headrace.broker.groups.model.records import (
    DropCurrent,
    DropEpoch,
    DropGroup,
    DropSubscription,
    DropTarget,
    DropTargetEpoch,
    PutEpoch,
    PutGroup,
)
from headrace.protocol.consumer_protocol import read_assignment, write_assignment
from headrace.protocol.errors import ErrorCode
from simulator.groups import GroupHarness, durable

LIMITS = Limits(initial_rebalance_delay_ms=0)


def subscription(*owned, topic=b"t", version=1):
    data = struct.pack(">hihsi", version, 1, 1, topic, -1)
    if not owned:
        return data + struct.pack(">i", 0)
    return data + struct.pack(f">ihsi{len(owned)}i", 1, 1, topic, len(owned), *owned)


def given(*indexes, user_data=b""):
    data = write_assignment([("t", indexes)] if indexes else [], 1)
    return data[:-4] + struct.pack(">i", len(user_data)) + user_data if user_data else data


def partitions(result):
    return [index for _, indexes in read_assignment(result.assignment).partitions for index in indexes]


def assigned(group, name):
    current = group.group.consumer.members[name].current
    return sorted(index for held in current.assigned.values() for index in held)


@pytest.fixture
def group():
    harness = GroupHarness(LIMITS)
    harness.topics.put("t", 4)
    return harness


def classic(group, parts, protocol="range", owned=False):
    """Return a stable classic group. The argument maps each member to the partitions that the leader gives it."""
    tokens = {
        name: group.join(new_member_id=name, protocols={protocol: subscription(*mine if owned else ())})
        for name, mine in parts.items()
    }
    group.tick()
    generation = group.joined(tokens[next(iter(parts))]).generation
    leader = group.group.leader
    for name in sorted(parts, key=lambda name: name == leader):
        group.sync(name, generation, {name: given(*mine) for name, mine in parts.items()})
    return generation


def modern(group, name="new", **extra):
    return group.consumer_heartbeat(name, topics=["t"], **extra)


def rejoin(group, name, *owned, protocol="range", **extra):
    token = group.join(name, protocols={protocol: subscription(*owned)}, **extra)
    return group.joined(token)


def records(group):
    return [type(record).__name__ for record in group.batches[-1]]


class TestUpgrade:
    def test_members_keep_their_partitions_until_they_rejoin(self, group):
        generation = classic(group, {"a": (0, 1), "b": (2, 3)})
        joined = modern(group)
        assert (joined.error, joined.epoch, joined.assignment) == (ErrorCode.NONE, generation + 1, {})
        assert (assigned(group, "a"), assigned(group, "b"), assigned(group, "new")) == ([0, 1], [2, 3], [])
        assert group.group.state_name == "Reconciling"

        assert group.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
        again = rejoin(group, "a")
        assert (again.error, again.generation, again.leader) == (ErrorCode.NONE, generation + 1, "")
        assert (again.protocol_type, again.protocol, again.members) == ("consumer", "range", ())
        mine = partitions(group.synced(group.sync("a", again.generation, protocol="range")))
        assert len(mine) < 3
        assert set(mine) <= {0, 1}
        assert group.heartbeat("a", again.generation) is ErrorCode.NONE
        rejoin(group, "b")
        yours = partitions(group.synced(group.sync("b", again.generation)))
        mine_too = assigned(group, "new") or sorted(
            index for held in modern(group, epoch=joined.epoch).assignment.values() for index in held
        )
        assert sorted([*mine, *yours, *mine_too]) == [0, 1, 2, 3]
        assert group.group.state_name == "Stable"

    def test_a_cooperative_member_gives_up_in_two_steps(self, group):
        generation = classic(group, {"a": (0, 1, 2, 3)}, "cooperative-sticky")
        epoch = modern(group).epoch
        kept = rejoin(group, "a", 0, 1, 2, 3, protocol="cooperative-sticky")
        assert kept.generation == generation
        rest = partitions(group.synced(group.sync("a", generation)))
        assert len(rest) == 2
        assert modern(group, epoch=epoch).assignment is None
        assert group.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
        assert rejoin(group, "a", *rest, protocol="cooperative-sticky").generation == epoch
        freed = group.consumer_heartbeat("new", epoch).assignment
        assert sorted([*rest, *(index for held in freed.values() for index in held)]) == [0, 1, 2, 3]

    def test_one_batch_with_the_records_that_kafka_writes(self, group):
        classic(group, {"a": (0, 1, 2, 3)})
        modern(group)
        kinds = records(group)
        assert kinds[:6] == [
            "DropGroup", "PutSubscription", "PutEpoch", "PutTarget", "PutTargetEpoch", "PutCurrent",
        ]  # fmt: skip
        before = durable(group.group)
        group.crash()
        assert durable(group.group) == before
        side = group.group.consumer.members["a"].subscription.classic
        assert (side.session_timeout_ms, side.protocols) == (10_000, (("range", subscription()),))

    def test_a_waiting_member_is_told_to_rejoin_under_its_id(self, group):
        generation = classic(group, {"a": (0, 1, 2, 3)})
        waiting = group.join(new_member_id="b", protocols={"range": subscription()}, version=9)
        group.tick()
        assert group.joined(waiting).error is ErrorCode.MEMBER_ID_REQUIRED
        waiting = group.join("b", protocols={"range": subscription()}, version=9)
        assert waiting not in group.results
        modern(group)
        told = group.joined(waiting)
        assert (told.error, told.member_id) == (ErrorCode.REBALANCE_IN_PROGRESS, "b")
        assert rejoin(group, "b").generation == generation + 1
        assert assigned(group, "a") == [0, 1, 2, 3]

    def test_an_upgrade_during_a_rebalance_starts_from_the_stored_assignment(self, group):
        classic(group, {"a": (0, 1, 2, 3)}, "cooperative-sticky")
        joining = {"cooperative-sticky": subscription(0, 1, 2, 3)}
        group.join(new_member_id="b", protocols=joining)
        group.join("a", protocols=joining)
        assert group.group.phase is Phase.COMPLETING_REBALANCE
        waiting = group.sync("b", 2)
        modern(group)
        assert group.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
        assert (assigned(group, "a"), assigned(group, "new")) == ([0, 1, 2, 3], [])
        assert group.synced(group.sync("a", 2)).error is ErrorCode.REBALANCE_IN_PROGRESS

    def test_an_assignment_that_is_being_stored_is_not_delivered(self, group):
        tokens = [group.join(new_member_id=name, protocols={"range": subscription()}) for name in "ab"]
        group.tick()
        assert group.joined(tokens[0]).generation == 1
        group.holds_appends = True
        syncs = [group.sync(name, 1, {"a": given(0, 1), "b": given(2, 3)}) for name in "ba"]
        with pytest.raises(KeyError):
            modern(group)
        assert [group.synced(token).error for token in syncs] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
        late = group.sync("a", 1)
        group.release()
        assert group.synced(late).error is ErrorCode.REBALANCE_IN_PROGRESS
        assert group.group.journalled is None
        group.crash()
        assert group.group.consumer is not None

    @pytest.mark.parametrize(
        ("change", "limits", "problem"),
        [
            ({}, {"allows_upgrade": False}, "online upgrade is disabled"),
            ({"protocol_type": "connect"}, {}, "does not use the consumer embedded protocol"),
            ({}, {"consumer_group_size_max": 1}, "size exceeds"),
            ({"metadata": b"\0"}, {}, "malformed"),
            ({"assignment": b"\0\1\0\0"}, {}, "malformed"),
            ({"protocol": "mine", "user_data": b"state"}, {}, "custom assignor"),
        ],
    )
    def test_a_group_that_cannot_be_upgraded_goes_on(self, group, change, limits, problem):
        protocol = change.get("protocol", "range")
        metadata = change.get("metadata", subscription())
        extra = {"protocol_type": change.get("protocol_type", "consumer")}
        for name in "ab":
            group.join(new_member_id=name, protocols={protocol: metadata}, **extra)
        group.tick()
        data = change.get("assignment", given(0, user_data=change.get("user_data", b"")))
        waiting = group.sync("b", 1)
        group.limits = replace(group.limits, **limits)
        group.sync("a", 1, {"a": data, "b": given()})
        assert group.synced(waiting).error is ErrorCode.NONE
        refused = modern(group)
        assert refused.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert problem in refused.message
        assert group.heartbeat("a", 1) is ErrorCode.NONE

    def test_user_data_of_a_built_in_assignor_does_not_block_the_upgrade(self, group):
        group.join(new_member_id="a", protocols={"cooperative-sticky": subscription()})
        group.tick()
        group.sync("a", 1, {"a": given(0, 1, user_data=b"librdkafka's")})
        assert modern(group).error is ErrorCode.NONE
        assert assigned(group, "a") == [0, 1]

    def test_a_failed_write_leaves_the_classic_group(self, group):
        classic(group, {"a": (0, 1), "b": (2, 3)})
        before = durable(group.group)
        group.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert modern(group).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert durable(group.group) == before
        assert group.heartbeat("a", 1) is ErrorCode.NONE


class TestClassicMembers:
    @pytest.fixture
    def group(self, group):
        modern(group)
        return group

    def joined(self, group, name="c", **extra):
        result = rejoin(group, name, **extra)
        assert result.error is ErrorCode.NONE
        return result.generation

    def test_a_new_member_joins_and_is_told_its_id_first(self, group):
        token = group.join(new_member_id="c", protocols={"range": subscription()}, version=9)
        assert group.joined(token) == replace(
            group.joined(token), error=ErrorCode.MEMBER_ID_REQUIRED, member_id="c"
        )
        generation = self.joined(group)
        assert partitions(group.synced(group.sync("c", generation))) == []
        assert group.heartbeat("c", generation) is ErrorCode.NONE  # the others have not revoked yet
        told = group.consumer_heartbeat("new", 1)
        kept = dict(told.assignment)
        group.consumer_heartbeat("new", 1, owned=kept)
        assert group.heartbeat("c", generation) is ErrorCode.REBALANCE_IN_PROGRESS
        assert self.joined(group) == generation
        assert len(partitions(group.synced(group.sync("c", generation)))) == 2
        assert group.heartbeat("c", generation) is ErrorCode.NONE

    def test_assignors_must_have_one_in_common(self, group):
        self.joined(group)
        other = rejoin(group, "", protocol="mine", new_member_id="d")
        assert other.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert rejoin(group, "c", protocol="mine").error is ErrorCode.NONE  # only this member may change it
        wrong = group.join(protocols={"range": b"x"}, protocol_type="consumer")
        assert group.joined(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        wrong = group.join(protocols={"range": subscription()}, protocol_type="connect")
        assert group.joined(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_requests_are_checked(self, group):
        generation = self.joined(group)
        assert group.heartbeat("c", generation + 1) is ErrorCode.ILLEGAL_GENERATION
        assert group.heartbeat("nobody", generation) is ErrorCode.UNKNOWN_MEMBER_ID
        assert group.heartbeat("new", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        errors = [
            group.synced(group.sync("c", generation, **extra)).error
            for extra in ({"protocol": "mine"}, {"protocol_type": "connect"}, {"instance_id": "i"})
        ]
        assert errors == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL] * 2 + [ErrorCode.UNKNOWN_MEMBER_ID]
        early = rejoin(group, "", session_ms=1)
        assert early.error is ErrorCode.INVALID_SESSION_TIMEOUT
        group.limits = replace(LIMITS, consumer_group_size_max=2)
        assert rejoin(group, "").error is ErrorCode.GROUP_MAX_SIZE_REACHED

    def test_commits_of_a_classic_member_are_checked_by_generation(self, group):
        generation = self.joined(group)
        key = {("t", 0): 7}
        assert group.commit(key, "c", generation, knows_epochs=False).error is ErrorCode.NONE
        assert group.commit(key, "c", generation - 1).error is ErrorCode.ILLEGAL_GENERATION

    def test_a_classic_member_has_its_own_session_timeout(self, group):
        self.joined(group, session_ms=6_000)
        group.advance(7)
        assert list(group.group.consumer.members) == ["new"]

    def test_a_classic_member_has_its_rebalance_timeout_to_sync(self, group):
        generation = self.joined(group, rebalance_ms=20_000)
        for _ in range(4):
            assert group.heartbeat("c", generation) is ErrorCode.NONE
            assert group.consumer_heartbeat("new", 1).error is ErrorCode.NONE
            group.advance(5)
        assert "c" not in group.group.consumer.members

    def test_a_classic_member_has_its_rebalance_timeout_to_rejoin(self, group):
        generation = self.joined(group, rebalance_ms=20_000)
        group.sync("c", generation)
        modern(group, "another")
        errors = []
        for _ in range(5):
            errors.append(group.heartbeat("c", generation))
            group.advance(5)
        assert errors[:4] == [ErrorCode.REBALANCE_IN_PROGRESS] * 4
        assert "c" not in group.group.consumer.members

    def test_a_removed_member_cannot_return_with_its_old_partitions(self, group):
        self.joined(group)
        group.advance(11)
        assert rejoin(group, "c", 0, 1).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert rejoin(group, "c").error is ErrorCode.NONE

    def test_a_classic_members_heartbeat_reports_new_partitions(self, group):
        generation = self.joined(group)
        group.sync("c", generation)
        assert group.heartbeat("c", generation) is ErrorCode.NONE
        group.topics.put("t", 8)
        assert group.heartbeat("c", generation) is ErrorCode.REBALANCE_IN_PROGRESS
        assert self.joined(group) == generation + 1

    def test_a_failed_write_changes_nothing(self, group):
        before = durable(group.group)
        group.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert rejoin(group, "c").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert durable(group.group) == before

    def test_static_members_change_their_protocol_and_keep_their_partitions(self, group):
        modern(group, "s1", instance_id="i")
        again = rejoin(group, "", new_member_id="s2", instance_id="i")
        assert again.error is ErrorCode.NONE
        assert group.consumer_heartbeat("s1", 2, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
        back = modern(group, "s3", instance_id="i")
        assert back.error is ErrorCode.NONE
        assert group.heartbeat("s2", again.generation, "i") is ErrorCode.FENCED_INSTANCE_ID
        assert set(group.group.consumer.members) == {"new", "s3"}
        assert not group.group.consumer.members["s3"].is_classic


class TestDowngrade:
    @pytest.fixture
    def group(self, group):
        """`a` and `b` are classic members at the group's epoch, `new` is the last of the consumer protocol."""
        classic(group, {"a": (0, 1), "b": (2, 3)})
        joined = modern(group)
        for name in "ab":
            rejoin(group, name)
            group.sync(name, joined.epoch)
        modern(group, epoch=joined.epoch)
        assert group.group.state_name == "Stable"
        return group

    def last_one_leaves(self, group):
        return group.consumer_heartbeat("new", -1)

    def test_a_group_is_classic_again_when_its_last_modern_member_leaves(self, group):
        epoch = group.group.consumer.epoch
        held = {name: assigned(group, name) for name in "ab"}
        assert self.last_one_leaves(group).error is ErrorCode.NONE
        assert (group.group.consumer, group.group.phase) == (None, Phase.PREPARING_REBALANCE)
        assert records(group)[-1] == "PutGroup"
        stored = {member.member_id: partitions(member) for member in group.group.journalled.members}
        assert stored == held
        assert group.commit({("t", 0): 5}, "a", epoch).error is ErrorCode.NONE
        assert group.heartbeat("a", epoch) is ErrorCode.REBALANCE_IN_PROGRESS
        tokens = [group.join(name, protocols={"range": subscription()}) for name in "ab"]
        assert [group.joined(token).generation for token in tokens] == [epoch + 1] * 2
        group.sync("a", epoch + 1, {"a": given(0, 1), "b": given(2, 3)})
        assert group.group.phase is Phase.STABLE
        group.crash()
        assert (group.group.consumer, group.group.phase) == (None, Phase.STABLE)
        assert not any(isinstance(record, PutEpoch) for record in group.batches[-1])

    def test_a_downgrade_follows_the_end_of_the_last_modern_session(self, group):
        epoch = group.group.consumer.epoch
        for _ in range(10):
            group.advance(5)
            for name in "ab":
                group.heartbeat(name, epoch)
        assert group.group.consumer is None
        assert set(group.group.members) == {"a", "b"}

    def test_a_crash_does_not_lose_the_rebalance(self, group):
        epoch = group.group.consumer.epoch
        self.last_one_leaves(group)
        group.crash()
        assert group.group.phase is Phase.STABLE
        assert group.heartbeat("a", epoch) is ErrorCode.ILLEGAL_GENERATION

    def test_a_static_member_that_left_for_a_moment_keeps_the_protocol(self, group):
        modern(group, "s", instance_id="i")
        self.last_one_leaves(group)
        group.consumer_heartbeat("s", -2, instance_id="i")
        assert group.group.consumer is not None

    def test_a_static_member_comes_back_under_the_classic_protocol(self, group):
        modern(group, "s", instance_id="i")
        self.last_one_leaves(group)
        token = group.join(new_member_id="s2", instance_id="i", protocols={"range": subscription()})
        assert group.group.consumer is None
        assert set(group.group.members) == {"a", "b", "s2"}
        for name in "ab":
            group.join(name, protocols={"range": subscription()})
        assert group.joined(token).error is ErrorCode.NONE

    def test_an_emptied_group_starts_again_as_a_classic_group(self, group):
        group.leave(Leaver("a", None), Leaver("b", None))
        modern(group, "s", instance_id="i")
        self.last_one_leaves(group)
        token = group.join(new_member_id="s2", instance_id="i", protocols={"range": subscription()})
        group.tick()
        assert group.joined(token).generation == 1
        group.crash()
        assert group.group.consumer is None

    def test_a_downgrade_follows_the_removal_of_the_last_modern_member(self, group):
        modern(group, "s", instance_id="i")
        self.last_one_leaves(group)
        assert group.leave(Leaver("", "i")) == (ErrorCode.NONE,)
        assert group.group.consumer is None

    @pytest.mark.parametrize("limits", [{"allows_downgrade": False}, {"group_size_max": 1}])
    def test_a_group_that_may_not_be_downgraded_stays_modern(self, group, limits):
        group.limits = replace(LIMITS, **limits)
        epoch = group.group.consumer.epoch
        self.last_one_leaves(group)
        assert group.group.consumer is not None
        assert group.heartbeat("a", epoch) is ErrorCode.REBALANCE_IN_PROGRESS
        again = rejoin(group, "a").generation
        mine = partitions(group.synced(group.sync("a", again)))
        assert rejoin(group, "b").generation == again
        yours = partitions(group.synced(group.sync("b", again)))
        assert sorted([*mine, *yours]) == [0, 1, 2, 3]

    def test_a_failed_write_is_tried_again(self, group):
        before = durable(group.group)
        group.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert self.last_one_leaves(group).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert durable(group.group) == before
        group.append_error = ErrorCode.NONE
        assert self.last_one_leaves(group).error is ErrorCode.NONE
        assert group.group.consumer is None

    def test_a_downgraded_group_is_upgraded_again_before_a_join(self, group):
        held = {name: assigned(group, name) for name in "ab"}
        self.last_one_leaves(group)
        modern(group, "next")
        assert {name: assigned(group, name) for name in "ab"} == held
        assert not set(assigned(group, "next")) & {index for mine in held.values() for index in mine}
        assert group.group.consumer.members["a"].current.state is MemberState.STABLE


def test_the_journal_holds_one_protocol_at_a_time(group):
    classic(group, {"a": (0, 1, 2, 3)})
    modern(group)
    assert any(isinstance(record, DropGroup) for record in group.batches[-1])
    group.consumer_heartbeat("new", -1)
    kinds = {type(record) for record in group.batches[-1]}
    assert kinds == {
        DropCurrent,
        DropTarget,
        DropTargetEpoch,
        DropSubscription,
        DropEpoch,
        PutGroup,
    }
