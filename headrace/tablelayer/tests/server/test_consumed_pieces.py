"""Kafka consumers get a table's batches piece by piece, and readers pass over unreadable batches."""

from __future__ import annotations

import gc
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from headrace.broker.log.partition_log import AppendOrigin
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.header import BatchHeader, iter_headers, verify_crc
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ArrowBatch
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.tests.model.ipc_mutations import Message, bomb, framed, with_field
from headrace.tablelayer.tests.server.tables import Table, tables, until

PIECE = 1 << 20


async def fetched(table: Table, offset: int, **options: Any) -> list[tuple[BatchHeader, Any]]:
    answer = await table.broker.fetch(table.definition.path.topic, offset, **options)
    assert answer.error_code == 0, answer.error_code
    found = []
    for position, header in iter_headers(answer.records):
        batch = memoryview(answer.records)[position : position + header.size]
        assert verify_crc(batch)
        found.append((header, decode_records(batch)))
    return found


def smuggled(table: Table, batch: bytes) -> None:
    """Append a batch to the log unchecked, as a version without checks might have accepted it."""
    table.partition.append(bytearray(batch), AppendOrigin.EXTENSION)


async def test_r17_7_a_large_batch_is_given_in_pieces_that_fit_into_the_fetch(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, text STRING")
        await table.append([{"id": -1, "text": "first"}])
        await table.append([{"id": n, "text": "x" * 500} for n in range(12_000)])
        await table.append([{"id": -2, "text": "last"}])
        for room in (100_000, PIECE, 3 * PIECE):
            ids: list[int] = []
            offset, answers = 0, 0
            while batches := await fetched(table, offset, partition_max_bytes=room):
                assert sum(header.size for header, _ in batches) <= room
                for header, records in batches:
                    assert records.offsets.tolist() == list(range(offset, header.next_offset))
                    ids += [json.loads(value)["id"] for value in records.values()]
                    offset = header.next_offset
                answers += 1
            assert ids == [-1, *range(12_000), -2]
            assert answers >= 12_000 * 520 / room
        for offset in (1, 6_000, 11_999, 12_000):
            header, _ = (await fetched(table, offset))[0]
            assert header.base_offset <= offset < header.next_offset
            assert header.record_count < 3_000


async def test_r17_7_a_row_that_is_larger_than_the_fetch_gets_through(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, text STRING", given={"max.message.bytes": "9000000"})
        await table.append([{"id": 1, "text": "x" * 3_000_000}, {"id": 2, "text": "y" * 3_000_000}])
        for offset in (0, 1):
            ((header, records),) = await fetched(table, offset, partition_max_bytes=1)
            assert (header.base_offset, header.record_count) == (offset, 1)
            assert json.loads(records.values()[0])["id"] == offset + 1


async def test_images_of_an_update_stay_together(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "id INT, text STRING, PRIMARY KEY (id) NOT ENFORCED",
            kafka_changelog="full",
            **{"kafka_value-format": "debezium-json"},
        )
        for text in "ab":
            await table.put(*(("+", {"id": n, "text": text * 400}) for n in range(4_001)))
        offset, updates = 4_001, 0
        pieces = 0
        while batches := await fetched(table, offset):
            for header, records in batches:
                for value in records.values():
                    envelope = json.loads(value)
                    assert envelope["op"] == "u"
                    assert envelope["before"]["text"] == "a" * 400
                    updates += 1
                offset, pieces = header.next_offset, pieces + 1
        assert updates == 4_001
        assert pieces > 3


async def test_a_batch_of_very_many_rows_costs_a_consumer_a_piece(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("b BOOLEAN")
        honest, count = table.batch([{"b": True}], compression=ArrowCompression.ZSTD), 300_000_000
        message = Message(ArrowBatch.parse(honest).message)
        message.row_count, message.nodes = count, [[count, 0]]
        message.buffers[-1] = bomb(message.codec, (count + 7) // 8)
        batch = with_field(framed(honest, message.encoded()), 57, ">i", count)
        smuggled(table, with_field(batch, 23, ">i", count - 1))
        for offset in (0, 123_456_789, count - 1):
            batches = await fetched(table, offset)
            assert sum(header.size for header, _ in batches) <= PIECE
            header, records = batches[0]
            assert header.base_offset <= offset < header.next_offset
            assert set(records.values()) == {b'{"b":false}'}


async def test_bytes_held_by_consumers_are_bounded(tmp_path: Path) -> None:
    limits = Limits(consumed_bytes_max=4 * PIECE, transcoded_cache_bytes=0)
    async with tables(tmp_path, limits=limits) as all_tables:
        table = await all_tables.create("id INT, text STRING")
        await table.append([{"id": n, "text": "x" * 500} for n in range(12_000)])
        bucket = table.partition.hooks
        consumed = bucket.services.pieces.consumed
        held = await bucket.fetch(0, 50 * PIECE, True)
        assert 3 * PIECE < held.size <= 4 * PIECE
        assert consumed.used >= held.size
        assert [len((await bucket.fetch(0, 50 * PIECE, True)).parts) for _ in range(2)] == [1, 1]
        assert (await bucket.fetch(0, 50 * PIECE, False)).parts == ()
        del held

        def is_let_go() -> bool:
            gc.collect()
            return bool(consumed.used == 0)

        await until(is_let_go, "threads too let go of what they have handed over")
        assert len((await bucket.fetch(0, 50 * PIECE, True)).parts) > 1


def lying(table: Table) -> list[bytes]:
    """Return batches that do not fit the table: one column too many, metadata of nothing, invalid text."""
    honest = table.batch([{"id": 8, "text": "eight"}, {"id": 9, "text": "nine"}])
    message = Message(ArrowBatch.parse(honest).message)
    message.nodes = [*message.nodes, [2, 0]]
    message.buffers = [*message.buffers, b"", bytes(8)]
    surplus = framed(honest, message.encoded())
    broken = bytearray(honest)
    at = len(honest) - len(ArrowBatch.parse(honest).message)
    broken[at + 8 : at + 40] = bytes(32)
    rubbish = with_field(broken, 61, ">i", 2)
    return [surplus, rubbish]


async def test_r17_8_readers_skip_unreadable_batches_and_report_each_once(
    tmp_path: Path, own_log: pytest.LogCaptureFixture
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, text STRING")
        schema = table.definition.schema
        await table.append([{"id": 0, "text": "zero"}])
        for batch in lying(table):
            smuggled(table, batch)
        await table.append([{"id": 1, "text": "one"}])

        async def consumed() -> list[int]:
            ids: list[int] = []
            offset = 0
            while batches := await fetched(table, offset):
                for header, records in batches:
                    ids += [json.loads(value)["id"] for value in records.values()]
                    offset = header.next_offset
            assert offset == 6
            return ids

        async def scanned(**options: Any) -> list[int]:
            ids: list[int] = []
            offset = 0
            while offset < 6:
                request = m.ScanLogRequest(
                    table_id=table.table_id, schema_id=schema.schema_id, columns=[0],
                    buckets=[m.ScanLogBucket(bucket=0, offset=offset)], **options,
                )  # fmt: skip
                (result,) = (await table.broker.send(request)).buckets
                assert result.error_code == 0, result.error_message
                before, offset = offset, max(offset, result.filtered_end_offset)
                records = memoryview(bytes(result.records or b""))
                while records:
                    batch = ArrowBatch.parse(records)
                    ids += [row["id"] for row in table.rows(batch.message, ["id"])]
                    records, offset = records[batch.header.size :], batch.header.next_offset
                assert offset > before
            return ids

        condition = encode_filter(pc.field("id") >= 0, schema)
        with own_log.at_level(logging.ERROR):
            assert await scanned() == [0, 1]
            assert await scanned(filter=condition, row_filter=True) == [0, 1]
            assert await consumed() == [0, 1]
            assert await consumed() == [0, 1]
            assert [row["id"] for row in await table.limit(10)] == [0, 1]
        told = [record.getMessage() for record in own_log.records]
        assert [text.split(":")[1].strip() for text in told] == [
            "the batch at offsets 1 to 2 cannot be read; readers skip it",
            "the batch at offsets 3 to 4 cannot be read; readers skip it",
        ]
        assert table.partition.hooks.unreadable_batches == 2
