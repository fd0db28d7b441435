"""Who may commit and fetch the offsets of a group of the consumer protocol. Sources: KIP-848, KIP-1251."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.groups.events import Commit
from headrace.broker.groups.modern.model import ConsumerGroup
from headrace.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.rebalance import Rebalance


def commit_error(step: Rebalance, event: Commit) -> ErrorCode:
    """Who may commit to a group of the consumer protocol. An older epoch may commit what it still has."""
    consumer = step.group.consumer
    if consumer is None or (event.generation < 0 and not consumer.members):
        return ErrorCode.NONE
    member = consumer.members.get(event.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    current = member.current
    if member.is_classic:
        is_current = event.generation == current.epoch
        return ErrorCode.NONE if is_current else ErrorCode.ILLEGAL_GENERATION
    if not event.knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    if event.generation == current.epoch:
        return ErrorCode.NONE
    if event.generation > current.epoch:
        return ErrorCode.STALE_MEMBER_EPOCH
    for topic, index in event.offsets:
        image = step.topics.topic(topic)
        topic_id = image.topic_id if image is not None else UUID(int=0)
        since = current.assigned.get(topic_id, {}).get(index)
        if since is None:
            since = current.revoking.get(topic_id, {}).get(index)
        if since is None or event.generation < since:
            return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE


def fetch_error(consumer: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Who may fetch offsets as a member. Administrators and old clients do not say who they are."""
    if not member_id and epoch < 0:
        return ErrorCode.NONE
    member = consumer.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.current.epoch == epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
