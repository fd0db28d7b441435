"""A changelog as a table: the rows of a scan behind `_change_type`, `_log_offset`, `_commit_timestamp`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

from headrace.tablelayer.client import ChangeType, ScanBatch
from headrace.tablelayer.client.read.offsets import time_ms
from headrace.tablelayer.model.ddl.query import ReadOptions
from headrace.tablelayer.sql.errors import SqlError

CHANGE_COLUMNS = ("_change_type", "_log_offset", "_commit_timestamp")
CHANGES_ADDED = ("_change_type", "_bucket", "_log_offset", "_commit_timestamp")
"""The columns before those of the table."""
_SHORT = np.array([change.short for change in ChangeType])
_TIME = pa.timestamp("ms", "UTC")


def changes_schema(table_schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of `as_changes` for these columns of a table."""
    names = table_schema.names if columns is None else columns
    return pa.schema(
        [
            pa.field("_change_type", pa.string()),
            pa.field("_bucket", pa.int32()),
            pa.field("_log_offset", pa.int64()),
            pa.field("_commit_timestamp", _TIME),
            *(table_schema.field(name) for name in names),
        ]
    )


def as_changes(
    batches: Sequence[ScanBatch], table_schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return one table of all batches, in the order in which they came."""
    schema = changes_schema(table_schema, columns)
    parts = [
        pa.record_batch(
            [
                pa.array(_SHORT[batch.change_types]),
                pa.array(np.full(batch.row_count, batch.bucket, np.int32)),
                pa.array(batch.offsets),
                pa.repeat(pa.scalar(_time_of(batch), _TIME), batch.row_count),
                *(batch.batch.column(name) for name in schema.names[len(CHANGES_ADDED) :]),
            ],
            schema=schema,
        )
        for batch in batches
    ]
    return pa.Table.from_batches(parts, schema=schema)


def _time_of(batch: ScanBatch) -> int | None:
    """Return the time of a batch; None for the rows of a state, which have none."""
    return batch.timestamp_ms if batch.timestamp_ms >= 0 else None


def start_of(options: ReadOptions | None, default: str, path: str) -> str | int:
    """Return the start of a scan: full, earliest, latest, or milliseconds. Raises SqlError."""
    if options is None:
        return default
    if options.snapshot is not None or options.snapshot_time is not None:
        raise SqlError(f"{path}: a snapshot is one of the lake's: write the hint after {path}$lake")
    if options.start_time is None:
        return options.start or default
    text = options.start_time.strip()
    if text.isdigit():
        return int(text)
    try:
        start = time_ms(datetime.fromisoformat(text))
        return start if start >= 0 else "earliest"
    except ValueError:
        raise SqlError(
            f"'scan.startup.timestamp' = '{text}': the value must be milliseconds or a time, '2026-01-31 12:00:00'"
        ) from None
