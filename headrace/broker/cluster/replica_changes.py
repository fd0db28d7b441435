"""Changes of replicas and leaders: reassignments, elections, in-sync replicas, lost replicas."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.metadata.controller import reassigned
from headrace.broker.metadata.events import (
    ChangeIsr,
    ChangeIsrs,
    ElectLeaders,
    Event,
    Known,
    Reassign,
    ReplicasLost,
)
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.cluster.brokers import ClusterBrokers
    from headrace.broker.cluster.metadata_follower import MetadataFollower
    from headrace.broker.cluster.topic_files import TopicFiles
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.runtime.slices import Slices

PARTITIONS_PER_CHANGE: Final = 500
"""Maximum number of partitions of one request that one transaction moves."""


class Reassignment(NamedTuple):
    """A partition and its new replicas; None cancels the reassignment in progress."""

    topic: str
    partition: int
    replicas: Sequence[int] | None


class ReplicaChanges:
    """One object per broker, on the event loop."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        following: MetadataFollower,
        brokers: ClusterBrokers,
        files: TopicFiles,
        broker_id: int,
        slices: Slices,
    ) -> None:
        self._metadata = metadata
        self._following = following
        self._brokers = brokers
        self._files = files
        self._broker_id = broker_id
        self._slices = slices

    # -- requests of clients -----------------------------------------------------------------------------------

    async def elect_leaders(self, partitions: Sequence[tuple[str, int]] | None, *, unclean: bool) -> None:
        """Elect the preferred leaders of these partitions (None: of all). `unclean`: elect any live replica if no
        eligible one can lead.
        """
        event = ElectLeaders(None if partitions is None else tuple(partitions), unclean)
        await self._following.to_the_end(self._carry_out(event))

    async def reassign(
        self, wanted: Sequence[Reassignment], *, factor_may_change: bool = True
    ) -> list[KafkaError | None]:
        """Begin or cancel reassignments; return the error of each, None if it was accepted.

        A reassignment is complete later (`PartitionState`).
        """
        return await self._following.to_the_end(self._reassign(wanted, factor_may_change))

    async def _reassign(
        self, wanted: Sequence[Reassignment], factor_may_change: bool
    ) -> list[KafkaError | None]:
        refused: list[KafkaError | None] = []
        async with self._following.change:
            for first in range(0, len(wanted), PARTITIONS_PER_CHANGE):
                some = wanted[first : first + PARTITIONS_PER_CHANGE]
                refused += await self._reassign_some(some, factor_may_change)
        return refused

    async def _reassign_some(
        self, wanted: Sequence[Reassignment], factor_may_change: bool
    ) -> list[KafkaError | None]:
        refused: list[KafkaError | None] = []

        async def decide() -> Event:
            refused.clear()
            pace, targets = self._slices.pace(), []
            known = await self._brokers.known(
                chosen=chain.from_iterable(each.replicas or () for each in wanted)
            )
            for each in wanted:
                await pace.rest()
                refused.append(self._why_not(each, factor_may_change, known))
                if refused[-1] is None:
                    targets.append(
                        (each.topic, each.partition, None if each.replicas is None else tuple(each.replicas))
                    )
            return Reassign(tuple(targets), factor_may_change, known)

        await self._following.carry_out(decide)
        return refused

    def _why_not(self, wanted: Reassignment, factor_may_change: bool, known: Known) -> KafkaError | None:
        try:
            reassigned(
                self._metadata.image,
                wanted.topic,
                wanted.partition,
                wanted.replicas,
                factor_may_change=factor_may_change,
                known=known,
            )
        except KafkaError as error:
            return error
        return None

    # -- requests of this broker's partitions ------------------------------------------------------------------

    async def change_isrs(self, proposals: Sequence[ChangeIsr]) -> None:
        """Carry out proposals by leaders on this broker. Outdated ones are left out. Raises KafkaError when the outcome
        is unknown.
        """
        await self._carry_out(ChangeIsrs(tuple(proposals)))

    async def lose_replicas(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Give up this broker's replicas of these partitions (topic, index), whose logs are not reliable any more.
        Raises KafkaError when the outcome is unknown.
        """
        await self._carry_out(ReplicasLost(self._broker_id, tuple(partitions)))

    async def set_aside_replica(self, topic: TopicImage, index: int) -> bool:
        """Set aside the files of a damaged replica, which stay for inspection.

        Return False, and do nothing, while this broker is in the ISR or eligible: no other broker is known to have
        every record.
        """
        state, own = self._metadata.state(topic.name, index), self._broker_id
        if state is None or own in state.isr or own in state.elr:
            return False
        await self._files.set_aside_damaged(topic, index)
        return True

    async def _carry_out(self, event: Event) -> None:
        async def decide() -> Event:
            return event

        async with self._following.change:
            await self._following.carry_out(decide)
