"""The value formats of the Kafka view: foreign programs write and read them, for every type in both directions
(R17).
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.records.decode import RecordColumns, decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import write_base_offset_and_epoch
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType, encode_arrow_batch
from headrace.tablelayer.model.errors import RowError, TableError
from headrace.tablelayer.model.json.rows import rows_to_json
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import BIGINT
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.server.kafka_view.rows_to_records import to_kafka
from headrace.tablelayer.tests.model.random_rows import batches

DEBEZIUM = {"table.kafka.value-format": "debezium-json"}
INSERT, BEFORE, AFTER, DELETE = (
    ChangeType.INSERT, ChangeType.UPDATE_BEFORE, ChangeType.UPDATE_AFTER, ChangeType.DELETE,
)  # fmt: skip


def table(columns: str, primary_key: tuple[str, ...] = (), **options: str) -> TableDefinition:
    parsed = []
    for index, text in enumerate(columns.split("; ")):
        name, kind = text.split(" ", 1)
        nullable = not kind.endswith(" NOT NULL") and name not in primary_key
        parsed.append(Column(index, name, parse_type(kind.removesuffix(" NOT NULL")), nullable))
    return TableDefinition(TablePath("db", "t"), Schema.of(parsed, primary_key), options=options)


def logged(definition: TableDefinition, rows: pa.RecordBatch, changes: list[int] | None) -> ArrowBatch:
    types = None if changes is None else np.array(changes, np.uint8)
    schema_id = definition.schema.schema_id
    buffer = encode_arrow_batch(rows, schema_id=schema_id, change_types=types, timestamp_ms=1234)
    write_base_offset_and_epoch(buffer, 0, 100, 7)
    return ArrowBatch.parse(buffer)


def shown(definition: TableDefinition, rows: pa.RecordBatch, changes: list[int] | None) -> RecordColumns:
    return decode_records(to_kafka(logged(definition, rows, changes), definition))


def records(*pairs: tuple[bytes | None, Any]) -> RecordColumns:
    """Return records. Keys stay as they are; values are None, bytes, or encoded as JSON."""
    return decode_records(
        build_batch(
            [
                Record(
                    key,
                    value if value is None or isinstance(value, bytes) else json.dumps(value).encode(),
                    (),
                    5,
                )
                for key, value in pairs
            ]
        )
    )


# -- a path to the row -------------------------------------------------------------------------------------

NESTED = table("k BIGINT; name STRING", ("k",), **{"table.kafka.value-path": "$.payload.row"})


def test_r17_a_row_inside_of_other_json() -> None:
    written = from_kafka(
        records(
            (
                None,
                {
                    "payload": {"row": {"k": 1, "name": 'quote " and \\ and é\n'}, "row2": 5},
                    "other": [1, "\\u"],
                },
            ),
            (None, {"more": {}, "payload": {"x": "\n", "row": {"name": None, "k": 2}}}),
            (b"3", None),
        ),
        NESTED,
    )
    assert written.rows.to_pylist() == [
        {"k": 1, "name": 'quote " and \\ and é\n'}, {"k": 2, "name": None}, {"k": 3, "name": None},
    ]  # fmt: skip
    assert written.change_types is not None
    assert written.change_types.tolist() == [AFTER, AFTER, DELETE]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"payload": {}}, "field 'payload.row' is missing"),
        ({"payload": "x"}, "field 'payload' is not an object"),
        ({"payload": {"row": None}}, "a delete needs the key of its row"),
        ({"payload": {"row": '{"k": 7}'}}, "field 'payload.row' is not an object"),
        ({"payload": {"row": [1]}}, "a row must be a JSON object"),
        ({"k": 1}, "field 'payload' is missing"),
        (b'{"payload": {"row": {"k": 1}}', "JSON text is cut off"),
    ],
)
def test_r17_3_a_row_that_is_not_at_its_path(value: Any, reason: str) -> None:
    good = {"payload": {"row": {"k": 1}}}
    with pytest.raises(RowError, match=reason) as caught:
        from_kafka(records((None, good), (b"9", None), (None, value), (None, {"payload": 3})), NESTED)
    assert caught.value.index == 2


def test_r17_3_the_first_bad_record_is_named_before_later_ones() -> None:
    bad_row = {"payload": {"row": {"k": "no number"}}}
    with pytest.raises(RowError) as caught:
        from_kafka(records((None, bad_row), (None, {"payload": 1}), (None, b"{")), NESTED)
    assert (caught.value.index, caught.value.column) == (0, "k")


@settings(max_examples=50)
@given(
    batches(),
    st.lists(
        st.text(st.characters(exclude_characters=".[]*", exclude_categories=["C"]), min_size=1),
        min_size=1,
        max_size=4,
    ),
)
def test_r17_rows_at_any_path_come_back(made: tuple[Schema, pa.RecordBatch], path: list[str]) -> None:
    schema, rows = made
    option = ".".join(path).strip()
    if not all(part for part in option.split(".")) or option.startswith("$"):
        return
    definition = TableDefinition(TablePath("db", "t"), schema, options={"table.kafka.value-path": option})
    found = shown(definition, rows, None)
    plain = rows_to_json(rows).to_pylist()
    for text, value in zip(plain, found.values(), strict=True):
        inner = json.loads(value or b"")
        for part in option.split("."):
            assert list(inner) == [part]
            inner = inner[part]
        assert inner == json.loads(text)
    assert from_kafka(found, definition).rows.equals(rows)


# -- Debezium ----------------------------------------------------------------------------------------------

CUSTOMERS = table("id BIGINT; name STRING; at TIMESTAMP(3); price DECIMAL(10, 2)", ("id",), **DEBEZIUM)


def change(op: str, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    source = {"db": "shop", "table": "customers", "lsn": 24023128, "note": 'a "text" with \\ escapes'}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1, **more}


def with_schema(payload: Any) -> dict[str, Any]:
    fields = [{"type": "int64", "optional": False, "field": "id"}]
    return {
        "schema": {"type": "struct", "fields": fields, "name": "shop.customers.Envelope"},
        "payload": payload,
    }


def customer(key: int, name: str | None = None, at: Any = None, price: Any = None) -> dict[str, Any]:
    return {"id": key, "name": name, "at": at, "price": price}


@pytest.mark.parametrize("schema", [False, True])
def test_r17_5_envelopes_of_a_connector_become_upserts_and_deletes(schema: bool) -> None:
    around = with_schema if schema else lambda payload: payload
    key = (lambda k: json.dumps(with_schema({"id": k})).encode()) if schema else lambda k: b'{"id":%d}' % k
    written = from_kafka(
        records(
            (key(1), around(change("r", None, customer(1, "Sally", 1_700_000_000_123, 12.5)))),
            (key(2), around(change("c", None, customer(2, 'Üma "x"', "2024-09-19T12:00:00.5", "7.25")))),
            (key(1), around(change("u", customer(1, "Sally"), customer(1, "Anne")))),
            (None, around(change("d", customer(2, "gone"), None))),
            (key(2), None),
            (key(3), around(change("d", None, None))),
            (key(4), around(change("c", after=customer(4), transaction=None))),
        ),
        CUSTOMERS,
    )
    assert written.change_types is not None
    assert written.change_types.tolist() == [AFTER, AFTER, AFTER, DELETE, DELETE, DELETE, AFTER]
    rows = written.rows.to_pylist()
    assert [row["id"] for row in rows] == [1, 2, 1, 2, 2, 3, 4]
    assert [row["name"] for row in rows] == ["Sally", 'Üma "x"', "Anne", None, None, None, None]
    assert [row["price"] for row in rows[:3]] == [Decimal("12.50"), Decimal("7.25"), None]
    at = written.rows.column("at").cast(pa.int64()).to_pylist()
    assert at[:3] == [1_700_000_000_123, 1_726_747_200_500, None]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (change("t"), "'t' \\(truncate\\).*skipped.operations"),
        (change("m"), "its op is 'm'; it must be"),
        (change("x" * 40), "its op is 'x{20}'"),
        (change("c"), "its op is 'c', but 'after' is missing or null"),
        (change("u", after="text"), "'after' is not an object"),
        (change("d", before=5), "'before' is not an object"),
        (customer(1), "not a Debezium envelope"),
        (with_schema(customer(1)), "not a Debezium envelope"),
        ({"schema": {}, "payload": None}, "a delete needs the key of its row"),
        ({"schema": {}}, "not a Debezium envelope"),
        (change("c", after={"name": "x"}), "NOT NULL"),
        (
            change("c", after={"id": 1, "price": "1234"}),
            "may be the number, or base64.*decimal-handling-mode",
        ),
        (change("d", before={"name": "x"}), "the field is missing"),
        (b"[]", "a row must be a JSON object"),
        (b'{"op":"c","after":{"id":1}', "JSON text is cut off"),
        (with_schema(change("c", after={"id": 2**63})), "out of the range"),
    ],
)
def test_r17_3_envelopes_that_cannot_be_carried_out(value: Any, reason: str) -> None:
    good = change("c", after=customer(1))
    with pytest.raises(RowError, match=reason) as caught:
        from_kafka(
            records(
                (None, good), (b"9", None), (None, with_schema(good)), (None, value), (None, change("?"))
            ),
            CUSTOMERS,
        )
    assert caught.value.index == 3


def test_r17_3_a_delete_without_before_and_without_key() -> None:
    with pytest.raises(RowError, match="a delete needs the key of its row") as caught:
        from_kafka(records((b"1", change("d")), (None, change("d"))), CUSTOMERS)
    assert caught.value.index == 1


def test_r17_3_a_log_table_takes_new_rows_only() -> None:
    log = table("id BIGINT; name STRING", **DEBEZIUM)
    written = from_kafka(
        records((None, change("c", after={"id": 1})), (None, change("u", after={"id": 2}))), log
    )
    assert written.rows.column("id").to_pylist() == [1, 2]
    for bad in (change("d", {"id": 1}), change("d"), None):
        with pytest.raises(RowError, match="nothing to delete") as caught:
            from_kafka(records((None, change("r", after={"id": 1})), (b"1", bad)), log)
        assert caught.value.index == 1


@pytest.mark.parametrize(
    ("mode", "kind", "number", "text"),
    [
        ("adaptive", "DATE", 19985, "2024-09-19"),
        ("connect", "DATE", -1, "1969-12-31"),
        ("adaptive", "TIME(0)", 43_200_000, "12:00:00"),
        ("adaptive", "TIME(3)", 43_200_001, "12:00:00.001"),
        ("adaptive", "TIME(6)", 43_200_000_001, "12:00:00.000001"),
        ("adaptive", "TIME(9)", 86_400_000_001, "00:01:26.400000001"),
        ("adaptive_time_microseconds", "TIME(0)", 43_200_000_000, "12:00:00"),
        ("adaptive_time_microseconds", "TIME(9)", 1, "00:00:00.000001"),
        ("connect", "TIME(6)", 1, "00:00:00.001"),
        ("adaptive", "TIMESTAMP(0)", 1_700_000_000_000, "2023-11-14T22:13:20"),
        ("adaptive", "TIMESTAMP(3)", 0, "1970-01-01T00:00:00"),
        ("adaptive", "TIMESTAMP(3)", 1_700_000_000_001, "2023-11-14T22:13:20.001"),
        ("adaptive", "TIMESTAMP(3)", 253_402_300_799_000, "9999-12-31T23:59:59"),
        ("adaptive_time_microseconds", "TIMESTAMP(6)", -10_000_000_000_001, "1969-09-07T06:13:19.999999"),
        ("microseconds", "TIMESTAMP(3)", 1_700_000_000_001_000, "2023-11-14T22:13:20.001"),
        ("nanoseconds", "TIMESTAMP(3)", 1_700_000_000_001_000_000, "2023-11-14T22:13:20.001"),
        ("nanoseconds", "TIMESTAMP(9)", 1, "1970-01-01T00:00:00.000000001"),
        ("adaptive", "TIMESTAMP(9)", 1_700_000_000_000_000_001, "2023-11-14T22:13:20.000000001"),
        ("connect", "TIMESTAMP(6)", 1_001, "1970-01-01T00:00:01.001"),
        ("connect", "TIMESTAMP_LTZ(3)", 1_001, "1970-01-01T00:00:01.001Z"),
        ("isostring", "TIMESTAMP(3)", None, "1970-01-01T00:00:01.001"),
        ("adaptive", "TIME(0)", 43_200_001, None),
        ("adaptive", "TIME(3)", 86_400_000, None),
        ("adaptive", "TIME(3)", -1, None),
        ("adaptive", "DATE", 1 << 31, None),
        ("adaptive", "TIMESTAMP(1)", 1_700_000_000_001, None),
        ("adaptive", "TIMESTAMP(6)", 1_700_000_000_001, None),
        ("adaptive", "TIMESTAMP(3)", 1_700_000_000_001_000, None),
        ("adaptive", "TIME(6)", 43_200_001, None),
        ("connect", "TIMESTAMP(9)", 1 << 62, None),
        ("adaptive", "TIMESTAMP(3)", 1.5, None),
        ("isostring", "TIMESTAMP(3)", 1, None),
    ],
)
def test_r17_2_numbers_follow_the_connectors_time_precision_mode(
    mode: str, kind: str, number: Any, text: str | None
) -> None:
    definition = table(f"v {kind}", **DEBEZIUM, **{"table.kafka.debezium.time-precision-mode": mode})
    good = (
        "12:00:00" if kind.startswith("TIME(") else "2024-09-19" if kind == "DATE" else "2024-09-19T12:00:00Z"
    )
    values = [{"v": each} for each in (good, number, None, text)]
    if text is None:
        with pytest.raises(RowError) as caught:
            from_kafka(records(*((None, change("c", after=value)) for value in values)), definition)
        assert (caught.value.index, caught.value.column) == (1, "v")
        return
    rows = from_kafka(records(*((None, change("c", after=value)) for value in values)), definition).rows
    _, counted, nothing, said = rows.column("v").to_pylist() if "9" not in kind else _ticks(rows.column("v"))
    assert nothing is None
    assert counted == (None if number is None else said)


def _ticks(column: pa.Array) -> list[int | None]:
    return column.cast(pa.int64()).to_pylist()


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), max_size=5))
def test_r17_2_precise_decimals_are_base64_of_the_unscaled_value(numbers: list[int]) -> None:
    definition = table(
        "v DECIMAL(38, 4)", **DEBEZIUM, **{"table.kafka.debezium.decimal-handling-mode": "precise"}
    )

    def encoded(number: int) -> str:
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1  # as Java's BigInteger
        return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()

    values = [*(encoded(number) for number in numbers), None, 0.25]
    rows = from_kafka(
        records(*((None, change("c", after={"v": value})) for value in values)), definition
    ).rows
    wanted = [Decimal(f"{number}E-4") for number in numbers]
    assert rows.column(0).to_pylist() == [*wanted, None, Decimal("0.25")]


@pytest.mark.parametrize("number", [10**38, -(10**38), 1 << 127, 1 << 200, None])
def test_r17_3_precise_decimals_that_do_not_fit(number: int | None) -> None:
    definition = table(
        "v DECIMAL(38, 4)", **DEBEZIUM, **{"table.kafka.debezium.decimal-handling-mode": "precise"}
    )
    data = b"" if number is None else number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    value = {"v": base64.b64encode(data).decode()}
    padded = {"v": base64.b64encode((5).to_bytes(30, "big")).decode()}
    with pytest.raises(RowError, match="out of the range") as caught:
        from_kafka(records((None, change("c", after=padded)), (None, change("c", after=value))), definition)
    assert caught.value.index == 1


def test_r17_5_compact_envelopes_have_no_before_but_for_deletes() -> None:
    rows = pa.RecordBatch.from_pylist([customer(i, f"n{i}") for i in range(5)], CUSTOMERS.schema.arrow())
    found = shown(CUSTOMERS, rows, [INSERT, BEFORE, AFTER, DELETE, INSERT])
    assert found.offsets.tolist() == [100, 102, 103, 104]
    assert found.keys() == [b'{"id":0}', b'{"id":2}', b'{"id":3}', b'{"id":4}']
    assert [found.headers(index) for index in range(4)] == [[]] * 4
    assert [json.loads(value or b"") for value in found.values()] == [
        {"before": None, "after": customer(0, "n0"), "op": "c", "ts_ms": 1234},
        {"before": None, "after": customer(2, "n2"), "op": "u", "ts_ms": 1234},
        {"before": customer(3, "n3"), "after": None, "op": "d", "ts_ms": 1234},
        {"before": None, "after": customer(4, "n4"), "op": "c", "ts_ms": 1234},
    ]


def test_r17_5_full_envelopes_have_both_images() -> None:
    full = table("id BIGINT; name STRING", ("id",), **DEBEZIUM, **{"table.kafka.changelog": "full"})
    rows = pa.RecordBatch.from_pylist([{"id": i, "name": f"n{i}"} for i in range(7)], full.schema.arrow())
    found = shown(full, rows, [BEFORE, AFTER, INSERT, AFTER, BEFORE, AFTER, DELETE])
    assert found.offsets.tolist() == [101, 102, 103, 105, 106]
    values = [json.loads(value or b"") for value in found.values()]
    images = [
        (value["op"], *(value[side] and value[side]["name"] for side in ("before", "after")))
        for value in values
    ]
    assert images == [
        ("u", "n0", "n1"), ("c", None, "n2"), ("u", None, "n3"), ("u", "n4", "n5"), ("d", "n6", None),
    ]  # fmt: skip
    assert [found.headers(index) for index in range(5)] == [
        [("change-type", kind)] for kind in (b"+U", b"+I", b"+U", b"+U", b"-D")
    ]


@settings(max_examples=60)
@given(batches(), st.data())
def test_r17_every_type_comes_back_from_its_envelope(
    made: tuple[Schema, pa.RecordBatch], data: st.DataObject
) -> None:
    columns, rows = made
    count = rows.num_rows
    schema = Schema.of(
        [Column(100, "key", BIGINT, nullable=False), *columns.columns], ("key",), schema_id=columns.schema_id
    )
    rows = pa.RecordBatch.from_arrays(
        [pa.array(range(count), pa.int64()), *rows.columns], schema=schema.arrow()
    )
    changes = data.draw(
        st.lists(st.sampled_from([INSERT, AFTER, DELETE, BEFORE]), min_size=count, max_size=count)
    )
    mode = data.draw(st.sampled_from(["compact", "full"]))
    options = {**DEBEZIUM, "table.kafka.changelog": mode, "table.kafka.debezium.out-of-range-times": "keep"}
    definition = TableDefinition(TablePath("db", "t"), schema, options=options)
    found = shown(definition, rows, changes)
    texts = [json.loads(text) for text in rows_to_json(rows).to_pylist()]
    for offset, value in zip(found.offsets.tolist(), found.values(), strict=True):
        at = offset - 100
        envelope = json.loads(value or b"")
        assert (envelope["before"] if changes[at] == DELETE else envelope["after"]) == texts[at]
    written = from_kafka(found, definition)
    kept = [at for at in range(count) if changes[at] != BEFORE]
    assert written.rows.column("key").to_pylist() == kept
    assert written.change_types is not None
    put = [at for at in kept if changes[at] != DELETE]
    mask = pa.array(written.change_types != DELETE)
    assert written.rows.filter(mask).equals(rows.take(pa.array(put, pa.int64())))


# -- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table.kafka.value-format": "debezium"}, "did you mean 'debezium-json'"),
        ({"table.kafka.value-format": "csv"}, "must be 'json' or 'debezium-json' or 'avro'"),
        ({"table.kafka.value-formt": "json"}, "did you mean 'table.kafka.value-format'"),
        ({"table.kafka.value-path": "a..b"}, "names of fields"),
        ({"table.kafka.value-path": "$"}, "names of fields"),
        ({"table.kafka.value-path": "a[0]"}, "names of fields"),
        ({"table.kafka.value-path": ".".join("a" * 33)}, "33 levels"),
        ({**DEBEZIUM, "table.kafka.value-path": "a"}, "is for 'table.kafka.value-format' = 'json'"),
        (
            {"table.kafka.value-format": "avro", "table.kafka.debezium.time-precision-mode": "connect"},
            "'json' or 'debezium-json'; this table has 'avro'",
        ),
        ({**DEBEZIUM, "table.kafka.debezium.time-units": "at=ms"}, "there is no column 'at'; columns: id"),
        ({**DEBEZIUM, "table.kafka.debezium.time-units": "id=ms"}, "is not a date or time type"),
        ({**DEBEZIUM, "table.kafka.debezium.time-units": "id=m"}, "one of d, ms, us, ns"),
        ({**DEBEZIUM, "table.kafka.debezium.time-precision-mode": "adaptiv"}, "did you mean 'adaptive'"),
        ({**DEBEZIUM, "table.kafka.avro.schema": "record"}, "is for 'table.kafka.value-format' = 'avro'"),
        (
            {"table.kafka.value-format": "avro", "table.kafka.avro.registry-url": "registry:8081"},
            "must be a URL such as",
        ),
        (
            {
                "table.kafka.value-format": "avro",
                "table.kafka.avro.registry-url": "http://me:secret@registry",
            },
            "schema.registry.basic.auth.user.info",
        ),
        (
            {
                "table.kafka.value-format": "avro",
                "table.kafka.avro.schema": "record",
                "table.kafka.avro.registry-url": "http://registry",
            },
            "leave one out",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(TableError, match=reason):
        table("id BIGINT", (), **options)


def test_options_of_a_format_are_written_with_it_in_a_statement() -> None:
    from headrace.tablelayer.model.ddl import create_table_sql, parse

    text = (
        "CREATE TABLE t (id BIGINT) WITH ('table.kafka.debezium.decimal-handling-mode' = 'precise', "
        "'table.kafka.value-format' = 'debezium-json')"
    )
    (create,) = parse(text)
    (again,) = parse(create_table_sql(create.definition))
    assert again.definition.settings == create.definition.settings
    with pytest.raises(TableError, match="this table has 'json'"):
        parse("CREATE TABLE t (id BIGINT) WITH ('table.kafka.avro.schema' = 'record')")
