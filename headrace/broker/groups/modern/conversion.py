"""How a group with members changes its protocol: `group.consumer.migration.policy`.

Upgrade: when a member of the consumer protocol joins a classic group of consumers, the members of that become members
of the consumer group that go on speaking the classic protocol (`classic_members`). Each has what the last assignment
that was stored gave it, and the generation as its epoch; what it owned when it joined and was not given again it is
still giving up (Kafka takes it for free, also from a cooperative member that has not heard yet). The newcomer bumps
the group epoch, so all of them are told of a rebalance. Requests that wait in the classic group are sent to join
again.

Downgrade: when the last member of the consumer protocol is gone, those who remain become a classic group that
prepares a rebalance. Both are one batch on the journal, the old group's tombstones first.

Invariants
- A partition that a classic member may still read from belongs to it in the new group too, in both directions.
- After a crash right after a downgrade nobody knows the generation on the journal, which is one ahead: whoever
  is heard of joins again, so the rebalance is not lost with the memory of it.

Differences from Kafka: a static member that comes back under the classic protocol as the last one of the
consumer protocol joins the classic group as anybody does (Kafka gives it the old assignment without a
rebalance). A leader's user data stops an upgrade only if the assignor is none of Kafka's clients' own: in
theirs no consumer reads it, but librdkafka's cooperative-sticky writes it.

Source: KIP-848 ("Group upgrade", "Group downgrade"), Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from msgspec.structs import replace

from headrace.broker.groups.consumer_protocol import (
    BUILT_IN_ASSIGNORS,
    TopicPartitions,
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
)
from headrace.broker.groups.events import Append, Join, PendingConsumerChange, PendingDowngrade
from headrace.broker.groups.group import Group
from headrace.broker.groups.model import (
    CONSUMER_PROTOCOL_TYPE,
    DropGroup,
    Member,
    Phase,
    PutGroup,
    StoredGroup,
    StoredMember,
)
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.modern.model import (
    Assignment,
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    Current,
    MemberState,
    PartitionEpochs,
    PutCurrent,
    PutEpoch,
    PutSubscription,
    PutTarget,
    PutTargetEpoch,
    Subscription,
    Topics,
    records_of,
    tombstones_of,
)
from headrace.broker.groups.modern.reconcile import without_epochs
from headrace.protocol.errors import DecodeError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.rebalance import Rebalance


def identified(partitions: TopicPartitions, topics: Topics) -> Assignment:
    """Topics by id instead of by name; those that do not exist are left out."""
    found: dict[UUID, frozenset[int]] = {}
    for name, indexes in partitions:
        image = topics.topic(name)
        if image is not None and indexes:
            found[image.topic_id] = found.get(image.topic_id, frozenset()) | frozenset(indexes)
    return found


def named(assignment: Assignment, topics: Topics) -> list[tuple[str, list[int]]]:
    """Topics by name instead of by id; those that do not exist any more are left out."""
    return sorted(
        (image.name, sorted(indexes))
        for topic_id, indexes in assignment.items()
        if (image := topics.topic_by_id(topic_id)) is not None
    )


# -- upgrade -------------------------------------------------------------------------------------------------


def upgrade(step: Rebalance) -> Draft:
    """The classic group as one of the consumer protocol, not stored yet. Raises Refused."""
    group = step.group
    _check_upgrade(step)
    draft = Draft(group.group_id, _as_consumer_group(step), created=True)
    if group.generation or group.journalled is not None:
        draft.records.append(DropGroup(group.group_id))
    draft.records.extend(records_of(group.group_id, draft.state))
    return draft


def _check_upgrade(step: Rebalance) -> None:
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


def _as_consumer_group(step: Rebalance) -> ConsumerGroup:
    group, group_id, state = step.group, step.group.group_id, ConsumerGroup()
    # Whoever was never told its member id cannot be this member: it comes back as a new one.
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
        # It may not have heard yet that these were taken from it: nobody else has them before it lets go.
        current = state.members[member_id].current
        if revoking := _not_of_others(state, owned, group.generation):
            unrevoked = replace(current, state=MemberState.UNREVOKED_PARTITIONS, revoking=revoking)
            state.apply(PutCurrent(group_id, member_id, unrevoked))
    return state


def _not_of_others(state: ConsumerGroup, held: Assignment, epoch: int) -> PartitionEpochs:
    """Of `held` what nobody has, with the epoch since when it is held."""
    return {
        topic_id: own
        for topic_id, indexes in held.items()
        if (own := {index: epoch for index in indexes if state.owner(topic_id, index) is None})
    }


def _held_by(group: Group, member: Member, topics: Topics) -> Assignment:
    """What the member may be reading. During a rebalance that is what it was last given."""
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
    """What the member said when it joined, and what it owned then."""
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
    """What a member of the classic protocol says with `metadata`. Raises DecodeError."""
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


def is_downgrade_due(step: Rebalance, state: ConsumerGroup) -> bool:
    """Whether `state`, which a member has just left, goes on as a classic group."""
    return (
        step.limits.allows_downgrade
        and bool(state.members)
        and len(state.members) <= step.limits.group_size_max
        and all(member.is_classic for member in state.members.values())
    )


def begin_downgrade(
    step: Rebalance,
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
    step.effects.append(Append(records, PendingDowngrade(stored, protocols, change, join)))


def _common_protocol(state: ConsumerGroup) -> str:
    """Members join only with an assignor that all others have, so there is one; but any will do for now."""
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


def downgrade(step: Rebalance, pending: PendingDowngrade) -> None:
    """The classic group is stored: its members are to join again."""
    group, stored = step.group, pending.stored
    group.consumer = None
    group.journalled = stored
    group.take_members(stored, step.now)
    group.generation = stored.generation - 1
    for name, protocols in pending.protocols.items():
        group.members[name] = replace(group.members[name], protocols=protocols)
    group.subscribed_topics = subscribed_topics(group)
    step.begin()
