"""Nested values in JSON, and their checks and casts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.rows import json_to_rows, rows_to_json
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.rows.nested import cast, check_inside, entries, repeated_keys
from headrace.tablelayer.model.rows.stored import decode_rows, encode_rows
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types import column_types as t
from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.tests.model.random_rows import (
    array_of,
    batches,
    nested_types,
    plain_types,
    values_of,
)

few = settings(deadline=None, max_examples=40)
either = st.one_of(nested_types, plain_types)


@few
@given(batches(6, 4, either))
def test_rows_come_back_from_json(drawn: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = drawn
    back = json_to_rows(rows_to_json(batch), schema)
    back.validate(full=True)
    assert back.equals(batch)


plain_json = {t.INT: st.integers(-9, 9), t.STRING: st.text('aé"\\\n😀', max_size=3), t.BOOLEAN: st.booleans()}


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> tuple[DataType, st.SearchStrategy[Any]]:
    """Return a type, and documents as Python's json reads them."""
    kinds = ["plain", "array", "map", "row"] if depth else ["plain"]
    kind = draw(st.sampled_from(kinds))
    if kind == "plain":
        data_type = draw(st.sampled_from(list(plain_json)))
        return data_type, st.none() | plain_json[data_type]
    if kind == "row":
        fields = [draw(documents(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        names = ["a", "b ü", "c"][: len(fields)]
        made = t.row_of(*zip(names, (each for each, _ in fields), strict=True))
        return made, st.none() | st.fixed_dictionaries(
            {name: value for name, (_, value) in zip(names, fields, strict=True)}
        )
    inner, value = draw(documents(depth - 1))
    if kind == "array":
        return t.array_of(inner), st.none() | st.lists(value, max_size=3)
    if draw(st.booleans()):
        return t.map_of(t.STRING, inner), st.none() | st.dictionaries(plain_json[t.STRING], value, max_size=3)
    pairs = st.lists(
        st.tuples(plain_json[t.INT], value).map(list), max_size=3, unique_by=lambda pair: pair[0]
    )
    return t.map_of(t.INT, inner), st.none() | pairs


@few
@given(documents(), st.data(), st.sampled_from([None, 2]), st.booleans())
def test_json_is_what_python_writes_and_reads(
    drawn: tuple[DataType, Any], data: st.DataObject, indent: int | None, ascii_only: bool
) -> None:
    data_type, value = drawn
    rows = data.draw(st.lists(value, max_size=4))
    schema = Schema.of([("v", data_type), ("after", t.INT)])
    texts = [json.dumps({"v": row, "after": 7}, indent=indent, ensure_ascii=ascii_only) for row in rows]
    batch = json_to_rows(pa.array([text.encode() for text in texts], pa.binary()), schema)
    batch.validate(full=True)
    assert [json.loads(text) for text in rows_to_json(batch).to_pylist()] == [
        {"v": row, "after": 7} for row in rows
    ]


def read(type_text: str, text: str, **options: Any) -> Any:
    schema = Schema.of([("v", parse_type(type_text))])
    return json_to_rows(pa.array([b"{}", f'{{"v":{text}}}'.encode()]), schema, **options).column(0)[1].as_py()


def test_the_last_of_two_equal_map_keys_counts() -> None:
    assert read("MAP<STRING, INT>", '{"a": 1, "b": 2, "\\u0061": 3}') == [("b", 2), ("a", 3)]
    assert read("MAP<INT, INT>", "[[1, 1], [2, 2], [1.0, 3]]") == [(2, 2), (1, 3)]
    assert read("MAP<INT, INT>", '{"1": 1, "2": 2}') == [(1, 1), (2, 2)]


def test_a_string_of_json_is_still_a_text() -> None:
    assert read("ROW<s STRING>", '{"s": {"x": [1, "\\u0041"]}}') == {"s": '{"x": [1, "\\u0041"]}'}


@pytest.mark.parametrize(
    ("type_text", "text", "reason"),
    [
        ("ARRAY<INT>", '{"a": 1}', """{"a": 1} is not a value of ARRAY<INT>"""),
        ("ARRAY<INT>", "5", "5 is not a value of ARRAY<INT>"),
        ("ROW<a INT>", "[1]", "[1] is not a value of ROW<a INT>"),
        ("ROW<a INT>", '"x"', "'x' is not a value of ROW<a INT>"),
        ("ARRAY<INT>", '[1, null, "x"]', "v[2]: 'x' is not a number, as INT needs"),
        ("ARRAY<INT NOT NULL>", "[1, null]", "v[1]: the value is null, but the column is NOT NULL"),
        ("ARRAY<ROW<a INT, b ARRAY<TINYINT>>>", '[{}, {"b": [1, 300]}]', "v[1].b[1]: 300 is out of the range"),
        ("ROW<a INT NOT NULL>", "{}", "v.a: the field is missing, but the column is NOT NULL"),
        ("MAP<STRING, CHAR(2)>", '{"k": "abc"}', "v[0]: 'abc' is longer than CHAR(2) allows"),
        ("MAP<STRING, INT>", "[[\"a\", 1]]", "is not a value of MAP<STRING, INT>"),
        ("MAP<INT, INT>", "[[1]]", "is not a value of MAP<INT, INT>"),
        ("MAP<INT, INT>", "[[1, 2, 3]]", "is not a value of MAP<INT, INT>"),
        ("MAP<INT, INT>", "[[null, 1]]", "v[0]: the value is null, but the column is NOT NULL"),
        ("ARRAY<STRING>", '["\\ud800"]', "half of a surrogate pair"),
    ],
)  # fmt: skip
def test_nested_values_that_do_not_fit_are_refused_with_their_path(
    type_text: str, text: str, reason: str
) -> None:
    with pytest.raises(RowError) as caught:
        read(type_text, text)
    assert (caught.value.index, caught.value.column) == (1, "v")
    assert reason in caught.value.reason


def test_unknown_fields_inside_are_the_options_business() -> None:
    assert read("ROW<a INT>", '{"a": 1, "b": 2}') == {"a": 1}
    with pytest.raises(RowError, match=r"column 'v': v\.b: .*no such") as caught:
        read("ROW<a INT>", '{"a": 1, "b": 2}', unknown_fields=UnknownFields.FAIL)
    assert caught.value.index == 1


def python_fault(data_type: DataType, value: Any) -> bool:
    """Return whether a value breaks a constraint inside of its type."""
    if value is None:
        return False
    if data_type.kind is TypeKind.ROW:
        parts = list(zip(data_type.fields, value, strict=True))
    elif data_type.kind is TypeKind.ARRAY:
        parts = [(data_type.fields[0], each) for each in value]
    elif data_type.kind is TypeKind.MAP:
        if len({key for key, _ in value}) < len(value):
            return True
        parts = [pair for key, each in value for pair in zip(data_type.fields, (key, each), strict=True)]
    else:
        return data_type.kind is TypeKind.CHAR and len(value) > data_type.length
    return any(
        (each is None and not field.nullable) or python_fault(field.type, each) for field, each in parts
    )


def loosened(data_type: DataType) -> DataType:
    """Return the type without constraints inside, so that values can break them."""
    fields = tuple(
        t.Field(field.name, loosened(field.type), field.name == "key" or True) for field in data_type.fields
    )
    if data_type.kind is TypeKind.MAP:
        fields = (t.Field("key", fields[0].type, nullable=False), fields[1])
    return DataType(data_type.kind, data_type.length, data_type.precision, data_type.scale, fields)


@few
@given(nested_types.filter(lambda each: not each.contains(frozenset({TypeKind.MAP}))), st.data())
def test_constraints_of_nested_values_are_checked(data_type: DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | values_of(loosened(data_type)), max_size=4))
    array = array_of(data_type, values)
    start = data.draw(st.integers(0, len(values)))
    faults = [python_fault(data_type, value) for value in values[start:]]
    column = Column(0, "c", data_type)
    if not any(faults):
        check_inside(column, array.slice(start))
        return
    with pytest.raises(RowError) as caught:
        check_inside(column, array.slice(start))
    assert faults[caught.value.index]
    assert caught.value.column == "c"


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=4), max_size=4))
def test_keys_that_are_there_twice_are_found(maps: list[list[str]]) -> None:
    array = pa.array([[(key, 1) for key in each] for each in maps], pa.map_(pa.string(), pa.int32()))
    counts, (keys, _) = entries(array)
    of = np.repeat(np.arange(len(counts)), counts)
    seen: set[tuple[int, str]] = set()
    expected = []
    for at, pair in enumerate(zip(of.tolist(), keys.to_pylist(), strict=True)):
        if pair in seen:
            expected.append(at)
        seen.add(pair)
    assert repeated_keys(of, keys).tolist() == expected
    column = Column(0, "c", t.map_of(t.STRING, t.INT))
    if expected:
        with pytest.raises(RowError, match="occurs twice"):
            check_inside(column, array)
    else:
        check_inside(column, array)


def test_values_under_a_null_are_not_shown() -> None:
    """Foreign writers leave any value under a null."""
    numbers = pa.array([1, 2, 3, 4], pa.int32())
    offsets, first_is_null = pa.py_buffer(np.array([0, 2, 4], np.int32)), pa.py_buffer(bytes([0b10]))
    lists = pa.Array.from_buffers(
        pa.list_(pa.field("element", pa.int32())), 2, [first_is_null, offsets], children=[numbers]
    )
    rows = pa.Array.from_buffers(
        t.row_of(("a", t.INT)).arrow(), 2, [first_is_null], children=[numbers.slice(0, 2)]
    )
    pairs = pa.StructArray.from_arrays([numbers, numbers], names=["key", "value"])
    maps = pa.Array.from_buffers(
        t.map_of(t.INT, t.INT).arrow(), 2, [first_is_null, offsets], children=[pairs]
    )
    schema = Schema.of(
        [("l", t.array_of(t.INT)), ("r", t.row_of(("a", t.INT))), ("m", t.map_of(t.INT, t.INT))]
    )
    batch = pa.RecordBatch.from_arrays([lists, rows, maps], schema=schema.arrow())
    expected = [{"l": None, "r": None, "m": None}, {"l": [3, 4], "r": {"a": 2}, "m": [(3, 3), (4, 4)]}]
    assert batch.to_pylist() == expected
    encoded = encode_rows(batch, schema)
    assert encoded[0].as_py() == b"\x01\x00\x07" + bytes(12), "a null takes no room"
    assert decode_rows(encoded, schema).to_pylist() == expected
    assert rows_to_json(batch).to_pylist() == [
        b'{"l":null,"r":null,"m":null}', b'{"l":[3,4],"r":{"a":2},"m":[[3,3],[4,4]]}',
    ]  # fmt: skip


def test_cast_matches_fields_by_name_and_lists_of_every_kind() -> None:
    target = parse_type("ROW<a BIGINT, b ARRAY<STRING>, m MAP<STRING, BIGINT>>").arrow()
    given = pa.array(
        [{"b": ["x"], "a": 1, "m": [{"k": "y", "v": 2}]}, None],
        pa.struct([("b", pa.large_list(pa.string())), ("a", pa.int8()),
                   ("m", pa.list_(pa.struct([("k", pa.string()), ("v", pa.int16())])))]),
    )  # fmt: skip
    assert cast(given, target).to_pylist() == [{"a": 1, "b": ["x"], "m": [("y", 2)]}, None]
    with pytest.raises(pa.ArrowInvalid, match="no field 'z'"):
        cast(pa.array([{"z": 1}]), target)
    with pytest.raises(pa.ArrowInvalid, match="cannot become"):
        cast(pa.array([[1]]), target)
