"""The topics that a step of a group may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from headrace.broker.partitions.topic import TopicImage


class Topics(Protocol):
    """The existing topics, as the broker's metadata has them. `version` changes with every change of them."""

    @property
    def version(self) -> int: ...

    def topic(self, name: str) -> TopicImage | None: ...

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None: ...


class NoTopics:
    """No topics, for steps that do not look at them."""

    version = 0

    def topic(self, name: str) -> TopicImage | None:
        return None

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        return None
