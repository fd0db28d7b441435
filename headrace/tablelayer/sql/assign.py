"""Convert values of queries and files to the types of columns: one rule for INSERT, UPDATE, COPY and CREATE TABLE AS.

- Digits of a second beyond the column's precision are cut off downwards (to the earlier moment), and so is the time of
  day in a date column. A moment without a zone is UTC; one with a zone is converted to UTC.
- Numbers are rounded, and texts read, as DuckDB casts them.
- A value out of range is an error. Nothing wraps around, and only floats are converted by way of floats.

Dates and times never use DuckDB's casts, which round, lose nanoseconds or wrap around at their limits: they are whole
numbers here. DuckDB reads only texts that are not ISO 8601. Whole columns are converted at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client import DataError
from headrace.tablelayer.model.arrays.arrays import validity
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json.python_values import python_value
from headrace.tablelayer.model.json.rows import Field, find_rows
from headrace.tablelayer.model.json.texts import JsonTexts
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.rows.nested import (
    cast,
    entries,
    is_nested,
    make_entries,
    make_row,
    row_fields,
    ticks_per_digit,
)
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import (
    BINARY_KINDS,
    NUMERIC_KINDS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
)
from headrace.tablelayer.sql.duck import connect
from headrace.tablelayer.sql.types import duckdb_type

_TEMPORAL = TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME}
_READ_EXACTLY = _TEMPORAL | NUMERIC_KINDS | {TypeKind.BOOLEAN}
"""Types whose usual texts the JSON kernels read, fast and exactly."""
_DAY_NANOS = 86_400 * 10**9
_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_LAST = {32: (1 << 31) - 1, 64: (1 << 63) - 1}
_DATE_SHAPE = r"([+-][0-9]{4,9}|[0-9]{4})-[0-9]{2}-[0-9]{2}"
_CLOCK_SHAPE = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
_ZONE_SHAPE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)"


class Assignment:
    """Converts rows to the types of `columns`, in order. Errors name `table`. Close it after use."""

    def __init__(self, columns: Sequence[Column], table: str) -> None:
        self.columns = columns
        self._table = table

    def __enter__(self) -> Assignment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the DuckDB database of the casts. Idempotent."""
        database = self.__dict__.pop("_database", None)
        if database is not None:
            database.close()

    def rows(self, rows: pa.Table) -> pa.Table:
        """Convert rows of any types. Raises DataError for the first value that does not fit."""
        arrays = [
            self._column(array, column) for array, column in zip(rows.columns, self.columns, strict=True)
        ]
        return pa.table(arrays, names=[column.name for column in self.columns])

    def objects(self, texts: pa.Array, names: Sequence[str], *, every: bool = False) -> pa.Table:
        """Convert JSON objects whose fields have these names; `every`: others are refused. Raises DataError."""
        columns = [
            replace(column, name=name, default=None) for column, name in zip(self.columns, names, strict=True)
        ]
        try:
            batch = self._of_json(texts, columns, UnknownFields.FAIL if every else UnknownFields.IGNORE)
        except RowError as error:
            raise DataError(f"{self._table}: {error.message}", column=error.column, row=error.index) from None
        return pa.table(batch.columns, names=[column.name for column in self.columns])

    def _column(self, array: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
        target, done, arrays = column.type.arrow(), 0, []
        for chunk in array.chunks:
            try:
                arrays.append(self._value(chunk, column))
            except RowError as error:
                value = python_value(chunk[error.index])
                raise DataError(
                    f"{self._table}: {_shown(value)} does not fit column '{column.name}' of type {column.type} "
                    f"({error.reason})",
                    column=column.name,
                    row=done + error.index,
                ) from None
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"{self._table}: column '{column.name}' is {column.type}, which the values do not fit: {error}",
                    column=column.name,
                ) from None
            done += len(chunk)
        return pa.chunked_array(arrays, target)

    def _value(self, array: pa.Array, column: Column) -> pa.Array:
        """Convert an array. Raises RowError, and pa.ArrowInvalid for a nested value that does not fit."""
        data_type, target = column.type, column.type.arrow()
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), target)
        if is_nested(target):
            if not is_nested(array.type):
                return self._of_texts(array, column)
            try:
                return _cut(cast(_by_place(array, data_type), target, self._leaf), data_type)
            except RowError as error:
                raise pa.ArrowInvalid(error.reason) from error
        return self._plain(array, data_type)

    def _leaf(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        from headrace.tablelayer.model.types.column_types import from_arrow

        return self._plain(array, from_arrow(target))

    def _plain(self, array: pa.Array, data_type: DataType) -> pa.Array:
        given, target = array.type, data_type.arrow()
        if pa.types.is_null(given):
            return pa.nulls(len(array), target)
        if given == target and data_type.kind is not TypeKind.TIME:  # DuckDB's TIME can be 24:00
            return _cut(array, data_type)
        if pa.types.is_string(given) and data_type.kind in _READ_EXACTLY:
            with suppress(RowError):  # the other casts are slower, but accept more
                return _read(array, data_type)
        if data_type.kind in _TEMPORAL:
            if pa.types.is_temporal(given) and not pa.types.is_interval(given):
                return _moments(array, data_type)
            if pa.types.is_string(given):
                return self._read_moments(array, data_type)
        return self._cast(array, data_type)

    def _cast(self, array: pa.Array, data_type: DataType) -> pa.Array:
        """Cast an array by DuckDB. Raises RowError."""
        import duckdb

        wanted = duckdb_type(data_type)
        self._database.register("given", pa.table([array], names=["x"]))
        try:
            found = (
                self._database.sql(f"SELECT CAST(x AS {wanted}) AS x FROM given").to_arrow_table().column(0)
            )
        except duckdb.Error as error:
            raise RowError(self._first_unfit(array, wanted), None, _reason(error)) from error
        finally:
            self._database.unregister("given")
        found = found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
        if found.type == data_type.arrow():
            return found
        try:
            return found.cast(data_type.arrow())
        except pa.ArrowInvalid as error:
            lengths = pc.binary_length(found) if pa.types.is_binary(found.type) else None
            at = 0
            if lengths is not None and data_type.kind is TypeKind.BINARY:
                at = int(pc.index(pc.not_equal(lengths, data_type.length), True).as_py())
            raise RowError(at, None, str(error)) from error

    def _first_unfit(self, array: pa.Array, wanted: str) -> int:
        """Return the first row of `given` that DuckDB cannot cast."""
        import duckdb

        try:
            ((row,),) = self._database.sql(
                "SELECT min(i) FROM (SELECT row_number() OVER () - 1 AS i, x FROM given) "
                f"WHERE x IS NOT NULL AND TRY_CAST(x AS {wanted}) IS NULL"
            ).fetchall()
        except duckdb.Error:  # DuckDB has no such cast at all
            row = None
        return _first_present(array) if row is None else int(row)

    def _read_moments(self, texts: pa.Array, data_type: DataType) -> pa.Array:
        """Read dates and times in ISO 8601 exactly, and other texts by DuckDB."""
        trimmed = pc.utf8_trim_whitespace(texts)
        regular = pc.match_substring_regex(trimmed, _shape(data_type))
        strange = pc.and_(pc.is_valid(texts), pc.invert(pc.fill_null(regular, True)))
        read = _read_regular(pc.if_else(strange, None, trimmed), data_type)
        if not pc.any(strange).as_py():
            return read
        at = np.flatnonzero(strange.to_numpy(zero_copy_only=False))
        coarse = {
            TypeKind.DATE: "DATE", TypeKind.TIME: "TIME_NS", TypeKind.TIMESTAMP: "TIMESTAMP",
            TypeKind.TIMESTAMP_LTZ: "TIMESTAMPTZ",
        }[data_type.kind]  # fmt: skip
        try:
            found = _moments(self._read_by_duckdb(texts.take(pa.array(at)), coarse), data_type)
        except RowError as error:
            raise RowError(int(at[error.index]), None, error.reason) from error
        return pc.replace_with_mask(read, strange, found)

    def _read_by_duckdb(self, texts: pa.Array, wanted: str) -> pa.Array:
        types = {
            "DATE": DataType(TypeKind.DATE), "TIME_NS": DataType(TypeKind.TIME, precision=9),
            "TIMESTAMP": DataType(TypeKind.TIMESTAMP, precision=6),
            "TIMESTAMPTZ": DataType(TypeKind.TIMESTAMP_LTZ, precision=6),
        }  # fmt: skip
        return self._cast(texts, types[wanted])

    def _of_json(
        self, texts: pa.Array, columns: Sequence[Column], unknown: UnknownFields = UnknownFields.IGNORE
    ) -> pa.RecordBatch:
        """Read JSON objects. NaN and infinities as bare words are looked for only if a text is not JSON."""

        def read(given: pa.Array) -> pa.RecordBatch:
            found = find_rows(JsonTexts.of(given), tuple(columns), unknown_fields=unknown)
            # Fields inside of nested values may be unknown.
            rows = msgspec.structs.replace(found, fail_unknown=False).rows(columns, make_field=self._field)
            if found.error is not None:
                raise found.error
            return rows.rows

        try:
            return read(texts)
        except RowError:
            mended = _with_json_numbers(texts)
            if mended is texts:
                raise
            return read(mended)

    def _of_texts(self, texts: pa.Array, column: Column) -> pa.Array:
        """Read nested values from JSON, or from DuckDB's own text of them."""
        if not pa.types.is_string(texts.type):
            return self._cast(texts, column.type)
        objects = pc.binary_join_element_wise('{"v":', pc.fill_null(texts, "null"), "}", "")
        wanted = replace(column, name="v", nullable=True, default=None)
        try:
            return self._of_json(objects, [wanted]).column(0)
        except RowError as error:
            if error.column is not None:
                raise RowError(error.index, None, error.reason.removeprefix("v")) from error
        return self._value(self._cast(texts, column.type), column)

    def _field(self, *arguments: Any) -> _FileField:
        field = _FileField(*arguments)
        field.assignment = self
        return field

    @cached_property
    def _database(self) -> Any:
        return connect(files=False)


class _FileField(Field):
    """A column's values in JSON of any program. They are read as the same texts in CSV are."""

    assignment: Assignment

    def convert(self) -> pa.Array:
        data_type = self.column.type
        if data_type.is_nested:
            return super().convert()
        if data_type.kind in _READ_EXACTLY:
            with suppress(RowError):
                return super().convert()
        texts = self.text(pa.string())
        if data_type.kind in TEXT_KINDS:
            return texts
        if data_type.kind not in BINARY_KINDS:
            texts = without_blanks(texts)
        try:
            return self.assignment._plain(texts, data_type)
        except RowError as error:
            reason = f"{self.excerpt(error.index)} does not fit {data_type} ({error.reason})"
            raise RowError(error.index, self.column.name, reason) from error


def without_blanks(texts: pa.Array) -> pa.Array:
    """Replace empty texts by null, for types without an empty text."""
    if not len(texts):
        return texts
    empty = np.diff(np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)) == 0
    present = validity(texts)
    if not (empty if present is None else empty & present).any():
        return texts  # replacing none takes as long as reading them
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), None, texts)


# Dates and times


def _moments(array: pa.Array, data_type: DataType) -> pa.Array:
    """Convert dates and times of any Arrow type to a column's type. Raises RowError."""
    given, target, kind = array.type, data_type.arrow(), data_type.kind
    if given == target and kind is not TypeKind.TIME:
        return _cut(array, data_type)
    is_time = pa.types.is_time(given)
    if is_time is not (kind is TypeKind.TIME) and (is_time or pa.types.is_date(given)):
        raise RowError(_first_present(array), None, f"{given} cannot become {data_type}")
    ticks = _ticks(array)
    present = validity(array)
    there = np.ones(len(ticks), np.bool_) if present is None else present
    last = _LAST[given.bit_width]
    source = (
        _DAY_NANOS if pa.types.is_date32(given) else _NANOS["ms" if pa.types.is_date64(given) else given.unit]
    )
    unit = _DAY_NANOS if kind is TypeKind.DATE else _NANOS[data_type.unit]
    if given != target and not is_time:
        infinite = there & (np.abs(ticks) == last)
        _refuse(infinite, "infinity is not a value of the column")
    if kind is TypeKind.TIME:
        day = _DAY_NANOS // source
        if not is_time:
            ticks = ticks % day
        _refuse(there & ((ticks < 0) | (ticks >= day)), "a time of day must be before 24:00")
    if source > unit:
        factor = source // unit
        bound = _LAST[64] // factor
        _refuse(there & ((ticks > bound) | (ticks < -((1 << 63) // factor))), "it is out of range")
        ticks = np.where(there, ticks, 0) * factor
    else:
        ticks = ticks // (unit // source)
    limit = _LAST[target.bit_width]
    _refuse(there & ((ticks > limit) | (ticks < -limit - 1)), "it is out of range")
    ticks = np.where(there, ticks, 0).astype(np.int32 if target.bit_width == 32 else np.int64)
    return _cut(_of_ticks(ticks, array, target), data_type)


def _cut(array: pa.Array, data_type: DataType) -> pa.Array:
    """Cut off the digits of a second that Arrow's unit has beyond the column's precision. Raises RowError."""
    if not _is_finer(data_type):
        return array
    if data_type.is_nested:
        valid, target = validity(array), data_type.arrow()
        if data_type.kind is TypeKind.ROW:
            fields = [
                _cut(each, field.type)
                for each, field in zip(row_fields(array), data_type.fields, strict=True)
            ]
            return make_row(target, len(array), fields, valid)
        counts, parts = entries(array)
        parts = [_cut(each, field.type) for each, field in zip(parts, data_type.fields, strict=True)]
        return make_entries(target, counts, parts, valid)
    step = ticks_per_digit(data_type)
    ticks = _ticks(array)
    rest = ticks % step
    if not rest.any():
        return array
    _refuse(np.asarray(array.is_valid()) & (ticks < -_LAST[64] - 1 + rest), "it is out of range")
    cut = (ticks - rest).astype(np.int32 if array.type.bit_width == 32 else np.int64)
    return _of_ticks(cut, array, data_type.arrow())


def _is_finer(data_type: DataType) -> bool:
    """Return whether a column's Arrow type has more digits of a second than the column, or a part of it."""
    return ticks_per_digit(data_type) > 1 or any(_is_finer(field.type) for field in data_type.fields)


def _ticks(array: pa.Array) -> np.ndarray:
    """Return the values as int64[n], 0 for null."""
    whole = pa.int32() if array.type.bit_width == 32 else pa.int64()
    found: np.ndarray = pc.fill_null(array.view(whole), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _of_ticks(ticks: np.ndarray, array: pa.Array, target: pa.DataType) -> pa.Array:
    """Make an array of a date or time type, null where `array` is null."""
    mask = None if array.null_count == 0 else array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(ticks, mask=mask).view(target)


def _refuse(wrong: np.ndarray, reason: str) -> None:
    if wrong.any():
        raise RowError(int(wrong.argmax()), None, reason)


def _shape(data_type: DataType) -> str:
    if data_type.kind is TypeKind.DATE:
        return f"^{_DATE_SHAPE}$"
    if data_type.kind is TypeKind.TIME:
        return f"^{_CLOCK_SHAPE}$"
    return f"^{_DATE_SHAPE}([T ]{_CLOCK_SHAPE} *{_ZONE_SHAPE}?)?$"


def _read_regular(texts: pa.Array, data_type: DataType) -> pa.Array:
    """Read texts that have the type's `_shape`, or are null. Raises RowError."""
    kind = data_type.kind
    if kind is not TypeKind.DATE:
        digits = rf"(\.[0-9]{{{data_type.precision}}})[0-9]+" if data_type.precision else r"(\.)[0-9]+"
        texts = pc.replace_substring_regex(texts, digits, r"\1" if data_type.precision else "")
    if kind in TIMESTAMP_KINDS:
        dated = pc.match_substring_regex(texts, f"^{_DATE_SHAPE}$")
        texts = pc.if_else(dated, pc.binary_join_element_wise(texts, "T00:00:00", ""), texts)
        texts = pc.replace_substring_regex(texts, r" +(Z|[+-])", r"\1")
    if kind is TypeKind.TIMESTAMP_LTZ:
        zoned = pc.match_substring_regex(texts, rf":[0-9.]+{_ZONE_SHAPE}$")
        texts = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return _read(texts, data_type)


def _read(texts: pa.Array, data_type: DataType) -> pa.Array:
    """Read texts by the JSON kernels. Raises RowError for the first that they do not accept."""
    if texts.offset:
        texts = pa.concat_arrays([texts])
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(texts) + 1) if len(texts) else np.zeros(1, np.int32)
    size = int(offsets[-1])
    data = np.empty(size + json_scan.PADDING, np.uint8)
    data[size:] = 0
    if size:
        data[:size] = np.frombuffer(data_buffer, np.uint8, size)
    kinds = np.full(len(texts), json_scan.STRING, np.uint8)
    present = validity(texts)
    if present is not None:
        kinds[~present] = json_scan.NULL
    return Field(Column(0, "v", data_type), data, offsets[:-1].copy(), np.diff(offsets), kinds).convert()


# Texts


_NO_JSON_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?(?:NaN|Infinity)')


def _with_json_numbers(texts: pa.Array) -> pa.Array:
    """Quote NaN and infinities in JSON texts: DuckDB and Python write them as bare words."""
    suspects = pc.or_(pc.match_substring(texts, "NaN"), pc.match_substring(texts, "Infinity"))
    if not pc.any(suspects).as_py():
        return texts
    mended = [
        _NO_JSON_NUMBER.sub(lambda found: found[0] if found[0][0] == '"' else f'"{found[0]}"', text)
        for text in texts.filter(suspects).to_pylist()
    ]
    return pc.replace_with_mask(texts, pc.fill_null(suspects, False), pa.array(mended, texts.type))


def _by_place(array: pa.Array, data_type: DataType) -> pa.Array:
    """Give the fields of DuckDB's row(...), which have no names, the names of a ROW."""
    names = [f"element{place}" for place in range(1, len(data_type.fields) + 1)]
    if data_type.kind is not TypeKind.ROW or not pa.types.is_struct(array.type):
        return array
    if [field.name for field in array.type] != names or names == [field.name for field in data_type.fields]:
        return array
    named = [
        pa.field(wanted.name, field.type) for wanted, field in zip(data_type.fields, array.type, strict=True)
    ]
    return make_row(pa.struct(named), len(array), row_fields(array), validity(array))


def _first_present(array: pa.Array) -> int:
    return max(0, int(pc.index(pc.is_valid(array), True).as_py()))


def _shown(value: Any) -> str:
    shown = (
        value if type(value).__module__ in ("datetime", "decimal") or isinstance(value, int) else repr(value)
    )
    text = str(shown)
    return text if len(text) <= 60 else text[:57] + "..."


def _reason(error: Exception) -> str:
    text = str(error).strip().split("\n")[0].split("Error: ", 1)[-1]
    return text.removesuffix(" when casting from source column x").rstrip(".")
