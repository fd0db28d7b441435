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
Debezium's `VariableScaleDecimal`. Strings are read as in JSON. The compiled loops are in `kernels.py`; nested types
are in `nested.py`, and conversions of single values in `conversions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records.gather import gather
from headrace.tablelayer.model.arrays.arrays import Mask, binary_array, sealed
from headrace.tablelayer.model.avro import kernels
from headrace.tablelayer.model.avro.conversions import converter
from headrace.tablelayer.model.avro.nested import MisfitError
from headrace.tablelayer.model.avro.schema import AvroKind, AvroSchema, AvroSchemaError, Node
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.rows.nested import check_inside, has_rules
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import (
    DataType,
)
from headrace.tablelayer.model.types.sizes import RowBytes, RowCost

_FOUND_BYTES = 8  # per field: its position
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
            return converter(node, data_type, self.unit)(self, node, positions, given, data_type)
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
