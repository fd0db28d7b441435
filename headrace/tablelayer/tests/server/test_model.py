"""R12.2, R13 (one replica), R14: thousands of operations against a plain dict, over restarts and crashes."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.server.bucket.tasks import Kind
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.tests.server.tables import Row, Table, replay, tables, until
from simulator.files import copy_as_killed

COLUMNS = (
    "k1 INT, k2 STRING, a INT, b DECIMAL(10, 2), c STRING, d TIMESTAMP(3), PRIMARY KEY (k1, k2) NOT ENFORCED"
)
KEY = ("k1", "k2")
VALUES = ("a", "b", "c", "d")


class Model:
    """The rules in plain Python, a row at a time."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}

    def apply(self, operations: list[tuple[str, Row]], columns: tuple[str, ...] | None) -> None:
        targets = VALUES if columns is None else tuple(name for name in columns if name not in KEY)
        for sign, row in operations:
            key = tuple(row[name] for name in KEY)
            old = self.rows.get(key)
            if sign == "+":
                new = (
                    dict(old)
                    if old is not None
                    else {**dict.fromkeys(VALUES), **dict(zip(KEY, key, strict=True))}
                )
                new.update({name: row[name] for name in targets})
                self.rows[key] = new
            elif old is not None:
                new = {**old, **dict.fromkeys(targets)}
                if columns is None or all(new[name] is None for name in VALUES):
                    del self.rows[key]
                else:
                    self.rows[key] = new


def operations(rng: random.Random, columns: tuple[str, ...] | None) -> list[tuple[str, Row]]:
    import datetime
    from decimal import Decimal

    drawn = []
    for _ in range(rng.choice((1, 2, 5, 40))):
        row: Row = {
            "k1": rng.randrange(8),
            "k2": rng.choice(["", "x", "x\x00", "yy", "ü"]),
            "a": rng.choice([None, rng.randrange(100)]),
            "b": rng.choice([None, Decimal(rng.randrange(-999, 999)).scaleb(-2)]),
            "c": rng.choice([None, "", "text" * rng.randrange(4)]),
            "d": rng.choice([None, datetime.datetime(2024, 9, 19, 12, 0, rng.randrange(60))]),
        }
        if columns is not None:
            row = {name: row[name] for name in columns}
        drawn.append((rng.choice("+++-"), row))
    return drawn


async def check(table: Table, model: Model) -> None:
    assert replay(await table.changelog(), KEY) == model.rows
    assert {tuple(row[name] for name in KEY): row for row in await table.state()} == model.rows
    assert await table.count() == len(model.rows)


def in_key_order(rows: list[Row]) -> bool:
    keys = [(row["k1"], row["k2"].encode()) for row in rows]
    return keys == sorted(keys)


@pytest.mark.parametrize("seed", range(2))
async def test_random_operations_with_restarts_and_crashes_equal_a_dict(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    model = Model()

    async def session(directory: Path, create: bool, crash_to: Path | None) -> None:
        limits = Limits(flush_bytes=rng.choice([2_000, 1 << 20]))
        async with tables(directory, limits=limits) as all_tables:
            table = await all_tables.create(COLUMNS) if create else await all_tables.open()
            await check(table, model)
            for _ in range(25):
                columns = rng.choice([None, None, (*KEY, "a"), (*KEY, "b", "c"), (*KEY, *VALUES[:3])])
                batch = operations(rng, columns)
                answer = await table.put(*batch, columns=columns)
                assert answer.error_code == 0, answer.error_message
                model.apply(batch, columns)
                if rng.random() < 0.1:
                    await check(table, model)
                    assert in_key_order(await table.state())
            await check(table, model)
            if crash_to is not None:
                copy_as_killed(directory, crash_to)

    directory = tmp_path / "0"
    for number in range(6):
        crash_to = tmp_path / str(number + 1) if rng.random() < 0.6 else None
        await session(directory, number == 0, crash_to)
        directory = crash_to or directory


async def test_r14_a_snapshot_and_the_changelog_from_its_offset_give_the_state(tmp_path: Path) -> None:
    from headrace.tablelayer.model import messages as m

    rng, model = random.Random(5), Model()
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)

        async def some() -> None:
            for _ in range(10):
                batch = operations(rng, None)
                await table.put(*batch)
                model.apply(batch, None)

        await some()
        before = dict(model.rows)
        request = m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, max_bytes=1)
        first = await all_tables.broker.send(request)
        await some()
        rows, answer = table.rows(first.rows), first
        while answer.has_more:
            request.scan_id = answer.scan_id
            answer = await all_tables.broker.send(request)
            rows += table.rows(answer.rows)
        assert {tuple(row[name] for name in KEY): row for row in rows} == before
        tail = await table.changelog(first.log_offset)
        state = dict(before)
        for change, row in tail:
            key = tuple(row[name] for name in KEY)
            if change == "-D":
                del state[key]
            elif change != "-U":
                state[key] = row
        assert state == model.rows


async def test_r14_restart_replays_only_the_tail_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"id": n, "v": n} for n in range(100)]
    async with tables(tmp_path / "a", limits=Limits(flush_bytes=1, flush_seconds=3600.0)) as all_tables:
        table = await all_tables.create("id INT, v INT, PRIMARY KEY (id) NOT ENFORCED")
        await table.put(*(("+", row) for row in rows[:60]))
        bucket = table.partition.hooks
        while bucket.tablet.kv.durable_offset < 60:
            await table.put(("-", {"id": 1000, "v": 0}))
        bucket.services.limits = Limits(flush_seconds=3600.0)
        await until(lambda: bucket._tasks.under_way(Kind.FLUSH) is None)
        durable = bucket.tablet.kv.durable_offset
        await table.put(*(("+", row) for row in rows[60:]))
        end = table.partition.log.log_end_offset
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    with caplog.at_level(logging.INFO, logger="headrace.tables"):
        async with tables(tmp_path / "b") as all_tables:
            table = await all_tables.open()
            assert await table.state() == rows
    (line,) = [record.getMessage() for record in caplog.records if "replayed" in record.getMessage()]
    assert line.startswith("table default.t bucket 0: kept 60 rows up to offset ")
    assert f"replayed 40 rows up to offset {end} in " in line
    kept = int(line.split("up to offset ")[1].split(",")[0])
    assert kept >= durable


async def test_a_damaged_store_is_set_aside_and_built_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"id": n, "v": n} for n in range(100)]
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, v INT, PRIMARY KEY (id) NOT ENFORCED")
        await table.put(*(("+", row) for row in rows))
        directory = table.partition.hooks.directory
    for path in directory.glob("MANIFEST*"):
        path.write_bytes(b"rubbish")
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        with pytest.raises(AssertionError, match="is being rebuilt"):  # clients try again
            await table.state()

        async def has_all_rows() -> bool:
            with suppress(AssertionError):
                return await table.state() == rows
            return False

        await until(has_all_rows)
        assert (await table.put(("-", rows[0]))).error_code == 0
    assert "set aside" in caplog.text
    assert (directory.parent / "0.damaged").is_dir()


async def test_a_store_ahead_of_its_log_is_built_again_and_without_the_whole_log_the_bucket_is_offline(
    tmp_path: Path,
) -> None:
    rows = [{"id": n, "v": n} for n in range(10)]
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, v INT, PRIMARY KEY (id) NOT ENFORCED")
        await table.put(*(("+", row) for row in rows[:5]))
        await table.put(*(("+", row) for row in rows[5:]))
        table.partition.log.truncate_to(5)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        assert await table.state() == rows[:5]
        await table.put(*(("+", row) for row in rows[5:]))
        table.partition.delete_records(5)
        table.partition.log.truncate_to(5)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        answer = await table.put(("+", rows[0]))
        assert answer.error_code == 56  # KAFKA_STORAGE_ERROR
        assert "the rows before it are gone" in answer.error_message
