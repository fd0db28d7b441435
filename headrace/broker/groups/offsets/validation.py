"""Whether a request may commit or fetch offsets as a member of the group.

Sources: KIP-447 (transactions), KIP-848 and KIP-1251 (the consumer protocol).
"""

from __future__ import annotations

from uuid import UUID

from headrace.broker.groups.classic import (
    members,
)
from headrace.broker.groups.model.classic import (
    Phase,
)
from headrace.broker.groups.model.consumer import (
    ConsumerGroup,
)
from headrace.broker.groups.model.events import (
    Commit,
)
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def commit_error(step: Step, event: Commit) -> ErrorCode:
    """Return why the commit is refused, or NONE."""
    group = step.group
    if group.phase is Phase.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.consumer is not None:
        return consumer_commit_error(step, event)
    if event.generation < 0 and group.phase is Phase.EMPTY:
        return ErrorCode.NONE
    if event.generation < 0 and event.member_id == "" and event.instance_id is None:
        # A client that is not a member would overwrite the offsets of the members.
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = members.member_error(step, event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.phase is Phase.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def transactional_commit_error(step: Step, event: Commit) -> ErrorCode:
    """Return why the commit is refused, or NONE. Before TxnOffsetCommit v3 clients name no member.

    A rebalance does not refuse a commit, so a transaction that began before it can end.
    """
    group = step.group
    if group.phase is Phase.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.consumer is not None:
        if event.generation < 0 and _names_no_member(event):
            return ErrorCode.NONE
        error = consumer_commit_error(step, event)
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error
    if event.generation < 0 and (group.phase is Phase.EMPTY or _names_no_member(event)):
        return ErrorCode.NONE
    error = members.member_error(step, event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    return ErrorCode.NONE if event.generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def _names_no_member(event: Commit) -> bool:
    return event.member_id == "" and event.instance_id is None


def consumer_commit_error(step: Step, event: Commit) -> ErrorCode:
    """Return the result of `commit_error`, except that a member in an older epoch may commit for partitions that it
    still owns.
    """
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
    """Return why the fetch is refused, or NONE. Administrators and old clients name no member."""
    if not member_id and epoch < 0:
        return ErrorCode.NONE
    member = consumer.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.current.epoch == epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
