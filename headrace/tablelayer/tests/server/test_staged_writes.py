"""R3.5: rows are staged by attempts and committed once per batch, through every kind of retry and crash."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.broker.replication.replicas import LocalReplicas
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import CreateNode, DiskUsage, StoreOperation
from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.staged import space as staged_space
from headrace.tablelayer.server.staged.ledger import Ledger, following
from headrace.tablelayer.server.staged.ledgers import Ledgers
from headrace.tablelayer.server.staged.place import Place, bucket_of_table
from headrace.tablelayer.server.staged.staging import Chunk, StagingArea, writer_key
from headrace.tablelayer.server.staged.writing import DecidedBatches
from headrace.tablelayer.tests.server.tables import LAKES, Row, Table, coming_from, tables, until
from headrace.tablelayer.tests.server.test_row_ttl import StandingClock

UPSERT = ChangeType.UPDATE_AFTER
Chunks = dict[int, list[list[Row]]]
"""The rows of each chunk, by bucket."""


async def stage(
    table: Table, batch_id: int, attempt: str, chunks: Chunks, *, writer: str = "w", **options: Any
) -> Any:
    changes = options.pop("changes", None)
    return await table.broker.send(
        m.StageRowsRequest(
            table_id=table.table_id,
            writer=writer,
            batch_id=batch_id,
            attempt=attempt,
            chunks=[
                m.StagedChunk(
                    bucket=bucket,
                    number=number,
                    batch=table.batch(rows, None if changes is None else [changes] * len(rows)),
                )
                for bucket, listed in chunks.items()
                for number, rows in enumerate(listed)
            ],
            **options,
        )
    )


async def comes_to(table: Table, row: Row) -> None:
    """Wait until the row of this key is this one: rows without a waiting writer become visible a little later."""

    async def is_it() -> bool:
        return await table.lookup({"k": row["k"]}) == [row]

    await until(is_it, f"there is no {row}")


async def commit(table: Table, batch_id: int, attempts: dict[str, Chunks], *, writer: str = "w") -> Any:
    return await table.broker.send(
        m.CommitStagedRequest(
            table_id=table.table_id,
            writer=writer,
            batch_id=batch_id,
            attempts=[
                m.StagedAttempt(
                    attempt=attempt,
                    chunks=[
                        m.StagedCount(bucket=bucket, count=len(listed)) for bucket, listed in chunks.items()
                    ],
                )
                for attempt, chunks in attempts.items()
            ],
        )
    )


async def logged(table: Table, buckets: int) -> list[int]:
    return [row["n"] for bucket in range(buckets) for _, row in await table.changelog(bucket=bucket)]


def chunk_of(*numbers: int) -> list[Row]:
    return [{"n": number} for number in numbers]


async def test_r3_5_staged_rows_are_seen_when_they_are_committed_and_once(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT", buckets=2)
        first: Chunks = {0: [chunk_of(1, 2), chunk_of(3)], 1: [chunk_of(4)]}
        assert (await stage(table, 0, "a", first)).error_code == 0
        assert (await stage(table, 0, "a", first)).error_code == 0  # a repeated request
        assert (await stage(table, 0, "twin", {0: [chunk_of(2, 1, 3, 4)]})).error_code == 0
        assert await logged(table, 2) == []
        for _ in range(2):
            assert (await commit(table, 0, {"a": first})).error_code == 0
            assert await logged(table, 2) == [1, 2, 3, 4]
        assert (await commit(table, 0, {"twin": {0: [[]]}})).error_code == 0  # decided already
        assert (await stage(table, 0, "late", {0: [chunk_of(9)]})).decided
        second: Chunks = {0: [chunk_of(5)]}
        await stage(table, 1, "b", second)
        assert (await commit(table, 1, {"b": second})).error_code == 0
        assert (await commit(table, 0, {"a": first})).error_code == 0
        assert await logged(table, 2) == [1, 2, 3, 5, 4]
        # Another writer, and an attempt that is abandoned.
        await stage(table, 0, "c", {0: [chunk_of(6)]}, writer="other")
        await table.broker.send(
            m.AbortStagedRequest(table_id=table.table_id, writer="other", batch_id=0, attempts=["c"])
        )
        answer = await commit(table, 0, {"c": {0: [[]]}}, writer="other")
        assert answer.error_code == TableErrorCode.STAGED_ROWS_MISSING
        assert await logged(table, 2) == [1, 2, 3, 5, 4]
        assert not [path for path in tmp_path.rglob("staged/*/*/*/*") if path.is_file()]


async def test_r3_5_rows_that_do_not_fit_are_refused_when_staged(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT NOT NULL, v BIGINT, PRIMARY KEY (n) NOT ENFORCED")
        answer = await stage(table, 0, "a", {0: [[{"n": 1}]]})
        assert answer.error_code == 0  # no change types: upserts
        answer = await stage(table, 0, "b", {0: [[{"n": 1}]]}, changes=int(ChangeType.INSERT))
        assert answer.error_code == TableErrorCode.INVALID_ROW
        answer = await stage(table, 0, "c", {0: [[{"n": 1}]]}, target_columns=[77])
        assert answer.error_code == TableErrorCode.INVALID_TARGET_COLUMNS
        answer = await stage(table, 0, "../d", {0: [[{"n": 1}]]})
        assert answer.error_code == TableErrorCode.INVALID_ROW
        answer = await stage(table, 0, "e", {7: [[{"n": 1}]]})
        assert answer.error_code != 0
        request = m.StageRowsRequest(
            table_id=table.table_id, writer="w", batch_id=0, attempt="f",
            chunks=[m.StagedChunk(bucket=0, number=1, batch=table.batch([{"n": 1}], [UPSERT]))],
        )  # fmt: skip
        assert (await table.broker.send(request)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    "given",
    [{}, {"table.merge-engine": "aggregation", "fields.v.agg": "sum", "table.delete.behavior": "allow"}],
)
async def test_r6_10_a_staged_update_makes_no_row_of_a_key_that_is_gone_when_it_is_committed(
    tmp_path: Path, given: dict[str, str]
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "k BIGINT NOT NULL, v BIGINT, kept STRING NOT NULL, PRIMARY KEY (k) NOT ENFORCED", given=given
        )
        await table.put(("+", {"k": 1, "v": 1, "kept": "a"}), ("+", {"k": 2, "v": 2, "kept": "b"}))
        rows = [{"k": 1, "v": 10}, {"k": 2, "v": 20}, {"k": 3, "v": 30}]
        request = m.StageRowsRequest(
            table_id=table.table_id, writer="w", batch_id=0, attempt="a", update=True,
            target_columns=[table.definition.schema.column(each).id for each in ("k", "v")],
            chunks=[m.StagedChunk(bucket=0, number=0, batch=table.batch(rows, [UPSERT] * 3, ["k", "v"]))],
        )  # fmt: skip
        assert (await table.broker.send(request)).error_code == 0
        await table.put(("-", {"k": 2}))
        assert (await commit(table, 0, {"a": {0: [rows]}})).error_code == 0
        await comes_to(table, {"k": 1, "v": 10, "kept": "a"})
        assert await table.lookup({"k": 2}, {"k": 3}) == [None, None]


async def test_r6_10_merge_engines_and_log_tables_take_no_staged_updates(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        for given in (
            {"table.merge-engine": "first_row"},
            {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "n"},
        ):
            table = await all_tables.create(
                "k BIGINT NOT NULL, n BIGINT, PRIMARY KEY (k) NOT ENFORCED",
                name=given["table.merge-engine"],
                given=given,
            )
            answer = await stage(table, 0, "a", {0: [[{"k": 1, "n": 1}]]}, update=True)
            assert answer.error_code == TableErrorCode.INVALID_ROW
            assert "cannot be overwritten" in answer.error_message
        log = await all_tables.create("n BIGINT", name="log")
        answer = await stage(log, 0, "a", {0: [chunk_of(1)]}, update=True)
        assert answer.error_code == TableErrorCode.NOT_A_PRIMARY_KEY_TABLE


class Killed(Exception):  # noqa: N818 - states what happened
    """The process ended here: no later step happens."""


attempts = st.lists(
    st.dictionaries(st.integers(0, 1), st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=2),
    min_size=1,
    max_size=3,
)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(attempts, st.integers(0, 6), st.booleans()), min_size=1, max_size=4))
def test_r3_5_a_commit_that_is_interrupted_anywhere_is_completed_exactly(
    batches: list[tuple[list[dict[int, list[int]]], int, bool]],
) -> None:
    """Try every batch with other rows and attempts until it is committed; the first decision counts.

    After `crash_after` chunks of a commit the process ends, and the next one begins with the files on the disk.
    """

    async def scenario(folder: Path) -> None:
        number = 0
        expected: list[int] = []
        for batch_id, (shapes, crash_after, crashes) in enumerate(batches):
            decided: list[int] | None = None
            for run_of_batch in range(2):
                async with tables(folder) as all_tables:
                    if batch_id == 0 and run_of_batch == 0:
                        table = await all_tables.create("n BIGINT", buckets=2)
                    else:
                        table = await all_tables.open()
                    given: dict[str, Chunks] = {}
                    rows: list[int] = []
                    for index, shape in enumerate(shapes):
                        chunks: Chunks = {}
                        for bucket, sizes in shape.items():
                            for size in sizes:
                                chunks.setdefault(bucket, []).append(chunk_of(*range(number, number + size)))
                                rows += range(number, number + size)
                                number += size
                        attempt = f"b{batch_id}-r{run_of_batch}-{index}"
                        if not (await stage(table, batch_id, attempt, chunks)).decided:
                            given[attempt] = chunks
                    if run_of_batch == 0 and crashes:
                        decided = rows
                        await dying_commit(table, batch_id, given, crash_after)
                        continue
                    assert (await commit(table, batch_id, given)).error_code == 0
                    decided = rows if decided is None else decided
            assert decided is not None
            expected += decided
        async with tables(folder) as all_tables:
            table = await all_tables.open()
            assert sorted(await logged(table, 2)) == sorted(expected)

    async def dying_commit(table: Table, batch_id: int, given: dict[str, Chunks], after: int) -> None:
        write, save = DecidedBatches._write_chunk, Ledgers.save
        left = after
        decided = False

        async def write_chunk(self: Any, *arguments: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            await write(self, *arguments)

        async def save_ledger(self: Any, table_id: Any, ledger: Ledger) -> None:
            nonlocal decided
            if decided:
                raise Killed
            decided = True
            await save(self, table_id, ledger)

        with (
            patch.object(DecidedBatches, "_write_chunk", write_chunk),
            patch.object(Ledgers, "save", save_ledger),
        ):
            answer = await commit(table, batch_id, given)
        assert answer.error_code != 0

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


async def test_r3_5_an_interrupted_commit_is_completed_without_being_asked(tmp_path: Path) -> None:
    """Sums of an aggregation: every row counts once."""
    columns = "k BIGINT NOT NULL, total BIGINT, PRIMARY KEY (k) NOT ENFORCED"
    engine = {"table.merge-engine": "aggregation", "fields.total.agg": "sum"}
    write = DecidedBatches._write_chunk

    async def first_only(
        self: Any, definition: Any, bucket: int, chunk: Chunk, writer: Any, acks: int
    ) -> None:
        if writer.base_sequence > 0:
            raise Killed
        await write(self, definition, bucket, chunk, writer, acks)

    async with tables(tmp_path) as all_tables:
        table = await create_aggregation(all_tables, columns, engine)
        chunks: Chunks = {0: [[{"k": 1, "total": n}] for n in (1, 10, 100)]}
        assert (await stage(table, 0, "a", chunks, changes=UPSERT)).error_code == 0
        with patch.object(DecidedBatches, "_write_chunk", first_only):
            assert (await commit(table, 0, {"a": chunks})).error_code != 0
        await comes_to(table, {"k": 1, "total": 1})
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        await comes_to(table, {"k": 1, "total": 111})
        assert (await commit(table, 0, {"a": chunks})).error_code == 0
        assert await table.lookup({"k": 1}) == [{"k": 1, "total": 111}]


async def test_r3_5_decided_rows_that_overflow_are_a_client_error_until_they_fit(
    tmp_path: Path, own_log: pytest.LogCaptureFixture
) -> None:
    columns = "k BIGINT NOT NULL, total TINYINT, PRIMARY KEY (k) NOT ENFORCED"
    engine = {"table.merge-engine": "aggregation", "fields.total.agg": "sum"}
    chunks: Chunks = {0: [[{"k": 1, "total": 100}], [{"k": 1, "total": 100}]]}
    async with tables(tmp_path) as all_tables:
        table = await create_aggregation(all_tables, columns, engine)
        assert (await stage(table, 0, "a", chunks, changes=UPSERT)).error_code == 0
        answer = await commit(table, 0, {"a": chunks})
        assert answer.error_code == TableErrorCode.INVALID_ROW
        assert "does not fit into TINYINT" in answer.error_message
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        await until(lambda: "cannot be written" in own_log.text)
        assert (await table.put(("+", {"k": 1, "total": -80}))).error_code == 0
        assert (await commit(table, 0, {"a": chunks})).error_code == 0
        assert await table.lookup({"k": 1}) == [{"k": 1, "total": 120}]
    assert not [record for record in own_log.records if record.levelname == "ERROR"]


async def create_aggregation(all_tables: Any, columns: str, options: dict[str, str]) -> Table:
    from headrace.tablelayer.model.ddl.clauses import parse_columns
    from headrace.tablelayer.model.table.definition import TableDefinition
    from headrace.tablelayer.model.table.path import TablePath

    definition = TableDefinition(
        TablePath("default", "t"), parse_columns(columns), bucket_count=1, options=options
    )
    answer = await all_tables.broker.send(m.CreateTableRequest(definition=definition.to_json()))
    assert answer.error_code == 0, answer.error_message
    return Table(all_tables.broker, definition.with_id(answer.table_id))


async def interrupted(table: Table, chunks: Chunks) -> None:
    """Batch 0 of attempt `a` is decided, and its first chunk written: the commit failed then."""
    write = DecidedBatches._write_chunk

    async def first_only(
        self: Any, definition: Any, bucket: int, chunk: Chunk, writer: Any, acks: int
    ) -> None:
        if writer.base_sequence > 0:
            raise Killed
        await write(self, definition, bucket, chunk, writer, acks)

    assert (await stage(table, 0, "a", chunks)).error_code == 0
    with patch.object(DecidedBatches, "_write_chunk", first_only):
        assert (await commit(table, 0, {"a": chunks})).error_code != 0


THREE: Chunks = {0: [chunk_of(1), chunk_of(2), chunk_of(3)]}


async def ledger_of(all_tables: Any, table: Table) -> Ledger:
    """Return the ledger in the store."""
    store = all_tables.broker.context.store
    (name,) = await store.children(f"/staged/{table.table_id}")
    return Ledger.from_json((await store.get(f"/staged/{table.table_id}/{name}")).data)


async def test_r3_5_a_commit_that_failed_notes_how_far_it_came_and_is_completed_before_the_next(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT")
        await interrupted(table, THREE)
        ledger = await ledger_of(all_tables, table)
        assert (ledger.done, ledger.written, ledger.attempts) == (False, {bucket_of_table(0): 1}, ("a",))
        assert await logged(table, 1) == [1]
        await stage(table, 1, "b", {0: [chunk_of(4)]})
        assert (await commit(table, 1, {"b": {0: [[]]}})).error_code == 0
        assert await logged(table, 1) == [1, 2, 3, 4]
        assert (await ledger_of(all_tables, table)).done


async def test_r3_5_a_decision_of_another_broker_counts(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n INT")
        await stage(table, 1, "a", {0: [chunk_of(1)]})
        await stage(table, 1, "b", {0: [chunk_of(2)]})
        ledger = Ledger("w", 77, 1, ("b",), 0, 1 << 50, 0, chunks={bucket_of_table(0): 1})
        store = all_tables.broker.context.store
        await store.transact([CreateNode(f"/staged/{table.table_id}/{writer_key('w')}", ledger.to_json())])
        refused = await commit(table, 1, {"a": {0: [chunk_of(1)]}})
        assert refused.error_code == ErrorCode.NOT_COORDINATOR
        assert "changed by another broker" in refused.error_message
        again = await commit(table, 1, {"a": {0: [chunk_of(1)]}})
        assert again.error_code == 0
        assert await logged(table, 1) == [2]


async def test_r3_5_a_decided_batch_is_neither_aborted_nor_expired(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT")
        await interrupted(table, THREE)
        await table.broker.send(
            m.AbortStagedRequest(table_id=table.table_id, writer="w", batch_id=0, attempts=["a"])
        )
        (staged,) = tmp_path.rglob("a.0")
        for path in (staged, staged.parent):
            os.utime(path, (0, 0))  # no attempt has added to it for long
        await all_tables.extension._staged.expiry.expire(lambda _: True)
        assert staged.exists()
        assert (await commit(table, 0, {"a": THREE})).error_code == 0
        assert await logged(table, 1) == [1, 2, 3]


async def test_r3_5_an_abort_is_of_the_attempts_that_it_names(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT")
        for attempt in ("a", "ab"):
            await stage(table, 0, attempt, {0: [chunk_of(1)]})
        await table.broker.send(
            m.AbortStagedRequest(table_id=table.table_id, writer="w", batch_id=0, attempts=["a"])
        )
        refused = await commit(table, 0, {"a": {0: [[]]}})
        assert refused.error_code == TableErrorCode.STAGED_ROWS_MISSING
        assert (await commit(table, 0, {"ab": {0: [[]]}})).error_code == 0
        assert await logged(table, 1) == [1]


async def test_r3_5_a_writer_is_known_for_as_long_as_it_may_come_back(tmp_path: Path) -> None:
    clock = StandingClock()
    async with tables(tmp_path, clock=clock) as all_tables:
        table = await all_tables.create("n BIGINT")
        await stage(table, 0, "a", {0: [chunk_of(1)]})
        assert (await commit(table, 0, {"a": {0: [[]]}})).error_code == 0
        staged = all_tables.extension._staged
        clock.now_ms += 90 * 86_400_000
        await staged.expiry.expire(lambda _: True)
        assert (await stage(table, 0, "b", {0: [chunk_of(1)]})).decided
        clock.now_ms += 1
        await staged.expiry.expire(lambda _: True)
        assert not (await stage(table, 0, "b", {0: [chunk_of(1)]})).decided


async def test_r3_5_a_dropped_table_takes_its_ledgers_and_staged_rows_along(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT")
        await stage(table, 0, "a", {0: [chunk_of(1)]})
        await commit(table, 0, {"a": {0: [[]]}})
        await stage(table, 1, "b", {0: [chunk_of(2)]})
        staged = all_tables.extension._staged
        assert staged is not None
        store = all_tables.broker.context.store
        assert await store.children(f"/staged/{table.table_id}")
        await staged.expiry.expire(lambda _: True)
        assert list(tmp_path.rglob("b.0"))
        await staged.expiry.expire(lambda _: False)
        assert not await store.children(f"/staged/{table.table_id}")
        assert not list(tmp_path.rglob("b.0"))


async def test_r3_5_a_writer_that_comes_back_while_it_is_forgotten_keeps_its_ledger(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT")
        await stage(table, 0, "a", {0: [chunk_of(1)]})
        await commit(table, 0, {"a": {0: [[]]}})
        await stage(table, 1, "b", {0: [chunk_of(2)]})
        staged = all_tables.extension._staged
        assert staged is not None
        known = staged.ledgers.known
        (key,) = known
        known[key] = replace(known[key], kept_ms=-1)  # silent for long
        store = all_tables.broker.context.store
        transact = store.transact
        expiring: list[asyncio.Task[None]] = []

        async def transact_and_expire(operations: Sequence[StoreOperation]) -> None:
            under_way = asyncio.ensure_future(transact(operations))
            await asyncio.sleep(0)
            if not expiring:
                expiring.append(asyncio.create_task(staged.expiry.expire(lambda _: True)))
            await under_way

        with patch.object(store, "transact", transact_and_expire):
            assert (await commit(table, 1, {"b": {0: [[]]}})).error_code == 0
            await asyncio.gather(*expiring)
        (name,) = await store.children(f"/staged/{table.table_id}")
        node = await store.get(f"/staged/{table.table_id}/{name}")
        assert node is not None
        assert Ledger.from_json(node.data).batch_id == 1


async def test_r3_5_a_slow_recovery_is_not_taken_for_dropped_tables(tmp_path: Path) -> None:
    """The background work begins before the topics are known: it must not forget what belongs to them."""
    follow = LocalReplicas.follow

    async def slow(self: Any, *arguments: Any, **options: Any) -> None:
        await asyncio.sleep(0.6)
        await follow(self, *arguments, **options)

    async with tables(tmp_path, LAKES) as all_tables:
        table = await all_tables.create("n BIGINT", datalake_enabled="true", datalake_format="iceberg")
        await stage(table, 0, "a", {0: [chunk_of(1)]})
        await commit(table, 0, {"a": {0: [[]]}})
        begun = m.LakeBeginRequest(worker="w", database="default", table="t", force=True)
        assert (await all_tables.broker.send(begun)).epoch == 1
    with patch.object(LocalReplicas, "follow", slow):
        async with tables(tmp_path) as all_tables:
            table = await all_tables.open()
            assert (await stage(table, 0, "b", {0: [chunk_of(2)]})).decided
            assert (await all_tables.broker.send(begun)).epoch == 2


def test_r3_5_a_torn_chunk_is_cut_off_and_stored_again(tmp_path: Path) -> None:
    area = StagingArea(tmp_path)
    path = tmp_path / "t" / "w" / "0" / "a.0"
    chunks = [
        Chunk(None, memoryview(b"first")),
        Chunk((1, 2), memoryview(b"second" * 100)),
        Chunk(None, memoryview(b"third"), update=True),
        Chunk((1, 2, 3), memoryview(b"fourth"), update=True),
    ]
    for number, chunk in enumerate(chunks):
        area.append(path, number, chunk, durable=True)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        fresh = StagingArea(tmp_path)
        for number in range(fresh.count(path), len(chunks)):
            fresh.append(path, number, chunks[number], durable=False)
        assert path.read_bytes() == whole
        assert [(c.targets, bytes(c.batch), c.update) for c in StagingArea(tmp_path).read(path)] == [
            (c.targets, bytes(c.batch), c.update) for c in chunks
        ]


def test_r3_5_a_chunk_that_comes_while_its_writers_folder_goes_stays(tmp_path: Path) -> None:
    """A repeated commit removes earlier staged files beside the first chunk of the next batch."""
    table, chunk = UUID(int=1), Chunk(None, memoryview(b"rows"))
    staging: list[threading.Thread] = []

    class Meanwhile(SystemDisk):
        def directories(self, path: Path) -> list[str]:
            found = super().directories(path)
            if path.parent.name == str(table) and not found and not staging:
                staging.append(threading.Thread(target=stage_next))
                staging[0].start()
                staging[0].join(0.2)  # all it needs, if nothing holds it up
            return found

    area = StagingArea(tmp_path, disk=Meanwhile())
    later = area.path(table, "w", 1, "b", bucket_of_table(0))

    def stage_next() -> None:
        area.append(later, 0, chunk, durable=True)

    area.append(area.path(table, "w", 0, "a", bucket_of_table(0)), 0, chunk, durable=True)
    area.drop_batches(table, "w", 0)
    (thread,) = staging
    thread.join(60)
    assert [bytes(each.batch) for each in StagingArea(tmp_path).read(later)] == [b"rows"]


class Names:
    """The names of a folder's tree that a power cut leaves: those in a folder at its last sync."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.kept: dict[Path, set[str]] = {}
        real = os.fsync

        def fsync(fd: int) -> None:
            real(fd)
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.is_dir():
                self.kept[path] = set(os.listdir(path))

        self.remove = remove = shutil.rmtree

        def rmtree(path: Path, *options: Any, **named: Any) -> None:
            """Note a removal: a later entry under the same name is another one."""
            remove(path, *options, **named)
            self.kept.get(path.parent, set()).discard(path.name)
            for folder in [each for each in self.kept if each == path or path in each.parents]:
                del self.kept[folder]

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(shutil, "rmtree", rmtree)

    def cut(self) -> None:
        for folder, folders, files in os.walk(self.base):
            kept = self.kept.get(Path(folder), set())
            for name in {*folders, *files} - kept:
                path = Path(folder, name)
                self.remove(path) if path.is_dir() else path.unlink()
            folders[:] = [name for name in folders if name in kept]


def test_r3_5_a_durable_chunk_survives_a_power_cut_with_all_names_that_lead_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(tmp_path, monkeypatch)
    area = StagingArea(tmp_path / "extensions" / "tables" / "staged", tmp_path)
    table, other = UUID(int=1), UUID(int=2)
    chunk = Chunk(None, memoryview(b"rows"))
    paths = [
        area.path(table, "w", 0, "a", bucket_of_table(0)), area.path(table, "w", 0, "a", bucket_of_table(1)),
        area.path(table, "w", 1, "b", bucket_of_table(0)),
        area.path(table, "w2", 0, "a", bucket_of_table(0)), area.path(other, "w", 0, "a", Place(other, 0)),
    ]  # fmt: skip
    for path in paths:
        area.append(path, 0, chunk, durable=True)
    area.append(paths[0], 1, chunk, durable=True)
    later = area.path(table, "w", 2, "c", bucket_of_table(0))
    area.append(later, 0, chunk, durable=False)
    area.append(later, 1, chunk, durable=True)
    area.drop_batches(table, "w", 1)
    for path in paths[:2]:
        area.append(path, 0, chunk, durable=True)
    lost = area.path(table, "w", 2, "not-durable", bucket_of_table(0))
    area.append(lost, 0, chunk, durable=False)
    names.cut()
    after = StagingArea(tmp_path / "extensions" / "tables" / "staged", tmp_path)
    counts = [after.count(path) for path in (*paths, later, lost)]
    assert counts == [1, 1, 0, 1, 1, 2, 0]


@pytest.mark.parametrize("torn", [False, True])
async def test_r3_5_a_decided_batch_whose_rows_are_gone_is_never_taken_for_done(
    tmp_path: Path, torn: bool
) -> None:
    chunks: Chunks = {0: [chunk_of(1), chunk_of(2)], 1: [chunk_of(3)]}

    async def dies(*_: Any, **__: Any) -> None:
        raise Killed

    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT", buckets=2)
        await stage(table, 5, "a", chunks)
        with patch.object(DecidedBatches, "write", dies):
            assert (await commit(table, 5, {"a": chunks})).error_code != 0
    (path,) = tmp_path.rglob("staged/*/*/5/a.0")
    whole = path.read_bytes()
    if torn:
        path.write_bytes(whole[:-1])
    else:
        path.unlink()
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        for batch_id in (5, 6):
            answer = await commit(table, batch_id, {"a": chunks})
            assert answer.error_code == TableErrorCode.STAGED_ROWS_MISSING
            assert (
                f"batch 5 of w is decided with 2 staged chunks for bucket 0, but the disk has {torn:d}"
                in (answer.error_message)
            )
        assert await logged(table, 2) == []
    path.write_bytes(whole)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        assert (await commit(table, 5, {"a": chunks})).error_code == 0
        assert sorted(await logged(table, 2)) == [1, 2, 3]


@given(st.integers(0, 2**31 - 1), st.integers(0, 1000))
def test_r3_5_ledgers_survive_the_store(first: int, chunks: int) -> None:
    ledger = Ledger(
        "w",
        7,
        3,
        ("a", "b"),
        first,
        1,
        2,
        written={bucket_of_table(0): 3, bucket_of_table(5): 1},
        chunks={bucket_of_table(0): 3, bucket_of_table(5): 2},
    )
    assert Ledger.from_json(ledger.to_json()) == ledger
    after = following(ledger, chunks, 9)
    assert after.done
    assert after.chunks is None
    assert after.first_sequence == (first + chunks) % 2**31
    assert Ledger.from_json(after.to_json()) == after


@pytest.fixture(autouse=True)
def _quick_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.tablelayer.server.extension._CHECK_SECONDS", 0.05)


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 10 MiB, with 1 MiB left whatever is staged; each file counts as 64 KiB."""
    monkeypatch.setattr(SystemDisk, "usage", lambda self, path: DiskUsage(10 << 20, 1 << 20))
    monkeypatch.setattr(staged_space, "_LOOK_AGAIN_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("total", "kept_free"),
    [(10 << 20, 512 << 10), (20 << 30, 1 << 30), (250 << 30, 1 << 30), (10 << 40, 1 << 30)],
)
def test_a_share_of_a_small_disk_and_a_segment_of_a_large_one_are_the_logs(
    total: int, kept_free: int
) -> None:
    assert Limits().disk_kept_free(total) == kept_free


async def test_r3_5_rows_are_staged_on_a_large_disk_that_is_well_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case of a build machine's disk: 4 % of 250 GiB are ten GiB."""
    monkeypatch.setattr(SystemDisk, "usage", lambda self, path: DiskUsage(250 << 30, 10 << 30))
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT")
        assert (await stage(table, 0, "a", {0: [chunk_of(1)]})).error_code == 0
        monkeypatch.setattr(SystemDisk, "usage", lambda self, path: DiskUsage(250 << 30, 1 << 30))
        answer = await stage(table, 0, "b", {0: [chunk_of(2)]})
        assert answer.error_code == TableErrorCode.BUFFER_EXHAUSTED
        assert "which the log needs" in answer.error_message


async def test_r3_5_staged_rows_are_bounded_per_client_and_in_total(tmp_path: Path, small_disk: None) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT")
        by_host: dict[str, int] = {}
        for host in ("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"):
            asked = Table(coming_from(all_tables.broker, host), table.definition)
            for batch_id in range(40):
                answer = await stage(asked, batch_id, "a", {0: [chunk_of(batch_id)]}, writer=host)
                if answer.error_code:
                    break
                by_host[host] = batch_id + 1
            assert answer.error_code == TableErrorCode.BUFFER_EXHAUSTED
            assert "commit or abort other batches" in answer.error_message
        assert by_host == {"192.0.2.1": 6, "192.0.2.2": 8, "192.0.2.3": 2}
        # A commit makes room.
        for batch_id in range(by_host["192.0.2.1"]):
            answer = await commit(table, batch_id, {"a": {0: [[]]}}, writer="192.0.2.1")
            assert answer.error_code == 0
        answer = await stage(asked, 0, "a", {0: [chunk_of(99)]}, writer="192.0.2.4")
        assert answer.error_code == 0
        assert await logged(table, 1) == list(range(by_host["192.0.2.1"]))


async def test_r3_5_when_space_is_short_idle_batches_go_the_longest_idle_first(
    tmp_path: Path, small_disk: None
) -> None:
    async with tables(tmp_path, limits=Limits(staged_idle_seconds=0.0)) as all_tables:
        table = await all_tables.create("n BIGINT")
        for batch_id in range(9):
            answer = await stage(table, batch_id, "a", {0: [chunk_of(batch_id)]})
            assert answer.error_code == 0
            await asyncio.sleep(0.01)
        answer = await commit(table, 0, {"a": {0: [[]]}})
        assert answer.error_code == TableErrorCode.STAGED_ROWS_MISSING
        assert "run the batch again" in answer.error_message
        answer = await commit(table, 8, {"a": {0: [[]]}})
        assert answer.error_code == 0
        assert await logged(table, 1) == [8]
