"""Moves of partitions to other brokers, by the sequence of their states."""

from __future__ import annotations

import pytest

from headrace.broker.metadata.controller import reassigned
from headrace.broker.metadata.events import (
    BrokerGone,
    BrokerLeaving,
    ChangeIsr,
    CreateTopics,
    Reassign,
    ReplaceTopic,
)
from headrace.broker.metadata.image import NO_LEADER, PartitionState
from headrace.broker.metadata.reassignment import begun, cancelled, completed
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.tests.metadata.test_controller import Controller, elected, state_of, topic
from headrace.protocol.errors import ErrorCode, KafkaError


def created(replicas: tuple[int, ...], brokers: int = 5, **config: str) -> Controller:
    controller = elected(brokers)
    controller.carry_out(CreateTopics((topic("t", 1, **config),), assignments={"t": [list(replicas)]}))
    return controller


def move(controller: Controller, target: tuple[int, ...] | None) -> PartitionState:
    controller.carry_out(Reassign((("t", 0, target),)))
    return state_of(controller)


def in_sync(controller: Controller, *isr: int) -> PartitionState:
    state = state_of(controller)
    members = tuple((broker, 100 + broker) for broker in isr)
    controller.carry_out(ChangeIsr("t", 0, state.leader, state.leader_epoch, state.partition_epoch, members))
    return state_of(controller)


def refused(controller: Controller, target: tuple[int, ...] | None, **options: bool) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        reassigned(controller.image, "t", 0, target, **options)
    return caught.value.code, caught.value.message


def test_a_move_completes_when_all_added_replicas_are_in_sync() -> None:
    controller = created((0, 1))
    state = move(controller, (2, 3))
    assert (state.replicas, state.adding, state.removing) == ((2, 3, 0, 1), (2, 3), (0, 1))
    assert (state.leader, state.isr) == (0, (0, 1)), "until then everything is as it was"
    epoch = state.leader_epoch
    state = in_sync(controller, 0, 1, 2)
    assert (state.leader, state.isr, state.removing) == (0, (0, 1, 2), (0, 1))
    state = in_sync(controller, 0, 1, 2, 3)
    assert (state.replicas, state.isr, state.adding, state.removing) == ((2, 3), (2, 3), (), ())
    assert (state.leader, state.leader_epoch) == (2, epoch + 1)


def test_a_remaining_leader_stays_and_removed_replicas_go_at_once() -> None:
    controller = created((0, 1, 2))
    before = state_of(controller)
    state = move(controller, (1, 0))
    assert (state.replicas, state.isr, state.removing) == ((1, 0), (0, 1), ())
    assert (state.leader, state.leader_epoch) == (0, before.leader_epoch), "preferred is now another one"
    assert state.partition_epoch > before.partition_epoch
    state = move(controller, (1,))
    assert (state.replicas, state.leader, state.leader_epoch) == ((1,), 1, before.leader_epoch + 1)


def test_no_replica_is_removed_before_a_remaining_one_is_in_sync() -> None:
    controller = created((0, 1))
    in_sync(controller, 0)
    state = move(controller, (1,))
    assert (state.replicas, state.isr, state.leader, state.removing) == ((1, 0), (0,), 0, (0,))
    state = in_sync(controller, 0, 1)
    assert (state.replicas, state.isr, state.leader) == ((1,), (1,), 1)
    controller = created((0, 1))
    in_sync(controller, 0)
    controller.carry_out(BrokerGone(0))
    state = move(controller, (1,))
    assert (state.replicas, state.isr, state.leader) == ((1, 0), (0,), NO_LEADER), (
        "nor while there is no leader"
    )


def test_replicas_are_removed_after_min_insync_replicas_remain() -> None:
    controller = created((2, 0, 1), min_insync_replicas="2")
    in_sync(controller, 2, 1)
    state = move(controller, (0, 1))
    assert (state.replicas, state.isr, state.leader, state.removing) == ((0, 1, 2), (2, 1), 2, (2,))
    state = in_sync(controller, 2, 1, 0)
    assert (state.replicas, state.isr, state.removing) == ((0, 1), (1, 0), ())

    controller = created((2, 0, 1), min_insync_replicas="2")
    in_sync(controller, 2, 1)
    state = move(controller, (1,))
    assert (state.replicas, state.isr) == ((1,), (1,)), "no more than there are to be"

    controller = created((2, 0, 1), min_insync_replicas="2")
    in_sync(controller, 2)
    state = move(controller, (2, 0))
    assert (state.replicas, state.isr) == ((2, 0), (2,)), "the removed replica has nothing that others lack"


def test_an_eligible_replica_is_removed_after_others_are_in_sync() -> None:
    controller = created((2, 1, 0), **{"min.insync.replicas": "2"})
    in_sync(controller, 2, 1)
    state = in_sync(controller, 2)
    assert (state.isr, state.elr) == ((2,), (1,)), "1 has what was acknowledged too"
    state = move(controller, (0, 2))
    assert (state.replicas, state.elr, state.removing) == ((0, 2, 1), (1,), (1,))
    state = in_sync(controller, 2, 0)
    assert (state.replicas, state.isr, state.elr, state.removing) == ((0, 2), (2, 0), (), ())


def test_a_move_is_not_cancelled_where_an_original_replica_is_only_eligible() -> None:
    state = PartitionState(
        (2, 0), leader=2, leader_epoch=3, isr=(2,), elr=(0,), partition_epoch=5, adding=(2,)
    )
    with pytest.raises(KafkaError, match="none of its earlier replicas"):
        cancelled(state, "t-0", unclean=False, min_isr=2)


def test_a_smaller_number_that_has_to_be_in_sync_ends_a_move_that_waited_for_more() -> None:
    controller = created((2, 0, 1), min_insync_replicas="2")
    in_sync(controller, 2, 1)
    assert move(controller, (0, 1)).removing == (2,)
    entry = controller.image.topics["t"]
    lower = TopicImage("t", entry.topic.topic_id, 1, {"min.insync.replicas": "1"})
    controller.carry_out(ReplaceTopic(lower, entry.version))
    state = state_of(controller)
    assert (state.replicas, state.isr, state.leader, state.removing) == ((0, 1), (1,), 1, ())


def test_an_added_replica_is_removed_after_others_are_in_sync() -> None:
    def half_moved() -> Controller:
        controller = created((0, 1), min_insync_replicas="2")
        move(controller, (0, 2))
        in_sync(controller, 0)
        return controller

    controller = half_moved()
    assert in_sync(controller, 0, 2).replicas == (0, 2)
    for target in (None, (0, 1), (0, 3)):
        controller = half_moved()
        move(controller, (0, 2, 3))
        in_sync(controller, 0, 2)
        state = move(controller, target)
        assert 2 in state.removing, target
        assert state.isr == (0, 2)
    state = in_sync(controller, 0, 2, 3)
    assert (state.replicas, state.isr, state.removing) == ((0, 3), (0, 3), ())


def test_a_single_replica_that_gets_others_has_a_new_leader_epoch() -> None:
    controller = created((0,))
    before = state_of(controller)
    state = move(controller, (0, 1, 2))
    assert (state.leader, state.isr, state.adding) == (0, (0,), (1, 2))
    assert state.leader_epoch == before.leader_epoch + 2
    assert in_sync(controller, 0, 1, 2).adding == ()


def test_a_cancelled_move_restores_the_replicas() -> None:
    controller = created((0, 1))
    assert refused(controller, None)[0] is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    move(controller, (2, 3))
    in_sync(controller, 0, 1, 2)
    state = move(controller, None)
    assert (state.replicas, state.isr, state.adding, state.removing, state.leader) == (
        (0, 1),
        (0, 1),
        (),
        (),
        0,
    )


def test_a_move_is_not_cancelled_where_only_new_replicas_are_in_sync_unless_that_may_be() -> None:
    for unclean in ("false", "true"):
        controller = created((0,), unclean_leader_election_enable=unclean)
        move(controller, (1, 2))
        in_sync(controller, 0, 1)
        controller.carry_out(BrokerGone(0))
        state = state_of(controller)
        assert (state.leader, state.isr, state.adding) == (1, (1,), (1, 2))
        if unclean == "false":
            code, message = refused(controller, None)
            assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert "cannot be cancelled" in message
        else:
            state = move(controller, None)
            assert (state.replicas, state.isr, state.leader) == ((0,), (0,), NO_LEADER)


def test_another_target_replaces_the_move_and_drops_added_replicas() -> None:
    controller = created((0, 1))
    move(controller, (2, 3))
    in_sync(controller, 0, 1, 2)
    state = move(controller, (2, 4))
    assert (state.replicas, state.adding, state.removing) == ((2, 4, 0, 1), (2, 4), (0, 1))
    assert state.isr == (0, 1, 2)
    state = move(controller, (0, 1))
    assert (state.replicas, state.isr, state.adding, state.removing) == ((0, 1), (0, 1), (), ())


def test_an_added_replica_that_leads_is_removed_last() -> None:
    state = PartitionState((2, 0), 2, 5, (2, 0), adding=(2,), removing=(0,))
    turned = begun(state, (1,))
    assert (turned.replicas, turned.adding, turned.removing, turned.isr) == ((1, 2, 0), (1,), (2, 0), (2, 0))


def test_a_move_ends_when_a_target_replica_can_lead() -> None:
    controller = created((0, 1))
    move(controller, (0, 2))
    controller.carry_out(BrokerLeaving(2))
    assert state_of(controller).adding == (2,)
    controller = created((0, 1))
    in_sync(controller, 0, 1)
    move(controller, (1, 2))
    controller.carry_out(BrokerGone(1))
    state = state_of(controller)
    assert (state.leader, state.isr, state.adding) == (0, (0,), (2,))
    state = in_sync(controller, 0, 2)
    assert (state.replicas, state.isr, state.leader) == ((1, 2), (2,), 2)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ((), "includes an empty replica list"),
        ((0, 0), "includes the broker 0 more than once"),
        ((0, 9), "includes broker 9, but no such broker is registered. Those that are: 0, 1, 2, 3, 4."),
    ],
)
def test_an_impossible_reassignment_is_refused(target: tuple[int, ...], words: str) -> None:
    code, message = refused(created((0, 1)), target)
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert words in message


def test_a_replica_that_is_not_alive_may_stay_and_its_number_may_be_bound() -> None:
    controller = created((0, 1))
    controller.carry_out(BrokerGone(1))
    assert move(controller, (2, 1)).adding == (2,)
    assert refused(controller, (2,), factor_may_change=False) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "The replication factor of t-0 is changed from 2 to 1",
    )
    reassigned(controller.image, "t", 0, (3, 4), factor_may_change=False)


def test_partitions_that_are_added_meanwhile_have_as_many_replicas_as_there_will_be() -> None:
    controller = created((0, 1))
    move(controller, (2, 3))
    entry = controller.image.topics["t"]
    grown = TopicImage("t", entry.topic.topic_id, 2, entry.topic.config)
    controller.carry_out(ReplaceTopic(grown, entry.version))
    assert len(state_of(controller, index=1).replicas) == 2


def test_a_partition_that_is_not_moved_is_not_completed() -> None:
    state = PartitionState((0, 1), 0, 1, (0, 1))
    assert completed(state) is None
    assert begun(state, (0, 1)) is state
    with pytest.raises(KafkaError):
        cancelled(state, "t-0", unclean=True)
