"""R17: a table as a Kafka topic, read and written by Kafka clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers, verify_crc
from headrace.tablelayer.tests.server.tables import Table, tables

COLUMNS = "id INT, name STRING, price DECIMAL(10, 2), PRIMARY KEY (id) NOT ENFORCED"


def row(key: int, name: str | None = None, price: str | None = None) -> dict[str, Any]:
    from decimal import Decimal

    return {"id": key, "name": name, "price": None if price is None else Decimal(price)}


async def consume(
    table: Table, offset: int = 0, partition: int = 0
) -> list[tuple[int, bytes | None, bytes | None, list[Any]]]:
    """Return (offset, key, value, headers) of all records, as a consumer reads them."""
    found = []
    while True:
        answer = await table.broker.fetch(table.definition.path.topic, offset, partition=partition)
        assert answer.error_code == 0
        if not answer.records:
            return found
        for position, header in iter_headers(answer.records):
            batch = memoryview(answer.records)[position : position + header.size]
            assert verify_crc(batch)
            records = decode_records(batch)
            for index, (at, key, value) in enumerate(
                zip(records.offsets.tolist(), records.keys(), records.values(), strict=True)
            ):
                if at >= offset:
                    found.append((at, key, value, records.headers(index)))
            offset = header.next_offset


def batch(*records: tuple[bytes | None, bytes | None], **options: Any) -> bytes:
    return build_batch([Record(key, value, (), 1000) for key, value in records], **options)


async def produce(table: Table, *records: tuple[Any, Any], partition: int = 0, **options: Any) -> Any:
    data = [
        tuple(None if part is None else json.dumps(part).encode() for part in record) for record in records
    ]
    return await table.broker.produce(
        table.definition.path.topic, batch(*data, **options), partition=partition
    )


async def test_a_batch_that_decompresses_to_more_than_allowed_is_refused(tmp_path) -> None:
    async with tables(tmp_path) as server:
        table = await server.create(COLUMNS)
        batch = build_batch([Record(b'{"id": 1}', b" " * (65 << 20))], compression=4)
        answer = await table.broker.produce(table.definition.path.topic, batch)
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await consume(table) == []


async def test_r17_12_the_records_of_a_table_are_not_bounded_by_max_message_bytes(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS, given={"max.message.bytes": "1000"})
        answer = await produce(table, (None, {"id": 1, "name": "x" * 3_000_000}))
        assert answer.error_code == 0, answer.error_message
        assert [len(each["name"]) for each in await table.state()] == [3_000_000]
        assert (await table.put(("+", row(2, "y" * 3_000_000)))).error_code == 0


async def test_r17_13_minus_zero_is_kept(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, d DOUBLE, f FLOAT, PRIMARY KEY (id) NOT ENFORCED")
        await table.broker.produce(
            table.definition.path.topic,
            batch((None, b'{"id":1,"d":-0,"f":-0.0}'), (None, b'{"id":2,"d":"-0","f":0}')),
        )
        assert str(await table.state()) == "[{'id': 1, 'd': -0.0, 'f': -0.0}, {'id': 2, 'd': -0.0, 'f': 0.0}]"
        assert [value for _, _, value, _ in await consume(table)] == [
            b'{"id":1,"d":-0,"f":-0}', b'{"id":2,"d":-0,"f":0}',
        ]  # fmt: skip


async def test_r17_1_a_keyed_table_looks_like_a_compacted_topic(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(1, "a", "1.50")), ("+", row(2)))
        await table.put(("+", row(1, "b")), ("-", row(2)))
        a, b = b'{"id":1,"name":"a","price":1.50}', b'{"id":1,"name":"b","price":null}'
        two = b'{"id":2,"name":null,"price":null}'
        assert await consume(table) == [
            (0, b'{"id":1}', a, []), (1, b'{"id":2}', two, []),
            (3, b'{"id":1}', b, []), (4, b'{"id":2}', None, []),
        ]  # fmt: skip
        assert [each[0] for each in await consume(table, 3)] == [3, 4]


async def test_r17_1_full_keeps_every_image_with_its_change_type(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS, kafka_changelog="full")
        await table.put(("+", row(1, "a")), ("+", row(1, "b")), ("-", row(1)))
        found = await consume(table)
        assert [each[3] for each in found] == [
            [("change-type", change)] for change in (b"+I", b"-U", b"+U", b"-D")
        ]
        assert [json.loads(each[2] or b"")["name"] for each in found] == ["a", "a", "b", "b"]


async def test_r17_1_a_batch_with_nothing_to_show_is_passed(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("-", row(1)))
        await table.put(("+", row(1)))
        answer = await table.broker.fetch("default.t", 0, partition_max_bytes=1)
        headers = [header for _, header in iter_headers(answer.records)]
        assert [(each.base_offset, each.last_offset_delta, each.record_count) for each in headers] == [
            (0, 0, 0)
        ]
        assert [each[0] for each in await consume(table)] == [1]


async def test_r17_2_values_are_upserts_and_nulls_deletes_wherever_the_client_sends_them(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS, buckets=3)
        values = [(None, {"id": key, "name": f"n{key}", "price": 0.25}) for key in range(20)]
        answer = await produce(table, *values, partition=1)
        assert answer.error_code == 0, answer.error_message
        states = [await table.state(bucket) for bucket in range(3)]
        assert sorted(each["id"] for state in states for each in state) == list(range(20))
        assert all(states)
        import pyarrow as pa

        from headrace.tablelayer.model.table.buckets import bucket_of

        for bucket, state in enumerate(states):
            rows = pa.RecordBatch.from_pylist(state, schema=table.definition.schema.arrow())
            assert set(bucket_of(table.definition, rows).tolist()) == {bucket}
        await produce(table, ({"id": 3}, None), (5, None), (None, {"id": 4, "name": "new"}), partition=2)
        everything = {each["id"]: each for bucket in range(3) for each in await table.state(bucket)}
        assert sorted(everything) == [key for key in range(20) if key not in (3, 5)]
        assert everything[4] == row(4, "new")


async def test_r17_2_a_retry_of_a_forwarded_batch_has_no_second_effect(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, name STRING", buckets=3, bucket_key=["id"])
        who = {"producer_id": 9, "producer_epoch": 0}
        values = [(None, {"id": key, "name": "x"}) for key in range(30)]
        first = await produce(table, *values, base_sequence=0, **who)
        second = await produce(table, *values, base_sequence=30, **who)
        assert (first.error_code, second.error_code) == (0, 0)
        again = await produce(table, *values, base_sequence=0, **who)
        assert (again.error_code, again.base_offset) == (0, first.base_offset)
        assert sum([await table.count(bucket) for bucket in range(3)]) == 60


BAD: Sequence[tuple[Any, Any, str]] = (
    (None, {"id": "x"}, "'id'"),
    (None, {"name": "no id"}, "'id'"),
    (None, {"id": 1, "price": 1.234}, "'price'"),
    (None, [1], "object"),
    (None, None, "key"),
    ("x", None, "'id'"),
)


@pytest.mark.parametrize(("key", "value", "words"), BAD)
async def test_r17_3_a_bad_record_fails_its_batch_with_its_index_and_column(
    tmp_path: Path, key: Any, value: Any, words: str
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS, buckets=2)
        answer = await produce(table, (None, {"id": 1}), (None, {"id": 2}), (key, value), (None, {"id": 3}))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert words in answer.error_message
        assert [each.batch_index for each in answer.record_errors] == [2]
        assert [await table.count(bucket) for bucket in (0, 1)] == [0, 0]


async def test_r17_3_nulls_and_unknown_fields_of_a_log_table(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, name STRING")
        await all_tables.broker.context.topics.alter_config(
            "default.t", {"table.kafka.unknown-fields": "fail"}
        )
        answer = await produce(table, (None, {"id": 1}), (None, None))
        assert (answer.error_code, answer.record_errors[0].batch_index) == (ErrorCode.INVALID_RECORD, 1)
        answer = await produce(table, (None, {"id": 1, "extra": 1}))
        assert "extra" in answer.error_message
        assert (await produce(table, (None, {"id": 1}))).error_code == 0
        assert await consume(table) == [(0, None, b'{"id":1,"name":null}', [])]


async def test_r17_3_deletes_of_a_table_without_them(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS, delete_behavior="DISABLE")
        answer = await produce(table, (None, {"id": 1}), (1, None))
        assert (answer.error_code, answer.record_errors[0].batch_index) == (ErrorCode.INVALID_RECORD, 1)
        assert await table.state() == []


async def test_r17_4_kafka_and_table_clients_see_the_same_rows_at_the_same_offsets(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id BIGINT, name STRING", bucket_key=["id"], buckets=2)
        for start in range(0, 60, 20):
            await produce(table, *((None, {"id": n, "name": f"ü{n}"}) for n in range(start, start + 20)))
        for bucket in range(2):
            seen = {
                at: json.loads(value or b"") for at, _, value, _ in await consume(table, partition=bucket)
            }
            scanned = {}
            for part in await table.scan(bucket=bucket):
                rows = part.to_record_batch(table.definition.schema.arrow()).to_pylist()
                scanned.update(
                    zip(range(part.header.base_offset, part.header.next_offset), rows, strict=False)
                )
            assert seen == scanned
            assert seen


async def test_ten_consumers_cost_one_transcoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from headrace.tablelayer.server.kafka_view import pieces as kafka_pieces

    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(*(("+", row(n)) for n in range(100)))
        calls = []
        real = kafka_pieces.to_kafka
        monkeypatch.setattr(kafka_pieces, "to_kafka", lambda *given: calls.append(1) or real(*given))
        answers = await asyncio.gather(*(table.broker.fetch("default.t", 0) for _ in range(10)))
        assert len({bytes(each.records) for each in answers}) == 1
        assert len(calls) == 1


async def test_a_fetch_respects_its_limit_with_at_least_one_batch(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        for start in range(0, 500, 100):
            await table.put(*(("+", row(n, "some text")) for n in range(start, start + 100)))
        one = len((await table.broker.fetch("default.t", 0, partition_max_bytes=1)).records)
        answer = await table.broker.fetch("default.t", 0, partition_max_bytes=3 * one)
        assert 0 < len(answer.records) <= 3 * one
        assert len(await consume(table)) == 500
