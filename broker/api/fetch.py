"""Fetch (1): read batches, waiting for them if asked to.

Sizes follow KIP-74: partitions in the order of the request; the first that has anything gives at least one
whole batch however large, the others only what is left of `max_bytes`. Batches of plain partitions leave as
file regions.

A fetch that finds less than `min_bytes` waits. It is woken by the partitions themselves (append, deletion,
failure, log start) and looks again only at those that moved. It is answered when there is enough, when there
is an error, after `max_wait_ms`, or when the broker stops.

There are no fetch sessions (KIP-227): every answer carries session id 0, which tells clients to send full
requests; a request for a session gets FETCH_SESSION_ID_NOT_FOUND. There are no transactions: the last stable
offset is the high watermark, and no transaction is ever aborted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from broker.cluster.partition import Partition
from broker.extension import ApiDeclaration, BrokerContext, FetchedRecords, RequestContext
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

logger = logging.getLogger("headrace.api")

_FIRST_VERSION_WITH_IDS = 13
_READ_COMMITTED = 1


class FetchApi:
    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._max_bytes: int = context.config["fetch.max.bytes"]
        self._waiting: set[_Fetch] = set()
        self._stopping = False

    def declarations(self) -> list[ApiDeclaration]:
        return [ApiDeclaration(FetchRequest, FetchResponse, self.fetch, cancel_on_disconnect=True)]

    def stop(self) -> None:
        """Answer everyone who waits with what there is, and let nobody wait any more."""
        self._stopping = True
        for fetch in tuple(self._waiting):
            fetch.stop()

    def fetch(
        self, context: RequestContext, request: FetchRequest
    ) -> FetchResponse | Awaitable[FetchResponse]:
        if request.session_epoch > 0:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {request.session_id}"
            )
        fetch = _Fetch(self._resolve(context.api_version, request), request, self._max_bytes)
        if fetch.has_hooks:
            return self._wait(fetch, request.max_wait_ms)
        fetch.read()
        if fetch.is_complete or request.max_wait_ms <= 0 or self._stopping:
            return fetch.response
        return self._wait(fetch, request.max_wait_ms)

    async def _wait(self, fetch: _Fetch, max_wait_ms: int) -> FetchResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait_ms / 1000
        fetch.start_watching()
        self._waiting.add(fetch)
        try:
            if fetch.has_hooks:
                await fetch.read_with_hooks()
            while not fetch.is_complete and not self._stopping and await fetch.changed(deadline):
                if fetch.has_hooks:
                    await fetch.read_with_hooks()
                else:
                    fetch.read()
        finally:
            self._waiting.discard(fetch)
            fetch.stop_watching()
        return fetch.response

    def _resolve(self, version: int, request: FetchRequest) -> list[_Wanted]:
        wanted = []
        for topic in request.topics:
            name, topic_id = topic.topic, topic.topic_id
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if version >= _FIRST_VERSION_WITH_IDS:
                image = self._metadata.topic_by_id(topic_id)
                if image is None:
                    code = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    name = image.name
            for request_partition in topic.partitions:
                found = self._metadata.find_partition(name, request_partition.partition)
                if code == ErrorCode.UNKNOWN_TOPIC_ID:
                    found = None
                wanted.append(_Wanted(topic, found, request_partition, code))
        return wanted


class _Wanted:
    """One partition of a fetch and its part of the answer."""

    __slots__ = ("answer", "failed", "missing_code", "partition", "request", "size", "topic")

    def __init__(
        self, topic: Any, found: Partition | None, request: FetchPartition, missing_code: ErrorCode
    ) -> None:
        self.topic = topic
        self.partition = found
        self.request = request
        self.missing_code = missing_code
        self.answer: PartitionData
        self.size = 0
        self.failed = False


class _Fetch:
    """A fetch under way: what is wanted, what was found so far, and whom to watch."""

    __slots__ = (
        "_bytes",
        "_callbacks",
        "_changed",
        "_max_bytes",
        "_moved",
        "_request",
        "_wanted",
        "has_hooks",
    )

    def __init__(self, wanted: list[_Wanted], request: FetchRequest, bytes_max: int) -> None:
        self._wanted = wanted
        self._request = request
        self._max_bytes = min(request.max_bytes, bytes_max)
        self._bytes = 0
        self._moved: set[int] | None = None  # which to read again; None: all
        self._changed: asyncio.Future[None] | None = None
        self._callbacks: list[tuple[Partition, Callable[[], None]]] = []
        self.has_hooks = any(
            entry.partition is not None and entry.partition.hooks is not None for entry in wanted
        )

    # -- reading -------------------------------------------------------------------------------------------

    def read(self) -> None:
        for entry in self._to_read():
            self._begin(entry)
            if not entry.failed:
                self._read_log(entry)

    async def read_with_hooks(self) -> None:
        for entry in self._to_read():
            self._begin(entry)
            if entry.failed:
                continue
            assert entry.partition is not None
            if entry.partition.hooks is None:
                self._read_log(entry)
            else:
                await self._read_hooks(entry)

    def _to_read(self) -> list[_Wanted]:
        moved, self._moved = self._moved, set()
        if moved is None:
            return self._wanted
        return [self._wanted[index] for index in sorted(moved)]

    def _begin(self, entry: _Wanted) -> None:
        """Make the entry's answer, with everything but records."""
        request, partition = entry.request, entry.partition
        self._bytes -= entry.size
        entry.size, entry.failed = 0, False
        answer = entry.answer = PartitionData(
            partition_index=request.partition,
            high_watermark=-1,
            aborted_transactions=[] if self._request.isolation_level == _READ_COMMITTED else None,
            records=b"",
        )
        if partition is None:
            self._fail(entry, entry.missing_code)
            return
        try:
            log = partition.log
            check_leader_epoch(partition, request.current_leader_epoch)
            answer.high_watermark = answer.last_stable_offset = partition.high_watermark
            answer.log_start_offset = log.log_start_offset
            if request.last_fetched_epoch >= 0:
                epoch, end_offset = log.epoch_end_offset(request.last_fetched_epoch)
                if epoch < request.last_fetched_epoch or end_offset < request.fetch_offset:
                    # KIP-320: what the consumer has read is not what is here; it has to go back.
                    answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                    entry.failed = True
                    return
            if not log.log_start_offset <= request.fetch_offset <= log.log_end_offset:
                self._fail(entry, ErrorCode.OFFSET_OUT_OF_RANGE)
        except KafkaError as error:
            self._fail(entry, error.code, error.message)

    def _limits(self, entry: _Wanted) -> tuple[int, bool]:
        """How many bytes the entry may have, and whether it must have a batch."""
        return min(entry.request.partition_max_bytes, self._max_bytes - self._bytes), self._bytes == 0

    def _read_log(self, entry: _Wanted) -> None:
        partition = entry.partition
        assert partition is not None
        if entry.request.fetch_offset >= partition.high_watermark:
            return
        bytes_max, must = self._limits(entry)
        if bytes_max <= 0 and not must:
            return
        try:
            found = partition.read(entry.request.fetch_offset, max(bytes_max, 0), must)
        except KafkaError as error:
            self._fail(entry, error.code, error.message)
            return
        except Exception as error:
            logger.error("reading %r failed", partition, exc_info=error)
            self._fail(entry, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        if found.size:
            entry.answer.records = found.region
            entry.size = found.size
            self._bytes += found.size

    async def _read_hooks(self, entry: _Wanted) -> None:
        partition = entry.partition
        assert partition is not None
        assert partition.hooks is not None
        if entry.request.fetch_offset >= partition.high_watermark:
            return
        bytes_max, must = self._limits(entry)
        if bytes_max <= 0 and not must:
            return
        try:
            found = await partition.hooks.fetch(entry.request.fetch_offset, max(bytes_max, 0), must)
        except KafkaError as error:
            self._fail(entry, error.code, error.message)
            return
        except Exception as error:
            logger.error("reading %r failed", partition, exc_info=error)
            self._fail(entry, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        if found.size:
            entry.answer.records = found.parts[0] if len(found.parts) == 1 else _Parts(found)
            entry.size = found.size
            self._bytes += found.size

    def _fail(self, entry: _Wanted, code: ErrorCode, message: str = "") -> None:
        entry.failed = True
        entry.answer.error_code = code
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            logger.error("fetch of %r failed: %s", entry.partition, message)

    @property
    def is_complete(self) -> bool:
        """Enough was found, or something that the client must be told now."""
        return (
            self._bytes >= self._request.min_bytes
            or not self._wanted
            or any(entry.failed for entry in self._wanted)
        )

    @property
    def response(self) -> FetchResponse:
        response = FetchResponse(responses=[])
        topic = None
        for entry in self._wanted:
            if entry.topic is not topic:
                topic = entry.topic
                answer = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[])
                response.responses.append(answer)
            answer.partitions.append(entry.answer)
        return response

    # -- waiting -------------------------------------------------------------------------------------------

    def start_watching(self) -> None:
        for index, entry in enumerate(self._wanted):
            if entry.partition is not None:
                callback = partial(self._on_moved, index)
                entry.partition.add_waiter(callback)
                self._callbacks.append((entry.partition, callback))
                if self._moved is not None and (
                    entry.partition.high_watermark != entry.answer.high_watermark
                    or not entry.partition.is_open
                ):
                    # It moved after it was read and before anybody was watching.
                    self._moved.add(index)

    def stop_watching(self) -> None:
        for watched, callback in self._callbacks:
            watched.remove_waiter(callback)
        self._callbacks.clear()

    def _on_moved(self, index: int) -> None:
        if self._moved is not None:
            self._moved.add(index)
        self.stop()

    def stop(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def changed(self, deadline: float) -> bool:
        """Wait until a partition moved or `stop`; False if the time is up first."""
        if self._moved:
            return True
        loop = asyncio.get_running_loop()
        self._changed = loop.create_future()
        timer = loop.call_at(deadline, self.stop)
        try:
            await self._changed
        finally:
            timer.cancel()
            self._changed = None
        return bool(self._moved)


class _Parts:
    """Records in several parts, where a message wants one; the connection sends them one after the other."""

    __slots__ = ("parts", "size")

    def __init__(self, records: FetchedRecords) -> None:
        self.parts = records.parts
        self.size = records.size

    def read(self) -> bytes:
        return b"".join(
            part if isinstance(part, (bytes, bytearray, memoryview)) else part.read() for part in self.parts
        )


def check_leader_epoch(partition: Partition, client_epoch: int) -> None:
    """KIP-320: a client that knows an older or a newer leader must ask Metadata first; -1 knows none."""
    if client_epoch < 0 or client_epoch == partition.leader_epoch:
        return
    older = client_epoch < partition.leader_epoch
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"the leader epoch is {partition.leader_epoch}, not {client_epoch}",
    )
