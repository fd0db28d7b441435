"""The brokers of the cluster: list them, forget one, leave the cluster, and set their metadata level."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.metadata import tree
from headrace.broker.metadata.events import Known
from headrace.broker.metadata.features import METADATA_VERSION, encode_levels
from headrace.broker.metadata.image import BROKERS, BrokerImage, ClusterImage
from headrace.broker.metadata.nodes import OUTDATED, modify
from headrace.broker.metadata.placement import absent_of
from headrace.broker.runtime.ports import CoordinationStore, CreateNode, SetNode
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.cluster.metadata_follower import MetadataFollower
    from headrace.broker.cluster.topic_files import TopicFiles
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.member import Member

logger = logging.getLogger("headrace.metadata")


class ClusterBrokers:
    """One object per broker, on the event loop."""

    def __init__(
        self,
        store: CoordinationStore,
        metadata: ClusterMetadata,
        member: Member,
        following: MetadataFollower,
        files: TopicFiles,
        broker_id: int,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._member = member
        self._following = following
        self._files = files
        self._broker_id = broker_id

    # -- known brokers -----------------------------------------------------------------------------------------

    async def known_brokers(self) -> list[BrokerImage]:
        """Return all registered or remembered brokers, alive or not, by their ids."""
        names = sorted(await self._store.children(tree.KNOWN_BROKERS), key=int)
        nodes = await self._store.get_many([f"{tree.KNOWN_BROKERS}/{name}" for name in names])
        known = {
            int(name): tree.decode_known(int(name), node)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }
        return [found for _, found in sorted({**known, **self._metadata.image.brokers}.items())]

    async def known(self, factors: Iterable[int] = (), chosen: Iterable[int] = ()) -> Known:
        """Return the brokers and limits for a placement of replicas.

        `factors`: the wanted numbers of replicas. `chosen`: brokers that a client has chosen. Absent brokers are read
        only if those that are alive do not suffice.
        """
        min_isr, image = self._metadata.topic_configs.min_isr, self._metadata.image
        alive = {broker.broker_id for broker in image.brokers.values() if not broker.leaving}
        if max(factors, default=0) <= len(alive) and alive.issuperset(chosen):
            return Known((), min_isr)
        return Known(absent_of(self._metadata.image, await self.known_brokers()), min_isr)

    async def forget_broker(self, broker_id: int) -> None:
        """Forget a broker that will not return: deleted topics do not wait for it to remove their files any more.

        It stays a replica until its partitions are reassigned. Raises KafkaError(BROKER_ID_NOT_REGISTERED,
        INVALID_REQUEST).
        """
        async with self._following.change:
            await self._following.catch_up()
        path = f"{tree.KNOWN_BROKERS}/{broker_id}"
        if broker_id in self._metadata.image.brokers or await self._store.get(
            f"{tree.BROKER_IDS}/{broker_id}"
        ):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"broker {broker_id} is alive and would register again at once: stop it first",
            )
        if await self._store.get(path) is None:
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered."
            )
        for topic_id in await self._store.children(tree.DELETED):
            await self._files.release_deletions([topic_id], broker_id)
        await modify(self._store, path, lambda _: None)
        logger.info("unregistered broker %d", broker_id)

    # -- this broker leaves ------------------------------------------------------------------------------------

    async def leave(self, seconds: float) -> None:
        """Move leadership from this broker to others, where that is possible, within at most `seconds`."""
        metadata = self._metadata
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(seconds):
                await self._announce_leaving()
                while not self._has_left():
                    self._following.installed.clear()
                    await self._following.installed.wait()
                await self._member.confirmed(metadata.image.brokers, metadata.image.changes.version)

    async def _announce_leaving(self) -> None:
        while True:
            async with self._following.change:
                await self._following.catch_up()
                with contextlib.suppress(*OUTDATED):
                    return await self._member.leave(self._metadata.image.changes)

    def _has_left(self) -> bool:
        """Return whether other brokers lead every partition that they can lead, by the image."""
        own = self._metadata.image.brokers.get(self._broker_id)
        return own is None or own.leaving

    # -- the level of the metadata -----------------------------------------------------------------------------

    async def set_level(self, level: int, *, downgrade: bool, validate_only: bool = False) -> None:
        """Finalize a metadata level that every live broker supports. A broker that does not support it cannot join any
        more.

        Raises KafkaError(INVALID_UPDATE_VERSION).
        """
        await self._following.to_the_end(self._set_level(level, downgrade, validate_only))

    async def _set_level(self, level: int, downgrade: bool, validate_only: bool) -> None:
        async with self._following.change:
            while True:
                await self._following.catch_up()
                image = self._metadata.image
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


def _check_level(image: ClusterImage, level: int, *, downgrade: bool) -> None:
    """Raises KafkaError(INVALID_UPDATE_VERSION) if the level cannot be set."""
    problem = None
    if level < image.level and not downgrade:
        problem = "it is lower than the present one: request a downgrade"
    for broker in image.brokers.values():
        lowest, highest = broker.levels
        if problem is None and not lowest <= level <= highest:
            problem = f"broker {broker.broker_id} supports {lowest} to {highest}"
    if problem is not None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {METADATA_VERSION}, which is at {image.level}: {problem}.",
        )
