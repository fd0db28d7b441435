"""ListOffsets (2), OffsetForLeaderEpoch (23), DeleteRecords (21): the start and end of partitions.

ListOffsets for "earliest" and "latest" only reads two attributes: Spark asks twice per poll. For a timestamp it may
have to open a batch, large ones in a thread, or search remote storage. All three let others run between partitions, of
which a client may name any number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial

from headrace.broker.api.fetch_reading import ISOLATION_LEVELS, check_leader_epoch
from headrace.broker.log.time_lookup import BatchTakesTime, Opened
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.remote_log import RemoteLog
from headrace.broker.replication.replicas import LocalReplicas
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.protocol.records.check import Effort

logger = logging.getLogger("headrace.api")

READ_COMMITTED = 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
_FIRST_VERSION_WITH_EPOCH = 4
_FIRST_VERSION_WITH_UNKNOWN_END = 5
_SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING: 11,
}


class OffsetsApi:
    def __init__(self, replicas: LocalReplicas, executor: Executor) -> None:
        self._find = replicas.find_partition
        self._executor = executor

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                ListOffsetsRequest, ListOffsetsResponse, self.list_offsets, within(topic=Operation.DESCRIBE)
            ),
            ApiDeclaration(
                OffsetForLeaderEpochRequest,
                OffsetForLeaderEpochResponse,
                self.offset_for_leader_epoch,
                within(topic=Operation.DESCRIBE, cluster=Operation.CLUSTER_ACTION),
            ),
            ApiDeclaration(
                DeleteRecordsRequest,
                DeleteRecordsResponse,
                self.delete_records,
                within(topic=Operation.DELETE),
            ),
        ]

    def list_offsets(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> Work[ListOffsetsResponse | Awaitable[ListOffsetsResponse]]:
        effort = Effort()
        waiting: list[Callable[[], Awaitable[None]]] = []
        response = ListOffsetsResponse(topics=[])
        committed = request.isolation_level == READ_COMMITTED
        for topic in request.topics:
            yield
            is_seen = context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
            answers = []
            for wanted in topic.partitions:
                yield
                answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
                answers.append(answer)
                if not is_seen:
                    answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                if request.isolation_level not in ISOLATION_LEVELS:
                    answer.error_code = ErrorCode.INVALID_REQUEST
                    continue
                partition = self._find(topic.name, wanted.partition_index)
                if partition is None:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                remote = partition.remote
                if partition.is_open and remote is not None and _may_be_remote(partition, wanted):
                    version = context.api_version
                    waiting.append(
                        partial(_look_up_everywhere, partition, remote, wanted, version, committed, answer)
                    )
                    continue
                opened = Opened(effort)
                look_up = partial(_look_up, partition, wanted, context.api_version, committed, answer, opened)
                try:
                    look_up()
                except BatchTakesTime:
                    waiting.append(partial(self._look_up, look_up, answer, opened))
                except KafkaError as error:
                    answer.error_code = error.code
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return self._wait(response, waiting) if waiting else response

    async def _wait(
        self, response: ListOffsetsResponse, waiting: list[Callable[[], Awaitable[None]]]
    ) -> ListOffsetsResponse:
        """Run the look-ups one after the other: each may take as much memory as a batch decompresses to."""
        for look_up in waiting:
            await look_up()
        return response

    async def _look_up(
        self,
        look_up: Callable[[], None],
        answer: ListOffsetsPartitionResponse,
        opened: Opened,
    ) -> None:
        """Open batches in a thread until the search is done."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    look_up()
                    return
                except BatchTakesTime as found:
                    stamps = await loop.run_in_executor(self._executor, found.read())
                    opened.known[found.base_offset] = stamps
        except KafkaError as error:
            answer.error_code = error.code

    def offset_for_leader_epoch(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> Work[OffsetForLeaderEpochResponse]:
        response = OffsetForLeaderEpochResponse(topics=[])
        is_follower = context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME, audited=False)
        for topic in request.topics:
            yield
            is_seen = is_follower or context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
            answers = []
            for wanted in topic.partitions:
                yield
                answer = EpochEndOffset(partition=wanted.partition)
                answers.append(answer)
                if not is_seen:
                    answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                partition = self._find(topic.topic, wanted.partition)
                if partition is None:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                try:
                    check_leader_epoch(partition, wanted.current_leader_epoch)
                    answer.leader_epoch, answer.end_offset = partition.log.epoch_end_offset(
                        wanted.leader_epoch
                    )
                except KafkaError as error:
                    answer.error_code = error.code
            response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        return response

    def delete_records(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> Work[DeleteRecordsResponse]:
        response = DeleteRecordsResponse(topics=[])
        for topic in request.topics:
            yield
            answers = []
            for wanted in topic.partitions:
                yield
                answer = DeleteRecordsPartitionResult(
                    partition_index=wanted.partition_index, low_watermark=-1
                )
                answers.append(answer)
                try:
                    context.require(Operation.DELETE, ResourceType.TOPIC, topic.name)
                    answer.low_watermark = self._delete(topic.name, wanted.partition_index, wanted.offset)
                except KafkaError as error:
                    answer.error_code = error.code
                    if error.code is ErrorCode.POLICY_VIOLATION:  # no version has room for a reason
                        logger.warning("DeleteRecords was refused: %s", error.message)
            response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=answers))
        return response

    def _delete(self, topic: str, index: int, offset: int) -> int:
        partition = self._find(topic, index)
        if partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{index} does not exist"
            )
        if partition.topic.internal:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"records of {topic} cannot be deleted: the brokers need them"
            )
        if partition.hooks is not None and partition.hooks.retention_floor() is not None:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"records of {topic} cannot be deleted: its extension needs them until retention deletes them",
            )
        if offset < -1:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is negative")
        partition.log  # noqa: B018 - opened here, so that the high watermark below is its own
        return partition.delete_records(partition.high_watermark if offset == -1 else offset)


def _look_up(
    partition: Partition,
    wanted: ListOffsetsPartition,
    version: int,
    committed: bool,
    answer: ListOffsetsPartitionResponse,
    opened: Opened,
) -> None:
    log = partition.log
    check_leader_epoch(partition, wanted.current_leader_epoch)
    timestamp = wanted.timestamp
    if timestamp < 0 and version < _SINCE_VERSION.get(timestamp, version + 1):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}"
        )
    if not partition.is_end_known and timestamp not in (EARLIEST, EARLIEST_LOCAL):
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE
            if version >= _FIRST_VERSION_WITH_UNKNOWN_END
            else ErrorCode.LEADER_NOT_AVAILABLE,
            "the new leader does not know the high watermark of the previous leader yet; try again",
        )
    if timestamp == LATEST:
        answer.offset = partition.last_stable_offset if committed else partition.high_watermark
        answer.leader_epoch = partition.leader_epoch
    elif timestamp == EARLIEST:
        answer.offset = log.log_start_offset
        answer.leader_epoch = _epoch_of_next(partition, answer.offset)
    elif timestamp == EARLIEST_LOCAL:
        answer.offset = log.local_start_offset
        answer.leader_epoch = _epoch_of_next(partition, answer.offset)
    elif timestamp == LATEST_TIERED:
        if log.tiered_to > log.log_start_offset:  # otherwise there are no such records: -1, -1
            answer.offset = log.tiered_to - 1
            answer.leader_epoch = log.epoch_at(log.tiered_to - 1)
    elif timestamp == EARLIEST_PENDING:
        if log.config.remote_storage_enable:  # otherwise nothing waits for remote storage: -1, -1
            answer.offset = max(log.log_start_offset, log.tiered_to)
            answer.leader_epoch = log.epoch_at(answer.offset)
    else:
        found = (
            log.max_timestamp(opened)
            if timestamp == MAX_TIMESTAMP
            else log.offset_for_timestamp(timestamp, opened)
        )
        end_offset = partition.last_stable_offset if committed else partition.high_watermark
        if found is not None and found[0] < end_offset:
            answer.offset, answer.timestamp, answer.leader_epoch = found
    if version < _FIRST_VERSION_WITH_EPOCH:
        answer.leader_epoch = -1


def _epoch_of_next(partition: Partition, offset: int) -> int:
    """Return the epoch of the record at an offset, or that of the leader if the record is still to come."""
    log = partition.log
    return log.epoch_at(offset) if offset < log.log_end_offset else partition.leader_epoch


def _may_be_remote(partition: Partition, wanted: ListOffsetsPartition) -> bool:
    """Return whether an offset by timestamp may be only in remote storage."""
    log = partition.log
    by_time = wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP
    return by_time and log.local_start_offset > log.log_start_offset


async def _look_up_everywhere(
    partition: Partition,
    remote: RemoteLog,
    wanted: ListOffsetsPartition,
    version: int,
    committed: bool,
    answer: ListOffsetsPartitionResponse,
) -> None:
    """Look up by timestamp, in remote storage first, then in the local log."""
    try:
        log = partition.log
        local = ListOffsetsPartitionResponse(partition_index=answer.partition_index)
        _look_up(partition, wanted, version, committed, local, Opened())
        start_offset = log.log_start_offset
        if wanted.timestamp == MAX_TIMESTAMP:
            found = await remote.max_timestamp(start_offset)
            if found is not None and local.offset >= 0 and local.timestamp > found[1]:
                found = None
        else:
            found = await remote.offset_for_timestamp(wanted.timestamp, start_offset)
        end_offset = partition.last_stable_offset if committed else partition.high_watermark
        if found is None or found[0] >= end_offset:
            found = local.offset, local.timestamp, local.leader_epoch
        answer.offset, answer.timestamp, answer.leader_epoch = found
        if version < _FIRST_VERSION_WITH_EPOCH:
            answer.leader_epoch = -1
    except KafkaError as error:
        answer.error_code = error.code
