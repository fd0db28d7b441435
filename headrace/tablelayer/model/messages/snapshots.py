"""The snapshots that a table's buckets have."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int32, int64, string
from headrace.tablelayer.model.messages.answers import TableResponse


class SnapshotListing(Struct):
    """`offset` is exclusive: the log below it is in the snapshot."""

    id: int = int64()
    offset: int = int64()
    row_count: int = int64()
    created_at_ms: int = int64()
    size_bytes: int = int64()


class BucketSnapshotsListing(Struct):
    """`applied_offset`: what of the log is in the store now, exclusive; `snapshots`: the newest first."""

    bucket: int = int32()
    applied_offset: int = int64()
    row_count: int = int64()
    snapshots: list[SnapshotListing] = array(SnapshotListing)


class ListSnapshotsRequest(ApiMessage, key=10072, kind="request", versions="0", flexible="0+"):
    """Asks a broker for the snapshots of those buckets of a table, or of a partition, that it serves."""

    topic: str = string()


class ListSnapshotsResponse(TableResponse, key=10072, kind="response", versions="0", flexible="0+"):
    """In order of bucket; none of a log table."""

    buckets: list[BucketSnapshotsListing] = array(BucketSnapshotsListing)
