"""Conversions of the values of one Avro type to the values of one column type; the table is in `read.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays import unscaled
from headrace.tablelayer.model.arrays.arrays import Mask, fixed_array, variable_values
from headrace.tablelayer.model.avro import kernels
from headrace.tablelayer.model.avro import nested as avro_nested
from headrace.tablelayer.model.avro.meanings import Sort, counted, is_variable_decimal
from headrace.tablelayer.model.avro.nested import MisfitError, Reader
from headrace.tablelayer.model.avro.schema import AvroKind, AvroSchemaError, Node
from headrace.tablelayer.model.avro.texts import texts_of, values_of
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.debezium_values import first_that_does_not_fit, of_decimals
from headrace.tablelayer.model.json.wide_decimals import are_wide, first_too_long, with_wide_texts
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.rows.nested import row_fields
from headrace.tablelayer.model.types.column_types import (
    BYTES,
    INT,
    INTEGER_BITS,
    NUMERIC_KINDS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
    row_of,
)

_WHOLE = (AvroKind.INT, AvroKind.LONG)
_TEXTS = (AvroKind.STRING, AvroKind.BYTES)
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TEMPORAL_KINDS = TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME}
_FROM_DECIMALS = NUMERIC_KINDS
_FROM_TEXTS = NUMERIC_KINDS | _TEMPORAL_KINDS | {TypeKind.BOOLEAN}
_NUMPY_INTEGERS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


class LeafReader(Reader, Protocol):
    """The part of the reader in `read.py` that reads values without parts."""

    unit: str | None
    """The unit of the column that is being read."""

    def longs(self, positions: np.ndarray, given: Mask) -> np.ndarray: ...

    def copies(self, positions: np.ndarray, given: Mask, size: int) -> np.ndarray: ...

    def binary(self, node: Node, positions: np.ndarray, given: Mask) -> pa.Array: ...


_Converter = Callable[[LeafReader, Node, np.ndarray, Mask, DataType], pa.Array]


def converter(node: Node, data_type: DataType, unit: str | None) -> _Converter:
    """Return the function that reads this type of the writer as a column type.

    `unit`: the unit of its numbers if the type does not tell it. Raises AvroSchemaError if there is no such function.
    """
    kind, logical, target = node.kind, node.logical, data_type.kind
    is_decimal = logical == "decimal" or is_variable_decimal(node)
    fits: _Converter | None = None
    if is_decimal and (target in _FROM_DECIMALS or target in TEXT_KINDS):
        return _variable_decimals if is_variable_decimal(node) else _decimals
    if kind is AvroKind.STRING and target in _FROM_TEXTS:
        return _from_texts
    match target:
        case TypeKind.BOOLEAN:
            fits = _booleans if kind is AvroKind.BOOLEAN else None
        case TypeKind.TINYINT | TypeKind.SMALLINT | TypeKind.INT | TypeKind.BIGINT:
            if kind in _WHOLE:
                fits = _integers
            elif kind in (AvroKind.FLOAT, AvroKind.DOUBLE):
                fits = _whole_floats
        case TypeKind.FLOAT | TypeKind.DOUBLE:
            fits = _floats if kind in (*_WHOLE, AvroKind.FLOAT, AvroKind.DOUBLE) else None
        case TypeKind.DECIMAL:
            fits = _whole_decimals if kind in _WHOLE and logical is None else None
        case TypeKind.CHAR | TypeKind.STRING:
            fits = _symbols if kind is AvroKind.ENUM else _texts
        case TypeKind.BINARY | TypeKind.BYTES:
            fits = _binaries if kind in (*_TEXTS, AvroKind.FIXED) and logical != "decimal" else None
        case TypeKind.DATE | TypeKind.TIME | TypeKind.TIMESTAMP | TypeKind.TIMESTAMP_LTZ:
            fits = _ticks if kind in _WHOLE and _counts(node, data_type, unit) is not None else None
        case TypeKind.ROW:
            fits = avro_nested.rows if kind is AvroKind.RECORD else None
        case TypeKind.ARRAY:
            fits = avro_nested.lists if kind is AvroKind.ARRAY else None
        case TypeKind.MAP:
            fits = avro_nested.maps if avro_nested.is_map(node) else None
    if fits is None:
        hint = ""
        if kind in _WHOLE and counted(node) is None and target in _TEMPORAL_KINDS:
            hint = f"; '{TableOptions.debezium_units.name}' sets the unit of a column's numbers"
        raise AvroSchemaError(f"the writer's schema has {node}, which cannot be read as {data_type}{hint}")
    return fits


def _counts(node: Node, data_type: DataType, unit: str | None) -> str | None:
    """Return the unit of a type's numbers as values of a date or time; None if they are not of its kind."""
    meaning, target = counted(node), data_type.kind
    if meaning is None:
        if unit is None and target is TypeKind.DATE and node.kind is AvroKind.INT:
            return "d"
        return None if target is TypeKind.TIME and unit == "d" else unit
    unit, sort = meaning
    if (sort is Sort.TIME) != (target is TypeKind.TIME):
        return None
    return None if sort is Sort.LOCAL and target is TypeKind.TIMESTAMP_LTZ else unit


def _fit(bad: np.ndarray, reason: Callable[[int], str]) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise MisfitError(row, reason(row))


def _valid(given: Mask) -> Mask | None:
    return None if given.all() else given


def _array(values: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
    return fixed_array(np.ascontiguousarray(values), _valid(given), data_type.arrow())


def _booleans(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    return _array(reader.copies(positions, given, 1)[:, 0], given, data_type)


def _integers(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    values, bits = reader.longs(positions, given), INTEGER_BITS[data_type.kind]
    if bits < 64:
        bound = 1 << (bits - 1)
        _fit(
            (values >= bound) | (values < -bound),
            lambda row: f"{values[row]} is out of the range of {data_type}",
        )
    return _array(values.astype(_NUMPY_INTEGERS[bits], copy=False), given, data_type)


def _floats(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    values: np.ndarray
    if node.kind in _WHOLE:
        values = reader.longs(positions, given).astype(np.float64)
    else:
        size = 4 if node.kind is AvroKind.FLOAT else 8
        values = reader.copies(positions, given, size).view(f"<f{size}")[:, 0]
    if data_type.kind is TypeKind.DOUBLE:
        return _array(values.astype(np.float64, copy=False), given, data_type)
    with np.errstate(over="ignore"):
        singles = values.astype(np.float32, copy=False)
    _fit(
        given & np.isinf(singles) & np.isfinite(values),
        lambda row: f"{values[row]} is out of the range of {data_type}",
    )
    return _array(singles, given, data_type)


def _whole_floats(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    size = 4 if node.kind is AvroKind.FLOAT else 8
    values = reader.copies(positions, given, size).view(f"<f{size}")[:, 0].astype(np.float64)
    bound = float(1 << (INTEGER_BITS[data_type.kind] - 1))
    with np.errstate(invalid="ignore"):
        bad = given & ~((values == np.floor(values)) & (values >= -bound) & (values < bound))
    _fit(bad, lambda row: f"{values[row]} is not a value of {data_type}")
    numbers = np.where(given, values, 0.0).astype(_NUMPY_INTEGERS[INTEGER_BITS[data_type.kind]])
    return _array(numbers, given, data_type)


def _decimals(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    count = len(positions)
    if node.kind is AvroKind.FIXED:
        lengths = np.full(count, node.size, np.int64)
    else:
        lengths = np.zeros(count, np.int64)
        kernels.spans(reader.data, positions, given, lengths)
    scales = np.full(count, node.scale, np.int64)
    wide = are_wide(lengths, scales, given, data_type)
    given = given & ~wide
    words = _words(reader.data, positions, lengths, given, data_type)
    if node.scale > 38 and data_type.kind not in TEXT_KINDS:
        raise AvroSchemaError(f"the writer's schema has {node}; the largest supported scale is 38")
    # A scale beyond 38 is not possible in Arrow. Then all values are wide.
    source = pa.decimal128(38, min(node.scale, 38))
    values = _rescaled(fixed_array(words.reshape(-1).view("V16"), _valid(given), source), data_type)
    return _with_wide(values, wide, reader.data, positions, lengths, scales, data_type)


def _with_wide(
    values: pa.Array,
    wide: Mask,
    data: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    scales: np.ndarray,
    data_type: DataType,
) -> pa.Array:
    try:
        texts = with_wide_texts(values, wide, data, starts, lengths, scales)
    except RowError as error:
        raise MisfitError(error.index, error.reason) from None
    row = first_too_long(texts, data_type)
    if row >= 0:
        raise MisfitError(row, f"{texts[row].as_py()} does not fit into {data_type}: it would lose digits")
    return texts


def _words(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, given: Mask, data_type: DataType
) -> np.ndarray:
    """Return unscaled values, int64[n, 2]."""
    words = np.zeros((len(starts), 2), np.int64)
    row = int(unscaled.from_bytes(data, starts, lengths, given, 38, words))
    if row >= 0:
        raise MisfitError(row, f"its unscaled value is out of the range of {data_type}")
    return words


_SCALED = row_of(("scale", INT), ("value", BYTES))


def _variable_decimals(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    """Return the decimals of Debezium's records of a scale and an unscaled value."""
    scale, value = row_fields(avro_nested.rows(reader, node, positions, given, _SCALED))
    offsets, data = variable_values(value)
    present = np.asarray(pc.and_(pc.is_valid(scale), pc.is_valid(value)))
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    scales = np.asarray(pc.fill_null(scale, 0)).astype(np.int64)
    wide = are_wide(lengths, scales, present, data_type)
    present = present & ~wide
    words = _words(data, starts, lengths, present, data_type)
    result = pa.nulls(len(positions), data_type.arrow())
    for each in np.unique(scales[present]).tolist():
        at = np.flatnonzero(present & (scales == each))
        if abs(each) > 38:
            raise MisfitError(int(at[0]), f"its scale is {each}; the largest supported scale is 38")
        try:
            part = _rescaled(
                fixed_array(words[at].reshape(-1).view("V16"), None, pa.decimal128(38, each)), data_type
            )
        except MisfitError as misfit:
            raise MisfitError(int(at[misfit.row]), misfit.reason) from None
        chosen = np.zeros(len(positions), np.bool_)
        chosen[at] = True
        result = pc.replace_with_mask(result, pa.array(chosen), part)
    return _with_wide(result, wide, data, starts, lengths, scales, data_type)


def _whole_decimals(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    values = _array(reader.longs(positions, given), given, DataType(TypeKind.BIGINT))
    return _rescaled(values.cast(pa.decimal128(19, 0)), data_type)


def _rescaled(values: pa.Array, data_type: DataType) -> pa.Array:
    """Return decimals as values of a column type, exactly. Raises MisfitError for the first that does not fit."""
    try:
        return of_decimals(values, data_type)
    except pa.ArrowInvalid:
        row = first_that_does_not_fit(values, data_type)
    raise MisfitError(row, f"{values[row].as_py()} does not fit into {data_type}: it would lose digits")


def _from_texts(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    values = reader.binary(node, positions, given)
    try:
        return values_of(values.cast(pa.string()), data_type)
    except pa.ArrowInvalid:
        raise _not_text(values) from None


def _texts(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    if node.kind in _TEXTS:
        values = reader.binary(node, positions, given)
        try:
            texts = values.cast(pa.string())
        except pa.ArrowInvalid:
            raise _not_text(values) from None
    else:
        texts = texts_of(reader, node, positions, given, data_type)
    if data_type.kind is TypeKind.CHAR and len(texts):
        lengths = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
        _fit(
            lengths > data_type.length,
            lambda row: f"a text of {lengths[row]} characters is longer than {data_type} allows",
        )
    return texts


def _not_text(values: pa.Array) -> MisfitError:
    for row, value in enumerate(values.to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            return MisfitError(row, f"byte 0x{value[error.start]:02x} at position {error.start} is not UTF-8")
    return MisfitError(0, "it is not UTF-8")


def _symbols(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    indices = pa.array(reader.longs(positions, given), mask=None if given.all() else ~given)
    texts = pa.array(node.names, pa.string()).take(indices)
    if data_type.kind is TypeKind.CHAR and len(texts):
        lengths = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
        _fit(lengths > data_type.length, lambda row: f"'{texts[row]}' is longer than {data_type} allows")
    return texts


def _binaries(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    values = reader.binary(node, positions, given)
    if data_type.kind is TypeKind.BYTES:
        return values
    lengths = pc.fill_null(pc.binary_length(values), data_type.length).to_numpy(zero_copy_only=False)
    _fit(
        lengths != data_type.length,
        lambda row: (
            f"a value of {lengths[row]} bytes does not have the {data_type.length} bytes of {data_type}"
        ),
    )
    return values.cast(data_type.arrow())


def _ticks(
    reader: LeafReader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    """Return the numbers of days, or of parts of a second since 1970 or midnight, as a column."""
    values, unit = reader.longs(positions, given), _counts(node, data_type, reader.unit)
    what = node.logical or node.connect or unit
    if data_type.kind is TypeKind.DATE:
        return _days(values, str(unit), given, data_type)
    target = _TICKS[data_type.unit]
    source, finest = _TICKS.get(str(unit), 0), 10**data_type.precision
    if source > finest:
        _fit(
            values % (source // finest) != 0,
            lambda row: f"{values[row]} ({what}) has more digits of a second than {data_type} keeps",
        )
    if target >= source:
        factor = target // source if source else 86_400 * target
        bound = ((1 << 63) - 1) // factor
        _fit(
            (values > bound) | (values < -bound - 1) if factor > 1 else np.zeros(0, np.bool_),
            lambda row: f"{values[row]} ({what}) is out of the range of {data_type}",
        )
        ticks = values * factor
    else:
        ticks = values // (source // target)
    if data_type.kind is not TypeKind.TIME:
        return _array(ticks, given, data_type)
    _fit(
        (ticks < 0) | (ticks >= 86_400 * target),
        lambda row: f"{values[row]} ({what}) is not a time of day",
    )
    return _array(ticks.astype(np.int32) if data_type.precision <= 3 else ticks, given, data_type)


def _days(values: np.ndarray, unit: str, given: Mask, data_type: DataType) -> pa.Array:
    per_day = 1 if unit == "d" else 86_400 * _TICKS[unit]
    _fit(values % per_day != 0, lambda row: f"{values[row]} is not a date: it is not at midnight")
    days = values // per_day
    _fit(
        (days >= 1 << 31) | (days < -(1 << 31)),
        lambda row: f"{values[row]} is out of the range of {data_type}",
    )
    return _array(days.astype(np.int32), given, data_type)
