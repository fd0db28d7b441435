"""The least and the greatest value of columns, as a batch of two rows.

Nulls do not count; a column without values has null in both rows. NaN is greater than every number, as in DuckDB and
Spark. Texts are ordered by code points, BINARY by bytes, and false is less than true.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.schema.schema import Column

_ORDERED_AS_BYTES = (pa.types.is_string, pa.types.is_binary, pa.types.is_fixed_size_binary)


def check_ordered(columns: Sequence[Column]) -> None:
    """Raise TableError(INVALID_PROJECTION) for a column whose values have no order."""
    for column in columns:
        if pa.types.is_nested(column.type.arrow()):
            raise TableError(
                TableErrorCode.INVALID_PROJECTION,
                f"column '{column.name}' is of type {column.type}: its values have no order",
            )


def extremes(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the extremes of all rows of the parts, which may be results of this function.

    All fields of the schema become nullable.
    """
    fields = [field.with_nullable(True) for field in schema]
    arrays = [
        _of_column(pa.chunked_array([part.column(index) for part in parts], field.type), field.type)
        for index, field in enumerate(fields)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _of_column(values: pa.ChunkedArray, arrow: pa.DataType) -> pa.Array:
    has_nan = False
    if pa.types.is_floating(arrow):
        nan = pc.is_nan(values)
        has_nan = bool(pc.any(nan).as_py())
        if has_nan:
            values = values.filter(pc.invert(nan))
    if any(of_kind(arrow) for of_kind in _ORDERED_AS_BYTES):
        found = pc.min_max(values.cast(pa.binary()))
        bounds = pa.array([found["min"].as_py(), found["max"].as_py()], pa.binary())
        return bounds.cast(arrow)
    found = pc.min_max(values)
    low, high = found["min"], found["max"]
    if has_nan:
        nan = pa.scalar(float("nan"), arrow)
        low, high = low if low.is_valid else nan, nan
    return pa.concat_arrays([pa.repeat(low, 1), pa.repeat(high, 1)])
