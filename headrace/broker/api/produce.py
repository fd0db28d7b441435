"""Produce (0): append batches, one `ProducedBatch` for each partition.

A batch that needs no wait is appended on the event loop, and the answer is made in the same call. All that has to be
awaited for a request is awaited together, and the fsyncs of `durability=power` run together.

Version 0 is advertised and never accepted: old clients infer the broker's features from the advertised minimum
(KAFKA-18659), and send 3 or newer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor
from typing import Any

from headrace.broker.api.produced_batch import (
    ANSWER,
    PREPARE,
    WAIT,
    Preparation,
    ProducedBatch,
    Production,
    check_in_sync,
    check_records,
)
from headrace.broker.cluster.endpoints import current_leader, endpoint
from headrace.broker.log.partition_log import AppendOrigin
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
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.protocol.records.check import Effort, TakesTime
from headrace.protocol.records.header import FLAGS_POSITION, TRANSACTIONAL_BIT

_FIRST_VERSION_WITH_IDS = 13
_PLACEHOLDERS = (0x6B1D_A2E4_97C3_5F08, 0x2E97_04D8_B16A_F35C, 0x51F8_3C6E_0AD9_72B4)
_ANSWERS_TOGETHER = 8
"""Number of answers of one request that are handled without letting others run."""
_AWAITED_TOGETHER = 100
"""Maximum number of partitions of one request that are handled concurrently: many times what clients send."""


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
        self._preparation = Preparation(executor)
        self._slices = slices

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
        production = Production(request, context, self._find, self._transactions, self._preparation)
        turns: list[list[ProducedBatch]] = []
        slow: list[ProducedBatch] = []
        written: list[ProducedBatch] = []
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
                batch = ProducedBatch(name, data, production)
                batch.begin(effort)
                answers.append(batch.answer)
                step = batch.next
                if step is PREPARE:
                    slow.append(batch)
                elif step is WAIT:
                    written.append(batch)
                elif step is not ANSWER:
                    turns.append([batch])
            topics.append(
                TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=answers)
            )
        response = ProduceResponse(responses=topics)
        if slow:
            turns.append(slow)
        if turns or written:
            return self._wait(response, turns, written, request, context.listener)
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
            check_in_sync(partition, acks)
        except KafkaError:
            return None
        if config.needs_columns or config.flushes_by_count:
            return None  # these are not always answered at once
        known = metadata.version
        append = partition.append

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
        turns: list[list[ProducedBatch]],
        written: list[ProducedBatch],
        request: ProduceRequest,
        listener: str,
    ) -> Work[ProduceResponse | None]:
        """Finish the batches of each turn one after the other, and the turns together. Then wait for `written`, whose
        fsyncs run together.
        """
        pace = self._slices.pace()
        deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1000
        for first in range(0, len(turns), _AWAITED_TOGETHER):
            together = turns[first : first + _AWAITED_TOGETHER]
            if len(together) == 1:
                await _finish(together[0])
            else:
                await asyncio.gather(*map(_finish, together))
            await pace.rest()
        for batch in written:
            await pace.rest()
            left_ms = int((deadline - asyncio.get_running_loop().time()) * 1000)
            await batch.wait(max(left_ms, 0))
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


async def _finish(batches: list[ProducedBatch]) -> None:
    for batch in batches:
        await batch.finish()


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


def _failed(request: ProduceRequest, version: int, error: KafkaError) -> Work[ProduceResponse]:
    """Answer every partition of the request with the same error."""
    if request.acks == 0:
        raise CloseConnection(f"a produce with acks=0 failed: {error}")
    response = ProduceResponse(responses=[])
    for topic in request.topic_data:
        yield
        response.responses.append((yield from _failed_topic(topic, error)))
    return response
