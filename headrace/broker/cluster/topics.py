"""The topics of the cluster: what is known of them, the only way to change them, and this broker's partitions.

The coordination store is the truth (`broker.metadata.tree`): a topic exists when its node does. Changes are decided by
the image of the store, pure (`broker.metadata.controller`), written as compare-and-set, and then followed: by this
broker's partitions (`broker.replication.replicas`) and by the image that everybody reads. One change at a time. A
change that another writer has overtaken is decided again on the newer image.

Each broker of a cluster decides what it is asked for by its clients: every change is compared with the journal of
changes, so they come one after the other whoever makes them, and no request has to be handed to another broker, nor
another broker trusted with who asked. One of them, the controller, sees to brokers that come and go. Everybody hears of
changes by one watch (`run`), and is fenced while it has no registration that the controller has seen.

Partition folders follow the store: a folder without a topic is set aside at start, a topic without folders has empty
partitions. A crash between the deletion of a topic and the removal of its files leaves `/deleted/<topic id>` in the
store, and the next start finishes the work. A topic made again under the same name has another id, which its folders
carry (`partition.metadata`), so that files of the old one are never taken for its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from headrace.broker.log.config import LogConfig
from headrace.broker.metadata import tree
from headrace.broker.metadata.controller import (
    AdoptStates,
    Assignment,
    BrokerGone,
    BrokerLeaving,
    BrokerStarted,
    ChangeIsr,
    ChangeIsrs,
    CreateTopics,
    DeleteTopic,
    DeleteTopics,
    ElectLeaders,
    Event,
    Reassign,
    ReplaceTopic,
    ReplicasLost,
    Transaction,
    absent_of,
    assigned,
    check_replication_factor,
    reassigned,
    step,
)
from headrace.broker.metadata.features import METADATA_VERSION, check_level, decode_level, encode_levels
from headrace.broker.metadata.image import (
    BROKERS,
    NO_LEADER,
    BrokerImage,
    ClusterImage,
    PartitionState,
    Registered,
    TopicEntry,
)
from headrace.broker.metadata.member import Member
from headrace.broker.metadata.membership import WAIT_SECONDS, Claim, Registration, read_registrations
from headrace.broker.metadata.nodes import OUTDATED, modify, modify_all
from headrace.broker.metadata.reading import read_image, read_on
from headrace.broker.metadata.topic_config import TopicConfigs
from headrace.broker.metadata.topic_index import TopicIndex
from headrace.broker.metadata.topic_names import (
    INTERNAL_TOPICS,
    already_exists,
    check_collision,
    check_growth,
    check_partition_count,
    check_topic_name,
    metric_name,
    unknown_topic,
)
from headrace.broker.partitions.fence import Fence
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.replication.replicas import Leadership, LocalReplicas
from headrace.broker.runtime.ports import (
    STORE_LOST,
    CoordinationStore,
    CreateNode,
    DeleteNode,
    Entropy,
    SetNode,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from headrace.broker.runtime.slices import Slices
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.partitions.data_dir import DataDirectory
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.leading import Replicating
    from headrace.broker.replication.topic_policy import TopicPolicy

logger = logging.getLogger("headrace.metadata")

Result = TypeVar("Result")

MANY_TOPICS: Final = 1000
"""Made at once: so many objects that the garbage collector must not look through them in one pass."""
TOPICS_PER_CHANGE: Final = 40
"""Made by one transaction of the store, of those that are asked for together."""
PARTITIONS_PER_CHANGE: Final = 500
"""Moved by one transaction, of those that are to be moved together."""
KNOWN_SECONDS: Final = 5.0
"""So long a change waits for others to know of it; one of them may have died just now."""
RETRY_SECONDS: Final = 0.5
"""After the store could not be asked, or somebody else has this broker's id."""
TOPICS_PER_TURN: Final = 32
"""Topics whose configuration is checked in one turn of the event loop."""
_FACTOR_CONFIGS: Final = {
    "__consumer_offsets": "offsets.topic.replication.factor",
    "__transaction_state": "transaction.state.log.replication.factor",
}


class NewTopic(NamedTuple):
    """A topic to be made; `partitions` and `replication_factor` -1 take the broker's default. `assignment`: who is to
    hold each of them.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    assignment: Assignment | None = None
    replication_factor: int = -1


class Reassignment(NamedTuple):
    """A partition that is to be held by these brokers; None: no longer to be moved."""

    topic: str
    partition: int
    replicas: Sequence[int] | None


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
        fence: Fence | None = None,
        replication: Replicating | None = None,
        default_replication_factor: int = 1,
        journals: Mapping[str, tuple[int, int | None]] | None = None,
    ) -> None:
        """`fence`, `replication`: where others use the store too. `journals`: of the broker's own topics, how many
        replicas they are to have, and how many of those have to be in sync (None: what holds for all topics).
        """
        self.is_loaded = False
        """The image is whole: from here on a topic that is not in it does not exist."""
        self.image = ClusterImage()
        """What this broker serves."""
        self.version = 0  # the image's: the key of response caches
        self.ended: Mapping[int, int] = {}
        """Brokers of the image whose processes have ended, with their epochs: it is about to lose them. Replaced as a
        whole.
        """
        self.topic_configs = topic_configs
        self.deletion_listeners: list[Callable[[TopicImage], None]] = []
        self.followers: list[Callable[[TopicEntry | None, TopicEntry], None]] = []
        """Told what a topic was and what it is, after this broker's partitions have followed."""
        self.broker_listeners: list[Callable[[], None]] = []
        """Told that other brokers are alive than were, or under other epochs; the image has them."""
        self.leadership_listeners: list[Callable[[Leadership], None]] = []
        """Told when this broker begins to lead a partition, leads it under another epoch, or leads it no longer: after
        the partition is what it is then, and before anybody is told of the change.
        """
        self._store = store
        self._entropy = entropy
        self._executor = executor
        self._directory = directory
        self._registration = registration
        self._policies = tuple(policies)
        self._default_partitions = default_partitions
        self._default_replication_factor = default_replication_factor
        self._journals = journals or {}
        self._slices = slices
        self._index = TopicIndex()
        self._entries: dict[str, TopicEntry] = {}
        self._member = Member(store, registration, fence)
        self._is_alone = fence is None
        self._fence = fence
        self._woken = asyncio.Event()
        self._must_stand = True
        self._installed = asyncio.Event()
        self._replicas = LocalReplicas(
            registration.broker_id,
            executor=executor,
            open_log=open_log,
            log_config=topic_configs.log_config,
            policies=policies,
            fence=fence,
            replication=replication,
            tell=self._tell_leadership,
            remove=self._remove_replica,
        )
        self.changes = self._replicas.changes
        self.follower = self._replicas.follower
        self.followers_here = self._replicas.followers
        self.partition = self._replicas.partition
        self.find_partition = self._replicas.find_partition
        self.partitions = self._replicas.partitions
        self._change = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self._replica_removals: dict[tuple[uuid.UUID, int], asyncio.Future[None]] = {}

    @property
    def is_fenced(self) -> bool:
        """Others may lead what is led here."""
        return self._fence is not None and self._fence.is_shut

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

    def topics_beginning_with(self, prefix: str) -> list[TopicImage]:
        """By name; others are not looked at."""
        return self._index.beginning_with(prefix)

    def all_partitions(self) -> list[Partition]:
        """Those that this broker does not lead are closed."""
        return self._replicas.all_partitions()

    def entry(self, name: str) -> TopicEntry | None:
        """The topic with the states of its partitions."""
        return self._entries.get(name)

    def state(self, name: str, index: int) -> PartitionState | None:
        """Who holds and leads a partition; None if there is none."""
        entry = self._entries.get(name)
        if entry is None or not 0 <= index < entry.topic.partition_count:
            return None
        return entry.state(index)

    def leader(self, name: str, index: int) -> BrokerImage | None:
        """None if the partition has no leader that is alive, or does not exist."""
        state = self.state(name, index)
        if state is None or state.leader == NO_LEADER or state.leader in self.ended:
            return None
        return self.image.brokers.get(state.leader)

    def note_ended(self, broker_id: int, epoch: int) -> None:
        """The process that was registered so is not there any more: nobody is sent to it."""
        self._note_ended({**self.ended, broker_id: epoch})

    def note_there(self, broker_id: int) -> None:
        """It is reached."""
        self._note_ended({each: epoch for each, epoch in self.ended.items() if each != broker_id})

    def _note_ended(self, ended: Mapping[int, int]) -> None:
        brokers = self.image.brokers
        left = {
            each: epoch for each, epoch in ended.items() if each in brokers and brokers[each].epoch == epoch
        }
        if left != self.ended:
            self.ended = left
            self.version += 1

    @property
    def broker_epoch(self) -> int:
        """Of this broker's registration."""
        return self._member.epoch

    @property
    def default_replication_factor(self) -> int:
        """Of topics that are made without one."""
        return self._default_replication_factor

    @property
    def levels(self) -> tuple[int, int]:
        """The lowest and the highest level of the metadata that this broker knows."""
        return self._registration.levels

    @property
    def is_controller(self) -> bool:
        """Whether this broker does what one broker alone does for all."""
        return self.image.controller_epoch >= 0

    # -- changing it ---------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        config: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic; when this returns it can be written to and survives any crash.

        `partitions` and `replication_factor` -1 take the broker's default. Raises KafkaError: INVALID_TOPIC_EXCEPTION,
        TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG, POLICY_VIOLATION.
        """
        new = [NewTopic(name, partitions, config or {}, replication_factor=replication_factor)]
        (created,) = await self._to_the_end(self._create_topics(new, False, validate_only))
        if isinstance(created, KafkaError):
            raise created
        return created

    async def create_journal(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic of the broker's own, with as many replicas as it is to have; one, where there are no others.

        Raises KafkaError(COORDINATOR_NOT_AVAILABLE) until so many brokers are registered (KIP-115): what would be made
        while the others are on their way up for the first time would have too few replicas for ever.
        """
        factor, min_isr = self._journals.get(name, (1, None))
        if self._is_alone:
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
                f"{name} is made when {factor} brokers are registered. A cluster that is to have fewer says so:"
                f" {_FACTOR_CONFIGS[name]}. {error.message}",
            ) from error

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
                ids = await self._topic_ids(len(topics))
                absent = await self._absent(self._factors(topics), _chosen(topics))
                return await self._new_images(topics, ids, absent, check_collisions)
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
            factors = self._factors(topics)
            absent = await self._absent(factors, _chosen(topics))
            results[:] = await self._new_images(topics, ids, absent, check_collisions)
            return CreateTopics(
                tuple(image for image in results if isinstance(image, TopicImage)),
                assignments={
                    topic.name: topic.assignment for topic in topics if topic.assignment is not None
                },
                factors=factors,
                absent=absent,
            )

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

    def _factors(self, topics: Sequence[NewTopic]) -> dict[str, int]:
        return {topic.name: self.factor_of(topic) for topic in topics}

    async def _absent(
        self, factors: Mapping[str, int] = {}, chosen: Iterable[int] = ()
    ) -> tuple[BrokerImage, ...]:
        """Who may be a replica although it is not alive: nobody, where enough others are, and who was chosen is."""
        alive = {broker.broker_id for broker in self.image.brokers.values() if not broker.leaving}
        if max(factors.values(), default=0) <= len(alive) and alive.issuperset(chosen):
            return ()
        return absent_of(self.image, await self.known_brokers())

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

    async def _new_image(
        self, topic: NewTopic, topic_id: uuid.UUID, others: set[str], absent: Sequence[BrokerImage]
    ) -> TopicImage:
        name = topic.name
        there = self._index.by_id.get(topic_id)
        if there is not None:
            return there
        check_topic_name(name)
        count = self._default_partitions if topic.partitions == -1 else topic.partitions
        check_partition_count(name, count)
        if topic.assignment is not None:
            assigned(self.image, topic.assignment, absent)
        if name in self._index.by_name or name in others:
            raise already_exists(name)
        normal = await self._validated(name, count, dict(topic.config))
        factor = self.factor_of(topic)
        if topic.assignment is None:
            check_replication_factor(self.image, factor, absent)
        return TopicImage(name, topic_id, count, normal, name in INTERNAL_TOPICS)

    @property
    def _min_isr_default(self) -> int:
        """Of topics that do not set it, as this broker has it now."""
        return LogConfig.parse(self.topic_configs.broker_defaults).min_insync_replicas

    def factor_of(self, topic: NewTopic) -> int:
        """How many replicas its partitions are to have."""
        if topic.assignment is not None:
            return max(map(len, topic.assignment), default=1)
        if topic.replication_factor != -1:
            return topic.replication_factor
        wanted = (policy.replicas_wanted(topic.name, topic.config) for policy in self._policies)
        return next((count for count in wanted if count is not None), self._default_replication_factor)

    async def delete_topic(self, name: str, only_while: Callable[[], bool] | None = None) -> None:
        """Delete a topic and its records. `only_while` is asked in the step in which it is done: whether what was seen
        of the topic is still so. Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE if it is not.
        """
        await self._to_the_end(self._delete_topic(name, only_while))

    async def _delete_topic(self, name: str, only_while: Callable[[], bool] | None) -> None:
        async def decide() -> Event:
            if only_while is not None and not only_while():
                raise KafkaError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"topic {name} stays: who leads it has changed since it was looked at, or it took too long",
                )
            return DeleteTopic(name)

        async with self._change:
            await self._carry_out(decide)

    async def delete_topics(self, topics: Sequence[TopicImage]) -> list[KafkaError | None]:
        """Delete topics and their records, many by one transaction of the store: None, or why one is not deleted."""
        return await self._to_the_end(self._delete_topics(topics))

    async def _delete_topics(self, topics: Sequence[TopicImage]) -> list[KafkaError | None]:
        results: list[KafkaError | None] = []
        async with self._change:
            for first in range(0, len(topics), TOPICS_PER_CHANGE):
                some = topics[first : first + TOPICS_PER_CHANGE]
                try:
                    results += await self._delete_some(some)
                except KafkaError as error:
                    results += [error] * len(some)
                await asyncio.sleep(0)
        return results

    async def _delete_some(self, topics: Sequence[TopicImage]) -> list[KafkaError | None]:
        def is_there(topic: TopicImage) -> bool:
            entry = self.image.topics.get(topic.name)
            return entry is not None and entry.topic.topic_id == topic.topic_id

        found: list[TopicImage] | None = None

        async def decide() -> Event | None:
            nonlocal found
            if found is None:
                found = list(filter(is_there, topics))
            # What was there at first and is not any more is deleted, here or by another broker.
            names = tuple(topic.name for topic in found if is_there(topic))
            return DeleteTopics(names) if names else None

        await self._carry_out(decide)
        deleted = {topic.topic_id for topic in found or ()}
        return [None if topic.topic_id in deleted else unknown_topic(topic.name) for topic in topics]

    async def create_partitions(
        self,
        name: str,
        total: int,
        *,
        assignment: Assignment | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Grow a topic to `total` partitions; `assignment`: who is to hold those that are added. Raises KafkaError."""

        async def grown(old: TopicImage) -> TopicImage:
            check_growth(old, total)
            config = await self._revalidated(old, total, dict(old.config))
            return TopicImage(name, old.topic_id, total, config, old.internal)

        return await self._to_the_end(self._replace_topic(name, grown, validate_only, assignment))

    async def alter_config(
        self,
        name: str,
        changes: Mapping[str, str | None] | Callable[[Mapping[str, str]], Mapping[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> TopicImage:
        """Set configurations (None: back to the default), all or none. A function is given what is set at the moment of
        the change, as often as another change is in its way. Raises KafkaError.
        """

        async def altered(old: TopicImage) -> TopicImage:
            merged = {**old.config, **(changes(old.config) if callable(changes) else changes)}
            config = {key: value for key, value in merged.items() if value is not None}
            normal = await self._revalidated(old, old.partition_count, config)
            return TopicImage(name, old.topic_id, old.partition_count, normal, old.internal)

        return await self._to_the_end(self._replace_topic(name, altered, validate_only))

    async def _replace_topic(
        self,
        name: str,
        changed: Callable[[TopicImage], Awaitable[TopicImage]],
        validate_only: bool,
        assignment: Assignment | None = None,
    ) -> TopicImage:
        async def decide() -> ReplaceTopic:
            entry = self.image.topics.get(name)
            if entry is None:
                raise unknown_topic(name)
            new = await changed(entry.topic)
            absent: tuple[BrokerImage, ...] = ()
            if assignment is not None:
                absent = await self._absent(chosen=chain.from_iterable(assignment))
                assigned(self.image, assignment, absent)
            elif new.partition_count > entry.topic.partition_count:
                absent = await self._absent({name: len(entry.state(0).replicas)})
            return ReplaceTopic(
                new, entry.version, assignment=assignment, absent=absent, min_isr=self._min_isr_default
            )

        async with self._change:
            if validate_only:
                return (await decide()).topic
            await self._carry_out(decide)
            await self._replicas.settled(name)
            return self._index.by_name[name]

    async def change_isrs(self, proposals: Sequence[ChangeIsr]) -> None:
        """What leaders among this broker's partitions propose, as of now. Those that are out of date by the newest
        image are left out. Raises KafkaError when nobody knows what has become of them.
        """

        async def decide() -> Event:
            return ChangeIsrs(tuple(proposals))

        async with self._change:
            await self._carry_out(decide)

    async def lose_replicas(self, partitions: Sequence[tuple[str, int]]) -> None:
        """This broker's replicas of these partitions, by topic and index, cannot be relied on any more. Raises
        KafkaError when nobody knows what has become of that.
        """

        async def decide() -> Event:
            return ReplicasLost(self._registration.broker_id, tuple(partitions))

        async with self._change:
            await self._carry_out(decide)

    async def set_aside_replica(self, topic: TopicImage, index: int) -> bool:
        """What a damaged replica has is kept for whoever wants to look at it, out of the way. False, and nothing is
        done, while this broker is in the ISR or eligible: nobody else is known to have everything.
        """
        state, own = self.state(topic.name, index), self._registration.broker_id
        if state is None or own in state.isr or own in state.elr:
            return False
        loop = asyncio.get_running_loop()
        kept = await loop.run_in_executor(self._executor, self._directory.set_aside_damaged, topic, index)
        logger.warning(
            "%s-%d is copied from its leader; what was here is kept in %s", topic.name, index, kept
        )
        return True

    async def elect_leaders(self, partitions: Sequence[tuple[str, int]] | None, *, unclean: bool) -> None:
        """The preferred leaders of these partitions (None: of all), or whoever is alive where nobody else may lead."""

        async def decide() -> Event:
            return ElectLeaders(None if partitions is None else tuple(partitions), unclean)

        async def elect() -> None:
            async with self._change:
                await self._carry_out(decide)

        await self._to_the_end(elect())

    async def reassign(
        self, wanted: Sequence[Reassignment], *, factor_may_change: bool = True
    ) -> list[KafkaError | None]:
        """Have partitions held by other brokers, or end that: why not, of each. It is over later (`PartitionState`)."""
        return await self._to_the_end(self._reassign(wanted, factor_may_change))

    async def _reassign(
        self, wanted: Sequence[Reassignment], factor_may_change: bool
    ) -> list[KafkaError | None]:
        refused: list[KafkaError | None] = []
        async with self._change:
            for first in range(0, len(wanted), PARTITIONS_PER_CHANGE):
                some = wanted[first : first + PARTITIONS_PER_CHANGE]
                refused += await self._reassign_some(some, factor_may_change)
        return refused

    async def _reassign_some(
        self, wanted: Sequence[Reassignment], factor_may_change: bool
    ) -> list[KafkaError | None]:
        refused: list[KafkaError | None] = []

        async def decide() -> Event:
            refused.clear()
            pace, targets = self._slices.pace(), []
            chosen = chain.from_iterable(each.replicas or () for each in wanted)
            absent = await self._absent(chosen=chosen)
            for each in wanted:
                await pace.rest()
                refused.append(self._why_not(each, factor_may_change, absent))
                if refused[-1] is None:
                    targets.append(
                        (each.topic, each.partition, None if each.replicas is None else tuple(each.replicas))
                    )
            return Reassign(tuple(targets), factor_may_change, self._min_isr_default, absent)

        await self._carry_out(decide)
        return refused

    def _why_not(
        self, wanted: Reassignment, factor_may_change: bool, absent: Sequence[BrokerImage]
    ) -> KafkaError | None:
        try:
            reassigned(
                self.image,
                wanted.topic,
                wanted.partition,
                wanted.replicas,
                factor_may_change=factor_may_change,
                min_isr=self._min_isr_default,
                absent=absent,
            )
        except KafkaError as error:
            return error
        return None

    async def set_level(self, level: int, *, downgrade: bool, validate_only: bool = False) -> None:
        """Finalize a level of the metadata, which all brokers that are alive know, and which later ones have to.

        Raises KafkaError(INVALID_UPDATE_VERSION).
        """

        async def change() -> None:
            async with self._change:
                while True:
                    await self._catch_up()
                    image = self.image
                    _check_level(image, level, downgrade=downgrade)
                    if validate_only or level == image.level:
                        return
                    data = encode_levels(level)
                    told = (
                        CreateNode(tree.FEATURES, data)
                        if image.level_version < 0
                        else SetNode(tree.FEATURES, data, image.level_version)
                    )
                    with contextlib.suppress(*OUTDATED):
                        await self._store.transact(
                            [tree.changes_operation(image.changes.followed_by((BROKERS,))), told]
                        )

        await self._to_the_end(change())

    async def known_brokers(self) -> list[BrokerImage]:
        """All brokers by their ids: those that are alive, and those that are not and were not forgotten."""
        names = sorted(await self._store.children(tree.KNOWN_BROKERS), key=int)
        nodes = await self._store.get_many([f"{tree.KNOWN_BROKERS}/{name}" for name in names])
        known = {
            int(name): tree.decode_known(int(name), node)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }
        return [found for _, found in sorted({**known, **self.image.brokers}.items())]

    async def forget_broker(self, broker_id: int) -> None:
        """Of a broker that is gone for good nothing is expected any more: the removal of deleted topics' files. It
        stays a replica where it is one, until somebody else is (`reassign`). Raises
        KafkaError(BROKER_ID_NOT_REGISTERED, INVALID_REQUEST).
        """
        async with self._change:
            await self._catch_up()
        path = f"{tree.KNOWN_BROKERS}/{broker_id}"
        if broker_id in self.image.brokers or await self._store.get(f"{tree.BROKER_IDS}/{broker_id}"):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"broker {broker_id} is alive, and would be registered again at once: stop it first",
            )
        if await self._store.get(path) is None:
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered."
            )
        for topic_id in await self._store.children(tree.DELETED):
            await self._without_holder([f"{tree.DELETED}/{topic_id}"], broker_id)
        await modify(self._store, path, lambda _: None)
        logger.info("broker %d is forgotten", broker_id)

    async def leave(self, seconds: float) -> None:
        """Have others lead what this broker leads, as far as there are any; not longer than so many seconds."""
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(seconds):
                await self._announce_leaving()
                while not self._has_left():
                    self._installed.clear()
                    await self._installed.wait()
                await self._member.confirmed(self.image.brokers, self.image.changes.version)

    async def _announce_leaving(self) -> None:
        while True:
            async with self._change:
                await self._catch_up()
                with contextlib.suppress(*OUTDATED):
                    return await self._member.leave(self.image.changes)

    def _has_left(self) -> bool:
        """Everything that others can lead they lead, by an image that they all have."""
        own = self.image.brokers.get(self._registration.broker_id)
        return own is None or own.leaving

    async def refreshed(self) -> None:
        """From here on is known what was changed before, whoever has changed it: a client that is told of a change by
        one broker may ask another about it. Costs an answer of the store, and nothing where there are no others.
        """
        if not self._is_alone:
            async with self._change:
                await self._catch_up()

    @property
    def is_alone(self) -> bool:
        """There are no other brokers, and never will be while this process lives."""
        return self._is_alone

    async def settled(self) -> None:
        """Wait until the image has the changes that are under way, a topic that is being created among them."""
        async with self._change:
            pass

    def check_defaults(self, broker_defaults: Mapping[str, str]) -> None:
        """Raises KafkaError if a topic could not have these defaults under what it sets itself."""
        others = self.topic_configs.with_defaults(broker_defaults)
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

    async def load(
        self,
        *,
        open_all: bool,
        prepare: Callable[[Sequence[TopicEntry]], Awaitable[None]] | None = None,
    ) -> None:
        """Register this broker, read the image, and serve it when the controller has seen to the registration: this
        broker, if nobody else is. `open_all` recovers every log now (after a crash). `prepare` hears of all topics
        before any log is opened. Raises ConfigError when the store's content is damaged, KafkaError when another broker
        is in this one's place.
        """
        levels = await self._store.get(tree.FEATURES)
        if levels is not None:
            check_level(decode_level(levels.data), self._registration.levels)
        await self._finish_deletions()
        image = await self._joined()
        # From here on it is asked before the level is raised.
        check_level(image.level, self._registration.levels)
        entries = sorted(image.topics.values(), key=lambda entry: entry.topic.name)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.set_aside_strays, self._held_here(entries))
        if prepare is not None:
            await prepare(entries)
        # By name: an extension's topic may depend on another one whose name is the beginning of its own.
        for entry in entries:
            await self._replicas.follow(None, entry, open_all=open_all)
            self._put(entry)
        self._install(image)
        self.is_loaded = True

    def _held_here(self, entries: Iterable[TopicEntry]) -> list[tuple[str, int]]:
        own = self._registration.broker_id
        return [
            (entry.topic.name, index)
            for entry in entries
            for index, state in enumerate(entry.states())
            if own in state.replicas
        ]

    async def close(self) -> None:
        """Close every partition; the image stays readable but nothing can be written any more."""
        await asyncio.gather(*self._changes, return_exceptions=True)
        async with self._change:
            await self._replicas.close()
        if self._removals:
            await asyncio.gather(*self._removals)
        if self._replica_removals:
            await asyncio.wait(list(self._replica_removals.values()))

    async def _joined(self) -> ClusterImage:
        """The image in which this broker is one of those that are alive."""
        with contextlib.ExitStack() as watches:
            self._watch(watches)
            await self._member.register(WAIT_SECONDS)
            image = await read_image(self._store)
            while True:
                self._woken.clear()
                await self._member.register(WAIT_SECONDS)
                controller_id = await self._member.stand()
                image = _controlled(image, self._member.claim, controller_id)
                image, _ = await read_on(self._store, image)
                try:
                    image = await self._adopt(image)
                    image = await self._attended(image)
                except (*OUTDATED, StoreOutcomeUnknownError):
                    continue
                if self._member.seen_in(image):
                    return image
                await self._woken.wait()

    async def _attended(self, image: ClusterImage) -> ClusterImage:
        """What an image is when its controller has seen to who is registered, before anybody follows it."""
        if image.controller_epoch < 0:
            return image
        registered = await read_registrations(self._store)
        while (event := _to_attend(image, registered, self._min_isr_default)) is not None:
            image = await self._written(image, event)
        return image

    def _tell_leadership(self, change: Leadership) -> None:
        for listener in self.leadership_listeners:
            listener(change)

    async def _adopt(self, image: ClusterImage) -> ClusterImage:
        """Give topics of the layout without states those that they had by it."""
        node = await self._store.get(tree.LEADER_EPOCH)
        if node is None or image.controller_epoch < 0:
            return image
        image = await self._written(image, AdoptStates(self._registration.broker_id, int(node.data)))
        await self._store.transact([DeleteNode(tree.LEADER_EPOCH, node.version)])
        return image

    async def _written(self, image: ClusterImage, event: Event) -> ClusterImage:
        """What an image is after an event, before anybody sees it."""
        for transaction in step(image, event):
            await self._store.transact(transaction.operations)
            image = transaction.applied_to(image)
        return image

    # -- carrying out ----------------------------------------------------------------------------------------

    async def _to_the_end(self, change: Coroutine[Any, Any, Result]) -> Result:
        """Carry a change out even if its caller is cancelled: the image must not differ from the store."""
        task = asyncio.get_running_loop().create_task(self._known_to_all(change))
        self._changes.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def _known_to_all(self, change: Coroutine[Any, Any, Result]) -> Result:
        """What was changed can be used at every broker that is alive, unless one of them takes too long."""
        before = self.image.changes.version
        result = await change
        after = self.image.changes.version
        if after != before and not self._is_alone:
            with contextlib.suppress(TimeoutError, *STORE_LOST):
                async with asyncio.timeout(KNOWN_SECONDS):
                    await self._member.confirmed(self.image.brokers, after)
        return result

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waits is told; if nobody does, nobody wants to know

    async def _carry_out(self, decide: Callable[[], Awaitable[Event | None]]) -> None:
        """Write what is decided and follow it; read on and decide again after somebody else has written."""
        while (event := await decide()) is not None:
            try:
                for transaction in step(self.image, event):
                    if not await self._write(transaction):
                        break
                    await self._follow(transaction.applied_to(self.image), transaction.topics)
                else:
                    return
            except OUTDATED:
                pass
            if not await self._catch_up() and not await self._catch_up(everything=True):
                await self._check_claim()

    async def _check_claim(self) -> None:
        """Raises KafkaError if another broker has become the controller."""
        node = await self._store.get(tree.CONTROLLER_EPOCH)
        if self.is_controller and (node is None or node.version != self.image.controller_version):
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                "another broker is the controller" + ("" if node is None else f", epoch {int(node.data)}"),
            )

    async def _write(self, transaction: Transaction) -> bool:
        """False if the store was lost meanwhile and does not have it. Raises what it refuses."""
        try:
            await self._store.transact(transaction.operations)
        except StoreOutcomeUnknownError as unknown:
            try:
                image, _ = await read_on(self._store, self.image)
            except StoreUnavailableError:
                raise unknown from None
            if transaction.brokers is not None and transaction.brokers != image.brokers:
                return False
            there = image.topics
            return all(there.get(name) == entry for name, entry in transaction.topics.items())
        return True

    async def _catch_up(self, *, everything: bool = False) -> bool:
        """Follow what others have written; False if there is nothing."""
        before = self.image
        image, names = await read_on(self._store, before, everything=everything)
        if image is before:
            return False
        changed = {
            name: image.topics.get(name)
            for name in sorted(names)
            if image.topics.get(name) is not before.topics.get(name)
        }
        await self._follow(image, changed)
        return bool(changed) or image.changes.version != before.changes.version

    # -- among others ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow what others change, and be registered, until cancelled; over at once where there are no others."""
        if self._is_alone:
            return
        with contextlib.ExitStack() as watches:
            self._watch(watches)
            self._must_stand = True
            self._woken.set()
            while True:
                await self._woken.wait()
                self._woken.clear()
                try:
                    async with self._change:
                        await self._turn()
                except (StoreUnavailableError, StoreOutcomeUnknownError, KafkaError) as error:
                    logger.warning("the cluster cannot be followed now: %s", error)
                    self._must_stand = True
                    await asyncio.sleep(RETRY_SECONDS)
                    self._woken.set()

    def _watch(self, watches: contextlib.ExitStack) -> None:
        watches.callback(self._store.watch(tree.CHANGES, self._woken.set))
        for path in (tree.CONTROLLER, tree.BROKER_IDS):
            watches.callback(self._store.watch(path, self._members_changed))

    def _members_changed(self) -> None:
        self._must_stand = True
        self._woken.set()

    async def _turn(self) -> None:
        if self._must_stand:
            self._must_stand = False
            await self._member.register(0)
            controller_id = await self._member.stand()
            image = _controlled(self.image, self._member.claim, controller_id)
            if image is not self.image:
                if image.controller_id != self.image.controller_id:
                    logger.info("broker %d is the controller", image.controller_id)
                self._install(image)
        await self._catch_up()
        if self.is_controller:
            registered = await read_registrations(self._store)

            async def decide() -> Event | None:
                return _to_attend(self.image, registered, self._min_isr_default)

            while await decide() is not None:
                await self._carry_out(decide)
        self._member.seen_in(self.image)
        await self._member.confirm(self.image.changes.version)

    async def _follow(self, image: ClusterImage, changes: Mapping[str, TopicEntry | None]) -> None:
        """Make partitions what they are in `image`, and then that the one which everybody reads."""
        gone = {}
        for name, entry in changes.items():
            before = self.image.topics.get(name)
            if before is not None and (entry is None or entry.topic.topic_id != before.topic.topic_id):
                gone[name] = before.topic
        if gone:
            await self._remove(list(gone.values()))
        for name, entry in changes.items():
            if entry is not None:
                before = None if name in gone else self.image.topics.get(name)
                await self._replicas.follow(before, entry)
                self._put(entry)
                for follower in self.followers:
                    follower(before, entry)
        self._install(image)

    def _put(self, entry: TopicEntry) -> None:
        """From here on it is found; the image has it when the whole change is followed."""
        self._index.put(entry.topic)
        self._entries[entry.topic.name] = entry
        self.version += 1

    def _install(self, image: ClusterImage) -> None:
        self._installed.set()
        brokers = self.image.brokers
        self.version = max(self.version + 1, image.version)
        self.image = replace(image, version=self.version)
        if image.brokers is not brokers and image.brokers != brokers:
            self._note_ended(self.ended)
            for listener in self.broker_listeners:
                listener()

    async def _remove(self, topics: Sequence[TopicImage]) -> None:
        for topic in topics:
            self._index.remove(topic)
            self._entries.pop(topic.name, None)
            self.version += 1
            await self._replicas.drop(topic.name)
            for listener in self.deletion_listeners:
                listener(topic)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.set_aside, *topics)
        removal = loop.create_task(self._remove_files(topics), name=f"remove {len(topics)} topics")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        for topic in topics:
            logger.info("deleted topic %s, id %s", topic.name, topic.topic_id)

    # -- inside --------------------------------------------------------------------------------------------

    async def _validated(self, name: str, partitions: int, config: dict[str, str]) -> dict[str, str]:
        self.topic_configs.check(config, internal=name in INTERNAL_TOPICS)
        for policy in self._policies:
            config = await policy.validate_topic(name, partitions, config)
        return config

    async def _revalidated(self, old: TopicImage, partitions: int, config: dict[str, str]) -> dict[str, str]:
        self.topic_configs.check(config, internal=old.internal)
        self.topic_configs.check_change(old.config, config)
        for policy in self._policies:
            config = await policy.validate_change(old, partitions, config)
        return config

    async def _remove_replica(self, topic: TopicImage, index: int) -> None:
        """Of a partition that others hold: its files are out of the way when this returns, and gone later."""
        loop, directory = asyncio.get_running_loop(), self._directory
        key = topic.topic_id, index
        if key in self._replica_removals:
            await asyncio.wait([self._replica_removals[key]])
        if await loop.run_in_executor(self._executor, directory.set_aside_partition, topic, index):
            work = loop.run_in_executor(self._executor, directory.remove_partition_set_aside, topic, index)
            self._replica_removals[key] = work
            work.add_done_callback(lambda work: self._replica_removed(key, work))

    def _replica_removed(self, key: tuple[uuid.UUID, int], work: asyncio.Future[None]) -> None:
        del self._replica_removals[key]
        if not work.cancelled() and (error := work.exception()) is not None:
            logger.error("files of a replica that was moved are left for the next start: %s", error)

    async def _remove_files(self, topics: Sequence[TopicImage]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.remove_set_aside, *topics)
        await self._deletions_done(topics)

    async def _deletions_done(self, topics: Sequence[TopicImage]) -> None:
        """This broker has no files of them any more; the last one forgets the topics."""
        paths = [tree.deleted_path(topic.topic_id) for topic in topics]
        try:
            await self._without_holder(paths, self._registration.broker_id)
        except STORE_LOST as error:
            names = ", ".join(topic.name for topic in topics)
            logger.warning("%s: deleted, which is written down at the next start: %s", names, error)

    async def _without_holder(self, paths: Sequence[str], broker_id: int) -> None:
        """No deletion waits for this broker any more; one of a layout without holders waits for no broker at all."""

        def without(data: bytes | None) -> bytes | None:
            if data is None:
                return None
            topic, holders = tree.decode_deletion(data)
            left = [broker for broker in holders or () if broker != broker_id]
            return tree.encode_deletion(topic, left) if left else None

        await modify_all(self._store, paths, without)

    async def _finish_deletions(self) -> None:
        for topic_id in await self._store.children(tree.DELETED):
            node = await self._store.get(f"{tree.DELETED}/{topic_id}")
            if node is None:
                continue
            image, holders = tree.decode_deletion(node.data)
            if holders is not None and self._registration.broker_id not in holders:
                continue
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._directory.set_aside, image)
            try:
                for index in range(image.partition_count):
                    for policy in self._policies:
                        await policy.replica_removed(image, index, with_topic=True)
            except Exception as error:
                logger.error(
                    "files of %s, which is deleted, are left for the next start", image.name, exc_info=error
                )
                continue
            await self._remove_files([image])


def _chosen(topics: Iterable[NewTopic]) -> Iterator[int]:
    """The brokers that are to hold them, where somebody has chosen."""
    return (broker for topic in topics for replicas in topic.assignment or () for broker in replicas)


def _check_level(image: ClusterImage, level: int, *, downgrade: bool) -> None:
    """Raises KafkaError(INVALID_UPDATE_VERSION)."""
    problem = None
    if level < image.level and not downgrade:
        problem = "it is lower than the present one: say that it is to be a downgrade"
    for broker in image.brokers.values():
        lowest, highest = broker.levels
        if problem is None and not lowest <= level <= highest:
            problem = f"broker {broker.broker_id} knows {lowest} to {highest}"
    if problem is not None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {METADATA_VERSION}, which is at {image.level}: {problem}.",
        )


def _controlled(image: ClusterImage, claim: Claim | None, controller_id: int) -> ClusterImage:
    """The image of a broker that is the controller by `claim`, or follows another one."""
    epoch, version = (-1, -1) if claim is None else (claim.epoch, claim.version)
    if (image.controller_epoch, image.controller_version, image.controller_id) == (
        epoch,
        version,
        controller_id,
    ):
        return image
    return replace(image, controller_epoch=epoch, controller_version=version, controller_id=controller_id)


def _to_attend(
    image: ClusterImage, registered: Mapping[int, Registered], min_isr: int
) -> BrokerGone | BrokerStarted | BrokerLeaving | None:
    """What the controller has to do next about who is registered. Who has started anew comes first: what it may have
    lost must not count when others are gone.
    """
    there = image.brokers
    for broker_id, found in registered.items():
        if broker_id in there and there[broker_id].epoch != found.broker.epoch:
            return BrokerStarted(found.broker, found.clean, found.kept, found.synced)
    for broker_id in there:
        if broker_id not in registered:
            return BrokerGone(broker_id, min_isr)
    for broker_id, found in registered.items():
        if broker_id not in there:
            return BrokerStarted(found.broker, found.clean, found.kept, found.synced)
        if found.leaving and not there[broker_id].leaving:
            return BrokerLeaving(broker_id, min_isr)
    return None
