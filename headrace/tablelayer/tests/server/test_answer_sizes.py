"""The size of an answer is bounded in bytes before it is built, and asking for the rest returns all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.ipc import decode_ipc, encode_ipc
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.column_types import BIGINT, STRING, array_of, binary, row_of
from headrace.tablelayer.model.types.sizes import RowCost, value_width
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.read import bucket_state as reads
from headrace.tablelayer.server.read.wanted import Wanted
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import KeyRange
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.tests.server.tables import Table, tables

KEYED = "id INT, text STRING, PRIMARY KEY (id) NOT ENFORCED"
LARGE = 20_000
SMALL = Limits(answer_bytes_max=100_000)


def row(number: int, size: int = LARGE) -> dict[str, Any]:
    return {"id": number, "text": f"{number:06d}".ljust(size, ".")}


def keys_of(table: Table, numbers: Sequence[int]) -> Any:
    column = table.definition.schema.column("id").field()
    return encode_ipc(pa.RecordBatch.from_pylist([{"id": n} for n in numbers], pa.schema([column])))


async def looked_up(table: Table, numbers: Sequence[int], version: int = 2) -> m.LookupResult:
    part = m.LookupBucket(bucket=0, keys=keys_of(table, numbers))
    answer = await table.broker.send(m.LookupRequest(table_id=table.table_id, buckets=[part]), version)
    result: m.LookupResult = answer.buckets[0]
    return result


class CountingStore(KeyValueStore):
    """Counts the keys that are read together."""

    read = 0

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        self.read += len(keys)
        return super().get(keys)


@pytest.mark.parametrize("seed", range(6))
def test_r21_1_keys_are_read_together_where_there_is_room_for_their_rows(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = [b"\x01%04d" % number for number in range(300)]
    values = [bytes(int(size)) for size in [900, *rng.choice([1, 40, 900], 299, p=[0.5, 0.4, 0.1])]]
    store = CountingStore.open(tmp_path / "kv", SharedMemory(Limits()))
    assert isinstance(store, CountingStore)
    try:
        store.write([(keys, values)], 300, 300)
        others = [*keys[1:], *(b"\x01%04d-" % number for number in range(50))]
        asked = [keys[0], *(others[place] for place in rng.permutation(len(others)))]
        stored = dict(zip(keys, values, strict=True))
        for max_bytes in (0, 500, 2_000, 20_000, 40_000, 1 << 20):
            alone, room = (Room(max_bytes, RowCost(3, 2)) for _ in range(2))
            expected = alone.those_that_fit(map(stored.get, asked))
            store.read = 0
            assert store.get_while(asked, room) == expected
            assert (room.used, room.is_full) == (alone.used, alone.is_full)
            assert store.read <= len(expected) + 1, "one is turned away"
    finally:
        store.close()


async def test_r21_1_a_lookup_answers_the_first_keys_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    async with tables(tmp_path, limits=SMALL) as all_tables:
        table = await all_tables.create(KEYED)
        await table.put(*(("+", row(n)) for n in range(8)))
        for numbers in ([3] * 5_000, [3, 1, 7, 5, 0, 2, 4, 6], [99, 3] * 5_000):
            result = await looked_up(table, numbers)
            count = len(result.found)
            assert 4 <= count < len(numbers)
            assert len(result.rows) < SMALL.answer_bytes_max + 10_000
            rows = table.rows(result.rows)
            assert [each["id"] if found else 99 for each, found in zip(rows, result.found, strict=True)] == (
                numbers[:count]
            )
            refused = await looked_up(table, numbers, version=1)
            assert (refused.error_code, refused.rows) == (TableErrorCode.ANSWER_TOO_LARGE, None)
            assert str(SMALL.answer_bytes_max) in refused.error_message
        whole = await looked_up(table, [1, 2], version=1)
        assert (whole.error_code, len(whole.found)) == (0, 2)


async def test_r21_1_the_first_row_has_room_however_large_it_is(tmp_path: Path) -> None:
    async with tables(tmp_path, limits=Limits(answer_bytes_max=1)) as all_tables:
        table = await all_tables.create(KEYED, buckets=2)
        await table.put(("+", row(1)))
        parts = [m.LookupBucket(bucket=n, keys=keys_of(table, [1, 1])) for n in (0, 1)]
        answer = await table.broker.send(m.LookupRequest(table_id=table.table_id, buckets=parts))
        assert [(each.error_code, len(each.found)) for each in answer.buckets] == [(0, 1), (0, 0)]
        answer = await table.broker.send(m.LimitScanRequest(table_id=table.table_id, buckets=[0, 1], limit=9))
        assert [len(table.rows(each.rows)) for each in answer.buckets] == [1, 0]


async def test_r21_1_buckets_share_the_room_of_an_answer(tmp_path: Path) -> None:
    async with tables(tmp_path, limits=SMALL) as all_tables:
        table = await all_tables.create(KEYED, buckets=9)
        for bucket in range(9):
            batch = table.batch([row(n) for n in range(3)], [3] * 3)
            assert (await table.put_batch(batch, bucket=bucket)).error_code == 0
        parts = [m.LookupBucket(bucket=n, keys=keys_of(table, [0, 1, 2])) for n in range(9)]
        lookup = await table.broker.send(m.LookupRequest(table_id=table.table_id, buckets=parts))
        scan = await table.broker.send(
            m.LimitScanRequest(table_id=table.table_id, buckets=list(range(9)), limit=3)
        )
        for answer in (lookup, scan):
            assert sum(len(each.rows or b"") for each in answer.buckets) < SMALL.answer_bytes_max + 30_000
            assert len(table.rows(answer.buckets[0].rows)) >= 1


@pytest.mark.parametrize(
    "request_of",
    [
        lambda table, twice: m.LookupRequest(
            buckets=[m.LookupBucket(bucket=each, keys=keys_of(table, [1])) for each in twice]
        ),
        lambda table, twice: m.PrefixLookupRequest(
            buckets=[m.PrefixLookupBucket(bucket=each, prefixes=keys_of(table, [1])) for each in twice]
        ),
        lambda table, twice: m.LimitScanRequest(buckets=twice, limit=1),
        lambda table, twice: m.CountRowsRequest(buckets=twice),
        lambda table, twice: m.ScanLogRequest(buckets=[m.ScanLogBucket(bucket=each) for each in twice]),
    ],
)
async def test_r21_2_a_read_names_each_bucket_once(tmp_path: Path, request_of: Any) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "id INT, n INT, PRIMARY KEY (id, n) NOT ENFORCED", buckets=2, bucket_key=["id"]
        )
        for named, what in (
            ([1, 1], "bucket 1 .* named 2 times"),
            ([0, 1, 2], "has 2 buckets, but 3 are named"),
        ):
            request: ApiMessage = request_of(table, named)
            request.table_id = table.table_id  # type: ignore[attr-defined]
            answer = await table.broker.send(request)
            assert answer.error_code == TableErrorCode.INVALID_TABLE
            assert pc.match_substring_regex(pa.array([answer.error_message]), what)[0].as_py()
            assert not answer.buckets


async def test_r21_1_a_limit_scan_says_that_there_is_more_and_from_where(tmp_path: Path) -> None:
    async with tables(tmp_path, limits=SMALL) as all_tables:
        log = await all_tables.create("id INT, text STRING", name="log")
        for start in range(0, 24, 8):
            await log.append([row(n) for n in range(start, start + 8)])
        schema = log.definition.schema
        some = encode_filter(pc.field("id") >= pa.scalar(5, pa.int32()), schema)
        for condition, first in ((None, 0), (some, 5)):
            ids: list[int] = []
            before, more = -1, True
            while more:
                request = m.LimitScanRequest(
                    table_id=log.table_id,
                    buckets=[0],
                    limit=30 - len(ids),
                    before=before,
                    filter=condition,
                )
                result = (await log.broker.send(request)).buckets[0]
                assert (result.error_code, len(result.rows) < 110_000) == (0, True)
                found = [each["id"] for each in log.rows(result.rows)]
                assert found or not result.has_more
                ids, before, more = found + ids, result.start_offset, result.has_more
            assert ids == list(range(first, 24))
        request = m.LimitScanRequest(table_id=log.table_id, buckets=[0], limit=30)
        refused = (await log.broker.send(request, 1)).buckets[0]
        assert refused.error_code == TableErrorCode.ANSWER_TOO_LARGE

        keyed = await all_tables.create(KEYED)
        await keyed.put(*(("+", row(n)) for n in range(24)))
        some = encode_filter(pc.field("id") >= pa.scalar(5, pa.int32()), keyed.definition.schema)
        for condition, first in ((None, 0), (some, 5)):
            request = m.LimitScanRequest(table_id=keyed.table_id, buckets=[0], limit=20, filter=condition)
            result = (await keyed.broker.send(request)).buckets[0]
            found = [each["id"] for each in keyed.rows(result.rows)]
            assert result.has_more
            assert 1 <= len(found) <= 5
            assert found == list(range(first, first + len(found)))
            refused = (await keyed.broker.send(request, 1)).buckets[0]
            assert refused.error_code == TableErrorCode.ANSWER_TOO_LARGE


async def test_a_limit_scan_of_a_log_goes_back_over_offsets_without_rows(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        log = await all_tables.create("id INT, text STRING", name="log")
        await log.append([row(n, 9) for n in range(5)])
        for _ in range(40):
            await log.append([])
        assert [each["id"] for each in await log.limit(3)] == [2, 3, 4]
        assert [each["id"] for each in await log.limit(300)] == [0, 1, 2, 3, 4]


async def test_r21_1_a_prefix_lookup_goes_on_within_a_prefix(tmp_path: Path) -> None:
    async with tables(tmp_path, limits=SMALL) as all_tables:
        table = await all_tables.create(
            "id INT, n INT, text STRING, PRIMARY KEY (id, n) NOT ENFORCED", bucket_key=["id"]
        )
        rows = [{"id": n // 12, "n": n, "text": "x" * LARGE} for n in range(36)]
        for start in range(0, 36, 12):
            await table.put(*(("+", each) for each in rows[start : start + 12]))
        wanted = [2, 7, 0, 1]
        counts = np.zeros(len(wanted), np.int64)
        found: list[int] = []
        at, after = 0, None
        while at < len(wanted):
            part = m.PrefixLookupBucket(bucket=0, prefixes=keys_of(table, wanted[at:]), after=after)
            request = m.PrefixLookupRequest(table_id=table.table_id, buckets=[part])
            result = (await table.broker.send(request)).buckets[0]
            assert (result.error_code, len(result.rows) < 110_000) == (0, True)
            some = np.frombuffer(result.counts, "<i4")
            assert len(some)
            counts[at : at + len(some)] += some
            found += [each["n"] for each in table.rows(result.rows)]
            after = result.cursor
            at += len(some) - (after is not None)
        assert counts.tolist() == [12, 0, 12, 12]
        assert found == [*range(24, 36), *range(24)]
        part = m.PrefixLookupBucket(bucket=0, prefixes=keys_of(table, wanted))
        request = m.PrefixLookupRequest(table_id=table.table_id, buckets=[part])
        refused = (await table.broker.send(request, 0)).buckets[0]
        assert refused.error_code == TableErrorCode.ANSWER_TOO_LARGE


async def test_r21_1_nulls_of_fixed_width_count_as_wide_as_they_are(tmp_path: Path) -> None:
    async with tables(tmp_path, limits=SMALL) as all_tables:
        table = await all_tables.create(
            "id INT, r ROW<a BINARY(30000), b INT>, PRIMARY KEY (id) NOT ENFORCED"
        )
        await table.put(*(("+", {"id": n, "r": None}) for n in range(50)))
        assert len((await looked_up(table, range(100, 200))).found) == 3
        assert len((await looked_up(table, range(50))).found) == 3
        request = m.LimitScanRequest(table_id=table.table_id, buckets=[0], limit=50)
        result = (await table.broker.send(request)).buckets[0]
        assert (decode_ipc(result.rows, table.definition.schema.arrow()).num_rows, result.has_more) == (
            3,
            True,
        )


def test_a_rows_cost_counts_nulls_and_nested_entries() -> None:
    wide = row_of(("a", binary(100)), ("b", BIGINT), ("c", STRING))
    assert value_width(wide.arrow()) == 112
    schema = Schema.of([("id", BIGINT), ("text", STRING), ("r", wide)])
    assert schema.row_cost == RowCost(8 + 4 + 112, 1)
    listed = Schema.of([("id", BIGINT), ("l", array_of(array_of(wide)))])
    assert listed.row_cost.width == 12
    assert listed.row_cost.expansion == 23  # five bytes of a null row become 112
    assert listed.row_cost.stored(b"x" * 10) == 242
    assert listed.row_cost.stored(None) == 12


async def test_r21_1_a_piece_of_a_scan_is_bounded_by_its_bytes_row_by_row(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED)
        await table.put(*(("+", row(n)) for n in range(30)))
        store = table.partition.hooks.store
        snapshot = store.snapshot()
        try:
            snapshot.seek(KeyRange())
            sizes = []
            more = True
            while more:
                values, _, more = snapshot.next_rows(3 * LARGE, 1_000, table.definition.schema.row_cost)
                sizes.append(len(values))
            assert sizes == [3] * 10 + [0]
            snapshot.seek(KeyRange())
            assert len(snapshot.next_rows(1 << 20, 1_000, RowCost(4 << 20, 1))[0]) == 4
        finally:
            snapshot.end()
        answer = await table.broker.send(
            m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, max_bytes=1)
        )
        assert len(table.rows(answer.rows)) == 1


@pytest.mark.parametrize("filtered", [False, True])
async def test_r21_1_a_log_scan_is_bounded_by_the_answer_limit(tmp_path: Path, filtered: bool) -> None:
    async with tables(tmp_path, limits=SMALL) as all_tables:
        table = await all_tables.create("id INT, text STRING, n INT")
        for n in range(12):
            await table.append([{**row(n), "n": n}])
        schema = table.definition.schema
        most = (1 << 31) - 1
        request = m.ScanLogRequest(
            table_id=table.table_id, columns=[0, 1], max_bytes=most,
            buckets=[m.ScanLogBucket(bucket=0, offset=0, max_bytes=most)], schema_id=schema.schema_id,
            filter=encode_filter(pc.field("id") >= pa.scalar(0, pa.int32()), schema) if filtered else None,
        )  # fmt: skip
        result = (await table.broker.send(request)).buckets[0]
        assert result.error_code == 0
        assert LARGE < len(bytes(result.records)) <= SMALL.answer_bytes_max


async def test_large_rows_are_left_to_a_thread(tmp_path: Path) -> None:
    stored_message.warm()
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED)
        await table.put(("+", row(1, 100)), ("+", row(2, 100_000)))
        bucket, schema = table.partition.hooks, table.definition.schema
        for number, is_quick in ((1, True), (2, False)):
            keys = memoryview(bytes(keys_of(table, [number])))
            room = Room(1 << 20, schema.row_cost)
            arguments = (bucket.store, bucket.versions, keys, Wanted(schema, None), 10, room)
            assert (reads.lookup_in_memory(*arguments) is not None) is is_quick


async def test_absent_keys_are_found_without_holding_the_rows_of_the_others(tmp_path: Path) -> None:
    async with tables(tmp_path, limits=SMALL) as all_tables:
        table = await all_tables.create(KEYED)
        await table.put(("+", row(1)))
        found = await table.lookup({"id": 1}, {"id": 2}, insert_if_absent=True)
        assert found == [row(1), {"id": 2, "text": None}]
