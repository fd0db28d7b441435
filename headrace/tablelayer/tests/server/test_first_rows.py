"""The first rows of a bucket in memory: always equal to the store's published rows, and few."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.read import bucket_state as reads
from headrace.tablelayer.server.read.wanted import LimitedRows, Wanted
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.first_rows import FIRST_ROWS_BYTES_MAX, FirstRows, Remembered
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import ROW_PREFIX
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.tests.server.tables import Table, tables


def key(number: int) -> bytes:
    return ROW_PREFIX + b"%03d" % number


def test_remembered_first_rows_equal_the_store_after_any_write(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    store = KeyValueStore.open(tmp_path / "s", SharedMemory(Limits()))
    rows: dict[bytes, bytes] = {}
    remembered = 0
    for offset in range(1, 400):
        keys = [key(rng.randrange(200)) for _ in range(rng.choice((1, 1, 5)))]
        values = [rng.choice((b"%d" % offset, b"%d" % offset, None)) for _ in keys]
        times: list[bytes] = [b"\x00t" + each for each in keys]  # as row TTL has them, below all rows
        store.write([(times, [b""] * len(times)), (keys, values)], offset, 0)
        for each, value in zip(keys, values, strict=True):
            rows.pop(each, None)
            if value is not None:
                rows[each] = value
        expected = [rows[each] for each in sorted(rows)]
        found = store.first_in_memory(count := rng.randrange(1, 20), (), list)
        assert found is None or found == expected[:count]
        remembered += found is not None
        if rng.random() < 0.5:
            count = rng.choice((1, 10, 500))
            room = Room(1 << 20, RowCost(1, 1))
            assert store.values_while(ROW_PREFIX, count, room) == expected[:count]
            assert store.first_in_memory(count, (), list) == expected[:count]
    assert remembered
    store.close()
    assert store.first_in_memory(1, (), list) is None


def test_first_rows_read_during_a_write_are_not_remembered() -> None:
    first = FirstRows(Remembered(), ROW_PREFIX)
    before = first.begin()
    assert before is not None
    with first.writing([([key(5)], [b"new"])]):
        assert first.begin() is None
        first.remember(before, [b"old"], key(5))
        assert first.values(1) is None
    first.remember(before, [b"old"], key(5))
    assert first.values(1) is None
    after = first.begin()
    assert after is not None
    first.remember(after, [b"new"], key(5))
    assert first.values(1) == [b"new"]
    assert first.values(2) is None, "there may be more behind it"
    with first.writing([([key(9), key(6)], [b"", b""])]):
        assert first.values(1) == [b"new"]
    with first.writing([([key(9), key(5)], [b"", None])]):
        assert first.values(1) is None


def test_remembered_first_rows_are_bounded() -> None:
    remembered = Remembered()
    stores = [FirstRows(remembered, ROW_PREFIX) for _ in range(300)]
    for store in stores:
        begun = store.begin()
        assert begun is not None
        store.remember(begun, [b"x"], None)
    kept = [store.values(1) is not None for store in stores]
    assert kept == [False] * 44 + [True] * 256
    half = bytes(FIRST_ROWS_BYTES_MAX // 2)
    stores[0].remember(0, [half, half], None)
    assert stores[0].values(2) == [half, half]
    stores[1].remember(0, [half, half, b"x"], None)
    assert stores[1].values(2) is None


async def first_ids(table: Table, limit: int, names: list[str] | None = None) -> list[Any]:
    columns = None if names is None else [table.definition.schema.column(name).id for name in names]
    request = m.LimitScanRequest(table_id=table.table_id, limit=limit, columns=columns, buckets=[0])
    answer = (await table.broker.send(request)).buckets[0]
    assert (answer.error_code, answer.has_more) == (0, False)
    return [tuple(row.values()) for row in table.rows(answer.rows, names)]


async def test_a_limit_scan_asks_the_store_once_until_its_rows_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_message.warm()
    asked = []
    real = reads.first_rows

    def first_rows(*arguments: Any) -> LimitedRows:
        asked.append(1)
        return real(*arguments)

    monkeypatch.setattr(reads, "first_rows", first_rows)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id BIGINT, n STRING, PRIMARY KEY (id) NOT ENFORCED")
        await table.put(*(("+", {"id": n, "n": f"{n}"}) for n in range(20, 0, -1)))
        for limit in (5, 5, 3):
            assert await first_ids(table, limit) == [(n, f"{n}") for n in range(1, limit + 1)]
        assert len(asked) == 1
        for names in (["n"], ["id"], ["n"]):
            expected = [(1,), (2,)] if names == ["id"] else [("1",), ("2",)]
            assert await first_ids(table, 2, names) == expected
        await table.put(("+", {"id": 17, "n": "behind"}))
        await first_ids(table, 5)
        assert len(asked) == 1
        await table.put(("-", {"id": 2, "n": None}))
        assert await first_ids(table, 3) == [(1, "1"), (3, "3"), (4, "4")]
        assert len(asked) == 2

        bucket, wanted = table.partition.hooks, Wanted(table.definition.schema, None)
        now = (reads.first_rows_in_memory, 3, wanted, 1 << 16)
        assert bucket.read_at_once(*now) is not None
        assert bucket.read_at_once(*now[:3], 20) is None, "that would be too much for the event loop"
        bucket.store.visible_offset += 1
        assert bucket.read_at_once(*now) is None, "it may have been written, and is not published"
        bucket.store.visible_offset -= 1

        wider = await table.alter("ADD COLUMN more INT")
        assert await first_ids(wider, 2) == [(1, "1", None), (3, "3", None)]
        assert len(asked) == 3
