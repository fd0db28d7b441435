"""What this broker copies from one other broker: one long poll after the other, for all partitions that one leads and
this one follows.

A follower is in a request when it is open and nothing that went wrong is to be waited out. What the answer says is done
in turns, and made durable where a topic wants that, before the next request says how far each has come. Followers that
are added, or follow a later epoch, do not wait for the end of a poll: it is given up, and another one takes its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final
from uuid import UUID

from broker.net.peers import PeerLostError, Peers
from broker.replication.following import FAILED_SECONDS, RETRY_SECONDS, Follower
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.replication.throttle import Throttle
    from broker.slices import Slices

logger = logging.getLogger("headrace.replication")

CHANNEL: Final = "replication"
VERSION: Final = 18
ANSWER_SECONDS: Final = 10.0
"""Beyond the time that the leader may wait."""
UNREACHABLE_SECONDS: Final = 0.1
THROTTLED_SECONDS_MAX: Final = 0.5
"""Then is looked again whether it still is."""
_STALE: Final = {
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
}
"""One of both has not heard yet what the store says."""

Key = tuple[UUID, int]


class Fetcher:
    """Runs while it has followers; see the module."""

    def __init__(
        self,
        leader_id: int,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        peers: Peers,
        config: BrokerConfig,
        executor: Executor,
        slices: Slices,
        throttle: Throttle,
    ) -> None:
        self.leader_id = leader_id
        self.followers: dict[Key, Follower] = {}
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._peers = peers
        self._config = config
        self._executor = executor
        self._slices = slices
        self._throttle = throttle
        self._changed = asyncio.Event()
        self._is_polling = False
        self._is_over = False

    def changed(self) -> None:
        """Its followers have."""
        self._changed.set()
        if self._is_polling:
            self._peers.hang_up(self.leader_id, CHANNEL)

    def end(self) -> None:
        """It has no followers any more, nor will it have others."""
        self._is_over = True
        self.changed()

    async def run(self) -> None:
        while not self._is_over:
            self._changed.clear()
            asked, wait = await self._asked()
            if not asked:
                try:
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            request = await self._request(asked)
            self._is_polling = not self._changed.is_set()
            wait_ms = self._config["replica.fetch.wait.max.ms"] if self._is_polling else 0
            request.max_wait_ms = wait_ms if wait is None else min(wait_ms, int(wait * 1000))
            try:
                response = await self._peers.ask(
                    self.leader_id,
                    request,
                    FetchResponse,
                    VERSION,
                    channel=CHANNEL,
                    seconds=wait_ms / 1000 + ANSWER_SECONDS,
                )
            except PeerLostError as error:
                self._is_polling = False
                if not self._changed.is_set():
                    logger.debug("nothing can be fetched from broker %d: %s", self.leader_id, error)
                    try:
                        async with asyncio.timeout(UNREACHABLE_SECONDS):
                            await self._changed.wait()
                    except TimeoutError:
                        pass
                continue
            self._is_polling = False
            if response.error_code:
                logger.warning(
                    "broker %d refuses to be followed: %s",
                    self.leader_id,
                    ErrorCode(response.error_code).name,
                )
                await asyncio.sleep(FAILED_SECONDS)
                continue
            await self._take_over(response, asked)

    async def _asked(self) -> tuple[dict[Key, tuple[Follower, int]], float | None]:
        """Who is to be in the next request, each with its epoch; and when the next of the others is."""
        loop = asyncio.get_running_loop()
        asked: dict[Key, tuple[Follower, int]] = {}
        wait: float | None = None
        pace = self._slices.pace()
        for key, follower in list(self.followers.items()):
            await pace.rest()
            if follower.is_copying:  # what another leader has sent
                await follower.at_rest()
            if not follower.is_open and not await follower.open(self._executor):
                continue
            if follower.leader != self.leader_id:
                continue
            if not follower.may_fetch:
                wait = RETRY_SECONDS
                continue
            left = follower.not_before - loop.time()
            if left <= 0 and self._is_held_to_throttle(follower):
                left = min(self._throttle.wait_seconds(), THROTTLED_SECONDS_MAX)
            if left > 0:
                wait = left if wait is None else min(wait, left)
                continue
            asked[key] = follower, follower.state.leader_epoch
        return asked, wait

    def _is_held_to_throttle(self, follower: Follower) -> bool:
        partition = follower.partition
        return self._broker_id not in follower.state.isr and self._throttle.holds_for(
            partition.topic, partition.index
        )

    async def _request(self, asked: dict[Key, tuple[Follower, int]]) -> FetchRequest:
        config = self._config
        topics: dict[UUID, FetchTopic] = {}
        pace = self._slices.pace()
        for (topic_id, index), (follower, epoch) in asked.items():
            await pace.rest()
            if not follower.is_open:
                continue
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
            log = follower.log
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=epoch,
                    fetch_offset=log.log_end_offset,
                    last_fetched_epoch=log.last_epoch,
                    log_start_offset=log.log_start_offset,
                    partition_max_bytes=config["replica.fetch.max.bytes"],
                    high_watermark=follower.high_watermark,
                )
            )
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=self._broker_epoch()),
            min_bytes=config["replica.fetch.min.bytes"],
            max_bytes=config["replica.fetch.response.max.bytes"],
            topics=list(topics.values()),
        )

    async def _take_over(self, response: FetchResponse, asked: dict[Key, tuple[Follower, int]]) -> None:
        unsafe = []
        for topic in response.responses:
            for answer in topic.partitions:
                follower, epoch = asked.get((topic.topic_id, answer.partition_index), (None, -1))
                if follower is None:
                    continue
                if not follower.is_open or follower.state.leader_epoch != epoch:
                    continue  # it follows another leader by now, or leads
                if answer.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                    await self._go_on_behind_remote(follower)
                    continue
                if answer.records and self._is_held_to_throttle(follower):
                    self._throttle.copied(len(answer.records))
                await self._answered(follower, answer)
                if follower.is_open and follower.failure is None and follower.log.must_commit:
                    unsafe.append(follower)
                await asyncio.sleep(0)
        if unsafe:
            await asyncio.gather(*(self._commit(follower) for follower in unsafe))

    async def _answered(self, follower: Follower, answer: PartitionData) -> None:
        try:
            await follower.answered(answer, self._slices)
        except Exception as error:  # noqa: BLE001 - of one replica: told
            self._failed(follower, error)

    async def _go_on_behind_remote(self, follower: Follower) -> None:
        follower.not_before = asyncio.get_running_loop().time() + RETRY_SECONDS
        try:
            await follower.go_on_behind_remote()
        except Exception as error:  # noqa: BLE001 - of one replica: told
            self._failed(follower, error)

    def _failed(self, follower: Follower, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, KafkaError) and error.code in _STALE:
            follower.not_before = now + RETRY_SECONDS
            return
        follower.not_before = now + FAILED_SECONDS
        if not isinstance(error, KafkaError):
            logger.error("%s cannot take over what its leader has sent", follower.name, exc_info=error)
        elif follower.is_open and follower.log.failure is not None:
            follower.fail(follower.log.failure)
        else:
            logger.warning("%s: %s", follower.name, error.message)

    async def _commit(self, follower: Follower) -> None:
        try:
            await follower.commit(self._executor)
        except KafkaError as error:
            follower.fail(error.message)
