"""Notice that another broker's process has ended, before its session expires.

Each broker keeps a connection to each other broker. If it ends, and a new one is refused because no process listens
there, the process has ended: its registration is removed from the store, and so is its controllership. A broker that is
only silent is left to its session. The removal is a compare-and-set of the registration that was seen. A process that
is alive after all registers again, as another incarnation; leader epochs and acknowledgements stay correct in both
cases.
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
"""Pause after a connection failed, or the store could not be reached."""


class Lookout:
    """The connections of one broker to the others; on its event loop."""

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
        """Follow changes of the brokers that are alive."""
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
                name = f"watching broker {broker_id}"
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
                conversation.close("the broker is not watched any more")

    async def _ended(self, broker_id: int, epoch: int) -> bool:
        """Remove the ended process from the store. True if nothing of it is left there."""
        store, path = self._store, f"{tree.BROKER_IDS}/{broker_id}"
        try:
            node = await store.get(path)
            if node is None or node.created != epoch:
                return True
            await remove(store, path, node)
        except STORE_LOST:
            return False
        known = self._metadata.image.brokers.get(broker_id)
        told = known is not None and known.epoch == epoch and known.leaving
        level = logging.INFO if told else logging.WARNING
        logger.log(level, "the process of broker %d has ended", broker_id)
        return True
