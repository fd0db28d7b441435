"""Change the protocol of a group with members: `group.consumer.migration.policy`.

Upgrade: a member of the consumer protocol joins a classic group of consumers. The existing members go on to use the
classic protocol in it (`classic_members`). Each has the partitions of its last stored assignment, and the generation as
its epoch. Partitions that it owned when it joined and was not assigned again are still being revoked; Kafka treats them
as free, even if a cooperative member does not know yet. The new member raises the group epoch, so all others are told
of a rebalance. Requests that wait in the classic group are told to join again.

Downgrade: the last member of the consumer protocol leaves. The remaining members become a classic group that begins a
rebalance. Either change is one batch on the journal, with the old group's tombstones first.

Invariants
- A partition that a classic member may still read belongs to it in the new group too, in both directions.
- The stored generation of a downgrade is one ahead of the one that members know. After a crash each member therefore
  has to join again, and the rebalance is not lost.

Differences from Kafka: a static member, the last of the consumer protocol, that returns as a classic member joins the
classic group as a new one does; Kafka gives it the old assignment without a rebalance. A leader's user data stops an
upgrade only if the assignor is not one of Kafka's clients: no consumer reads the user data of those, but librdkafka's
cooperative-sticky writes it.

Source: KIP-848 ("Group upgrade", "Group downgrade"), Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from headrace.broker.groups.classic import rebalance
from headrace.broker.groups.classic.consumer_protocol import subscribed_topics
from headrace.broker.groups.model.assignment import (
    Assignment,
    ClassicSide,
    Current,
    MemberState,
    PartitionEpochs,
    Subscription,
)
from headrace.broker.groups.model.classic import CONSUMER_PROTOCOL_TYPE, Member, Phase
from headrace.broker.groups.model.consumer import ConsumerGroup, ConsumerMember, records_of, tombstones_of
from headrace.broker.groups.model.events import Join, PendingConsumerChange, PendingDowngrade
from headrace.broker.groups.model.group import Group
from headrace.broker.groups.model.records import (
    DropGroup,
    PutCurrent,
    PutEpoch,
    PutGroup,
    PutSubscription,
    PutTarget,
    PutTargetEpoch,
    StoredGroup,
    StoredMember,
)
from headrace.broker.groups.model.topics import Topics
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.modern.reconcile import without_epochs
from headrace.broker.groups.step import Step
from headrace.protocol.consumer_protocol import (
    BUILT_IN_ASSIGNORS,
    TopicPartitions,
    read_assignment,
    read_subscription,
    write_assignment,
)
from headrace.protocol.errors import DecodeError, ErrorCode


def identified(partitions: TopicPartitions, topics: Topics) -> Assignment:
    """Replace topic names by ids. Topics that do not exist are left out."""
    found: dict[UUID, frozenset[int]] = {}
    for name, indexes in partitions:
        image = topics.topic(name)
        if image is not None and indexes:
            found[image.topic_id] = found.get(image.topic_id, frozenset()) | frozenset(indexes)
    return found


def named(assignment: Assignment, topics: Topics) -> list[tuple[str, list[int]]]:
    """Replace topic ids by names. Topics that do not exist any more are left out."""
    return sorted(
        (image.name, sorted(indexes))
        for topic_id, indexes in assignment.items()
        if (image := topics.topic_by_id(topic_id)) is not None
    )


# -- upgrade -------------------------------------------------------------------------------------------------


def upgrade(step: Step) -> Draft:
    """Return the classic group as a group of the consumer protocol, not stored yet. Raises Refused."""
    group = step.group
    _check_upgrade(step)
    draft = Draft(group.group_id, _as_consumer_group(step), created=True)
    if group.generation or group.journalled is not None:
        draft.records.append(DropGroup(group.group_id))
    draft.records.extend(records_of(group.group_id, draft.state))
    return draft


def _check_upgrade(step: Step) -> None:
    group, problem = step.group, ""
    if group.phase is Phase.DEAD:
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Group {group.group_id} is being deleted.")
    if group.is_empty:
        return
    if not step.limits.allows_upgrade:
        problem = "online upgrade is disabled"
    elif group.members and not group.is_consumer_protocol:
        problem = "the group does not use the consumer embedded protocol"
    elif len(group.members) > step.limits.consumer_group_size_max:
        problem = "the group size exceeds the consumer group maximum size"
    if problem:
        raise _cannot_upgrade(group, problem)


def _cannot_upgrade(group: Group, problem: str) -> Refused:
    return Refused(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {problem}.",
    )


def _as_consumer_group(step: Step) -> ConsumerGroup:
    group, group_id, state = step.group, step.group.group_id, ConsumerGroup()
    # A client that was never told its member id cannot use it: it will join as a new member.
    members = [member for member in group.members.values() if member.knows_its_id or not member.is_new]
    if not members:
        return state
    state.apply(PutEpoch(group_id, group.generation, 0))
    state.apply(PutTargetEpoch(group_id, group.generation, step.now.time_ms))
    said: list[tuple[str, Assignment]] = []
    for member in members:
        try:
            held = _held_by(group, member, step.topics)
            subscription, owned = _subscription_of(member, group.protocol, step.topics)
        except DecodeError:
            problem = "the embedded consumer protocol is malformed"
            raise _cannot_upgrade(group, problem) from None
        current = Current(
            group.generation, group.generation, assigned=_not_of_others(state, held, group.generation)
        )
        state.apply(PutSubscription(group_id, member.member_id, subscription))
        state.apply(PutTarget(group_id, member.member_id, without_epochs(current.assigned)))
        state.apply(PutCurrent(group_id, member.member_id, current))
        said.append((member.member_id, owned))
    for member_id, owned in said:
        # The member may not know yet that it lost these partitions: they are free only when it has given them up.
        current = state.members[member_id].current
        if revoking := _not_of_others(state, owned, group.generation):
            unrevoked = replace(current, state=MemberState.UNREVOKED_PARTITIONS, revoking=revoking)
            state.apply(PutCurrent(group_id, member_id, unrevoked))
    return state


def _not_of_others(state: ConsumerGroup, held: Assignment, epoch: int) -> PartitionEpochs:
    """Return the partitions of `held` that have no owner, each with `epoch`."""
    return {
        topic_id: own
        for topic_id, indexes in held.items()
        if (own := {index: epoch for index in indexes if state.owner(topic_id, index) is None})
    }


def _held_by(group: Group, member: Member, topics: Topics) -> Assignment:
    """Return the partitions that the member may read now. In a rebalance those are its last assignment's."""
    data = member.assignment
    if group.phase is not Phase.STABLE and group.journalled is not None:
        for kept in group.journalled.members:
            if kept.member_id == member.member_id or (
                kept.instance_id is not None and kept.instance_id == member.instance_id
            ):
                data = kept.assignment
    assignment = read_assignment(data)
    if assignment.user_data and group.protocol not in BUILT_IN_ASSIGNORS:
        raise _cannot_upgrade(
            group,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade",
        )
    return identified(assignment.partitions, topics)


def _subscription_of(member: Member, protocol: str | None, topics: Topics) -> tuple[Subscription, Assignment]:
    """Return the member's subscription, and the partitions that it owned when it joined."""
    metadata = member.metadata(protocol) or member.protocols[0][1]
    subscription = classic_subscription(
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        side=ClassicSide(member.session_timeout_ms, member.protocols),
        metadata=metadata,
    )
    return subscription, identified(read_subscription(metadata).owned, topics)


def classic_subscription(
    *,
    instance_id: str | None,
    client_id: str,
    client_host: str,
    rebalance_timeout_ms: int,
    side: ClassicSide,
    metadata: bytes,
) -> Subscription:
    """Return the subscription of a classic member, from its `metadata`. Raises DecodeError."""
    said = read_subscription(metadata)
    return Subscription(
        instance_id=instance_id,
        rack_id=said.rack_id,
        client_id=client_id,
        client_host=client_host,
        topics=tuple(sorted(set(said.topics))),
        rebalance_timeout_ms=rebalance_timeout_ms,
        classic=side,
    )


# -- downgrade -----------------------------------------------------------------------------------------------


def is_downgrade_due(step: Step, state: ConsumerGroup) -> bool:
    """Whether `state`, after members have left, becomes a classic group."""
    return (
        step.limits.allows_downgrade
        and bool(state.members)
        and len(state.members) <= step.limits.group_size_max
        and all(member.is_classic for member in state.members.values())
    )


def begin_downgrade(
    step: Step,
    consumer: ConsumerGroup,
    state: ConsumerGroup,
    change: PendingConsumerChange,
    join: Join | None = None,
) -> None:
    """Store `consumer` as a classic group with the members of `state`; `join` joins it then."""
    group = step.group
    protocol = _common_protocol(state)
    stored = StoredGroup(
        group_id=group.group_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=consumer.epoch + 1,
        protocol=protocol,
        leader=next(iter(state.members)),
        state_timestamp_ms=step.now.time_ms,
        members=tuple(_stored_member(member, protocol, step.topics) for member in state.members.values()),
    )
    group.appending = True
    records = (*tombstones_of(group.group_id, consumer), PutGroup(stored))
    protocols = {
        name: member.subscription.classic.protocols
        for name, member in state.members.items()
        if member.subscription.classic is not None
    }
    step.append(records, PendingDowngrade(stored, protocols, change, join))


def _common_protocol(state: ConsumerGroup) -> str:
    """Return an assignor that all members support. There is one: joins without a common assignor are refused."""
    sides = [side for member in state.members.values() if (side := member.subscription.classic) is not None]
    for name, _ in sides[0].protocols:
        if all(any(name == other for other, _ in side.protocols) for side in sides):
            return name
    return sides[0].protocol


def _stored_member(member: ConsumerMember, protocol: str, topics: Topics) -> StoredMember:
    said, current = member.subscription, member.current
    side = said.classic or ClassicSide(0, ((protocol, b""),))
    metadata = next((data for name, data in side.protocols if name == protocol), side.protocols[0][1])
    held = {topic_id: frozenset(indexes) for topic_id, indexes in current.assigned.items()}
    for topic_id, indexes in current.revoking.items():
        held[topic_id] = held.get(topic_id, frozenset()) | frozenset(indexes)
    return StoredMember(
        member_id=member.member_id,
        instance_id=said.instance_id,
        client_id=said.client_id,
        client_host=said.client_host,
        rebalance_timeout_ms=said.rebalance_timeout_ms,
        session_timeout_ms=side.session_timeout_ms,
        subscription=metadata,
        assignment=write_assignment(named(held, topics), read_subscription(metadata).version),
    )


def downgrade(step: Step, pending: PendingDowngrade) -> None:
    """Become the stored classic group, and begin a rebalance in it."""
    group, stored = step.group, pending.stored
    group.consumer = None
    group.journalled = stored
    group.take_members(stored, step.now)
    group.generation = stored.generation - 1
    for name, protocols in pending.protocols.items():
        group.members[name] = replace(group.members[name], protocols=protocols)
    group.subscribed_topics = subscribed_topics(group)
    rebalance.begin(step)
