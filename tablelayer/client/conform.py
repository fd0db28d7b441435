"""Turning what people have into what the table takes: one pa.Table with the schema's columns, types and
order.

Accepted: pa.Table, pa.RecordBatch, a mapping or a sequence of mappings, a pandas DataFrame, and anything with
`__arrow_c_stream__` (polars, DuckDB relations). Rules, each with an error that names the column:

- an unknown column is refused; a column that is not given has its default, or is null; a NOT NULL one must be
  there unless it has a default, and have no null;
- a value keeps its meaning or is refused: integers may widen or narrow if they fit, text may become a date,
  time, timestamp or decimal, a float becomes a decimal only if it stands for exactly that decimal; numbers
  never become text, nor text numbers, nor booleans either;
- a timestamp with a time zone is an instant and fits TIMESTAMP_LTZ; without one, TIMESTAMP (naive values
  given for TIMESTAMP_LTZ are taken as UTC).

Whole columns at a time; single rows are looked at only to find the first offender after a column has been
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.client.errors import DataError
from tablelayer.model.schema import Column

#: What the write and lookup calls take.
Data = Any


def conform(data: Data, columns: Sequence[Column], *, table: str, fill_missing: bool = True) -> pa.Table:
    """`data` as a table with exactly `columns` in that order and their Arrow types.

    With `fill_missing=False` (keys, partial updates) every column must be given. Raises DataError.
    """
    rows = as_rows(data)
    by_name = {column.name: column for column in columns}
    given = _given_names(rows)
    unknown = [name for name in given if name not in by_name]
    if unknown:
        raise DataError(
            f"{table}: unknown column {_names(unknown)}; the columns are {', '.join(by_name)}",
            column=unknown[0],
        )
    count = len(rows) if isinstance(rows, list) else rows.num_rows
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
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema([column.field() for column in columns]))


def as_rows(data: Data) -> pa.Table | list[Mapping[str, Any]]:
    """The data as an Arrow table or, if it was mappings, a list of them. Raises DataError for anything
    else.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return [data]
    if hasattr(data, "iloc") and hasattr(data, "dtypes"):
        return pa.Table.from_pandas(data, preserve_index=False)
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


_ARROW_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,
    ValueError,
)


def _from_values(values: list[Any], column: Column, table: str) -> Any:
    # Arrow infers the type that the values have; given the wanted type it would silently cut 1.5 to 1.
    try:
        return _cast(pa.chunked_array([pa.array(values)]), column, table)
    except _ARROW_ERRORS:
        pass  # several kinds of values, or one that does not fit (DataError is a ValueError): one by one
    chunks = []
    for row, value in enumerate(values):
        try:
            chunks += _cast(pa.chunked_array([pa.array([value])]), column, table).chunks
        except DataError as error:
            raise _unfit(column, table, row, value, str(error.__cause__ or "")) from error
        except _ARROW_ERRORS as error:
            raise _unfit(column, table, row, value, str(error)) from error
    return pa.chunked_array(chunks, type=column.type.arrow())


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


def _family(arrow_type: pa.DataType) -> str:
    types = pa.types
    tests = (
        ("null", types.is_null),
        ("boolean", types.is_boolean),
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("text", lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t)),
        (
            "bytes",
            lambda t: (
                types.is_binary(t)
                or types.is_large_binary(t)
                or types.is_fixed_size_binary(t)
                or types.is_binary_view(t)
            ),
        ),
        ("date", types.is_date),
        ("time", types.is_time),
        ("timestamp", types.is_timestamp),
    )
    for name, test in tests:
        if test(arrow_type):
            return name
    return "other"


#: Families of given values that may become a family of columns, if `_cast`'s own checks agree.
_ACCEPTED = {
    "boolean": {"boolean"},
    "integer": {"integer", "float", "decimal"},
    "float": {"float", "integer", "decimal"},
    "decimal": {"decimal", "integer", "float", "text"},
    "text": {"text"},
    "bytes": {"bytes"},
    "date": {"date", "text", "timestamp"},
    "time": {"time", "text"},
    "timestamp": {"timestamp", "text", "date"},
}


def _cast(array: Any, column: Column, table: str) -> Any:
    """A chunked array in the column's type; raises DataError, its cause the Arrow error, if a value does not
    fit.
    """
    target = column.type.arrow()
    if array.type == target:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    given, wanted = _family(array.type), _family(target)
    if given == "null":
        return pa.chunked_array([pa.nulls(len(array), target)])
    if given not in _ACCEPTED[wanted]:
        raise DataError(
            f"{table}: column '{column.name}' is {column.type}, which {_given(array.type)} does not fit",
            column=column.name,
        )
    if given == wanted == "timestamp" and array.type.tz is not None and target.tz is None:
        raise DataError(
            f"{table}: column '{column.name}' is {column.type}, without a time zone, but the values have one "
            f"({array.type.tz}): convert them, or declare the column TIMESTAMP_LTZ",
            column=column.name,
        )
    try:
        return _convert(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        row = _first_unfit(array, target)
        value = None if row is None else array[row].as_py()
        raise _unfit(column, table, row, value, str(error)) from error


def _given(arrow_type: pa.DataType) -> str:
    return f"an Arrow {arrow_type}"


def _convert(array: Any, target: pa.DataType) -> Any:
    """Arrow's safe cast, and the conversions in which it is too strict or not strict enough. Raises Arrow's
    errors.
    """
    given, wanted = _family(array.type), _family(target)
    if wanted == "decimal" and given == "float":
        return _exact_decimal(array, target)
    if wanted == "float" and given == "decimal":
        return array.cast(pa.string()).cast(
            target
        )  # Arrow's own cast multiplies: 0.83 becomes 0.8300000000000001
    if wanted == "decimal" and given == "integer":
        array = array.cast(pa.decimal128(20, 0))
    if wanted == "date" and given == "timestamp":
        dates = array.cast(target)
        if not pc.all(pc.equal(dates.cast(array.type), array)).as_py() and array.null_count < len(array):
            raise pa.ArrowInvalid("it has a time of day")
        return dates
    if wanted == "time" and given == "text":
        instants = pc.binary_join_element_wise("1970-01-01T", array.cast(pa.string()), "")
        return instants.cast(pa.timestamp(target.unit)).cast(target)
    if wanted == "timestamp" and given == "text" and target.tz is not None:
        try:
            return array.cast(target)
        except pa.ArrowInvalid:
            return pc.assume_timezone(array.cast(pa.timestamp(target.unit)), target.tz)
    return array.cast(target, safe=True)


def _exact_decimal(array: Any, target: pa.DataType) -> Any:
    converted = array.cast(target)
    back = converted.cast(array.type)
    same = pc.or_kleene(pc.equal(back, array), pc.is_null(array))
    if not pc.all(same).as_py():
        row = pc.index(pc.fill_null(same, False), False).as_py()
        raise pa.ArrowInvalid(f"row {row}: the float is not exactly a number with {target.scale} decimals")
    return converted


def _first_unfit(array: Any, target: pa.DataType) -> int | None:
    """By halving: the first row that cannot be cast."""
    if len(array) == 0:
        return None
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(array.slice(low, middle - low), target):
            low = middle
        else:
            high = middle
    return None if _fits(array.slice(low, 1), target) else low


def _fits(array: Any, target: pa.DataType) -> bool:
    try:
        _convert(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False
    return True
