"""This broker's partitions: made, opened, led and closed as the image says.

`follow` brings the partitions of one topic to what the image has become; nobody else makes or ends any. A partition is
led here when the image says so, under the leader epoch of the image, which its log has before anything is written with
it; one that is led elsewhere is closed, and answers NOT_LEADER_OR_FOLLOWER. Topics whose extension cannot serve them,
and logs that cannot be opened, are offline; the others are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from broker.cluster.image import TopicEntry
from broker.cluster.partition import Partition, PartitionChanges
from broker.cluster.topic import TopicImage
from broker.cluster.topic_names import unknown_partition, unknown_topic
from protocol.errors import KafkaError

if TYPE_CHECKING:
    from broker.cluster.fence import Fence
    from broker.cluster.topic_policy import TopicPolicy
    from broker.log.config import LogConfig
    from broker.log.partition_log import PartitionLog

logger = logging.getLogger("headrace.metadata")

PARTITIONS_OPENED_TOGETHER: Final = 4
PARTITIONS_PER_TURN: Final = 32
"""Partitions that are made in one turn of the event loop: below a millisecond."""
PARTITIONS_CLOSED_TOGETHER: Final = 8


class LocalReplicas:
    """On the event loop. `open_log` gives a partition its log, on its first use."""

    def __init__(
        self,
        broker_id: int,
        *,
        executor: Executor,
        open_log: Callable[[Partition], PartitionLog],
        log_config: Callable[[TopicImage], LogConfig],
        policies: Sequence[TopicPolicy] = (),
        fence: Fence | None = None,
    ) -> None:
        self.changes = PartitionChanges()
        self._broker_id = broker_id
        self._executor = executor
        self._open_log = open_log
        self._log_config = log_config
        self._policies = tuple(policies)
        self._fence = fence
        self._partitions: dict[str, list[Partition]] = {}

    # -- finding ---------------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise unknown_topic(topic)
        if not 0 <= index < len(partitions):
            raise unknown_partition(topic, index, len(partitions))
        return partitions[index]

    def find_partition(self, topic: str, index: int) -> Partition | None:
        """The same for the hot paths, None instead of an error."""
        partitions = self._partitions.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def partitions(self, topic: str) -> Sequence[Partition]:
        """Of a topic, by their index; the same list for as long as the topic is there."""
        return self._partitions.get(topic, ())

    def all_partitions(self) -> list[Partition]:
        return [partition for partitions in self._partitions.values() for partition in partitions]

    # -- following the image ---------------------------------------------------------------------------------

    async def follow(self, old: TopicEntry | None, new: TopicEntry, *, open_all: bool = False) -> None:
        """Over when new partitions are made and those with hooks have started; `open_all` opens every log now."""
        image = new.topic
        there = self._partitions.get(image.name, [])
        if old is not None:
            await self._lead(old, new, there)
            if old.topic != image:
                config = self._log_config(image) if old.topic.config != image.config else None
                for partition in there:
                    partition.topic = image
                    if config is not None:
                        partition.reconfigure(config)
        there.extend(await self._make(new, range(len(there), image.partition_count), open_all))
        self._partitions[image.name] = there

    async def settled(self, name: str) -> None:
        """Wait for what a stricter durability of a topic asks for."""
        for partition in self.partitions(name):
            await partition.settled()

    async def reconfigure_all(self, topics: Iterable[TopicImage]) -> None:
        """The defaults have changed: open logs follow. Over when what a stricter durability asks for is on disk."""
        parsed: dict[tuple[bool, tuple[tuple[str, str], ...]], LogConfig] = {}
        for image in topics:
            key = (image.internal, tuple(sorted(image.config.items())))
            config = parsed.get(key)
            if config is None:
                config = parsed[key] = self._log_config(image)
            for partition in self._partitions[image.name]:
                partition.reconfigure(config)
        for partition in self.all_partitions():
            await partition.settled()

    async def drop(self, name: str) -> None:
        """The topic was deleted: nobody finds its partitions from here on. Their files are the caller's."""
        for partition in self._partitions.pop(name, ()):
            await partition.drop()

    async def close(self) -> None:
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

    # -- inside ----------------------------------------------------------------------------------------------

    async def _lead(self, old: TopicEntry, new: TopicEntry, there: list[Partition]) -> None:
        """What has changed of who leads the partitions that are there."""
        for index, before, state in zip(range(len(there)), old.states(), new.states(), strict=False):
            if state.leader_epoch == before.leader_epoch:
                continue
            partition = there[index]
            if state.leader != self._broker_id:
                await partition.close(self._executor)
                partition.leader_epoch = state.leader_epoch
            elif partition.closed:
                (there[index],) = await self._make(new, [index], open_all=False)
            else:
                partition.lead(state.leader_epoch)

    async def _make(self, entry: TopicEntry, indexes: Sequence[int], open_all: bool) -> list[Partition]:
        limit = asyncio.Semaphore(PARTITIONS_OPENED_TOGETHER)

        async def start(partition: Partition) -> None:
            async with limit:
                await self._start(partition)

        image, created = entry.topic, list[Partition]()
        for first in range(0, len(indexes), PARTITIONS_PER_TURN):
            some = []
            for index in indexes[first : first + PARTITIONS_PER_TURN]:
                state = entry.state(index)
                partition = Partition(
                    image,
                    index,
                    self._open_log,
                    leader_epoch=state.leader_epoch,
                    executor=self._executor,
                    changes=self.changes,
                    fence=self._fence,
                )
                if state.leader == self._broker_id:
                    self._find_hooks(partition, image)
                else:
                    await partition.close()
                some.append(partition)
            await asyncio.gather(
                *(
                    start(partition)
                    for partition in some
                    if not partition.closed
                    and partition.failure is None
                    and (open_all or partition.hooks is not None)
                )
            )
            created += some
            await asyncio.sleep(0)
        return created

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
