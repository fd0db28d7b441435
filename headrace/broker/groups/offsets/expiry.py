"""Expiry of committed offsets. Retention counts from the time when the group became empty (KIP-211)."""

from __future__ import annotations

from headrace.broker.groups.model.classic import (
    Phase,
)
from headrace.broker.groups.model.events import (
    ExpireOffsets,
)
from headrace.broker.groups.model.group import (
    Group,
)
from headrace.broker.groups.model.limits import (
    Now,
)
from headrace.broker.groups.model.records import (
    CommittedOffset,
)
from headrace.broker.groups.offsets import (
    deletion,
)
from headrace.broker.groups.step import Step


def expire_offsets(step: Step, event: ExpireOffsets) -> None:
    """Drop offsets that have passed their retention, and the group if it has none left.

    A group with members keeps offsets of the topics it subscribes to. Offsets that an open transaction replaces stay.
    """
    group = step.group
    if group.is_live and not (
        group.phase is Phase.STABLE and group.is_consumer_protocol and group.subscribed_topics is not None
    ):
        return
    doomed = tuple(
        (topic, partition)
        for topic, partitions in group.offsets.items()
        if group.is_empty or not group.is_subscribed_to(topic)
        for partition, committed in partitions.items()
        if _is_expired(group, committed, step.now, step.limits.offsets_retention_ms)
        and (topic, partition) not in event.in_transactions
    )
    remaining = sum(len(partitions) for partitions in group.offsets.values()) - len(doomed)
    if group.is_empty and remaining == 0 and not event.in_transactions:
        deletion.drop_group(step, None)
    elif doomed:
        deletion.drop_offsets(step, doomed)


def _is_expired(group: Group, committed: CommittedOffset, now: Now, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms >= 0:
        return now.time_ms >= committed.expire_timestamp_ms
    base_ms = committed.commit_timestamp_ms
    if group.phase is Phase.EMPTY and group.protocol_type is not None and group.state_timestamp_ms >= 0:
        base_ms = max(base_ms, group.state_timestamp_ms)
    return now.time_ms - base_ms >= retention_ms
