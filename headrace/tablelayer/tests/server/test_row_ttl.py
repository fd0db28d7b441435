"""`table.kv.ttl`: rows end by an ordinary -D, by the clock of the server, after any writes, replays and restores."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.runtime.ports import SystemClock
from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.tests.server.tables import DEADLINE_SECONDS, Table, Tables, replay, tables, until
from headrace.tablelayer.tests.server.test_writes import hold_stores

HOUR = 3_600_000
BY_HAND = {"table.kv.ttl.check.interval.ms": "600000"}
SQL = "CREATE TABLE t (id INT, v INT, at {kind}, PRIMARY KEY (id) NOT ENFORCED) WITH ('table.kv.ttl' = '1 h'{more})"


class StandingClock(SystemClock):
    """Wall-clock time as the test says."""

    now_ms = 1_700_000_000_000

    def time_ms(self) -> int:
        return self.now_ms


async def create(all_tables: Tables, kind: str = "BIGINT", more: str = "") -> Table:
    (statement,) = parse(SQL.format(kind=kind, more=more))
    assert isinstance(statement, CreateTable)
    return await all_tables.create_as(statement.definition)


async def expire(table: Table) -> int:
    hooks = table.partition.hooks
    assert isinstance(hooks, KeyBucket)
    return await hooks.expire_rows()


def row(key: int, v: int = 0, at: int | None = None) -> dict[str, Any]:
    return {"id": key, "v": v, "at": at}


async def test_r19_2_a_row_ends_an_hour_after_its_last_write_with_a_delete_in_the_changelog(
    tmp_path: Path,
) -> None:
    clock = StandingClock()
    async with tables(tmp_path, BY_HAND, clock=clock) as all_tables:
        table = await create(all_tables)
        await table.put(("+", row(1)), ("+", row(2)))
        clock.now_ms += HOUR // 2
        await table.put(("+", row(2, 5)))
        assert await expire(table) == 0
        clock.now_ms += HOUR // 2 - 1
        assert await expire(table) == 0
        clock.now_ms += 1
        assert await expire(table) == 1
        assert await expire(table) == 0
        assert await table.lookup(row(1), row(2)) == [None, row(2, 5)]
        assert await table.count() == 1
        assert (await table.changelog())[-1] == ("-D", row(1))
        await table.put(("+", row(1, 7)))
        assert (await table.changelog())[-1] == ("+I", row(1, 7))
        clock.now_ms += HOUR
        assert await expire(table) == 2
        assert await table.count() == 0


async def test_a_row_that_is_being_renewed_is_left_to_the_next_time(tmp_path: Path) -> None:
    clock = StandingClock()
    async with tables(tmp_path, BY_HAND, clock=clock) as all_tables:
        table = await create(all_tables)
        await table.put(("+", row(1)))
        clock.now_ms += HOUR
        release = hold_stores(table)
        assert (await table.put_batch(table.batch([row(1, 5)]), acks=1)).error_code == 0
        async with asyncio.timeout(DEADLINE_SECONDS):  # a deletion would wait to be stored
            assert await expire(table) == 0
        release.set()
        await table.put(("+", row(2)))
        assert await expire(table) == 0
        assert await table.state() == [row(1, 5), row(2)]


@pytest.mark.parametrize(("kind", "factor"), [("BIGINT", 1), ("TIMESTAMP(6)", 1000), ("TIMESTAMP_LTZ(3)", 1)])
async def test_r19_1_the_time_column_counts_and_a_row_without_a_time_never_ends(
    tmp_path: Path, kind: str, factor: int
) -> None:
    clock = StandingClock()
    async with tables(tmp_path, BY_HAND, clock=clock) as all_tables:
        table = await create(all_tables, kind, ", 'table.kv.ttl.time-column' = 'at'")
        now = clock.now_ms
        times = {1: now - HOUR, 2: now - HOUR + 1, 3: now + 5 * HOUR, 4: None, 5: -5}
        await table.put(
            *(("+", row(key, 0, None if at is None else at * factor)) for key, at in times.items())
        )
        assert await expire(table) == 2
        assert {each["id"] for each in await table.state()} == {2, 3, 4}
        clock.now_ms += 1
        assert await expire(table) == 1
        clock.now_ms += 100 * HOUR
        await table.put(("+", row(3, 1, None)))
        assert await expire(table) == 0
        assert {each["id"] for each in await table.state()} == {3, 4}


@pytest.mark.parametrize(
    "more",
    [
        ", 'table.merge-engine' = 'first_row'",
        ", 'table.merge-engine' = 'versioned', 'table.merge-engine.versioned.ver-column' = 'v'",
        ", 'table.merge-engine' = 'aggregation', 'fields.v.agg' = 'sum'",
        ", 'table.delete.behavior' = 'DISABLE'",
        ", 'table.changelog.image' = 'WAL'",
    ],
)
async def test_r19_3_every_kind_of_table_lets_its_rows_end(tmp_path: Path, more: str) -> None:
    clock = StandingClock()
    async with tables(tmp_path, BY_HAND, clock=clock) as all_tables:
        table = await create(all_tables, more=more)
        await table.put(("+", row(1, 1)), ("+", row(2, 2)))
        clock.now_ms += HOUR
        assert await expire(table) == 2
        assert await table.state() == []
        assert [change for change, _ in await table.changelog()] == ["+I", "+I", "-D", "-D"]


@pytest.mark.parametrize(
    ("more", "second", "renewed"),
    [
        (", 'table.merge-engine' = 'first_row'", row(1, 9), False),
        (", 'table.merge-engine' = 'versioned', 'table.merge-engine.versioned.ver-column' = 'v'", row(1, 4), False),
        (", 'table.merge-engine' = 'versioned', 'table.merge-engine.versioned.ver-column' = 'v'", row(1, 5), True),
        (", 'table.merge-engine' = 'aggregation', 'fields.v.agg' = 'max'", row(1, 4), True),
        ("", row(1, 5), True),
    ],
)  # fmt: skip
async def test_r19_4_a_write_that_changes_nothing_does_not_renew_a_row_and_one_of_the_same_values_does(
    tmp_path: Path, more: str, second: dict[str, Any], *, renewed: bool
) -> None:
    clock = StandingClock()
    async with tables(tmp_path, BY_HAND, clock=clock) as all_tables:
        table = await create(all_tables, more=more)
        await table.put(("+", row(1, 5)))
        clock.now_ms += HOUR // 2
        assert (await table.put(("+", second))).error_code == 0
        assert await table.state() == [row(1, 5)]
        clock.now_ms += HOUR // 2
        assert await expire(table) == (0 if renewed else 1)
        assert await table.state() == ([row(1, 5)] if renewed else [])
        clock.now_ms += HOUR // 2
        assert await expire(table) == (1 if renewed else 0)
        assert await table.count() == 0


async def test_r19_4_a_key_alone_that_is_there_does_not_renew_its_row(tmp_path: Path) -> None:
    """R6.6 changes nothing, and neither does a lookup that inserts what is absent."""
    clock = StandingClock()
    async with tables(tmp_path, BY_HAND, clock=clock) as all_tables:
        table = await create(all_tables)
        await table.put(("+", row(1, 5)), ("+", row(2, 5)))
        clock.now_ms += HOUR - 1
        assert (await table.put(("+", {"id": 1}), columns=["id"])).error_code == 0
        assert await table.lookup({"id": 1}, {"id": 2}, insert_if_absent=True) == [row(1, 5), row(2, 5)]
        assert (await table.put(("+", {"id": 2, "v": 5}), columns=["id", "v"])).error_code == 0
        clock.now_ms += 1
        assert await expire(table) == 1
        assert await table.state() == [row(2, 5)]


async def test_r19_random_lives_against_a_dict(tmp_path: Path) -> None:
    """Writes, deletes, hours, restarts, lost stores: the rows equal the model's, and so does the changelog."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    clock = StandingClock()
    model: dict[int, tuple[dict[str, Any], int]] = {}
    limits = Limits(rows_expired_together=3)
    name = ""
    for life in range(4):
        async with tables(tmp_path, BY_HAND, limits, clock=clock) as all_tables:
            table = await all_tables.open() if life else await create(all_tables)
            name = str(table.table_id)
            for _ in range(25):
                kind = rng.random()
                if kind < 0.6:
                    operations = []
                    for _ in range(rng.randrange(1, 8)):
                        key = rng.randrange(20)
                        if rng.random() < 0.8:
                            written = row(key, rng.randrange(3))
                            model[key] = (written, clock.now_ms)
                            operations.append(("+", written))
                        else:
                            model.pop(key, None)
                            operations.append(("-", row(key)))
                    answer = await table.put(*operations)
                    assert answer.error_code == 0, answer.error_message
                elif kind < 0.8:
                    clock.now_ms += rng.randrange(HOUR // 2)
                else:
                    over = [key for key, (_, at) in model.items() if at + HOUR <= clock.now_ms]
                    assert await expire(table) == len(over)
                    for key in over:
                        del model[key]
                state = {each["id"]: each for each in await table.state()}
                assert state == {key: written for key, (written, _) in model.items()}
                assert await table.count() == len(model)
            replayed = replay(await table.changelog(), ["id"])
            assert {key[0]: value for key, value in replayed.items()} == state
        if life == 1:  # the store is lost: it is built again from the log
            import shutil

            shutil.rmtree(tmp_path / "extensions" / "tables" / name)


async def test_the_server_looks_after_rows_by_itself(tmp_path: Path) -> None:
    clock = StandingClock()
    async with tables(tmp_path, {"table.kv.ttl.check.interval.ms": "50"}, clock=clock) as all_tables:
        table = await create(all_tables)
        await table.put(*(("+", row(key)) for key in range(50)))
        clock.now_ms += HOUR

        async def are_gone() -> bool:
            return not await table.count()

        await until(are_gone)
        assert [change for change, _ in await table.changelog()] == ["+I"] * 50 + ["-D"] * 50
