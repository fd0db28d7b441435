"""Follow the coordination store, and carry out changes in it.

The store is authoritative (`broker.metadata.tree`): a topic exists when its node does. A change is decided on the image
of the store (`broker.metadata.controller`, pure) and written by compare-and-set. Then this broker's partitions follow
it (`broker.replication.replicas`), and then the metadata that requests read. There is one change at a time (`change`).
If another writer was faster, the change is decided again on the newer image.

Every broker decides the requests of its own clients. All writers compare with the journal of changes, which orders the
changes of all brokers. So no request is forwarded, and no broker has to trust another one about a client. Only the
controller handles brokers that come and go. Every broker follows changes by one watch (`run`). It is fenced while it
has no registration that the controller has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.broker.cluster.joining import Joining, watch_cluster
from headrace.broker.metadata import tree
from headrace.broker.metadata.attendance import controlled, to_attend
from headrace.broker.metadata.change_counts import ChangeCounts
from headrace.broker.metadata.controller import Transaction, step
from headrace.broker.metadata.events import Event
from headrace.broker.metadata.features import check_level, decode_level
from headrace.broker.metadata.membership import read_registrations
from headrace.broker.metadata.nodes import OUTDATED
from headrace.broker.metadata.reading import read_on
from headrace.broker.runtime.ports import (
    STORE_LOST,
    CoordinationStore,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.cluster.topic_files import TopicFiles
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.image import ClusterImage, TopicEntry
    from headrace.broker.metadata.member import Member
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.replication.replicas import LocalReplicas

logger = logging.getLogger("headrace.metadata")

Result = TypeVar("Result")

KNOWN_SECONDS: Final = 5.0
"""Longest time that a change waits for other brokers to follow it; one of them may have died just now."""
RETRY_SECONDS: Final = 0.5
"""Pause after the store could not be reached, or while another broker has this one's id."""


class MetadataFollower:
    """One object per broker, on the event loop."""

    def __init__(
        self,
        store: CoordinationStore,
        metadata: ClusterMetadata,
        member: Member,
        replicas: LocalReplicas,
        files: TopicFiles,
        broker_id: int,
    ) -> None:
        self.change = asyncio.Lock()
        """Held by the one change that is decided, written and followed."""
        self.installed = asyncio.Event()
        """Set with every image that is served; each waiting task clears it."""
        self.counts = ChangeCounts()
        self._store = store
        self._metadata = metadata
        self._member = member
        self._replicas = replicas
        self._files = files
        self._broker_id = broker_id
        self._woken = asyncio.Event()
        self._must_stand = True
        self._changes: set[asyncio.Task[Any]] = set()

    # -- start and stop ------------------------------------------------------------------------------------

    async def load(
        self,
        *,
        recover: bool,
        prepare: Callable[[Sequence[TopicEntry]], Awaitable[None]] | None = None,
    ) -> None:
        """Register this broker and serve the image, once the controller has seen the registration.

        `recover`: recover every log now that was not closed cleanly (after a crash). `prepare` is given all topics
        before any log is opened.
        Raises ConfigError when the store's content is damaged, KafkaError when another broker is registered under
        this one's id.
        """
        levels = await self._store.get(tree.FEATURES)
        if levels is not None:
            check_level(decode_level(levels.data), self._metadata.levels)
        await self._files.check_store()
        await self._files.finish_deletions()
        min_isr = self._metadata.topic_configs.min_isr
        image = await Joining(self._store, self._member, self._broker_id, min_isr).join()
        # A registered broker is asked before the level is raised; this is the level until then.
        check_level(image.level, self._metadata.levels)
        entries = sorted(image.topics.values(), key=lambda entry: entry.topic.name)
        await self._files.set_aside_strays(entries)
        if prepare is not None:
            await prepare(entries)
        # In order of names: an extension's topic may depend on one whose name is a prefix of its own.
        for entry in entries:
            await self._replicas.follow(None, entry, at_start=True, recover=recover)
            self._metadata.put(entry)
        self.install(image)
        self._metadata.is_loaded = True

    async def close(self) -> None:
        """Close every partition. The metadata stays readable; nothing can be written any more."""
        await asyncio.gather(*self._changes, return_exceptions=True)
        async with self.change:
            await self._replicas.close()
        await self._files.close()

    # -- following changes -----------------------------------------------------------------------------------

    async def refreshed(self) -> None:
        """Follow every earlier change by any broker.

        A client that learned of a change from one broker may ask another one about it. Costs one request to the store;
        nothing if the broker is alone.
        """
        if not self._metadata.is_alone:
            async with self.change:
                await self.catch_up()

    async def settled(self) -> None:
        """Wait for changes in progress, such as the creation of a topic."""
        async with self.change:
            pass

    async def defaults_changed(
        self, broker_defaults: Mapping[str, str], producer_id_expiration_ms: int
    ) -> None:
        """Give topics other defaults. Open logs follow. Returns when a stricter durability is in effect for all their
        records.
        """
        metadata = self._metadata
        metadata.topic_configs.defaults_changed(broker_defaults, producer_id_expiration_ms)
        self.install(metadata.image.with_topics({}))
        await self._replicas.reconfigure_all(metadata.topics())

    # -- carrying out ----------------------------------------------------------------------------------------

    async def to_the_end(self, change: Coroutine[Any, Any, Result]) -> Result:
        """Complete a change even if its caller is cancelled: the image must not differ from the store."""
        task = asyncio.get_running_loop().create_task(self._known_to_all(change))
        self._changes.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_note_failed_change)
            raise

    async def _known_to_all(self, change: Coroutine[Any, Any, Result]) -> Result:
        """Wait until every broker that is alive has followed the change, at most KNOWN_SECONDS."""
        before = self._metadata.image.changes.version
        result = await change
        after = self._metadata.image.changes.version
        if after != before and not self._metadata.is_alone:
            with contextlib.suppress(TimeoutError, *STORE_LOST):
                async with asyncio.timeout(KNOWN_SECONDS):
                    await self._member.confirmed(self._metadata.image.brokers, after)
        return result

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: a caller that was cancelled does not ask for it

    async def carry_out(self, decide: Callable[[], Awaitable[Event | None]]) -> None:
        """Write the event that `decide` returns and follow it. After another writer's change, read it and decide again.

        The caller holds `change`. Raises KafkaError if the change is refused, NOT_CONTROLLER if this broker is not the
        controller any more.
        """
        while (event := await decide()) is not None:
            try:
                for transaction in step(self._metadata.image, event):
                    if not await self._write(transaction):
                        break
                    self.counts.note(self._metadata.image, transaction.topics)
                    await self._follow(transaction.applied_to(self._metadata.image), transaction.topics)
                else:
                    return
            except OUTDATED:
                pass
            if not await self.catch_up() and not await self.catch_up(everything=True):
                await self._check_claim()

    async def _check_claim(self) -> None:
        """Raises KafkaError if another broker has become the controller."""
        node = await self._store.get(tree.CONTROLLER_EPOCH)
        image = self._metadata.image
        if self._metadata.is_controller and (node is None or node.version != image.controller_version):
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                "another broker is the controller" + ("" if node is None else f", epoch {int(node.data)}"),
            )

    async def _write(self, transaction: Transaction) -> bool:
        """Return False if the store was lost meanwhile without the transaction. Raises the store's refusal."""
        try:
            await self._store.transact(transaction.operations)
        except StoreOutcomeUnknownError as unknown:
            try:
                image, _ = await read_on(self._store, self._metadata.image)
            except StoreUnavailableError:
                raise unknown from None
            if transaction.brokers is not None and transaction.brokers != image.brokers:
                return False
            there = image.topics
            return all(there.get(name) == entry for name, entry in transaction.topics.items())
        return True

    async def catch_up(self, *, everything: bool = False) -> bool:
        """Follow the changes of other brokers; return False if there is nothing new. The caller holds `change`."""
        before = self._metadata.image
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

    # -- following -------------------------------------------------------------------------------------------

    async def _follow(self, image: ClusterImage, changes: Mapping[str, TopicEntry | None]) -> None:
        """Bring this broker's partitions to the state in `image`, and then serve it."""
        gone = {}
        for name, entry in changes.items():
            before = self._metadata.image.topics.get(name)
            if before is not None and (entry is None or entry.topic.topic_id != before.topic.topic_id):
                gone[name] = before.topic
        if gone:
            await self._remove(list(gone.values()))
        for name, entry in changes.items():
            if entry is not None:
                before = None if name in gone else self._metadata.image.topics.get(name)
                await self._replicas.follow(before, entry)
                self._metadata.put(entry)
                for listener in self._metadata.topic_listeners:
                    listener(before, entry)
        self.install(image)

    async def _remove(self, topics: Sequence[TopicImage]) -> None:
        for topic in topics:
            self._metadata.remove(topic)
            await self._replicas.drop(topic.name)
            for listener in self._metadata.deletion_listeners:
                listener(topic)
        await self._files.remove_topics(topics)
        for topic in topics:
            logger.info("deleted topic %s, id %s", topic.name, topic.topic_id)

    def install(self, image: ClusterImage) -> None:
        """Serve an image, and wake tasks that wait for one."""
        self.installed.set()
        self._metadata.install(image)

    # -- following other brokers -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow changes by other brokers, and stay registered, until cancelled. Returns at once if the broker is
        alone.
        """
        if self._metadata.is_alone:
            return
        with contextlib.ExitStack() as watches:
            watch_cluster(self._store, watches, self._woken.set, self._members_changed)
            self._members_changed()
            while True:
                await self._woken.wait()
                self._woken.clear()
                try:
                    async with self.change:
                        await self._turn()
                except (StoreUnavailableError, StoreOutcomeUnknownError, KafkaError) as error:
                    logger.warning("cannot follow the cluster now; trying again: %s", error)
                    self._must_stand = True
                    await asyncio.sleep(RETRY_SECONDS)
                    self._woken.set()

    def _members_changed(self) -> None:
        self._must_stand = True
        self._woken.set()

    async def _turn(self) -> None:
        metadata = self._metadata
        if self._must_stand:
            self._must_stand = False
            await self._member.register(0)
            controller_id = await self._member.stand()
            image = controlled(metadata.image, self._member.claim, controller_id)
            if image is not metadata.image:
                if image.controller_id != metadata.image.controller_id:
                    logger.info("broker %d is the controller", image.controller_id)
                self.install(image)
        await self.catch_up()
        if metadata.is_controller:
            await self._attend()
        self._member.seen_in(metadata.image)
        await self._member.confirm(metadata.image.changes.version)

    async def _attend(self) -> None:
        """Handle brokers that came, went or are about to stop, if this broker is the controller."""
        registered = await read_registrations(self._store)

        async def decide() -> Event | None:
            return to_attend(self._metadata.image, registered, self._metadata.topic_configs.min_isr)

        while await decide() is not None:
            await self.carry_out(decide)


def _note_failed_change(change: asyncio.Task[Any]) -> None:
    """Log the fault of a change whose caller was cancelled. Refusals are the caller's."""
    error = None if change.cancelled() else change.exception()
    if error is not None and not isinstance(error, KafkaError):
        logger.error("a change of the metadata failed after its caller was gone", exc_info=error)
