"""Records of a plain topic as rows: every record is a row, a delete, or bad, against the json module."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.lake.field_names import columns_of_fields, field_of
from headrace.tablelayer.lake.topic_rows import RecordDecoder
from headrace.tablelayer.lake.topics import inferred_columns
from headrace.tablelayer.model.lake.topic_options import TopicFormat
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.schema.schema import Column, Schema, check_column_name
from headrace.tablelayer.model.types.column_types import BIGINT, BOOLEAN, DOUBLE, INT, STRING, decimal

COLUMNS = [("id", INT), ("name", STRING)]


def decoder(kind: TopicFormat, key: bool, unknown: UnknownFields = UnknownFields.IGNORE) -> RecordDecoder:
    return RecordDecoder(kind, Schema.of(COLUMNS, ("id",) if key else ()), unknown)


def decoded(made: RecordDecoder, records: list[tuple[bytes | None, bytes | None]]) -> Any:
    keys, values = zip(*records, strict=True) if records else ((), ())
    return made.decode(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


GOOD = st.fixed_dictionaries({"id": st.integers(-9, 9), "name": st.none() | st.text(max_size=3)})
RECORDS = st.one_of(
    GOOD.map(lambda row: (b"1", json.dumps(row).encode())),
    st.sampled_from([b"", b"{", b"[1]", b'{"id": "x"}', b'{"id": 1e30}', b"\xff", b'{"id": 1} {']).map(
        lambda value: (None, value)
    ),
    st.sampled_from([b"7", b'{"id": 8}', b"nine", None, b'{"id": null}']).map(lambda key: (key, None)),
)


def expected(key: bytes | None, value: bytes | None, keyed: bool) -> tuple[Any, ...] | None:
    """(id, name, deleted), None for a bad record."""
    try:
        if value is not None:
            row = json.loads(value)
            good = isinstance(row["id"], int)
            return (row["id"], row.get("name"), False) if good else None
        if not keyed or key is None:
            return None
        found = json.loads(key)
        number = found["id"] if isinstance(found, dict) else found
        return (number, None, True) if isinstance(number, int) else None
    except (ValueError, TypeError, KeyError):
        return None


@settings(deadline=None, max_examples=150)
@given(st.lists(RECORDS, max_size=40), st.booleans())
def test_every_record_is_a_row_a_delete_or_bad(records: list[Any], keyed: bool) -> None:
    found = decoded(decoder(TopicFormat.JSON, keyed), records)
    wanted = [expected(key, value, keyed) for key, value in records]
    rows = [
        (row["id"], row["name"], bool(gone))
        for row, gone in zip(found.rows.to_pylist(), found.deleted, strict=True)
    ]
    assert rows == [each for each in wanted if each is not None]
    assert found.places.tolist() == [at for at, each in enumerate(wanted) if each is not None]
    assert [at for at, _ in found.bad] == [at for at, each in enumerate(wanted) if each is None]
    assert all(reason for _, reason in found.bad)


def envelope(op: str, before: Any, after: Any, wrapped: bool) -> bytes:
    payload = {"op": op, "before": before, "after": after, "ts_ms": 1}
    return json.dumps({"schema": {}, "payload": payload} if wrapped else payload).encode()


@pytest.mark.parametrize("wrapped", [False, True])
def test_debezium_envelopes_become_upserts_and_deletes(wrapped: bool) -> None:
    records = [
        (b"1", envelope("c", None, {"id": 1, "name": "a"}, wrapped)),
        (b"2", envelope("r", None, {"id": 2, "name": "b"}, wrapped)),
        (b"x", b"not json"),
        (b"1", envelope("u", {"id": 1, "name": "a"}, {"id": 1, "name": "c"}, wrapped)),
        (b"2", envelope("d", {"id": 2, "name": "b"}, None, wrapped)),
        (b"2", None),
        (b'{"schema": {}, "payload": {"id": 3}}', envelope("d", None, None, wrapped)),
        (b"1", envelope("t", None, None, wrapped)),
        (b"1", envelope("c", None, {"id": "one"}, wrapped)),
    ]
    found = decoded(decoder(TopicFormat.DEBEZIUM_JSON, True), records)
    assert found.rows.column("id").to_pylist() == [1, 2, 1, 2, 3]
    assert found.deleted.tolist() == [False, False, False, True, True]
    assert found.places.tolist() == [0, 1, 3, 4, 6], "the tombstone says nothing new"
    assert [at for at, _ in found.bad] == [2, 7, 8]
    assert "truncate" in found.bad[1][1]
    assert found.bad[2][1].startswith("column 'id': ")


def test_unknown_fields_are_bad_where_they_are_to_fail() -> None:
    records = [(None, b'{"id": 1, "more": 2}'), (None, b'{"id": 2}')]
    found = decoded(decoder(TopicFormat.JSON, False, UnknownFields.FAIL), records)
    assert (found.rows.column("id").to_pylist(), [at for at, _ in found.bad]) == ([2], [0])


def test_many_bad_records_among_good_ones() -> None:
    records = [(None, b"{" if n % 2 else b'{"id": 1, "name": "x"}') for n in range(2000)]
    found = decoded(decoder(TopicFormat.JSON, False), records)
    assert len(found.bad) == found.rows.num_rows == 1000
    assert np.array_equal(found.places, np.arange(0, 2000, 2))


def test_fields_found_in_json_become_columns() -> None:
    shape = (
        "OBJECT<a: BIGINT, `b c`: DECIMAL(3,1), `d``e`: ARRAY<OBJECT<x: STRING>>, f: VOID, g: BOOLEAN,"
        " h: DECIMAL(20,0), i: VARIANT, j: DOUBLE, k: OBJECT<l: BIGINT, m: STRING>>"
    )
    found = {column.name: column.type for column in inferred_columns(shape)}
    assert found == {
        "a": BIGINT, "b c": DOUBLE, "d`e": STRING, "g": BOOLEAN, "h": decimal(38, 0),
        "i": STRING, "j": DOUBLE, "k": STRING,
    }  # fmt: skip
    assert inferred_columns("VOID") == inferred_columns("BIGINT") == []


ODD = ["", "a.b", "a`b", "x" * 300, "Name", "name", "NAME", "_deleted", " v ", "é", 'q"t', "b c", "plain"]


def test_fields_of_any_name_are_columns_that_every_lake_takes() -> None:
    fields = [Column(n, name, BIGINT) for n, name in enumerate(ODD)]
    found = columns_of_fields(fields, [])
    names = {field_of(column): column.name for column in found}
    assert [*names] == ODD, "each column says which field it is"
    assert len({name.lower() for name in names.values()}) == len(ODD)
    assert {field for field, name in names.items() if field == name} == {"Name", "é", "b c", "plain"}
    for column in found:
        check_column_name(column.name)
        assert len(column.name) <= 128
        assert not set(column.name) & set(".`\"'\\,")
    again = columns_of_fields([*reversed(fields), Column(0, "nAme", BIGINT)], found)
    assert {field_of(column): column.name for column in again[:-1]} == names, "names that were given stay"
    assert again[-1].name.lower() not in {name.lower() for name in names.values()}
    assert columns_of_fields([Column(0, "a.b", BIGINT)], [], ["a.b"])[0].name == "a.b", "as a user named it"


@pytest.mark.parametrize("key", ["", "a.b", 'q"t'])
def test_values_of_fields_of_any_name_are_found(key: str) -> None:
    columns = columns_of_fields([Column(n, name, BIGINT) for n, name in enumerate(ODD)], [])
    names = {field_of(column): column.name for column in columns}
    made = RecordDecoder(TopicFormat.JSON, Schema.of(columns, (names[key],)), UnknownFields.FAIL)
    row = {name: n for n, name in enumerate(ODD)}
    found = decoded(made, [(b"7", json.dumps(row).encode()), (b"8", None), (None, b'{"nobody": 1}')])
    assert found.rows.to_pylist()[0] == {names[name]: n for name, n in row.items()}
    assert (found.rows.column(names[key])[1].as_py(), found.deleted.tolist()) == (8, [False, True])
    assert [at for at, _ in found.bad] == [2]
