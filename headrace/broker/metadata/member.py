"""A broker as a member of the cluster: its registration, and its candidacy for controller.

Both are nodes of its session in the coordination store (`broker.metadata.membership`). They go with a lost session;
`stand` makes them again. A registration counts when the controller has seen it, which the image tells (`seen_in`).
Until then the broker is fenced (`broker.partitions.fence`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable

from msgspec.structs import replace

from headrace.broker.metadata import tree
from headrace.broker.metadata.image import BrokerImage, Changes, ClusterImage
from headrace.broker.metadata.membership import Claim, Registration, become_controller, register
from headrace.broker.metadata.nodes import OUTDATED
from headrace.broker.partitions.fence import Fence
from headrace.broker.runtime.ports import CoordinationStore, CreateNode, SetNode
from headrace.protocol.errors import ErrorCode, KafkaError


class Member:
    """A member of the cluster. `claim` is set while this broker is the controller."""

    def __init__(
        self, store: CoordinationStore, registration: Registration, fence: Fence | None = None
    ) -> None:
        self.claim: Claim | None = None
        self._store = store
        self._registration = registration
        self._fence = fence
        self._broker: BrokerImage | None = None
        self._session = 0

    async def register(self, wait_seconds: float) -> None:
        """Register, unless it is registered already. Raises KafkaError(DUPLICATE_BROKER_REGISTRATION)."""
        path = f"{tree.BROKER_IDS}/{self._registration.broker_id}"
        node = await self._store.get(path)
        if (
            node is not None
            and self._broker is not None
            and (node.owner, node.created) == (self._session, self._broker.epoch)
        ):
            return
        if self._fence is not None:
            self._fence.shut()
        self._broker = None
        self._broker, self._session = await register(
            self._store, self._registration, wait_seconds=wait_seconds
        )

    async def stand(self) -> int:
        """Return the controller; this broker becomes it if there is none. Return -1 if that is not settled."""
        store, own = self._store, self._registration.broker_id
        node = await store.get(tree.CONTROLLER)
        if node is None:
            self.claim = None  # it was a former session's; the answer about the next one may be lost
            self.claim = await become_controller(store, own, wait_seconds=0)
            if self.claim is not None:
                return own
            node = await store.get(tree.CONTROLLER)
        if node is None or node.owner != store.session:
            self.claim = None
        who = {"broker": -1} if node is None else json.loads(node.data)
        if node is not None and node.owner == store.session and self.claim is None:
            # An election whose answer was lost.
            epoch = await store.get(tree.CONTROLLER_EPOCH)
            if epoch is not None and int(epoch.data) == who["epoch"]:
                self.claim = Claim(who["epoch"], epoch.version)
        return int(who["broker"])

    @property
    def epoch(self) -> int:
        """The epoch of its registration, -1 without one."""
        return -1 if self._broker is None else self._broker.epoch

    async def leave(self, changes: Changes) -> None:
        """Announce that it is about to stop: other brokers then take over its leaderships where they can. The journal
        of changes, as it was read, gets another entry, which makes the controller read the registrations. Raises
        KafkaError, and BadVersionError if there were changes since.
        """
        self._registration = replace(self._registration, leaving=True)
        path = f"{tree.BROKER_IDS}/{self._registration.broker_id}"
        node = await self._store.get(path)
        if node is None or node.owner != self._store.session or node.created != self.epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, "this broker is not registered")
        told = SetNode(path, self._registration.encode(), node.version)
        await self._store.transact([told, tree.changes_operation(changes.followed_by(()))])

    async def confirm(self, version: int) -> None:
        """Note the version up to which this broker has followed the changes, for brokers that wait for it."""
        path, data = f"{tree.SEEN}/{self._registration.broker_id}", str(version).encode()
        node = await self._store.get(path)
        if node is not None and node.owner == self._store.session and node.data == data:
            return
        # a node of a former session goes by itself, and waits for it are short
        with contextlib.suppress(*OUTDATED):
            if node is None or node.owner == self._store.session:
                await self._store.transact(
                    [CreateNode(path, data, ephemeral=True)]
                    if node is None
                    else [SetNode(path, data, node.version)]
                )

    async def confirmed(self, brokers: Iterable[int], version: int) -> None:
        """Wait until these brokers have followed up to a change."""
        waited = {f"{tree.SEEN}/{each}" for each in brokers if each != self._registration.broker_id}
        if not waited:
            return
        changed = asyncio.Event()
        with contextlib.ExitStack() as watches:
            for path in waited:
                watches.callback(self._store.watch(path, changed.set))
            await asyncio.sleep(0)  # the watches are set before the nodes are read
            while True:
                paths = sorted(waited)
                nodes = zip(paths, await self._store.get_many(paths), strict=True)
                waited -= {path for path, node in nodes if node is not None and int(node.data) >= version}
                if not waited:
                    return
                await changed.wait()
                changed.clear()

    def seen_in(self, image: ClusterImage) -> bool:
        """Return whether this registration counts in the image; from then on it may lead."""
        broker = self._broker
        there = image.brokers.get(self._registration.broker_id)
        if broker is None or there is None or there.epoch != broker.epoch:
            return False
        # From here on this process has the earlier records in its logs, even if its session ends.
        self._registration = replace(self._registration, clean=True)
        if self._fence is not None:
            self._fence.open(self._session)
        return True
