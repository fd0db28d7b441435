"""Hypothesis strategies: schemas with every type, and batches of rows for them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from headrace.tablelayer.model.rows.nested import make_entries, make_row
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types import column_types as types
from headrace.tablelayer.model.types.column_types import DataType, Field, TypeKind

EVERY_TYPE = [
    types.BOOLEAN, types.TINYINT, types.SMALLINT, types.INT, types.BIGINT, types.FLOAT, types.DOUBLE,
    types.char(5), types.STRING, types.decimal(15, 2), types.decimal(38, 10), types.DATE, types.time(0),
    types.time(3), types.time(6), types.time(9), types.timestamp(0), types.timestamp(3), types.timestamp(6),
    types.timestamp(9), types.timestamp_ltz(3), types.binary(3), types.BYTES,
]  # fmt: skip


plain_types = st.sampled_from(EVERY_TYPE)


def _around(inner: st.SearchStrategy[DataType], fields_of: Sequence[str]) -> st.SearchStrategy[DataType]:
    names = st.lists(st.sampled_from(fields_of), min_size=1, max_size=3, unique=True)
    keys = st.sampled_from([each for each in EVERY_TYPE if each.kind not in types.FLOAT_KINDS])
    fields = names.flatmap(
        lambda found: st.tuples(*(st.builds(Field, st.just(name), inner, st.booleans()) for name in found))
    )
    return st.one_of(
        st.builds(types.array_of, inner, nullable=st.booleans()),
        st.builds(types.map_of, keys, inner, nullable=st.booleans()),
        fields.map(lambda found: types.row_of(*found)),
    )


def nested(fields_of: Sequence[str]) -> st.SearchStrategy[DataType]:
    """Types with other types in them; the fields of a ROW have these names."""

    def around(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
        return _around(inner, fields_of)

    return st.recursive(plain_types, around, max_leaves=4).flatmap(lambda inner: around(st.just(inner)))


nested_types = nested(["a", "b", "größe", "two words", "A"])
avro_nested_types = nested(["a", "b", "_c1", "A"])
"""Those that there can be in Avro."""

_DAY = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def edges_of(data_type: DataType) -> list[Any]:
    """The first, the last, the empty and the odd values of a type that is not nested, as `values_of` has them."""
    kind = data_type.kind
    if kind in types.INTEGER_KINDS:
        bound = 1 << (types.INTEGER_BITS[kind] - 1)
        return [-bound, bound - 1, 0, -1]
    if kind is TypeKind.DECIMAL:
        digits = 10**data_type.precision - 1
        return [Decimal(f"{each}E-{data_type.scale}") for each in (-digits, digits, 0, -1, 128)]
    if kind in types.TEXT_KINDS:
        return ["", "\0", "é\U0001f600\u2028", '"\\\n', "nul", "\U0010ffff" * 5]
    if kind is TypeKind.BYTES:
        return [b"", b"\0", bytes(range(256))]
    if kind is TypeKind.BINARY:
        return [bytes(data_type.length), b"\xff" * data_type.length]
    if kind is TypeKind.DATE:
        return [-(1 << 31), (1 << 31) - 1, 0, -1]
    if kind is TypeKind.BOOLEAN:
        return [False, True]
    if kind in types.FLOAT_KINDS:
        info = np.finfo(np.float32 if kind is TypeKind.FLOAT else np.float64)
        edges = [info.max, info.min, info.tiny, info.smallest_subnormal, np.inf, -np.inf, 0.0, -0.0]
        return [float(each) for each in edges]
    if kind is TypeKind.TIME:
        step = _DAY[data_type.unit] // 10**data_type.precision
        return [0, 86_400 * _DAY[data_type.unit] - step]
    step = _DAY[data_type.unit] // 10**data_type.precision
    # Values in seconds end where milliseconds do, which Avro has.
    bound = ((1 << 63) - 1) // (1000 if data_type.unit == "s" else step)
    return [-bound * step, bound * step, 0, -step]


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
    if data_type.kind is TypeKind.DATE:
        epoch = datetime.date(1970, 1, 1)
        days = [(each - epoch).days if isinstance(each, datetime.date) else each for each in values]
        return pa.array(days, pa.int32()).view(arrow)
    if pa.types.is_time32(arrow):
        return pa.array(values, pa.int32()).view(arrow)
    if pa.types.is_time64(arrow) or pa.types.is_timestamp(arrow):
        return pa.array(values, pa.int64()).view(arrow)
    return pa.array(values, arrow)


def with_edges(data_type: DataType) -> st.SearchStrategy[Any]:
    """Values of a type, often its edges."""
    if data_type.is_nested:
        return values_of(data_type)
    return st.sampled_from(edges_of(data_type)) | values_of(data_type)


@st.composite
def batches(
    draw: st.DrawFn,
    max_rows: int = 12,
    max_columns: int = 12,
    column_types: st.SearchStrategy[DataType] = plain_types,
    values: Callable[[DataType], st.SearchStrategy[Any]] = values_of,
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
        value = st.none() | values(each) if null else values(each)
        columns.append(array_of(each, draw(st.lists(value, min_size=rows, max_size=rows))))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow())
    start = draw(st.integers(0, rows))
    return schema, batch.slice(start, draw(st.integers(0, rows - start)))
