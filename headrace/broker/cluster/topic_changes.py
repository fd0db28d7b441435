"""Create, alter, grow and delete topics. Nothing else changes them.

Each change is decided on the present image and completed by `broker.cluster.metadata_follower`, even if the client has
disconnected. When it returns, every live broker has followed it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.metadata.events import Assignment, CreateTopics, DeleteTopics, Event, ReplaceTopic
from headrace.broker.metadata.image import BrokerImage
from headrace.broker.metadata.placement import assigned, check_replication_factor
from headrace.broker.metadata.topic_names import (
    INTERNAL_TOPICS,
    already_exists,
    check_collision,
    check_free_files,
    check_growth,
    check_partition_count,
    check_topic_name,
    metric_name,
    unknown_topic,
)
from headrace.broker.partitions.topic import TopicImage
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.cluster.brokers import ClusterBrokers
    from headrace.broker.cluster.metadata_follower import MetadataFollower
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.replication.topic_policy import TopicPolicy
    from headrace.broker.runtime.ports import Entropy
    from headrace.broker.runtime.slices import Slices

logger = logging.getLogger("headrace.metadata")

MANY_TOPICS: Final = 1000
"""Number of topics in a request from which on the garbage collector must not scan the new objects in one pass."""
TOPICS_PER_CHANGE: Final = 40
"""Maximum number of topics of one request that one transaction of the store creates."""
TOPICS_PER_TURN: Final = 32
"""Maximum number of topics whose configuration is checked in one turn of the event loop."""
_FACTOR_CONFIGS: Final = {
    "__consumer_offsets": "offsets.topic.replication.factor",
    "__transaction_state": "transaction.state.log.replication.factor",
}


class NewTopic(NamedTuple):
    """A topic to create. `partitions` and `replication_factor` -1 take the broker's default. `assignment`: the replicas
    of each partition, if the client has chosen them.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    assignment: Assignment | None = None
    replication_factor: int = -1


class TopicDefaults(NamedTuple):
    """Defaults of a topic for fields that its creation leaves out.

    `journals`: the number of replicas of internal topics, and of in-sync ones that writes need (None: as for any
    topic).
    """

    partitions: int = 1
    replication_factor: int = 1
    journals: Mapping[str, tuple[int, int | None]] = {}


class TopicChanges:
    """One object per broker, on the event loop."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        following: MetadataFollower,
        brokers: ClusterBrokers,
        replicas: LocalReplicas,
        *,
        defaults: TopicDefaults,
        policies: Sequence[TopicPolicy],
        entropy: Entropy,
        slices: Slices,
        free_files: Callable[[], int] = lambda: -1,
    ) -> None:
        """`free_files` returns the number of files that the data directory can still have, -1 for no limit."""
        self._free_files = free_files
        self._metadata = metadata
        self._following = following
        self._brokers = brokers
        self._replicas = replicas
        self._defaults = defaults
        self._policies = tuple(policies)
        self._entropy = entropy
        self._slices = slices

    # -- creation ------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        config: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic. When this returns, it accepts writes and survives any crash.

        `partitions` and `replication_factor` -1 take the broker's default. Raises KafkaError: INVALID_TOPIC_EXCEPTION,
        TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG, POLICY_VIOLATION.
        """
        new = [NewTopic(name, partitions, config or {}, replication_factor=replication_factor)]
        (created,) = await self._following.to_the_end(self._create_topics(new, False, validate_only))
        if isinstance(created, KafkaError):
            raise created
        return created

    async def create_journal(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create an internal topic with its configured number of replicas; with one replica if the broker is alone.

        Raises KafkaError(COORDINATOR_NOT_AVAILABLE) until enough brokers are registered (KIP-115): a topic created
        during the first start of a cluster would have too few replicas forever.
        """
        factor, min_isr = self._defaults.journals.get(name, (1, None))
        if self._metadata.is_alone:
            factor = 1
        if factor > 1 and min_isr is not None:
            config = {**config, "min.insync.replicas": str(min(min_isr, factor))}
        try:
            await self.create_topic(name, partitions, config, replication_factor=factor)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_REPLICATION_FACTOR:
                raise
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{name} is created when {factor} brokers are registered. For a smaller cluster, lower"
                f" {_FACTOR_CONFIGS[name]}. {error.message}",
            ) from error

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicImage | KafkaError]:
        """Create the topics of a client's request, many in one transaction of the store. Return each topic's image or
        error.

        Names that collide with those of other topics are refused (`ClusterMetadata.check_collision`).
        """
        if len(topics) < MANY_TOPICS:
            return await self._following.to_the_end(self._create_topics(topics, True, validate_only))
        with self._slices.collector.during():
            return await self._following.to_the_end(self._create_topics(topics, True, validate_only))

    def factor_of(self, topic: NewTopic) -> int:
        """Return the number of replicas for a new topic's partitions."""
        if topic.assignment is not None:
            return max(map(len, topic.assignment), default=1)
        if topic.replication_factor != -1:
            return topic.replication_factor
        wanted = (policy.replicas_wanted(topic.name, topic.config) for policy in self._policies)
        return next((count for count in wanted if count is not None), self._defaults.replication_factor)

    async def _create_topics(
        self, topics: Sequence[NewTopic], check_collisions: bool, validate_only: bool
    ) -> list[TopicImage | KafkaError]:
        async with self._following.change:
            if validate_only:
                ids = await self._topic_ids(len(topics))
                known = await self._brokers.known(self._factors(topics).values(), _chosen(topics))
                return await self._new_images(topics, ids, known.absent, check_collisions)
            results: list[TopicImage | KafkaError] = []
            for first in range(0, len(topics), TOPICS_PER_CHANGE):
                some = topics[first : first + TOPICS_PER_CHANGE]
                results += await self._create_some(some, check_collisions)
                if len(topics) >= MANY_TOPICS:
                    self._slices.collector.spare_what_is_there()
                await asyncio.sleep(0)
        return results

    async def _create_some(
        self, topics: Sequence[NewTopic], check_collisions: bool
    ) -> list[TopicImage | KafkaError]:
        ids = await self._topic_ids(len(topics))
        results: list[TopicImage | KafkaError] = []

        async def decide() -> Event:
            factors = self._factors(topics)
            known = await self._brokers.known(factors.values(), _chosen(topics))
            results[:] = await self._new_images(topics, ids, known.absent, check_collisions)
            return CreateTopics(
                tuple(image for image in results if isinstance(image, TopicImage)),
                assignments={
                    topic.name: topic.assignment for topic in topics if topic.assignment is not None
                },
                factors=factors,
                absent=known.absent,
            )

        await self._following.carry_out(decide)
        for image in results:
            if isinstance(image, TopicImage):
                logger.info(
                    "created topic %s with %d partitions, id %s",
                    image.name,
                    image.partition_count,
                    image.topic_id,
                )
        return results

    async def _topic_ids(self, count: int) -> list[uuid.UUID]:
        ids = []
        for number in range(1, count + 1):
            if not number % TOPICS_PER_TURN:
                await asyncio.sleep(0)
            ids.append(self._entropy.uuid())
        return ids

    def _factors(self, topics: Sequence[NewTopic]) -> dict[str, int]:
        return {topic.name: self.factor_of(topic) for topic in topics}

    async def _new_images(
        self,
        topics: Sequence[NewTopic],
        ids: Sequence[uuid.UUID],
        absent: Sequence[BrokerImage],
        check_collisions: bool,
    ) -> list[TopicImage | KafkaError]:
        results: list[TopicImage | KafkaError] = []
        taken: dict[str, str] = {}
        names: set[str] = set()
        for number, (topic, topic_id) in enumerate(zip(topics, ids, strict=True), 1):
            if not number % TOPICS_PER_TURN:
                await asyncio.sleep(0)
            try:
                image = await self._new_image(topic, topic_id, names, absent)
                # It was created with this id before another writer intervened.
                if check_collisions and self._metadata.topic_by_id(topic_id) is None:
                    self._metadata.check_collision(image.name)
                    check_collision(image.name, taken.setdefault(metric_name(image.name), image.name))
            except KafkaError as error:
                results.append(error)
                continue
            names.add(image.name)
            results.append(image)
        return results

    async def _new_image(
        self, topic: NewTopic, topic_id: uuid.UUID, others: set[str], absent: Sequence[BrokerImage]
    ) -> TopicImage:
        name, image = topic.name, self._metadata.image
        there = self._metadata.topic_by_id(topic_id)
        if there is not None:
            return there
        check_topic_name(name)
        count = self._defaults.partitions if topic.partitions == -1 else topic.partitions
        check_partition_count(name, count)
        check_free_files(name, count, self._free_files())
        if topic.assignment is not None:
            assigned(image, topic.assignment, absent)
        if self._metadata.topic(name) is not None or name in others:
            raise already_exists(name)
        normal = await self._validated(name, count, dict(topic.config))
        factor = self.factor_of(topic)
        if topic.assignment is None:
            check_replication_factor(self._metadata.image, factor, absent)
        return TopicImage(name, topic_id, count, normal, name in INTERNAL_TOPICS)

    async def _validated(self, name: str, partitions: int, config: dict[str, str]) -> dict[str, str]:
        self._metadata.topic_configs.check(config, internal=name in INTERNAL_TOPICS)
        for policy in self._policies:
            config = await policy.validate_topic(name, partitions, config)
        return config

    # -- deletion ------------------------------------------------------------------------------------------

    async def delete_topic(self, name: str, only_while: Callable[[], bool] | None = None) -> None:
        """Delete a topic and its records.

        `only_while` is called in the step that deletes it, and returns whether the caller's reason still holds. Raises
        KafkaError: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE if the reason does not hold.
        """
        await self._following.to_the_end(self._delete_topic(name, only_while))

    async def _delete_topic(self, name: str, only_while: Callable[[], bool] | None) -> None:
        def check() -> None:
            if only_while is not None and not only_while():
                raise KafkaError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"topic {name} is not deleted: its leadership changed during the check, or the check took too long",
                )

        async with self._following.change:
            entry = self._metadata.image.topics.get(name)
            if entry is None:
                raise unknown_topic(name)
            (error,) = await self._delete_some([entry.topic], check)
        if error is not None:
            raise error

    async def delete_topics(self, topics: Sequence[TopicImage]) -> list[KafkaError | None]:
        """Delete topics and their records, many in one transaction of the store. Return each topic's error, or None."""
        return await self._following.to_the_end(self._delete_topics(topics))

    async def _delete_topics(self, topics: Sequence[TopicImage]) -> list[KafkaError | None]:
        results: list[KafkaError | None] = []
        async with self._following.change:
            for first in range(0, len(topics), TOPICS_PER_CHANGE):
                some = topics[first : first + TOPICS_PER_CHANGE]
                try:
                    results += await self._delete_some(some)
                except KafkaError as error:
                    results += [error] * len(some)
                await asyncio.sleep(0)
        return results

    async def _delete_some(
        self, topics: Sequence[TopicImage], check: Callable[[], None] = lambda: None
    ) -> list[KafkaError | None]:
        """Delete topics by one transaction. `check` is called in the step that decides it, and refuses by raising."""

        def is_there(topic: TopicImage) -> bool:
            entry = self._metadata.image.topics.get(topic.name)
            return entry is not None and entry.topic.topic_id == topic.topic_id

        found: list[TopicImage] | None = None

        async def decide() -> Event | None:
            nonlocal found
            check()
            if found is None:
                found = list(filter(is_there, topics))
            # A topic that existed at first and is gone was deleted, here or by another broker.
            names = tuple(topic.name for topic in found if is_there(topic))
            return DeleteTopics(names) if names else None

        await self._following.carry_out(decide)
        deleted = {topic.topic_id for topic in found or ()}
        return [None if topic.topic_id in deleted else unknown_topic(topic.name) for topic in topics]

    # -- growth and configurations -------------------------------------------------------------------------

    async def create_partitions(
        self,
        name: str,
        total: int,
        *,
        assignment: Assignment | None = None,
        changes: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Grow a topic to `total` partitions, and change configurations with it as `alter_config` does. `assignment`:
        the replicas of each new partition, if the client has chosen them. Raises KafkaError.
        """

        async def grown(old: TopicImage) -> TopicImage:
            check_growth(old, total)
            check_free_files(old.name, total - old.partition_count, self._free_files())
            config = await self._revalidated(old, total, _merged(old.config, changes or {}))
            return TopicImage(name, old.topic_id, total, config, old.internal)

        return await self._following.to_the_end(self._replace_topic(name, grown, validate_only, assignment))

    async def alter_config(
        self,
        name: str,
        changes: Mapping[str, str | None] | Callable[[Mapping[str, str]], Mapping[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> TopicImage:
        """Set configurations (None: back to the default), all or none. Raises KafkaError.

        A function gets the topic's configurations at the time of the change, and again after each intervening change.
        """

        async def altered(old: TopicImage) -> TopicImage:
            config = _merged(old.config, changes(old.config) if callable(changes) else changes)
            normal = await self._revalidated(old, old.partition_count, config)
            return TopicImage(name, old.topic_id, old.partition_count, normal, old.internal)

        return await self._following.to_the_end(self._replace_topic(name, altered, validate_only))

    async def _replace_topic(
        self,
        name: str,
        changed: Callable[[TopicImage], Awaitable[TopicImage]],
        validate_only: bool,
        assignment: Assignment | None = None,
    ) -> TopicImage:
        async def decide() -> ReplaceTopic:
            entry = self._metadata.image.topics.get(name)
            if entry is None:
                raise unknown_topic(name)
            new = await changed(entry.topic)
            if assignment is not None:
                known = await self._brokers.known(chosen=chain.from_iterable(assignment))
                assigned(self._metadata.image, assignment, known.absent)
            elif new.partition_count > entry.topic.partition_count:
                known = await self._brokers.known([len(entry.state(0).replicas)])
            else:
                known = await self._brokers.known()
            return ReplaceTopic(new, entry.version, assignment=assignment, known=known)

        async with self._following.change:
            if validate_only:
                return (await decide()).topic
            await self._following.carry_out(decide)
            await self._replicas.settled(name)
            replaced = self._metadata.topic(name)
            if replaced is None:
                raise unknown_topic(name)
            return replaced

    async def _revalidated(self, old: TopicImage, partitions: int, config: dict[str, str]) -> dict[str, str]:
        self._metadata.topic_configs.check(config, internal=old.internal)
        self._metadata.topic_configs.check_change(old.config, config)
        for policy in self._policies:
            config = await policy.validate_change(old, partitions, config)
        return config


def _merged(old: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return configurations after changes; None removes one."""
    return {key: value for key, value in {**old, **changes}.items() if value is not None}


def _chosen(topics: Sequence[NewTopic]) -> Iterator[int]:
    """Yield the brokers that clients have chosen as replicas."""
    return (broker for topic in topics for replicas in topic.assignment or () for broker in replicas)
