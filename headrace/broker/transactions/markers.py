"""Write the markers that end a transaction, partition by partition.

Only for partitions whose leader is this broker; other leaders are asked (`others.py`). A marker on `__consumer_offsets`
also makes the group coordinator apply or forget the offsets of the transaction. Everything runs on the event loop; the
effect applies when the marker is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.broker.cluster.journal_topic import Later
from headrace.broker.groups.journal import records as groups_journal
from headrace.broker.transactions.verification import Guards
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.control import build_end_marker

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.replication.replicas import LocalReplicas

RAISES_EPOCH = 2


class Marker(msgspec.Struct, frozen=True):
    """A marker. With `client_version` 2 its epoch is above that of the batches that it ends."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    client_version: int = 0


def write_marker(
    replicas: LocalReplicas,
    groups: GroupCoordinator,
    topic: str,
    index: int,
    marker: Marker,
    timestamp_ms: int,
    later: Later,
    guards: Guards,
) -> bool:
    """Write a marker. True: it is stored as durably as its topic demands. False: `later` will be called, with an error
    if it failed.

    Raises KafkaError, without calling `later`: UNKNOWN_TOPIC_OR_PARTITION, COORDINATOR_LOAD_IN_PROGRESS while the
    groups of the partition are not loaded, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
    """
    partition = replicas.partition(topic, index)
    if partition.hooks is not None:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{topic} is never part of a transaction, so it needs no marker"
        )
    is_of_groups = topic == groups_journal.TOPIC
    if is_of_groups and not groups.journal.is_loaded(index):
        raise KafkaError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the groups of {topic}-{index} are not loaded"
        )
    partition.log.check_end_marker(
        marker.producer_id, marker.producer_epoch, is_next_epoch=marker.client_version >= RAISES_EPOCH
    )
    batch = build_end_marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=timestamp_ms,
    )
    guards.ended(topic, index, marker.producer_id)
    if is_of_groups:
        return groups.end_transaction(index, marker.producer_id, batch, later, commit=marker.commit)
    end_offset = partition.append_end(batch, marker.producer_id).last_offset + 1
    if partition.is_published(end_offset):
        return True
    partition.when_published(end_offset, later)
    return False
