"""Writes that name the definition that their rows were made for, and that ask for the number of rows that existed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.table.digest import digest_of
from headrace.tablelayer.tests.server.tables import Table, tables

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
