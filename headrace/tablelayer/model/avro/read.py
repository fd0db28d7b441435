"""Conversion of Avro's binary encoding to rows, for whole batches, by the schema of their writer.

A field belongs to the column with its name. A field without a column is skipped, or refused if the table says so. A
column without a field gets its default, or null. Whole numbers become decimals and floating-point numbers, int
becomes BIGINT, float becomes DOUBLE, bytes become texts (if they are UTF-8) and back, an enum becomes the text of its
symbol. Narrower columns accept values that fit. Nothing is rounded or cut, except that a double becomes the nearest
FLOAT.

| column | fields |
|---|---|
| integers | int, long; float, double and decimal that are whole; string |
| FLOAT, DOUBLE | float, double, int, long, decimal, string |
| DECIMAL | decimal of any scale, if no digits are lost; int, long, string |
| BOOLEAN | boolean, string |
| CHAR, STRING | string, enum, bytes; the text in JSON of any other type but fixed |
| BINARY, BYTES | bytes, fixed, string |
| DATE | int (date, or without a logical type); numbers of days, or moments at midnight; string |
| TIME | time-millis, -micros, -nanos; string |
| TIMESTAMP | local-timestamp-* and timestamp-* (which is in UTC); date; string |
| TIMESTAMP_LTZ | timestamp-*; date; string with a zone |
| ROW | record, by the names of its fields as above |
| ARRAY | array |
| MAP | map, if its keys are texts or bytes; array of records of two fields |

The unit of a number follows from its logical type, or else from the name that Connect's converter gave its type
(`io.debezium.time.MicroTimestamp`), or else from the table's `table.kafka.debezium.time-units`. A decimal may also be
Debezium's `VariableScaleDecimal`. Strings are read as in JSON. The compiled loops are in `avro_kernels`; nested types
are in `avro_nested`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records.gather import gather
from headrace.tablelayer.model.arrays import unscaled
from headrace.tablelayer.model.arrays.arrays import Mask, binary_array, fixed_array, sealed, variable_values
from headrace.tablelayer.model.avro import kernels
from headrace.tablelayer.model.avro import nested as avro_nested
from headrace.tablelayer.model.avro.meanings import Sort, counted, is_variable_decimal
from headrace.tablelayer.model.avro.nested import MisfitError
from headrace.tablelayer.model.avro.schema import AvroKind, AvroSchema, AvroSchemaError, Node
from headrace.tablelayer.model.avro.texts import texts_of, values_of
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.debezium_values import first_that_does_not_fit, of_decimals
from headrace.tablelayer.model.json.wide_decimals import are_wide, first_too_long, with_wide_texts
from headrace.tablelayer.model.options.table_options import TableOptions, UnknownFields
from headrace.tablelayer.model.rows.nested import check_inside, has_rules, row_fields
from headrace.tablelayer.model.schema.schema import Column
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
from headrace.tablelayer.model.types.sizes import RowBytes, RowCost

_FOUND_BYTES = 8  # per field: its position
_WHOLE = (AvroKind.INT, AvroKind.LONG)
_TEXTS = (AvroKind.STRING, AvroKind.BYTES)
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TEMPORAL_KINDS = TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME}
_FROM_DECIMALS = NUMERIC_KINDS
_FROM_TEXTS = NUMERIC_KINDS | _TEMPORAL_KINDS | {TypeKind.BOOLEAN}
_NUMPY_INTEGERS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_REASONS = {
    kernels.CUT_OFF: "the record ends inside this value",
    kernels.BAD_NUMBER: "it is not a value of the writer's schema",
    kernels.BAD_BRANCH: "it has a branch or symbol that the writer's schema does not have",
    kernels.BAD_LENGTH: "its length exceeds the record",
    kernels.TOO_DEEP: f"it is nested deeper than {kernels.MAX_DEPTH} levels",
}


class AvroTexts(msgspec.Struct, frozen=True):
    """Encoded records in one buffer. data: uint8, `kernels.PADDING` more bytes at its end; starts, ends: int64[n]."""

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, values: pa.BinaryArray) -> AvroTexts:
        """Return the records in n binary values, none of them null."""
        count = len(values)
        if not count:
            nothing = np.zeros(0, np.int64)
            return cls(np.zeros(kernels.PADDING, np.uint8), nothing, nothing)
        offsets = np.frombuffer(values.buffers()[1], np.int32, count + 1, values.offset * 4).astype(np.int64)
        begin, size = int(offsets[0]), int(offsets[-1] - offsets[0])
        data = np.zeros(size + kernels.PADDING, np.uint8)
        if size:
            data[:size] = np.frombuffer(values.buffers()[2], np.uint8, size, begin)
        offsets -= begin
        return cls(data, offsets[:-1], offsets[1:])


def avro_to_rows(
    texts: AvroTexts,
    writer: AvroSchema,
    columns: Sequence[Column],
    *,
    unknown_fields: UnknownFields = UnknownFields.IGNORE,
    units: Mapping[str, str] | None = None,
) -> pa.RecordBatch:
    """Return the rows of n records. units: by column, the unit of numbers whose schema does not tell it.

    Raises RowError for the first value that does not fit. A field whose type cannot be read at all is an error of row
    0.
    """
    return _Reader(texts, writer, fail_unknown=unknown_fields is UnknownFields.FAIL, units=units).rows(
        columns
    )


class _Reader:
    def __init__(
        self,
        texts: AvroTexts,
        writer: AvroSchema,
        *,
        fail_unknown: bool,
        units: Mapping[str, str] | None = None,
    ) -> None:
        self.units = units or {}
        self.unit: str | None = None  # the unit of the column that is being read
        self.texts, self.writer = texts, writer
        self.data = sealed(texts.data)
        self.fail_unknown = fail_unknown
        self.sizes = RowBytes(len(texts.starts))

    def rows(self, columns: Sequence[Column]) -> pa.RecordBatch:
        root, count = self.writer.root, len(self.texts.starts)
        if root.kind is not AvroKind.RECORD:
            raise RowError(0, None, f"the writer's schema is {root}, but a row must be a record")
        names = {column.name: index for index, column in enumerate(columns)}
        if self.fail_unknown:
            for name in root.names:
                if name not in names:
                    raise RowError(
                        0, name, "the table has no such column, and table.kafka.unknown-fields is 'fail'"
                    )
        given = np.ones(count, np.bool_)
        self.sizes.add(count, RowCost.of(columns).width + _FOUND_BYTES * len(columns))
        found, after, error = self.walk(root, names, self.texts.starts, given, self.texts.ends)
        good = count if error is None else error.index
        over = after[:good] != self.texts.ends[:good]
        if over.any():
            good = int(np.argmax(over))
            error = RowError(
                good, None, "there are bytes behind the record: it was written with another schema"
            )
        # The rows before a bad one are still converted, because one of them may have an earlier error.
        arrays: list[pa.Array] = []
        failures = [] if error is None else [error]
        by_name = dict(zip(root.names, root.children, strict=True))
        for index, column in enumerate(columns):
            try:
                node, self.unit = by_name.get(column.name), self.units.get(column.name)
                if node is None:
                    arrays.append(_absent(column, good))
                else:
                    values = self.read(node, found[index][:good].copy(), given[:good], column.type)
                    arrays.append(_checked(column, values))
            except MisfitError as misfit:
                reason = f"{column.name}{misfit.place}: {misfit.reason}" if misfit.place else misfit.reason
                failures.append(RowError(misfit.row, column.name, reason))
            except RowError as inside:
                failures.append(inside)
            except AvroSchemaError as wrong:
                failures.append(RowError(0, column.name, str(wrong)))
        if failures:
            raise min(failures, key=lambda failure: failure.index)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field() for column in columns]))

    def walk(
        self, record: Node, wanted: dict[str, int], starts: np.ndarray, given: Mask, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, RowError | None]:
        """Return (positions of the wanted fields int64[wanted, n], those after the records int64[n], the first
        error).
        """
        slots = np.array([wanted.get(name, -1) for name in record.names] or [0], np.int64)
        found = np.zeros((len(wanted), len(starts)), np.int64)
        after = np.zeros(len(starts), np.int64)
        failure = np.zeros(2, np.int64)
        row = int(
            kernels.walk(
                self.data, self.writer.table, self.writer.links, record.index, sealed(starts), given, sealed(ends),
                slots, found, after, failure,
            )
        )  # fmt: skip
        if row < 0:
            return found, after, None
        name = record.names[int(failure[1])]
        return found, after, RowError(row, name, f"in the Avro value, {_REASONS[int(failure[0])]}")

    def read(self, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
        """Return the values of a node as a column type; null where they are null or not given. `positions` is
        consumed.

        Raises MisfitError for the first row that does not fit, AvroSchemaError if no value can fit.
        """
        if node.kind is AvroKind.NULL:
            return pa.nulls(len(positions), data_type.arrow())
        if node.kind is not AvroKind.UNION:
            return _converter(node, data_type, self.unit)(self, node, positions, given, data_type)
        nodes = np.empty(len(positions), np.int64)
        kernels.branches(self.data, self.writer.table, self.writer.links, node.index, positions, given, nodes)
        result: pa.Array | None = None
        failures: list[MisfitError] = []
        for branch in node.children:
            if branch.kind is AvroKind.NULL:
                continue
            mask = nodes == branch.index
            if not mask.any() and len(node.children) > 2:
                continue
            try:
                part = self.read(branch, positions.copy(), mask, data_type)
            except MisfitError as misfit:
                failures.append(misfit)
            except AvroSchemaError as wrong:
                if len(node.children) <= 2:
                    raise
                failures.append(MisfitError(int(np.argmax(mask)), str(wrong)))
            else:
                result = part if result is None else pc.if_else(pa.array(mask), part, result)
        if failures:
            raise min(failures, key=lambda failure: failure.row)
        return pa.nulls(len(positions), data_type.arrow()) if result is None else result

    def longs(self, positions: np.ndarray, given: Mask) -> np.ndarray:
        values = np.zeros(len(positions), np.int64)
        kernels.longs(self.data, positions, given, values)
        return values

    def copies(self, positions: np.ndarray, given: Mask, size: int) -> np.ndarray:
        out = np.zeros((len(positions), size), np.uint8)
        kernels.copies(self.data, positions, given, out)
        return out

    def binary(self, node: Node, positions: np.ndarray, given: Mask) -> pa.Array:
        """Return bytes and texts unchanged."""
        if node.kind is AvroKind.FIXED:
            lengths = np.where(given, node.size, 0).astype(np.int64)
        else:
            lengths = np.zeros(len(positions), np.int64)
            kernels.spans(self.data, positions, given, lengths)
        offsets, data = gather(self.data, np.where(given, positions, 0), lengths)
        return binary_array(offsets, data, None if given.all() else given)


def _absent(column: Column, count: int) -> pa.Array:
    if column.default is not None:
        return pa.repeat(column.default_scalar(), count)
    if not column.nullable:
        raise AvroSchemaError("the writer's schema has no such field, but the column is NOT NULL")
    return pa.nulls(count, column.type.arrow())


def _checked(column: Column, values: pa.Array) -> pa.Array:
    if not column.nullable and values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise MisfitError(row, "the value is null, but the column is NOT NULL")
    if has_rules(column.type):
        check_inside(column, values)
    return values


_Converter = Callable[[_Reader, Node, np.ndarray, Mask, DataType], pa.Array]


def _converter(node: Node, data_type: DataType, unit: str | None) -> _Converter:
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
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    return _array(reader.copies(positions, given, 1)[:, 0], given, data_type)


def _integers(
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    values, bits = reader.longs(positions, given), INTEGER_BITS[data_type.kind]
    if bits < 64:
        bound = 1 << (bits - 1)
        _fit(
            (values >= bound) | (values < -bound),
            lambda row: f"{values[row]} is out of the range of {data_type}",
        )
    return _array(values.astype(_NUMPY_INTEGERS[bits], copy=False), given, data_type)


def _floats(reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
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
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
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
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
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
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
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
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
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
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    values = reader.binary(node, positions, given)
    try:
        return values_of(values.cast(pa.string()), data_type)
    except pa.ArrowInvalid:
        raise _not_text(values) from None


def _texts(reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
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
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
) -> pa.Array:
    indices = pa.array(reader.longs(positions, given), mask=None if given.all() else ~given)
    texts = pa.array(node.names, pa.string()).take(indices)
    if data_type.kind is TypeKind.CHAR and len(texts):
        lengths = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
        _fit(lengths > data_type.length, lambda row: f"'{texts[row]}' is longer than {data_type} allows")
    return texts


def _binaries(
    reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType
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


def _ticks(reader: _Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
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


def warm() -> None:
    """Compile (or load from the cache) all kernels of this module."""
    from headrace.tablelayer.model.types import column_types as types

    text = (
        '{"type":"record","name":"r","fields":[{"name":"a","type":["null","long"]},{"name":"b","type":"string"},'
        '{"name":"c","type":"double"},{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":3}}]}'
    )
    kinds = (types.BIGINT, types.STRING, types.DOUBLE, types.decimal(3))
    columns = [
        Column(index, name, kind) for index, (name, kind) in enumerate(zip("abcd", kinds, strict=True))
    ]
    values = AvroTexts.of(pa.array([b"\x02\x02\x02a" + bytes(8) + b"\x02\x01"], pa.binary()))
    avro_to_rows(values, AvroSchema.parse(text), columns)
