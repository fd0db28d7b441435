"""The snapshots of a table's buckets."""

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
    """`applied_offset`: end of the log that the store has applied, exclusive. `snapshots`: newest first."""

    bucket: int = int32()
    applied_offset: int = int64()
    row_count: int = int64()
    snapshots: list[SnapshotListing] = array(SnapshotListing)


class ListSnapshotsRequest(ApiMessage, key=10072, kind="request", versions="0", flexible="0+"):
    """Ask a broker for the snapshots of the buckets that it serves, of a table or of a partition."""

    topic: str = string()


class ListSnapshotsResponse(TableResponse, key=10072, kind="response", versions="0", flexible="0+"):
    """The buckets in order; empty for a log table."""

    buckets: list[BucketSnapshotsListing] = array(BucketSnapshotsListing)
