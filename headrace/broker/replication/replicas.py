"""The broker's partitions: created, opened, led and closed by the image.

`follow` brings the partitions of one topic to the state of a new image; nothing else creates or ends them. This broker
leads a partition if the image says so, under the image's leader epoch, which its log gets before the first write under
it. A partition with another leader is closed, and answers NOT_LEADER_OR_FOLLOWER. If it has a replica here, it has a
follower (`broker.replication.following`), whose log becomes the partition's when this broker begins to lead. Replicas
that are not this broker's any more are removed. A partition with one replica that gets more is led again, as one with
several. Topics whose extension cannot serve them, and logs that cannot be opened, are offline; others are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from headrace.broker.metadata.image import PartitionState, TopicEntry
from headrace.broker.metadata.topic_names import unknown_partition, unknown_topic
from headrace.broker.partitions.partition import Partition, PartitionChanges
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.replication.following import Follower
from headrace.broker.replication.leading import ReplicatedPartition, Replicating
from headrace.broker.runtime.disk_errors import is_passing
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.log.config import LogConfig
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.partitions.fence import Fence
    from headrace.broker.partitions.hooks import ReplicaHooks
    from headrace.broker.replication.topic_policy import TopicPolicy

logger = logging.getLogger("headrace.metadata")

PARTITIONS_OPENED_TOGETHER: Final = 4
PARTITIONS_PER_TURN: Final = 32
"""Maximum number of partitions that are created in one turn of the event loop: below a millisecond."""
PARTITIONS_CLOSED_TOGETHER: Final = 8


START_AGAIN_SECONDS: Final = 1.0
RESTING_PAUSE_SECONDS_MAX: Final = 0.05


class LocalReplicas:
    """The partitions of one broker, on the event loop. `open_log` opens a partition's log at its first use."""

    def __init__(
        self,
        broker_id: int,
        *,
        executor: Executor,
        open_log: Callable[[Partition], PartitionLog],
        log_config: Callable[[TopicImage], LogConfig],
        policies: Sequence[TopicPolicy] = (),
        fence: Fence | None = None,
        replication: Replicating | None = None,
        remove: Callable[[TopicImage, int], Awaitable[None]] | None = None,
        clean_end_offset: Callable[[Partition], int | None] = lambda _: None,
    ) -> None:
        """Make it, without partitions.

        - replication: None without other brokers
        - remove: removes the files of a closed replica
        - clean_end_offset: returns the end offset of a log that was closed cleanly, or None; called in a thread, may
          raise OSError
        """
        self._remove = remove
        self._clean_end_offset = clean_end_offset
        self.changes = PartitionChanges()
        self._replication = replication
        self._followers: dict[tuple[str, int], Follower] = {}
        self._broker_id = broker_id
        self._executor = executor
        self._open_log = open_log
        self._log_config = log_config
        self._policies = tuple(policies)
        self._fence = fence
        self._partitions: dict[str, list[Partition]] = {}
        self._later: set[asyncio.Task[None]] = set()
        """Starts of partitions that wait for room."""
        self._resting: deque[Partition] = deque()
        """Partitions that are served before the start of their hooks."""

    # -- finding ---------------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise unknown_topic(topic)
        if not 0 <= index < len(partitions):
            raise unknown_partition(topic, index, len(partitions))
        return partitions[index]

    def find_partition(self, topic: str, index: int) -> Partition | None:
        """Return a partition or None, for the hot paths."""
        partitions = self._partitions.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def partitions(self, topic: str) -> Sequence[Partition]:
        """Return the partitions of a topic in order; the same list while the topic exists."""
        return self._partitions.get(topic, ())

    def follower(self, topic: str, index: int) -> Follower | None:
        """Return this broker's replica of a partition that another broker leads."""
        return self._followers.get((topic, index))

    def followers(self) -> list[Follower]:
        return list(self._followers.values())

    def all_partitions(self) -> list[Partition]:
        return [partition for partitions in self._partitions.values() for partition in partitions]

    # -- following the image ---------------------------------------------------------------------------------

    async def follow(
        self, old: TopicEntry | None, new: TopicEntry, *, at_start: bool = False, recover: bool = False
    ) -> None:
        """Follow the change of a topic. Returns when new partitions exist and those with hooks have started.

        - at_start: hooks that can rest are not started (`start_resting`)
        - recover: every log is opened that was not closed cleanly
        """
        image = new.topic
        there = self._partitions.get(image.name, [])
        if old is not None:
            if old.topic != image:
                # Before the states: the meaning of an ISR depends on the configuration under which it was decided.
                config = self._log_config(image) if old.topic.config != image.config else None
                for partition in there:
                    partition.topic = image
                    if config is not None:
                        partition.reconfigure(config)
                        self._reconfigure_follower(partition, config)
            await self._lead(old, new, there)
        added = await self._make(
            new, range(len(there), image.partition_count), at_start=at_start, recover=recover
        )
        there.extend(added)
        self._partitions[image.name] = there

    async def settled(self, name: str) -> None:
        """Wait until a stricter durability of a topic is in effect."""
        for partition in self.partitions(name):
            await partition.settled()

    async def reconfigure_all(self, topics: Iterable[TopicImage]) -> None:
        """Apply changed defaults to open logs. Returns when a stricter durability is in effect on disk."""
        for image in topics:
            config = self._log_config(image)
            for partition in self._partitions[image.name]:
                partition.reconfigure(config)
                self._reconfigure_follower(partition, config)
        for partition in self.all_partitions():
            await partition.settled()

    async def drop(self, name: str) -> None:
        """Remove the partitions of a deleted topic. The caller removes the files."""
        for partition in self._partitions.pop(name, ()):
            follower = self._no_follower(partition)
            if follower is not None:
                await follower.drop()
            await partition.drop()

    def _start_later(self, partition: Partition) -> None:
        """Start a partition again after a while, because the disk had no room or the process had no files for it."""

        async def start() -> None:
            await asyncio.sleep(START_AGAIN_SECONDS)
            if not partition.closed and partition.failure is None:
                await self._start(partition)

        task = asyncio.get_running_loop().create_task(start(), name=f"start of {partition.name}")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def close(self) -> None:
        for task in self._later:
            task.cancel()
        limit = asyncio.Semaphore(PARTITIONS_CLOSED_TOGETHER)

        async def close(partition: Partition) -> None:
            async with limit:
                await partition.close(self._executor)

        async def close_follower(follower: Follower) -> None:
            async with limit:
                await follower.close(self._executor)

        partitions = self.all_partitions()
        for partition in partitions:
            if partition.hooks is not None:
                await partition.close()
        followers = self.followers()
        for follower in followers:
            self._no_follower(follower.partition, forget=False)
        await asyncio.gather(*(close_follower(follower) for follower in followers))
        # Several at a time, because they share the file system's commits.
        await asyncio.gather(*(close(partition) for partition in partitions if not partition.closed))

    # -- helpers ---------------------------------------------------------------------------------------------

    async def _lead(self, old: TopicEntry, new: TopicEntry, there: list[Partition]) -> None:
        """Carry out changes of replicas and leaders of existing partitions."""
        lost: list[Partition] = []
        gained: list[int] = []
        gone: list[int] = []
        for index, before, state in zip(range(len(there)), old.states(), new.states(), strict=False):
            if state == before:
                continue
            partition, leads = there[index], state.leader == self._broker_id
            if leads and partition.closed:
                gained.append(index)
            elif leads and self._is_replicated(state) and not isinstance(partition, ReplicatedPartition):
                lost.append(partition)
                gained.append(index)
            elif leads:
                self._go_on(partition, before, state)
            elif not partition.closed:
                lost.append(partition)
            if self._broker_id in before.replicas and self._broker_id not in state.replicas:
                gone.append(index)
        limit = asyncio.Semaphore(PARTITIONS_CLOSED_TOGETHER)

        async def close(partition: Partition) -> None:
            async with limit:
                await partition.close(self._executor)

        await asyncio.gather(*(close(partition) for partition in lost))
        for partition in await self._make(new, gained):
            there[partition.index] = partition
        for index, state in zip(range(len(there)), new.states(), strict=False):
            if state.leader != self._broker_id:
                there[index].leader_epoch = state.leader_epoch
                await self._follow_leader(there[index], state)
        for index in gone:
            logger.info("removed the replica of %s-%d", new.topic.name, index)
            for policy in self._policies:
                await policy.replica_removed(new.topic, index)
            if self._remove is not None:
                await self._remove(new.topic, index)

    def _is_replicated(self, state: PartitionState) -> bool:
        return self._replication is not None and len(state.replicas) > 1

    def _go_on(self, partition: Partition, before: PartitionState, state: PartitionState) -> None:
        """Continue to lead, under another state or epoch."""
        if state.leader_epoch == before.leader_epoch:
            if isinstance(partition, ReplicatedPartition):
                partition.follow(state)
            return
        if isinstance(partition, ReplicatedPartition):
            partition.renew(state)
        else:
            partition.lead(state.leader_epoch)

    async def _follow_leader(self, partition: Partition, state: PartitionState) -> None:
        """Set up the follower for the state, or remove it."""
        key = partition.topic.name, partition.index
        follower, replication = self._followers.get(key), self._replication
        if replication is None or self._broker_id not in state.replicas or len(state.replicas) == 1:
            if follower is not None:
                self._no_follower(partition)
                await follower.close(self._executor)
            return
        if follower is None:
            follower = self._followers[key] = Follower(partition, state, self._open_log)
            follower.hooks = self._find_replica_hooks(follower)
            if isinstance(partition, ReplicatedPartition) and partition.log_failure is not None:
                follower.is_damaged = partition.is_damaged
                follower.fail(partition.log_failure)
        elif follower.state == state:
            return
        follower.follow(state)
        replication.follows(follower)

    def _no_follower(self, partition: Partition, *, forget: bool = True) -> Follower | None:
        """Stop fetching for the follower; the caller ends it."""
        key = partition.topic.name, partition.index
        follower = self._followers.pop(key, None) if forget else self._followers.get(key)
        if follower is not None and self._replication is not None:
            self._replication.follows_no_longer(follower)
        return follower

    def _reconfigure_follower(self, partition: Partition, config: LogConfig) -> None:
        follower = self._followers.get((partition.topic.name, partition.index))
        if follower is not None and follower.is_open:
            follower.log.reconfigure(config)

    async def _make(
        self, entry: TopicEntry, indexes: Sequence[int], *, at_start: bool = False, recover: bool = False
    ) -> list[Partition]:
        limit = asyncio.Semaphore(PARTITIONS_OPENED_TOGETHER)

        async def start(partition: Partition) -> None:
            async with limit:
                await self._start(partition)

        image, created = entry.topic, list[Partition]()
        for first in range(0, len(indexes), PARTITIONS_PER_TURN):
            some = []
            for index in indexes[first : first + PARTITIONS_PER_TURN]:
                state = entry.state(index)
                if state.leader == self._broker_id:
                    partition = await self._leader(image, index, state)
                    self._find_hooks(partition, image)
                else:
                    partition = self._partition(image, index, state)
                    await partition.close()
                    await self._follow_leader(partition, state)
                some.append(partition)
            to_start = await self._to_start(some, at_start=at_start, recover=recover)
            await asyncio.gather(*(start(each) for each in to_start))
            created += some
            await asyncio.sleep(0)
        return created

    async def _to_start(
        self, partitions: Sequence[Partition], *, at_start: bool, recover: bool
    ) -> list[Partition]:
        """Return the new partitions that are started before they are served. Others rest, or are opened when they are
        used.
        """
        at_once, hooked, plain = list[Partition](), list[Partition](), list[Partition]()
        for each in partitions:
            if not each.closed and each.failure is None:
                is_replicated = isinstance(each, ReplicatedPartition)
                (at_once if is_replicated else plain if each.hooks is None else hooked).append(each)
        loop = asyncio.get_running_loop()
        if recover and plain:
            at_once += await loop.run_in_executor(self._executor, self._to_recover, plain)
        if not (at_start and hooked):
            return at_once + hooked
        ends = await loop.run_in_executor(self._executor, self._resting_ends, hooked)
        for each, end_offset in zip(hooked, ends, strict=True):
            if end_offset is None:
                at_once.append(each)
            else:
                each.rest_at(end_offset)
                self._resting.append(each)
        return at_once

    def _to_recover(self, partitions: Sequence[Partition]) -> list[Partition]:
        """Return the partitions whose logs were not closed cleanly. Any thread may call it."""
        found = []
        for partition in partitions:
            try:
                if self._clean_end_offset(partition) is not None:
                    continue
            except OSError:
                pass  # the open meets it again, and reports it
            found.append(partition)
        return found

    def _resting_ends(self, partitions: Sequence[Partition]) -> list[int | None]:
        """Return the log's end offset of each partition whose hooks can rest, None for others. Any thread may call
        it.
        """
        ends = list[int | None]()
        for partition in partitions:
            try:
                end_offset = self._clean_end_offset(partition)
            except OSError:
                end_offset = None
            hooks = partition.hooks
            can_rest = end_offset is not None and hooks is not None and hooks.can_rest(end_offset)
            ends.append(end_offset if can_rest else None)
        return ends

    async def start_resting(self) -> None:
        """Start the partitions that rest, one after the other. A pause after each one leaves half of the time to
        requests.
        """
        loop = asyncio.get_running_loop()
        while self._resting:
            partition = self._resting.popleft()
            if not partition.closed and partition.failure is None:
                began = loop.time()
                try:
                    partition.log  # noqa: B018 - opened here, where requests may open it too
                except KafkaError as error:
                    if is_passing(error):
                        self._resting.append(partition)
                        await asyncio.sleep(START_AGAIN_SECONDS)
                    continue
                await self._start_hooks(partition)
                await asyncio.sleep(min(loop.time() - began, RESTING_PAUSE_SECONDS_MAX))

    def _partition(self, image: TopicImage, index: int, state: PartitionState) -> Partition:
        return Partition(
            image,
            index,
            self._open_log,
            leader_epoch=state.leader_epoch,
            executor=self._executor,
            changes=self.changes,
            fence=self._fence,
        )

    async def _leader(self, image: TopicImage, index: int, state: PartitionState) -> Partition:
        """Create the partition to lead, with the follower's log if there is one. The only replica reopens its log."""
        replication = self._replication
        follower = self._followers.pop((image.name, index), None)
        if follower is not None and replication is not None:
            replication.follows_no_longer(follower)
        if replication is None or not self._is_replicated(state):
            if follower is not None:
                await follower.close(self._executor)
            return self._partition(image, index, state)
        log, high_watermark, remote = None, 0, None
        if follower is not None:
            log, high_watermark = await follower.release()
            remote = follower.partition.remote
        partition = ReplicatedPartition(
            image,
            index,
            self._open_log,
            state=state,
            leading=replication,
            log=log,
            high_watermark=high_watermark,
            executor=self._executor,
            changes=self.changes,
            fence=self._fence,
        )
        if log is not None and remote is not None:
            remote.reload()  # another leader has copied segments meanwhile
            partition.remote = remote
        return partition

    def _find_hooks(self, partition: Partition, image: TopicImage) -> None:
        """Find the hooks of a partition. A topic that its extension cannot serve is offline; others are served."""
        try:
            for policy in self._policies:
                partition.hooks = policy.partition_hooks(partition, image)
                if partition.hooks is not None:
                    return
        except Exception as error:
            logger.error("%r cannot be served", partition, exc_info=error)
            partition.fail(f"it cannot be served: {error}")

    def _find_replica_hooks(self, follower: Follower) -> ReplicaHooks | None:
        """Find the hooks of a replica. Without its extension it is still a log."""
        topic = follower.partition.topic
        try:
            found = (policy.replica_hooks(follower, topic) for policy in self._policies)
            return next((hooks for hooks in found if hooks is not None), None)
        except Exception as error:
            logger.error("the extension of %r cannot follow it", follower, exc_info=error)
            return None

    async def _start(self, partition: Partition) -> None:
        try:
            await partition.open(self._executor)
        except KafkaError as error:
            if is_passing(error):
                self._start_later(partition)
            return  # the partition has reported it; the rest of the broker continues
        await self._start_hooks(partition)

    async def _start_hooks(self, partition: Partition) -> None:
        if partition.hooks is not None:
            try:
                await partition.hooks.start()
            except Exception as error:
                logger.error("%r cannot start", partition, exc_info=error)
                partition.fail(f"it cannot start: {error}")
