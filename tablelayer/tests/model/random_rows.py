"""Hypothesis strategies: schemas with every type, and batches of rows for them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tablelayer.model import types
from tablelayer.model.nested import make_entries, make_row
from tablelayer.model.schema import Column, Schema
from tablelayer.model.types import DataType, Field, TypeKind

EVERY_TYPE = [
    types.BOOLEAN, types.TINYINT, types.SMALLINT, types.INT, types.BIGINT, types.FLOAT, types.DOUBLE,
    types.char(5), types.STRING, types.decimal(15, 2), types.decimal(38, 10), types.DATE, types.time(0),
    types.time(3), types.time(6), types.time(9), types.timestamp(0), types.timestamp(3), types.timestamp(6),
    types.timestamp(9), types.timestamp_ltz(3), types.binary(3), types.BYTES,
]  # fmt: skip


plain_types = st.sampled_from(EVERY_TYPE)


def _around(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    names = st.lists(
        st.sampled_from(["a", "b", "größe", "two words", "A"]), min_size=1, max_size=3, unique=True
    )
    keys = st.sampled_from([each for each in EVERY_TYPE if each.kind not in types.FLOAT_KINDS])
    fields = names.flatmap(
        lambda found: st.tuples(*(st.builds(Field, st.just(name), inner, st.booleans()) for name in found))
    )
    return st.one_of(
        st.builds(types.array_of, inner, nullable=st.booleans()),
        st.builds(types.map_of, keys, inner, nullable=st.booleans()),
        fields.map(lambda found: types.row_of(*found)),
    )


nested_types = st.recursive(plain_types, _around, max_leaves=4).flatmap(lambda inner: _around(st.just(inner)))
"""Types with other types in them."""


def values_of(data_type: DataType) -> st.SearchStrategy[Any]:
    """Values that pyarrow takes for a type; timestamps and times as integers of their unit."""
    kind = data_type.kind
    if kind in types.INTEGER_KINDS:
        bits = types.INTEGER_BITS[kind]
        return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    if kind is TypeKind.DECIMAL:
        limit = 10**data_type.precision - 1
        return st.integers(-limit, limit).map(lambda value: Decimal(f"{value}E-{data_type.scale}"))
    if kind in types.TEXT_KINDS:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    if kind is TypeKind.BYTES:
        return st.binary(max_size=6)
    if kind is TypeKind.BINARY:
        return st.binary(min_size=data_type.length, max_size=data_type.length)
    if kind is TypeKind.DATE:
        return st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31))
    if kind is TypeKind.BOOLEAN:
        return st.booleans()
    if kind in types.FLOAT_KINDS:
        return st.floats(width=32 if kind is TypeKind.FLOAT else 64, allow_nan=False)
    if kind is TypeKind.TIME:
        return st.integers(0, 86_399)
    if data_type.is_nested:
        parts = [st.none() | values_of(part.type) if part.nullable else values_of(part.type)
                 for part in data_type.fields]  # fmt: skip
        if kind is TypeKind.ROW:
            return st.tuples(*parts)
        if kind is TypeKind.ARRAY:
            return st.lists(parts[0], max_size=3)
        return st.lists(st.tuples(*parts), max_size=3, unique_by=lambda pair: pair[0])
    return st.integers(-(1 << 40), 1 << 40)


def array_of(data_type: DataType, values: list[Any]) -> pa.Array:
    arrow = data_type.arrow()
    if data_type.is_nested:
        valid = np.array([value is not None for value in values], np.bool_)
        present = [value if value is not None else () for value in values]
        if data_type.kind is TypeKind.ROW:
            rows = [value or (None,) * len(data_type.fields) for value in present]
            fields = [
                array_of(field.type, [row[index] for row in rows])
                for index, field in enumerate(data_type.fields)
            ]
            return make_row(arrow, len(values), fields, valid)
        flat = [entry for value in present for entry in value]
        parts = [flat] if data_type.kind is TypeKind.ARRAY else [[k for k, _ in flat], [v for _, v in flat]]
        arrays = [array_of(field.type, part) for field, part in zip(data_type.fields, parts, strict=True)]
        return make_entries(arrow, np.array([len(value) for value in present], np.int64), arrays, valid)
    if data_type.kind is TypeKind.DECIMAL:
        return pa.array(values, arrow)
    if pa.types.is_time32(arrow):
        return pa.array(values, pa.int32()).view(arrow)
    if pa.types.is_time64(arrow) or pa.types.is_timestamp(arrow):
        return pa.array(values, pa.int64()).view(arrow)
    return pa.array(values, arrow)


@st.composite
def batches(
    draw: st.DrawFn,
    max_rows: int = 12,
    max_columns: int = 12,
    column_types: st.SearchStrategy[DataType] = plain_types,
) -> tuple[Schema, pa.RecordBatch]:
    """A schema without a key, and rows of it; sometimes a slice, so that offsets are not zero."""
    chosen = draw(st.lists(column_types, min_size=1, max_size=max_columns))
    nullable = draw(st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen)))
    schema = Schema.of(
        [
            Column(i, f"c{i}", each, nullable=null)
            for i, (each, null) in enumerate(zip(chosen, nullable, strict=True))
        ],
        schema_id=draw(st.integers(0, 2**15 - 1)),
    )
    rows = draw(st.integers(0, max_rows))
    columns = []
    for each, null in zip(chosen, nullable, strict=True):
        value = st.none() | values_of(each) if null else values_of(each)
        columns.append(array_of(each, draw(st.lists(value, min_size=rows, max_size=rows))))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow())
    start = draw(st.integers(0, rows))
    return schema, batch.slice(start, draw(st.integers(0, rows - start)))
