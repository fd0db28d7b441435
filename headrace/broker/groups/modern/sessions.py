"""The deadlines of members: sessions, revocations, and the joins and syncs of classic members."""

from __future__ import annotations

from headrace.broker.groups.model.assignment import MemberState
from headrace.broker.groups.model.consumer import ConsumerGroup, ConsumerMember
from headrace.broker.groups.step import Step


def watch(step: Step, consumer: ConsumerGroup, member: ConsumerMember) -> None:
    """Begin the member's session again, and its time to give up partitions."""
    name = member.member_id
    side = member.subscription.classic
    if side is not None:
        consumer.sessions[name] = step.deadline(side.session_timeout_ms)
        consumer.revocations.pop(name, None)
        return
    consumer.sessions[name] = step.deadline(step.limits.consumer_session_timeout_ms)
    consumer.joins.pop(name, None)
    consumer.syncs.pop(name, None)
    if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        consumer.revocations.pop(name, None)
    elif consumer.revocations.get(name, (0.0, None))[1] is not member.current:
        deadline = step.deadline(member.subscription.rebalance_timeout_ms)
        consumer.revocations[name] = (deadline, member.current)


def expect_join(step: Step, consumer: ConsumerGroup, member: ConsumerMember) -> None:
    """Begin the time in which a classic member must join, when it is first told of a rebalance."""
    if member.member_id not in consumer.joins:
        consumer.joins[member.member_id] = step.deadline(member.subscription.rebalance_timeout_ms)


def watch_all(step: Step) -> None:
    """Begin the sessions of all members, for a group that was loaded or converted."""
    consumer = step.group.consumer
    if consumer is not None:
        for member in consumer.members.values():
            watch(step, consumer, member)
