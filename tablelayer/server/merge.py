"""What a batch of upserts and deletes does to the rows of a bucket: rules R2, R5 and R6, last write wins.

Pure and vectorised: rows are columns throughout, and no step takes time per key in Python. The trick that makes
rounds for repeated keys unnecessary: what a row looks like after an operation depends on the operation and on
the *stored* row alone. For a full write it is the operation's own row; for a partial one the target columns come
from the operation, all others from the stored row, which partial writes never touch. So only *whether* a row
exists before an operation must be found out from the operation on the same key before it, and that is a shift
in an order sorted by key.

Left out: merge engines other than the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.model.arrays import Mask, validity
from tablelayer.model.batch import ChangeType
from tablelayer.model.keys import encode_keys
from tablelayer.model.rows import decode_rows, encode_rows
from tablelayer.model.schema import Schema

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Operations:
    """A batch in the table's columns, checked against its schema.

    rows     the table's columns in order; columns outside of `targets`, and all but the key of a delete, are ignored
    deletes  bool[n], true for deletes; None if there are none
    targets  positions of the columns written (key included); None for all
    """

    rows: pa.RecordBatch
    deletes: Mask | None = None
    targets: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """What to log and what to store.

    changelog, change_types  the emitted rows, uint8[n]
    keys, values             in key order: encoded rows to store, None to delete
    row_delta                (+I) - (-D)
    """

    changelog: pa.RecordBatch
    change_types: npt.NDArray[np.uint8]
    keys: list[bytes]
    values: list[bytes | None]
    row_delta: int


def row_keys(schema: Schema, rows: pa.RecordBatch, columns: tuple[str, ...] | None = None) -> pa.BinaryArray:
    """Store keys of rows by their primary-key (or the given) columns: the encoded key behind `ROW_PREFIX`."""
    names = schema.primary_key if columns is None else columns
    prefix = pa.repeat(pa.scalar(True), rows.num_rows)  # a true boolean is encoded as 01
    return encode_keys([prefix, *(rows.column(name) for name in names)])


def merge(
    schema: Schema,
    operations: Operations,
    read_stored: Callable[[list[bytes]], list[bytes | None]],
    *,
    full_image: bool = True,
) -> Merged:
    """Apply operations in order to what is stored. `read_stored` gets distinct keys in order."""
    rows, deletes, targets = operations.rows, operations.deletes, operations.targets
    count = rows.num_rows
    if targets is not None and len(targets) == len(schema.columns):
        targets = None
    groups = _Groups(row_keys(schema, rows))
    stored = pa.array(read_stored(groups.keys), pa.binary())
    stored_valid = validity(stored)
    is_stored = np.ones(len(stored), np.bool_) if stored_valid is None else stored_valid
    images, after, stored_rows = rows, np.ones(count, np.bool_), None
    if deletes is not None:
        after = ~deletes
    if targets is not None:
        stored_rows = decode_rows(stored, schema)
        images = _partial_images(schema, rows, deletes, targets, stored_rows, groups)
        if deletes is not None:
            after |= ~_others_are_null(schema, stored_rows, targets)[groups.of_row]
    before = is_stored[groups.of_row]
    if groups.previous is not None:
        repeated = groups.previous >= 0
        before[repeated] = after[groups.previous[repeated]]
    updated, inserted, deleted = before & after, ~before & after, before & ~after
    if targets is not None and all(schema.columns[index].name in schema.primary_key for index in targets):
        if deletes is None:
            updated[:] = False  # R6.6: nothing but the key was written
        else:
            updated &= deletes
    emitted = _emit(groups, count, updated, inserted, deleted, full_image=full_image)
    indices, change_types = emitted
    if len(indices) == count and inserted.all():
        changelog = images
    elif len(indices) and int(indices.max()) >= count:
        if stored_rows is None:
            stored_rows = decode_rows(stored, schema)
        changelog = pa.concat_batches([images, stored_rows]).take(pa.array(indices))
    else:
        changelog = images.take(pa.array(indices))
    keys, values = _to_store(schema, groups, images, after, updated | inserted | deleted)
    return Merged(changelog, change_types, keys, values, int(inserted.sum()) - int(deleted.sum()))


class _Groups:
    """The distinct keys of a batch, sorted, and which rows have them."""

    def __init__(self, keys: pa.BinaryArray) -> None:
        count = len(keys)
        order: Indices = (
            pc.sort_indices(keys).to_numpy().astype(np.int64)
        )  # stable: equal keys stay in row order
        in_order = keys.take(pa.array(order))
        listed: list[bytes] = in_order.to_pylist()
        same = np.zeros(count, np.bool_)
        if count > 1:
            same[1:] = pc.equal(in_order.slice(1), in_order.slice(0, count - 1)).to_numpy(
                zero_copy_only=False
            )
        first = ~same
        self.order = order
        self.of_row: Indices = np.empty(count, np.int64)
        self.of_row[order] = np.cumsum(first) - 1
        self.previous: Indices | None = None
        self.last_rows = order
        """The last row of each group."""
        if same.any():
            self.keys = list(compress(listed, first.tolist()))
            self.previous = np.full(count, -1, np.int64)
            self.previous[order[same]] = order[np.flatnonzero(same) - 1]
            self.last_rows = order[np.append(first[1:], True)]
        else:
            self.keys = listed


def _emit(
    groups: _Groups, count: int, updated: Mask, inserted: Mask, deleted: Mask, *, full_image: bool
) -> tuple[Indices, npt.NDArray[np.uint8]]:
    """Emitted rows as indices into (images, stored rows), and their change types."""
    sizes = updated.astype(np.int64) * (2 if full_image else 1) + inserted + deleted
    ends = np.cumsum(sizes)
    positions = ends - sizes
    total = int(ends[-1]) if count else 0
    old = groups.of_row + count
    if groups.previous is not None:
        old = np.where(groups.previous >= 0, groups.previous, old)
    indices = np.empty(total, np.int64)
    change_types = np.empty(total, np.uint8)
    at = np.flatnonzero(inserted)
    indices[positions[at]] = at
    change_types[positions[at]] = ChangeType.INSERT
    at = np.flatnonzero(deleted)
    indices[positions[at]] = old[at]
    change_types[positions[at]] = ChangeType.DELETE
    at = np.flatnonzero(updated)
    after = positions[at]
    if full_image:
        indices[after] = old[at]
        change_types[after] = ChangeType.UPDATE_BEFORE
        after = after + 1
    indices[after] = at
    change_types[after] = ChangeType.UPDATE_AFTER
    return indices, change_types


def _to_store(
    schema: Schema, groups: _Groups, images: pa.RecordBatch, after: Mask, changed: Mask
) -> tuple[list[bytes], list[bytes | None]]:
    if groups.previous is None and bool(changed.all()) and bool(after.all()):
        return groups.keys, encode_rows(images, schema).take(pa.array(groups.order)).to_pylist()
    touched = np.zeros(len(groups.keys), np.bool_)
    touched[groups.of_row[changed]] = True
    last = groups.last_rows[touched]
    kept = after[last]
    encoded = encode_rows(images.take(pa.array(last[kept])), schema).to_pylist()
    keys = list(compress(groups.keys, touched.tolist()))
    rows = iter(encoded)
    return keys, [next(rows) if keep else None for keep in kept.tolist()]


def _partial_images(
    schema: Schema,
    rows: pa.RecordBatch,
    deletes: Mask | None,
    targets: frozenset[int],
    stored_rows: pa.RecordBatch,
    groups: _Groups,
) -> pa.RecordBatch:
    """The row after each operation, where there is one (R6.4, R6.5, R6.7)."""
    of_row = pa.array(groups.of_row)
    columns = []
    for index, column in enumerate(schema.columns):
        if index not in targets:
            columns.append(stored_rows.column(index).take(of_row))
        elif deletes is None or column.name in schema.primary_key:
            columns.append(rows.column(index))
        else:
            columns.append(pc.if_else(pa.array(deletes), None, rows.column(index)))
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow())


def _others_are_null(schema: Schema, stored_rows: pa.RecordBatch, targets: frozenset[int]) -> Mask:
    """bool[groups]: every column outside of the targets is null (or there is no row)."""
    null = np.ones(stored_rows.num_rows, np.bool_)
    for index in range(len(schema.columns)):
        if index not in targets:
            valid = validity(stored_rows.column(index))
            if valid is None:
                return np.zeros(stored_rows.num_rows, np.bool_)
            null &= ~valid
    return null
