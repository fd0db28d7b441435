"""A transactional producer of either transaction version for a `DirectBroker`, and the view of its consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.protocol.records.control import read_end_marker
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers
from simulator.direct import DirectBroker, values_of

TV1, TV2 = 1, 2
PRODUCE = {TV1: 11, TV2: 12}
END = {TV1: 4, TV2: 5}
COMMIT_OFFSETS = {TV1: 4, TV2: 5}


T = TypeVar("T")


class Client:
    """The producer. `identity` is its id and epoch; `sequences` has the next one by partition."""

    def __init__(
        self, broker: DirectBroker, name: str = "tx", version: int = TV1, *, timeout_ms: int = 60_000
    ) -> None:
        """Create a producer. `timeout_ms` is how long a batch may wait for its replicas and its fsync."""
        self.broker, self.name, self.version = broker, name, version
        self._timeout_ms = timeout_ms
        self.identity = (-1, -1)
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, timeout_ms: int = 60_000, version: int = 5, **more: Any) -> ErrorCode:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=timeout_ms, **more)
        answer = await self.broker.send(request, version)
        if not answer.error_code:
            self.identity = (answer.producer_id, answer.producer_epoch)
            self.sequences = {}
        return ErrorCode(answer.error_code)

    async def add(self, *partitions: tuple[str, int], version: int = 3) -> list[ErrorCode]:
        topics = [AddPartitionsToTxnTopic(name=name, partitions=[index]) for name, index in partitions]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.identity[0],
            v3_and_below_producer_epoch=self.identity[1],
            v3_and_below_topics=topics,
        )
        answer = await self.broker.send(request, version)
        return [
            ErrorCode(result.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]

    async def send(
        self,
        values: Sequence[bytes],
        topic: str = "a",
        partition: int = 0,
        *,
        sequence: int | None = None,
        transactional: bool = True,
        version: int | None = None,
        timestamp: int = -1,
    ) -> PartitionProduceResponse:
        key = (topic, partition)
        first = self.sequences.get(key, 0) if sequence is None else sequence
        batch = build_batch(
            [Record(None, value, (), timestamp) for value in values],
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=first,
            attributes=0x10 if transactional else 0,
        )
        data = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        request = ProduceRequest(
            transactional_id=self.name, acks=-1, timeout_ms=self._timeout_ms, topic_data=[data]
        )
        answer = await self.broker.send(request, version or PRODUCE[self.version])
        result: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        if not result.error_code:
            self.sequences[key] = first + len(values)
        return result

    async def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], **member: Any
    ) -> list[ErrorCode]:
        topics = [
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset)],
            )
            for (topic, index), offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            topics=topics,
            **member,
        )
        answer = await self.broker.send(request, COMMIT_OFFSETS[self.version])
        return [ErrorCode(p.error_code) for topic in answer.topics for p in topic.partitions]

    async def end(self, commit: bool, version: int | None = None) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            committed=commit,
        )
        answer = await self.broker.send(request, version or END[self.version])
        if self.version == TV2 and not answer.error_code:
            self.identity = (answer.producer_id, answer.producer_epoch)
            self.sequences = {}
        return ErrorCode(answer.error_code)


async def committed_values(broker: DirectBroker, topic: str = "a", partition: int = 0) -> list[bytes | None]:
    """Return the records of the partition that a read_committed consumer sees, without aborted records and markers."""
    values: list[bytes | None] = []
    offset, aborting = 0, set()
    while True:
        part = await broker.fetch(topic, offset, partition=partition, isolation_level=1)
        if part.error_code:
            raise RuntimeError(f"fetch from {topic}-{partition} at {offset}: error {part.error_code}")
        data = bytes(part.records or b"")
        if not data:
            return values
        starts = sorted((entry.first_offset, entry.producer_id) for entry in part.aborted_transactions or ())
        for position, header in iter_headers(data):
            while starts and starts[0][0] <= header.last_offset:
                aborting.add(starts.pop(0)[1])
            batch = data[position : position + header.size]
            if header.is_control:
                if not read_end_marker(batch).commit:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                values += [value for at, value in values_of(batch) if at >= offset]
            offset = header.next_offset


async def position(
    broker: DirectBroker, group: str = "g", topic: str = "a", partition: int = 0, stable: bool = False
) -> int | ErrorCode:
    """Return the group's committed offset, or the error."""
    wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)], require_stable=stable
    )
    found = (await broker.send(request, 9)).groups[0]
    if found.error_code:
        return ErrorCode(found.error_code)
    answer = found.topics[0].partitions[0]
    offset: int = answer.committed_offset
    return ErrorCode(answer.error_code) if answer.error_code else offset


async def until(ask: Callable[[], Awaitable[T]], is_wanted: Callable[[T], bool]) -> T:
    """Ask until the answer is the wanted one, and return it."""
    for _ in range(6000):
        answer = await ask()
        if is_wanted(answer):
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(f"still {answer!r}")


def loaded(answer: object) -> bool:
    return answer is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def place_of(request: Any) -> tuple[str, int] | None:
    """Return the partition of a request to its leader; None for one to a coordinator."""
    match request:
        case ProduceRequest():
            topic = request.topic_data[0]
            return topic.name, topic.partition_data[0].index
        case FetchRequest():
            return request.topics[0].topic, request.topics[0].partitions[0].partition
        case ListOffsetsRequest():
            return request.topics[0].name, request.topics[0].partitions[0].partition_index
    return None


def coordinated_by(request: Any) -> tuple[int, str]:
    """Return the type of a coordinator's key, as in FindCoordinator, and the key."""
    if isinstance(request, TxnOffsetCommitRequest):
        return 0, request.group_id
    if isinstance(request, OffsetFetchRequest):
        return 0, request.groups[0].group_id
    if isinstance(request, DescribeTransactionsRequest):
        return 1, request.transactional_ids[0]
    name: str = getattr(request, "transactional_id", "") or getattr(
        request, "v3_and_below_transactional_id", ""
    )
    return 1, name
