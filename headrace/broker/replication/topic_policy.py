"""The interface of extensions that control topics: their configurations, and how they are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.partitions.hooks import PartitionHooks, ReplicaHooks
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.replication.following import Follower


class TopicPolicy(Protocol):
    """Called by the topic manager and by retention, on the event loop."""

    async def validate_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        """Return the configuration of a new topic in its normal form, or raise KafkaError. Names of other policies are
        kept.

        Called before anything is written, while no topic can change. It must not have side effects.
        """

    async def validate_change(
        self, topic: TopicImage, partitions: int, config: Mapping[str, str]
    ) -> dict[str, str]:
        """Validate a new configuration or partition count of an existing topic, as `validate_topic`."""

    def replicas_wanted(self, topic: str, config: Mapping[str, str]) -> int | None:
        """Return the number of replicas of a topic whose creator does not set it; None: the broker's default. The
        configuration may not have been validated.
        """

    def partition_hooks(self, partition: Partition, topic: TopicImage) -> PartitionHooks | None:
        """Return hooks if the topic belongs to this policy; None leaves it a plain Kafka topic."""

    def replica_hooks(self, follower: Follower, topic: TopicImage) -> ReplicaHooks | None:
        """Return hooks for this broker's replica of a partition that another broker leads. `partition_hooks` gets their
        state when this broker begins to lead it.
        """

    async def replica_removed(self, topic: TopicImage, index: int, *, with_topic: bool = False) -> None:
        """Remove this broker's state of a replica that was removed, except the log. May be repeated. `with_topic`: the
        topic was deleted, perhaps while this broker was down.
        """

    def retention_floor(self, partition: Partition) -> int | None:
        """Return the lowest offset to keep, as `PartitionHooks.retention_floor`, for partitions without hooks."""
