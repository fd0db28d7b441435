"""Writers of rows that one bucket forwards to another, for deduplication there."""

from __future__ import annotations

from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.options.table_options import MAX_BUCKET_COUNT
from headrace.tablelayer.server.merge.writes import Writer

_FORWARDED_PARTITIONS = MAX_BUCKET_COUNT
_WHOLE_TABLES = 1 << 62


def forwarded_producer_id(producer_id: int, source_partition: int) -> int:
    """Return the producer id for forwarded rows of another bucket: one for each producer and source partition."""
    if producer_id < 0:
        return -1
    return -(2 + producer_id * _FORWARDED_PARTITIONS + source_partition)


def forwarded(header: BatchHeader, source_partition: int, *, by_whole_table: bool = False) -> Writer:
    """Return the writer of forwarded rows of another bucket: one for each producer and source partition.

    With `by_whole_table` the source is a partition of a partitioned table's own topic. It forwards to buckets of other
    topics, and must not be confused with a bucket of theirs.
    """
    producer_id = forwarded_producer_id(header.producer_id, source_partition)
    if by_whole_table and producer_id != -1:
        producer_id -= _WHOLE_TABLES
    return Writer(
        producer_id,
        header.producer_epoch if header.has_producer else -1,
        header.base_sequence,
        header.sequence_count,
    )
