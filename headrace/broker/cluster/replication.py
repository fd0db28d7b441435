"""Replication on this broker: followers copy partitions, leaders maintain the ISR.

There is one fetcher for each followed broker. The leader itself writes changes of the ISR, several together, each by
compare-and-set on the image on which it was decided (`broker.metadata.controller.ChangeIsrs`): any later change voids
it. While the outcome of a change is unknown it is repeated, and the leader considers both outcomes possible.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from headrace.broker.configs.replication import RACK_AWARE
from headrace.broker.metadata.image import NO_LEADER
from headrace.broker.replication.fetcher import Fetcher
from headrace.broker.replication.following import Follower
from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.replication.throttle import Throttle
from headrace.broker.runtime.ports import STORE_LOST
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.cluster.replica_changes import ReplicaChanges
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.events import ChangeIsr
    from headrace.broker.metadata.image import BrokerImage
    from headrace.broker.net.peers import Peers
    from headrace.broker.replication.follower_fetches import FollowerFetches
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import Clock
    from headrace.broker.runtime.slices import Slices

logger = logging.getLogger("headrace.replication")

RETRY_SECONDS: Final = 0.2


class Replication:
    """The replication of one broker; on its event loop. Partitions and followers may exist before `start`."""

    def __init__(
        self, broker_id: int, config: BrokerConfig, clock: Clock, background: BackgroundTasks
    ) -> None:
        self.broker_id = broker_id
        self.fetches: FollowerFetches
        self._config = config
        self._clock = clock
        self._background = background
        self._metadata: ClusterMetadata
        self._changes: ReplicaChanges
        self._peers: Peers | None = None
        self._executor: Executor
        self._led: dict[ReplicatedPartition, None] = {}
        self._fetchers: dict[int, Fetcher] = {}
        self._fetcher_of: dict[Follower, Fetcher] = {}
        self._waiting: dict[Follower, None] = {}
        self._proposals: dict[ReplicatedPartition, ChangeIsr] = {}
        self._proposed = asyncio.Event()
        self._failed: dict[ReplicatedPartition | Follower, None] = {}
        self._failing = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._brokers_changed = asyncio.Event()
        self._slices: Slices
        self._throttle = Throttle("follower", broker_id, config, clock.monotonic)
        self._brokers: Mapping[int, BrokerImage] = {}
        self._epochs: Mapping[int, int] = {}

    def start(
        self,
        metadata: ClusterMetadata,
        changes: ReplicaChanges,
        peers: Peers,
        executor: Executor,
        fetches: FollowerFetches,
        slices: Slices,
    ) -> None:
        self._metadata, self._changes = metadata, changes
        self._peers, self._executor, self.fetches = peers, executor, fetches
        self._slices = slices
        waiting, self._waiting = self._waiting, {}
        for follower in waiting:
            self.follows(follower)
        metadata.broker_listeners.append(self._brokers_changed.set)
        self._background.keep(self._give_up_failed, "giving up failed replicas")
        self._background.keep(self._advance_all, "advancing partitions without lost brokers")
        self._background.keep(self._write_isrs, "writing changes of in-sync replicas")
        self._background.keep(self._look_for_lag, "checking the lag of replicas")
        self._background.keep(self._prefer_leaders, "electing preferred leaders")

    @property
    def led(self) -> Iterable[ReplicatedPartition]:
        return self._led

    # -- for leaders (`leading.Leading`) -------------------------------------------------------------------

    @property
    def lag_seconds(self) -> float:
        lag_ms: int = self._config["replica.lag.time.max.ms"]
        return lag_ms / 1000

    def now(self) -> float:
        return self._clock.monotonic()

    def epochs(self) -> Mapping[int, int]:
        if self._peers is None:
            return {}
        brokers = self._metadata.image.brokers
        if brokers is not self._brokers:
            self._brokers = brokers
            self._epochs = {each.broker_id: each.epoch for each in brokers.values() if not each.leaving}
        return self._epochs

    def appended(self, partition: ReplicatedPartition) -> None:
        if self._peers is not None:
            self.fetches.appended(partition)

    def published(self, partition: ReplicatedPartition) -> None:
        if self._peers is not None:
            at_once = partition.hooks is None and self._config["replica.selector.class"] == RACK_AWARE
            self.fetches.published(partition, at_once=at_once)

    def unheard(self, partition: ReplicatedPartition, brokers: Sequence[int]) -> None:
        if self._peers is not None:
            self.fetches.unheard(partition, brokers)

    def doubted(self, partition: ReplicatedPartition) -> None:
        if self._peers is not None:
            self.fetches.doubted(partition)

    def leads(self, partition: ReplicatedPartition) -> None:
        self._led[partition] = None

    def leads_no_longer(self, partition: ReplicatedPartition) -> None:
        self._led.pop(partition, None)
        self._proposals.pop(partition, None)
        self.doubted(partition)

    def failed(self, replica: ReplicatedPartition | Follower) -> None:
        self._failed[replica] = None
        self._loop.call_soon_threadsafe(self._failing.set)

    async def _give_up_failed(self) -> None:
        """Give up failed replicas, so that only other brokers lead them; then copy damaged ones again from their
        leaders.
        """
        while True:
            await self._failing.wait()
            self._failing.clear()
            failed, self._failed = self._failed, {}
            for each in failed:
                if isinstance(each, ReplicatedPartition):
                    self.doubted(each)
            try:
                await self._changes.lose_replicas([each.place for each in failed])
                for replica in failed:
                    if isinstance(replica, Follower) and replica.is_damaged and not replica.ended:
                        await self._copy_anew(replica)
            except (*STORE_LOST, KafkaError) as error:
                logger.info("cannot give up failed replicas now; trying again: %s", error)
                self._failed |= failed
                await asyncio.sleep(RETRY_SECONDS)
                self._failing.set()

    async def _copy_anew(self, follower: Follower) -> None:
        await follower.close_failed_log(self._executor)
        try:
            is_out_of_the_way = await self._changes.set_aside_replica(
                follower.partition.topic, follower.partition.index
            )
        except OSError as error:
            logger.error("cannot set aside the damaged files of %s: %s", follower.name, error)
            return
        if is_out_of_the_way and not follower.ended:
            follower.begin_anew()
            self.follows(follower)

    def propose(self, partition: ReplicatedPartition, change: ChangeIsr) -> None:
        self._proposals[partition] = change
        self._proposed.set()

    async def _write_isrs(self) -> None:
        while True:
            await self._proposed.wait()
            self._proposed.clear()
            proposals, self._proposals = self._proposals, {}
            proposals = {each: change for each, change in proposals.items() if not each.closed}
            if not proposals:
                continue
            try:
                await self._changes.change_isrs(list(proposals.values()))
            except (*STORE_LOST, KafkaError) as error:
                logger.info("cannot change in-sync replicas now; trying again: %s", error)
                for partition, change in proposals.items():
                    if partition in self._led:
                        self._proposals.setdefault(partition, change)
                await asyncio.sleep(RETRY_SECONDS)
                self._proposed.set()
                continue
            for partition, change in proposals.items():
                if not partition.closed:
                    partition.refused(change)  # ignored if the state has changed by now
            if not self._proposals.keys().isdisjoint(proposals):
                await asyncio.sleep(
                    RETRY_SECONDS
                )  # an immediate retry would be refused again, and would leave no time for other work

    async def _advance_all(self) -> None:
        """Stop waiting for brokers that were about to join an ISR and are gone."""
        while True:
            await self._brokers_changed.wait()
            self._brokers_changed.clear()
            pace = self._slices.pace()
            for partition in list(self._led):
                await pace.rest()
                if not partition.closed:
                    partition.look_again()

    async def _prefer_leaders(self) -> None:
        """Return leadership to preferred leaders after a broker was away, if this broker is the controller."""
        while True:
            await asyncio.sleep(self._config["leader.imbalance.check.interval.seconds"])
            if self._config["auto.leader.rebalance.enable"] and self._metadata.is_controller:
                try:
                    await self._changes.elect_leaders(None, unclean=False)
                except (*STORE_LOST, KafkaError) as error:
                    logger.info("cannot elect preferred leaders now: %s", error)

    async def _look_for_lag(self) -> None:
        while True:
            await asyncio.sleep(self.lag_seconds / 2)
            pace = self._slices.pace()
            for partition in list(self._led):
                await pace.rest()
                if not partition.closed:
                    partition.check_lag()

    # -- for followers -------------------------------------------------------------------------------------

    def follows(self, follower: Follower) -> None:
        """Begin to copy for a new follower, or follow its change of leader or epoch."""
        if self._peers is None:
            self._waiting[follower] = None
            return
        follower.when_failed = self.failed
        if follower.failure is not None:
            self.failed(follower)
        before, leader = self._fetcher_of.get(follower), follower.leader
        key = follower.key
        if before is not None and before.leader_id != leader:
            self._leave(before, follower)
        if leader == NO_LEADER:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                leader,
                broker_id=self.broker_id,
                broker_epoch=lambda: self._metadata.broker_epoch,
                peers=self._peers,
                config=self._config,
                executor=self._executor,
                slices=self._slices,
                throttle=self._throttle,
                clock=self._clock.monotonic,
            )
            self._background.keep(fetcher.run, f"fetching from broker {leader}")
        self._fetcher_of[follower] = fetcher
        fetcher.add(key, follower)

    def follows_no_longer(self, follower: Follower) -> None:
        self._waiting.pop(follower, None)
        fetcher = self._fetcher_of.get(follower)
        if fetcher is not None:
            self._leave(fetcher, follower)

    def _leave(self, fetcher: Fetcher, follower: Follower) -> None:
        del self._fetcher_of[follower]
        key = follower.key
        fetcher.remove(key, follower)
        if not fetcher.followers and self._fetchers.get(fetcher.leader_id) is fetcher:
            del self._fetchers[fetcher.leader_id]
            fetcher.end()
