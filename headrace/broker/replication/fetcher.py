"""Copy partitions from one other broker: successive long polls for all partitions that it leads and this broker
follows.

The polls form one session (`sessions`), so that a poll costs only what has changed since the last one. A follower is
checked after an answer for it, when it is `touched`, and at the end of a pause. It is in the session while it is open
and does not pause after an error. Answers are applied in turns, and made durable if the topic requires it, before the
next request reports the progress. New followers, and those with a later epoch, do not wait for the end of a poll: it is
abandoned, and another one begins.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.broker.net.peers import PeerLostError, Peers
from headrace.broker.replication.following import FAILED_SECONDS, RETRY_SECONDS, Follower
from headrace.broker.replication.safe_time import Vouched
from headrace.broker.replication.sessions import INITIAL_EPOCH, NAMED_MAX, OVER, Asking, Told
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.disk_errors import is_passing
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaFetchResponse,
    ReplicaState,
)

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.replication.throttle import Throttle
    from headrace.broker.runtime.slices import Slices

logger = logging.getLogger("headrace.replication")

CHANNEL: Final = "replication"
VERSION: Final = 18
ANSWER_SECONDS: Final = 10.0
"""Time for an answer beyond the leader's maximum wait, in seconds."""
UNREACHABLE_SECONDS: Final = 0.1
THROTTLED_SECONDS_MAX: Final = 0.5
"""Maximum pause of a throttled follower until it is checked again, in seconds."""
OPENED_TOGETHER: Final = 4
OPENED_MAX: Final = 64
"""Maximum number of logs to open before open followers are fetched again."""
_STALE: Final = {
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
}
"""Errors after which this broker or the leader has yet to follow a change of the store."""

Key = tuple[UUID, int]


class Fetcher:
    """Copies from one leader while it has followers; see the module."""

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
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives monotonic seconds."""
        self.leader_id = leader_id
        self.followers: dict[Key, Follower] = {}
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._peers = peers
        self._config = config
        self._executor = executor
        self._slices = slices
        self._throttle = throttle
        self._clock = clock
        self._vouched = Vouched()
        self._told_of: dict[Follower, int] = {}
        """High watermarks that leader and follower both know, and for which `_vouched` does not hold yet. Each answer
        makes it hold for more of them.
        """
        self._asking: Asking[Follower] = Asking()
        self._asked_of: dict[Follower, int] = {}
        """High watermarks that the request in progress contains."""
        self._asked_as = -1
        self._touched: dict[Follower, None] = {}
        self._held: dict[Follower, float] = {}
        self._due: list[tuple[float, int, Follower]] = []
        """Ends of pauses of followers, including outdated entries."""
        self._number = itertools.count()
        self._changed = asyncio.Event()
        self._is_polling = False
        self._is_over = False

    # -- followers -----------------------------------------------------------------------------------------

    def add(self, key: Key, follower: Follower) -> None:
        """Add a follower of this leader, or one with a later epoch."""
        self.followers[key] = follower
        if self._asking.epoch_of(follower) != follower.state.leader_epoch:
            self._untold(follower)
        follower.changed = self.touched
        self.touched(follower)

    def remove(self, key: Key, follower: Follower) -> None:
        """Remove a follower."""
        if self.followers.get(key) is follower:
            del self.followers[key]
        self._touched.pop(follower, None)
        self._held.pop(follower, None)
        self._untold(follower)
        self._asking.exclude(follower)

    def touched(self, follower: Follower) -> None:
        """Check a follower: its request may have changed."""
        self._touched[follower] = None
        self._wake()

    def end(self) -> None:
        """Stop: there are no followers any more, and none will be added."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        if self._is_polling:
            self._is_polling = False
            self._peers.hang_up(self.leader_id, CHANNEL)

    # -- polling -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while not self._is_over:
            self._changed.clear()
            await self._settle()
            if self._asking.is_empty:
                if not self._touched:
                    await self._pause(self._wait_seconds())
                continue
            request = await self._request()
            wait = self._wait_seconds()
            wait_ms = self._config["replica.fetch.wait.max.ms"] if wait is None else int(wait * 1000)
            wait_ms = min(wait_ms, self._config["replica.fetch.wait.max.ms"])
            self._is_polling = self._asking.is_said and not self._touched and not self._changed.is_set()
            request.max_wait_ms = wait_ms if self._is_polling else 0
            sent_at = self._clock()
            try:
                response = await self._peers.ask(
                    self.leader_id,
                    request,
                    ReplicaFetchResponse,
                    VERSION,
                    channel=CHANNEL,
                    seconds=wait_ms / 1000 + ANSWER_SECONDS,
                )
            except PeerLostError as error:
                self._is_polling = False
                self._asking.lost()
                if not self._changed.is_set():
                    logger.debug("cannot fetch from broker %d: %s", self.leader_id, error)
                    await self._pause(UNREACHABLE_SECONDS)
                continue
            self._is_polling = False
            if response.error_code in OVER:
                self._asking.over()
                continue
            if response.error_code:
                self._asking.over()
                logger.warning(
                    "broker %d refused a follower's fetch: %s",
                    self.leader_id,
                    ErrorCode(response.error_code).name,
                )
                await asyncio.sleep(FAILED_SECONDS)
                continue
            self._vouch(response, sent_at)
            self._asking.answered(response.session_id)
            await self._take_over(response)

    async def _pause(self, seconds: float | None) -> None:
        """Wait until something has changed, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _wait_seconds(self) -> float | None:
        """Return the seconds until the next pause ends; None without pauses."""
        while self._due and self._held.get(self._due[0][2]) != self._due[0][0]:
            heapq.heappop(self._due)
        return max(self._due[0][0] - asyncio.get_running_loop().time(), 0.0) if self._due else None

    async def _settle(self) -> None:
        """Check followers that may have changed: whether to fetch for them, and from where. At most NAMED_MAX in a
        call.
        """
        while self._wait_seconds() == 0.0:
            self._touched[heapq.heappop(self._due)[2]] = None
        some = dict(itertools.islice(self._touched.items(), NAMED_MAX))
        closed = [follower for follower in some if not follower.is_open and follower.leader == self.leader_id]
        for follower in closed[OPENED_MAX:]:
            del some[follower]
        for follower in some:
            del self._touched[follower]
        for first in range(0, min(len(closed), OPENED_MAX), OPENED_TOGETHER):
            await asyncio.gather(
                *(follower.open(self._executor) for follower in closed[first : first + OPENED_TOGETHER])
            )
        pace = self._slices.pace()
        for follower in some:
            await pace.rest()
            if follower.is_copying:  # records of an earlier leader
                await follower.at_rest()
            if follower.is_open and follower.failure is None and follower.log.must_commit:
                # There was no room for it after the last answer.
                await self._commit(follower)
            if self.followers.get(follower.key) is follower:
                self._decide(follower)

    def _decide(self, follower: Follower) -> None:
        self._held.pop(follower, None)
        wait = self._held_up_seconds(follower) if follower.leader == self.leader_id else 0.0
        if follower.leader != self.leader_id or (not follower.is_open and wait <= 0):
            self._untold(follower)
            self._asking.exclude(follower)
            return
        if wait > 0:
            self._untold(follower)
            self._asking.exclude(follower)
            due = asyncio.get_running_loop().time() + wait
            self._held[follower] = due
            heapq.heappush(self._due, (due, next(self._number), follower))
            return
        follower.let_go()
        self._asking.include(follower, _told(follower))

    def _held_up_seconds(self, follower: Follower) -> float:
        if not follower.may_fetch:
            return RETRY_SECONDS
        left = follower.not_before - asyncio.get_running_loop().time()
        if left <= 0 and self._is_held_to_throttle(follower):
            left = min(self._throttle.wait_seconds(), THROTTLED_SECONDS_MAX)
        return left

    def _is_held_to_throttle(self, follower: Follower) -> bool:
        partition = follower.partition
        return self._broker_id not in follower.state.isr and self._throttle.holds_for(
            partition.topic, partition.index
        )

    async def _request(self) -> FetchRequest:
        config, asking = self._config, self._asking
        topics: dict[UUID, FetchTopic] = {}
        named: dict[Follower, Told] = {}
        broker_epoch = self._broker_epoch()
        if broker_epoch != self._asked_as:  # this is a later incarnation than the session's
            asking.over()
            self._asked_as = broker_epoch
        if asking.epoch == INITIAL_EPOCH:  # nothing is vouched for by an earlier session
            self._vouched, self._told_of = Vouched(), {}
        self._asked_of = {}
        pace = self._slices.pace()
        for follower in asking.next_names():
            await pace.rest()
            if not follower.is_open or follower not in asking:
                continue
            topic_id, index = follower.key
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
            told = named[follower] = _told(follower)
            self._asked_of[follower] = follower.high_watermark
            leader_epoch, end_offset, last_epoch, log_start_offset = told
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=end_offset,
                    last_fetched_epoch=last_epoch,
                    log_start_offset=log_start_offset,
                    partition_max_bytes=config["replica.fetch.max.bytes"],
                    high_watermark=follower.high_watermark,
                )
            )
        forgotten: dict[UUID, ForgottenTopic] = {}
        for follower in asking.send(named):
            topic_id, index = follower.key
            gone = forgotten.get(topic_id)
            if gone is None:
                gone = forgotten[topic_id] = ForgottenTopic(topic_id=topic_id, partitions=[])
            gone.partitions.append(index)
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=broker_epoch),
            min_bytes=config["replica.fetch.min.bytes"],
            max_bytes=config["replica.fetch.response.max.bytes"],
            session_id=asking.session_id,
            session_epoch=asking.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    # -- answers -------------------------------------------------------------------------------------------

    def _untold(self, follower: Follower) -> None:
        self._told_of.pop(follower, None)
        follower.safe_time.untold()

    def _vouch(self, response: ReplicaFetchResponse, sent_at: float) -> None:
        """Note up to what time the followers in the answer or the request are complete."""
        told_of = self._told_of
        for follower, high_watermark in self._asked_of.items():
            if follower in self._asking:
                follower.safe_time.untold()
                told_of[follower] = high_watermark
        for topic in response.responses:
            for answer in topic.partitions:
                named = self.followers.get((topic.topic_id, answer.partition_index))
                if named is None or named not in self._asking:
                    continue
                self._untold(named)
                diverging = answer.diverging_epoch
                if not answer.error_code and (diverging is None or diverging.end_offset < 0):
                    told_of[named] = answer.high_watermark
        if not response.is_current:
            return
        doubted = [
            self.followers.get((topic.topic_id, index))
            for topic in response.doubted
            for index in topic.partitions
        ]
        for each in doubted:
            if each is not None and (before := each.safe_time.untold()) >= 0:
                told_of[each] = before
        self._vouched.at = sent_at
        for follower, high_watermark in list(itertools.islice(told_of.items(), NAMED_MAX)):
            if follower not in doubted and self._asking.epoch_of(follower) == follower.state.leader_epoch:
                follower.safe_time.told(high_watermark, self._vouched)
                del told_of[follower]

    async def _take_over(self, response: ReplicaFetchResponse) -> None:
        unsafe = []
        pace = self._slices.pace()
        for topic in response.responses:
            for answer in topic.partitions:
                await pace.rest()
                follower = self.followers.get((topic.topic_id, answer.partition_index))
                if follower is None or follower not in self._asking:
                    continue
                epoch = self._asking.epoch_of(follower)
                self._touched[follower] = None
                diverging = answer.diverging_epoch
                if answer.error_code or (diverging is not None and diverging.end_offset >= 0):
                    self._asking.failed(follower)
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
        if unsafe:
            await asyncio.gather(*(self._commit(follower) for follower in unsafe))

    async def _answered(self, follower: Follower, answer: PartitionData) -> None:
        try:
            await follower.answered(answer, self._slices)
        except Exception as error:  # noqa: BLE001 - of one replica: told
            await self._failed(follower, error)

    async def _go_on_behind_remote(self, follower: Follower) -> None:
        follower.not_before = asyncio.get_running_loop().time() + RETRY_SECONDS
        try:
            await follower.go_on_behind_remote()
        except Exception as error:  # noqa: BLE001 - of one replica: told
            await self._failed(follower, error)

    async def _failed(self, follower: Follower, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, KafkaError) and error.code in _STALE:
            follower.not_before = now + follower.retry_seconds
            follower.retry_seconds = min(2 * follower.retry_seconds, FAILED_SECONDS)
            return
        follower.not_before = now + FAILED_SECONDS
        if follower.is_open and follower.log.is_interrupted:
            await follower.close_interrupted_log(self._executor)
        elif is_passing(error):
            disk_errors.tell(logger, f"{follower.name} cannot append the records of its leader", error)
        elif not isinstance(error, KafkaError):
            logger.error("%s cannot append the records of its leader", follower.name, exc_info=error)
        elif follower.is_open and follower.log.failure is not None:
            follower.fail(follower.log.failure)
        else:
            logger.warning("%s: %s", follower.name, error.message)

    async def _commit(self, follower: Follower) -> None:
        try:
            await follower.commit(self._executor)
        except KafkaError as error:
            if is_passing(error) and follower.is_open and follower.log.failure is None:
                follower.not_before = asyncio.get_running_loop().time() + FAILED_SECONDS
            else:
                follower.fail(error.message)


def _told(follower: Follower) -> Told:
    log = follower.log
    return follower.state.leader_epoch, log.log_end_offset, log.last_epoch, log.log_start_offset
