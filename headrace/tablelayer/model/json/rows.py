"""Conversion of rows to JSON and back, for whole batches, exact to the last digit.

Writing (`rows_to_json`): one compact JSON object per row, all columns in order, null written as null. Reading
(`json_to_rows`): one JSON object per row. A missing field gets the column's default, or null; of a field that occurs
twice the last value counts.

| type | written as | read from |
|---|---|---|
| integers | number | number or string; 12.0 and 1.2e1 are 12, 12.5 is refused |
| DECIMAL | number with all digits of its scale | number or string, exact; digits beyond the scale must be 0 |
| FLOAT, DOUBLE | shortest number that reads back the same; "NaN", "Infinity" | number or string |
| BOOLEAN | true, false | these, or strings of these words |
| CHAR, STRING | string | string; a number, boolean, object or array gives its JSON text |
| DATE | "2024-09-19" | the same; years beyond 9999 signed, as in "+10000-01-01" |
| TIME | "12:00:00", with a fraction according to the type | the same; seconds may be left out |
| TIMESTAMP | "2024-09-19T12:00:00.000", 6 or 9 digits when needed | the same; Z but no other zone |
| TIMESTAMP_LTZ | the same with Z | with Z or an offset such as +02:00, which is required |
| BINARY, BYTES | base64 | base64, padded |
| ROW | object, all fields in order | object; missing fields are null |
| ARRAY | array | array |
| MAP with CHAR, STRING keys | object | object; of a key that occurs twice the last value counts |
| other MAPs | array of pairs, as in [[1,"a"],[2,"b"]] | the same, or an object of the keys' texts |

Nothing is rounded or cut: a value that does not fit is a `RowError` with the row's index, the column and the reason,
and the whole batch fails. Invalid UTF-8, and lone surrogates in a column's text, are refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import containers as json_containers
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json import values as json_values
from headrace.tablelayer.model.json.texts import (
    EXCERPT_LENGTH,
    FoundFields,
    JsonTexts,
    find_fields,
    wanted_fields,
)
from headrace.tablelayer.model.json.unavailable import Placeholder
from headrace.tablelayer.model.json.write import rows_to_json
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.rows.nested import last_of_each_key, make_entries, make_row, owners
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types.column_types import (
    INTEGER_BITS,
    STRING,
    TEXT_KINDS,
    DataType,
    TypeKind,
    more_digits,
)
from headrace.tablelayer.model.types.sizes import RowBytes, RowCost, value_width

__all__ = [
    "Field",
    "FoundFields",
    "FoundRows",
    "JsonTexts",
    "Rows",
    "find_fields",
    "find_rows",
    "json_to_rows",
    "rows_to_json",
    "warm",
]

_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NUMPY_INTEGERS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_FOUND_BYTES = 9  # per field: start, length, kind


def json_to_rows(
    values: pa.Array | JsonTexts,
    schema: Schema | Sequence[Column],
    *,
    unknown_fields: UnknownFields = UnknownFields.IGNORE,
    require_all: bool = False,
    make_field: Callable[..., Field] | None = None,
) -> pa.RecordBatch:
    """Return the rows of n JSON objects as a record batch of n rows.

    values: n binary or string values, UTF-8, or texts inside of a batch that was read before. schema: the columns to
    read, in order; other fields are ignored or, with `unknown_fields` FAIL, refused. `require_all` refuses rows that
    lack a column. `make_field`: the class that reads a column's values, by default `Field`. Raises RowError for the
    first row that does not fit.
    """
    columns = schema.columns if isinstance(schema, Schema) else tuple(schema)
    texts = values if isinstance(values, JsonTexts) else JsonTexts.of(values)
    found = find_rows(texts, columns, unknown_fields=unknown_fields)
    rows = found.rows(columns, require_all=require_all, make_field=make_field)
    if found.error is not None:
        raise found.error
    return rows.rows


def find_rows(
    texts: JsonTexts,
    columns: Sequence[Column],
    *,
    extra: Sequence[str] = (),
    unknown_fields: UnknownFields = UnknownFields.IGNORE,
) -> FoundRows:
    """Find the values of n JSON objects, to be converted in parts. extra: fields besides the columns."""
    sizes = RowBytes(len(texts))
    every = (*columns, *(Column(-1 - index, name, STRING) for index, name in enumerate(extra)))
    sizes.add(len(texts), RowCost.of(columns).width + _FOUND_BYTES * len(every))
    fail_unknown = unknown_fields != UnknownFields.IGNORE
    found = find_fields(texts, every, fail_unknown=fail_unknown)
    return FoundRows(texts.data, found, len(columns), fail_unknown, sizes)


class Rows(msgspec.Struct, frozen=True):
    """Converted rows. kept: by column id, bool[n]: values that the writer does not know (null in `rows`)."""

    rows: pa.RecordBatch
    kept: dict[int, Mask]


class FoundRows(msgspec.Struct, frozen=True):
    """Positions of the values of JSON objects, up to the first bad one."""

    data: np.ndarray
    found: FoundFields
    column_count: int
    fail_unknown: bool
    sizes: RowBytes

    @property
    def error(self) -> RowError | None:
        """The error of the first bad object; None if all are sound."""
        return self.found.error

    def __len__(self) -> int:
        return int(self.found.kinds.shape[1])

    def extra(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (kinds, starts, lengths) of a field besides the columns."""
        at = self.column_count + index
        return self.found.kinds[at], self.found.starts[at], self.found.lengths[at]

    def rows(
        self,
        columns: Sequence[Column],
        *,
        at: np.ndarray | None = None,
        of: Sequence[int] | None = None,
        require_all: bool = False,
        make_field: Callable[..., Field] | None = None,
        placeholder: Placeholder | None = None,
        unkept: Sequence[str] = (),
    ) -> Rows:
        """Return the values of these columns.

        at: the objects to convert, in order (None: all). of: the indices of the columns among those searched for
        (None: all). placeholder: the text that stands for an unknown value, except in the columns `unkept`. Raises
        RowError for the first value that does not fit, with its index in `at`.
        """
        found = self.found
        positions = range(len(columns)) if of is None else of
        reading = _Reading(make_field or Field, self.fail_unknown, self.sizes)
        fields = []
        for position, column in zip(positions, columns, strict=True):
            each = (found.starts[position], found.lengths[position], found.kinds[position])
            if at is not None:
                each = (each[0][at], each[1][at], each[2][at])
            field = reading.field(column, self.data, *each)
            if placeholder is not None and column.name not in unkept:
                field.leave_out(placeholder.cells(self.data, *each))
            fields.append(field)
        try:
            arrays = _filled(fields, require_all=require_all)
        except RowError as error:
            raise _of_column(error, columns) from None
        _, schema = wanted_fields(tuple(columns))
        kept = {field.column.id: field.left_out for field in fields if field.left_out is not None}
        return Rows(pa.RecordBatch.from_arrays(arrays, schema=schema), kept)


class _Reading(msgspec.Struct, frozen=True):
    """Settings for reading values, including those inside nested columns."""

    make_field: Callable[..., Field]
    fail_unknown: bool
    sizes: RowBytes

    def field(self, *arguments: Any) -> Field:
        field = self.make_field(*arguments)
        field.reading = self
        return field


def _converted(
    data: np.ndarray,
    found: FoundFields,
    columns: Sequence[Column],
    reading: _Reading,
) -> list[pa.Array]:
    """Return the values of the fields found. Raises RowError for the first text that does not fit."""
    fields = [
        reading.field(column, data, found.starts[i], found.lengths[i], found.kinds[i])
        for i, column in enumerate(columns)
    ]
    arrays = _filled(fields)
    if found.error is not None:
        raise found.error
    return arrays


def _filled(fields: Sequence[Field], *, require_all: bool = False) -> list[pa.Array]:
    """Return the values of all columns. Raises RowError for the first row that does not fit.

    After a failed scan the rows before it are still converted: one of them may be the first that does not fit.
    """
    arrays: list[pa.Array] = []
    worst: RowError | None = None
    for field in fields:
        try:
            field.check_presence(require_all)
            arrays.append(field.filled())
        except RowError as error:
            if worst is None or error.index < worst.index:
                worst = error
    if worst is not None:
        raise worst
    return arrays


def _of_column(error: RowError, columns: Sequence[Column]) -> RowError:
    """Return the error; an error inside a nested column becomes one of the column, with the position inside first."""
    place = error.column
    if place is None or any(place == column.name for column in columns):
        return error
    for column in columns:
        if column.type.is_nested and place.startswith((f"{column.name}.", f"{column.name}[")):
            return RowError(error.index, column.name, f"{place}: {error.reason}")
    return error


def warm() -> None:
    """Compile (or load from the cache) all kernels of this module."""
    from headrace.tablelayer.model.types import column_types as types

    kinds = [
        types.BOOLEAN, types.INT, types.DOUBLE, types.char(9), types.decimal(38, 2), types.DATE,
        types.time(3), types.timestamp(3), types.timestamp_ltz(6), types.binary(2), types.BYTES,
        types.array_of(types.INT), types.map_of(types.STRING, types.INT),
    ]  # fmt: skip
    columns = [Column(index, f"c{index}", kind) for index, kind in enumerate(kinds)]
    text = (
        '{"c0":true,"c1":1,"c2":1.5,"c3":"a","c4":1.25,"c5":"2024-09-19","c6":"12:00","c7":"2024-09-19T12:00:00",'
        '"c8":"2024-09-19T12:00:00Z","c9":"AAA=","c10":"AAA=","c11":[1],"c12":{"a":1}}'
    )
    rows_to_json(json_to_rows(pa.array([text.encode()], pa.binary()), columns))


class Field:
    """One wanted column: its values in each row as the scan found them, and their conversion."""

    def __init__(
        self,
        column: Column,
        data: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        kinds: np.ndarray,
    ) -> None:
        self.column = column
        self.reading = _Reading(Field, False, RowBytes(len(starts)))
        self.data = data
        self.starts = starts
        self.lengths = lengths
        self.kinds = kinds
        self.failure = np.zeros(1, dtype=np.int64)
        self.left_out: Mask | None = None

    def leave_out(self, cells: Mask | None) -> None:
        """Make cells null whose value the writer does not know; such a null is not an error."""
        if cells is not None:
            self.left_out = cells
            self.kinds = np.where(cells, json_scan.NULL, self.kinds).astype(np.uint8)

    def check_presence(self, require_all: bool) -> None:
        absent = None
        if not self.column.nullable:
            absent = self.kinds <= json_scan.NULL
            if self.column.default is not None:
                absent = self.kinds == json_scan.NULL
        elif require_all:
            absent = self.kinds == json_scan.MISSING
        if absent is not None and self.left_out is not None:
            absent = absent & ~self.left_out
        if absent is None or not absent.any():
            return
        row = int(np.argmax(absent))
        missing = self.kinds[row] == json_scan.MISSING
        # An earlier row may hold a value that does not fit; then that row is the first.
        copy(self)._first(row).convert()
        what = "the field is missing" if missing else "the value is null"
        raise RowError(
            row, self.column.name, what if self.column.nullable else f"{what}, but the column is NOT NULL"
        )

    def _first(self, count: int) -> Field:
        """Keep only the first rows."""
        self.starts, self.lengths, self.kinds = self.starts[:count], self.lengths[:count], self.kinds[:count]
        return self

    def filled(self) -> pa.Array:
        """Return the column's values, with its default where the field is missing."""
        values = self.convert()
        if self.column.default is None:
            return values
        missing = self.kinds == json_scan.MISSING
        if not missing.any():
            return values
        return pc.if_else(pa.array(missing), self.column.default_scalar(), values)

    def convert(self) -> pa.Array:
        """Return the column's values. Raises RowError for the first that does not fit."""
        data_type = self.column.type
        arguments = (self.data, self.starts, self.lengths, self.kinds)
        count = len(self.starts)
        match data_type.kind:
            case TypeKind.TINYINT | TypeKind.SMALLINT | TypeKind.INT | TypeKind.BIGINT:
                bits = INTEGER_BITS[data_type.kind]
                integers = np.zeros(count, dtype=np.int64)
                self.check(json_values.integers(*arguments, bits, integers, self.failure))
                return self.array(integers.astype(_NUMPY_INTEGERS[bits], copy=False))
            case TypeKind.DECIMAL:
                words = np.zeros((count, 2), dtype=np.int64)
                precision, scale = data_type.precision, data_type.scale
                self.check(json_values.decimals(*arguments, precision, scale, words, self.failure))
                return self.array(words)
            case TypeKind.CHAR:
                self.fail_at(json_values.longer_than(*arguments, data_type.length), json_values.TOO_LONG)
                return self.text(data_type.arrow())
            case TypeKind.STRING:
                return self.text(data_type.arrow())
            case TypeKind.DATE:
                days = np.zeros(count, dtype=np.int32)
                self.check(json_values.dates(*arguments, days, self.failure))
                return self.array(days)
            case TypeKind.TIMESTAMP | TypeKind.TIMESTAMP_LTZ:
                ticks = np.zeros(count, dtype=np.int64)
                zoned = data_type.kind is TypeKind.TIMESTAMP_LTZ
                units = _UNITS_PER_SECOND[data_type.unit]
                self.check(
                    json_values.timestamps(*arguments, data_type.precision, units, zoned, ticks, self.failure)
                )
                return self.array(ticks)
            case TypeKind.TIME:
                ticks = np.zeros(count, dtype=np.int64)
                units = _UNITS_PER_SECOND[data_type.unit]
                self.check(json_values.times(*arguments, data_type.precision, units, ticks, self.failure))
                return self.array(ticks.astype(np.int32) if data_type.precision <= 3 else ticks)
            case TypeKind.BOOLEAN:
                flags = np.zeros(count, dtype=np.bool_)
                self.check(json_values.booleans(*arguments, flags, self.failure))
                return self.array(np.packbits(flags, bitorder="little"))
            case TypeKind.FLOAT | TypeKind.DOUBLE:
                return self.floats(data_type)
            case TypeKind.BINARY | TypeKind.BYTES:
                return self.binary(data_type)
            case TypeKind.ROW:
                return self.row(data_type)
            case TypeKind.ARRAY | TypeKind.MAP:
                return self.entries(data_type)

    def containers(self) -> tuple[np.ndarray, JsonTexts]:
        """Return the rows that have an object or an array, and its text.

        Raises RowError for the first row that has another value.
        """
        is_container = self.kinds == json_scan.CONTAINER
        wrong = ~is_container & (self.kinds > json_scan.NULL)
        if wrong.any():
            self.fail_at(int(wrong.argmax()), json_values.WRONG_KIND)
        rows = np.flatnonzero(is_container)
        starts = self.starts[rows].astype(np.int64)
        return rows, JsonTexts(self.data, starts, starts + self.lengths[rows])

    def row(self, data_type: DataType) -> pa.Array:
        rows, texts = self.containers()
        wrong = self.data[texts.starts] != ord("{")
        if wrong.any():
            self.fail_at(int(rows[wrong.argmax()]), json_values.WRONG_KIND)
        columns = tuple(
            Column(index, field.name, field.type, field.nullable)
            for index, field in enumerate(data_type.fields)
        )
        sizes = self.reading.sizes
        # The values of this level were counted with their fields' widths; the positions found were not.
        sizes.add(len(self.kinds), _FOUND_BYTES * len(columns), self.column.name)
        found = find_fields(texts, columns, fail_unknown=self.reading.fail_unknown)
        placed = [replace(column, name=f"{self.column.name}.{column.name}") for column in columns]
        try:
            with sizes.inside(rows):
                arrays = _converted(self.data, found, placed, self.reading)
        except RowError as error:
            column = error.column
            if error is found.error:
                column = self.column.name if column is None else f"{self.column.name}.{column}"
            raise RowError(int(rows[error.index]), column, error.reason) from None
        valid = None
        if len(rows) < len(self.kinds):
            valid = np.zeros(len(self.kinds), np.bool_)
            valid[rows] = True
            at = np.zeros(len(self.kinds), np.int64)
            at[rows] = np.arange(len(rows))
            arrays = [array.take(pa.array(at, mask=~valid)) for array in arrays]
        return make_row(data_type.arrow(), len(self.kinds), arrays, valid)

    def entries(self, data_type: DataType) -> pa.Array:
        rows, texts = self.containers()
        is_map = data_type.kind is TypeKind.MAP
        mode = json_containers.ELEMENTS
        if is_map:
            by_text = data_type.fields[0].type.kind in TEXT_KINDS
            mode = json_containers.MEMBERS if by_text else json_containers.ENTRIES
        parts = json_containers.split(self.data, texts.starts, texts.ends, mode)
        if parts.bad_text >= 0:
            row = int(rows[parts.bad_text])
            if parts.bad_code == json_scan.OK:
                self.fail_at(row, json_values.WRONG_KIND)
            raise RowError(row, self.column.name, "half of a surrogate pair is not a character")
        counts = parts.counts
        of, starts = owners(counts), np.cumsum(counts) - counts
        self._count_entries(rows[of], data_type)
        arrays = []
        found = (parts.keys, parts.values) if is_map else (parts.values,)
        for field, values in zip(data_type.fields, found, strict=True):
            column = Column(0, f"{self.column.name}[]", field.type, field.nullable)
            inside = self.reading.field(column, self.data, values.starts, values.lengths, values.kinds)
            try:
                inside.check_presence(False)
                with self.reading.sizes.inside(rows[of]):
                    arrays.append(inside.convert())
            except RowError as error:
                text = int(of[error.index])
                rest = (error.column or column.name).removeprefix(column.name)
                place = f"{self.column.name}[{error.index - int(starts[text])}]{rest}"
                raise RowError(int(rows[text]), place, error.reason) from None
        if is_map:
            kept = last_of_each_key(of, arrays[0])
            if kept is not None:
                arrays = [array.take(pa.array(kept)) for array in arrays]
                counts = np.bincount(of[kept], minlength=len(counts))
        every = np.zeros(len(self.kinds), np.int64)
        every[rows] = counts
        valid = None if len(rows) == len(self.kinds) else self.kinds == json_scan.CONTAINER
        return make_entries(data_type.arrow(), every, arrays, valid)

    def _count_entries(self, of: np.ndarray, data_type: DataType) -> None:
        """Raise RowError if these entries would take too much memory."""
        width = sum(value_width(field.type.arrow()) for field in data_type.fields)
        sizes = self.reading.sizes
        with sizes.inside(of):
            try:
                sizes.add(len(of), width)
            except RowError as error:
                raise RowError(int(of[error.index]), self.column.name, error.reason) from None

    def check(self, row: int) -> None:
        self.fail_at(row, int(self.failure[0]))

    def fail_at(self, row: int, code: int) -> None:
        if row >= 0:
            raise RowError(row, self.column.name, _value_reason(code, self.column.type, self.excerpt(row)))

    def excerpt(self, row: int) -> str:
        """Return the offending value, shortened, for an error message."""
        start, length = int(self.starts[row]), int(self.lengths[row])
        text = self.data[start : start + length].tobytes().decode(errors="replace")
        if len(text) > EXCERPT_LENGTH:
            text = text[:EXCERPT_LENGTH] + "..."
        return f"'{text}'" if self.kinds[row] == json_scan.STRING else text

    def validity(self) -> tuple[pa.Buffer | None, int]:
        nulls = self.kinds <= json_scan.NULL
        null_count = int(np.count_nonzero(nulls))
        if null_count == 0:
            return None, 0
        return pa.py_buffer(np.packbits(~nulls, bitorder="little")), null_count

    def array(self, values: np.ndarray) -> pa.Array:
        bitmap, null_count = self.validity()
        buffers = [bitmap, pa.py_buffer(values)]
        return pa.Array.from_buffers(self.column.type.arrow(), len(self.starts), buffers, null_count)

    def text(self, arrow_type: pa.DataType) -> pa.Array:
        offsets = np.empty(len(self.starts) + 1, dtype=np.int64)
        json_values.text_offsets(self.starts, self.lengths, self.kinds, offsets)
        out = np.empty(int(offsets[-1]), dtype=np.uint8)
        json_values.copy_texts(self.data, self.starts, offsets, out)
        bitmap, null_count = self.validity()
        # The texts are parts of one batch below 2 GiB, so their offsets fit into 32 bits.
        buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
        return pa.Array.from_buffers(arrow_type, len(self.starts), buffers, null_count)

    def floats(self, data_type: DataType) -> pa.Array:
        infinite = np.zeros(len(self.starts), dtype=np.bool_)
        self.check(
            json_values.float_texts(self.data, self.starts, self.lengths, self.kinds, infinite, self.failure)
        )
        result = pc.cast(self.text(pa.string()), data_type.arrow())
        overflow = np.asarray(pc.fill_null(pc.is_inf(result), False)) & ~infinite
        if overflow.any():
            self.fail_at(int(np.argmax(overflow)), json_values.OUT_OF_RANGE)
        return result

    def binary(self, data_type: DataType) -> pa.Array:
        count = len(self.starts)
        size = data_type.length if data_type.kind is TypeKind.BINARY else -1
        text_size = int(self.lengths[self.kinds == json_scan.STRING].sum(dtype=np.int64))
        capacity = count * size if size >= 0 else text_size // 4 * 3
        out = np.zeros(capacity, dtype=np.uint8)
        offsets = np.zeros(count + 1, dtype=np.int64)
        self.check(
            json_values.decode_base64(
                self.data, self.starts, self.lengths, self.kinds, size, offsets, out, self.failure
            )
        )
        if size >= 0:
            return self.array(out)
        bitmap, null_count = self.validity()
        buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out[: offsets[-1]])]
        return pa.Array.from_buffers(data_type.arrow(), count, buffers, null_count)


def _value_reason(code: int, data_type: DataType, value: str) -> str:
    if code == json_values.INEXACT:
        if data_type.kind is TypeKind.DECIMAL:
            return (
                f"{value} has more than {data_type.scale} digits after the point; {data_type} keeps no more"
            )
        return f"{value} is not a whole number, as {data_type} needs"
    if code == json_values.ZONE_MISSING:
        return f"{value} has no time zone, which {data_type} needs: end it with Z or an offset such as +02:00"
    if code == json_values.ZONE_NOT_ALLOWED:
        return f"{value} has a zone offset, but {data_type} has no zone: leave it out, or use TIMESTAMP_LTZ"
    texts = {
        json_values.WRONG_KIND: f"{value} is not a value of {data_type}",
        json_values.NOT_A_NUMBER: f"{value} is not a number, as {data_type} needs",
        json_values.OUT_OF_RANGE: f"{value} is out of the range of {data_type}",
        json_values.NOT_A_DATE: f"{value} is not a date; write it as 2024-09-19",
        json_values.NOT_A_TIME: f"{value} is not a time; write it as 12:00:00",
        json_values.NOT_A_TIMESTAMP: f"{value} is not a timestamp; write it as 2024-09-19T12:00:00.000",
        json_values.TOO_PRECISE: f"{value} has {more_digits(data_type, value)}",
        json_values.TOO_LONG: f"{value} is longer than {data_type} allows",
        json_values.NOT_BASE64: f"{value} is not base64 with padding",
        json_values.WRONG_SIZE: f"{value} does not have the {data_type.length} bytes of {data_type}",
        json_values.NOT_A_BOOLEAN: f"{value} is not true or false",
    }
    return texts[code]
