"""Filters in the server: a scan, a limit and a count return the rows that pyarrow would select of all, whatever is
skipped.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches import statistics
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType, with_statistics
from headrace.tablelayer.model.batches.ipc import decode_ipc
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.filters.filters import Filter, encode_filter
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.server.merge import writes
from headrace.tablelayer.server.read import batch_filter, scan_log
from headrace.tablelayer.tests.server.tables import DEADLINE_SECONDS, TIMEOUT_MS, Table, Tables, run, tables
from simulator.files import copy_as_killed

Found = tuple[int, str, dict[str, Any]]


@pytest.fixture(autouse=True)
def every_batch_has_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "STATISTICS_FROM_ROWS", 1)


async def answers(
    table: Table, offset: int, expression: pc.Expression | None, columns: list[str] | None, *, rows: bool = True,
    max_wait_ms: int = 0, max_bytes: int = 1 << 20,
) -> AsyncIterator[m.ScanLogResult]:  # fmt: skip
    """Answers one after the other, until the end of the log."""
    schema = table.definition.schema
    ids = None if columns is None else [schema.column(each).id for each in columns]
    while True:
        answer = await table.broker.send(
            m.ScanLogRequest(
                table_id=table.table_id, columns=ids,
                buckets=[m.ScanLogBucket(bucket=0, offset=offset, max_bytes=max_bytes)],
                schema_id=schema.schema_id, max_wait_ms=max_wait_ms,
                filter=None if expression is None else encode_filter(expression, schema), row_filter=rows,
            )
        )  # fmt: skip
        assert answer.error_code == 0, answer.error_message
        (result,) = answer.buckets
        assert result.error_code == 0, result.error_message
        assert expression is None or result.filtered_end_offset >= offset
        if expression is not None and result.filtered_end_offset == offset:
            return
        if expression is None and not result.records:
            return
        yield result
        offset = (
            result.filtered_end_offset
            if expression is not None
            else list(parts(result))[-1].header.next_offset
        )


def parts(result: m.ScanLogResult) -> Iterator[ArrowBatch]:
    records = memoryview(bytes(result.records or b""))
    while records:
        batch = ArrowBatch.parse(records)
        yield batch
        records = records[batch.header.size :]


async def found_rows(
    table: Table, expression: pc.Expression | None, columns: list[str] | None = None, offset: int = 0
) -> list[Found]:
    """(offset, change, row) of everything given from an offset on."""
    versions = (await table.latest()).versions
    schema = table.definition.schema
    wanted = None if columns is None else sorted(schema.index(each) for each in columns)
    found: list[Found] = []
    async for result in answers(table, offset, expression, columns):
        for batch in parts(result):
            source = versions.get(batch.schema_id)
            conversion = versions.conversion(batch.schema_id, schema, wanted)
            if wanted is None:
                rows = conversion.of(batch.to_record_batch(source.arrow(), untrusted=True))
            else:
                sent = pa.schema([source.columns[index].field() for index in conversion.needed])
                arrays = batch.to_record_batch(sent, untrusted=True).columns if len(sent) else []
                rows = conversion.of_needed(arrays, batch.header.record_count)
            header, count = batch.header, batch.header.record_count
            deltas = np.arange(count) if batch.offset_deltas is None else batch.offset_deltas
            changes = np.zeros(count, int) if batch.change_types is None else batch.change_types
            for delta, change, row in zip(deltas.tolist(), changes.tolist(), rows.to_pylist(), strict=True):
                if header.base_offset + delta >= offset:
                    found.append((header.base_offset + delta, ChangeType(change).short, row))
    return found


def matching(all_rows: list[Found], table: Table, expression: pc.Expression) -> list[Found]:
    rows = pa.RecordBatch.from_pylist([row for _, _, row in all_rows], schema=table.definition.schema.arrow())
    numbered = rows.append_column("position", pa.array(range(len(all_rows)), pa.int64()))
    return [all_rows[each] for each in numbered.filter(expression).column("position").to_pylist()]


def random_condition(rng: random.Random, depth: int = 2) -> pc.Expression:
    if depth and rng.random() < 0.5:
        left, right = random_condition(rng, depth - 1), random_condition(rng, depth - 1)
        return left & right if rng.random() < 0.5 else left | right
    if depth and rng.random() < 0.2:
        return ~random_condition(rng, depth - 1)
    id_, n, s, x = map(pc.field, ("id", "n", "s", "x"))
    low = rng.randrange(60)
    return rng.choice(
        [
            id_ == pa.scalar(low, pa.int32()),
            (id_ >= pa.scalar(low, pa.int32())) & (id_ < pa.scalar(low + 7, pa.int32())),
            n > pa.scalar(low * 10, pa.int64()),
            n.is_null(),
            n.is_valid(),
            s == f"text {low // 10}",
            pc.starts_with(s, "text 3"),
            x < 0.5,
            pc.is_nan(x),
            n != pa.scalar(-low, pa.int64()),
            id_ == pa.scalar(1000, pa.int32()),
        ]
    )


def random_rows(rng: random.Random, around: int) -> list[dict[str, Any]]:
    return [
        {
            "id": around + rng.randrange(8),
            "n": rng.choice([None, around * 10 + rng.randrange(9), -around]),
            "s": rng.choice([None, f"text {around // 10}", f"text {around // 10} and more"]),
            "x": rng.choice([None, rng.random(), float("nan")]),
        }
        for _ in range(rng.randrange(1, 9))
    ]


COLUMNS = "id INT NOT NULL, n BIGINT, s STRING, x DOUBLE"


@pytest.mark.parametrize("seed", range(3))
def test_scans_of_log_tables_give_what_matches(tmp_path: Path, seed: int) -> None:
    async def work() -> None:
        rng = random.Random(seed)
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS, statistics_columns="*")
            for around in range(0, 60, 4):
                await table.append(random_rows(rng, around))
            await table.append([])
            if seed:  # batches of both schemas, and a column that the first ones do not know
                table = await table.alter("ADD later INT, MODIFY id BIGINT NOT NULL")
            for around in range(0, 60, 9):
                await table.append(random_rows(rng, around))
            await compare(rng, table)

    async def compare(rng: random.Random, table: Table) -> None:
        all_rows = await found_rows(table, None)
        for _ in range(12):
            expression = random_condition(rng)
            if "later" in table.definition.schema:
                expression = pc.field("later").is_null() & (pc.field("id") > rng.randrange(60)) | (
                    pc.field("n") < rng.randrange(500)
                )
            expected = matching(all_rows, table, expression)
            offset = rng.randrange(len(all_rows))
            assert repr(await found_rows(table, expression, None, offset)) == repr(
                [each for each in expected if each[0] >= offset]
            )
            columns = sorted(rng.sample(["id", "n", "s"], 2))
            given = await found_rows(table, expression, columns)
            assert given == [
                (at, change, {name: row[name] for name in columns}) for at, change, row in expected
            ]
            schema = table.definition.schema
            counted = await table.broker.send(
                m.CountRowsRequest(
                    table_id=table.table_id, buckets=[0], schema_id=schema.schema_id,
                    filter=encode_filter(expression, schema),
                )
            )  # fmt: skip
            assert counted.buckets[0].count == len(expected)
            limit = rng.randrange(5)
            last = await limited(table, expression, limit)
            assert repr(last) == repr([row for _, _, row in expected][max(0, len(expected) - limit) :])

    run(work)


async def limited(table: Table, expression: pc.Expression, limit: int) -> list[dict[str, Any]]:
    schema = table.definition.schema
    answer = await table.broker.send(
        m.LimitScanRequest(
            table_id=table.table_id, limit=limit, buckets=[0], schema_id=schema.schema_id,
            filter=encode_filter(expression, schema),
        )
    )  # fmt: skip
    assert answer.buckets[0].error_code == 0, answer.buckets[0].error_message
    return decode_ipc(bytes(answer.buckets[0].rows), schema.arrow()).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(2))
async def test_changelogs_and_states_of_key_tables_give_what_matches(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            f"{COLUMNS}, PRIMARY KEY (id) NOT ENFORCED", statistics_columns="id,n,s"
        )
        for around in [*range(0, 60, 4), *range(0, 60, 9)]:
            await table.put(*((rng.choice("+++-"), row) for row in random_rows(rng, around)))
        all_rows = await found_rows(table, None)
        state = [(0, "", row) for row in await table.state()]
        schema = table.definition.schema
        for _ in range(10):
            expression = random_condition(rng)
            assert repr(await found_rows(table, expression)) == repr(matching(all_rows, table, expression))
            expected = [row for _, _, row in matching(state, table, expression)]
            assert repr(await filtered_state(table, expression)) == repr(expected)
            assert repr(await limited(table, expression, 3)) == repr(expected[:3])
            counted = await table.broker.send(
                m.CountRowsRequest(
                    table_id=table.table_id, buckets=[0], filter=encode_filter(expression, schema)
                )
            )
            assert counted.buckets[0].count == len(expected)


async def filtered_state(table: Table, expression: pc.Expression) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    scan_id, more = m.OPEN_SCAN, True
    while more:
        answer = await table.broker.send(
            m.ScanSnapshotRequest(
                table_id=table.table_id, bucket=0, scan_id=scan_id, max_bytes=1,
                filter=encode_filter(expression, table.definition.schema),
            )
        )  # fmt: skip
        assert answer.error_code == 0, answer.error_message
        scan_id, more = answer.scan_id, answer.has_more
        rows += table.rows(answer.rows)
    return rows


async def test_batches_that_cannot_match_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_into = []
    mask = batch_filter.BatchFilter.mask
    monkeypatch.setattr(
        batch_filter.BatchFilter,
        "mask",
        lambda self, region, position, header: (
            looked_into.append(header.base_offset) or mask(self, region, position, header)
        ),
    )
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        for first in range(0, 100, 10):
            await table.append([{"id": first + n, "s": "x"} for n in range(10)])
        expression = pc.field("id") == pa.scalar(42, pa.int32())
        assert [at for at, _, _ in await found_rows(table, expression)] == [42]
        assert looked_into == [40]
        # A batch that meets the condition completely is not searched either.
        del looked_into[:]
        assert len(await found_rows(table, pc.field("id") >= pa.scalar(50, pa.int32()))) == 50
        assert looked_into == []
        # Without row_filter whole batches come.
        batches = [
            batch.header.base_offset
            async for result in answers(table, 0, expression, ["s"], rows=False)
            for batch in parts(result)
        ]
        assert (batches, looked_into) == ([40], [])


async def test_a_writer_cannot_hide_rows_by_wrong_statistics(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.append([{"id": 1}])
        (stored,) = await table.scan()
        lies = bytes(stored.statistics)
        batch = with_statistics(table.batch([{"id": 77}]), lies)
        from headrace.protocol.records.header import write_crc

        write_crc(batch)
        answer = await table.broker.send(
            m.AppendRowsRequest(
                table_id=table.table_id, timeout_ms=TIMEOUT_MS,
                buckets=[m.WriteBucket(bucket=0, batch=bytes(batch))],
            )
        )  # fmt: skip
        assert answer.buckets[0].error_code == 0
        found = await found_rows(table, pc.field("id") == pa.scalar(77, pa.int32()))
        assert [at for at, _, _ in found] == [1]


@pytest.mark.parametrize("compression", list(ArrowCompression))
async def test_filters_projections_and_counts_are_the_same_after_a_kill(
    tmp_path: Path, compression: ArrowCompression
) -> None:
    """The source is a log table or a changelog, with any compression of the buffers."""
    rng = random.Random(compression.value)
    conditions = [random_condition(rng) for _ in range(6)]

    async def given(all_tables: Tables) -> list[Any]:
        found: list[Any] = []
        for name in ("log", "keyed"):
            table = await all_tables.open(name)
            found += [[each.compression for each in await table.scan()], await table.count()]
            for expression in conditions:
                rows = await found_rows(table, expression)
                assert repr(rows) == repr(matching(await found_rows(table, None), table, expression))
                found += [repr(rows), await found_rows(table, expression, ["id", "s"])]
                found.append(repr(await limited(table, expression, 3)))
        return found

    option = {"table.log.arrow.compression.type": compression.value}
    async with tables(tmp_path / "first") as all_tables:
        log = await all_tables.create(COLUMNS, name="log", given=option)
        keyed = await all_tables.create(
            f"{COLUMNS}, PRIMARY KEY (id) NOT ENFORCED", name="keyed", given=option
        )
        for around in range(0, 60, 6):
            await log.append(random_rows(rng, around), compression=compression)
            await keyed.put(*((rng.choice("+++-"), row) for row in random_rows(rng, around)))
        before = await given(all_tables)
        assert set(before[0]) == {compression}
        copy_as_killed(tmp_path / "first", tmp_path / "killed")
    async with tables(tmp_path / "killed") as all_tables:
        assert await given(all_tables) == before


async def test_old_batches_without_statistics_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "STATISTICS_FROM_ROWS", 1 << 30)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.append([{"id": n} for n in range(10)])
        (stored,) = await table.scan()
        assert len(stored.statistics) == 0
        found = await found_rows(table, pc.field("id") == pa.scalar(7, pa.int32()))
        assert [at for at, _, _ in found] == [7]


async def test_readers_of_few_rows_get_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer tells how far the server looked, within bounds, and comes at once when it passed over something."""
    monkeypatch.setattr(scan_log, "_LOOK_BYTES", 1)
    monkeypatch.setattr(scan_log, "_LOOK_STEP_BYTES", 1)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        for n in range(5):
            await table.append([{"id": n}])
        nothing = pc.field("id") == pa.scalar(99, pa.int32())
        async with asyncio.timeout(DEADLINE_SECONDS):
            ends = [
                result.filtered_end_offset async for result in answers(table, 0, nothing, None, max_bytes=1)
            ]
        assert ends == [1, 2, 3, 4, 5]
    monkeypatch.undo()
    monkeypatch.setattr(writes, "STATISTICS_FROM_ROWS", 1)
    async with tables(tmp_path / "waiting") as all_tables:
        table = await all_tables.create(COLUMNS)
        waiting = asyncio.ensure_future(
            anext(
                answers(table, 0, pc.field("id") == pa.scalar(50, pa.int32()), None, max_wait_ms=TIMEOUT_MS)
            )
        )
        for n in (6, 7, 50):  # rows that do not match cause no answer
            await asyncio.sleep(0.05)
            await table.append([{"id": n}])
        result = await waiting
        assert result.filtered_end_offset == 3
        assert [each.header.base_offset for each in parts(result)] == [2]


async def test_bad_filters_are_refused_by_name(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        keyed = await all_tables.create("id INT, PRIMARY KEY (id) NOT ENFORCED", name="k")
        for request in (
            m.ScanLogRequest(table_id=table.table_id, buckets=[], filter=b"rubbish"),
            m.LimitScanRequest(table_id=table.table_id, limit=1, buckets=[0], filter=b"rubbish"),
            m.CountRowsRequest(table_id=table.table_id, buckets=[0], filter=b""),
            m.ScanSnapshotRequest(table_id=keyed.table_id, filter=b"\x00"),
        ):
            answer = await all_tables.broker.send(request)
            assert answer.error_code == TableErrorCode.INVALID_FILTER
            assert "filter" in answer.error_message


async def test_a_filter_of_20_000_values_is_read_off_the_loop_and_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    parse = Filter.parse
    monkeypatch.setattr(
        Filter,
        "parse",
        lambda data, schema: threads.append(threading.current_thread()) or parse(data, schema),
    )
    async with tables(tmp_path) as all_tables:
        expression = pc.field("id").isin(pa.array(range(0, 60_000, 3), pa.int32()))
        log = await all_tables.create(COLUMNS)
        await log.append([{"id": id_} for id_ in (1, 3, 59_997, 60_000)])
        assert [row["id"] for _, _, row in await found_rows(log, expression)] == [3, 59_997]
        assert [row["id"] for row in await limited(log, expression, 9)] == [3, 59_997]
        keyed = await all_tables.create(f"{COLUMNS}, PRIMARY KEY (id) NOT ENFORCED", name="k")
        await keyed.put(*(("+", {"id": id_}) for id_ in (1, 3, 59_997, 60_000)))
        assert [row["id"] for row in await filtered_state(keyed, expression)] == [3, 59_997]
        counted = await keyed.broker.send(
            m.CountRowsRequest(
                table_id=keyed.table_id, buckets=[0],
                filter=encode_filter(expression, keyed.definition.schema),
            )
        )  # fmt: skip
        assert counted.buckets[0].count == 2
        assert threads
        assert threading.main_thread() not in threads


async def test_r20_6_a_nested_column_has_no_statistics_and_is_refused_by_name_in_a_filter(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, l ARRAY<INT>, r ROW<id INT>", statistics_columns="*")
        await table.append([{"id": 1, "l": [1], "r": {"id": 5}}, {"id": 2, "l": None, "r": None}])
        (batch,) = await table.scan()
        assert list(statistics.decode(batch.statistics, table.definition.schema, 2)) == [
            table.definition.schema.column("id").id
        ]
        for name, expression in {
            "l": pc.field("l").is_null(),
            "r": (pc.field("id") == 1) & pc.field("r").is_valid(),
        }.items():
            data = encode_filter(expression, table.definition.schema)
            for request in (
                m.ScanLogRequest(table_id=table.table_id, buckets=[], filter=data),
                m.CountRowsRequest(table_id=table.table_id, buckets=[0], filter=data),
                m.LimitScanRequest(table_id=table.table_id, limit=1, buckets=[0], filter=data),
            ):
                answer = await all_tables.broker.send(request)
                assert answer.error_code == TableErrorCode.INVALID_FILTER
                assert f"column '{name}' is nested" in answer.error_message


async def test_statistics_of_an_old_schema_say_what_its_batches_have_in_a_new_one(tmp_path: Path) -> None:
    """An added column has its default there, or null; a BINARY(n) that became longer has zeros at its end."""
    async with tables(tmp_path) as all_tables:
        old = await all_tables.create("id INT, b BINARY(2)", statistics_columns="*")
        await old.append([{"id": 1, "b": b"\1\2"}, {"id": 2, "b": b"\1\2"}])
        table = await old.alter("ADD c INT DEFAULT 5, ADD d INT, MODIFY b BINARY(4), MODIFY id BIGINT")
        await table.append([{"id": 3, "b": b"\1\2\0\1", "c": 6, "d": 7}])
        for expression, ids in (
            (pc.field("c") == 5, [1, 2]),
            (pc.field("c") > 5, [3]),
            (pc.field("c").is_null(), []),
            (pc.field("d").is_null(), [1, 2]),
            (pc.field("d") == 7, [3]),
            (pc.field("b") == pa.scalar(b"\1\2\0\0", pa.binary(4)), [1, 2]),
            (pc.field("b") > pa.scalar(b"\1\2\0\0", pa.binary(4)), [3]),
            (pc.field("id") < pa.scalar(2, pa.int64()), [1]),
        ):
            found = await found_rows(table, expression)
            assert [row["id"] for _, _, row in found] == ids, str(expression)


async def test_a_filtered_scan_misses_no_batch_where_its_answers_are_small(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        for number in range(12):
            await table.append([{"id": number}, {"id": 100 + number}])
        offset, ids, count = 0, [], 0
        async for result in answers(table, 0, pc.field("id") < 100, None, max_bytes=400):
            for batch in parts(result):
                ids += batch.to_record_batch(table.definition.schema.arrow()).column("id").to_pylist()
            count += 1
            assert result.filtered_end_offset > offset
            offset = result.filtered_end_offset
        assert ids == list(range(12))
        assert count > 3
