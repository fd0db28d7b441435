"""Handler of ListSnapshots: the snapshots of the buckets that this broker leads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.security.rights import Operation
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.catalog.catalog import Catalog
from headrace.tablelayer.server.rights.table_rights import TableRights

if TYPE_CHECKING:
    from headrace.tablelayer.server.store.snapshots import Snapshot


class SnapshotHandlers:
    def __init__(self, catalog: Catalog, rights: TableRights) -> None:
        self._catalog = catalog
        self._rights = rights

    async def list_snapshots(
        self, context: RequestContext, request: m.ListSnapshotsRequest
    ) -> m.ListSnapshotsResponse:
        path = TablePath.parse(request.topic)
        self._rights.require(context, Operation.DESCRIBE, path)
        self._catalog.by_path(path)
        buckets = []
        for index in range(self._catalog.bucket_count(path)):
            hooks: object = self._catalog.context.replicas.partition(path.topic, index).hooks
            if isinstance(hooks, KeyBucket) and hooks.store is not None:
                buckets.append(_listing(index, hooks, await hooks.known_snapshots()))
        return m.ListSnapshotsResponse(buckets=buckets)


def _listing(index: int, bucket: KeyBucket, known: Sequence[Snapshot]) -> m.BucketSnapshotsListing:
    assert bucket.store is not None
    applied_offset, row_count = bucket.store.applied
    return m.BucketSnapshotsListing(
        bucket=index,
        applied_offset=applied_offset,
        row_count=row_count,
        snapshots=[
            m.SnapshotListing(
                id=each.id,
                offset=each.offset,
                row_count=each.row_count,
                created_at_ms=each.created_at_ms,
                size_bytes=each.size_bytes,
            )
            for each in known
        ],
    )
