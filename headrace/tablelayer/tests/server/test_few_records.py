"""Few records are read one by one on the event loop, with the results of `records_to_rows`, or left to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.model.ddl import parse
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.rows.stored import encode_rows
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.derived import Sample, derive
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.kafka_view.few_records import reader_of
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.server.merge.engines import row_keys
from headrace.tablelayer.server.merge.few_rows import NeedsArrays
from headrace.tablelayer.tests.server.test_recorded_events import COLUMNS, recorded

Pair = tuple[bytes | None, bytes | None]
WIDE = (
    "id BIGINT, b BOOLEAN, t TINYINT, s SMALLINT, i INT, f FLOAT, d DOUBLE, c CHAR(3), v STRING, p DECIMAL(9, 2), "
    "day DATE, clock TIME(3), at TIMESTAMP(3), exact TIMESTAMP(6), seen TIMESTAMP_LTZ(0), raw BYTES"
)


def table(columns: str, **options: str) -> TableDefinition:
    chosen = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    (statement,) = parse(f"CREATE TABLE t ({columns})" + (f" WITH ({chosen})" if chosen else ""))
    return statement.definition  # type: ignore[union-attr, no-any-return]


def by_arrays(definition: TableDefinition, pairs: list[Pair]) -> tuple[list[Any], list[bytes]] | None:
    """Return the stored rows and keys of the records, None if they are refused."""
    batch = build_batch([Record(key, value, (), 5) for key, value in pairs])
    try:
        write = from_kafka(decode_records(batch), definition)
    except RowError:
        return None
    stored: list[Any] = encode_rows(write.rows, definition.schema).to_pylist()
    if write.change_types is None:
        return stored, []
    assert write.kept is None
    deletes = (write.change_types == 4).tolist()
    keys = row_keys(definition.schema, write.rows).to_pylist()
    return [None if gone else row for row, gone in zip(stored, deletes, strict=True)], keys


def is_same(definition: TableDefinition, pairs: list[Pair]) -> bool:
    """Return whether the records were read one by one; then the rows are those of `records_to_rows`."""
    reader = reader_of(definition)
    assert reader is not None
    try:
        few = reader.read(pairs)
    except NeedsArrays:
        return False
    assert by_arrays(definition, pairs) == (few.rows, few.keys), pairs
    return True


TEXTS = [
    "null", "true", "false", "0", "-0", "-0.0", "0.0", "1", "-1", "12.0", "1.2e1", "0.1", "16777217", "16777217.0",
    "1e-45", "1e400", "3.4028236e38", "127", "128", "-129", "32768", "2147483648", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", '"1"', '"a"', '"abc"', '"abcd"', '"\\u00e9"', '"\\ud83d\\ude00"',
    '"\\ud800"', '"a\\u0000b"', '""', '"NaN"', '"Infinity"', "1.25", "1.255", "12345678.91", "1234567.891", "01", "[]",
    "{}", '"2024-02-29"', '"2023-02-29"', '"0000-01-01"', '"+10000-01-01"', '"2024-02-29T12:34:56"',
    '"2024-02-29T12:34:56.789"', '"2024-02-29T12:34:56.789Z"', '"2024-02-29T12:34:56.789123"',
    '"2024-02-29T12:34:56+02:00"', '"2024-02-29T24:00:00"', '"2024-02-29T12:34"', '"2024-02-29 12:34:56"',
    '"1969-12-31T23:59:59.999"', '"2024-02-29T12:34:56Z"', '"AA=="', "19000", "1700000000000", "1700000000123456",
    "1700000000", "-1700000000000", "253402300800000", '"__debezium_unavailable_value"', '"infinity"', '"12:00"',
]  # fmt: skip
KINDS = ["b", "t", "s", "i", "f", "d", "c", "v", "p", "day", "clock", "at", "exact", "seen", "raw"]


@pytest.mark.parametrize("options", [{}, {"table.kafka.debezium.time-precision-mode": "microseconds"}])
def test_every_kind_of_value_is_that_of_arrays(options: dict[str, str]) -> None:
    keyed = table(f"{WIDE}, PRIMARY KEY (id) NOT ENFORCED", **options)
    plain = table(WIDE, **options)
    taken = 0
    for definition in (keyed, plain):
        for column in KINDS:
            for text in TEXTS:
                taken += is_same(definition, [(None, f'{{"id": 1, "{column}": {text}}}'.encode())])
    assert taken > 300


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ("id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED", ["1", ' 1', '{"id":1}', '{"id":"1"}', '"1"', "2",
         '{"schema":{"type":"int64"},"payload":1}', '{"schema":null,"payload":{"id":1}}', '{"payload":{"id":1}}',
         "user-7", "", "null", '{"id":null}', "{}", '{"id":1,"x":2}']),
        ("id STRING, v STRING, PRIMARY KEY (id) NOT ENFORCED", ["1", '"1"', '{"id":"1"}', '{"id":1}', " 1", "ann",
         '{"schema":{"type":"string"},"payload":"1"}', '{"schema":{"type":"string"},"payload":1}', "null", "", '"1',
         "\xff", "1 "]),
        ("id DATE, v STRING, PRIMARY KEY (id) NOT ENFORCED", ["1", '{"id":1}', '{"id":"1970-01-02"}']),
        ("id INT, k STRING, PRIMARY KEY (id, k) NOT ENFORCED", ["1", '{"id":1,"k":"1"}', '{"k":"1","id":1}',
         '{"id":1}', '{"id":1,"k":"2"}']),
    ],
)  # fmt: skip
def test_every_form_of_a_key_is_that_of_arrays(columns: str, keys: list[str]) -> None:
    definition = table(columns)
    taken = [0, 0]
    for key in (None, *(each.encode("latin-1") for each in keys)):
        for identity in ("1", '"1"', '"1970-01-02"'):
            value = f'{{"id":{identity},"k":"1"}}'.encode()
            taken[0] += is_same(definition, [(key, value)])
        taken[1] += is_same(definition, [(key, None)])
    assert min(taken) > 0


DEEP = b'{"id":1,"x":' + b"[" * 1200 + b"]" * 1200 + b"}"


@pytest.mark.parametrize(
    "value",
    [b"", b"null", b" null", b"[]", b"1", b'{"id":1} ', b'{"id":1}x', b'{"id":1,"id":2}', b'{"id":1,"x":"\xff"}',
     b'{"id":1,"x":"\\ud800"}', b'{"id":1,"v":"\\ud800"}', b"\xef\xbb\xbf{}", DEEP,
     b'{"id":1,"__deleted":"true"}', b'{"id":1,"__deleted":"false","__op":"u"}', b'{"id":1,"__op":"d"}', b'{"v":"a"}',
     b'{"id":null}', b'{"id":1,"n":null}', b'{"id":1,"other":[1,{"a":2}]}'],
)  # fmt: skip
@pytest.mark.parametrize("more", ["", "IGNORE", "fail"])
def test_every_form_of_a_value_is_that_of_arrays(value: bytes, more: str) -> None:
    options = {"table.kafka.unknown-fields": "fail"} if more == "fail" else {}
    columns = "id BIGINT, v STRING, n INT NOT NULL DEFAULT 5" if more == "IGNORE" else "id BIGINT, v STRING"
    definition = table(f"{columns}, PRIMARY KEY (id) NOT ENFORCED", **options)
    is_same(definition, [(b"1", value)])
    is_same(definition, [(b"1", b'{"id":1,"v":"a"}'), (b"1", value), (b"1", None)])
    is_same(table("id BIGINT, v STRING", **options), [(None, value)])


@pytest.mark.parametrize("name", ['qu"ote', "back\\slash", '"', "Größe", "😀", "a.b", " x y", "f0", "f1"])
def test_a_column_of_any_name_is_read(name: str) -> None:
    """Names that JSON escapes are left to arrays, because objects of msgspec cannot have them."""
    definition = table(f"id INT, `{name}` STRING, PRIMARY KEY (id) NOT ENFORCED".replace("` x", "`x"))
    name = definition.schema.names[1]
    pairs: list[Pair] = [(None, json.dumps({"id": 1, name: "v"}).encode())]
    assert (reader_of(definition) is None) == ('"' in name or "\\" in name)
    found = by_arrays(definition, pairs)
    assert found is not None
    if reader_of(definition) is not None:
        assert is_same(definition, pairs)


@pytest.mark.parametrize("name", ["kinds", "moments"])
def test_recorded_events_with_schemas_are_those_of_arrays(name: str) -> None:
    events = recorded(name)
    definition = derive(TablePath("default", "t"), [Sample.of(*event) for event in events])
    taken = [is_same(definition, [event]) for event in events]
    assert any(taken)


@pytest.mark.parametrize(
    "mode", ["adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]
)
def test_recorded_events_without_schemas_are_those_of_arrays(mode: str) -> None:
    columns = COLUMNS.replace(" t TIME(6),", "")
    options = {"table.kafka.value-format": "debezium-json", "table.kafka.debezium.time-precision-mode": mode}
    definition = table(columns, **options)
    taken = [is_same(definition, [event]) for event in recorded(f"moments-{mode}")]
    assert any(taken)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_records_are_those_of_arrays(data: st.DataObject) -> None:
    definition = data.draw(st.sampled_from([
        table(f"{WIDE}, PRIMARY KEY (id) NOT ENFORCED"),
        table(f"{WIDE}, PRIMARY KEY (v, id) NOT ENFORCED"),
        table(WIDE),
    ]))  # fmt: skip
    numbers = (
        st.integers(-3, 3) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none()
    )
    values = {
        "id": st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1), "b": st.booleans() | st.none(),
        "v": st.text(max_size=5), "c": st.text(max_size=4), "at": st.datetimes().map(lambda at: at.isoformat()),
        "day": st.dates().map(str),
        **dict.fromkeys(("t", "s", "i"), st.integers(-200, 200)), **dict.fromkeys(("f", "d", "p"), numbers),
    }  # fmt: skip
    rows = data.draw(st.lists(st.fixed_dictionaries({}, optional=values), max_size=4, min_size=1))
    pairs: list[Pair] = []
    for row in rows:
        key = data.draw(
            st.sampled_from(
                [None, json.dumps({name: row[name] for name in ("id", "v") if name in row}).encode()]
            )
        )
        pairs.append((key, data.draw(st.sampled_from([json.dumps(row).encode(), None]))))
    is_same(definition, pairs)
