"""The table extension's own messages: API keys from 10000 up, version 0, flexible from the start.

They are declared in the vocabulary of Kafka's messages and travel on the same port with the same headers;
clients of Kafka skip keys they do not know. Where a bucket's leader is, and offsets by time, are asked with
Kafka's own Metadata and ListOffsets for the topic ``database.table``; committed positions with OffsetCommit
and OffsetFetch.

Every response begins with ``throttle_time_ms, error_code, error_message``; error codes are Kafka's below
1000 and ``TableErrorCode`` from there. Rows travel as one Arrow IPC record batch message without a schema
(``ipc.py``), written under ``schema_id``; log batches as in ``batch.py``, each under its own. A reader says
with ``schema_id`` which of the table's schemas it means (-1: the latest), and answers of rows are in that one,
whatever schema they were written under; batches of a log come as they are. Column lists are column ids of that
schema in the order of its columns; null means all columns. Rows and batches are views of the frame that was
decoded, and are sent by reference.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from protocol.schema import (
    ApiMessage,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    uuid,
)
from tablelayer.model.lake.offsets import PartitionBucket, Place

WRITE_MODE_MERGE = 0
"""PutRows: rows go through the table's merge rules."""
WRITE_MODE_OVERWRITE = 1
"""PutRows: rows replace what is there."""
OPEN_SCAN = -1
"""ScanSnapshot: the scan_id that opens a new scan."""


class Property(Struct):
    """A custom property of a database."""

    key: str = string()
    value: str = string()


class CreateDatabaseRequest(ApiMessage, key=10000, kind="request", versions="0", flexible="0+"):
    name: str = string()
    ignore_if_exists: bool = boolean()
    comment: str | None = string(nullable="0+", default=None, tag=0)
    properties: list[Property] = array(Property, tag=1)


class CreateDatabaseResponse(ApiMessage, key=10000, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class DropDatabaseRequest(ApiMessage, key=10001, kind="request", versions="0", flexible="0+"):
    name: str = string()
    ignore_if_not_exists: bool = boolean()
    cascade: bool = boolean()


class DropDatabaseResponse(ApiMessage, key=10001, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class ListDatabasesRequest(ApiMessage, key=10002, kind="request", versions="0", flexible="0+"):
    pass


class ListDatabasesResponse(ApiMessage, key=10002, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    databases: list[str] = array(string)


class CreateTableRequest(ApiMessage, key=10003, kind="request", versions="0", flexible="0+"):
    """``definition``: ``TableDefinition.to_json()``."""

    definition: str = string()
    ignore_if_exists: bool = boolean()


class CreateTableResponse(ApiMessage, key=10003, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    table_id: UUID = uuid()


class DropTableRequest(ApiMessage, key=10004, kind="request", versions="0", flexible="0+"):
    database: str = string()
    table: str = string()
    ignore_if_not_exists: bool = boolean()


class DropTableResponse(ApiMessage, key=10004, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class ListTablesRequest(ApiMessage, key=10005, kind="request", versions="0", flexible="0+"):
    database: str = string()


class ListTablesResponse(ApiMessage, key=10005, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    tables: list[str] = array(string)


class DescribeTableRequest(ApiMessage, key=10006, kind="request", versions="0", flexible="0+"):
    database: str = string()
    table: str = string()


class DescribeTableResponse(ApiMessage, key=10006, kind="response", versions="0", flexible="0+"):
    """``definition``: JSON for ``TableDefinition.from_json``."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    table_id: UUID = uuid()
    definition: str = string()


class AlterTableRequest(ApiMessage, key=10007, kind="request", versions="0", flexible="0+"):
    """``changes``: ``evolution.changes_to_json``; all are carried out, or none. ``expected_schema_id`` -1:
    whatever schema the table has; else another one is a SCHEMA_CHANGED.
    """

    database: str = string()
    table: str = string()
    changes: str = string()
    expected_schema_id: int = int16(default=-1)


class AlterTableResponse(ApiMessage, key=10007, kind="response", versions="0", flexible="0+"):
    """``definition``: the table as it is now, JSON for ``TableDefinition.from_json``."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    definition: str = string()


class DescribeDatabaseRequest(ApiMessage, key=10008, kind="request", versions="0", flexible="0+"):
    name: str = string()


class DescribeDatabaseResponse(ApiMessage, key=10008, kind="response", versions="0", flexible="0+"):
    """``created_at_ms`` is -1 for the database that was always there."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    created_at_ms: int = int64(default=-1)
    table_count: int = int32()
    comment: str | None = string(nullable="0+", default=None)
    properties: list[Property] = array(Property)


class AlterDatabaseRequest(ApiMessage, key=10009, kind="request", versions="0", flexible="0+"):
    """``comment`` null: as it is; the empty one takes it away."""

    name: str = string()
    comment: str | None = string(nullable="0+", default=None)
    set_properties: list[Property] = array(Property)
    reset_properties: list[str] = array(string)


class AlterDatabaseResponse(ApiMessage, key=10009, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class WriteBucket(Struct):
    """One Arrow log batch for one bucket (of the target columns only, when there are target columns)."""

    bucket: int = int32()
    batch: Any = records()


class WrittenBucket(Struct):
    """Where a batch went: its rows have the changelog offsets [base_offset, end_offset)."""

    bucket: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    base_offset: int = int64(default=-1)
    end_offset: int = int64(default=-1)


class AppendRowsRequest(ApiMessage, key=10010, kind="request", versions="0", flexible="0+"):
    table_id: UUID = uuid()
    acks: int = int16(default=-1)
    timeout_ms: int = int32()
    buckets: list[WriteBucket] = array(WriteBucket)


class AppendRowsResponse(ApiMessage, key=10010, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    buckets: list[WrittenBucket] = array(WrittenBucket)


class PutRowsRequest(ApiMessage, key=10011, kind="request", versions="0", flexible="0+"):
    """Change types of the batches: 3 upserts, 4 deletes; without change types every row is an upsert."""

    table_id: UUID = uuid()
    acks: int = int16(default=-1)
    timeout_ms: int = int32()
    target_columns: list[int] | None = array(int32, nullable="0+", default=None)
    write_mode: int = int8()
    buckets: list[WriteBucket] = array(WriteBucket)


class PutRowsResponse(ApiMessage, key=10011, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    buckets: list[WrittenBucket] = array(WrittenBucket)


class LookupBucket(Struct):
    """``keys``: rows of the primary-key columns, in the primary key's order."""

    bucket: int = int32()
    keys: Any = records()


class LookupResult(Struct):
    """``rows`` has one row per key, in their order; nulls where ``found`` (a byte per key) is 0.

    Since version 2 an answer that would be too large has the first keys only, as many as ``found`` has bytes, maybe
    none of a bucket's: the reader asks for the others. Before, there was an error then (ANSWER_TOO_LARGE).
    """

    bucket: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    found: bytes = binary()
    rows: Any = records(nullable="0+")


class LookupRequest(ApiMessage, key=10012, kind="request", versions="0-2", flexible="0+"):
    """``insert_if_absent`` writes rows of nulls for keys that are not there, and answers when they are stored or
    ``timeout_ms`` have passed.
    """

    table_id: UUID = uuid()
    columns: list[int] | None = array(int32, nullable="0+", default=None)
    buckets: list[LookupBucket] = array(LookupBucket)
    schema_id: int = int16(default=-1, tag=0)
    insert_if_absent: bool = boolean(versions="1+")
    timeout_ms: int = int32(versions="1+", ignorable=True)


class LookupResponse(ApiMessage, key=10012, kind="response", versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    schema_id: int = int16()
    buckets: list[LookupResult] = array(LookupResult)


class PrefixLookupBucket(Struct):
    """``prefixes``: rows of the bucket-key columns, in the bucket key's order. ``after``: the ``cursor`` of an answer;
    of the first prefix the rows behind it are wanted.
    """

    bucket: int = int32()
    prefixes: Any = records()
    after: bytes | None = binary(versions="1+", nullable="1+", default=None)


class PrefixLookupResult(Struct):
    """``counts``: an int32, little endian, per prefix; ``rows``: theirs one after the other, each group in
    key order.

    Since version 1 an answer that would be too large has the first prefixes only, as many as ``counts`` says, maybe
    none of a bucket's: the reader asks for the others. A ``cursor`` says that the last of these has more rows, and
    where.
    """

    bucket: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    counts: bytes = binary()
    rows: Any = records(nullable="0+")
    cursor: bytes | None = binary(versions="1+", nullable="1+", default=None, ignorable=True)


class PrefixLookupRequest(ApiMessage, key=10013, kind="request", versions="0-1", flexible="0+"):
    table_id: UUID = uuid()
    columns: list[int] | None = array(int32, nullable="0+", default=None)
    buckets: list[PrefixLookupBucket] = array(PrefixLookupBucket)
    schema_id: int = int16(default=-1, tag=0)


class PrefixLookupResponse(ApiMessage, key=10013, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    schema_id: int = int16()
    buckets: list[PrefixLookupResult] = array(PrefixLookupResult)


class ScanLogBucket(Struct):
    bucket: int = int32()
    offset: int = int64()
    max_bytes: int = int32(default=1 << 20)


class ScanLogResult(Struct):
    """``records``: Arrow log batches one after the other, projected: each holds the chosen columns only.

    The first batch may begin below the asked offset, as in Kafka's Fetch; readers drop its first rows.
    ``filtered_end_offset``: with a filter, where the reader goes on: nothing below it is wanted but what is in
    ``records``. -1 without a filter.
    """

    bucket: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    high_watermark: int = int64(default=-1)
    log_start_offset: int = int64(default=-1)
    records: Any = records(nullable="0+")
    filtered_end_offset: int = int64(versions="1+", default=-1, ignorable=True)


class ScanLogRequest(ApiMessage, key=10014, kind="request", versions="0-1", flexible="0+"):
    """``filter``: Substrait over columns of the schema ``schema_id``, by name (`filters.py`); batches in which no
    row can match are skipped, and with ``row_filter`` all rows that do not match are left out.
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


class ScanLogResponse(ApiMessage, key=10014, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    buckets: list[ScanLogResult] = array(ScanLogResult)


class LimitScanResult(Struct):
    """Log tables: the last rows below the high watermark. Primary-key tables: the first rows in key order.

    With a filter: of the rows that match. ``has_more``: the answer would be too large with all of them; of a log table
    those that are missing are below ``start_offset``, of a primary-key table a snapshot scan gives them. Before version
    2 there was an error then (ANSWER_TOO_LARGE).
    """

    bucket: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    rows: Any = records(nullable="0+")
    has_more: bool = boolean(versions="2+", ignorable=True)
    start_offset: int = int64(versions="2+", default=-1, ignorable=True)


class LimitScanRequest(ApiMessage, key=10015, kind="request", versions="0-2", flexible="0+"):
    """``before``: of log tables only rows below this offset; -1 for all."""

    table_id: UUID = uuid()
    columns: list[int] | None = array(int32, nullable="0+", default=None)
    limit: int = int32()
    buckets: list[int] = array(int32)
    schema_id: int = int16(default=-1, tag=0)
    filter: bytes | None = binary(versions="1+", nullable="1+", default=None)
    before: int = int64(versions="2+", default=-1)


class LimitScanResponse(ApiMessage, key=10015, kind="response", versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    schema_id: int = int16()
    buckets: list[LimitScanResult] = array(LimitScanResult)


class CountRowsResult(Struct):
    """The number of rows (that match the filter, if there is one) when the log had reached ``offset``.

    Of the columns that ``extremes`` of the request names, in its order: how many values are not null, and two rows
    (Arrow IPC, every field nullable), the least values and the greatest.
    """

    bucket: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
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


class CountRowsResponse(ApiMessage, key=10016, kind="response", versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    buckets: list[CountRowsResult] = array(CountRowsResult)


class ScanSnapshotRequest(ApiMessage, key=10017, kind="request", versions="0-1", flexible="0+"):
    """The next piece of a scan of one bucket's state; ``scan_id`` OPEN_SCAN opens one, ``close`` ends it.

    ``piece`` counts the pieces from 0: the last one that was answered can be asked for again, and the scan stays open
    until it is closed. -1: the next one, and the last one closes the scan. What opens a scan says the rest: the state
    at the offset ``as_of`` (-1: now), keys behind ``after`` (a cursor of an answer), keys between the bounds, at most
    ``limit`` rows (-1: all). A bound is one row of the first ``lower_columns`` (``upper_columns``) columns of the
    primary key, and stands for all keys that begin so.
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


class ScanSnapshotResponse(ApiMessage, key=10017, kind="response", versions="0-1", flexible="0+"):
    """All pieces together are the bucket's state at ``log_offset``: the changelog from there on continues
    it. ``cursor`` says how far the piece goes, for ``after``; null for a piece without rows.
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    scan_id: int = int64(default=-1)
    log_offset: int = int64(default=-1)
    has_more: bool = boolean()
    schema_id: int = int16()
    rows: Any = records(nullable="0+")
    cursor: bytes | None = binary(versions="1+", nullable="1+", default=None, ignorable=True)


class LakeOffset(Struct):
    """The log of a bucket is in the lake up to ``offset``, exclusive. Of a partitioned table the bucket is
    that of the partition of that name and id.
    """

    bucket: int = int32()
    offset: int = int64()
    partition: str | None = string(versions="1+", nullable="1+", default=None)
    partition_id: UUID = uuid(versions="1+", ignorable=True)

    @classmethod
    def of(cls, place: Place, offset: int) -> LakeOffset:
        if isinstance(place, PartitionBucket):
            return cls(
                bucket=place.bucket, offset=offset, partition=place.partition, partition_id=place.table_id
            )
        return cls(bucket=place, offset=offset)

    @property
    def place(self) -> Place:
        if self.partition is None:
            return self.bucket
        return PartitionBucket(self.partition, self.partition_id, self.bucket)


class LakeProperty(Struct):
    """``value`` null: it is set, and may be a secret, which is kept from who asks."""

    key: str = string()
    value: str | None = string(nullable="0+", default=None)

    def __repr__(self) -> str:
        return f"LakeProperty(key={self.key!r})"


class LakeBeginRequest(ApiMessage, key=10020, kind="request", versions="0-1", flexible="0+"):
    """Asks for a tiering round: of one table, or (nulls) of the one that needs it most; ``force`` if none
    is due. ``topic``: of this plain topic.
    """

    worker: str = string()
    database: str | None = string(nullable="0+", default=None)
    table: str | None = string(nullable="0+", default=None)
    force: bool = boolean()
    topic: str | None = string(versions="1+", nullable="1+", default=None)


class LakeBeginResponse(ApiMessage, key=10020, kind="response", versions="0-1", flexible="0+"):
    """``epoch`` fences every earlier round of the table; the round is lost ``lease_ms`` after the last
    heartbeat. ``topic``: the round is of this plain topic, whose id ``table_id`` is.
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    granted: bool = boolean()
    table_id: UUID = uuid()
    database: str = string()
    table: str = string()
    epoch: int = int64(default=-1)
    lease_ms: int = int32()
    topic: str | None = string(versions="1+", nullable="1+", default=None)


class LakeHeartbeatRequest(ApiMessage, key=10021, kind="request", versions="0", flexible="0+"):
    """Renews the lease; ``changes`` are in the lake by this round so far, ``doing`` is for people."""

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    changes: int = int64()
    doing: str = string()


class LakeHeartbeatResponse(ApiMessage, key=10021, kind="response", versions="0", flexible="0+"):
    """``finish``: end the round after what is in hand."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    finish: bool = boolean()


class LakeCommitRequest(ApiMessage, key=10022, kind="request", versions="0-1", flexible="0+"):
    """Reports what is in the lake already: ``offsets`` as they stand inside of snapshot ``snapshot_id``.

    The round goes on until it is given back.
    """

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    snapshot_id: int = int64(default=-1)
    offsets: list[LakeOffset] = array(LakeOffset)


class LakeCommitResponse(ApiMessage, key=10022, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class DescribeLakeRequest(ApiMessage, key=10023, kind="request", versions="0-2", flexible="0+"):
    """``token``: what the server's operator has given to tiering jobs, to be told the catalog's credentials."""

    table_id: UUID = uuid()
    token: str | None = string(versions="2+", nullable="2+", default=None, ignorable=True)

    def __repr__(self) -> str:
        return f"DescribeLakeRequest(table_id={self.table_id!r})"


class DescribeLakeResponse(ApiMessage, key=10023, kind="response", versions="0-2", flexible="0+"):
    """The coordinator's copy of what the lake's own snapshots say; ``properties`` are the catalog's.

    ``ends`` are the log's ends as readers see them. ``worker`` (null: none), ``doing``, ``changes`` and
    ``round_ms`` tell of the round that is running, ``failures``, ``retry_in_ms`` and ``failure`` of those that
    failed since the last commit. ``commits`` were reported since the server started; ``behind_ms`` is how old the
    oldest record is that the lake does not have (0: it has all; -1: nobody knows).
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    enabled: bool = boolean()
    format: str = string()
    snapshot_id: int = int64(default=-1)
    epoch: int = int64(default=-1)
    committed_at_ms: int = int64(default=-1)
    offsets: list[LakeOffset] = array(LakeOffset)
    properties: list[LakeProperty] = array(LakeProperty)
    ends: list[LakeOffset] = array(LakeOffset)
    freshness_ms: int = int64()
    worker: str | None = string(nullable="0+", default=None)
    doing: str = string()
    changes: int = int64()
    round_ms: int = int64()
    failures: int = int32()
    retry_in_ms: int = int64()
    failure: str = string()
    commits: int = int64(versions="1+", ignorable=True)
    behind_ms: int = int64(versions="1+", default=-1, ignorable=True)


class LakeEndRequest(ApiMessage, key=10050, kind="request", versions="0", flexible="0+"):
    """Ends a round; ``failure`` says why it could not be done, null that nothing was wrong."""

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    failure: str | None = string(nullable="0+", default=None)


class LakeEndResponse(ApiMessage, key=10050, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class LakeFinishRequest(ApiMessage, key=10051, kind="request", versions="0", flexible="0+"):
    """Has whoever tiers the table told to end the round after what is in hand."""

    table_id: UUID = uuid()


class LakeFinishResponse(ApiMessage, key=10051, kind="response", versions="0", flexible="0+"):
    """``running``: whether there was a round to finish."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    running: bool = boolean()


class ListedLake(Struct):
    """How far the lake of one table or plain topic is; the fields are those of DescribeLakeResponse, and ``behind`` is
    the number of offsets that the lake does not have.
    """

    table_id: UUID = uuid()
    name: str = string()
    is_topic: bool = boolean()
    format: str = string()
    snapshot_id: int = int64(default=-1)
    committed_at_ms: int = int64(default=-1)
    freshness_ms: int = int64()
    behind: int = int64()
    behind_ms: int = int64(default=-1)
    commits: int = int64()
    failures: int = int32()
    retry_in_ms: int = int64()
    failure: str = string()
    worker: str | None = string(nullable="0+", default=None)
    doing: str = string()
    changes: int = int64()
    round_ms: int = int64()


class ListLakeRequest(ApiMessage, key=10052, kind="request", versions="0", flexible="0+"):
    """Everything that is tiered."""


class ListLakeResponse(ApiMessage, key=10052, kind="response", versions="0", flexible="0+"):
    """Tables in order of name, then topics."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    entries: list[ListedLake] = array(ListedLake)


class StagedChunk(Struct):
    """A write batch as in AppendRows or PutRows; ``number`` counts an attempt's chunks for this bucket from 0.

    ``partition_id``: of a partitioned table the partition that the bucket is of.
    """

    partition_id: UUID = uuid(versions="1+")
    bucket: int = int32()
    number: int = int32()
    batch: Any = records()


class StageRowsRequest(ApiMessage, key=10040, kind="request", versions="0-1", flexible="0+"):
    """Hand over rows that become part of the table when the writer commits the attempt.

    ``writer`` keeps its name over restarts, ``batch_id`` grows, ``attempt`` is new for every run of a task. A
    chunk that is there already is not stored again.
    """

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempt: str = string()
    target_columns: list[int] | None = array(int32, nullable="0+", default=None)
    chunks: list[StagedChunk] = array(StagedChunk)


class StageRowsResponse(ApiMessage, key=10040, kind="response", versions="0-1", flexible="0+"):
    """``decided``: this batch, or a later one, is committed already; nothing was stored."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    decided: bool = boolean()


class StagedCount(Struct):
    """As `StagedChunk`."""

    partition_id: UUID = uuid(versions="1+")
    bucket: int = int32()
    count: int = int32()


class StagedAttempt(Struct):
    """An attempt and how many chunks it has staged for each bucket."""

    attempt: str = string()
    chunks: list[StagedCount] = array(StagedCount)


class CommitStagedRequest(ApiMessage, key=10041, kind="request", versions="0-1", flexible="0+"):
    """Write what these attempts have staged, once, in this order; answered when all of it is visible.

    A batch that is decided already is left as it is, whatever attempts are named. ``single``: the writer will not
    have another batch, and may soon be forgotten.
    """

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempts: list[StagedAttempt] = array(StagedAttempt)
    single: bool = boolean()


class CommitStagedResponse(ApiMessage, key=10041, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class AbortStagedRequest(ApiMessage, key=10042, kind="request", versions="0", flexible="0+"):
    """Drop what these attempts have staged, unless their batch is decided."""

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempts: list[str] = array(string)


class AbortStagedResponse(ApiMessage, key=10042, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class CreatePartitionRequest(ApiMessage, key=10024, kind="request", versions="0", flexible="0+"):
    """``name``: the values of the partition columns as text, joined by dots (``partitions.py``)."""

    table_id: UUID = uuid()
    name: str = string()
    ignore_if_exists: bool = boolean()


class CreatePartitionResponse(ApiMessage, key=10024, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    partition_id: UUID = uuid()
    bucket_count: int = int32(default=0)


class DropPartitionRequest(ApiMessage, key=10025, kind="request", versions="0", flexible="0+"):
    table_id: UUID = uuid()
    name: str = string()
    ignore_if_not_exists: bool = boolean()


class DropPartitionResponse(ApiMessage, key=10025, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class ListedPartition(Struct):
    name: str = string()
    partition_id: UUID = uuid()
    bucket_count: int = int32()


class ListPartitionsRequest(ApiMessage, key=10026, kind="request", versions="0", flexible="0+"):
    table_id: UUID = uuid()


class ListPartitionsResponse(ApiMessage, key=10026, kind="response", versions="0", flexible="0+"):
    """In order of name."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    partitions: list[ListedPartition] = array(ListedPartition)


REQUESTS: tuple[type[ApiMessage], ...] = (
    CreateDatabaseRequest,
    DropDatabaseRequest,
    ListDatabasesRequest,
    CreateTableRequest,
    DropTableRequest,
    ListTablesRequest,
    DescribeTableRequest,
    AlterTableRequest,
    DescribeDatabaseRequest,
    AlterDatabaseRequest,
    AppendRowsRequest,
    PutRowsRequest,
    LookupRequest,
    PrefixLookupRequest,
    ScanLogRequest,
    LimitScanRequest,
    CountRowsRequest,
    ScanSnapshotRequest,
    LakeBeginRequest,
    LakeHeartbeatRequest,
    LakeCommitRequest,
    DescribeLakeRequest,
    StageRowsRequest,
    CommitStagedRequest,
    AbortStagedRequest,
    CreatePartitionRequest,
    DropPartitionRequest,
    ListPartitionsRequest,
    LakeEndRequest,
    LakeFinishRequest,
    ListLakeRequest,
)
RESPONSES: tuple[type[ApiMessage], ...] = (
    CreateDatabaseResponse,
    DropDatabaseResponse,
    ListDatabasesResponse,
    CreateTableResponse,
    DropTableResponse,
    ListTablesResponse,
    DescribeTableResponse,
    AlterTableResponse,
    DescribeDatabaseResponse,
    AlterDatabaseResponse,
    AppendRowsResponse,
    PutRowsResponse,
    LookupResponse,
    PrefixLookupResponse,
    ScanLogResponse,
    LimitScanResponse,
    CountRowsResponse,
    ScanSnapshotResponse,
    LakeBeginResponse,
    LakeHeartbeatResponse,
    LakeCommitResponse,
    DescribeLakeResponse,
    StageRowsResponse,
    CommitStagedResponse,
    AbortStagedResponse,
    CreatePartitionResponse,
    DropPartitionResponse,
    ListPartitionsResponse,
    LakeEndResponse,
    LakeFinishResponse,
    ListLakeResponse,
)
