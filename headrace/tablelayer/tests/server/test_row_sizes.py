"""The size of a producer's record as a row is computed before the row is built."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.model.errors import RowError, TableErrorCode
from headrace.tablelayer.model.types.sizes import (
    BATCH_BYTES_MAX,
    ROW_BYTES_MAX,
    RowBytes,
    RowCost,
    check_rows,
)
from headrace.tablelayer.server.store import tablet
from headrace.tablelayer.tests.server.tables import Table, tables
from headrace.tablelayer.tests.server.test_avro_view import AVRO, decode
from headrace.tablelayer.tests.server.test_row_ttl import BY_HAND, HOUR, StandingClock, expire
from headrace.tablelayer.tests.server.test_value_formats import table

WIDE = ", ".join(f"f{n} BIGINT" for n in range(400))
MIB = 1 << 20


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Return the memory that Python and numpy allocate meanwhile; Arrow's own memory is that of the arrays counted."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


async def refused(table: Table, values: list[bytes | None], index: int, *words: str) -> None:
    records = [Record(b"1", value, (), 1000) for value in values]
    end = table.partition.log.log_end_offset
    with at_most(3 * ROW_BYTES_MAX):
        answer = await table.broker.produce(table.definition.path.topic, build_batch(records))
    assert answer.error_code == ErrorCode.INVALID_RECORD, answer.error_message
    assert [each.batch_index for each in answer.record_errors] == [index], answer.error_message
    for word in words:
        assert word in answer.error_message
    assert table.partition.log.log_end_offset == end


@pytest.mark.parametrize(
    ("formats", "kind", "value"),
    [
        ("json", "ARRAY<BINARY(100000)>", [None] * 1500),
        ("json", f"ROW<inner ARRAY<ARRAY<ROW<{WIDE}>>>>", {"inner": [[{}] * 100] * 120}),
        ("json", f"MAP<STRING, ROW<{WIDE}>>", {str(n): None for n in range(12_000)}),
        ("json", "BINARY(40000000)", None),
        ("debezium-json", f"ARRAY<ROW<{WIDE}>>", [None] * 12_000),
    ],
)
async def test_r17_9_a_record_that_would_become_a_huge_row_is_refused_by_name(
    tmp_path: Path, formats: str, kind: str, value: Any
) -> None:
    async with tables(tmp_path) as all_tables:
        made = await all_tables.create(
            f"id INT, v {kind}, PRIMARY KEY (id) NOT ENFORCED", **{"kafka_value-format": formats}
        )

        def record(number: int, inside: Any) -> bytes:
            row = {"id": number, "v": inside}
            whole = row if formats == "json" else {"op": "c", "after": row}
            return json.dumps(whole, separators=(",", ":")).encode()

        small = None if not isinstance(value, (list, dict)) else type(value)()
        index = 0 if kind.startswith("BINARY") else 1
        await refused(
            made,
            [record(0, small), record(1, value), record(2, small)],
            index,
            str(ROW_BYTES_MAX),
            "row",
        )
        if index:
            batch = build_batch([Record(b"3", record(3, small), (), 1000)])
            answer = await made.broker.produce(made.definition.path.topic, batch)
            assert answer.error_code == 0, answer.error_message


async def test_r17_9_records_of_few_bytes_that_together_become_too_much_are_refused(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        made = await all_tables.create(f"id INT, PRIMARY KEY (id) NOT ENFORCED, {WIDE}, y BINARY(30000)")
        row = json.dumps({"id": 1}).encode()
        await refused(made, [row] * 9_000, BATCH_BYTES_MAX // (30_000 + 3_204 + 9 * 404), "fewer at a time")
        await refused(made, [None] * 9_000, BATCH_BYTES_MAX // (30_000 + 3_204), "fewer at a time")


async def test_r17_9_columns_that_a_writer_leaves_out_count(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        made = await all_tables.create("id INT, y BINARY(1000000), PRIMARY KEY (id) NOT ENFORCED")
        batch = made.batch([{"id": n} for n in range(600)], [3] * 600, ["id"])
        answer: Any = await made.put_batch(batch, target_columns=[0])
        assert (answer.error_code, "1000004" in answer.error_message) == (
            TableErrorCode.INVALID_ROW,
            True,
        )
        batch = made.batch([{"id": n} for n in range(3)], [3] * 3, ["id"])
        assert (await made.put_batch(batch, target_columns=[0])).error_code == 0
        with pytest.raises(AssertionError, match="1000004"):
            await made.lookup(*({"id": n} for n in range(600)), insert_if_absent=True)


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ("null", "ARRAY<BINARY(1000)>"),
        ({"type": "record", "name": "nothing", "fields": []}, "ARRAY<ROW<a BINARY(1000)>>"),
    ],
)
def test_r17_9_avro_items_without_bytes_are_counted_by_their_arrow_size(items: Any, kind: str) -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "v", "type": {"type": "array", "items": items}}],
    }
    definition = table(f"v {kind}", **AVRO)
    nothing = None if items == "null" else {}
    small = {"v": [nothing] * 10}
    assert decode(definition, schema, small).num_rows == 1
    with at_most(3 * ROW_BYTES_MAX), pytest.raises(RowError, match=str(ROW_BYTES_MAX)) as caught:
        decode(definition, schema, small, small, {"v": [nothing] * 100_000})
    assert (caught.value.index, caught.value.column) == (2, "v")


def test_r17_9_levels_count_for_the_record_that_they_are_of() -> None:
    sizes = RowBytes(4)
    sizes.add(4, 10)
    with sizes.inside(np.array([0, 2, 2, 3])):
        sizes.add(4, 10 * MIB)
        with sizes.inside(np.array([1, 1, 3])), pytest.raises(RowError) as caught:
            sizes.add(3, 7 * MIB)
        assert (caught.value.index, str(ROW_BYTES_MAX) in caught.value.reason) == (0, True)
    whole = RowBytes(20, batch_max=100 * MIB)
    with pytest.raises(RowError, match="fewer at a time") as caught:
        whole.add(20, 8 * MIB)
    assert caught.value.index == 12
    check_rows(0, RowCost.of([]))


async def test_rows_that_stand_under_the_keys_of_one_write_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete of a few bytes removes, and logs, the whole row."""
    monkeypatch.setattr(tablet, "STANDING_BYTES_MAX", MIB)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, v BYTES, PRIMARY KEY (k) NOT ENFORCED")
        for first in range(0, 64, 8):
            rows = [("+", {"k": first + n, "v": b"v" * 100_000}) for n in range(8)]
            assert (await table.put(*rows)).error_code == 0
        end = table.partition.log.log_end_offset
        answer = await table.put(*(("-", {"k": n}) for n in range(64)))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "fewer rows" in answer.error_message
        deletes = [Record(json.dumps({"k": n}).encode(), None, (), 1000) for n in range(64)]
        answer = await table.broker.produce(table.definition.path.topic, build_batch(deletes))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (table.partition.log.log_end_offset, await table.count()) == (end, 64)
        for first in range(0, 64, 8):
            assert (await table.put(*(("-", {"k": first + n}) for n in range(8)))).error_code == 0
        assert await table.count() == 0


async def test_rows_that_end_together_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tablet, "STANDING_BYTES_MAX", MIB)
    clock = StandingClock()
    async with tables(tmp_path, BY_HAND, clock=clock) as all_tables:
        table = await all_tables.create("k INT, v BYTES, PRIMARY KEY (k) NOT ENFORCED", kv_ttl="1 h")
        for first in range(0, 64, 8):
            rows = [("+", {"k": first + n, "v": b"v" * 100_000}) for n in range(8)]
            assert (await table.put(*rows)).error_code == 0
        clock.now_ms += HOUR
        begin = table.partition.log.log_end_offset
        assert await expire(table) == 64
        assert await table.count() == 0
        assert [len(batch.change_types) for batch in await table.scan(begin)] == [16] * 4
