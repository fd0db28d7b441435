"""The group epoch and the target assignment: both change when subscriptions or topics do."""

from __future__ import annotations

from uuid import UUID

from headrace.broker.groups.model.assignment import NOTHING, ResolvedPattern
from headrace.broker.groups.model.consumer import ConsumerGroup, metadata_hash
from headrace.broker.groups.model.records import DropPattern, PutEpoch, PutPattern, PutTarget, PutTargetEpoch
from headrace.broker.groups.modern.assignors import ASSIGNORS, Subscriber
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.step import Step
from headrace.broker.runtime.pattern import PatternError, compile_pattern
from headrace.protocol.errors import ErrorCode


def check_pattern(consumer: ConsumerGroup, pattern: str | None) -> None:
    """Raise Refused if a new pattern is not a valid regular expression."""
    if pattern is None or pattern in consumer.patterns:
        return
    try:
        compile_pattern(pattern)
    except PatternError as error:
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}.",
        ) from None


def update_patterns(draft: Draft, resolved: ResolvedPattern | None) -> bool:
    """Drop unused patterns and add new ones with their topics. Returns whether any changed."""
    users = draft.state.pattern_users()
    stale = [pattern for pattern in draft.state.patterns if pattern not in users]
    for pattern in stale:
        draft.put(DropPattern(draft.group_id, pattern))
    fresh = [pattern for pattern in users if pattern not in draft.state.patterns]
    for pattern in fresh:
        if resolved is not None:
            draft.put(PutPattern(draft.group_id, pattern, resolved))
    return bool(stale or fresh)


def refresh(step: Step, draft: Draft, *, bumps: bool) -> None:
    """Raise the group epoch after a change, and compute the target assignment of a new epoch."""
    state, topics = draft.state, step.topics
    if bumps or state.seen_version != topics.version:
        found = metadata_hash(topics, state.subscribed_topics())
        if bumps or found != state.metadata_hash:
            draft.put(PutEpoch(draft.group_id, state.epoch + 1, found))
        state = draft.state
        state.seen_version = topics.version
    if state.epoch > state.target_epoch:
        _assign(step, draft)


def _assign(step: Step, draft: Draft) -> None:
    state = draft.state
    counts: dict[UUID, int] = {}
    ids: dict[str, UUID] = {}
    for name in state.subscribed_topics():
        image = step.topics.topic(name)
        if image is not None:
            ids[name] = image.topic_id
            counts[image.topic_id] = image.partition_count
    subscribers = [
        Subscriber(
            member_id=member.member_id,
            instance_id=member.subscription.instance_id,
            topics=frozenset(ids[name] for name in state.topics_of(member.subscription) if name in ids),
            assigned=state.target.get(member.member_id, NOTHING),
        )
        for member in state.members.values()
    ]
    assignor = state.assignor(step.limits.consumer_assignors[0])
    targets = ASSIGNORS[assignor](subscribers, counts)
    for member_id, target in targets.items():
        if draft.state.target.get(member_id) != target:
            draft.put(PutTarget(draft.group_id, member_id, target))
    draft.put(PutTargetEpoch(draft.group_id, draft.state.epoch, step.now.time_ms))
