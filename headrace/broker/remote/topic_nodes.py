"""The topics that have objects in remote storage, so that a deleted topic leaves none.

A node of the coordination store, `/remote-log/<topic id>`, is created before a topic's first object and removed after
its last one. The same holds if a topic's remote storage is disabled together with its data. Objects without such a node
belong to another cluster and are not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from concurrent.futures import Executor
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from headrace.broker.metadata.nodes import OwnedNodes
from headrace.broker.remote.bootstrap import NODES
from headrace.broker.remote.manifest import TopicNote
from headrace.broker.runtime.ports import CreateNode, NodeExistsError

if TYPE_CHECKING:
    from headrace.broker.cluster.metadata_follower import MetadataFollower
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.objects.files import RemoteFiles
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.runtime.ports import CoordinationStore

logger = logging.getLogger("headrace.remote")


class TopicNodes:
    """The nodes of topics, as far as this broker made them. `copier` waits for the object store."""

    def __init__(
        self,
        files: RemoteFiles,
        store: CoordinationStore,
        metadata: ClusterMetadata,
        following: MetadataFollower,
        copier: Executor,
    ) -> None:
        self._files = files
        self._store = store
        self._metadata = metadata
        self._following = following
        self._copier = copier
        self._noted: set[UUID] = set()
        """Topics that have a node in the store."""
        self._copied: dict[UUID, TopicImage] = {}
        """Topics of which a segment was copied since deleted topics were removed."""

    async def before_copy(self, topic: TopicImage) -> None:
        """Make the topic's node and note before one of its segments is copied. Raises OSError, StoreError."""
        self._copied[topic.topic_id] = topic
        if topic.topic_id in self._noted:
            return
        await self.make(topic)
        note = TopicNote(topic.name, str(topic.topic_id), topic.partition_count, dict(topic.config))
        await asyncio.get_running_loop().run_in_executor(self._copier, self._put_note, topic.topic_id, note)
        self._noted.add(topic.topic_id)

    async def make(self, topic: TopicImage) -> None:
        with contextlib.suppress(NodeExistsError):
            await self._store.transact(
                [CreateNode(f"{NODES}/{topic.topic_id}", json.dumps({"name": topic.name}).encode())]
            )

    def _put_note(self, topic_id: UUID, note: TopicNote) -> None:
        self._files.put(f"{topic_id}/topic.json", msgspec.json.encode(note))

    async def remove_deleted(self) -> None:
        """Remove the objects of deleted topics. In a cluster only the controller does it."""
        metadata = self._metadata
        if not metadata.is_loaded:
            return
        for topic_id, topic in list(self._copied.items()):
            if metadata.topic_by_id(topic_id) is None:  # it was deleted while a segment was being copied
                await self.make(topic)
        self._copied.clear()
        if not metadata.is_alone and not metadata.is_controller:
            return
        nodes = OwnedNodes(self._store, NODES)
        there = await self._store.children(NODES)
        await self._following.refreshed()  # a topic without a node cannot be among them, but a new one may be
        loop = asyncio.get_running_loop()
        for name in there:
            topic_id = UUID(name)
            if metadata.topic_by_id(topic_id) is not None:
                continue
            try:
                await loop.run_in_executor(self._copier, self._files.remove_folder, name)
            except OSError as error:
                logger.warning(
                    "cannot remove the remote storage of a deleted topic (%s) now: %s", name, error
                )
                continue
            await nodes.delete(name)
            self._noted.discard(topic_id)
