"""Interface of a lake reader without Spark, for `union_scan`, and the code that the readers of all formats share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.lake.adapter import LakeState
from headrace.tablelayer.model.filters.conditions import Predicate
from headrace.tablelayer.model.filters.filters import Filter
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket, in_order
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.types.column_types import TypeKind


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a snapshot that is read alone: one or more data files. `key` names it within the snapshot."""

    key: str
    row_count: int
    size_bytes: int


class LakeReader(Protocol):
    """One table's copy in a lake, as of the construction of this object."""

    @property
    def shape(self) -> StoredTable:
        """The table as its lake table has it: with system columns, unless it was made without them."""

    def state(self, known_snapshot: int | None) -> LakeState:
        """See `LakeTable.find_committed`."""

    def snapshots(self) -> pa.Table:
        """Return a row for each remaining snapshot, oldest first, in `snapshots_schema`."""

    def first_snapshot(self) -> int | None:
        """Return the id of the table's first snapshot; None if it has expired."""

    def metadata(self, name: str) -> pa.Table:
        """Return a metadata table of the lake by its name, such as "files". Raises LakeError if there is none."""

    def past_states(self) -> Iterator[LakeState]:
        """Yield the states of the remaining snapshots that tiering made, newest first."""

    def read(
        self,
        snapshot: int,
        columns: Sequence[Column],
        wanted: Filter | None = None,
        predicate: Predicate | None = None,
        pieces: Collection[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a snapshot for which `wanted` holds, in the table's own types.

        `columns` are all needed columns, including those of the filter. `predicate` must not be narrower than the
        filter; it skips files that cannot have matching rows. `pieces` are keys: only these pieces are read.
        """

    def pieces(self, snapshot: int, predicate: Predicate | None = None) -> list[Piece]:
        """Return the pieces of a snapshot that may have rows for the predicate."""


def snapshots_schema(definition: StoredTable) -> pa.Schema:
    """Return the Arrow schema of `LakeTable.snapshots`.

    `total_record_count` is the lake's own number of rows in the snapshot's data files. It includes rows that a delete
    file or a newer version replaces.
    """
    by_bucket = pa.map_(pa.int32(), pa.int64())
    return pa.schema(
        [
            pa.field("snapshot_id", pa.int64()),
            pa.field("parent_id", pa.int64()),
            pa.field("committed_at", pa.timestamp("ms", "UTC")),
            pa.field("operation", pa.string()),
            pa.field("epoch", pa.int64()),
            pa.field("offsets", pa.map_(pa.string(), by_bucket) if definition.is_partitioned else by_bucket),
            pa.field("total_record_count", pa.int64()),
        ]
    )


def listed_offsets(offsets: Offsets) -> list[tuple[Any, Any]]:
    """Return offsets as a value of the column `offsets` of `snapshots_schema`."""
    found: dict[Any, Any] = {}
    for place, offset in in_order(offsets):
        if isinstance(place, PartitionBucket):
            found.setdefault(place.partition, []).append((place.bucket, offset))
        else:
            found[place] = offset
    return list(found.items())


def filtered(rows: pa.RecordBatch, wanted: Filter | None) -> pa.RecordBatch:
    """Return the rows for which a filter holds; its columns are among those of `rows`."""
    if wanted is None:
        return rows
    names = [wanted.schema.columns[place].name for place in wanted.columns]
    return rows.filter(pa.array(wanted.mask(rows.select(names))))


def in_our_type(batch: pa.RecordBatch, column: Column, source: str | None) -> pa.Array:
    """Return a column in the table's type from a batch of the lake; `source` None: it is newer than the rows."""
    target = column.type.arrow()
    if source is None:
        initial = column.initial_scalar()
        return pa.nulls(batch.num_rows, target) if initial is None else pa.repeat(initial, batch.num_rows)
    array = batch.column(source)
    if column.type.kind is TypeKind.BINARY and array.type != target:
        # In the lake the column has no length, and rows from before it was lengthened are shorter.
        zeros = pa.scalar(bytes(target.byte_width), pa.binary())
        padded = pc.binary_join_element_wise(array.cast(pa.binary()), zeros, pa.scalar(b"", pa.binary()))
        array = pc.binary_slice(padded, 0, target.byte_width)
    return array if array.type == target else array.cast(target)
