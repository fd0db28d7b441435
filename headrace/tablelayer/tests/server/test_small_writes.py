"""Small batches of producers are written on the event loop, with the effects of a write beside it."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.kafka_view.few_records import BYTES_MAX, COMPRESSED_MAX
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.tests.server.tables import Table, tables
from headrace.tablelayer.tests.server.test_kafka_view import batch

COLUMNS = "id BIGINT, v STRING, n DOUBLE"
KEYED = f"{COLUMNS}, PRIMARY KEY (id) NOT ENFORCED"


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    stored_message.warm()


def records(*rows: Any, **options: Any) -> memoryview:
    """Return a batch of upserts (dicts) and deletes (numbers)."""
    pairs: list[tuple[bytes | None, bytes | None]] = []
    for row in rows:
        key = row["id"] if isinstance(row, dict) else row
        pairs.append(
            (json.dumps({"id": key}).encode(), json.dumps(row).encode() if isinstance(row, dict) else None)
        )
    return memoryview(batch(*pairs, **options))


def at_once(table: Table, *rows: Any, **options: Any) -> Any:
    return table.partition.hooks.produce_at_once(records(*rows, **options))


async def beside(table: Table, *rows: Any, **options: Any) -> Any:
    return await table.partition.hooks.produce(records(*rows, **options), -1, 60_000)


@pytest.mark.parametrize("image", ["FULL", "WAL"])
@pytest.mark.parametrize("seed", range(4))
async def test_small_batches_have_the_effects_of_others(tmp_path: Path, image: str, seed: int) -> None:
    chosen = random.Random(seed)
    async with tables(tmp_path) as world:
        ours = await world.create(KEYED, name="ours", changelog_image=image)
        theirs = await world.create(KEYED, name="theirs", changelog_image=image)
        taken = 0
        for table in (ours, theirs):
            await beside(table, {"id": 0})  # makes the files of the store
        for step in range(60):
            rows = [
                chosen.choice(({"id": number, "v": f"{step}", "n": step / 8}, {"id": number}, number))
                for number in (chosen.randrange(6) for _ in range(chosen.randint(1, 4)))
            ]
            info = at_once(ours, *rows)
            if info is not None:
                taken += 1
                assert ours.partition.high_watermark == info.last_offset + 1, "it is stored and published"
            else:
                info = await beside(ours, *rows)
            other = await beside(theirs, *rows)
            assert (info.base_offset, info.last_offset) == (other.base_offset, other.last_offset)
        assert taken == 60
        assert await ours.changelog() == await theirs.changelog()
        assert await ours.state() == await theirs.state()
        assert await ours.count() == await theirs.count()


async def test_a_log_table_has_the_rows_at_once(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await world.create(COLUMNS)
        assert at_once(table, {"id": 1, "v": "a"}, {"id": 2}).last_offset == 1
        assert at_once(table, 5) is None, "a log table has nothing to delete"
        rows = [{"id": 1, "v": "a", "n": None}, {"id": 2, "v": None, "n": None}]
        assert await table.changelog() == [("+A", row) for row in rows]


async def test_a_repeated_batch_has_no_second_effect(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await world.create(KEYED)
        first = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        written = at_once(table, {"id": 1, "v": "a"}, **first)
        assert at_once(table, {"id": 1, "v": "a"}, **first) is None
        again = await beside(table, {"id": 1, "v": "a"}, **first)
        assert (again.base_offset, again.duplicate) == (written.base_offset, True)
        assert at_once(table, {"id": 1}, **{**first, "base_sequence": 5}) is None, "a gap is refused beside"
        assert at_once(table, {"id": 1, "v": "b"}, **{**first, "base_sequence": 1}) is not None
        assert [change for change, _ in await table.changelog()] == ["+I", "-U", "+U"]


async def test_writes_that_are_large_or_malformed_are_left_to_the_general_path(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await world.create(KEYED)
        wide = await world.create(
            ", ".join(["id BIGINT", *(f"c{n} INT" for n in range(99))]) + ", PRIMARY KEY (id) NOT ENFORCED",
            name="wide",
        )
        merged = await world.create(
            KEYED, name="merged", given={"table.merge-engine": "aggregation", "fields.n.agg": "product"}
        )
        row = {"id": 1, "v": "a"}
        await beside(wide, {"id": 0})  # makes the files of the store
        assert at_once(table, {"id": 1, "v": "x" * BYTES_MAX}) is None
        packed = {"id": 1, "left out": "x" * (4 * BYTES_MAX)}
        assert at_once(table, packed, compression=3) is None, "it is large when it is opened"
        noise = {"id": 1, "v": random.Random(1).randbytes(COMPRESSED_MAX).hex()}
        assert at_once(table, noise, compression=4) is None
        await table.partition.hooks.wait_published(at_once(table, row, compression=4), -1, 60_000)
        assert at_once(table, *[row] * 17) is None
        assert at_once(wide, {"id": 1}) is not None
        assert at_once(wide, *({"id": n} for n in range(5))) is not None
        assert at_once(wide, *({"id": n + 100} for n in range(6))) is None
        assert at_once(merged, row) is None
        assert at_once(table, {"id": 1, "n": "text"}) is None
        damaged = bytearray(records(row))
        damaged[-3] ^= 1
        assert table.partition.hooks.produce_at_once(memoryview(damaged)) is None
        assert (
            table.partition.hooks.produce_at_once(
                records(row, attributes=0x10, producer_id=1, base_sequence=0)
            )
            is None
        )
        assert len(await table.changelog()) == 1
        refused = await table.broker.produce(
            table.definition.path.topic, bytes(records({"id": 1, "n": "text"}))
        )
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert "column 'n'" in refused.error_message


async def test_a_small_batch_does_not_overtake_a_larger_one(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        for columns, name in ((KEYED, "keyed"), (COLUMNS, "log")):
            table = await world.create(columns, name=name)
            larger = asyncio.create_task(beside(table, *({"id": 1, "v": f"{n}"} for n in range(40))))
            await asyncio.sleep(0)
            assert not larger.done()
            assert at_once(table, {"id": 1, "v": "last"}) is None
            await larger
            assert at_once(table, {"id": 1, "v": "later"}) is not None


async def test_a_small_batch_waits_for_the_holder_of_the_bucket(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await world.create(KEYED)
        async with table.partition.hooks.writing:
            assert at_once(table, {"id": 1}) is None
        assert at_once(table, {"id": 1}) is not None


async def test_a_row_that_is_not_in_memory_is_read_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables(tmp_path) as world:
        table = await world.create(KEYED)
        assert at_once(table, {"id": 1, "v": "a"}) is not None
        monkeypatch.setattr(KeyValueStore, "get_in_memory", lambda *_: None)
        assert at_once(table, {"id": 1, "v": "b"}) is None
        await beside(table, {"id": 1, "v": "b"})
        assert [change for change, _ in await table.changelog()] == ["+I", "-U", "+U"]


async def test_rows_that_cannot_be_stored_at_once_are_stored_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables(tmp_path) as world:
        table = await world.create(KEYED)
        await beside(table, {"id": 0})
        monkeypatch.setattr(KeyValueStore, "write_at_once", lambda *_: False)
        info = at_once(table, {"id": 1, "v": "a"})
        assert table.partition.high_watermark <= info.base_offset, "a read must not see it yet"
        monkeypatch.undo()
        behind = at_once(table, {"id": 1, "v": "b"})
        await table.partition.hooks.wait_published(behind, -1, 60_000)
        assert await table.lookup({"id": 1}) == [{"id": 1, "v": "b", "n": None}]
        assert [change for change, _ in await table.changelog()] == ["+I", "+I", "-U", "+U"]
        assert world.extension._services.budget.used == 0


async def test_without_room_in_the_budget_nothing_is_written(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await world.create(KEYED)
        budget = world.extension._services.budget
        budget.reserve(budget.max_bytes)
        assert at_once(table, {"id": 1}) is None
        budget.release(budget.max_bytes)
        assert await table.changelog() == []
        assert (budget.used, at_once(table, {"id": 1}) is None) == (0, False)


async def test_rows_of_an_older_schema_are_read_beside_and_small_writes_go_on(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await world.create(KEYED)
        assert at_once(table, {"id": 1, "v": "a"}) is not None
        table = await table.alter("ADD COLUMN more INT")
        assert at_once(table, {"id": 1, "v": "b"}) is None, "its old image has the older schema"
        await beside(table, {"id": 1, "v": "b", "more": 1})
        assert at_once(table, {"id": 1, "v": "c", "more": 2}) is not None
        assert [row["v"] for _, row in await table.changelog()] == ["a", "a", "b", "b", "c"]
        assert (await table.changelog())[-1][1]["more"] == 2
