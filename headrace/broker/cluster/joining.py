"""A starting broker joins its cluster: it registers, and reads the image in which the controller has seen it.

The controller can be this broker itself. Nothing is served meanwhile: the image is the caller's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from headrace.broker.metadata import tree
from headrace.broker.metadata.attendance import controlled, to_attend
from headrace.broker.metadata.controller import step
from headrace.broker.metadata.events import AdoptStates, Event
from headrace.broker.metadata.membership import WAIT_SECONDS, read_registrations
from headrace.broker.metadata.nodes import OUTDATED
from headrace.broker.metadata.reading import read_image, read_on
from headrace.broker.runtime.ports import DeleteNode, StoreOutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.metadata.image import ClusterImage
    from headrace.broker.metadata.member import Member
    from headrace.broker.runtime.ports import CoordinationStore


def watch_cluster(
    store: CoordinationStore,
    watches: contextlib.ExitStack,
    changed: Callable[[], None],
    members_changed: Callable[[], None],
) -> None:
    """Call `changed` after changes of the metadata, `members_changed` after brokers or the controller have changed."""
    watches.callback(store.watch(tree.CHANGES, changed))
    for path in (tree.CONTROLLER, tree.BROKER_IDS):
        watches.callback(store.watch(path, members_changed))


class Joining:
    """One start of one broker. `min_isr`: `min.insync.replicas` of topics that do not set it."""

    def __init__(self, store: CoordinationStore, member: Member, broker_id: int, min_isr: int) -> None:
        self._store = store
        self._member = member
        self._broker_id = broker_id
        self._min_isr = min_isr

    async def join(self) -> ClusterImage:
        """Return the image in which this broker is alive. Raises KafkaError if another broker is registered under its
        id.
        """
        woken = asyncio.Event()
        with contextlib.ExitStack() as watches:
            watch_cluster(self._store, watches, woken.set, woken.set)
            await self._member.register(WAIT_SECONDS)
            image = await read_image(self._store)
            while True:
                woken.clear()
                await self._member.register(WAIT_SECONDS)
                controller_id = await self._member.stand()
                image = controlled(image, self._member.claim, controller_id)
                image, _ = await read_on(self._store, image)
                try:
                    image = await self._adopt(image)
                    image = await self._attended(image)
                except (*OUTDATED, StoreOutcomeUnknownError):
                    continue
                if self._member.seen_in(image):
                    return image
                await woken.wait()

    async def _adopt(self, image: ClusterImage) -> ClusterImage:
        """Give topics of the layout without states the states that the layout implies."""
        node = await self._store.get(tree.LEADER_EPOCH)
        if node is None or image.controller_epoch < 0:
            return image
        image = await self._written(image, AdoptStates(self._broker_id, int(node.data)))
        await self._store.transact([DeleteNode(tree.LEADER_EPOCH, node.version)])
        return image

    async def _attended(self, image: ClusterImage) -> ClusterImage:
        """Return the image after its controller has handled every registration."""
        if image.controller_epoch < 0:
            return image
        registered = await read_registrations(self._store)
        while (event := to_attend(image, registered, self._min_isr)) is not None:
            image = await self._written(image, event)
        return image

    async def _written(self, image: ClusterImage, event: Event) -> ClusterImage:
        for transaction in step(image, event):
            await self._store.transact(transaction.operations)
            image = transaction.applied_to(image)
        return image
