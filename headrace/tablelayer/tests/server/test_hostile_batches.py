"""Strangers' Arrow batches are refused with an error and no change, or every reader reads them back.

The readers are the oracle. An acknowledged batch is the same in a full scan, in a scan of each column alone, in a
filtered scan, in the state of a primary-key table, and after a replay; a Kafka consumer gets each row.
"""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.header import iter_headers
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ArrowBatch, encode_arrow_batch
from headrace.tablelayer.model.batches.ipc import (
    BYTES_PER_MESSAGE_MAX,
    ROWS_PER_MESSAGE_MAX,
    decode_ipc,
    encode_ipc,
)
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.merge.writes import ClientWrite
from headrace.tablelayer.server.read import bucket_state as reads
from headrace.tablelayer.server.read.wanted import Wanted
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.tests.model.ipc_mutations import Message, bomb, framed, mutated, with_field
from headrace.tablelayer.tests.model.random_rows import array_of
from headrace.tablelayer.tests.server.tables import TIMEOUT_MS, Table, tables, until
from simulator.files import copy_as_killed

COLUMNS = (
    "id INT NOT NULL, b BOOLEAN, s STRING, c CHAR(4), y BYTES, f BINARY(3), d DECIMAL(9, 2), x DOUBLE, t TIME(3), "
    "u TIME(6), at TIMESTAMP(3), z TIMESTAMP_LTZ(6), day DATE, l ARRAY<INT>, r ROW<a STRING, n BIGINT>, "
    "k MAP<STRING, INT>"
)
KEYED = COLUMNS + ", PRIMARY KEY (id) NOT ENFORCED"
_UNKNOWN = int(ErrorCode.UNKNOWN_SERVER_ERROR)


def value(kind: TypeKind, n: int) -> Any:
    match kind:
        case TypeKind.STRING:
            return f"text {n}"
        case TypeKind.CHAR:
            return "ü" * (n % 4)
        case TypeKind.BYTES:
            return bytes(n)
        case TypeKind.BINARY:
            return b"abc"
        case TypeKind.DECIMAL:
            return Decimal(f"{n}.25")
        case TypeKind.BOOLEAN:
            return n % 2 == 0
        case TypeKind.ARRAY:
            return list(range(n % 5))
        case TypeKind.ROW:
            return ("é", n)
        case TypeKind.MAP:
            return [(f"k{each}", each) for each in range(n % 3)]
    return n


def filled(table: Table, count: int, start: int = 0) -> pa.RecordBatch:
    """Rows with values of every type, and nulls in every column that may have them."""
    columns = [
        array_of(
            column.type,
            [
                None if column.nullable and n % 7 == 3 else value(column.type.kind, n)
                for n in range(start, start + count)
            ],
        )
        for column in table.definition.schema.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.definition.schema.arrow())


def printed(batch: pa.RecordBatch) -> list[str]:
    """A text per row: times as numbers, for Python has no year 10,000."""
    columns = [
        column.view(f"int{column.type.bit_width}") if pa.types.is_temporal(column.type) else column
        for column in batch.columns
    ]
    return [repr(row) for row in pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()]


async def send(table: Table, batch: bytes, *, put: bool = False) -> Any:
    if put:
        return await table.put_batch(batch)
    answer = await table.broker.send(
        m.AppendRowsRequest(
            table_id=table.table_id,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            buckets=[m.WriteBucket(bucket=0, batch=batch)],
        )
    )
    return answer if answer.error_code else answer.buckets[0]


async def scanned(table: Table, offset: int, column: str | None, expression: Any = None) -> list[Any]:
    """(offset, change type, row) of everything from an offset on; of one column, filtered."""
    schema = table.definition.schema
    answer = await table.broker.send(
        m.ScanLogRequest(
            table_id=table.table_id,
            columns=None if column is None else [schema.column(column).id],
            buckets=[m.ScanLogBucket(bucket=0, offset=offset)],
            schema_id=schema.schema_id,
            filter=None if expression is None else encode_filter(expression, schema),
            row_filter=expression is not None,
        )
    )
    (result,) = answer.buckets
    assert result.error_code == 0, (column, expression, result.error_message)
    found = []
    arrow = schema.arrow() if column is None else pa.schema([schema.column(column).field()])
    records = memoryview(bytes(result.records or b""))
    while records:
        batch = ArrowBatch.parse(records)
        records = records[batch.header.size :]
        decoded = batch.to_record_batch(arrow, untrusted=True)
        changes = [0] * decoded.num_rows if batch.change_types is None else batch.change_types.tolist()
        deltas = range(decoded.num_rows) if batch.offset_deltas is None else batch.offset_deltas.tolist()
        for delta, change, row in zip(deltas, changes, printed(decoded), strict=True):
            found.append((batch.header.base_offset + delta, change, row))
    return found


async def read_by_everybody(table: Table, offset: int) -> list[Any]:
    """Return the log's rows from an offset on; AssertionError unless all readers agree on them."""
    whole = await scanned(table, offset, None)
    for column in table.definition.schema.names:
        alone = await scanned(table, offset, column)
        assert [each[:2] for each in alone] == [each[:2] for each in whole], column
    kept = await scanned(
        table, offset, None, (pc.field("id") > pa.scalar(-(1 << 31), pa.int32())) | pc.field("s").is_null()
    )
    low = await scanned(table, offset, None, pc.field("id") == pa.scalar(-(1 << 31), pa.int32()))
    assert sorted({*kept, *low}) == sorted(whole)
    consumed, at = 0, offset
    while True:
        answer = await table.broker.fetch(table.definition.path.topic, at)
        assert answer.error_code == 0
        if not answer.records:
            break
        for position, header in iter_headers(answer.records):
            consumed += len(decode_records(memoryview(answer.records)[position : position + header.size]))
            at = header.next_offset
    shown = [change for _, change, _ in whole if change != 2]
    assert consumed == len(shown)
    return whole


async def attack(table: Table, rng: np.random.Generator, *, put: bool, times: int) -> tuple[int, int]:
    """Send that many mutated batches; return (acknowledged, refused)."""
    taken = refused = 0
    for _ in range(times):
        count = int(rng.choice([0, 1, 3, 20, 70]))
        compression = ArrowCompression(rng.choice(list(ArrowCompression)))
        changes = rng.choice([3, 3, 3, 4], count).astype(np.uint8) if put else None
        honest = encode_arrow_batch(
            filled(table, count, int(rng.integers(60))), schema_id=table.definition.schema.schema_id,
            change_types=changes, compression=compression,
        )  # fmt: skip
        name, message = mutated(ArrowBatch.parse(honest).message, rng)
        end = table.partition.log.log_end_offset
        answer = await send(table, framed(honest, message), put=put)
        what = (name, count, compression, answer.error_code, answer.error_message)
        if answer.error_code:
            refused += 1
            assert answer.error_code != _UNKNOWN, what
            assert answer.error_message, what
            assert table.partition.log.log_end_offset == end, what
        else:
            taken += 1
            try:
                await read_by_everybody(table, end)
            except Exception as error:
                raise AssertionError(what) from error
    return taken, refused


async def state(table: Table) -> list[str]:
    """The state of a primary-key table, by a snapshot scan."""
    answer = await table.broker.send(
        m.ScanSnapshotRequest(
            table_id=table.table_id, bucket=0, scan_id=m.OPEN_SCAN, max_bytes=1 << 30,
            schema_id=table.definition.schema.schema_id,
        )
    )  # fmt: skip
    assert answer.error_code == 0, answer.error_message
    assert not answer.has_more
    return printed(decode_ipc(bytes(answer.rows), table.definition.schema.arrow(), untrusted=True))


SEED = random.Random().getrandbits(32)


async def test_r1_7_a_mutated_append_is_refused_or_readable_by_all(tmp_path: Path) -> None:
    print("seed", SEED)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        taken, refused = await attack(table, np.random.default_rng(SEED), put=False, times=250)
        assert taken
        assert refused > 50
        honest = encode_arrow_batch(
            filled(table, 3), schema_id=table.definition.schema.schema_id, change_types=None
        )
        assert (await send(table, bytes(honest))).error_code == 0


async def test_r1_7_a_mutated_put_is_refused_or_readable_and_replayable(tmp_path: Path) -> None:
    print("seed", SEED)
    async with tables(tmp_path / "a") as all_tables:
        table = await all_tables.create(KEYED)
        taken, refused = await attack(table, np.random.default_rng(SEED + 1), put=True, times=120)
        assert taken
        assert refused > 25
        before = await state(table)
        log = await read_by_everybody(table, 0)
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    for store in (tmp_path / "b").rglob("CURRENT"):  # without its files a store is replayed from the log
        for each in store.parent.iterdir():
            each.unlink()
    async with tables(tmp_path / "b") as all_tables:
        table = await all_tables.open()
        assert await state(table) == before
        assert await read_by_everybody(table, 0) == log


async def refused(
    table: Table, batch: bytes, *words: str, put: bool = False, code: int | None = None
) -> None:
    end, before = table.partition.log.log_end_offset, await table.scan()
    answer = await send(table, batch, put=put)
    assert answer.error_code == (TableErrorCode.INVALID_ROW if code is None else code), answer.error_message
    for word in words:
        assert word in answer.error_message
    assert table.partition.log.log_end_offset == end
    assert len(await table.scan()) == len(before)


@pytest.mark.parametrize("compression", [ArrowCompression.ZSTD, ArrowCompression.LZ4_FRAME])
async def test_compression_buys_no_more_bytes_than_a_request_can_carry(
    tmp_path: Path, compression: ArrowCompression
) -> None:
    async with tables(tmp_path) as all_tables:
        log = await all_tables.create("y BYTES", name="log")
        keyed = await all_tables.create("id INT, y BYTES, PRIMARY KEY (id) NOT ENFORCED", name="keyed")
        for table, put in ((log, False), (keyed, True)):
            row = {"id": 1, "y": b"y" * 64} if put else {"y": b"y" * 64}
            honest = table.batch([row], [3] if put else None, compression=compression)
            message = Message(ArrowBatch.parse(honest).message)
            size = BYTES_PER_MESSAGE_MAX + 1
            message.buffers[-1] = bomb(message.codec, size)
            await refused(table, framed(honest, message.encoded()), "without compression", put=put)
            # The same check stands in front of the staging area.
            with pytest.raises(Exception, match="without compression"):
                table.partition.hooks.check_write(
                    ClientWrite(None, memoryview(framed(honest, message.encoded())))
                )


async def test_r1_7_rows_of_a_bit_each_are_bounded_too(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("b BOOLEAN")
        honest = table.batch([{"b": True}], compression=ArrowCompression.ZSTD)
        for count in (ROWS_PER_MESSAGE_MAX + 1, 300_000_000):
            message = Message(ArrowBatch.parse(honest).message)
            message.row_count, message.nodes = count, [[count, 0]]
            message.buffers[-1] = bomb(message.codec, (count + 7) // 8)
            batch = with_field(framed(honest, message.encoded()), 57, ">i", count)
            batch = with_field(batch, 23, ">i", count - 1)
            assert len(batch) < 4000
            await refused(table, batch, f"{count} rows", str(ROWS_PER_MESSAGE_MAX))


async def test_r1_7_entries_of_nested_values_count_too(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("l ARRAY<BOOLEAN>")
        honest = table.batch([{"l": [True]}], compression=ArrowCompression.ZSTD)
        message, count = Message(ArrowBatch.parse(honest).message), BYTES_PER_MESSAGE_MAX
        message.nodes = [[1, 0], [count, 0]]
        message.buffers[1] = struct.pack("<qii", -1, 0, count)
        message.buffers[-1] = bomb(message.codec, count // 8)
        await refused(table, framed(honest, message.encoded()), f"{count + 1} values")


async def test_a_batch_as_large_as_it_may_be_is_taken_and_read(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("b BOOLEAN")
        full = pa.record_batch([pa.repeat(pa.scalar(True), ROWS_PER_MESSAGE_MAX)], ["b"])
        schema_id = table.definition.schema.schema_id
        batch = encode_arrow_batch(
            full, schema_id=schema_id, change_types=None, compression=ArrowCompression.ZSTD
        )
        assert (await send(table, bytes(batch))).error_code == 0
        (stored,) = await table.scan()
        assert stored.to_record_batch(table.definition.schema.arrow()).equals(full)


async def test_a_surplus_column_and_buffers_that_are_not_their_own(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT NOT NULL, s STRING")
        honest = table.batch([{"id": n, "s": "x" * 9} for n in range(5)])
        original = ArrowBatch.parse(honest).message

        def changed(edit: Any) -> bytes:
            message = Message(original)
            places, body = message.placed()
            size = edit(message, places)
            return framed(honest, message.encoded(places, body, size))

        def surplus(message: Message, places: list[list[int]]) -> None:
            message.nodes.append([5, 0])
            places += [[0, 0], [0, 20]]

        def behind(message: Message, places: list[list[int]]) -> int:
            return places[-1][0]  # the last buffer lies behind the body that is declared

        def shared(message: Message, places: list[list[int]]) -> None:
            places[3] = list(places[1])

        def unaligned(message: Message, places: list[list[int]]) -> None:
            places[-1] = [places[-1][0] + 1, places[-1][1]]

        await refused(table, changed(surplus), "its schema has 2")
        await refused(table, changed(behind), "body")
        await refused(table, changed(shared), "one behind the other")
        await refused(table, changed(unaligned), "multiples of 8")
        view = pa.record_batch(
            [pa.array([1], pa.int32()), pa.array(["x" * 30], pa.string_view())], ["id", "s"]
        )
        await refused(table, framed(table.batch([{"id": 1}]), bytes(encode_ipc(view))), "buffers")
        assert await scanned(table, 0, "s") == []


@pytest.mark.parametrize(
    ("position", "form", "value", "word"),
    [
        (21, ">h", 0x10, "attributes"),  # a transaction would hold back every reader of committed records
        (21, ">h", 0x20, "attributes"),  # a marker would be read from the rows
        (21, ">h", 0x08, "attributes"),
        (43, ">q", -7, "producer id -7"),
        (67, ">b", 2, "compression"),
        (67, ">b", 9, "compression"),
        (23, ">i", 7, "last offset delta"),
        (57, ">i", 3, "last offset delta"),
        (69, ">i", 2, "change types"),
        (73, ">i", -1, "statistics"),
    ],
)
async def test_header_fields_that_lie(
    tmp_path: Path, position: int, form: str, value: int, word: str
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT NOT NULL")
        batch = with_field(table.batch([{"id": 1}, {"id": 2}]), position, form, value)
        answer = await send(table, batch)
        assert answer.error_code not in (0, _UNKNOWN)
        assert word in answer.error_message
        assert table.partition.log.log_end_offset == 0


async def test_statistics_of_a_client_are_not_believed(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT NOT NULL, s STRING")
        batch = table.batch([{"id": 1, "s": "a"}], statistics=b"\x01" + bytes(range(40)))
        assert (await send(table, batch)).error_code == 0
        found = await scanned(table, 0, None, pc.field("id") == pa.scalar(1, pa.int32()))
        assert len(found) == 1


async def test_a_write_reserves_its_decompressed_size(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        for columns, put in (("s STRING", False), ("s STRING, PRIMARY KEY (s) NOT ENFORCED", True)):
            table = await all_tables.create(columns, name=f"t{put}")
            reserved = []
            budget = table.partition.hooks.services.budget
            reserve = budget.reserve

            def noted(size: int, reserve: Any = reserve, reserved: list[int] = reserved) -> None:
                reserved.append(size)
                reserve(size)

            budget.reserve = noted
            batch = table.batch(
                [{"s": "s" * 1_000_000}], [3] if put else None, compression=ArrowCompression.ZSTD
            )
            assert len(batch) < 2000
            assert (await send(table, batch, put=put)).error_code == 0
            budget.reserve = reserve
            assert 1_000_000 <= reserved[0] < 1_010_000
            await until(lambda budget=budget: budget.used == 0)


async def test_r1_7_keys_are_bounded_before_they_are_decompressed(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id STRING, n INT, PRIMARY KEY (id) NOT ENFORCED")
        await table.put(("+", {"id": "a", "n": 1}))
        key = pa.record_batch(
            [pa.array(["a" * 64])], pa.schema([table.definition.schema.column("id").field()])
        )
        message = Message(bytes(encode_ipc(key, ArrowCompression.ZSTD)))
        message.buffers[-1] = bomb(message.codec, BYTES_PER_MESSAGE_MAX + 1)
        answer = await table.broker.send(
            m.LookupRequest(
                table_id=table.table_id, buckets=[m.LookupBucket(bucket=0, keys=bytes(message.encoded()))]
            )
        )
        (result,) = answer.buckets
        assert result.error_code == TableErrorCode.INVALID_KEY
        assert "without compression" in result.error_message
        assert await table.lookup({"id": "a"}) == [{"id": "a", "n": 1}]


async def test_keys_that_are_larger_than_they_look_are_left_to_a_thread(tmp_path: Path) -> None:
    stored_message.warm()
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id STRING, PRIMARY KEY (id) NOT ENFORCED")
        bucket, schema = table.partition.hooks, table.definition.schema
        for size, is_quick in ((64, True), (100_000, False)):
            key = pa.record_batch([pa.array(["a" * size])], schema.arrow())
            keys = memoryview(bytes(encode_ipc(key, ArrowCompression.ZSTD)))
            assert len(keys) < 400
            wanted, room = Wanted(schema, None), Room(1 << 20, schema.row_cost)
            quick = reads.lookup_in_memory(bucket.tablet.kv, bucket.versions, keys, wanted, 10, room)
            assert (quick is not None) is is_quick
            found, _ = reads.lookup(bucket.tablet.kv, bucket.versions, keys, wanted, 10, room)
            assert found == b"\0"
