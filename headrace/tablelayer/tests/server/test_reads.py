"""Lookups, scans, counts and the log of log tables."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ArrowBatch
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.read import bucket_state as reads
from headrace.tablelayer.server.read.wanted import Wanted
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.tests.server.tables import (
    DEADLINE_SECONDS,
    TIMEOUT_MS,
    MovableClock,
    coming_from,
    tables,
)

LOG = "id BIGINT, name STRING, price DECIMAL(10, 2), at TIMESTAMP(3)"
KEYED = "id BIGINT, name STRING, n INT, PRIMARY KEY (id) NOT ENFORCED"


def log_row(number: int) -> dict[str, object]:
    return {"id": number, "name": f"name {number}", "price": None, "at": None}


async def test_lookups_keep_the_order_and_mark_absent_keys(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED)
        rows = [{"id": n, "name": f"row {n}", "n": None} for n in range(50)]
        await table.put(*(("+", row) for row in rows))
        keys = [random.Random(1).randrange(100) for _ in range(200)]
        found = await table.lookup(*({"id": key} for key in keys))
        assert found == [rows[key] if key < 50 else None for key in keys]
        assert await table.lookup({"id": 3}, columns=["name"]) == [{"name": "row 3"}]
        assert await table.lookup() == []


async def test_wrong_keys_and_columns_are_refused(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED)
        keys = encode_ipc(pa.record_batch({"id": pa.array([1, None], pa.int64())}))
        request = m.LookupRequest(table_id=table.table_id, buckets=[m.LookupBucket(bucket=0, keys=keys)])
        answer = (await all_tables.broker.send(request)).buckets[0]
        assert (answer.error_code, "null" in answer.error_message) == (TableErrorCode.INVALID_KEY, True)
        request.buckets[0].keys = b"rubbish"
        answer = (await all_tables.broker.send(request)).buckets[0]
        assert answer.error_code == TableErrorCode.INVALID_KEY
        request.buckets[0].bucket = 7
        answer = (await all_tables.broker.send(request)).buckets[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for columns in ([9], [1, 0], [0, 0], []):
            request.columns = columns
            answer = await all_tables.broker.send(request)
            assert answer.error_code == TableErrorCode.INVALID_PROJECTION


async def test_a_lookup_on_the_loop_waits_for_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED")
        await table.put(("+", {"id": 1, "name": "a"}))
        bucket, schema = table.partition.hooks, table.definition.schema
        key = pa.record_batch([pa.array([1], pa.int32())], names=["id"])
        room = Room(1 << 20, schema.row_cost)
        asked = (
            bucket.store,
            bucket.versions,
            memoryview(encode_ipc(key)),
            Wanted(schema, None),
            10,
            room,
        )
        stored_message.warm()
        assert reads.lookup_in_memory(*asked) is not None
        monkeypatch.setattr(stored_message, "is_loaded", lambda: False)
        assert reads.lookup_in_memory(*asked) is None
        assert await table.lookup({"id": 1}) == [{"id": 1, "name": "a"}]


async def test_prefix_lookups_give_each_prefix_its_rows_in_key_order(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "a STRING, b INT, v INT, PRIMARY KEY (a, b) NOT ENFORCED", bucket_key=["a"]
        )
        rows = [{"a": a, "b": b, "v": b * b} for a in ("x", "x\x00", "xx") for b in (3, -1, 2)]
        await table.put(*(("+", row) for row in rows))
        prefixes = encode_ipc(pa.record_batch({"a": ["xx", "none", "x"]}))
        answer = await all_tables.broker.send(
            m.PrefixLookupRequest(
                table_id=table.table_id, buckets=[m.PrefixLookupBucket(bucket=0, prefixes=prefixes)]
            )
        )
        result = answer.buckets[0]
        assert list(memoryview(result.counts).cast("i")) == [3, 0, 3]
        expected = [{"a": a, "b": b, "v": b * b} for a in ("xx", "x") for b in (-1, 2, 3)]
        assert table.rows(result.rows) == expected
        keyed = await all_tables.create(KEYED, name="keyed")
        answer = await all_tables.broker.send(m.PrefixLookupRequest(table_id=keyed.table_id, buckets=[]))
        assert answer.error_code == TableErrorCode.INVALID_KEY


@pytest.mark.parametrize("compression", ["ZSTD", "LZ4_FRAME", "NONE"])
async def test_a_log_table_returns_appended_rows_whole_and_projected(
    tmp_path: Path, compression: str
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(LOG)
        rows = [log_row(number) for number in range(500)]
        from headrace.tablelayer.model.options.table_options import ArrowCompression

        for start in range(0, 500, 50):
            answer = await table.append(rows[start : start + 50], compression=ArrowCompression(compression))
            assert (answer.error_code, answer.base_offset, answer.end_offset) == (0, start, start + 50)
        assert await table.changelog() == [("+A", row) for row in rows]
        batches = await table.scan(120, columns=["id", "at"])
        assert batches[0].header.base_offset == 100
        assert batches[0].header.max_timestamp > 1_600_000_000_000  # stamped by the server
        selected = pa.schema([table.definition.schema.arrow().field(index) for index in (0, 3)])
        read = [
            row["id"]
            for batch in batches
            for row in batch.to_record_batch(selected, untrusted=True).to_pylist()
        ]
        assert read == list(range(100, 500))


async def test_appends_are_checked(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT NOT NULL, s CHAR(3)")
        for bad in ({"id": None, "s": "a"}, {"id": 1, "s": "long"}):
            assert (await table.append([{"id": 1, "s": "a"}, bad])).error_code == TableErrorCode.INVALID_ROW
        assert (await table.append([], schema_id=5)).error_code == TableErrorCode.UNKNOWN_SCHEMA_ID
        assert (await table.append([{"id": 1, "s": "a"}], last_offset_delta=4)).error_code == 2
        assert (
            await table.append([{"id": 1, "s": "a"}], changes=[1])
        ).error_code == TableErrorCode.INVALID_ROW
        assert await table.changelog() == []
        assert await table.count() == 0


async def test_appends_are_idempotent(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(LOG)
        who = {"producer_id": 1, "producer_epoch": 0}
        await table.append([log_row(1), log_row(2)], base_sequence=0, **who)
        await table.append([log_row(3)], base_sequence=2, **who)
        again = await table.append([log_row(1), log_row(2)], base_sequence=0, **who)
        assert (again.error_code, again.base_offset, again.end_offset) == (0, 0, 2)
        assert await table.count() == 3


async def test_scans_wait_for_rows_and_no_longer_than_asked(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(LOG, buckets=2)
        loop = asyncio.get_running_loop()
        request = m.ScanLogRequest(
            table_id=table.table_id, max_wait_ms=TIMEOUT_MS, min_bytes=1,
            buckets=[m.ScanLogBucket(bucket=index, offset=0) for index in (0, 1)],
        )  # fmt: skip
        waiting = asyncio.ensure_future(all_tables.broker.send(request))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await table.append([log_row(1)], bucket=1)
        answer = await waiting
        assert [bool(each.records) for each in answer.buckets] == [False, True]
        assert [each.high_watermark for each in answer.buckets] == [0, 1]
        request.buckets[1].offset, request.max_wait_ms = 1, 80
        began = loop.time()
        answer = await all_tables.broker.send(request)
        assert 0.07 < loop.time() - began < DEADLINE_SECONDS
        assert not any(each.records for each in answer.buckets)


async def test_scans_say_when_an_offset_is_out_of_range_at_once(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(LOG)
        answer = await all_tables.broker.send(
            m.ScanLogRequest(
                table_id=table.table_id, max_wait_ms=60_000, buckets=[m.ScanLogBucket(bucket=0, offset=5)]
            )
        )
        assert answer.buckets[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_limits_are_respected_with_at_least_one_batch(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(LOG, buckets=2)
        for _ in range(5):
            for bucket in (0, 1):
                await table.append([log_row(number) for number in range(100)], bucket=bucket)
        one = len(table.batch([log_row(number) for number in range(100)]))
        request = m.ScanLogRequest(
            table_id=table.table_id, max_bytes=1,
            buckets=[m.ScanLogBucket(bucket=index, offset=0) for index in (0, 1)],
        )  # fmt: skip
        answer = await all_tables.broker.send(request)
        assert [len(each.records or b"") for each in answer.buckets] == [one, 0]
        request.max_bytes = 4 * one
        request.buckets[0].max_bytes = 2 * one
        answer = await all_tables.broker.send(request)
        assert [len(each.records or b"") for each in answer.buckets] == [2 * one, 2 * one]
        request.max_bytes = 1
        request.columns = [table.definition.schema.columns[0].id]
        answer = await all_tables.broker.send(request)
        assert [bool(each.records) for each in answer.buckets] == [True, False]
        records = bytes(answer.buckets[0].records or b"")
        assert ArrowBatch.parse(records).header.size == len(records), "one batch and no more"


async def test_limit_scans_give_the_last_rows_of_a_log_and_the_first_keys(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        log = await all_tables.create(LOG, name="log")
        for start in range(0, 100, 10):
            await log.append([log_row(number) for number in range(start, start + 10)])
        keyed = await all_tables.create(KEYED)
        await keyed.put(*(("+", {"id": n, "name": None, "n": n}) for n in range(20, 0, -1)))
        for limit in (0, 1, 15, 500):
            answer = await all_tables.broker.send(
                m.LimitScanRequest(table_id=log.table_id, limit=limit, buckets=[0], columns=[0, 1])
            )
            ids = [row["id"] for row in log.rows(answer.buckets[0].rows, ["id", "name"])]
            assert ids == list(range(100))[max(0, 100 - limit) :]
            answer = await all_tables.broker.send(
                m.LimitScanRequest(table_id=keyed.table_id, limit=limit, buckets=[0])
            )
            assert [row["id"] for row in keyed.rows(answer.buckets[0].rows)] == list(range(1, 21))[:limit]


async def test_log_rows_are_counted_from_the_logs_start(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(LOG)
        for _ in range(3):
            await table.append([log_row(number) for number in range(10)])
            await table.append([])  # takes an offset, without a row
        assert await table.count() == 30
        await table.append([log_row(1)])
        assert await table.count() == 31
        table.partition.delete_records(14)
        assert await table.count() == 18


async def test_snapshot_scans_end_with_their_lease_and_their_table(tmp_path: Path) -> None:
    clock = MovableClock()
    async with tables(
        tmp_path, limits=Limits(scans_open_max=2, scan_idle_seconds=3600.0), clock=clock
    ) as all_tables:
        table = await all_tables.create(KEYED)
        await table.put(*(("+", {"id": n, "name": None, "n": n}) for n in range(3000)))
        request = m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, max_bytes=1)
        first = await all_tables.broker.send(request)
        assert first.has_more
        second = await all_tables.broker.send(request)
        assert (await all_tables.broker.send(request)).error_code == TableErrorCode.BUFFER_EXHAUSTED
        close = m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, scan_id=second.scan_id, close=True)
        assert (await all_tables.broker.send(close)).error_code == 0
        assert (await all_tables.broker.send(request)).error_code == 0
        clock.waited_seconds += Limits().scan_lease_seconds
        request.scan_id = first.scan_id
        assert (await all_tables.broker.send(request)).error_code == TableErrorCode.SCAN_EXPIRED
        request.scan_id = m.OPEN_SCAN
        request.scan_id = (await all_tables.broker.send(request)).scan_id
        await all_tables.broker.context.topics.delete_topic("default.t")
        answer = await all_tables.broker.send(request)
        assert answer.error_code == TableErrorCode.TABLE_NOT_FOUND


async def test_a_scan_is_read_by_its_host_of_its_table_and_its_id_is_random(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        mine = await all_tables.create(KEYED, name="mine")
        other = await all_tables.create(KEYED, name="other")
        await mine.put(*(("+", {"id": n, "name": "secret", "n": n}) for n in range(3000)))
        await other.put(("+", {"id": 1, "name": "x", "n": 1}))
        broker = all_tables.broker
        opened = [
            await broker.send(m.ScanSnapshotRequest(table_id=mine.table_id, bucket=0, max_bytes=1))
            for _ in range(3)
        ]
        ids = [each.scan_id for each in opened]
        assert min(abs(a - b) for a in ids for b in ids if a != b) > 1 << 20
        go_on = m.ScanSnapshotRequest(table_id=mine.table_id, bucket=0, scan_id=ids[0], max_bytes=1)
        through_other = m.ScanSnapshotRequest(table_id=other.table_id, scan_id=ids[0], max_bytes=1)
        foreign = coming_from(broker, "192.0.2.7")
        for asker, request in ((broker, through_other), (foreign, go_on), (foreign, through_other)):
            answer = await asker.send(request)
            assert (answer.error_code, answer.rows) == (TableErrorCode.SCAN_EXPIRED, None)
            request.close = True
            assert (await asker.send(request)).error_code == 0
            request.close = False
        # Other clients' attempts have not closed it, and another connection of the same host goes on with it.
        answer = await coming_from(broker, "127.0.0.1").send(go_on)
        assert (answer.error_code, answer.has_more) == (0, True)


@pytest.mark.parametrize("past", [False, True])
async def test_open_scans_of_a_client_do_not_lock_out_others(tmp_path: Path, past: bool) -> None:
    limits = Limits(
        scans_open_max=4, scans_per_client_max=3, past_states_max=4, past_states_per_client_max=3,
        scan_idle_seconds=3600.0,
    )  # fmt: skip
    async with tables(tmp_path, limits=limits) as all_tables:
        table = await all_tables.create(KEYED)
        for first in range(0, 60, 10):
            await table.put(*(("+", {"id": n, "name": None, "n": n}) for n in range(first, first + 2000)))
        offsets = iter(range(1, 100))

        async def open_from(host: str) -> Any:
            asked = m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, max_bytes=1, piece=0)
            asked.as_of = next(offsets) if past else -1
            return await coming_from(all_tables.broker, host).send(asked)

        greedy = [await open_from("192.0.2.1") for _ in range(3)]
        assert [each.error_code for each in greedy] == [0, 0, 0]
        refused = await open_from("192.0.2.1")
        assert refused.error_code == TableErrorCode.BUFFER_EXHAUSTED
        assert "holds 3 slots; the maximum for one client is 3" in refused.error_message
        second = await open_from("192.0.2.2")
        assert second.error_code == 0
        # All places are taken: the host with the most gives its longest idle one to a host without any.
        third = await open_from("192.0.2.3")
        assert third.error_code == 0
        gone = []
        for host, each in (*(("192.0.2.1", each) for each in greedy), ("192.0.2.2", second)):
            again = m.ScanSnapshotRequest(table_id=table.table_id, scan_id=each.scan_id, piece=1, max_bytes=1)
            gone.append((await coming_from(all_tables.broker, host).send(again)).error_code)
        assert gone == [TableErrorCode.SCAN_EXPIRED, 0, 0, 0]


async def test_a_client_beyond_its_share_loses_its_least_recently_used_scan(tmp_path: Path) -> None:
    limits = Limits(scans_per_client_max=2, scan_idle_seconds=0.0)
    async with tables(tmp_path, limits=limits) as all_tables:
        table = await all_tables.create(KEYED)
        await table.put(*(("+", {"id": n, "name": None, "n": n}) for n in range(3000)))
        asked = m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, max_bytes=1)
        opened = [(await all_tables.broker.send(asked)).scan_id for _ in range(3)]
        codes = []
        for scan_id in opened:
            asked.scan_id = scan_id
            codes.append((await all_tables.broker.send(asked)).error_code)
        assert codes == [TableErrorCode.SCAN_EXPIRED, 0, 0]
