"""The schemas that a table has had, and conversion of rows from one of them to another.

Batches and stored rows keep the schema under which they were written; readers want another one, mostly the latest.
Columns are matched by id. A column that the writer's schema did not have yet gets the value that its ADD gave
(`Column.initial`, or null). A column that the reader's schema does not have is left out. A type that was widened is
cast. So a column that is dropped and added again under its old name never shows old values. Readers of an old schema
get newer rows in the same way: a column that was dropped since is null (its default if it is NOT NULL), and a value
of a widened column that does not fit raises TableError(SCHEMA_CHANGED). All functions work on whole batches; rows of
several schemas are decoded one schema at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.schema.schema import Column, Schema

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
else:
    np = lazy_module("numpy")
    pa = lazy_module("pyarrow")


class Conversion(msgspec.Struct, frozen=True):
    """A conversion from batches of one schema to chosen columns of another.

    needed   positions of the source's columns that are used, ascending: the others need not be decoded
    sources  per target column its index in `needed`, or None: not in the source
    fills    per target column the value of every row if the source does not have the column
    """

    columns: tuple[Column, ...]
    arrow: pa.Schema
    needed: tuple[int, ...]
    sources: tuple[int | None, ...]
    fills: tuple[pa.Scalar | None, ...]
    identical: bool

    @classmethod
    def between(
        cls, source: Schema, target: Schema, columns: Sequence[int] | None = None, *, nullable: bool = False
    ) -> Conversion:
        """Return the conversion between two schemas.

        `columns`: positions in the target, in the order of the result; None for all. `nullable`: all fields of the
        result are nullable, for answers in which a missing row is a row of nulls.
        """
        chosen = (
            target.columns if columns is None else tuple(target.columns[position] for position in columns)
        )
        positions = {column.id: position for position, column in enumerate(source.columns)}
        found = [positions.get(column.id) for column in chosen]
        needed = tuple(sorted({position for position in found if position is not None}))
        at = {position: index for index, position in enumerate(needed)}
        dropped = source.schema_id > target.schema_id
        fields = [column.field().with_nullable(column.nullable or nullable) for column in chosen]
        return cls(
            chosen,
            pa.schema(fields),
            needed,
            tuple(None if position is None else at[position] for position in found),
            tuple(
                None if position is not None else _fill(column, dropped=dropped)
                for column, position in zip(chosen, found, strict=True)
            ),
            found == list(range(len(source.columns)))
            and all(
                source.columns[index].type == column.type
                and source.columns[index].name == column.name
                and source.columns[index].nullable == column.nullable
                for index, column in enumerate(chosen)
            ),
        )

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch with all of the source's columns."""
        if self.identical:
            return batch
        return self.of_needed([batch.column(position) for position in self.needed], batch.num_rows)

    def of_needed(self, arrays: Sequence[pa.Array], count: int) -> pa.RecordBatch:
        """Convert rows given as the needed columns only. Raises TableError(SCHEMA_CHANGED)."""
        converted = []
        for column, source, fill in zip(self.columns, self.sources, self.fills, strict=True):
            if source is None:
                converted.append(pa.repeat(fill, count))
            else:
                converted.append(_cast(arrays[source], column))
        return pa.RecordBatch.from_arrays(converted, schema=self.arrow)


class SchemaVersions:
    """All schemas of a table, oldest first. Immutable; each conversion between them is made once."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self.schemas = tuple(schemas)
        self.latest = self.schemas[-1]
        self._by_id = {schema.schema_id: schema for schema in self.schemas}
        self._conversions: dict[tuple[int, int, tuple[int, ...] | None, bool], Conversion] = {}

    def __len__(self) -> int:
        return len(self.schemas)

    def __contains__(self, schema_id: object) -> bool:
        return schema_id in self._by_id

    def get(self, schema_id: int) -> Schema:
        """Return the schema with an id. Raises TableError(UNKNOWN_SCHEMA_ID): R4.1."""
        schema = self._by_id.get(schema_id)
        if schema is None:
            raise TableError(
                TableErrorCode.UNKNOWN_SCHEMA_ID,
                f"schema {schema_id} does not exist in the table; it has schema {self.latest.schema_id}"
                + (f" and the {len(self) - 1} before it" if len(self) > 1 else ""),
            )
        return schema

    def conversion(
        self,
        source_id: int,
        target: Schema | None = None,
        columns: Sequence[int] | None = None,
        *,
        nullable: bool = False,
    ) -> Conversion:
        """Return the conversion from a schema's batches to `target` (None: the latest), or to its columns at
        `columns`.

        Raises TableError(UNKNOWN_SCHEMA_ID).
        """
        wanted = self.latest if target is None else target
        key = (source_id, wanted.schema_id, None if columns is None else tuple(columns), nullable)
        found = self._conversions.get(key)
        if found is None:
            found = Conversion.between(self.get(source_id), wanted, columns, nullable=nullable)
            if len(self._conversions) > 4096:  # there are many choices of columns
                self._conversions.clear()
            self._conversions[key] = found
        return found


def decode_stored(
    values: pa.BinaryArray, versions: SchemaVersions, target: Schema, columns: Sequence[int] | None = None
) -> pa.RecordBatch:
    """Return stored rows (`rows.py`), each written under its own schema, as rows of `target` (R4.2).

    A null among `values` gives a row of nulls. `columns`: positions in the target, ascending; None for all. Raises
    DecodeError for damaged rows, TableError(UNKNOWN_SCHEMA_ID).
    """
    from headrace.tablelayer.model.arrays.arrays import validity
    from headrace.tablelayer.model.rows.stored import decode_rows, schema_ids

    if len(versions) == 1 and target is versions.latest:
        return decode_rows(values, target, columns)
    ids = schema_ids(values)
    present = validity(values)
    others = ids != target.schema_id
    if present is not None:
        others &= present
    if not others.any():
        return decode_rows(values, target, columns)
    ids[~others] = target.schema_id  # missing rows may be decoded under any schema
    parts, positions = [], []
    for schema_id in np.unique(ids).tolist():
        at = np.flatnonzero(ids == schema_id)
        part = values.take(pa.array(at))
        conversion = versions.conversion(schema_id, target, columns)
        rows = decode_rows(part, versions.get(schema_id), conversion.needed)
        parts.append(conversion.of_needed(rows.columns, len(at)))
        positions.append(at)
    order = np.concatenate(positions)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_batches(parts).take(pa.array(back))


def upgraded(values: list[bytes | None], versions: SchemaVersions) -> list[bytes | None]:
    """Return stored rows in the latest schema's form. Rows of older schemas are encoded again, the others stay."""
    from headrace.tablelayer.model.arrays.arrays import validity
    from headrace.tablelayer.model.rows.stored import encode_rows, schema_ids

    if len(versions) == 1 or not values:
        return values
    array = pa.array(values, pa.binary())
    old = schema_ids(array) != versions.latest.schema_id
    present = validity(array)
    if present is not None:
        old &= present
    if not old.any():
        return values
    at = np.flatnonzero(old)
    rows = decode_stored(array.take(pa.array(at)), versions, versions.latest)
    result = list(values)
    for index, value in zip(at.tolist(), encode_rows(rows, versions.latest).to_pylist(), strict=True):
        result[index] = value
    return result


def _fill(column: Column, *, dropped: bool) -> pa.Scalar:
    if not dropped:
        return column.initial_scalar()
    return pa.scalar(None, column.type.arrow()) if column.nullable else column.default_scalar()


def _cast(array: pa.Array, column: Column) -> pa.Array:
    target = column.type.arrow()
    if array.type == target:
        return array
    if pa.types.is_fixed_size_binary(array.type) and pa.types.is_fixed_size_binary(target):
        return _padded(array, target, column)
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise _does_not_fit(column, str(error)) from None


def _padded(array: pa.Array, target: pa.DataType, column: Column) -> pa.Array:
    """Return BINARY(n) as BINARY(m), padded with zeros as in SQL; when it becomes shorter, only zeros may go."""
    old, new = array.type.byte_width, target.byte_width
    if not len(array):
        return pa.array([], target)
    raw = np.frombuffer(array.buffers()[1], np.uint8, len(array) * old, array.offset * old)
    values = np.zeros((len(array), new), np.uint8)
    kept = min(old, new)
    matrix = raw.reshape(-1, old)
    if matrix[:, kept:].any():
        raise _does_not_fit(column, f"a value has more than {new} bytes")
    values[:, :kept] = matrix[:, :kept]
    bitmap = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(target, len(array), [bitmap, pa.py_buffer(values)])


def _does_not_fit(column: Column, reason: str) -> TableError:
    return TableError(
        TableErrorCode.SCHEMA_CHANGED,
        f"column '{column.name}' has become wider than {column.type}, and a value does not fit any more "
        f"({reason}): open the table again",
    )
