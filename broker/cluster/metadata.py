"""The topics of the cluster and the partitions of this broker.

The coordination store is the truth: a topic exists when `/topics/<name>` does. What is held here is an image
of it, changed only after the store has accepted the change, one change at a time. Partition folders follow
the store: a folder without a topic is set aside at start, a topic without folders has empty partitions.

A crash between the deletion of a topic and the removal of its files leaves `/deleted/<topic id>` in the
store, and the next start finishes the work. A topic made again under the same name has another id, which its
folders carry (`partition.metadata`), so that files of the old one are never taken for its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from bisect import bisect_left, insort
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from broker.cluster.nodes import modify
from broker.cluster.partition import Partition, PartitionChanges
from broker.cluster.topic import TopicImage
from broker.cluster.topic_config import TopicConfigs
from broker.ports import CoordinationStore, CreateNode, DeleteNode, Entropy, SetNode
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.cluster.data_dir import DataDirectory
    from broker.cluster.topic_policy import TopicPolicy
    from broker.log.config import LogConfig
    from broker.log.partition_log import PartitionLog

logger = logging.getLogger("headrace.metadata")

Result = TypeVar("Result")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
TOPIC_NAME_LENGTH_MAX = 249  # Kafka's own: the folder name has to hold "-<partition>" too
PARTITIONS_PER_TOPIC_MAX = (
    100_000  # a typing error must not allocate gigabytes; Kafka's practical limit is lower
)
PARTITIONS_OPENED_TOGETHER = 4
PARTITIONS_PER_TURN = 32
"""Partitions that are made in one turn of the event loop: below a millisecond."""
PARTITIONS_CLOSED_TOGETHER = 8
TOPICS_PER_TURN = 32
"""Topics whose configuration is checked in one turn of the event loop."""
TOPICS_PER_TRANSACTION = 250
"""Topics that are created by one transaction of the store; what is said of them has to fit into one of its messages."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Kafka's rule for topic names; raises KafkaError(INVALID_TOPIC_EXCEPTION)."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = f"the length of '{name[:TOPIC_NAME_LENGTH_MAX]}…' is longer than the max allowed length "
        problem += str(TOPIC_NAME_LENGTH_MAX)
    elif not _LEGAL_NAME.fullmatch(name):
        problem = (
            f"'{name}' is illegal, it contains a character other than ASCII alphanumerics, '.', '_' and '-'"
        )
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def unknown_topic(name: str) -> KafkaError:
    """The error for a topic that is not there; its first sentence is what scripts know from Kafka."""
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"This server does not host this topic-partition. The topic '{name}' does not exist.",
    )


def already_exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def check_growth(image: TopicImage, total: int) -> None:
    """Whether a topic may have `total` partitions from now on. Raises KafkaError(INVALID_PARTITIONS)."""
    if total == image.partition_count:
        problem = f"Topic already has {total} partition(s)."
    elif total < image.partition_count:
        problem = f"Topic currently has {image.partition_count} partitions, which is higher than the requested {total}."
    elif total > PARTITIONS_PER_TOPIC_MAX:
        problem = f"{total} partitions are too many; {PARTITIONS_PER_TOPIC_MAX} is the most."
    else:
        return
    raise KafkaError(ErrorCode.INVALID_PARTITIONS, problem)


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _check_collision(name: str, other: str) -> None:
    if name != other:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}. '.' and '_' count as the same in a topic's name.",
        )


class NewTopic(NamedTuple):
    """A topic to be made; `partitions` -1 takes the broker's default."""

    name: str
    partitions: int
    config: Mapping[str, str]


class TopicManager:
    """The image of all topics, and the only way to change it."""

    def __init__(
        self,
        *,
        store: CoordinationStore,
        entropy: Entropy,
        executor: Executor,
        directory: DataDirectory,
        open_log: Callable[[Partition], PartitionLog],
        topic_configs: TopicConfigs,
        policies: Sequence[TopicPolicy] = (),
        default_partitions: int = 1,
        leader_epoch: int = 0,
    ) -> None:
        self.is_loaded = False
        """The image is whole: from here on a topic that is not in it does not exist."""
        self.version = 0  # moves with every change of the image: the key of response caches
        self.changes = PartitionChanges()
        self.topic_configs = topic_configs
        self.deletion_listeners: list[Callable[[TopicImage], None]] = []
        self._store = store
        self._entropy = entropy
        self._executor = executor
        self._directory = directory
        self._open_log = open_log
        self._policies = tuple(policies)
        self._default_partitions = default_partitions
        self._leader_epoch = leader_epoch
        self._topics: dict[str, TopicImage] = {}
        self._versions: dict[str, int] = {}  # of the topics' nodes
        self._names: list[str] = []  # in their order
        self._topics_by_id: dict[uuid.UUID, TopicImage] = {}
        self._metric_names: dict[
            str, str
        ] = {}  # of one topic each; names that collide may be older than the rule
        self._partitions: dict[str, list[Partition]] = {}
        self._change = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._removals: set[asyncio.Task[None]] = set()

    # -- reading the image ---------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicImage | None:
        return self._topics.get(name)

    def check_collision(self, name: str) -> None:
        """Kafka's rule for topics that clients create: names that differ only in '.' and '_' make the same metric.

        Raises KafkaError(INVALID_TOPIC_EXCEPTION).
        """
        _check_collision(name, self._metric_names.get(_metric_name(name), name))

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicImage | None:
        return self._topics_by_id.get(topic_id)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def topics(self) -> list[TopicImage]:
        """All topics, by name."""
        return [self._topics[name] for name in self._names]

    def partition(self, topic: str, index: int) -> Partition:
        """Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise unknown_topic(topic)
        if not 0 <= index < len(partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"This server does not host this topic-partition. Topic '{topic}' has {len(partitions)} partitions; "
                f"there is no partition {index}.",
            )
        return partitions[index]

    def find_partition(self, topic: str, index: int) -> Partition | None:
        """The same for the hot paths, None instead of an error."""
        partitions = self._partitions.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def partitions(self, topic: str) -> Sequence[Partition]:
        return self._partitions.get(topic, ())

    def all_partitions(self) -> list[Partition]:
        return [partition for partitions in self._partitions.values() for partition in partitions]

    # -- changing it ---------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic; when this returns it can be written to and survives any crash.

        `partitions` -1 takes the broker's default. Raises KafkaError: INVALID_TOPIC_EXCEPTION,
        TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG, POLICY_VIOLATION.
        """
        new = [NewTopic(name, partitions, config or {})]
        (created,) = await self._to_the_end(self._create_topics(new, False, validate_only))
        if isinstance(created, KafkaError):
            raise created
        return created

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicImage | KafkaError]:
        """Create what a client asks for, TOPICS_PER_TRANSACTION by one transaction of the store: each topic's image, or
        why not.

        Names that collide with those of other topics are refused (see `check_collision`).
        """
        return await self._to_the_end(self._create_topics(topics, True, validate_only))

    async def _create_topics(
        self, topics: Sequence[NewTopic], check_collisions: bool, validate_only: bool
    ) -> list[TopicImage | KafkaError]:
        created: list[TopicImage | KafkaError] = []
        async with self._change:
            images: dict[str, TopicImage] = {}
            taken: dict[str, str] = {}
            for number, topic in enumerate(topics):
                if not (number + 1) % TOPICS_PER_TURN:
                    await asyncio.sleep(0)
                try:
                    image = await self._new_image(topic, images)
                    if check_collisions:
                        self.check_collision(image.name)
                        _check_collision(image.name, taken.setdefault(_metric_name(image.name), image.name))
                except KafkaError as error:
                    created.append(error)
                    continue
                images[image.name] = image
                created.append(image)
            if validate_only or not images:
                return created
            made = list(images.values())
            for first in range(0, len(made), TOPICS_PER_TRANSACTION):
                some = made[first : first + TOPICS_PER_TRANSACTION]
                await self._store.transact(
                    [CreateNode(f"/topics/{image.name}", encode_topic(image)) for image in some]
                )
                for image in some:
                    self._versions[image.name] = 0
                    await self._serve(image, range(image.partition_count))
                    logger.info(
                        "created topic %s with %d partitions, id %s",
                        image.name,
                        image.partition_count,
                        image.topic_id,
                    )
        return created

    async def _new_image(self, topic: NewTopic, others: Mapping[str, TopicImage]) -> TopicImage:
        name = topic.name
        check_topic_name(name)
        count = self._default_partitions if topic.partitions == -1 else topic.partitions
        if not 0 < count <= PARTITIONS_PER_TOPIC_MAX:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic '{name}' cannot have {count} partitions: choose 1 to {PARTITIONS_PER_TOPIC_MAX}.",
            )
        if name in self._topics or name in others:
            raise already_exists(name)
        normal = await self._validated(name, count, dict(topic.config))
        return TopicImage(name, self._entropy.uuid(), count, normal, name in INTERNAL_TOPICS)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""
        await self._to_the_end(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        async with self._change:
            image = self._existing(name)
            tombstone = f"/deleted/{image.topic_id}"
            await self._store.transact(
                [
                    DeleteNode(f"/topics/{name}", self._versions[name]),
                    CreateNode(tombstone, encode_topic(image)),
                ]
            )
            del self._versions[name]
            partitions = self._partitions.pop(name)
            del self._topics[name], self._topics_by_id[image.topic_id]
            del self._names[bisect_left(self._names, name)]
            if self._metric_names.get(_metric_name(name)) == name:
                del self._metric_names[_metric_name(name)]
            self.version += 1
            for partition in partitions:
                await partition.drop()
            for listener in self.deletion_listeners:
                listener(image)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._directory.set_aside, image)
            removal = loop.create_task(self._remove_files(image), name=f"remove {name}")
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)
            logger.info("deleted topic %s, id %s", name, image.topic_id)

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> TopicImage:
        """Grow a topic to `total` partitions. Raises KafkaError."""
        return await self._to_the_end(self._create_partitions(name, total, validate_only))

    async def _create_partitions(self, name: str, total: int, validate_only: bool) -> TopicImage:
        async with self._change:
            old = self._existing(name)
            check_growth(old, total)
            config = await self._revalidated(old, total, dict(old.config))
            image = TopicImage(name, old.topic_id, total, config, old.internal)
            if validate_only:
                return image
            await self._replace(image)
            for partition in self._partitions[name]:
                partition.topic = image
            await self._serve(image, range(old.partition_count, total))
            return image

    async def alter_config(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicImage:
        """Set configurations (None: back to the default), all or none. Raises KafkaError."""
        return await self._to_the_end(self._alter_config(name, changes, validate_only))

    async def _alter_config(
        self, name: str, changes: Mapping[str, str | None], validate_only: bool
    ) -> TopicImage:
        async with self._change:
            old = self._existing(name)
            config = {**old.config, **{key: value for key, value in changes.items() if value is not None}}
            for key, value in changes.items():
                if value is None:
                    config.pop(key, None)
            normal = await self._revalidated(old, old.partition_count, config)
            image = TopicImage(name, old.topic_id, old.partition_count, normal, old.internal)
            if validate_only:
                return image
            await self._replace(image)
            log_config = self.topic_configs.log_config(image)
            self._put(image)
            for partition in self._partitions[name]:
                partition.topic = image
                partition.reconfigure(log_config)
            for partition in self._partitions[name]:
                await partition.settled()
            return image

    async def settled(self) -> None:
        """Wait until the image has the changes that are under way, a topic that is being created among them."""
        async with self._change:
            pass

    def check_defaults(self, broker_defaults: Mapping[str, str]) -> None:
        """Raises KafkaError if a topic could not have these defaults under what it sets itself."""
        others = TopicConfigs(broker_defaults, tuple(self.topic_configs.extension_keys.values()))
        for image in self._topics.values():
            if image.config or image.internal:
                try:
                    others.check(image.config, internal=image.internal)
                except KafkaError as error:
                    raise KafkaError(error.code, f"topic {image.name}: {error.message}") from None

    async def defaults_changed(
        self, broker_defaults: Mapping[str, str], producer_id_expiration_ms: int
    ) -> None:
        """The broker's configuration gives topics other defaults from now on; open logs follow at once. Over when
        what a stricter durability asks for is on disk.
        """
        self.topic_configs.defaults_changed(broker_defaults, producer_id_expiration_ms)
        parsed: dict[tuple[bool, tuple[tuple[str, str], ...]], LogConfig] = {}
        for image in self._topics.values():
            key = (image.internal, tuple(sorted(image.config.items())))
            config = parsed.get(key)
            if config is None:
                config = parsed[key] = self.topic_configs.log_config(image)
            for partition in self._partitions[image.name]:
                partition.reconfigure(config)
        self.version += 1
        for partition in self.all_partitions():
            await partition.settled()

    # -- start and stop ------------------------------------------------------------------------------------

    async def load(self, *, open_all: bool) -> None:
        """Read the image from the store and serve it. `open_all` recovers every log now (after a crash)."""
        await self._finish_deletions()
        images = []
        for name in await self._store.children("/topics"):
            node = await self._store.get(f"/topics/{name}")
            if node is not None:
                images.append(_from_json(name, node.data))
                self._versions[name] = node.version
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.set_aside_strays, images)
        # By name: an extension's topic may depend on another one whose name is the beginning of its own.
        for image in sorted(images, key=lambda image: image.name):
            await self._serve(image, range(image.partition_count), open_all=open_all)
        self.is_loaded = True

    async def close(self) -> None:
        """Close every partition; the image stays readable but nothing can be written any more."""
        await asyncio.gather(*self._changes, return_exceptions=True)
        async with self._change:
            limit = asyncio.Semaphore(PARTITIONS_CLOSED_TOGETHER)

            async def close(partition: Partition) -> None:
                async with limit:
                    await partition.close(self._executor)

            partitions = self.all_partitions()
            for partition in partitions:
                if partition.hooks is not None:
                    await partition.close()
            # Several at a time, because they share the file system's commits.
            await asyncio.gather(*(close(partition) for partition in partitions if not partition.closed))
        if self._removals:
            await asyncio.gather(*self._removals)

    # -- inside --------------------------------------------------------------------------------------------

    async def _to_the_end(self, change: Coroutine[Any, Any, Result]) -> Result:
        """Carry a change out even if its caller is cancelled: the image must not differ from the store."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waits is told; if nobody does, nobody wants to know

    async def _replace(self, image: TopicImage) -> None:
        version = self._versions[image.name]
        await self._store.transact([SetNode(f"/topics/{image.name}", encode_topic(image), version)])
        self._versions[image.name] = version + 1

    def _existing(self, name: str) -> TopicImage:
        image = self._topics.get(name)
        if image is None:
            raise unknown_topic(name)
        return image

    def _put(self, image: TopicImage) -> None:
        if image.name not in self._topics:
            insort(self._names, image.name)
        self._topics[image.name] = image
        self._topics_by_id[image.topic_id] = image
        self._metric_names.setdefault(_metric_name(image.name), image.name)
        self.version += 1

    async def _validated(self, name: str, partitions: int, config: dict[str, str]) -> dict[str, str]:
        self.topic_configs.check(config, internal=name in INTERNAL_TOPICS)
        for policy in self._policies:
            config = await policy.validate_topic(name, partitions, config)
        return config

    async def _revalidated(self, old: TopicImage, partitions: int, config: dict[str, str]) -> dict[str, str]:
        self.topic_configs.check(config, internal=old.internal)
        for policy in self._policies:
            config = await policy.validate_change(old, partitions, config)
        return config

    async def _serve(self, image: TopicImage, indexes: Iterable[int], *, open_all: bool = False) -> None:
        """Make partitions and put the topic into the image once those with hooks have started."""
        limit = asyncio.Semaphore(PARTITIONS_OPENED_TOGETHER)

        async def start(partition: Partition) -> None:
            async with limit:
                await self._start(partition)

        wanted = list(indexes)
        created: list[Partition] = []
        for first in range(0, len(wanted), PARTITIONS_PER_TURN):
            some = [
                Partition(
                    image,
                    index,
                    self._open_log,
                    leader_epoch=self._leader_epoch,
                    executor=self._executor,
                    changes=self.changes,
                )
                for index in wanted[first : first + PARTITIONS_PER_TURN]
            ]
            for partition in some:
                self._find_hooks(partition, image)
            await asyncio.gather(
                *(
                    start(partition)
                    for partition in some
                    if partition.failure is None and (open_all or partition.hooks is not None)
                )
            )
            created += some
            await asyncio.sleep(0)
        self._partitions.setdefault(image.name, []).extend(created)
        self._put(image)

    def _find_hooks(self, partition: Partition, image: TopicImage) -> None:
        """A topic that its extension cannot serve is offline; the others are served."""
        try:
            for policy in self._policies:
                partition.hooks = policy.partition_hooks(partition, image)
                if partition.hooks is not None:
                    return
        except Exception as error:
            logger.error("%r cannot be served", partition, exc_info=error)
            partition.fail(f"it cannot be served: {error}")

    async def _start(self, partition: Partition) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, lambda: partition.log)
        except KafkaError:
            return  # the partition is offline and has said so; the rest of the broker lives
        if partition.hooks is not None:
            try:
                await partition.hooks.start()
            except Exception as error:
                logger.error("%r cannot start", partition, exc_info=error)
                partition.fail(f"it cannot start: {error}")

    async def _remove_files(self, image: TopicImage) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.remove_set_aside, image)
        await modify(self._store, f"/deleted/{image.topic_id}", lambda _: None)

    async def _finish_deletions(self) -> None:
        for topic_id in await self._store.children("/deleted"):
            node = await self._store.get(f"/deleted/{topic_id}")
            if node is None:
                continue
            image = _from_json(json.loads(node.data)["name"], node.data)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._directory.set_aside, image)
            await self._remove_files(image)


def encode_topic(image: TopicImage) -> bytes:
    """What the store holds of a topic."""
    return json.dumps(
        {
            "name": image.name,
            "id": str(image.topic_id),
            "partitions": image.partition_count,
            "config": dict(image.config),
        },
        separators=(",", ":"),
    ).encode()


def _from_json(name: str, data: bytes) -> TopicImage:
    fields = json.loads(data)
    return TopicImage(
        name, uuid.UUID(fields["id"]), fields["partitions"], fields["config"], name in INTERNAL_TOPICS
    )
