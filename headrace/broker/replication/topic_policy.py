"""Who has a say in topics besides the broker: which configurations they may have, and how they are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.partitions.hooks import PartitionHooks, ReplicaHooks
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.replication.following import Follower


class TopicPolicy(Protocol):
    """Asked by the topic manager and by retention, on the event loop."""

    async def validate_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        """At creation: the configuration in its normal form, or KafkaError. Others' names are passed through.

        Runs before anything is written, while no topic can change; nothing may depend on its having been called.
        """

    async def validate_change(
        self, topic: TopicImage, partitions: int, config: Mapping[str, str]
    ) -> dict[str, str]:
        """Like `validate_topic` for a topic that exists and is to get this configuration or partition count."""

    def replicas_wanted(self, topic: str, config: Mapping[str, str]) -> int | None:
        """How many replicas a topic is to have whose creator does not say so; None: the broker's default. The
        configuration may not have been validated."""

    def partition_hooks(self, partition: Partition, topic: TopicImage) -> PartitionHooks | None:
        """Hooks if the topic is this policy's; None leaves it a plain Kafka topic."""

    def replica_hooks(self, follower: Follower, topic: TopicImage) -> ReplicaHooks | None:
        """Hooks for this broker's replica of a partition that another one leads. What they keep up is given to
        `partition_hooks` when this broker begins to lead it.
        """

    async def replica_removed(self, topic: TopicImage, index: int, *, with_topic: bool = False) -> None:
        """This broker holds a partition no longer: remove what belongs to it here, but for the log. May be repeated.
        `with_topic`: because the topic was deleted, while this broker was down or ended.
        """

    def retention_floor(self, partition: Partition) -> int | None:
        """The same as `PartitionHooks.retention_floor`, for partitions that have no hooks."""
