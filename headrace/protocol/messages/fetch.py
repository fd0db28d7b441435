"""Fetch, API key 1: read record batches from partitions, waiting for them if asked to.

Topics go by name up to version 12 and by id from 13 on. Fetch sessions (KIP-227) begin with version 7,
diverging epochs (KIP-320) with 12, the addresses of new leaders (KIP-951) with 16. Version 18 adds a field for
followers only (KIP-1166).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headrace.protocol.schema import (
    ApiMessage,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class ReplicaState(Struct):
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


class FetchPartition(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32(versions="9+", default=-1, ignorable=True)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(versions="12+", default=-1)
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True)
    partition_max_bytes: int = int32()
    replica_directory_id: UUID = uuid(versions="17+", ignorable=True, tag=0)
    high_watermark: int = int64(versions="18+", default=0x7FFFFFFFFFFFFFFF, ignorable=True, tag=1)


class FetchTopic(Struct):
    topic: str = string(versions="4-12", ignorable=True)
    topic_id: UUID = uuid(versions="13+", ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Struct):
    topic: str = string(versions="7-12", ignorable=True)
    topic_id: UUID = uuid(versions="13+", ignorable=True)
    partitions: list[int] = array(int32)


class FetchRequest(ApiMessage, key=1, kind="request", versions="4-18", flexible="12+"):
    cluster_id: str | None = string(versions="12+", nullable="12+", default=None, ignorable=True, tag=0)
    replica_id: int = int32(versions="4-14", default=-1)
    replica_state: ReplicaState | None = struct(ReplicaState, versions="15+", tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF)
    isolation_level: int = int8()
    session_id: int = int32(versions="7+", ignorable=True)
    session_epoch: int = int32(versions="7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, versions="7+")
    rack_id: str = string(versions="11+", ignorable=True)


class EpochEndOffset(Struct):
    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class SnapshotId(Struct):
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Struct):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset | None = struct(EpochEndOffset, versions="12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, versions="12+", tag=1)
    snapshot_id: SnapshotId | None = struct(SnapshotId, versions="12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable="0+")
    preferred_read_replica: int = int32(versions="11+", default=-1)
    records: Any = records(nullable="0+")


class FetchableTopicResponse(Struct):
    topic: str = string(versions="4-12", ignorable=True)
    topic_id: UUID = uuid(versions="13+", ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)


class FetchResponse(ApiMessage, key=1, kind="response", versions="4-18", flexible="12+"):
    throttle_time_ms: int = int32()
    error_code: int = int16(versions="7+", ignorable=True)
    session_id: int = int32(versions="7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="16+", tag=0)


class ReplicaFetchResponse(FetchResponse, key=1, kind="response", versions="4-18", flexible="12+"):
    """Between our own brokers: what a leader adds for followers (`broker.replication.safe_time`). Others skip it."""

    is_current: bool = boolean(versions="18+", ignorable=True, tag=10000)
    """The answer has all of the session's partitions whose high watermark differs from the last one that the follower
    sent or received, except those that are `doubted`. The broker led all of them when it answered."""
    doubted: list[ForgottenTopic] = array(ForgottenTopic, versions="18+", ignorable=True, tag=10001)
