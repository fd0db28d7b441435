"""Writes that name the definition that their rows were made for, and that ask for the number of rows that existed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.table.digest import digest_of
from headrace.tablelayer.server.bucket import log_bucket
from headrace.tablelayer.server.services import Services
from headrace.tablelayer.tests.server.tables import Table, tables, until

COLUMNS = "id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED"
DELETE = [ChangeType.DELETE]


async def put(table: Table, batch: bytes, *, counted: bool = True, **asked: Any) -> m.WrittenBucket:
    answer = await table.broker.send(
        m.PutRowsRequest(
            table_id=table.table_id,
            acks=-1,
            timeout_ms=10_000,
            definition_digest=digest_of(table.definition.to_json()),
            counted=counted,
            buckets=[m.WriteBucket(bucket=0, batch=batch)],
            **asked,
        )
    )
    assert answer.error_code == 0, answer.error_message
    return answer.buckets[0]


async def append(table: Table, batch: bytes) -> m.WrittenBucket:
    answer = await table.broker.send(
        m.AppendRowsRequest(
            table_id=table.table_id,
            acks=-1,
            timeout_ms=10_000,
            definition_digest=digest_of(table.definition.to_json()),
            buckets=[m.WriteBucket(bucket=0, batch=batch)],
        )
    )
    assert answer.error_code == 0, answer.error_message
    return answer.buckets[0]


@pytest.mark.parametrize("few", [True, False])
async def test_a_repetition_is_counted_as_the_first_time(tmp_path: Path, few: bool) -> None:
    """The row is gone when a DELETE is sent again because its answer was lost."""
    async with tables(tmp_path) as made:
        table = await made.create(COLUMNS)
        await table.put(("+", {"id": 1, "name": "a"}))
        table.partition.hooks.services.has_put = few
        batches = [
            table.batch([{"id": key, "name": None}], DELETE, producer_id=5, producer_epoch=0, base_sequence=n)
            for n, key in enumerate((1, 2))
        ]
        first = [await put(table, batch) for batch in batches]
        assert [each.logged_count for each in first] == [1, 0]
        assert [await put(table, batch) for batch in batches] == first
        uncounted = await put(table, batches[0], counted=False)
        assert (uncounted.end_offset, uncounted.logged_count) == (first[0].end_offset, -1)
        table.partition.delete_records(first[0].end_offset)
        assert [(await put(table, batch)).logged_count for batch in batches] == [-1, 0]


async def test_rows_for_an_older_definition_are_refused_unless_they_are_written(tmp_path: Path) -> None:
    async with tables(tmp_path) as made:
        table = await made.create(COLUMNS)
        written = table.batch([{"id": 1, "name": "a"}], producer_id=5, producer_epoch=0, base_sequence=0)
        late = table.batch([{"id": 2, "name": "b"}], producer_id=5, producer_epoch=0, base_sequence=1)
        first = await put(table, written)
        assert (first.error_code, first.logged_count) == (0, 1)
        altered = await table.alter("ADD COLUMN n INT")
        refused = await put(table, late)
        assert refused.error_code == TableErrorCode.SCHEMA_CHANGED, refused.error_message
        assert await put(table, written) == first
        assert [row["id"] for row in await altered.state()] == [1]
        assert (await put(altered, late)).error_code == 0


async def test_a_table_that_is_altered_while_a_write_waits_refuses_the_write(tmp_path: Path) -> None:
    """Otherwise a repetition would be refused, and the rows be written all the same."""
    async with tables(tmp_path) as made:
        table = await made.create(COLUMNS)
        bucket = table.partition.hooks
        batch = table.batch([{"id": 1, "name": "a"}], producer_id=5, producer_epoch=0, base_sequence=0)
        async with bucket.writing:
            first = asyncio.create_task(put(table, batch))
            await until(lambda: bucket._writing._waiters)
            altered = await table.alter("ADD COLUMN n INT")
            again = await put(table, batch)
        assert [each.error_code for each in (await first, again)] == [TableErrorCode.SCHEMA_CHANGED] * 2
        assert await altered.state() == []
        assert (await put(altered, batch)).error_code == 0


async def test_a_log_table_that_is_altered_while_a_write_is_checked_refuses_it_unless_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Services.run
    gates: list[asyncio.Event] = []

    async def wait_at_gate(checked: asyncio.Future[Any]) -> Any:
        gates.append(gate := asyncio.Event())
        await gate.wait()
        return await checked

    def run_to_gate(services: Services, work: Any, *given: Any) -> Any:
        future = run(services, work, *given)
        return wait_at_gate(future) if work is log_bucket._checked else future

    monkeypatch.setattr(Services, "run", run_to_gate)
    async with tables(tmp_path) as made:
        table = await made.create("id INT, name STRING")
        batches = [
            table.batch([{"id": 1, "name": "a"}], producer_id=producer, producer_epoch=0, base_sequence=0)
            for producer in (5, 6)
        ]
        writes = []
        for count, batch in enumerate((batches[0], batches[0], batches[1]), 1):
            writes.append(asyncio.create_task(append(table, batch)))
            await until(lambda count=count: len(gates) == count)
        gates[0].set()
        first = await writes[0]
        await table.alter("ADD COLUMN n INT")
        late = await append(table, batches[1])
        gates[1].set()
        gates[2].set()
        assert await writes[1] == first
        refused = await writes[2]
        assert [each.error_code for each in (first, late, refused)] == [
            0, TableErrorCode.SCHEMA_CHANGED, TableErrorCode.SCHEMA_CHANGED,
        ]  # fmt: skip
        assert table.partition.log.log_end_offset == 1


@pytest.mark.parametrize("columns", [COLUMNS, "id INT, name STRING"])
async def test_rows_whose_leader_ends_before_they_are_acknowledged_are_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """The next leader may have them."""
    async with tables(tmp_path) as made:
        table = await made.create(columns)
        partition = table.partition
        monkeypatch.setattr(partition.hooks, "high_watermark_candidate", lambda offset: None)
        batch = table.batch([{"id": 1, "name": "a"}])
        writing = asyncio.create_task((put if columns is COLUMNS else append)(table, batch))
        await until(lambda: partition.log.log_end_offset == 1)
        partition.closed = True
        partition.wake()
        answer = await writing
        partition.closed = False
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert "logged at offset 0, but not acknowledged" in answer.error_message
