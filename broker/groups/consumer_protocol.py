"""The one thing the coordinator reads in a member's metadata: which topics a consumer subscribes to.

Everything else in subscriptions and assignments is the clients' own business and passes through as bytes.
Every version of the consumer protocol begins as version 0 does: int16 version, array of topic names.
"""

from __future__ import annotations

import struct

from broker.groups.model import Group


def parse_subscription(metadata: bytes) -> list[str] | None:
    """Topic names of a consumer's subscription, or None if these bytes are not one."""
    try:
        version, count = struct.unpack_from(">hi", metadata, 0)
        if version < 0 or count < 0 or count > len(metadata):
            return None
        position = 6
        topics = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode("utf-8"))
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """Topics that the members of a consumer group read; None if it cannot be known."""
    if not group.is_consumer_protocol:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        subscription = parse_subscription(member.metadata(group.protocol))
        if subscription is None:
            return None
        topics.update(subscription)
    return frozenset(topics)
