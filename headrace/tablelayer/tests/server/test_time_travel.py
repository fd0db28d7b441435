"""R14: a bucket at an earlier offset, by every way of computing it; key ranges; pieces that can be read again."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.server.bucket.tasks import Kind
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.read.time_travel import Base, plan
from headrace.tablelayer.server.store.layout import successor
from headrace.tablelayer.server.store.snapshots import Snapshot
from headrace.tablelayer.tests.server.oracle import Oracle, Refused, comparable
from headrace.tablelayer.tests.server.random_tables import random_batch, random_definition
from headrace.tablelayer.tests.server.tables import Row, Table, replay, run, tables, until
from headrace.tablelayer.tests.server.test_snapshots import NEVER, cut_log, rows, snapshot_now
from simulator.files import copy_as_killed

COLUMNS = "a INT, b STRING, v STRING, PRIMARY KEY (a, b)"


def snapshot(offset: int) -> Snapshot:
    return Snapshot(offset, offset, 0, 0, "{}", ())


def test_the_shortest_way_to_a_moment_is_taken() -> None:
    ten, fifty = snapshot(10), snapshot(50)
    whole: dict[str, Any] = {
        "log_start": 0,
        "present": 100,
        "snapshots": [fifty, ten],
        "has_old_images": True,
    }
    assert plan(100, **whole) == Base(0, is_present=True)
    assert plan(95, **whole) == Base(5, is_present=True)
    assert plan(55, **whole) == Base(5, snapshot=fifty)
    assert plan(50, **whole) == Base(0, snapshot=fifty)
    assert plan(4, **whole) == Base(4)
    wal = {**whole, "has_old_images": False}
    assert plan(95, **wal) == Base(45, snapshot=fifty)
    assert plan(100, **wal) == Base(0, is_present=True)
    cut = {**whole, "log_start": 20}
    assert plan(10, **cut) == Base(0, snapshot=ten)
    assert plan(11, **cut) is None
    assert plan(20, **cut) == Base(80, is_present=True)
    assert plan(20, **{**cut, "has_old_images": False}) is None
    assert plan(51, **{**wal, "log_start": 20}) == Base(1, snapshot=fifty)


async def check_every_offset(table: Table, expected: dict[int, list[Any]], show: Any) -> None:
    for offset, state in expected.items():
        assert [show(row) for row in await table.state(as_of=offset)] == state, offset


@pytest.mark.parametrize("image", ["FULL", "WAL"])
async def test_r14_every_offset_of_a_changelog_is_a_state_of_the_table(tmp_path: Path, image: str) -> None:
    """The rule includes offsets in the middle of a batch, and between -U and +U."""
    async with tables(tmp_path / "data", NEVER) as all_tables:
        table = await all_tables.create(COLUMNS, changelog_image=image)
        rng = random.Random(4)
        for number in range(12):
            await table.put(
                *(
                    (
                        rng.choice("++-"),
                        {"a": rng.randrange(5), "b": rng.choice("xyz"), "v": str(number)},
                    )
                    for _ in range(rng.randrange(1, 6))
                )
            )
            if number in (3, 8):
                await snapshot_now(table)
        changes = await table.changelog()
        expected = {}
        for offset in range(len(changes) + 1):
            cut = changes[:offset]
            if cut and cut[-1][0] == "-U":
                cut = cut[:-1]
            state = replay(cut, ("a", "b")) if image == "FULL" else loosely(cut)
            expected[offset] = [state[key] for key in sorted(state)]
        await check_every_offset(table, expected, dict)
        start = cut_log(table)
        assert start > 0
        for offset, state in expected.items():
            if image == "FULL" and offset >= start:
                assert await table.state(as_of=offset) == state
        assert await table.state() == expected[len(changes)]


def loosely(changes: list[Any]) -> dict[tuple[Any, ...], Row]:
    state: dict[tuple[Any, ...], Row] = {}
    for change, row in changes:
        if change == "-D":
            state.pop((row["a"], row["b"]))
        else:
            state[row["a"], row["b"]] = row
    return state


def life(seed: int, tmp_path: Path, batches: int) -> tuple[int, int]:
    """Run a random table of any engine that is killed and restored at random, and read its past states.

    Return the number of restores and of refused batches.
    """
    rng = random.Random(seed)
    print(f"seed {seed}")
    definition = random_definition(rng)
    oracle = Oracle(definition)
    states: dict[int, list[Any]] = {0: []}
    restores = refused = 0

    def show(row: Row | None) -> Any:
        return comparable(definition, row)

    def ordered() -> list[Any]:
        return [
            show(row) for _, row in sorted(oracle.rows.items(), key=lambda kv: (kv[0][0], kv[0][1].encode()))
        ]

    async def work() -> None:
        nonlocal restores, refused
        directory, number = tmp_path / "0", 0
        left = batches
        while left > 0:
            limits = Limits(flush_bytes=rng.choice([500, 1 << 20]))
            async with tables(directory, NEVER, limits=limits) as all_tables:
                table = await (all_tables.create_as(definition) if number == 0 else all_tables.open())
                assert [show(row) for row in await table.state()] == ordered()
                for _ in range(rng.randrange(1, 4)):
                    left -= 1
                    operations, columns, overwrite = random_batch(rng, definition)
                    given_columns = columns
                    if oracle.numbered is not None:
                        before = table.partition.high_watermark
                    answer: Any = await table.put(*operations, columns=given_columns, overwrite=overwrite)
                    if oracle.numbered is not None:
                        emitted = [] if answer.error_code else await table.changelog(before)
                        oracle.numbers = [row[oracle.numbered] for change, row in emitted if change == "+I"]
                    try:
                        oracle.apply(operations, columns, overwrite=overwrite)
                    except Refused:
                        assert answer.error_code
                        refused += 1
                        continue
                    assert answer.error_code == 0, answer.error_message
                    states[table.partition.high_watermark] = ordered()
                    if rng.random() < 0.3:
                        await snapshot_now(table)
                bucket = table.partition.hooks
                if bucket.snapshots.known and rng.random() < 0.3:
                    table.partition.delete_records(
                        min(bucket.retention_floor(), table.partition.high_watermark)
                    )
                start = table.partition.log.log_start_offset
                for offset in rng.sample(sorted(states), min(2, len(states))):
                    full = definition.settings.changelog_image == "FULL"
                    if offset >= start and (full or start == 0):
                        past = await table.state(as_of=offset)
                        assert [show(row) for row in past] == states[offset]
                number += 1
                await bucket._tasks.wait(Kind.SNAPSHOT)
                bucket.tablet.kv.flush()
                crashed = tmp_path / str(number)
                copy_as_killed(directory, crashed)
                for store in (crashed / "extensions" / "tables").glob("*-*"):
                    if rng.random() < 0.5:  # of half of the crashes nothing is left of the store
                        shutil.rmtree(store)
            shutil.rmtree(directory)
            directory = crashed
            restores += 1

    run(work)
    shutil.rmtree(tmp_path, ignore_errors=True)
    return restores, refused


@pytest.mark.parametrize(("seed", "refuses"), [(0, False), (1, False), (8, True), (13, True)])
def test_r14_snapshot_and_changelog_are_the_state_of_any_table_after_any_kill(
    tmp_path: Path, seed: int, *, refuses: bool
) -> None:
    restores, refused = life(seed, tmp_path / "life", batches=10)
    assert restores > 0
    assert bool(refused) == refuses


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_r14_two_hundred_kills_and_restores(tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_RESTORE_SEED", str(random.randrange(1 << 30))))
    wanted = int(os.environ.get("HEADRACE_RESTORES", "200"))
    done = 0
    while done < wanted:
        done += life(seed, tmp_path / "life", batches=40)[0]
        seed += 1
    print(f"{done} kills and restores")


async def test_an_offset_outside_retention_is_an_error_with_the_available_range(tmp_path: Path) -> None:
    async with tables(tmp_path / "data", NEVER) as all_tables:
        table = await all_tables.create("k INT, v STRING, PRIMARY KEY (k)", changelog_image="WAL")
        await table.put(*rows(range(10), "a"))
        await snapshot_now(table)
        await table.put(*rows(range(10), "b"))
        assert cut_log(table) == 10
        assert len(await table.state(as_of=15)) == 10
        for offset, words in ((5, "begins at 10"), (21, "ends at 20")):
            answer = await table.broker.send(
                m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, as_of=offset)
            )
            assert answer.error_code == TableErrorCode.OUTSIDE_RETENTION
            assert words in answer.error_message
        folder = table.partition.hooks.directory.parent
        await until(lambda: not list(folder.glob("*as-of*")))


async def test_past_states_have_a_limit(tmp_path: Path) -> None:
    async with tables(
        tmp_path / "data", NEVER, limits=Limits(past_states_max=1, scan_idle_seconds=3600.0)
    ) as all_tables:
        table = await all_tables.create("k INT, v STRING, PRIMARY KEY (k)")
        await table.put(*rows(range(10), "a"))

        async def open_at(offset: int) -> Any:
            return await table.broker.send(
                m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, as_of=offset, max_bytes=1, piece=0)
            )

        first = await open_at(5)
        assert first.error_code == 0, first.error_message
        assert (await open_at(5)).error_code == 0  # the same state, shared
        refused = await open_at(6)
        assert refused.error_code == TableErrorCode.BUFFER_EXHAUSTED
        assert "1 are open, which is the maximum" in refused.error_message


async def test_a_piece_can_be_asked_for_again_and_the_scan_goes_on_behind_any_row(tmp_path: Path) -> None:
    async with tables(tmp_path / "data", NEVER) as all_tables:
        table = await all_tables.create("k INT, v STRING, PRIMARY KEY (k)")
        await table.put(*rows(range(5000), "a"))
        expected = await table.state()
        rng = random.Random(1)
        scan_id, piece, got, cursor = m.OPEN_SCAN, 0, [], None
        offset = -1
        while True:
            request = m.ScanSnapshotRequest(
                table_id=table.table_id, bucket=0, scan_id=scan_id, piece=piece, max_bytes=4096
            )
            if scan_id == m.OPEN_SCAN and cursor is not None:
                request.after, request.as_of = cursor, offset
            answer = await table.broker.send(request)
            assert answer.error_code == 0, answer.error_message
            scan_id, offset = answer.scan_id, answer.log_offset
            await table.put(*rows(range(0, 5000, 50), str(piece)), ("-", {"k": 4999, "v": None}))
            choice = rng.random()
            if choice < 0.3 and piece:
                continue  # the answer was lost
            got += table.rows(answer.rows)
            cursor = answer.cursor if answer.cursor is not None else cursor
            piece += 1
            if choice > 0.8:  # the server has forgotten the scan
                await table.broker.send(
                    m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, scan_id=scan_id, close=True)
                )
                scan_id, piece = m.OPEN_SCAN, 0
            if not answer.has_more:
                break
        assert got == expected
        assert offset == 5000


@given(st.binary(min_size=0, max_size=4), st.binary(max_size=6), st.binary(max_size=6))
def test_the_successor_of_a_prefix_divides_keys_exactly(prefix: bytes, more: bytes, other: bytes) -> None:
    prefix = b"\x01" + prefix
    end = successor(prefix)
    assert prefix + more < end
    key = b"\x01" + other
    assert (prefix <= key < end) == key.startswith(prefix)


def within(bound: tuple[Any, ...] | None, key: tuple[Any, ...], inclusive: bool) -> bool:
    """Return whether a key is beyond a bound, or begins with it."""
    if bound is None:
        return True
    begin = key[: len(bound)]
    return begin > bound or (inclusive and begin == bound)


async def test_ranges_of_keys_are_exact_for_every_bound(tmp_path: Path) -> None:
    async with tables(tmp_path / "data", NEVER) as all_tables:
        table = await all_tables.create(COLUMNS)
        keys = [(a, b) for a in range(-3, 4) for b in ("", "a", "a\x00", "ab", "b", "ÿ")]
        await table.put(*(("+", {"a": a, "b": b, "v": "1"}) for a, b in keys))
        keys.sort(key=lambda key: (key[0], key[1].encode()))
        schema = table.definition.schema
        bounds: list[tuple[Any, ...] | None] = [None, (0,), (-9,), (2, "a"), (0, "aa"), (-3, "")]

        def encoded(bound: tuple[Any, ...] | None) -> tuple[Any, int]:
            if bound is None:
                return None, 0
            columns = schema.key_columns[: len(bound)]
            row = dict(zip((column.name for column in columns), bound, strict=True))
            fields = pa.schema([column.field() for column in columns])
            return encode_ipc(pa.RecordBatch.from_pylist([row], schema=fields)), len(bound)

        for lower in bounds:
            for upper in bounds:
                for include_lower, include_upper, limit in (
                    (True, False, -1),
                    (False, True, -1),
                    (True, True, 3),
                ):
                    low, low_columns = encoded(lower)
                    high, high_columns = encoded(upper)
                    found = await table.state(
                        lower=low, lower_columns=low_columns, lower_inclusive=include_lower, upper=high,
                        upper_columns=high_columns, upper_inclusive=include_upper, limit=limit,
                    )  # fmt: skip
                    expected = [
                        key
                        for key in keys
                        if within(lower, key, include_lower)
                        and (upper is None or not within(upper, key, not include_upper))
                    ]  # fmt: skip
                    assert [(row["a"], row["b"]) for row in found] == (
                        expected if limit < 0 else expected[:limit]
                    )
        bad = await table.broker.send(
            m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, lower=encoded((1,))[0], lower_columns=3)
        )
        assert bad.error_code == TableErrorCode.INVALID_KEY
