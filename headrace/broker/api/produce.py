"""Produce (0): append batches.

Record data is never copied here: a batch goes from the frame to the log as a view. Plain partitions are appended to on
the event loop; the answer is made in the same call. These are awaited, all of a request together:
- partitions with hooks;
- batches whose records take long to check (`Effort` limits the cost of a request);
- announcing a partition to a transaction whose journal is slow or on another broker;
- the fsync of `durability=power`, unless acks is 0.

Version 0 is advertised and never accepted: old clients infer the broker's features from the advertised minimum
(KAFKA-18659), and send 3 or newer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any

from headrace.broker.cluster.endpoints import current_leader, endpoint
from headrace.broker.log.errors import RecordErrors
from headrace.broker.log.partition_log import AppendInfo, AppendOrigin
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.net.reply import CloseConnection
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication.replicas import LocalReplicas
from headrace.broker.requests.declaration import ApiDeclaration, Repeat, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.quotas.model import Quota
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation, ResourceType, denied
from headrace.broker.transactions.admission import admit_batch, check_guard
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.verification import Guard
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
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
_FIRST_VERSION_WITH_IDS = 13
_PLACEHOLDERS = (0x6B1D_A2E4_97C3_5F08, 0x2E97_04D8_B16A_F35C, 0x51F8_3C6E_0AD9_72B4)
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
_ANSWERS_TOGETHER = 8
"""Number of answers of one request that are handled without letting others run."""
_AWAITED_TOGETHER = 100
"""Maximum number of partitions of one request that are handled concurrently: many times what clients send."""

_Unsafe = tuple[Partition, AppendInfo, PartitionProduceResponse]


class ProduceApi:
    def __init__(
        self,
        transactions: TransactionCoordinator,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        identity: BrokerIdentity,
        executor: Executor,
        slices: Slices,
    ) -> None:
        self._transactions = transactions
        self._metadata = metadata
        self._find = replicas.find_partition
        self._identity = identity
        self._executor = executor
        self._slices = slices
        self._kernel_asked_for = False
        self._large_turn = asyncio.Lock()
        """Taken by batches with a large decompressed size: they go one at a time, and must not wait in threads."""

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                ProduceRequest,
                ProduceResponse,
                self.produce,
                within(topic=Operation.WRITE, transactional_id=Operation.WRITE),
                advertised_min_version=0,
                on_error=_failed,
                repeat=self.repeat,
                charged=Quota.PRODUCER,
            )
        ]

    def produce(
        self, context: RequestContext, request: ProduceRequest
    ) -> Work[ProduceResponse | Awaitable[Any] | None]:
        acks = request.acks
        if acks not in (-1, 1, 0):
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it must be 0, 1 or -1 (all)")
        if request.transactional_id is not None:
            context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        waiting: list[Coroutine[Any, Any, None]] = []
        unsafe: list[_Unsafe] = []
        slow: list[tuple[Partition, memoryview, PartitionProduceResponse]] = []
        effort = Effort()
        topics = []
        count = 0
        for topic in request.topic_data:
            count += 1
            if count > 2:
                yield
            name = topic.name
            if context.api_version >= _FIRST_VERSION_WITH_IDS:
                image = self._metadata.topic_by_id(topic.topic_id)
                if image is None:
                    topics.append((yield from _unknown_id(topic)))
                    continue
                name = image.name
            if not context.may(Operation.WRITE, ResourceType.TOPIC, name):
                topics.append((yield from _denied(context, topic, name)))
                continue
            answers = []
            for data in topic.partition_data:
                count += 1
                # The first append to a log opens its files; the client chooses the size of a batch.
                if count > 2:
                    yield
                answer = PartitionProduceResponse(index=data.index, base_offset=-1)
                answers.append(answer)
                try:
                    partition = self._admit(name, data, context.api_version, acks)
                    if data.records[FLAGS_POSITION] & TRANSACTIONAL_BIT:
                        admission = admit_batch(
                            self._transactions,
                            request.transactional_id,
                            partition,
                            data.records,
                            context.api_version,
                        )
                        if admission is not None:
                            waiting.append(
                                self._append_admitted(
                                    admission, context, partition, data.records, request, answer
                                )
                            )
                            continue
                    if partition.hooks is None:
                        try:
                            info = partition.append(data.records, AppendOrigin.CLIENT, effort=effort)
                        except TakesTime:
                            slow.append((partition, data.records, answer))
                            continue
                        _fill(answer, info)
                        if acks and partition.high_watermark <= info.last_offset:
                            unsafe.append((partition, info, answer))
                    else:
                        waiting.append(_hand_over(partition, data.records, acks, request.timeout_ms, answer))
                except Exception as error:  # noqa: BLE001 - of one partition: the others are appended to
                    _refuse(answer, error, name)
            topics.append(
                TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=answers)
            )
        response = ProduceResponse(responses=topics)
        if slow:
            waiting.append(self._prepare_in_turn(context, slow, request))
        if waiting or unsafe:
            return self._wait(response, waiting, unsafe, request, context.listener)
        return (yield from self._answer(response, acks, context.listener))

    def repeat(self, context: RequestContext, request: ProduceRequest) -> Repeat | None:
        """Return a `Repeat` for producers that send one batch per request to a plain topic."""
        if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            return None
        topic, version, acks = request.topic_data[0], context.api_version, request.acks
        index, metadata = topic.partition_data[0].index, self._metadata
        image = metadata.topic_by_id(topic.topic_id) if version >= _FIRST_VERSION_WITH_IDS else None
        name = topic.name if image is None else image.name
        if not context.may(Operation.WRITE, ResourceType.TOPIC, name, audited=False):
            return None  # before the topic is looked up: the time must not show a denied client if it exists
        partition = self._find(name, index)
        if partition is None or partition.hooks is not None or partition.topic.internal:
            return None
        if type(partition) is not Partition or partition.closed:
            return None  # replicas are waited for
        authorizer, rights = context.authorizer, context.authorizer.version
        try:
            config = partition.log.config
            self._check_in_sync(partition, acks)
        except KafkaError:
            return None
        if config.needs_columns or config.flushes_by_count:
            return None  # these are not always answered at once
        known = metadata.version
        append, check_records = partition.append, self._check_records

        def handle(records: memoryview) -> tuple[int, int, int] | None:
            if metadata.version != known or partition.log.config is not config:
                return None
            if authorizer.version != rights:
                return None
            check_records(partition, records, version)
            if records[FLAGS_POSITION] & TRANSACTIONAL_BIT:
                return None
            try:
                info = append(records, AppendOrigin.CLIENT, effort=Effort())
            except TakesTime:
                return None
            return info.base_offset, info.log_append_time_ms, info.log_start_offset

        offset, time, start = _PLACEHOLDERS
        answer = PartitionProduceResponse(
            index=index, base_offset=offset, log_append_time_ms=time, log_start_offset=start
        )
        told = TopicProduceResponse(
            name=partition.topic.name, topic_id=topic.topic_id, partition_responses=[answer]
        )
        return Repeat(handle, ProduceResponse(responses=[told]), _PLACEHOLDERS)

    async def _wait(
        self,
        response: ProduceResponse,
        waiting: list[Coroutine[Any, Any, None]],
        unsafe: list[_Unsafe],
        request: ProduceRequest,
        listener: str,
    ) -> Work[ProduceResponse | None]:
        """Await the appends and the fsyncs. `unsafe` is in the logs already: its fsyncs run together and are awaited in
        turn.
        """
        pace = self._slices.pace()
        deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1000
        waves = [
            waiting[first : first + _AWAITED_TOGETHER] for first in range(0, len(waiting), _AWAITED_TOGETHER)
        ]
        try:
            while waves:
                wave = waves.pop(0)
                if len(wave) == 1:
                    await wave[0]
                else:
                    await asyncio.gather(*wave)
                await pace.rest()
        finally:
            for wave in waves:
                for coroutine in wave:
                    coroutine.close()
        for partition, info, answer in unsafe:
            await pace.rest()
            left_ms = int((deadline - asyncio.get_running_loop().time()) * 1000)
            await _wait_durable(partition, info, request.acks, max(left_ms, 0), answer)
        return self._answer(response, request.acks, listener)

    def _answer(self, response: ProduceResponse, acks: int, listener: str) -> Work[ProduceResponse | None]:
        count = 0
        for topic in response.responses:
            count += 1
            if not count % _ANSWERS_TOGETHER:
                yield
            for partition in topic.partition_responses:
                count += 1
                if not count % _ANSWERS_TOGETHER:
                    yield
                if not partition.error_code:
                    continue
                if acks == 0:
                    # Without acknowledgements, closing the connection is the only way to report a loss.
                    raise CloseConnection(
                        f"a produce with acks=0 to {topic.name}-{partition.index} failed: "
                        f"{partition.error_message}"
                    )
                if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._tell_leader(topic.name, partition, response, listener)
        return response if acks != 0 else None

    def _tell_leader(
        self, topic: str, answer: PartitionProduceResponse, response: ProduceResponse, listener: str
    ) -> None:
        """Name the present leader (KIP-951); versions before 10 leave it out."""
        leader = current_leader(self._metadata, topic, answer.index)
        if leader is None:
            return
        answer.current_leader = LeaderIdAndEpoch(**leader)
        where = endpoint(self._metadata, self._identity, leader["leader_id"], listener)
        if where is not None and all(known.node_id != where["node_id"] for known in response.node_endpoints):
            response.node_endpoints.append(NodeEndpoint(**where))

    async def _prepare_in_turn(
        self,
        context: RequestContext,
        slow: list[tuple[Partition, memoryview, PartitionProduceResponse]],
        request: ProduceRequest,
    ) -> None:
        """Prepare the slow batches of a request in one thread, so that other requests have threads and cores."""
        for partition, records, answer in slow:
            await self._prepare_and_append(context, partition, records, request, answer)

    async def _prepare_and_append(
        self,
        context: RequestContext,
        partition: Partition,
        records: memoryview,
        request: ProduceRequest,
        answer: PartitionProduceResponse,
        guard: Guard | None = None,
    ) -> None:
        """Check the batch, and perhaps recompress it, in a thread, then append it. The next request of the connection
        waits.
        """
        try:
            loop = asyncio.get_running_loop()
            if not self._kernel_asked_for:
                self._kernel_asked_for = True
                loop.run_in_executor(self._executor, check.load)  # its result is not awaited
            prepare = partition.log.prepare
            try:
                prepared = await loop.run_in_executor(self._executor, partial(prepare, records, large=False))
            except TakesTime:
                async with self._large_turn:
                    prepared = await loop.run_in_executor(self._executor, prepare, records)
            context.require(Operation.WRITE, ResourceType.TOPIC, partition.topic.name)
            check_guard(self._transactions, guard)
            info = partition.append(prepared, AppendOrigin.CLIENT, prepared=True)
            _fill(answer, info)
        except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
            _refuse(answer, error, partition.topic.name)
            return
        if request.acks and partition.high_watermark <= info.last_offset:
            await _wait_durable(partition, info, request.acks, request.timeout_ms, answer)

    async def _append_admitted(
        self,
        admission: Awaitable[Guard | None],
        context: RequestContext,
        partition: Partition,
        records: memoryview,
        request: ProduceRequest,
        answer: PartitionProduceResponse,
    ) -> None:
        """Append once the journal of transactions knows the partition."""
        guard = None
        try:
            guard = await admission
            context.require(Operation.WRITE, ResourceType.TOPIC, partition.topic.name)
            check_guard(self._transactions, guard)
            try:
                info = partition.append(records, AppendOrigin.CLIENT, effort=Effort())
            except TakesTime:
                await self._prepare_and_append(context, partition, records, request, answer, guard)
                return
            _fill(answer, info)
        except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
            _refuse(answer, error, partition.topic.name)
            return
        finally:
            self._transactions.guards.release(guard)
        if request.acks and partition.high_watermark <= info.last_offset:
            await _wait_durable(partition, info, request.acks, request.timeout_ms, answer)

    def _admit(self, topic: str, data: PartitionProduceData, version: int, acks: int) -> Partition:
        """Return the partition for the batch. Raises KafkaError for what can be checked without reading records."""
        partition = self._find(topic, data.index)
        if partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {data.index} of topic {topic!r} does not exist",
            )
        if partition.topic.internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic; clients cannot write to it"
            )
        partition.check_served()
        self._check_records(partition, data.records, version)
        self._check_in_sync(partition, acks)
        return partition

    @staticmethod
    def _check_in_sync(partition: Partition, acks: int) -> None:
        if acks != -1:
            return
        needed = partition.needed_in_sync
        if needed > partition.in_sync_count:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"topic {partition.topic.name} needs min.insync.replicas={needed}; "
                f"{partition.in_sync_count} in sync",
            )

    @staticmethod
    def _check_records(partition: Partition, records: memoryview | None, version: int) -> None:
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


async def _hand_over(
    partition: Partition, records: memoryview, acks: int, timeout_ms: int, answer: PartitionProduceResponse
) -> None:
    try:
        partition.check_served()
        assert partition.hooks is not None
        _fill(answer, await partition.hooks.produce(records, acks, timeout_ms))
    except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
        _refuse(answer, error, partition.topic.name)


async def _wait_durable(
    partition: Partition, info: AppendInfo, acks: int, timeout_ms: int, answer: PartitionProduceResponse
) -> None:
    """Wait until a batch in the log is as durable as `acks` requires."""
    try:
        if not await partition.wait_acknowledged(info.last_offset + 1, acks, timeout_ms):
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"appended at offset {info.base_offset}, but not on disk, or on all replicas, within {timeout_ms} ms",
            )
    except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
        _refuse(answer, error, partition.topic.name)
        answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1


def _denied(context: RequestContext, topic: TopicProduceData, name: str) -> Work[TopicProduceResponse]:
    """Answer denied topics. Without DESCRIBE, a topic id is answered as an unknown one."""
    by_id = context.api_version >= _FIRST_VERSION_WITH_IDS
    if by_id and not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name, audited=False):
        return (yield from _unknown_id(topic))
    return (yield from _failed_topic(topic, denied(ResourceType.TOPIC)))


def _unknown_id(topic: TopicProduceData) -> Work[TopicProduceResponse]:
    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic id {topic.topic_id} is unknown")
    return (yield from _failed_topic(topic, error))


def _failed_topic(topic: TopicProduceData, error: KafkaError) -> Work[TopicProduceResponse]:
    response = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
    for data in topic.partition_data:
        yield
        response.partition_responses.append(
            PartitionProduceResponse(
                index=data.index, error_code=error.code, error_message=error.message, base_offset=-1
            )
        )
    return response


def _fill(answer: PartitionProduceResponse, info: AppendInfo) -> None:
    answer.base_offset = info.base_offset
    answer.log_append_time_ms = info.log_append_time_ms
    answer.log_start_offset = info.log_start_offset


def _refuse(answer: PartitionProduceResponse, error: Exception, topic: str) -> None:
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


def _failed(request: ProduceRequest, version: int, error: KafkaError) -> Work[ProduceResponse]:
    """Answer every partition of the request with the same error."""
    if request.acks == 0:
        raise CloseConnection(f"a produce with acks=0 failed: {error}")
    response = ProduceResponse(responses=[])
    for topic in request.topic_data:
        yield
        response.responses.append((yield from _failed_topic(topic, error)))
    return response
