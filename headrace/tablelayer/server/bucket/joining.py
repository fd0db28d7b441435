"""Followers that are about to join the ISR of a table's bucket: first they need the rows that are staged for it.

A replica in sync may become the only leader, so it must have every acknowledged chunk. Before the leader proposes a
replica for the ISR, it sends the chunks that were staged while the replica was away; chunks that are staged from then
on go to it too. No write waits for a replica that is not in sync: a replica that missed a chunk gets all chunks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from headrace.broker.replication.leading import ReplicatedPartition

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.tablelayer.server.services import Services

logger = logging.getLogger("headrace.tables")

_RETRY_SECONDS: Final = 1.0


class _Joiner:
    """A broker under one broker epoch."""

    __slots__ = ("broker_epoch", "is_ready")

    def __init__(self, broker_epoch: int, *, is_ready: bool) -> None:
        self.broker_epoch = broker_epoch
        self.is_ready = is_ready


class Joiners:
    """The joining followers of a bucket, while this broker leads it. Runs on the event loop."""

    __slots__ = ("_brokers", "_partition", "_services")

    def __init__(self, services: Services, partition: Partition) -> None:
        self._services = services
        self._partition = partition
        self._brokers: dict[int, _Joiner] = {}

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        """Return whether a follower has the staged rows. If not, they are sent to it, and the partition checks again
        then.
        """
        joiner = self._brokers.get(broker)
        if joiner is None or joiner.broker_epoch != broker_epoch:
            services, partition = self._services, self._partition
            is_ready = not services.has_staged(partition.topic)
            joiner = self._brokers[broker] = _Joiner(broker_epoch, is_ready=is_ready)
            if not is_ready:
                name = f"staged rows of {partition.name} for broker {broker}"
                services.context.background.start(self._give(broker, joiner), name)
        return joiner.is_ready

    def besides(self, in_sync: Collection[int]) -> list[int]:
        """Return the brokers outside the ISR that have the earlier chunks or are being sent them."""
        for broker in in_sync:
            self._brokers.pop(broker, None)
        return list(self._brokers)

    def missed(self, broker: int) -> None:
        """Note that a chunk did not reach a broker."""
        self._brokers.pop(broker, None)

    async def _give(self, broker: int, joiner: _Joiner) -> None:
        partition = self._partition
        try:
            await self._services.give_staged(partition, broker)
        except Exception as error:  # noqa: BLE001 - logged for this replica, and tried again
            logger.warning("staged rows of %s do not reach broker %d: %s", partition.name, broker, error)
            await asyncio.sleep(_RETRY_SECONDS)
            if self._brokers.get(broker) is joiner:
                self.missed(broker)
        else:
            joiner.is_ready = True
        if isinstance(partition, ReplicatedPartition) and not partition.closed:
            partition.look_again()
