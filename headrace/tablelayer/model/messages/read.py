"""Reading rows: lookups, scans of logs and of states, counts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headrace.protocol.schema import (
    ApiMessage,
    Struct,
    array,
    binary,
    boolean,
    int16,
    int32,
    int64,
    records,
    uuid,
)
from headrace.tablelayer.model.messages.answers import BucketAnswer, TableResponse

OPEN_SCAN = -1
"""ScanSnapshot: the scan_id that opens a new scan."""


class LookupBucket(Struct):
    """`keys`: rows of the primary-key columns, in the primary key's order."""

    bucket: int = int32()
    keys: Any = records()


class LookupResult(BucketAnswer):
    """`rows` has one row per key, in the order of the keys; nulls where `found` (one byte per key) is 0.

    Since version 2 an answer that would be too large holds the first keys only: `found` has a byte for each, and may
    be empty for a bucket. The reader asks again for the others. Before, such an answer was an ANSWER_TOO_LARGE error.
    `staleness_ms`: the answer has every write that was acknowledged by all replicas longer ago than this; 0 from the
    leader. `applied_offset`: a follower's answer has the changelog below it; -1 from the leader.
    """

    found: bytes = binary()
    rows: Any = records(nullable="0+")
    staleness_ms: int = int64(versions="3+", ignorable=True)
    applied_offset: int = int64(versions="3+", default=-1, ignorable=True)


class LookupRequest(ApiMessage, key=10012, kind="request", versions="0-3", flexible="0+"):
    """`insert_if_absent` writes rows of nulls for missing keys and answers when they are stored or after
    `timeout_ms`.

    `staleness_ms_max`: a follower may answer too, from a state that is at most this old; -1: only the leader. A
    follower that cannot do so answers NOT_LEADER_OR_FOLLOWER. With `insert_if_absent` only the leader answers.
    """

    table_id: UUID = uuid()
    columns: list[int] | None = array(int32, nullable="0+", default=None)
    buckets: list[LookupBucket] = array(LookupBucket)
    schema_id: int = int16(default=-1, tag=0)
    insert_if_absent: bool = boolean(versions="1+")
    timeout_ms: int = int32(versions="1+", ignorable=True)
    staleness_ms_max: int = int32(versions="3+", default=-1, ignorable=True)


class LookupResponse(TableResponse, key=10012, kind="response", versions="0-3", flexible="0+"):
    schema_id: int = int16()
    buckets: list[LookupResult] = array(LookupResult)


class PrefixLookupBucket(Struct):
    """`prefixes`: rows of the bucket-key columns, in the bucket key's order.

    `after`: the `cursor` of an answer. For the first prefix, only the rows behind it are returned.
    """

    bucket: int = int32()
    prefixes: Any = records()
    after: bytes | None = binary(versions="1+", nullable="1+", default=None)


class PrefixLookupResult(BucketAnswer):
    """`counts`: a little-endian int32 per prefix. `rows`: the rows of each prefix in turn, each group in key order.

    Since version 1 an answer that would be too large holds the first prefixes only: `counts` has an entry for each,
    and may be empty for a bucket. The reader asks again for the others. A `cursor` means that the last of these
    prefixes has more rows, and tells where they begin. `staleness_ms` and `applied_offset` as in a lookup.
    """

    counts: bytes = binary()
    rows: Any = records(nullable="0+")
    cursor: bytes | None = binary(versions="1+", nullable="1+", default=None, ignorable=True)
    staleness_ms: int = int64(versions="2+", ignorable=True)
    applied_offset: int = int64(versions="2+", default=-1, ignorable=True)


class PrefixLookupRequest(ApiMessage, key=10013, kind="request", versions="0-2", flexible="0+"):
    """`staleness_ms_max` as in a lookup."""

    table_id: UUID = uuid()
    columns: list[int] | None = array(int32, nullable="0+", default=None)
    buckets: list[PrefixLookupBucket] = array(PrefixLookupBucket)
    schema_id: int = int16(default=-1, tag=0)
    staleness_ms_max: int = int32(versions="2+", default=-1, ignorable=True)


class PrefixLookupResponse(TableResponse, key=10013, kind="response", versions="0-2", flexible="0+"):
    schema_id: int = int16()
    buckets: list[PrefixLookupResult] = array(PrefixLookupResult)


class ScanLogBucket(Struct):
    bucket: int = int32()
    offset: int = int64()
    max_bytes: int = int32(default=1 << 20)


class ScanLogResult(BucketAnswer):
    """`records`: Arrow log batches one after the other, with the chosen columns only.

    The first batch may begin below the requested offset, as in Kafka's Fetch; readers drop its first rows.
    `filtered_end_offset`: the offset at which a reader with a filter goes on. All matching rows below it are in
    `records`. -1 without a filter.
    """

    high_watermark: int = int64(default=-1)
    log_start_offset: int = int64(default=-1)
    records: Any = records(nullable="0+")
    filtered_end_offset: int = int64(versions="1+", default=-1, ignorable=True)


class ScanLogRequest(ApiMessage, key=10014, kind="request", versions="0-1", flexible="0+"):
    """`filter`: Substrait over columns of the schema `schema_id`, by name (`filters.py`).

    Batches in which no row can match are skipped. With `row_filter` every row that does not match is left out.
    """

    table_id: UUID = uuid()
    columns: list[int] | None = array(int32, nullable="0+", default=None)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=16 << 20)
    buckets: list[ScanLogBucket] = array(ScanLogBucket)
    schema_id: int = int16(default=-1, tag=0)
    filter: bytes | None = binary(versions="1+", nullable="1+", default=None)
    row_filter: bool = boolean(versions="1+")


class ScanLogResponse(TableResponse, key=10014, kind="response", versions="0-1", flexible="0+"):
    buckets: list[ScanLogResult] = array(ScanLogResult)


class LimitScanResult(BucketAnswer):
    """Log tables: the last rows below the high watermark. Primary-key tables: the first rows in key order.

    A filter selects the rows that count. `has_more`: all of the rows would make the answer too large. The missing
    rows of a log table are below `start_offset`; those of a primary-key table are read with a snapshot scan. Before
    version 2 this was an ANSWER_TOO_LARGE error.
    """

    rows: Any = records(nullable="0+")
    has_more: bool = boolean(versions="2+", ignorable=True)
    start_offset: int = int64(versions="2+", default=-1, ignorable=True)


class LimitScanRequest(ApiMessage, key=10015, kind="request", versions="0-2", flexible="0+"):
    """`before`: in log tables, return only rows below this offset; -1 for all."""

    table_id: UUID = uuid()
    columns: list[int] | None = array(int32, nullable="0+", default=None)
    limit: int = int32()
    buckets: list[int] = array(int32)
    schema_id: int = int16(default=-1, tag=0)
    filter: bytes | None = binary(versions="1+", nullable="1+", default=None)
    before: int = int64(versions="2+", default=-1)


class LimitScanResponse(TableResponse, key=10015, kind="response", versions="0-2", flexible="0+"):
    schema_id: int = int16()
    buckets: list[LimitScanResult] = array(LimitScanResult)


class CountRowsResult(BucketAnswer):
    """The number of rows, or of rows that match the filter, when the log had reached `offset`.

    For each column in the request's `extremes`, in that order: the number of values that are not null, and two rows
    (Arrow IPC, every field nullable) with the least and the greatest values.
    """

    count: int = int64()
    offset: int = int64(default=-1)
    value_counts: list[int] = array(int64, versions="2+")
    extremes: bytes | None = binary(versions="2+", nullable="2+", default=None)


class CountRowsRequest(ApiMessage, key=10016, kind="request", versions="0-2", flexible="0+"):
    table_id: UUID = uuid()
    buckets: list[int] = array(int32)
    schema_id: int = int16(versions="1+", default=-1, ignorable=True)
    filter: bytes | None = binary(versions="1+", nullable="1+", default=None)
    extremes: list[int] | None = array(int32, versions="2+", nullable="2+", default=None)


class CountRowsResponse(TableResponse, key=10016, kind="response", versions="0-2", flexible="0+"):
    buckets: list[CountRowsResult] = array(CountRowsResult)


class ScanSnapshotRequest(ApiMessage, key=10017, kind="request", versions="0-1", flexible="0+"):
    """Ask for the next piece of a scan of one bucket's state. `scan_id` OPEN_SCAN opens a scan, `close` ends it.

    `piece` counts the pieces from 0. The last answered piece can be requested again, and the scan stays open until it
    is closed. With `piece` -1 each request returns the next piece, and the last piece closes the scan. The request
    that opens a scan also has: the offset of the state (`as_of`, -1: now), the cursor after which keys are read
    (`after`), bounds for the keys, and the maximum number of rows (`limit`, -1: all). A bound is one row of the first
    `lower_columns` (`upper_columns`) columns of the primary key, and stands for all keys with this prefix.
    """

    table_id: UUID = uuid()
    bucket: int = int32()
    scan_id: int = int64(default=OPEN_SCAN)
    columns: list[int] | None = array(int32, nullable="0+", default=None)
    max_bytes: int = int32(default=4 << 20)
    close: bool = boolean()
    piece: int = int64(versions="1+", default=-1)
    as_of: int = int64(versions="1+", default=-1)
    after: bytes | None = binary(versions="1+", nullable="1+", default=None)
    lower: Any = records(versions="1+", nullable="1+")
    lower_columns: int = int16(versions="1+")
    lower_inclusive: bool = boolean(versions="1+", default=True)
    upper: Any = records(versions="1+", nullable="1+")
    upper_columns: int = int16(versions="1+")
    upper_inclusive: bool = boolean(versions="1+")
    limit: int = int64(versions="1+", default=-1)
    schema_id: int = int16(default=-1, tag=0)
    filter: bytes | None = binary(versions="1+", nullable="1+", default=None)


class ScanSnapshotResponse(TableResponse, key=10017, kind="response", versions="0-1", flexible="0+"):
    """All pieces together are the bucket's state at `log_offset`; the changelog continues it from there.

    `cursor`: the position after this piece, for `after`; null for a piece without rows.
    """

    scan_id: int = int64(default=-1)
    log_offset: int = int64(default=-1)
    has_more: bool = boolean()
    schema_id: int = int16()
    rows: Any = records(nullable="0+")
    cursor: bytes | None = binary(versions="1+", nullable="1+", default=None, ignorable=True)
