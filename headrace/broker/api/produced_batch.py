"""One batch of a Produce request on its way: admit, prepare, append, wait.

A batch of a plain partition that is quick to check is admitted and appended at once, on the event loop. Other steps are
awaited: the coordinator of a transaction, a thread that checks or recompresses the records, an extension that takes
the records of its partitions, and the disk or the replicas. A batch that fails ends there: the error is the answer of
its partition, and does not affect the others.

Record data is never copied here: a batch goes from the frame to the log as a view.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple

from headrace.broker.log.errors import RecordErrors
from headrace.broker.log.partition_log import AppendInfo, AppendOrigin, PartitionLog
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.declaration import RequestContext
from headrace.broker.runtime.invariants import InvariantError
from headrace.broker.security.rights import Operation, ResourceType
from headrace.broker.transactions.admission import admit_batch, check_guard
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.verification import Guard
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
)
from headrace.protocol.one_line import one_line
from headrace.protocol.records import check
from headrace.protocol.records.check import Effort, TakesTime
from headrace.protocol.records.header import (
    COMPRESSION_MASK,
    FLAGS_POSITION,
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    TRANSACTIONAL_BIT,
)

logger = logging.getLogger("headrace.api")

_ZSTD = 4
_REFUSALS = frozenset(
    (
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.POLICY_VIOLATION,
    )
)
"""Error codes that are logged, as producers whose library shows only codes do not see the reason."""
_REASON_LENGTH_MAX = 500
_HANDED_OVER_NS: Final = 100_000
_HANDED_OVER_BYTE_NS: Final = 20
"""Upper estimates of the cost of a batch, and of each of its bytes, that an extension appends on the event loop."""


class Step(Enum):
    """The next step of a batch, after those that were taken at once."""

    APPEND = auto()
    ADMIT = auto()
    """Ask the coordinator of its transaction."""
    HAND_OVER = auto()
    """Let the extension of its partition append it."""
    PREPARE = auto()
    """Prepare it in a thread. The batches of one request do so in turn, so that other requests have threads."""
    WAIT = auto()
    """It is in the log; wait until it is as durable as `acks` requires."""
    ANSWER = auto()


# A name of a module is found faster than a member of an enum.
APPEND: Final = Step.APPEND
ADMIT: Final = Step.ADMIT
HAND_OVER: Final = Step.HAND_OVER
PREPARE: Final = Step.PREPARE
WAIT: Final = Step.WAIT
ANSWER: Final = Step.ANSWER


class Preparation:
    """Checks and recompresses the records of batches in threads. A large batch does so alone."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._kernel_asked_for = False
        self._large_turn = asyncio.Lock()
        """Taken by batches with a large decompressed size: they go one at a time, and must not wait in threads."""

    async def prepare(self, log: PartitionLog, records: memoryview) -> memoryview:
        """Return the batch as it is to be appended. Raises KafkaError."""
        loop = asyncio.get_running_loop()
        if not self._kernel_asked_for:
            self._kernel_asked_for = True
            loop.run_in_executor(self._executor, check.load)  # its result is not awaited
        try:
            return await loop.run_in_executor(self._executor, partial(log.prepare, records, large=False))
        except TakesTime:
            async with self._large_turn:
                return await loop.run_in_executor(self._executor, log.prepare, records)


class Production(NamedTuple):
    """One request, and the services that its batches need."""

    request: ProduceRequest
    context: RequestContext
    find_partition: Callable[[str, int], Partition | None]
    transactions: TransactionCoordinator
    preparation: Preparation


class ProducedBatch:
    """The batch for one partition of a request, its `answer`, and its `next` step."""

    __slots__ = ("_admission", "_info", "_partition", "_production", "_records", "_topic", "answer", "next")

    _partition: Partition
    _admission: Awaitable[Guard | None]
    _info: AppendInfo
    next: Step

    def __init__(self, topic: str, data: PartitionProduceData, production: Production) -> None:
        self.answer = PartitionProduceResponse(index=data.index, base_offset=-1)
        self._topic = topic
        self._records = data.records
        self._production = production

    def begin(self, effort: Effort) -> None:
        """Take the steps that need no wait: admit the batch and, if nothing is awaited before, append it."""
        try:
            self._admit()
            if self.next is APPEND:
                self._append(self._records, effort)
            elif self.next is HAND_OVER:
                self._hand_over_at_once(effort)
        except Exception as error:  # noqa: BLE001 - of one partition: the others are appended to
            self._refuse(error)

    async def finish(self) -> None:
        """Take the other steps. The next request of the connection waits."""
        production, guard = self._production, None
        try:
            if self.next is HAND_OVER:
                await self._hand_over()
            if self.next is ADMIT:
                guard = await self._admission
                self._check_again(guard)
                self._append(self._records, Effort())
            if self.next is PREPARE:
                prepared = await production.preparation.prepare(self._partition.log, self._records)
                self._check_again(guard)
                self._append(prepared, None)
        except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
            self._refuse(error)
        finally:
            if guard is not None:
                production.transactions.guards.release(guard)
        if self.next is WAIT:
            await self.wait(production.request.timeout_ms)

    def _admit(self) -> None:
        """Find the partition, and check what needs no look at the records. Raises KafkaError."""
        production, topic, records = self._production, self._topic, self._records
        version = production.context.api_version
        partition = production.find_partition(topic, self.answer.index)
        if partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {self.answer.index} of topic {topic!r} does not exist",
            )
        if partition.topic.internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic; clients cannot write to it"
            )
        partition.check_served()
        check_records(partition, records, version)
        check_in_sync(partition, production.request.acks)
        self._partition = partition
        self.next = APPEND if partition.hooks is None else HAND_OVER
        if records[FLAGS_POSITION] & TRANSACTIONAL_BIT:
            admission = admit_batch(
                production.transactions, production.request.transactional_id, partition, records, version
            )
            if admission is not None:
                self._admission = admission
                self.next = ADMIT

    def _check_again(self, guard: Guard | None) -> None:
        """Check, after a wait, that the client may still write, and that its transaction is still open. Raises
        KafkaError.
        """
        self._production.context.require(Operation.WRITE, ResourceType.TOPIC, self._topic)
        check_guard(self._production.transactions, guard)

    def _append(self, records: memoryview, effort: Effort | None) -> None:
        """Append the batch, unless it takes more time than `effort` has left. None: it was prepared. Raises
        KafkaError.
        """
        partition = self._partition
        try:
            info = partition.append(records, AppendOrigin.CLIENT, prepared=effort is None, effort=effort)
        except TakesTime:
            self.next = PREPARE
            return
        self._fill(info)
        is_durable = partition.high_watermark > info.last_offset
        self.next = ANSWER if is_durable or not self._production.request.acks else WAIT

    def _hand_over_at_once(self, effort: Effort) -> None:
        """Let the extension append a small batch now, if it can and `effort` is left."""
        partition, records = self._partition, self._records
        try:
            effort.take(_HANDED_OVER_NS + _HANDED_OVER_BYTE_NS * len(records))
        except TakesTime:
            return
        hooks = partition.hooks
        info = None if hooks is None else hooks.produce_at_once(records)
        if info is None:
            return
        self._fill(info)
        is_published = partition.high_watermark > info.last_offset
        self.next = ANSWER if is_published or not self._production.request.acks else WAIT

    async def _hand_over(self) -> None:
        """Let the extension append the batch, and wait until it is as durable as `acks` requires. Raises KafkaError."""
        partition, request = self._partition, self._production.request
        partition.check_served()
        hooks = partition.hooks
        if hooks is None:
            raise InvariantError("a batch for an extension is in a partition without hooks")
        self._fill(await hooks.produce(self._records, request.acks, request.timeout_ms))
        self.next = ANSWER

    async def wait(self, timeout_ms: int) -> None:
        """Wait until the batch in the log is as durable as `acks` requires."""
        answer, info, hooks = self.answer, self._info, self._partition.hooks
        try:
            if hooks is not None:
                await hooks.wait_published(info, self._production.request.acks, timeout_ms)
            elif not await self._partition.wait_acknowledged(
                info.last_offset + 1, self._production.request.acks, timeout_ms
            ):
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"appended at offset {info.base_offset}, but not on disk, or on all replicas, within {timeout_ms} "
                    "ms",
                )
        except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
            self._refuse(error)
            answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1

    def _fill(self, info: AppendInfo) -> None:
        self._info, answer = info, self.answer
        answer.base_offset = info.base_offset
        answer.log_append_time_ms = info.log_append_time_ms
        answer.log_start_offset = info.log_start_offset

    def _refuse(self, error: Exception) -> None:
        """Make the error the answer, and log it if the producer may not see its reason."""
        answer, topic = self.answer, self._topic
        self.next = ANSWER
        if isinstance(error, DecodeError):
            error = KafkaError(ErrorCode.INVALID_RECORD, str(error))
        if not isinstance(error, KafkaError):
            logger.error("appending to %s-%d failed", topic, answer.index, exc_info=error)
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed; its log says how")
        elif error.code in _REFUSALS:
            kind = f"refused records of {topic}"
            what = one_line(error.message, _REASON_LENGTH_MAX)
            logger.warning(
                "a batch for %s-%d was refused: %s: %s",
                topic,
                answer.index,
                error.code.name,
                what,
                extra={"kind": kind},
            )
        answer.error_code = error.code
        answer.error_message = error.message
        if isinstance(error, RecordErrors):
            answer.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                for index, text in error.errors
            ]


def check_in_sync(partition: Partition, acks: int) -> None:
    if acks != -1:
        return
    needed = partition.needed_in_sync
    if needed > partition.in_sync_count:
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"topic {partition.topic.name} needs min.insync.replicas={needed}; "
            f"{partition.in_sync_count} in sync",
        )


def check_records(partition: Partition, records: memoryview | None, version: int) -> None:
    """Check a batch without reading its header. Raises KafkaError."""
    if records is None or len(records) < HEADER_SIZE:
        size = 0 if records is None else len(records)
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{size} bytes of records; a batch has at least {HEADER_SIZE} bytes",
        )
    if records[MAGIC_POSITION] != MAGIC_V2:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"record batches of format {records[MAGIC_POSITION]} are not accepted; only format {MAGIC_V2} is",
        )
    attributes = records[FLAGS_POSITION]
    if version < 7 and attributes & COMPRESSION_MASK == _ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce 7 or newer; this is version {version}",
        )
    if partition.hooks is not None:
        length = LENGTH.unpack_from(records, LENGTH_POSITION)[0] + LOG_OVERHEAD
        if length != len(records):
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"the batch has {length} bytes but {len(records)} were sent; send exactly one batch",
            )
