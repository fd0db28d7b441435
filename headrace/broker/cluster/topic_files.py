"""The files of topics in this broker's data directory: set aside when a topic or a replica is removed, and deleted
later.

Folders follow the store. A folder without a topic is set aside at the start; a topic without folders has empty
partitions. A crash between the deletion of a topic and the removal of its files leaves `/deleted/<topic id>` in the
store, and the next start finishes the work. A topic that is created again under the same name has another id, which its
folders carry (`partition.metadata`): files of the old topic are never taken for those of the new one.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from headrace.broker.metadata import tree
from headrace.broker.metadata.nodes import modify_all
from headrace.broker.runtime.ports import STORE_LOST, CoordinationStore

if TYPE_CHECKING:
    from headrace.broker.metadata.image import TopicEntry
    from headrace.broker.partitions.data_dir import DataDirectory
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.replication.topic_policy import TopicPolicy

logger = logging.getLogger("headrace.metadata")


class TopicFiles:
    """One object per broker, on the event loop; files are moved and removed in `executor`."""

    def __init__(
        self,
        store: CoordinationStore,
        directory: DataDirectory,
        executor: Executor,
        broker_id: int,
        policies: Sequence[TopicPolicy] = (),
    ) -> None:
        self._store = store
        self._directory = directory
        self._executor = executor
        self._broker_id = broker_id
        self._policies = tuple(policies)
        self._removals: set[asyncio.Task[None]] = set()
        self._replica_removals: dict[tuple[uuid.UUID, int], asyncio.Future[None]] = {}

    # -- at the start ------------------------------------------------------------------------------------------

    async def check_store(self) -> None:
        """Raises ConfigError if the store has never had a controller or a topic, but this broker has partitions: they
        would be set aside as strays.
        """
        if await self._store.get(tree.CONTROLLER_EPOCH) or await self._store.children(tree.TOPICS):
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.check_no_partitions)

    async def set_aside_strays(self, entries: Iterable[TopicEntry]) -> None:
        """Set aside every folder of a partition that has no replica here."""
        loop = asyncio.get_running_loop()
        held = [
            (entry.topic.name, index)
            for entry in entries
            for index, state in enumerate(entry.states())
            if self._broker_id in state.replicas
        ]
        await loop.run_in_executor(self._executor, self._directory.set_aside_strays, held)

    async def finish_deletions(self) -> None:
        """Remove the files of topics that were deleted while this broker was away or before it crashed."""
        for topic_id in await self._store.children(tree.DELETED):
            node = await self._store.get(f"{tree.DELETED}/{topic_id}")
            if node is None:
                continue
            image, holders = tree.decode_deletion(node.data)
            if holders is not None and self._broker_id not in holders:
                continue
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._directory.set_aside, image)
            try:
                for index in range(image.partition_count):
                    for policy in self._policies:
                        await policy.replica_removed(image, index, with_topic=True)
            except Exception as error:
                logger.error(
                    "files of the deleted topic %s are left for the next start", image.name, exc_info=error
                )
                continue
            await self._remove_files([image])

    # -- a topic -----------------------------------------------------------------------------------------------

    async def remove_topics(self, topics: Sequence[TopicImage]) -> None:
        """Set aside the files of deleted topics, whose partitions are closed. They are removed in the background."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.set_aside, *topics)
        removal = loop.create_task(self._remove_files(topics), name=f"remove {len(topics)} topics")
        self._removals.add(removal)
        removal.add_done_callback(self._removed)

    def _removed(self, removal: asyncio.Task[None]) -> None:
        self._removals.discard(removal)
        if not removal.cancelled() and (error := removal.exception()) is not None:
            logger.error("files of deleted topics are left for the next start", exc_info=error)

    async def _remove_files(self, topics: Sequence[TopicImage]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._directory.remove_set_aside, *topics)
        try:
            await self.release_deletions([str(topic.topic_id) for topic in topics], self._broker_id)
        except STORE_LOST as error:
            names = ", ".join(topic.name for topic in topics)
            logger.warning(
                "deleted the files of %s; the store will be updated at the next start: %s", names, error
            )

    async def release_deletions(self, topic_ids: Sequence[str], broker_id: int) -> None:
        """Remove a broker from the holders of files of deleted topics. The last one removes a topic's node; in the
        layout without holders, any broker does.
        """
        paths = [f"{tree.DELETED}/{topic_id}" for topic_id in topic_ids]
        await modify_all(self._store, paths, lambda data: tree.deletion_without(data, broker_id))

    # -- a replica ---------------------------------------------------------------------------------------------

    async def remove_replica(self, topic: TopicImage, index: int) -> None:
        """Set aside the files of a closed replica, which was moved to other brokers. They are removed in the
        background.
        """
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
            logger.error("files of a moved replica are left for the next start: %s", error)

    async def set_aside_damaged(self, topic: TopicImage, index: int) -> None:
        """Keep the files of a damaged replica beside the partition's folder, which is free for a copy."""
        loop = asyncio.get_running_loop()
        kept = await loop.run_in_executor(self._executor, self._directory.set_aside_damaged, topic, index)
        logger.warning(
            "copying %s-%d from its leader; its damaged files are kept in %s", topic.name, index, kept
        )

    # -- stop --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for the removals that are under way."""
        if self._removals:
            await asyncio.wait(set(self._removals))
        if self._replica_removals:
            await asyncio.wait(list(self._replica_removals.values()))
