"""Log tables whose rows are in remote storage: scanned with columns and filters, counted, limited, read by Kafka."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from headrace.broker.remote.chunks import CHUNK_BYTES
from headrace.tablelayer.server.bucket.tasks import Kind
from headrace.tablelayer.tests.server.tables import Table, Tables, tables
from headrace.tablelayer.tests.server.test_filters import answers, parts

ROWS = 400
GIVEN = {
    "remote.storage.enable": "true",
    "segment.bytes": "200000",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}


@asynccontextmanager
async def tiered(tmp_path: Path) -> AsyncIterator[Tables]:
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.directory": str(tmp_path / "remote"),
        "log.initial.task.delay.ms": "3600000",
    }
    async with tables(tmp_path / "data", settings) as made:
        yield made


async def filled(made: Tables) -> Table:
    table = await made.create("id BIGINT, wide STRING, kind INT", given=GIVEN)
    for first in range(0, ROWS, 10):
        rows = [{"id": at, "wide": f"{at}" * 1000, "kind": first} for at in range(first, first + 10)]
        await table.append(rows)
    partition = table.partition
    await partition.flush(made.broker.context.executor)
    remote = made.broker.broker._cluster.remote
    assert remote is not None
    await remote.turn()
    partition.apply_retention(made.broker.context.clock.time_ms())
    assert partition.log.log_start_offset == 0
    assert partition.log.local_start_offset > ROWS // 2
    return table


async def rows_of(table: Table, *columns: str) -> list[dict[str, object]]:
    schema = table.definition.schema
    arrow = pa.schema([schema.column(each).field() for each in columns]) if columns else schema.arrow()
    batches = await table.scan(columns=columns or None)
    return [row for batch in batches for row in batch.to_record_batch(arrow).to_pylist()]


async def test_rows_are_scanned_counted_and_shown_as_if_they_were_local(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        table = await filled(made)
        whole = await rows_of(table)
        assert [row["id"] for row in whole] == list(range(ROWS))
        assert whole[7]["wide"] == "7" * 1000
        narrow = await rows_of(table, "id")
        assert narrow == [{"id": at} for at in range(ROWS)]
        assert await table.count() == ROWS
        assert [row["id"] for row in await table.limit(ROWS - 5)] == list(range(5, ROWS))
        shown = await made.broker.fetch("default.t", 0, max_wait_ms=10_000)
        assert shown.error_code == 0
        assert shown.records


async def wide_rows(made: Tables) -> Table:
    """Five batches of 8 MiB in one segment, which is remote, then one that is local."""
    table = await made.create(
        "id BIGINT, wide BYTES",
        given={**GIVEN, "segment.bytes": str(80 << 20), "max.message.bytes": str(16 << 20)},
    )
    for at in range(5):
        await table.append([{"id": at, "wide": bytes([at]) * (8 << 20)}])
    await table.append([{"id": 5, "wide": b""}])
    partition = table.partition
    partition.log.roll()
    await table.append([{"id": 6, "wide": b""}])
    await partition.flush(made.broker.context.executor)
    remote = made.broker.broker._cluster.remote
    assert remote is not None
    await remote.turn()
    partition.apply_retention(made.broker.context.clock.time_ms())
    assert partition.log.local_start_offset == 6
    return table


def fetched_bytes(made: Tables) -> int:
    remote = made.broker.broker._cluster.remote
    assert remote is not None
    return remote.chunks.fetched_bytes


async def test_columns_that_lie_far_apart_are_fetched_alone(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        table = await wide_rows(made)
        narrow = await rows_of(table, "id")
        assert [row["id"] for row in narrow] == list(range(7))
        assert fetched_bytes(made) < 16 * CHUNK_BYTES, "all of it was fetched"


async def test_a_filtered_projection_is_the_same_for_remote_and_local_rows(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        table = await filled(made)
        schema = pa.schema([table.definition.schema.column(each).field() for each in ("id", "kind")])
        for expression, wanted in (
            (pc.field("kind") == 120, range(120, 130)),
            ((pc.field("kind") < 200) & (pc.field("id") >= 177), range(177, 200)),
            (pc.field("wide") == "39" * 1000, [39]),
            (pc.field("id") < 0, []),
        ):
            found = [
                row
                async for answer in answers(table, 0, expression, ["id", "kind"])
                for part in parts(answer)
                for row in part.to_record_batch(schema).to_pylist()
            ]
            assert found == [{"id": at, "kind": at // 10 * 10} for at in wanted]


async def test_columns_of_batches_without_matching_rows_are_not_fetched(
    tmp_path: Path,
) -> None:
    async with tiered(tmp_path) as made:
        table = await wide_rows(made)
        arrow = table.definition.schema.arrow()
        found = [
            row["id"]
            async for answer in answers(table, 0, pc.field("id") == 3, None, max_bytes=32 << 20)
            for part in parts(answer)
            for row in part.to_record_batch(arrow).to_pylist()
        ]
        assert found == [3]
        assert fetched_bytes(made) < 24 * CHUNK_BYTES, "columns were fetched of rows that are not given"


KEYED = "id BIGINT NOT NULL, wide STRING, PRIMARY KEY (id)"


async def keyed(made: Tables, rounds: int = 12, **options: str) -> Table:
    """Every key in every round, a segment a round."""
    table, noise = await made.create(KEYED, given=GIVEN, **options), Random(1)
    for _ in range(rounds):
        await table.put(*(("+", {"id": at, "wide": noise.randbytes(2500).hex()}) for at in range(40)))
    return table


async def tend(made: Tables, table: Table) -> None:
    partition = table.partition
    await partition.flush(made.broker.context.executor)
    remote = made.broker.broker._cluster.remote
    assert remote is not None
    await remote.turn()
    partition.apply_retention(made.broker.context.clock.time_ms())


async def test_old_changes_of_a_primary_key_table_are_in_remote_storage(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        table = await keyed(made)
        partition = table.partition
        await tend(made, table)
        assert partition.log.local_start_offset == 0, "the records to replay are gone"
        before = await table.changelog()
        past = partition.high_watermark // 2
        then = await table.state(as_of=past)
        partition.hooks._start_flush()
        await partition.hooks._tasks.wait(Kind.FLUSH)
        await tend(made, table)
        assert partition.log.local_start_offset > past
        assert await table.changelog() == before
        assert await table.state(as_of=past) == then
        assert await table.count() == 40


async def test_a_store_that_is_lost_is_built_again_from_remote_storage(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        table = await keyed(made)
        table.partition.hooks._start_flush()
        await table.partition.hooks._tasks.wait(Kind.FLUSH)
        await tend(made, table)
        assert table.partition.log.local_start_offset > 0
        directory = table.partition.hooks.directory
        rows = await table.state()
    shutil.rmtree(directory)
    async with tiered(tmp_path) as made:
        table = await made.open()
        assert await table.state() == rows
        assert len(rows) == 40
