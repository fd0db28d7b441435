"""Compaction and expiry of an Iceberg table that is tiered into.

Both are Iceberg's own, called so that the tiered offsets can still be found. Compaction's snapshots carry the round's
properties, which SQL procedures cannot set; expiry keeps the tagged snapshot.

Once enough files have accumulated, compaction rewrites small files and files with deleted rows, and then removes the
delete files, which Iceberg would keep. It commits to `main`: a concurrent commit makes it fail, and it is tried again
after a later round. Expiry uses the lake table's own properties `history.expire.*`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

COMPACT_FILES_PER_BUCKET = 4
"""Number of files (data or deletes) per bucket since the last compaction that make a rewrite worthwhile."""

_MAX_AGE_PROPERTY = "history.expire.max-snapshot-age-ms"
_MAX_AGE_DEFAULT_MS = 5 * 24 * 3600 * 1000


def compact(spark: Any, table: Any, properties: Mapping[str, str], bucket_count: int) -> str:
    """Rewrite small files and files with deletes, if there are enough; return a summary, empty if nothing was done."""
    if not needs_compaction(table, bucket_count):
        return ""
    actions = spark._jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)
    data = actions.rewriteDataFiles(table)
    for name, value in properties.items():
        data = data.snapshotProperty(name, value)
    # Every file with deleted rows, and any group of a few small files.
    rewritten = (
        data.option("delete-file-threshold", "1")
        .option("min-input-files", str(COMPACT_FILES_PER_BUCKET))
        .execute()
    )
    removed = 0
    table.refresh()
    if _total(table.currentSnapshot(), "total-delete-files"):
        deletes = actions.rewritePositionDeletes(table)
        for name, value in properties.items():
            deletes = deletes.snapshotProperty(name, value)
        result = deletes.option("rewrite-all", "true").execute()
        removed = int(result.rewrittenDeleteFilesCount()) - int(result.addedDeleteFilesCount())
    taken, added = int(rewritten.rewrittenDataFilesCount()), int(rewritten.addedDataFilesCount())
    return (
        f"compacted {taken} data files into {added}, {removed} delete files removed"
        if taken or removed
        else ""
    )


def needs_compaction(table: Any, bucket_count: int) -> bool:
    """Return whether enough files were added since the last compaction, according to the snapshots' summaries."""
    snapshot, files = table.currentSnapshot(), 0
    enough = COMPACT_FILES_PER_BUCKET * bucket_count
    while snapshot is not None and snapshot.operation() != "replace" and files < enough:
        files += _total(snapshot, "added-data-files") + _total(snapshot, "added-delete-files")
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)
    return files >= enough


def expire(table: Any, tag: str) -> str:
    """Remove old snapshots except the newest and the tagged one; return a summary, empty if nothing was done."""
    max_age_ms = int(table.properties().get(_MAX_AGE_PROPERTY) or _MAX_AGE_DEFAULT_MS)
    oldest = int(time.time() * 1000) - max_age_ms
    before = [snapshot.snapshotId() for snapshot in table.snapshots() if snapshot.timestampMillis() < oldest]
    if not before or tag not in set(table.refs().keySet()):
        return ""
    table.expireSnapshots().expireOlderThan(oldest).commit()
    table.refresh()
    left = {snapshot.snapshotId() for snapshot in table.snapshots()}
    gone = sum(each not in left for each in before)
    return f"{gone} old snapshots expired" if gone else ""


def _total(snapshot: Any, name: str) -> int:
    return int(snapshot.summary().get(name) or 0)
