"""Metrics of the remote log: Kafka's RemoteLogManager metrics (KIP-405, KIP-963), by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.metrics.model import Metric, MetricKind
from headrace.broker.remote.log import remote_log_of

if TYPE_CHECKING:
    from headrace.broker.metrics.model import Gathering
    from headrace.broker.remote.manager import RemoteLogManager

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_TOPIC: Final = ("topic",)

COPIED_BYTES: Final = Metric(
    "headrace_remote_copy_bytes_total",
    _COUNTER,
    "Bytes of segments copied to remote storage.",
    _TOPIC,
)
COPIES: Final = Metric(
    "headrace_remote_copy_requests_total",
    _COUNTER,
    "Segments whose copy to remote storage began.",
    _TOPIC,
)
COPY_ERRORS: Final = Metric(
    "headrace_remote_copy_errors_total", _COUNTER, "Segments whose copy to remote storage failed.", _TOPIC
)
FETCHED_BYTES: Final = Metric(
    "headrace_remote_fetch_bytes_total",
    _COUNTER,
    "Bytes of records read from remote storage.",
    _TOPIC,
)
FETCHES: Final = Metric(
    "headrace_remote_fetch_requests_total",
    _COUNTER,
    "Reads of records that are only in remote storage.",
    _TOPIC,
)
FETCH_ERRORS: Final = Metric(
    "headrace_remote_fetch_errors_total", _COUNTER, "Failed reads from remote storage.", _TOPIC
)
DELETIONS: Final = Metric(
    "headrace_remote_delete_requests_total",
    _COUNTER,
    "Segments whose removal from remote storage began.",
    _TOPIC,
)
DELETE_ERRORS: Final = Metric(
    "headrace_remote_delete_errors_total", _COUNTER, "Failed removals from remote storage.", _TOPIC
)
COPY_LAG_BYTES: Final = Metric(
    "headrace_remote_copy_lag_bytes",
    _GAUGE,
    "Bytes of closed segments that are not in remote storage yet.",
    _TOPIC,
)
COPY_LAG_SEGMENTS: Final = Metric(
    "headrace_remote_copy_lag_segments",
    _GAUGE,
    "Closed segments that are not in remote storage yet.",
    _TOPIC,
)
SIZE: Final = Metric(
    "headrace_remote_log_size_bytes", _GAUGE, "Bytes of a topic's segments in remote storage.", _TOPIC
)
SEGMENTS: Final = Metric(
    "headrace_remote_log_segments", _GAUGE, "Segments of a topic in remote storage.", _TOPIC
)
STORE_READS: Final = Metric(
    "headrace_remote_store_reads_total",
    _COUNTER,
    "Requests for ranges of objects, including those read ahead.",
)
STORE_READ_BYTES: Final = Metric(
    "headrace_remote_store_read_bytes_total", _COUNTER, "Bytes of objects received from remote storage."
)
READERS_WAITING: Final = Metric(
    "headrace_remote_reads_waiting",
    _GAUGE,
    "Reads that wait for remote storage, or for a thread that reads from it.",
)
METADATA_AGE: Final = Metric(
    "headrace_remote_metadata_age_seconds",
    _GAUGE,
    "Seconds since the copy of the metadata in remote storage was known to be up to date; reported by the broker that "
    "copies it, in a cluster the controller.",
)
POSITIONS_AGE: Final = Metric(
    "headrace_remote_group_positions_age_seconds",
    _GAUGE,
    "Seconds since the consumer groups' positions in remote storage were known to be the committed ones.",
)
REMOTE_METRICS: Final = (
    COPIED_BYTES, COPIES, COPY_ERRORS, FETCHED_BYTES, FETCHES, FETCH_ERRORS, DELETIONS, DELETE_ERRORS, COPY_LAG_BYTES,
    COPY_LAG_SEGMENTS, SIZE, SEGMENTS, STORE_READS, STORE_READ_BYTES, READERS_WAITING,
    METADATA_AGE, POSITIONS_AGE,
)  # fmt: skip


_COUNTED: Final = {
    COPIED_BYTES: "copied_bytes",
    COPIES: "copies",
    COPY_ERRORS: "copy_errors",
    FETCHED_BYTES: "fetched_bytes",
    FETCHES: "fetches",
    FETCH_ERRORS: "fetch_errors",
    DELETIONS: "deletions",
    DELETE_ERRORS: "delete_errors",
}


async def collect(remote: RemoteLogManager, gathering: Gathering) -> None:
    counts, chunks = remote.counts(), remote.chunks
    gathering.put(STORE_READS, chunks.requests)
    gathering.put(STORE_READ_BYTES, chunks.fetched_bytes)
    gathering.put(READERS_WAITING, sum(each.fetches_waiting for each in counts.values()))
    for metric, age in (
        (METADATA_AGE, remote.metadata_age_seconds()),
        (POSITIONS_AGE, remote.positions_age_seconds()),
    ):
        if age is not None:
            gathering.put(metric, age)
    for topic, found in list(counts.items()):
        await gathering.breathe()
        for metric, field in _COUNTED.items():
            gathering.put(metric, getattr(found, field), topic)
    for partition in remote.partitions():
        await gathering.breathe()
        part = remote_log_of(partition)
        if part is None or partition.closed or not part.is_loaded or not partition.is_open:
            continue
        topic, manifest, log = partition.topic.name, part.manifest, partition.log
        waiting = [each.size for each in log.sealed_segments() if each.end_offset > manifest.end_offset]
        gathering.add(COPY_LAG_BYTES, sum(waiting), topic)
        gathering.add(COPY_LAG_SEGMENTS, len(waiting), topic)
        gathering.add(SIZE, manifest.size_bytes, topic)
        gathering.add(SEGMENTS, len(manifest.segments), topic)
