"""A topic, as clients and components are told of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import msgspec


class TopicImage(msgspec.Struct, frozen=True):
    """A topic as the metadata store knows it. `config` holds the explicitly set values only."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    config: Mapping[str, str] = msgspec.field(default_factory=dict)
    internal: bool = False
