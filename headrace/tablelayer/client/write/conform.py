"""Convert rows of any accepted kind to one pa.Table with the schema's columns, types and order.

Accepted: pa.Table, pa.RecordBatch, a mapping or a sequence of mappings, a pandas DataFrame, and anything with
`__arrow_c_stream__` (polars, DuckDB relations). Rules, each with an error that names the column:

- An unknown column is refused. A missing column has its default, or is null. A NOT NULL one must be given unless it has
  a default, and must not have a null.
- A value keeps its meaning or is refused. Integers may widen, or narrow if they fit. Text may become a date, time,
  timestamp or decimal. A float becomes a decimal only if it is exactly that decimal. Numbers never become text, and
  text never becomes a number or a boolean.
- The same rules apply inside an ARRAY, MAP or ROW. A ROW is a mapping of its fields or a tuple of all of them in order,
  an ARRAY is a sequence, a MAP is a mapping or a sequence of pairs.
- A timestamp with a time zone is an instant and fits TIMESTAMP_LTZ; one without fits TIMESTAMP. Naive values for
  TIMESTAMP_LTZ are UTC, and integers are milliseconds since 1970. A value with more digits of a second than the column
  is refused.

Whole columns are converted at a time. Single rows are looked at only to find the first bad one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.write.casts import ACCEPTED, convert, family, first_unfit
from headrace.tablelayer.client.write.python_values import MisfitError, array_of
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.python_values import python_value
from headrace.tablelayer.model.rows.nested import (
    NULL_KEY,
    cast,
    check_inside,
    has_rules,
    make_entries,
    make_row,
    owners,
)
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import Field, TypeKind, from_arrow

#: The rows that write and lookup calls accept.
Data = Any


def conform(data: Data, columns: Sequence[Column], *, table: str, fill_missing: bool = True) -> pa.Table:
    """Convert `data` to a table with exactly `columns`, in that order and with their Arrow types.

    With `fill_missing=False` (keys, partial updates) every column must be given. Raises DataError.
    """
    objects = _object_columns(data, columns)
    rows = as_rows(data.drop(columns=list(objects)) if objects else data)
    by_name = {column.name: column for column in columns}
    given = _given_names(rows) | dict.fromkeys(objects)
    unknown = [name for name in given if name not in by_name]
    if unknown:
        raise DataError(
            f"{table}: unknown column {_names(unknown)}; the columns are {', '.join(by_name)}",
            column=unknown[0],
        )
    count = len(data) if objects else len(rows) if isinstance(rows, list) else rows.num_rows
    missing = [
        c.name
        for c in columns
        if c.name not in given and not (fill_missing and (c.nullable or c.default is not None))
    ]
    if missing and (count or not isinstance(rows, list)):
        raise DataError(f"{table}: column {_names(missing)} is missing", column=missing[0])
    arrays = []
    for column in columns:
        target = column.type.arrow()
        if column.name not in given:
            array: Any = pa.nulls(count, target)
            if fill_missing and column.default is not None:
                array = pa.repeat(column.default_scalar(), count)
        elif column.name in objects:
            array = _from_values(objects[column.name], column, table)
        elif isinstance(rows, list):
            array = _from_values([row.get(column.name) for row in rows], column, table)
            if fill_missing and column.default is not None:
                left_out = pa.array([column.name not in row for row in rows], pa.bool_())
                array = pc.if_else(left_out, column.default_scalar(), array)
        else:
            array = _cast(rows.column(column.name), column, table)
        if not column.nullable and array.null_count:
            raise DataError(
                f"{table}: column '{column.name}' is NOT NULL, but row {_first_null(array)} has no value",
                column=column.name,
                row=_first_null(array),
            )
        if has_rules(column.type):
            _check_inside(array, column, table)
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema([column.field() for column in columns]))


def bare_keys(values: Sequence[Any], column: Column) -> pa.Table | None:
    """Return a few values as a table of one key column, faster than `conform`.

    None for values that `conform` has to convert or refuse.
    """
    if not values or column.type.is_nested or has_rules(column.type):
        return None
    try:
        array = array_of(values, column.type.arrow())
    except MisfitError:
        return None
    return None if array.null_count else pa.table([array], schema=pa.schema([column.field()]))


def as_rows(data: Data) -> pa.Table | list[Mapping[str, Any]]:
    """Return the data as an Arrow table, or mappings as a list. Raises DataError for anything else."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return [data]
    if hasattr(data, "iloc") and hasattr(data, "dtypes"):
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "collect_schema") and hasattr(data, "lazy") and not hasattr(data, "get_columns"):
        raise DataError("a polars LazyFrame has no rows yet: give frame.collect()")
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes, bytearray)):
        for index, row in enumerate(data):
            if not isinstance(row, Mapping):
                raise DataError(
                    f"row {index} is a {type(row).__name__}; give dicts of column names and values", row=index
                )
        return list(data)
    raise DataError(
        f"cannot take rows from a {type(data).__name__}: give a pyarrow Table or RecordBatch, "
        "a list of dicts, or a pandas or polars DataFrame"
    )


def _object_columns(data: Data, columns: Sequence[Column]) -> dict[str, list[Any]]:
    """Return the columns of a pandas DataFrame that are Python objects, of which Arrow would have to guess the types.

    A dict, for example, may be a MAP or a ROW. A float that is NaN is pandas' null.
    """
    if not (hasattr(data, "iloc") and hasattr(data, "dtypes")):
        return {}
    names = [column.name for column in columns if list(data.columns).count(column.name) == 1]
    return {
        name: [None if isinstance(value, float) and value != value else value for value in data[name]]
        for name in names
        if data[name].dtype == object
    }


def _given_names(rows: pa.Table | list[Mapping[str, Any]]) -> dict[str, None]:
    if not isinstance(rows, list):
        names = rows.column_names
        twice = [name for index, name in enumerate(names) if name in names[:index]]
        if twice:
            raise DataError(f"column {_names(twice)} is given twice", column=twice[0])
        return dict.fromkeys(names)
    return dict.fromkeys(name for row in rows for name in row)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _first_null(array: Any) -> int:
    return int(pc.index(pc.is_null(array), True).as_py())


def _check_inside(array: Any, column: Column, table: str) -> None:
    row = 0
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        try:
            check_inside(column, chunk)
        except RowError as error:
            raise DataError(
                f"{table}: row {row + error.index}, column '{column.name}': {error.reason}",
                column=column.name,
                row=row + error.index,
            ) from None
        row += len(chunk)


def _nested_from_values(values: list[Any], column: Column, table: str) -> pa.Array:
    """Convert Python values to an array of an ARRAY, MAP or ROW, one part after the other."""
    data_type, arrow_type = column.type, column.type.arrow()
    valid = np.array([value is not None for value in values], np.bool_)
    if data_type.kind is TypeKind.ROW:
        names = [field.name for field in data_type.fields]
        rows = [_fields_of(value, names, column, table, row) for row, value in enumerate(values)]
        parts = [
            _part(field, [each[index] for each in rows], np.arange(len(values)), values, column, table)
            for index, field in enumerate(data_type.fields)
        ]
        return make_row(arrow_type, len(values), parts, None if valid.all() else valid)
    listed = [_entries_of(value, column, table, row) for row, value in enumerate(values)]
    counts = np.array([len(each) for each in listed], np.int64)
    flat = [entry for each in listed for entry in each]
    of = owners(counts)
    columns = [flat]
    if data_type.kind is TypeKind.MAP:
        columns = [[key for key, _ in flat], [value for _, value in flat]]
        nameless = [row for row, key in zip(of.tolist(), columns[0], strict=True) if key is None]
        if nameless:
            raise _unfit(column, table, nameless[0], values[nameless[0]], NULL_KEY)
    parts = [
        _part(field, each, of, values, column, table)
        for field, each in zip(data_type.fields, columns, strict=True)
    ]
    return make_entries(arrow_type, counts, parts, None if valid.all() else valid)


def _part(field: Field, inside: list[Any], of: Any, values: list[Any], column: Column, table: str) -> Any:
    """Return the array of one part of nested values; `of` has the index in `values` of each."""
    between = "." if column.type.kind is TypeKind.ROW else ":"
    part = Column(0, f"{column.name}{between}{field.name}", field.type)
    try:
        return _combined(_from_values(inside, part, table))
    except DataError as error:
        row = int(of[error.row or 0])
        inner = str(error).removeprefix(f"{table}: ").removeprefix(f"row {error.row}: ")
        raise _unfit(column, table, row, values[row], inner) from None


def _combined(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _fields_of(value: Any, names: list[str], column: Column, table: str, row: int) -> Sequence[Any]:
    if value is None:
        return [None] * len(names)
    if isinstance(value, Mapping):
        unknown = [str(name) for name in value if name not in names]
        if unknown:
            raise _unfit(column, table, row, value, f"it has no field '{unknown[0]}'")
        return [value.get(name) for name in names]
    if isinstance(value, tuple) and len(value) == len(names):
        return value
    raise _unfit(column, table, row, value, f"give a mapping, or a tuple of {len(names)} values")


def _entries_of(value: Any, column: Column, table: str, row: int) -> Sequence[Any]:
    """Return the elements of one ARRAY, or the pairs of one MAP."""
    if value is None:
        return ()
    if column.type.kind is TypeKind.MAP:
        if isinstance(value, Mapping):
            return list(value.items())
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
            pairs = [tuple(each) if isinstance(each, (list, tuple)) else () for each in value]
            if all(len(pair) == 2 for pair in pairs):
                return pairs
        raise _unfit(column, table, row, value, "give a mapping, or pairs of keys and values")
    if isinstance(value, np.ndarray) and value.ndim >= 1:
        return list(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return value
    raise _unfit(column, table, row, value, "give a list")


def _from_values(values: list[Any], column: Column, table: str) -> Any:
    if column.type.is_nested:
        return _nested_from_values(values, column, table)
    try:
        return pa.chunked_array([array_of(values, column.type.arrow())])
    except MisfitError as error:
        raise _unfit(column, table, error.row, values[error.row], error.reason) from None


def _unfit(column: Column, table: str, row: int | None, value: Any, reason: str) -> DataError:
    place = "" if row is None else f"row {row}: "
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    because = f" ({reason.strip().rstrip('.')})" if reason else ""
    return DataError(
        f"{table}: {place}{shown} does not fit column '{column.name}' of type {column.type}{because}",
        column=column.name,
        row=row,
    )


def _cast(array: Any, column: Column, table: str) -> Any:
    """Cast a chunked array to the column's type. Raises DataError, from the Arrow error, for a misfit."""
    target = column.type.arrow()
    if array.type == target:
        return array
    if pa.types.is_dictionary(array.type):
        array = _without_dictionary(array)
    if column.type.is_nested:
        return pa.chunked_array([_cast_nested(chunk, column, table) for chunk in array.chunks], target)
    given, wanted = family(array.type), family(target)
    if given == "null":
        return pa.chunked_array([pa.nulls(len(array), target)])
    if given not in ACCEPTED[wanted]:
        raise DataError(
            f"{table}: column '{column.name}' is {column.type}, which {_given(array.type)} does not fit",
            column=column.name,
        )
    if given == wanted == "timestamp" and array.type.tz is not None and target.tz is None:
        raise DataError(
            f"{table}: column '{column.name}' is {column.type}, which has no time zone, but the values have one "
            f"({array.type.tz}): convert them, or declare the column TIMESTAMP_LTZ",
            column=column.name,
        )
    try:
        return convert(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        row = first_unfit(array, target)
        value = None if row is None else python_value(array[row])
        raise _unfit(column, table, row, value, str(error)) from None


def _cast_nested(array: pa.Array, column: Column, table: str) -> pa.Array:
    def leaf(values: pa.Array, target: pa.DataType) -> pa.Array:
        inside = Column(0, f"inside of {column.name}", from_arrow(target))
        return _combined(_cast(pa.chunked_array([values]), inside, table))

    try:
        return cast(array, column.type.arrow(), leaf)
    except (DataError, pa.ArrowInvalid) as error:
        reason = str(error).removeprefix(f"{table}: ")
        raise DataError(
            f"{table}: column '{column.name}' is {column.type}, which the values do not fit: {reason}",
            column=column.name,
        ) from None


def _without_dictionary(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return categories as values. Arrow cannot cast dictionaries of views, which polars makes, directly."""
    value_type = array.type.value_type
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(value_type, value_type)
    chunks = [chunk.dictionary.cast(plain).take(chunk.indices) for chunk in array.chunks]
    return pa.chunked_array(chunks, type=plain)


def _given(arrow_type: pa.DataType) -> str:
    return f"an Arrow {arrow_type}"
