"""The transaction APIs on the wire: requests to events, results to responses.

Clients send versions 0 to 3 of AddPartitionsToTxn. Later versions are for brokers: the leader of a partition asks the
coordinator whether a write is part of a transaction, or announces that it is (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headrace.broker.groups.handlers.offset_commit import prepared
from headrace.broker.groups.model.records import CommittedOffset
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.transactions.admission import (
    FIRST_OFFSET_COMMIT_OF_VERSION_2,
    by_other_coordinator,
    part_of_transaction,
)
from headrace.broker.transactions.events import AddPartitions, EndTransaction, Result
from headrace.broker.transactions.markers import Marker, write_marker
from headrace.broker.transactions.model import TopicPartition
from headrace.broker.transactions.others import SendersOfMarkers
from headrace.broker.transactions.state import RAISES_EPOCH, needs_producer_id
from headrace.broker.transactions.verification import Guard
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import Clock
    from headrace.broker.transactions.coordinator import TransactionCoordinator

_FIRST_ADD_OF_BROKERS = 4
_FIRST_ADD_WITH_ABORTABLE = 5
_FIRST_VERSION_WITH_FENCED = 2
_FIRST_END_OF_VERSION_2 = 5
_FIRST_OFFSET_COMMIT_WITH_ABORTABLE = 4

Errors = Mapping[tuple[str, int], ErrorCode]


class TransactionHandlers:
    def __init__(
        self,
        coordinator: TransactionCoordinator,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        allocate_producer_id: Callable[[], Awaitable[int]],
        clock: Clock,
        slices: Slices,
    ) -> None:
        self._coordinator = coordinator
        self._groups = coordinator.groups
        self._metadata = metadata
        self._replicas = replicas
        self._allocate_producer_id = allocate_producer_id
        self._clock = clock
        self._slices = slices
        self._senders = SendersOfMarkers(self._is_broker)

    def _is_broker(self, client_id: str) -> bool:
        name, _, number = client_id.rpartition("-")
        return name == "broker" and number.isdecimal() and int(number) in self._metadata.image.brokers

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                AddPartitionsToTxnRequest,
                AddPartitionsToTxnResponse,
                self.add_partitions,
                within(
                    transactional_id=Operation.WRITE, topic=Operation.WRITE, cluster=Operation.CLUSTER_ACTION
                ),
                on_error=_failed_add,
            ),
            ApiDeclaration(
                AddOffsetsToTxnRequest,
                AddOffsetsToTxnResponse,
                self.add_offsets,
                within(transactional_id=Operation.WRITE, group=Operation.READ),
            ),
            ApiDeclaration(EndTxnRequest, EndTxnResponse, self.end, within(transactional_id=Operation.WRITE)),
            ApiDeclaration(
                WriteTxnMarkersRequest,
                WriteTxnMarkersResponse,
                self.write_markers,
                within(cluster=(Operation.ALTER, Operation.CLUSTER_ACTION)),
                on_error=_failed_markers,
            ),
            ApiDeclaration(
                TxnOffsetCommitRequest,
                TxnOffsetCommitResponse,
                self.commit_offsets,
                within(transactional_id=Operation.WRITE, group=Operation.READ, topic=Operation.READ),
                on_error=_failed_commit,
            ),
        ]

    # -- what belongs to a transaction ---------------------------------------------------------------------

    def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> Work[AddPartitionsToTxnResponse | Awaitable[Any]]:
        """Add all partitions or none. Partitions of tables are ignored, because tables cannot be part of transactions:
        producing to one is refused with a message, for which this answer has no room.
        """
        if context.api_version >= _FIRST_ADD_OF_BROKERS:
            return self._add_for_brokers(context, request)
        transactional_id = request.v3_and_below_transactional_id
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        error = self._coordinator.refusal(transactional_id)
        if error is not ErrorCode.NONE:
            return (yield from _added(request, error, {}))
        wanted: set[tuple[str, int]] = set()
        bad: dict[tuple[str, int], ErrorCode] = {}
        for topic in request.v3_and_below_topics:
            yield
            may_write = context.may(Operation.WRITE, ResourceType.TOPIC, topic.name)
            for index in topic.partitions:
                yield
                code = (
                    self._cannot_join(topic.name, index)
                    if may_write
                    else ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
                if code is not ErrorCode.NONE:
                    bad[topic.name, index] = code
                elif not self._is_table(topic.name, index):
                    wanted.add((topic.name, index))
        if bad:
            return (yield from _added(request, ErrorCode.OPERATION_NOT_ATTEMPTED, bad))
        error = self._coordinator.refusal(transactional_id)  # the coordinator may have begun to stop
        if error is not ErrorCode.NONE:
            return (yield from _added(request, error, {}))
        outcome = self._coordinator.submit(
            transactional_id,
            lambda token: AddPartitions(
                token,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                frozenset(wanted),
            ),
            lambda result: _fenced_in(result.error, context),
        )
        if isinstance(outcome, asyncio.Future):
            return _added_later(request, outcome)
        return (yield from _added(request, outcome, {}))

    async def _add_for_brokers(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        """Add each partition by itself: a leader asks for the partitions that it is about to write."""
        context.require(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        pace = self._slices.pace()
        response = AddPartitionsToTxnResponse()
        for asked in request.transactions:
            result = AddPartitionsToTxnResult(transactional_id=asked.transactional_id)
            response.results_by_transaction.append(result)
            producer = asked.producer_id, asked.producer_epoch
            for topic in asked.topics:
                told = AddPartitionsToTxnTopicResult(name=topic.name)
                result.topic_results.append(told)
                for index in topic.partitions:
                    await pace.rest()
                    code = self._coordinator.refusal(asked.transactional_id)
                    if code is ErrorCode.NONE:
                        answer = part_of_transaction(
                            self._coordinator,
                            asked.transactional_id,
                            producer,
                            (topic.name, index),
                            announces=not asked.verify_only,
                        )
                        code = answer if isinstance(answer, ErrorCode) else await answer
                    if (
                        code is ErrorCode.TRANSACTION_ABORTABLE
                        and context.api_version < _FIRST_ADD_WITH_ABORTABLE
                    ):
                        code = ErrorCode.INVALID_TXN_STATE
                    told.results_by_partition.append(
                        AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                    )
        return response

    def _cannot_join(self, topic: str, index: int) -> ErrorCode:
        """Return the reason why a partition cannot be part of a client's transaction, or NONE."""
        partition = self._replicas.find_partition(topic, index)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition.topic.internal:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return ErrorCode.NONE

    def _is_table(self, topic: str, index: int) -> bool:
        """Return whether the topic is a table, as far as this broker knows. If another broker is the leader, it reports
        a table when it ends the transaction.
        """
        partition = self._replicas.find_partition(topic, index)
        return partition is not None and partition.hooks is not None

    async def add_offsets(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse:
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        context.require(Operation.READ, ResourceType.GROUP, request.group_id)
        error = self._coordinator.refusal(request.transactional_id)
        if error is ErrorCode.NONE and not request.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        if error is ErrorCode.NONE:
            await self._groups.journal.ensure()
            added = frozenset({self._journal_partition(request.group_id)})
            outcome = self._coordinator.submit(
                request.transactional_id,
                lambda token: AddPartitions(token, request.producer_id, request.producer_epoch, added),
                lambda result: result.error,
            )
            error = await outcome if isinstance(outcome, asyncio.Future) else outcome
        return AddOffsetsToTxnResponse(error_code=_fenced_in(error, context))

    def _journal_partition(self, group_id: str) -> TopicPartition:
        """Return the partition that the group's offsets are written to; the topic must exist."""
        return self._groups.journal.name, self._groups.journal.index_of(group_id)

    async def commit_offsets(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> Work[TxnOffsetCommitResponse]:
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        context.require(Operation.READ, ResourceType.GROUP, request.group_id)
        if not request.group_id:
            return _committed(request, ErrorCode.INVALID_GROUP_ID, {})
        await self._groups.journal.ensure()
        error = self._groups.unavailable(request.group_id)
        if error is not ErrorCode.NONE:
            return _committed(request, error, {})
        slices, producer = self._slices, (request.producer_id, request.producer_epoch)
        offsets, errors = await slices.run(self._offsets(context, request))
        try:
            batch = await slices.run(prepared(self._groups, request.group_id, offsets, errors, producer))
        except KafkaError as refused:
            return _committed(request, refused.code, errors)
        guard = None
        try:
            # last, because the transaction must not end in between
            error, guard = await self._admit_offsets(context, request)
            if error is ErrorCode.NONE:
                error = self._groups.unavailable(request.group_id)
            if error is ErrorCode.NONE and guard is not None and not self._coordinator.guards.holds(guard):
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # a code that clients repeat
        finally:
            self._coordinator.guards.release(guard)
        if error is not ErrorCode.NONE:
            return _committed(request, error, errors)
        outcome = self._groups.commit_in_transaction(
            request.group_id,
            producer=producer,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            offsets=offsets,
            batch=batch,
        )
        result = await outcome if isinstance(outcome, asyncio.Future) else outcome
        return _committed(request, result.error, {**errors, **result.errors})

    async def _admit_offsets(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> tuple[ErrorCode, Guard | None]:
        version = context.api_version
        producer = request.producer_id, request.producer_epoch
        place = self._journal_partition(request.group_id)
        announces = version >= FIRST_OFFSET_COMMIT_OF_VERSION_2
        error, guard = self._coordinator.refusal(request.transactional_id), None
        if error is ErrorCode.NONE:
            admission = part_of_transaction(
                self._coordinator, request.transactional_id, producer, place, announces=announces
            )
            error = admission if isinstance(admission, ErrorCode) else await admission
        elif error is ErrorCode.NOT_COORDINATOR:
            try:
                error, guard = await by_other_coordinator(
                    self._coordinator,
                    request.transactional_id,
                    producer,
                    self._replicas.partition(*place),
                    announces=announces,
                )
            except KafkaError:  # another broker has the group now
                error = ErrorCode.NOT_COORDINATOR
        return self._told_of_offsets(error, version), guard

    @staticmethod
    def _told_of_offsets(error: ErrorCode, version: int) -> ErrorCode:
        """Return the error code that clients of a version are told for a commit of offsets."""
        if error is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_OFFSET_COMMIT_WITH_ABORTABLE:
            return ErrorCode.INVALID_TXN_STATE
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_OFFSET_COMMIT_OF_VERSION_2:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # a code that these versions retry
        return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error

    def _offsets(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> Work[tuple[dict[tuple[str, int], CommittedOffset], dict[tuple[str, int], ErrorCode]]]:
        """Return the offsets to store, and the partitions that do not exist."""
        now_ms = self._clock.time_ms()
        offsets: dict[tuple[str, int], CommittedOffset] = {}
        errors: dict[tuple[str, int], ErrorCode] = {}
        for topic in request.topics:
            yield
            may_read = context.may(Operation.READ, ResourceType.TOPIC, topic.name)
            for partition in topic.partitions:
                yield
                key = (topic.name, partition.partition_index)
                if not may_read:
                    errors[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                if self._replicas.find_partition(*key) is None:
                    errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                offsets[key] = CommittedOffset(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata or "",
                    commit_timestamp_ms=now_ms,
                )
        return offsets, errors

    # -- the end -------------------------------------------------------------------------------------------

    def end(
        self, context: RequestContext, request: EndTxnRequest
    ) -> EndTxnResponse | Awaitable[EndTxnResponse]:
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        error = self._coordinator.refusal(request.transactional_id)
        if error is not ErrorCode.NONE:
            return EndTxnResponse(error_code=error)
        event = EndTransaction(
            0,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            client_version=RAISES_EPOCH if context.api_version >= _FIRST_END_OF_VERSION_2 else 1,
        )
        if needs_producer_id(self._coordinator.transaction(request.transactional_id), event):
            return self._end_with_new_id(context, request, event)
        return self._end(context, request, event)

    async def _end_with_new_id(
        self, context: RequestContext, request: EndTxnRequest, event: EndTransaction
    ) -> EndTxnResponse:
        event = replace(event, new_producer_id=await self._allocate_producer_id())
        answer = self._end(context, request, event)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def _end(
        self, context: RequestContext, request: EndTxnRequest, event: EndTransaction
    ) -> EndTxnResponse | asyncio.Future[EndTxnResponse]:
        return self._coordinator.submit(
            request.transactional_id,
            lambda token: replace(event, token=token),
            lambda result: self._ended(context, result),
        )

    def _ended(self, context: RequestContext, result: Result) -> EndTxnResponse:
        return EndTxnResponse(
            error_code=_fenced_in(result.error, context),
            producer_id=result.producer_id,
            producer_epoch=result.producer_epoch,
        )

    async def write_markers(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """Write markers for administrators who end a hanging transaction (KIP-664), and for brokers."""
        if not context.may(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
            context.require(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        self._senders.check(context.client_id, context.connection_id)
        results = []
        pace = self._slices.pace()
        for entry in request.markers:
            await pace.rest()
            marker = Marker(
                entry.producer_id,
                entry.producer_epoch,
                entry.transaction_result,
                entry.coordinator_epoch,
                entry.transaction_version,
            )
            topics = []
            for topic in entry.topics:
                partitions = []
                for index in topic.partition_indexes:
                    await pace.rest()
                    error = await self._write_marker(topic.name, index, marker)
                    partitions.append(
                        WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                    )
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
            results.append(WritableTxnMarkerResult(producer_id=entry.producer_id, topics=topics))
        return WriteTxnMarkersResponse(markers=results)

    async def _write_marker(self, topic: str, index: int, marker: Marker) -> ErrorCode:
        stored: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        try:
            now_ms = self._clock.time_ms()
            if write_marker(
                self._replicas,
                self._groups,
                topic,
                index,
                marker,
                now_ms,
                stored.set_result,
                self._coordinator.guards,
            ):
                return ErrorCode.NONE
        except KafkaError as error:
            return error.code
        failed = await stored
        return ErrorCode.NONE if failed is None else failed.code


def _fenced_in(error: ErrorCode, context: RequestContext) -> ErrorCode:
    """Return the code for versions before 2 of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn, which do not know
    PRODUCER_FENCED.
    """
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < _FIRST_VERSION_WITH_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _added(
    request: AddPartitionsToTxnRequest, error: ErrorCode, errors: Errors
) -> Work[AddPartitionsToTxnResponse]:
    """Return the results: `error` for every partition that has no error of its own in `errors`."""
    response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[])
    for topic in request.v3_and_below_topics:
        yield
        told = AddPartitionsToTxnTopicResult(name=topic.name)
        response.results_by_topic_v3_and_below.append(told)
        for index in topic.partitions:
            yield
            told.results_by_partition.append(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=errors.get((topic.name, index), error)
                )
            )
    return response


async def _added_later(
    request: AddPartitionsToTxnRequest, outcome: asyncio.Future[ErrorCode]
) -> Work[AddPartitionsToTxnResponse]:
    return _added(request, await outcome, {})


def _failed_add(
    request: AddPartitionsToTxnRequest, version: int, error: KafkaError
) -> Work[AddPartitionsToTxnResponse] | AddPartitionsToTxnResponse:
    if version >= _FIRST_ADD_OF_BROKERS:
        return AddPartitionsToTxnResponse(error_code=error.code)
    return _added(request, error.code, {})


def _committed(
    request: TxnOffsetCommitRequest, error: ErrorCode, errors: Errors
) -> Work[TxnOffsetCommitResponse]:
    response = TxnOffsetCommitResponse(topics=[])
    for topic in request.topics:
        yield
        told = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(told)
        for partition in topic.partitions:
            yield
            index = partition.partition_index
            told.partitions.append(
                TxnOffsetCommitResponsePartition(
                    partition_index=index, error_code=errors.get((topic.name, index), error)
                )
            )
    return response


def _failed_commit(
    request: TxnOffsetCommitRequest, version: int, error: KafkaError
) -> Work[TxnOffsetCommitResponse]:
    return _committed(request, error.code, {})


def _failed_markers(
    request: WriteTxnMarkersRequest, version: int, error: KafkaError
) -> Work[WriteTxnMarkersResponse]:
    response = WriteTxnMarkersResponse(markers=[])
    for entry in request.markers:
        yield
        marker = WritableTxnMarkerResult(producer_id=entry.producer_id, topics=[])
        response.markers.append(marker)
        for topic in entry.topics:
            yield
            told = WritableTxnMarkerTopicResult(name=topic.name)
            marker.topics.append(told)
            for index in topic.partition_indexes:
                yield
                told.partitions.append(
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=error.code)
                )
    return response
