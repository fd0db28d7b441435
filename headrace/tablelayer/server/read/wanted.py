"""The columns and rows that a read wants, applied to stored rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tablelayer.model.batches.ipc import decode_ipc, encode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.filters import Filter
from headrace.tablelayer.model.rows.versions import SchemaVersions, decode_stored
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.read.stored_groups import FilteredGroups
from headrace.tablelayer.server.store.stored_rows import StoredRows

if TYPE_CHECKING:
    from headrace.tablelayer.server.services import Services

Rows = bytes | memoryview
Indices = npt.NDArray[np.int64]
FEW_KEYS = 8  # up to this number, single values are faster than columns
FEW_ROWS_BYTES = 64 << 10  # some ten microseconds of the event loop
Versions = Callable[[], SchemaVersions]


class Wanted(msgspec.Struct, frozen=True):
    """The columns that a reader requests, by position in one of the table's schemas (None: all), and its filter (None:
    all rows).
    """

    schema: Schema
    columns: list[int] | None
    filter: Filter | None = None

    @classmethod
    def of(
        cls,
        definition: StoredTable,
        schema_id: int,
        column_ids: Sequence[int] | None,
        condition: bytes | None = None,
    ) -> Wanted:
        """Return the requested columns and rows. `schema_id` -1 is the latest schema.

        Raises TableError(INVALID_PROJECTION, UNKNOWN_SCHEMA_ID or INVALID_FILTER). With a condition it may block: use
        `asked` on the event loop.
        """
        schema = definition.schema if schema_id == -1 else definition.versions.get(schema_id)
        chosen = None if condition is None else Filter.parse(condition, schema)
        return cls(schema, column_positions(schema, column_ids), chosen)

    @classmethod
    async def asked(
        cls,
        services: Services,
        definition: StoredTable,
        schema_id: int,
        column_ids: Sequence[int] | None,
        condition: bytes | None,
    ) -> Wanted:
        """Do the same as `of`; a filter is parsed in an executor thread."""
        if condition is None:
            return cls.of(definition, schema_id, column_ids)
        return await services.run(cls.of, definition, schema_id, column_ids, condition)

    def rows(self, convert: Callable[[Sequence[int] | None], pa.RecordBatch]) -> pa.RecordBatch:
        """Return the requested rows and columns.

        `convert` returns all rows with the given columns of the schema (ascending positions); the filter's columns are
        included.
        """
        if self.filter is None:
            return convert(self.columns)
        chosen = list(range(len(self.schema.columns))) if self.columns is None else self.columns
        both = sorted({*chosen, *self.filter.columns})
        rows = convert(both)
        mask = self.filter.mask(rows.select([both.index(each) for each in self.filter.columns]))
        kept = rows.select([both.index(each) for each in chosen])
        return kept if mask.all() else kept.filter(pa.array(mask))

    @property
    def is_whole(self) -> bool:
        """Whether every column is requested."""
        return self.columns is None or len(self.columns) == len(self.schema.columns)

    @property
    def filter_ids(self) -> frozenset[int]:
        """The ids of the filter's columns."""
        used = () if self.filter is None else self.filter.columns
        return frozenset(self.schema.columns[index].id for index in used)

    @property
    def ids(self) -> frozenset[int]:
        chosen = range(len(self.schema.columns)) if self.columns is None else self.columns
        return frozenset(self.schema.columns[index].id for index in chosen)


def column_positions(schema: Schema, column_ids: Sequence[int] | None) -> list[int] | None:
    """Return the positions of the requested columns; None for all. Raises TableError(INVALID_PROJECTION)."""
    if column_ids is None:
        return None
    if len(column_ids) > len(schema.columns):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"{len(column_ids)} columns are requested, but there are {len(schema.columns)}",
        )
    positions = {column.id: index for index, column in enumerate(schema.columns)}
    chosen = [positions[column.id] for column in schema.columns_by_ids(column_ids)]
    if not chosen or chosen != sorted(set(chosen)):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"the columns are {list(column_ids)}; name at least one id, each once and in the table's order",
        )
    return chosen


def answered_rows(
    values: Sequence[bytes | None], versions: Versions, wanted: Wanted, order: Indices | None = None
) -> Rows:
    """Return stored rows in the reader's columns (R4.2). `order` has the index of each row's value, if they are not in
    order.
    """
    message = stored_message.message_of(values, wanted.schema, wanted.columns, order)
    if message is not None:
        return message
    stored = pa.array(values, pa.binary())
    return encode_ipc(_decoded(stored if order is None else stored.take(pa.array(order)), versions, wanted))


def answered_at(rows: StoredRows, versions: Versions, wanted: Wanted) -> Rows:
    """Return stored rows at addresses in the reader's columns, as `answered_rows`."""
    message = stored_message.message_at(rows.addresses, rows.lengths, wanted.schema, wanted.columns)
    return encode_ipc(_decoded(rows.array(), versions, wanted)) if message is None else message


def _decoded(values: pa.BinaryArray, versions: Versions, wanted: Wanted) -> pa.RecordBatch:
    return wanted.rows(lambda columns: decode_stored(values, versions(), wanted.schema, columns))


def matching_rows(rows: StoredRows, versions: Versions, wanted: Wanted) -> StoredRows:
    """Return the rows that match the filter. Only its columns are decoded."""
    if wanted.filter is None or not len(rows):
        return rows
    mask = wanted.filter.mask(columns_of(rows, versions, wanted.schema, wanted.filter.columns))
    return rows if mask.all() else rows.take(mask)


def wanted_groups(wanted: Wanted) -> FilteredGroups | None:
    return None if wanted.filter is None else FilteredGroups(wanted.filter)


def columns_of(
    rows: StoredRows, versions: Versions, schema: Schema, columns: Sequence[int] | None
) -> pa.RecordBatch:
    """Return these columns (ascending positions; None: all) of stored rows."""
    message = stored_message.message_at(rows.addresses, rows.lengths, schema, columns)
    if message is None:
        return decode_stored(rows.array(), versions(), schema, columns)
    arrow = schema.arrow()
    return decode_ipc(
        message, arrow if columns is None else pa.schema([arrow.field(each) for each in columns])
    )


def joined_rows(found: Sequence[pa.RecordBatch], schema: pa.Schema) -> Rows:
    return encode_ipc(pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], schema=schema))


def selected_schema(wanted: Wanted) -> pa.Schema:
    arrow = wanted.schema.arrow()
    return arrow if wanted.columns is None else pa.schema([arrow.field(index) for index in wanted.columns])


"""Returns the table's schemas; called after rows were read, so that it has the schemas of those rows."""


class LimitedRows(msgspec.Struct, frozen=True):
    """A limit scan's rows from one bucket. `has_more`: not all rows fitted; in a log table the rest is below
    `start_offset`.
    """

    rows: Rows
    has_more: bool = False
    start_offset: int = -1
