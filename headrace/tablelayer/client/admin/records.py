"""Reads and deletion of a topic's records, with Kafka's own requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.tablelayer.client.admin.kafka_answers import KafkaRecord
from headrace.tablelayer.client.errors import UnsupportedRequest
from headrace.tablelayer.client.read.offsets import EARLIEST, list_offsets
from headrace.tablelayer.client.wire.retry import Deadline, error_of, raise_for, retrying

if TYPE_CHECKING:
    from headrace.protocol.records.decode import RecordColumns
    from headrace.tablelayer.client.wire.cluster import Cluster

_FETCH_BY_ID_SINCE = 13
_NEEDED = (
    "the brokers need them: the topic is internal, or a table that has a primary key or is tiered; delete rows of a"
    " table with DELETE FROM"
)
"""The reason for POLICY_VIOLATION, which the answer of DeleteRecords has no room for."""


async def read(
    cluster: Cluster,
    topic: str,
    positions: Mapping[int, int],
    *,
    max_wait_ms: int = 500,
    max_bytes: int = 4 << 20,
) -> tuple[list[KafkaRecord], dict[int, int]]:
    """See `AsyncKafkaAdmin.read`."""
    batches, next_positions = await read_batches(
        cluster, topic, positions, max_wait_ms=max_wait_ms, max_bytes=max_bytes
    )
    records = [
        KafkaRecord(partition, offset, timestamp, key, value, tuple(columns.headers(index)))
        for partition, columns in batches
        for index, (offset, timestamp, key, value) in enumerate(
            zip(
                columns.offsets.tolist(),
                columns.timestamps.tolist(),
                columns.keys(),
                columns.values(),
                strict=True,
            )
        )
        if offset >= positions[partition]
    ]
    return records, next_positions


async def read_batches(
    cluster: Cluster,
    topic: str,
    positions: Mapping[int, int],
    *,
    max_wait_ms: int = 500,
    max_bytes: int = 4 << 20,
) -> tuple[list[tuple[int, RecordColumns]], dict[int, int]]:
    """See `AsyncKafkaAdmin.read_batches`."""
    try:
        from headrace.protocol.records.decode import (
            decode_records,
        )  # it needs numba, which is only imported here
    except ModuleNotFoundError as error:
        raise UnsupportedRequest(
            f"reading records needs {error.name}, which is not installed: pip install headrace instead of"
            " headrace-client, or use a Kafka client"
        ) from error
    from headrace.protocol.records.header import iter_headers

    next_positions = dict(positions)
    batches: list[tuple[int, RecordColumns]] = []

    async def attempt(deadline: Deadline) -> None:
        batches.clear()
        next_positions.update(positions)
        for leader, partitions in (await cluster.by_leader(topic, list(positions), deadline)).items():
            answer = await _fetch(
                cluster, topic, leader, {p: positions[p] for p in partitions}, max_wait_ms, max_bytes
            )
            for data in (data for found in answer.responses for data in found.partitions):
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    beginning = await list_offsets(
                        cluster, topic, EARLIEST, leader, [data.partition_index], deadline
                    )
                    next_positions[data.partition_index] = beginning[data.partition_index].offset
                    continue
                raise_for(data.error_code, None, doing=f"read {topic}-{data.partition_index}")
                buffer = memoryview(data.records or b"")
                for position, header in iter_headers(buffer):
                    next_positions[data.partition_index] = header.next_offset
                    if not header.is_control:
                        columns = decode_records(buffer[position : position + header.size])
                        batches.append((data.partition_index, columns))

    await retrying(
        attempt,
        config=cluster.config,
        repeatable=True,
        on_stale_route=lambda: cluster.forget_routes(topic),
    )
    return batches, next_positions


async def _fetch(
    cluster: Cluster, topic: str, leader: int, positions: Mapping[int, int], max_wait_ms: int, max_bytes: int
) -> FetchResponse:
    connection = await cluster.connection(leader)
    wanted = FetchTopic(
        topic=topic,
        partitions=[
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
            for partition, offset in positions.items()
        ],
    )
    if connection.version_for(FetchRequest) >= _FETCH_BY_ID_SINCE:
        found = (await cluster.metadata([topic], Deadline(cluster.config.delivery_timeout_ms))).topics[0]
        error = error_of(found.error_code, None, doing=f"find topic {topic}")
        if error is not None:
            raise error
        wanted.topic_id = found.topic_id
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, topics=[wanted])
    answer = await cluster.send(
        request,
        FetchResponse,
        node_id=leader,
        deadline=Deadline(cluster.config.delivery_timeout_ms),
        extra_wait_ms=max_wait_ms,
    )
    raise_for(answer.error_code, None, doing=f"read {topic}")
    return answer


async def delete_records(cluster: Cluster, topic: str, before: Mapping[int, int]) -> dict[int, int]:
    """See `AsyncKafkaAdmin.delete_records`."""

    async def attempt(deadline: Deadline) -> dict[int, int]:
        found: dict[int, int] = {}
        for leader, partitions in (await cluster.by_leader(topic, list(before), deadline)).items():
            asked = [DeleteRecordsPartition(partition_index=p, offset=before[p]) for p in partitions]
            answer = await cluster.call(
                DeleteRecordsRequest(
                    topics=[DeleteRecordsTopic(name=topic, partitions=asked)], timeout_ms=30_000
                ),
                DeleteRecordsResponse,
                doing=f"delete records of {topic}",
                node_id=leader,
                deadline=deadline,
                changes=True,
            )
            for each in (each for of_topic in answer.topics for each in of_topic.partitions):
                reason = _NEEDED if each.error_code == ErrorCode.POLICY_VIOLATION else None
                raise_for(each.error_code, reason, doing=f"delete records of {topic}")
                found[each.partition_index] = each.low_watermark
        return found

    return await retrying(
        attempt,
        config=cluster.config,
        repeatable=True,
        on_stale_route=lambda: cluster.forget_routes(topic),
    )
