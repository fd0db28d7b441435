"""Noticing that another broker's process has ended, before its session does.

Each broker keeps a connection to each of the others. One that ends, to a broker whom nobody can connect to any more
because nothing listens there, was that of a process that has ended: its registration is taken out of the store, and if
it was the controller so is that. Silence says nothing: that is left to the session. What is taken out is what was seen,
compared and set; should the process be alive all the same, it registers anew (and is another incarnation), and no
leader epoch, nor what it acknowledges, depends on who was right.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.metadata import tree
from headrace.broker.metadata.membership import remove
from headrace.broker.net.peers import PeerLostError, Peers
from headrace.broker.runtime.ports import STORE_LOST, CoordinationStore

if TYPE_CHECKING:
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.runtime.background import BackgroundTasks

logger = logging.getLogger("headrace.replication")

AGAIN_SECONDS: Final = 1.0
"""After a connection that could not be made, or the store could not be asked."""


class Lookout:
    """Of one broker; on its event loop."""

    def __init__(
        self,
        broker_id: int,
        metadata: ClusterMetadata,
        peers: Peers,
        store: CoordinationStore,
        background: BackgroundTasks,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._store = store
        self._background = background
        self._watched: dict[int, tuple[int, asyncio.Task[None]]] = {}

    def start(self) -> None:
        self._metadata.broker_listeners.append(self._look)
        self._look()

    def _look(self) -> None:
        """Who is alive has changed."""
        alive = {
            broker.broker_id: broker.epoch
            for broker in self._metadata.image.brokers.values()
            if broker.broker_id != self._broker_id
        }
        for broker_id, (epoch, task) in list(self._watched.items()):
            if alive.get(broker_id) != epoch:
                del self._watched[broker_id]
                task.cancel()
        for broker_id, epoch in alive.items():
            if broker_id not in self._watched:
                work = self._watch(broker_id, epoch)
                name = f"whether broker {broker_id} is there"
                self._watched[broker_id] = epoch, self._background.start(work, name)

    async def _watch(self, broker_id: int, epoch: int) -> None:
        was_there = False
        while True:
            try:
                conversation = await self._peers.connect(broker_id)
            except PeerLostError as error:
                if was_there and error.refused:
                    self._metadata.note_ended(broker_id, epoch)
                    if await self._ended(broker_id, epoch):
                        return
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            was_there = True
            self._metadata.note_there(broker_id)
            try:
                await conversation.ended()
            finally:
                conversation.close("nobody looks out for it any more")

    async def _ended(self, broker_id: int, epoch: int) -> bool:
        """Whether nothing is left in the store of the process that has ended."""
        store, path = self._store, f"{tree.BROKER_IDS}/{broker_id}"
        try:
            node = await store.get(path)
            if node is None or node.created != epoch:
                return True
            await remove(store, path, node)
        except STORE_LOST:
            return False
        logger.warning("the process of broker %d has ended", broker_id)
        return True
