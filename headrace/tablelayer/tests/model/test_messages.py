"""Every message of the extension can be encoded and decoded, and matches its counterpart."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.model import messages as m

MESSAGES = [
    each
    for each in vars(m).values()
    if isinstance(each, type) and issubclass(each, ApiMessage) and hasattr(each, "API_KEY")
]
TABLE = UUID("6f7c2a52-92f4-4f0e-8f2b-7d6a0a4f1c11")

SAMPLES = [
    m.CreateDatabaseRequest(name="shop", ignore_if_exists=True),
    m.DropDatabaseRequest(name="shop", cascade=True),
    m.ListDatabasesRequest(),
    m.ListDatabasesResponse(databases=["default", "shop"]),
    m.CreateTableRequest(definition="{}" * 40_000, ignore_if_exists=True),
    m.CreateTableResponse(table_id=TABLE),
    m.ListTablesResponse(error_code=1000, error_message="database 'shöp' not found"),
    m.PutRowsRequest(
        table_id=TABLE,
        acks=1,
        timeout_ms=5,
        target_columns=[0, 2],
        buckets=[m.WriteBucket(bucket=3, batch=b"abc")],
    ),
    m.PutRowsResponse(buckets=[m.WrittenBucket(bucket=3, base_offset=7, end_offset=9)]),
    m.LookupRequest(table_id=TABLE, columns=[1], buckets=[m.LookupBucket(bucket=0, keys=b"k" * 70_000)]),
    m.LookupResponse(schema_id=4, buckets=[m.LookupResult(bucket=0, found=b"\1\0", rows=b"rows")]),
    m.PrefixLookupResponse(buckets=[m.PrefixLookupResult(counts=b"\2\0\0\0", rows=b"rows")]),
    m.ScanLogRequest(table_id=TABLE, buckets=[m.ScanLogBucket(bucket=1, offset=2**40)]),
    m.ScanLogResponse(
        buckets=[m.ScanLogResult(bucket=1, high_watermark=5, log_start_offset=0, records=b"batch")]
    ),
    m.LimitScanResponse(buckets=[m.LimitScanResult(rows=b"")]),
    m.CountRowsResponse(buckets=[m.CountRowsResult(bucket=1, count=10, offset=99)]),
    m.ScanSnapshotRequest(table_id=TABLE, scan_id=8, close=True),
    m.ScanSnapshotResponse(scan_id=8, has_more=True, log_offset=12, rows=b"rows"),
    m.LakeBeginRequest(worker="w", database="shop", table=None, force=True),
    m.LakeBeginResponse(granted=True, table_id=TABLE, database="shop", table="t", epoch=4, lease_ms=60_000),
    m.LakeCommitRequest(
        table_id=TABLE, epoch=4, snapshot_id=2**62, offsets=[m.LakeOffset(bucket=0, offset=5)]
    ),
    m.DescribeLakeResponse(enabled=True, format="iceberg", properties=[m.LakeProperty(key="a", value="b")]),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_message_goes_out_and_comes_back(message):
    assert type(message).decode(message.encode(0), 0) == message


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_defaults_go_out_and_come_back(kind):
    values = {name: b"" for name, field in kind.FIELDS.items() if field.kind == "records"}
    message, version = kind(**values), kind.MAX_VERSION
    assert kind.decode(message.encode(version), version) == message
    assert kind.is_flexible(version)


def test_each_key_has_one_request_and_one_response():
    of_keys = {kind.API_KEY: [] for kind in MESSAGES}
    for kind in MESSAGES:
        of_keys[kind.API_KEY].append(kind)
    assert min(of_keys) >= 10000
    for kinds in of_keys.values():
        request, response = sorted(kinds, key=lambda kind: kind.KIND)
        assert (request.KIND, response.KIND) == ("request", "response")
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix("Response")
        assert list(response.FIELDS)[:3] == ["throttle_time_ms", "error_code", "error_message"]
