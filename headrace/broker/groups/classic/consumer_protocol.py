"""The topics that the members of a classic group read."""

from __future__ import annotations

from headrace.broker.groups.model.group import Group
from headrace.protocol.consumer_protocol import parse_subscription


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """Return the topics that the members of a group of consumers read, or None if a subscription cannot be read."""
    if not group.is_consumer_protocol:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        subscription = parse_subscription(member.metadata(group.protocol))
        if subscription is None:
            return None
        topics.update(subscription)
    return frozenset(topics)
