"""The Kafka view: every row becomes the record that R17 describes, and every record its row."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.records.decode import RecordColumns, decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import read_header, verify_crc, write_base_offset_and_epoch
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType, encode_arrow_batch
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.server.kafka_view.rows_to_records import to_kafka


def table(
    *columns: str, primary_key: tuple[str, ...] = (), bucket_key: tuple[str, ...] = (), **options: str
) -> TableDefinition:
    parsed = []
    for index, text in enumerate(columns):
        name, kind = text.split(" ", 1)
        nullable = not kind.endswith(" NOT NULL") and name not in primary_key
        parsed.append(Column(index, name, parse_type(kind.removesuffix(" NOT NULL")), nullable))
    named = {f"table.{name.replace('_', '.')}": value for name, value in options.items()}
    return TableDefinition(
        TablePath("db", "t"), Schema.of(parsed, primary_key), bucket_key=bucket_key, options=named
    )


PK = table("k BIGINT", "price DECIMAL(15,2)", "name STRING", primary_key=("k",))
TEXT_PK = table("k STRING", "n INT", primary_key=("k",))
TWO_PK = table("a BIGINT", "b STRING", "n INT", primary_key=("a", "b"))
LOG = table("k BIGINT", "name STRING NOT NULL")


def log_batch(
    definition: TableDefinition, rows: list[dict[str, Any]], changes: list[int] | None
) -> ArrowBatch:
    batch = pa.RecordBatch.from_pylist(rows, schema=definition.schema.arrow())
    types = None if changes is None else np.array(changes, np.uint8)
    buffer = encode_arrow_batch(batch, schema_id=1, change_types=types, timestamp_ms=1234)
    write_base_offset_and_epoch(buffer, 0, 100, 7)
    return ArrowBatch.parse(buffer)


def records(*given_records: tuple[bytes | None, bytes | None]) -> RecordColumns:
    return decode_records(build_batch([Record(key, value, (), 5) for key, value in given_records]))


def row(k: int, price: str | None = "1.50", name: str | None = "x") -> dict[str, Any]:
    return {"k": k, "price": None if price is None else Decimal(price), "name": name}


def test_r17_1_compact_leaves_update_before_out_and_makes_deletes_tombstones() -> None:
    changes = [ChangeType.INSERT, ChangeType.UPDATE_BEFORE, ChangeType.UPDATE_AFTER, ChangeType.DELETE]
    batch = log_batch(PK, [row(1), row(2), row(2, "9.00"), row(3)], changes)
    encoded = to_kafka(batch, PK)
    header = read_header(encoded)
    shown = decode_records(encoded)

    assert verify_crc(encoded)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (100, 103, 7)
    assert shown.offsets.tolist() == [100, 102, 103]
    assert shown.timestamps.tolist() == [1234] * 3
    assert shown.keys() == [b'{"k":1}', b'{"k":2}', b'{"k":3}']
    assert shown.values() == [
        b'{"k":1,"price":1.50,"name":"x"}',
        b'{"k":2,"price":9.00,"name":"x"}',
        None,
    ]


def test_r17_1_full_keeps_every_image_with_its_change_type() -> None:
    full = table("k BIGINT", "n INT", primary_key=("k",), kafka_changelog="full")
    changes = [ChangeType.INSERT, ChangeType.UPDATE_BEFORE, ChangeType.UPDATE_AFTER, ChangeType.DELETE]
    batch = log_batch(full, [{"k": i, "n": i} for i in range(4)], changes)
    shown = decode_records(to_kafka(batch, full))

    assert shown.offsets.tolist() == [100, 101, 102, 103]
    assert [shown.headers(i) for i in range(4)] == [
        [("change-type", kind)] for kind in (b"+I", b"-U", b"+U", b"-D")
    ]
    assert shown.values() == [b'{"k":%d,"n":%d}' % (i, i) for i in range(4)]


def test_a_batch_with_nothing_to_show_covers_its_offsets() -> None:
    for rows, changes in (([row(1)], [ChangeType.UPDATE_BEFORE]), ([], [])):
        batch = log_batch(PK, rows, changes)
        encoded = to_kafka(batch, PK)
        header = read_header(encoded)
        assert (header.record_count, header.base_offset, header.last_offset) == (0, 100, 100)
        assert len(decode_records(encoded)) == 0


def test_rows_of_a_log_table_have_no_key_unless_there_is_a_bucket_key() -> None:
    rows = [{"k": 1, "name": "a"}]
    assert decode_records(to_kafka(log_batch(LOG, rows, None), LOG)).keys() == [None]
    bucketed = table("k BIGINT", "name STRING", bucket_key=("name",))
    assert decode_records(to_kafka(log_batch(bucketed, rows, None), bucketed)).keys() == [b'{"name":"a"}']


def test_r17_2_values_upsert_and_nulls_delete_in_order() -> None:
    written = from_kafka(
        records(
            (b"ignored", b'{"k": 1, "price": "2.5", "name": "a"}'),
            (b'{"k": 9}', None),
            (None, b'{"k": 2, "price": 3}'),
            (b"7", None),
        ),
        PK,
    )
    assert written.change_types is not None
    assert written.change_types.tolist() == [3, 4, 3, 4]
    assert written.rows.to_pylist() == [
        row(1, "2.50", "a"),
        {"k": 9, "price": None, "name": None},
        {"k": 2, "price": Decimal("3.00"), "name": None},
        {"k": 7, "price": None, "name": None},
    ]
    assert written.rows.schema.equals(PK.schema.arrow())


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"abc", "abc"),
        (b'"abc"', "abc"),
        (b'{"k": "abc"}', "abc"),
        (b"12", "12"),
        (b"true", "true"),
        ('a "quoted" ü'.encode(), 'a "quoted" ü'),
        (b"", ""),
    ],
)
def test_a_bare_key_stands_for_the_one_key_column(key: bytes, expected: str) -> None:
    written = from_kafka(records((b"other", None), (key, None)), TEXT_PK)
    assert written.rows.column("k").to_pylist() == ["other", expected]


@pytest.mark.parametrize(
    "key", [b"seven", b"7x", b'7,"k":8', b'7}, {"k":8', b"[7]", b"7 8", b"", b'"7', b"\xff"]
)
def test_a_malformed_bare_key_is_quoted_as_it_was_sent(key: bytes) -> None:
    with pytest.raises(RowError) as caught:
        from_kafka(records((b"1", None), (key, None), (b"seven", None)), PK)
    assert (caught.value.index, caught.value.column) == (1, "k")
    shown = key.decode(errors="replace")
    assert caught.value.reason == (
        f"in the record's key, {shown} is neither a value of BIGINT in JSON nor an object with the field 'k'"
    )


def test_a_key_of_two_columns_is_an_object() -> None:
    written = from_kafka(records((b'{"b": "x", "a": 4}', None)), TWO_PK)
    assert written.rows.to_pylist() == [{"a": 4, "b": "x", "n": None}]
    with pytest.raises(RowError, match="row 0"):
        from_kafka(records((b"4", None)), TWO_PK)


@pytest.mark.parametrize(
    ("definition", "bad", "index", "match"),
    [
        (PK, (None, b'{"k": "seven"}'), 2, "column 'k'"),
        (PK, (None, b'{"k": 1, "price": 1.234}'), 2, "column 'price'"),
        (PK, (None, b"not json"), 2, "row 2"),
        (PK, (None, b'{"price": 1}'), 2, "column 'k'"),
        (PK, (None, None), 2, "a delete needs the key of its row"),
        (PK, (b"seven", None), 2, "in the record's key"),
        (TEXT_PK, (b"\xff\xfe", None), 2, "UTF-8"),
        (LOG, (b"1", None), 2, "db.t is a log table"),
        (LOG, (None, b'{"k": 1}'), 2, "column 'name'"),
    ],
)
def test_r17_3_the_first_bad_record_is_named(
    definition: TableDefinition, bad: tuple[bytes | None, bytes | None], index: int, match: str
) -> None:
    good = (b"1", json.dumps({"k": "1", "name": "n", "n": 1}).encode())
    with pytest.raises(RowError, match=match) as caught:
        from_kafka(records(good, good, bad, good), definition)
    assert caught.value.index == index


def test_the_first_of_several_bad_records_is_named_whatever_its_kind() -> None:
    for first, second in ((b"x", None), (None, b"x")), ((None, b"x"), (b"x", None)):
        with pytest.raises(RowError) as caught:
            from_kafka(records((b"1", None), (None, b'{"k":1}'), first, second), PK)
        assert caught.value.index == 2


rows_strategy = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.integers(-(2**63), 2**63 - 1),
            "price": st.none() | st.decimals("-9999999999999.99", "9999999999999.99", places=2),
            "name": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        }
    ),
    max_size=30,
)


@given(rows_strategy)
def test_fetched_records_can_be_produced_again(rows: list[dict[str, Any]]) -> None:
    batch = log_batch(PK, rows, [ChangeType.INSERT] * len(rows))
    written = from_kafka(decode_records(to_kafka(batch, PK)), PK)
    assert written.rows.to_pylist() == rows
