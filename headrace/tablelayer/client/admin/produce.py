"""Write a few records at a time to plain topics, or to tables through their Kafka view.

A record with a key goes to the partition that Kafka's Java producer gives it (murmur2 of the key). Records without a
key stay together in a random partition. Batches carry a producer id and sequences, so that a batch that is sent again
is written once. Programs use one of Kafka's clients.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.protocol.records.small import Record, build_small
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, retrying

BATCH_BYTES: Final = 900_000
"""Limit of keys and values in one batch. The batch stays below `max.message.bytes`, 1 MiB."""
BATCH_RECORDS: Final = 10_000
_CHANNEL: Final = "produce"
_M: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to write. `timestamp_ms` None is now; with `partition` None the key decides."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    partition: int | None = None

    @property
    def size(self) -> int:
        """Return the bytes of key, value and headers."""
        named = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + named


@dataclass(slots=True)
class _Identity:
    producer_id: int
    epoch: int
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


def murmur2(data: bytes) -> int:
    """Return MurmurHash2 with Kafka's seed, as an unsigned 32-bit number. Source: Kafka's `Utils.murmur2`."""
    length = len(data)
    state = (0x9747B28C ^ length) & _WORD
    whole = length - length % 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _WORD
        word = (word ^ word >> 24) * _M & _WORD
        state = (state * _M & _WORD) ^ word
    rest = data[whole:]
    if rest:
        state = ((state ^ int.from_bytes(rest, "little")) * _M) & _WORD
    state = (state ^ state >> 13) * _M & _WORD
    return state ^ state >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's Java producer chooses for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Producer:
    """Writes records for one connection, one call after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._identity: _Identity | None = None
        self._lock = asyncio.Lock()

    async def produce(self, topic: str, records: Sequence[OutgoingRecord]) -> list[tuple[int, int]]:
        """Write records and return (partition, offset) of each.

        Raises KafkaError, after which the records of earlier partitions may have been written, and OutcomeUnknown.
        """
        async with self._lock:
            deadline = Deadline(self._cluster.config.delivery_timeout_ms)
            found = (await self._cluster.metadata([topic], deadline)).topics[0]
            raise_for(found.error_code, f"there is no topic {topic}", doing="produce")
            count = len(found.partitions)
            loose = random.randrange(count)
            places: dict[int, list[int]] = {}
            for index, record in enumerate(records):
                partition = record.partition
                if partition is None:
                    partition = loose if record.key is None else partition_of(record.key, count)
                if not 0 <= partition < count:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"{topic} has no partition {partition}: it has 0 to {count - 1}",
                    )
                places.setdefault(partition, []).append(index)
            written: list[tuple[int, int]] = [(-1, -1)] * len(records)
            for partition, indexes in sorted(places.items()):
                for part in _cut(records, indexes):
                    base = await self._write(topic, found.topic_id, partition, [records[i] for i in part])
                    for offset, index in enumerate(part, base):
                        written[index] = partition, offset
            return written

    async def _write(
        self, topic: str, topic_id: UUID, partition: int, records: Sequence[OutgoingRecord]
    ) -> int:
        """Write one batch and return the offset of its first record."""
        now = int(time.time() * 1000)
        doing = f"produce to {topic}-{partition}"

        async def attempt(deadline: Deadline) -> int:
            if self._identity is None:
                given = await self._cluster.send(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000),
                    InitProducerIdResponse,
                    deadline=deadline,
                )
                if given.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    # Kafka gives an id to a principal with WRITE on any topic (KIP-679): here WRITE is missing.
                    raise KafkaError(
                        ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not authorized: WRITE on topic {topic}"
                    )
                raise_for(given.error_code, None, doing="get a producer id")
                self._identity = _Identity(given.producer_id, given.producer_epoch)
            identity = self._identity
            batch = await asyncio.to_thread(
                build_small,
                [
                    Record(
                        each.key,
                        each.value,
                        each.headers,
                        now if each.timestamp_ms is None else each.timestamp_ms,
                    )
                    for each in records
                ],
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=identity.sequences.get((topic, partition), 0),
            )
            request = ProduceRequest(
                acks=-1,
                timeout_ms=self._cluster.config.request_timeout_ms,
                topic_data=[
                    TopicProduceData(
                        name=topic,
                        topic_id=topic_id,
                        partition_data=[PartitionProduceData(index=partition, records=batch)],
                    )
                ],
            )
            leader = await self._cluster.leader(topic, partition, deadline)
            answer = await self._cluster.send(
                request, ProduceResponse, node_id=leader, channel=_CHANNEL, deadline=deadline
            )
            part = answer.responses[0].partition_responses[0]
            raise_for(part.error_code, _reason(part), doing=doing)
            return part.base_offset

        try:
            base = await retrying(
                attempt,
                config=self._cluster.config,
                repeatable=True,
                changes=True,
                on_stale_route=lambda: self._cluster.forget_routes(topic),
            )
        except BaseException:
            self._identity = None  # it is unknown whether the sequence is used up
            raise
        assert self._identity is not None
        used = self._identity.sequences
        used[topic, partition] = used.get((topic, partition), 0) + len(records)
        return base


def _cut(records: Sequence[OutgoingRecord], indexes: Sequence[int]) -> list[list[int]]:
    parts: list[list[int]] = []
    size = 0
    for index in indexes:
        size += records[index].size
        if not parts or size > BATCH_BYTES or len(parts[-1]) == BATCH_RECORDS:
            parts.append([])
            size = records[index].size
        parts[-1].append(index)
    return parts


def _reason(part: PartitionProduceResponse) -> str | None:
    """Return the server's messages about the batch and its records."""
    said = [] if not part.error_message else [part.error_message]
    for each in part.record_errors:
        text = each.batch_index_error_message
        if text and not any(text in before for before in said):
            said.append(f"record {each.batch_index}: {text}")
    return "; ".join(said) or None
