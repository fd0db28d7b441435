"""The topics of the cluster: what is known of them, the only way to change them, and this broker's partitions.

The coordination store is the truth (`broker.cluster.tree`): a topic exists when its node does. Changes are decided by
the controller (`broker.cluster.controller`), pure and by the image of the store, written as compare-and-set, and then
followed: by this broker's partitions (`broker.cluster.replicas`) and by the image that everybody reads. One change at a
time. Whoever was overtaken by another writer reads the store again and decides again; a broker that is no longer the
controller is refused (NOT_CONTROLLER).

Partition folders follow the store: a folder without a topic is set aside at start, a topic without folders has empty
partitions. A crash between the deletion of a topic and the removal of its files leaves `/deleted/<topic id>` in the
store, and the next start finishes the work. A topic made again under the same name has another id, which its folders
carry (`partition.metadata`), so that files of the old one are never taken for its own.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from broker.cluster import tree
from broker.cluster.controller import (
    AdoptStates,
    BrokerStarted,
    CreateTopics,
    DeleteTopic,
    Event,
    ReplaceTopic,
    Transaction,
    step,
)
from broker.cluster.image import STATES_PER_CHUNK, ClusterImage, FrozenMap, TopicEntry
from broker.cluster.membership import Registration, become_controller, read_brokers, register
from broker.cluster.nodes import OUTDATED, modify
from broker.cluster.replicas import LocalReplicas
from broker.cluster.topic import TopicImage
from broker.cluster.topic_config import TopicConfigs
from broker.cluster.topic_index import TopicIndex
from broker.cluster.topic_names import (
    INTERNAL_TOPICS,
    already_exists,
    check_collision,
    check_growth,
    check_partition_count,
    check_topic_name,
    metric_name,
    unknown_topic,
)
from broker.config_key import ConfigError
from broker.ports import (
    STORE_LOST,
    CoordinationStore,
    DeleteNode,
    Entropy,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from broker.slices import Slices
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.cluster.data_dir import DataDirectory
    from broker.cluster.partition import Partition
    from broker.cluster.topic_policy import TopicPolicy
    from broker.log.partition_log import PartitionLog

logger = logging.getLogger("headrace.metadata")

Result = TypeVar("Result")

MANY_TOPICS: Final = 1000
"""Made at once: so many objects that the garbage collector must not look through them in one pass."""
TOPICS_PER_CHANGE: Final = 64
"""Made by one transaction of the store, of those that are asked for together."""
TOPICS_PER_TURN: Final = 32
"""Topics whose configuration is checked in one turn of the event loop."""


class NewTopic(NamedTuple):
    """A topic to be made; `partitions` -1 takes the broker's default."""

    name: str
    partitions: int
    config: Mapping[str, str]


class TopicManager:
    """What is asked of topics and partitions, and what is done to them. One object per broker, on the event loop."""

    def __init__(
        self,
        *,
        store: CoordinationStore,
        entropy: Entropy,
        executor: Executor,
        directory: DataDirectory,
        open_log: Callable[[Partition], PartitionLog],
        topic_configs: TopicConfigs,
        registration: Registration,
        policies: Sequence[TopicPolicy] = (),
        default_partitions: int = 1,
        slices: Slices,
    ) -> None:
        self.is_loaded = False
        """The image is whole: from here on a topic that is not in it does not exist."""
        self.image = ClusterImage()
        """What this broker serves."""
        self.version = 0  # the image's: the key of response caches
        self.topic_configs = topic_configs
        self.deletion_listeners: list[Callable[[TopicImage], None]] = []
        self._store = store
        self._entropy = entropy
        self._executor = executor
        self._directory = directory
        self._registration = registration
        self._policies = tuple(policies)
        self._default_partitions = default_partitions
        self._slices = slices
        self._index = TopicIndex()
        self._replicas = LocalReplicas(
            registration.broker_id,
            executor=executor,
            open_log=open_log,
            log_config=topic_configs.log_config,
            policies=policies,
        )
        self.changes = self._replicas.changes
        self.partition = self._replicas.partition
        self.find_partition = self._replicas.find_partition
        self.partitions = self._replicas.partitions
        self._change = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._removals: set[asyncio.Task[None]] = set()

    # -- reading the image ---------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicImage | None:
        return self._index.by_name.get(name)

    def check_collision(self, name: str) -> None:
        """Kafka's rule for topics that clients create: names that differ only in '.' and '_' make the same metric.

        Raises KafkaError(INVALID_TOPIC_EXCEPTION).
        """
        self._index.check_collision(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicImage | None:
        return self._index.by_id.get(topic_id)

    @property
    def topic_count(self) -> int:
        return len(self._index.by_name)

    def topics(self) -> list[TopicImage]:
        """All topics, by name."""
        return self._index.in_order()

    def all_partitions(self) -> list[Partition]:
        return self._replicas.all_partitions()

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
        """Create what a client asks for, many by one transaction of the store: each topic's image, or why not.

        Names that collide with those of other topics are refused (see `check_collision`).
        """
        if len(topics) < MANY_TOPICS:
            return await self._to_the_end(self._create_topics(topics, True, validate_only))
        collector = self._slices.collector
        with collector.during():
            made = await self._to_the_end(self._create_topics(topics, True, validate_only))
        collector.spare_what_is_there()
        return made

    async def _create_topics(
        self, topics: Sequence[NewTopic], check_collisions: bool, validate_only: bool
    ) -> list[TopicImage | KafkaError]:
        async with self._change:
            if validate_only:
                return await self._new_images(topics, await self._topic_ids(len(topics)), check_collisions)
            results: list[TopicImage | KafkaError] = []
            for first in range(0, len(topics), TOPICS_PER_CHANGE):
                results += await self._create_some(
                    topics[first : first + TOPICS_PER_CHANGE], check_collisions
                )
                await asyncio.sleep(0)
        return results

    async def _topic_ids(self, count: int) -> list[uuid.UUID]:
        ids = []
        for number in range(1, count + 1):
            if not number % TOPICS_PER_TURN:
                await asyncio.sleep(0)
            ids.append(self._entropy.uuid())
        return ids

    async def _create_some(
        self, topics: Sequence[NewTopic], check_collisions: bool
    ) -> list[TopicImage | KafkaError]:
        ids = await self._topic_ids(len(topics))
        results: list[TopicImage | KafkaError] = []

        async def decide() -> Event:
            results[:] = await self._new_images(topics, ids, check_collisions)
            return CreateTopics(tuple(image for image in results if isinstance(image, TopicImage)))

        await self._carry_out(decide)
        for image in results:
            if isinstance(image, TopicImage):
                logger.info(
                    "created topic %s with %d partitions, id %s",
                    image.name,
                    image.partition_count,
                    image.topic_id,
                )
        return results

    async def _new_images(
        self, topics: Sequence[NewTopic], ids: Sequence[uuid.UUID], check_collisions: bool
    ) -> list[TopicImage | KafkaError]:
        results: list[TopicImage | KafkaError] = []
        taken: dict[str, str] = {}
        names: set[str] = set()
        for number, (topic, topic_id) in enumerate(zip(topics, ids, strict=True), 1):
            if not number % TOPICS_PER_TURN:
                await asyncio.sleep(0)
            try:
                image = await self._new_image(topic, topic_id, names)
                there = self._index.by_id.get(topic_id)  # made before somebody else was in between
                if check_collisions and there is None:
                    self.check_collision(image.name)
                    check_collision(image.name, taken.setdefault(metric_name(image.name), image.name))
            except KafkaError as error:
                results.append(error)
                continue
            names.add(image.name)
            results.append(image)
        return results

    async def _new_image(self, topic: NewTopic, topic_id: uuid.UUID, others: set[str]) -> TopicImage:
        name = topic.name
        there = self._index.by_id.get(topic_id)
        if there is not None:
            return there
        check_topic_name(name)
        count = self._default_partitions if topic.partitions == -1 else topic.partitions
        check_partition_count(name, count)
        if name in self._index.by_name or name in others:
            raise already_exists(name)
        normal = await self._validated(name, count, dict(topic.config))
        return TopicImage(name, topic_id, count, normal, name in INTERNAL_TOPICS)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""
        await self._to_the_end(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        async def decide() -> Event:
            return DeleteTopic(name)

        async with self._change:
            await self._carry_out(decide)

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> TopicImage:
        """Grow a topic to `total` partitions. Raises KafkaError."""

        async def grown(old: TopicImage) -> TopicImage:
            check_growth(old, total)
            config = await self._revalidated(old, total, dict(old.config))
            return TopicImage(name, old.topic_id, total, config, old.internal)

        return await self._to_the_end(self._replace_topic(name, grown, validate_only))

    async def alter_config(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicImage:
        """Set configurations (None: back to the default), all or none. Raises KafkaError."""

        async def altered(old: TopicImage) -> TopicImage:
            merged = {**old.config, **changes}
            config = {key: value for key, value in merged.items() if value is not None}
            normal = await self._revalidated(old, old.partition_count, config)
            return TopicImage(name, old.topic_id, old.partition_count, normal, old.internal)

        return await self._to_the_end(self._replace_topic(name, altered, validate_only))

    async def _replace_topic(
        self, name: str, changed: Callable[[TopicImage], Awaitable[TopicImage]], validate_only: bool
    ) -> TopicImage:
        async def decide() -> ReplaceTopic:
            entry = self.image.topics.get(name)
            if entry is None:
                raise unknown_topic(name)
            return ReplaceTopic(await changed(entry.topic), entry.version)

        async with self._change:
            if validate_only:
                return (await decide()).topic
            await self._carry_out(decide)
            await self._replicas.settled(name)
            return self._index.by_name[name]

    async def settled(self) -> None:
        """Wait until the image has the changes that are under way, a topic that is being created among them."""
        async with self._change:
            pass

    def check_defaults(self, broker_defaults: Mapping[str, str]) -> None:
        """Raises KafkaError if a topic could not have these defaults under what it sets itself."""
        others = TopicConfigs(broker_defaults, tuple(self.topic_configs.extension_keys.values()))
        for image in self._index.by_name.values():
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
        self._install(self.image.with_topics({}))
        await self._replicas.reconfigure_all(list(self._index.by_name.values()))

    # -- start and stop ------------------------------------------------------------------------------------

    async def load(self, *, open_all: bool) -> None:
        """Register this broker, become the controller, read the image and serve it. `open_all` recovers every log now
        (after a crash). Raises ConfigError when the store's content is damaged, KafkaError when another broker is in
        this one's place.
        """
        await self._finish_deletions()
        broker = await register(self._store, self._registration)
        claim = await become_controller(self._store, broker.broker_id)
        if claim is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")
        image = replace(await self._read(), controller_epoch=claim.epoch, controller_version=claim.version)
        image = await self._adopt(image)
        image = await self._written(image, BrokerStarted(broker, self._registration.clean))
        entries = sorted(image.topics.values(), key=lambda entry: entry.topic.name)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(
            self._executor, self._directory.set_aside_strays, [entry.topic for entry in entries]
        )
        # By name: an extension's topic may depend on another one whose name is the beginning of its own.
        for entry in entries:
            await self._replicas.follow(None, entry, open_all=open_all)
            self._put(entry)
        self._install(image)
        self.is_loaded = True

    async def close(self) -> None:
        """Close every partition; the image stays readable but nothing can be written any more."""
        await asyncio.gather(*self._changes, return_exceptions=True)
        async with self._change:
            await self._replicas.close()
        if self._removals:
            await asyncio.gather(*self._removals)

    async def _adopt(self, image: ClusterImage) -> ClusterImage:
        """Give topics of the layout without states those that they had by it."""
        node = await self._store.get(tree.LEADER_EPOCH)
        if node is None:
            return image
        image = await self._written(image, AdoptStates(self._registration.broker_id, int(node.data)))
        await self._store.transact([DeleteNode(tree.LEADER_EPOCH, node.version)])
        return image

    async def _written(self, image: ClusterImage, event: Event) -> ClusterImage:
        """What an image is after an event, before anybody sees it."""
        for transaction in step(image, event):
            await self._store.transact(transaction.operations)
            image = image.with_topics(transaction.topics)
        return image.with_broker(event.broker) if isinstance(event, BrokerStarted) else image

    async def _read(self) -> ClusterImage:
        """What the store has."""
        names = await self._store.children(tree.TOPICS)
        nodes = await self._store.get_many([tree.topic_path(name) for name in names])
        found = [
            (tree.decode_topic(node.data), node.version) for node in nodes if node is not None and node.data
        ]
        counts = [-(-topic.partition_count // STATES_PER_CHUNK) for topic, _ in found]
        paths = [
            tree.chunk_path(topic.name, number)
            for (topic, _), count in zip(found, counts, strict=True)
            for number in range(count)
        ]
        chunks = iter(await self._store.get_many(paths))
        entries: dict[str, TopicEntry | None] = {}
        for (topic, version), count in zip(found, counts, strict=True):
            mine = [next(chunks) for _ in range(count)]
            states = tuple(tree.decode_chunk(node) for node in mine if node is not None)
            if states and sum(len(chunk.states) for chunk in states) != topic.partition_count:
                raise ConfigError(
                    f"the states of topic {topic.name} in the coordination store are not those of its"
                    f" {topic.partition_count} partitions; restore it from a backup"
                )
            entries[topic.name] = TopicEntry(topic, version, states)
        return ClusterImage(
            topics=FrozenMap[str, TopicEntry]().changed(entries), brokers=await read_brokers(self._store)
        )

    # -- carrying out ----------------------------------------------------------------------------------------

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

    async def _carry_out(self, decide: Callable[[], Awaitable[Event]]) -> None:
        """Write what is decided and follow it; decide again after somebody else has written."""
        while True:
            event = await decide()
            try:
                for transaction in step(self.image, event):
                    if not await self._write(transaction):
                        break
                    await self._follow(self.image.with_topics(transaction.topics), transaction.topics)
                else:
                    return
            except OUTDATED:
                pass
            await self._catch_up()

    async def _write(self, transaction: Transaction) -> bool:
        """False if the store was lost meanwhile and does not have it. Raises what it refuses."""
        try:
            await self._store.transact(transaction.operations)
        except StoreOutcomeUnknownError as unknown:
            try:
                there = (await self._read()).topics
            except StoreUnavailableError:
                raise unknown from None
            return all(there.get(name) == entry for name, entry in transaction.topics.items())
        return True

    async def _catch_up(self) -> None:
        """Follow what others have written. Raises KafkaError if another broker is the controller now."""
        node = await self._store.get(tree.CONTROLLER_EPOCH)
        if node is None or node.version != self.image.controller_version:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                "another broker is the controller" + ("" if node is None else f", epoch {int(node.data)}"),
            )
        read = await self._read()
        changed = {
            name: read.topics.get(name)
            for name in {*read.topics, *self.image.topics}
            if read.topics.get(name) != self.image.topics.get(name)
        }
        await self._follow(replace(self.image, topics=read.topics, version=self.image.version + 1), changed)

    async def _follow(self, image: ClusterImage, changes: Mapping[str, TopicEntry | None]) -> None:
        """Make partitions what they are in `image`, and then that the one which everybody reads."""
        for name, entry in changes.items():
            before = self.image.topics.get(name)
            if before is not None and (entry is None or entry.topic.topic_id != before.topic.topic_id):
                await self._remove(before.topic)
                before = None
            if entry is not None:
                await self._replicas.follow(before, entry)
                self._put(entry)
        self._install(image)

    def _put(self, entry: TopicEntry) -> None:
        """From here on it is found; the image has it when the whole change is followed."""
        self._index.put(entry.topic)
        self.version += 1

    def _install(self, image: ClusterImage) -> None:
        self.version = max(self.version + 1, image.version)
        self.image = replace(image, version=self.version)

    async def _remove(self, topic: TopicImage) -> None:
        name = topic.name
        self._index.remove(topic)
        self.version += 1
        await self._replicas.drop(name)
        for listener in self.deletion_listeners:
            listener(topic)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.set_aside, topic)
        removal = loop.create_task(self._remove_files(topic), name=f"remove {name}")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        logger.info("deleted topic %s, id %s", name, topic.topic_id)

    # -- inside --------------------------------------------------------------------------------------------

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

    async def _remove_files(self, image: TopicImage) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.remove_set_aside, image)
        try:
            await modify(self._store, tree.deleted_path(image.topic_id), lambda _: None)
        except STORE_LOST as error:
            logger.warning(
                "topic %s is deleted, which is written down at the next start: %s", image.name, error
            )

    async def _finish_deletions(self) -> None:
        for topic_id in await self._store.children(tree.DELETED):
            node = await self._store.get(f"{tree.DELETED}/{topic_id}")
            if node is None:
                continue
            image = tree.decode_topic(node.data)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._directory.set_aside, image)
            await self._remove_files(image)
