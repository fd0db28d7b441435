"""The effects of a batch of upserts and deletes on the rows of a bucket: rules R2 and R5 to R10.

Pure and vectorised: rows are columns throughout, and no step takes Python time per key. Repeated keys need no extra
rounds: without a merge engine, a row after an operation depends on the operation and on the *stored* row alone. For a
full write it is the operation's own row. For a partial write the target columns come from the operation, and all others
from the stored row, which partial writes never touch. So only the *existence* of a row before an operation depends on
the previous operation on the same key.

Merge engines need the operations of a key in order: kernels process them sorted by key. The versioned engine finds the
current row after each write; the aggregation folds each column (`aggregation`). Columns are found by their position in
the table's latest schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import compress

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from headrace.tablelayer.model.arrays.arrays import Mask, sealed, validity
from headrace.tablelayer.model.arrays.order import sorted_order
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.batches.ipc import decode_ipc
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.options.kafka_formats import WithoutRow
from headrace.tablelayer.model.options.table_options import ChangelogImage, MergeEngine, TableOptions
from headrace.tablelayer.model.rows.keys import encode_few_keys, encode_keys
from headrace.tablelayer.model.rows.stored import decode_rows, encode_rows
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.stored_message import message_of_arrays

Indices = npt.NDArray[np.int64]
TakeNumbers = Callable[[int], Indices]
"""Returns the next n values for an auto-increment column, int64[n]. It may raise, to be called again later."""


class MergeRules(msgspec.Struct, frozen=True):
    """The parts of a table's definition that affect a write."""

    schema: Schema
    engine: MergeEngine | None = None
    version_column: int | None = None
    auto_increment: int | None = None
    full_image: bool = True
    without_row: WithoutRow = WithoutRow.REFUSE

    @classmethod
    def of(cls, definition: TableDefinition) -> MergeRules:
        schema, settings = definition.schema, definition.settings
        version, auto = settings.version_column, settings.auto_increment_column
        return cls(
            schema,
            settings.merge_engine,
            None if version is None else schema.index(version),
            None if auto is None else schema.index(auto),
            settings.changelog_image is ChangelogImage.FULL,
            settings.kafka_without_row,
        )


class Operations(msgspec.Struct, frozen=True):
    """A batch in the table's columns, checked against its schema.

    rows       the table's columns in order; columns outside of `targets`, and all but a delete's key, are ignored
    deletes    bool[n], true for deletes; None if there are none
    targets    positions of the written columns (key included); None for all
    overwrite  bypass the merge engine: rows replace stored rows (R9.10)
    update     write existing rows only, insert none (R6.10); there are no deletes then
    sent_as    number of each row in the writer's batch, for errors; None if it is the same
    kept       by column id, bool[n]: cells that keep their stored value, whatever is in `rows`
    """

    rows: pa.RecordBatch
    deletes: Mask | None = None
    targets: frozenset[int] | None = None
    overwrite: bool = False
    update: bool = False
    sent_as: Indices | None = None
    kept: Mapping[int, Mask] | None = None

    def select(self, at: Indices) -> Operations:
        """Return some of the rows, in this order."""
        deletes = None if self.deletes is None else self.deletes[at]
        if deletes is not None and not deletes.any():
            deletes = None
        sent_as = at if self.sent_as is None else self.sent_as[at]
        kept = None if self.kept is None else {column: cells[at] for column, cells in self.kept.items()}
        rows = self.rows.take(pa.array(at))
        return replace(self, rows=rows, deletes=deletes, sent_as=sent_as, kept=kept)


class Merged(msgspec.Struct, frozen=True):
    """The changes to log and to store.

    changelog, change_types  the emitted rows, uint8[n]
    message                  the Arrow message of these rows, if they were made from one
    keys, values             in key order: encoded rows to store, None to delete
    row_delta                (+I) - (-D)
    numbers_taken            number of values that the auto-increment column has used
    """

    changelog: pa.RecordBatch
    change_types: npt.NDArray[np.uint8]
    keys: list[bytes]
    values: list[bytes | None]
    row_delta: int
    numbers_taken: int = 0
    message: memoryview | None = None


def row_keys(schema: Schema, rows: pa.RecordBatch, columns: tuple[str, ...] | None = None) -> pa.BinaryArray:
    """Return the store keys of rows by primary key (or the given columns): the encoded key behind `ROW_PREFIX`."""
    names = schema.primary_key if columns is None else columns
    prefix = pa.repeat(pa.scalar(True), rows.num_rows)  # a true boolean is encoded as 01
    return encode_keys([prefix, *(rows.column(name) for name in names)])


def few_row_keys(schema: Schema, rows: pa.RecordBatch) -> list[bytes]:
    """Return the store keys of a few rows by primary key."""
    return [b"\x01" + key for key in encode_few_keys([rows.column(name) for name in schema.primary_key])]


def merge(
    rules: MergeRules,
    operations: Operations,
    read_stored: Callable[[list[bytes]], list[bytes | None]],
    take_numbers: TakeNumbers | None = None,
) -> Merged:
    """Apply operations in order to the stored rows. `read_stored` gets distinct keys in order.

    Raises RowError for a value that cannot be merged (R9.7) or kept (R17.11), and what `take_numbers` raises.
    """
    schema, rows, deletes, targets = rules.schema, operations.rows, operations.deletes, operations.targets
    count = rows.num_rows
    if targets is not None and len(targets) == len(schema.columns):
        targets = None
    engine = None if operations.overwrite else rules.engine
    groups = _Groups(row_keys(schema, rows))
    stored = _Stored(schema, read_stored(groups.keys))
    if operations.update:
        before = after = stored.exists[groups.of_row]
    else:
        before, after = _existence(rules, groups, stored, deletes, targets)
    updated, inserted, deleted = before & after, ~before & after, before & ~after
    if targets is not None and _is_key_only(rules, targets):
        if deletes is None:
            updated[:] = False  # R6.6: only the key was written
        else:
            updated &= deletes
    standing: Indices | None = None  # the row that is current after each operation; None: its own
    if engine is MergeEngine.FIRST_ROW:
        updated[:] = False
        standing = _first_rows(groups, stored)
    elif engine is MergeEngine.VERSIONED:
        standing = _newest_rows(rules, rows, groups, stored)
        updated &= standing == np.arange(count)
    images = rows
    if targets is not None or engine is MergeEngine.AGGREGATION or rules.auto_increment is not None:
        images = _images(rules, engine, operations, targets, groups, stored, before, inserted, take_numbers)
    old = groups.of_row + count
    if groups.previous is not None:
        previous = groups.previous if standing is None else standing[groups.previous]
        old = np.where(groups.previous >= 0, previous, old)
    if operations.kept:
        images = _with_kept(rules, engine, images, operations.kept, stored, before, old)
    indices, change_types = _emit(old, updated, inserted, deleted, full_image=rules.full_image)
    encoded: pa.BinaryArray | None = None
    message: memoryview | None = None
    if len(indices) == count and inserted.all():
        changelog = images
    elif len(indices) and int(indices.max()) >= count:
        encoded = encode_rows(images, schema)
        changelog, message = stored.behind(images, encoded, indices)
    else:
        changelog = images.take(pa.array(indices))
    keys, values = _to_store(schema, groups, images, encoded, after, updated | inserted | deleted, standing)
    insertions = int(inserted.sum())
    return Merged(
        changelog, change_types, keys, values, insertions - int(deleted.sum()),
        insertions if rules.auto_increment is not None else 0, message,
    )  # fmt: skip


class _Stored:
    """The groups' stored rows, decoded only when needed: mostly their existence is enough."""

    def __init__(self, schema: Schema, values: list[bytes | None]) -> None:
        self._schema = schema
        self._values = pa.array(values, pa.binary())
        valid = validity(self._values)
        self.exists: Mask = np.ones(len(values), np.bool_) if valid is None else valid
        self._rows: pa.RecordBatch | None = None

    @property
    def rows(self) -> pa.RecordBatch:
        if self._rows is None:
            self._rows = self._decoded(None)
        return self._rows

    def column(self, index: int) -> pa.Array:
        if self._rows is not None:
            return self._rows.column(index)
        return self._decoded([index]).column(0)

    def behind(
        self, images: pa.RecordBatch, encoded: pa.BinaryArray, indices: Indices
    ) -> tuple[pa.RecordBatch, memoryview | None]:
        """Return rows by index into `images` (also given `encoded`), followed by the stored rows, and their message."""
        message = message_of_arrays([encoded, self._values], self._schema, None, indices)
        if message is None:
            return pa.concat_batches([images, self.rows]).take(pa.array(indices)), None
        return decode_ipc(message, self._schema.arrow()), message

    def _decoded(self, columns: list[int] | None) -> pa.RecordBatch:
        message = message_of_arrays([self._values], self._schema, columns)
        if message is None:
            return decode_rows(self._values, self._schema, columns)
        arrow = self._schema.arrow()
        return decode_ipc(
            message, arrow if columns is None else pa.schema([arrow.field(index) for index in columns])
        )


class _Groups:
    """The distinct keys of a batch, sorted, and the rows that have them."""

    def __init__(self, keys: pa.BinaryArray) -> None:
        count = len(keys)
        order: Indices = sorted_order(keys)
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
    old: Indices, updated: Mask, inserted: Mask, deleted: Mask, *, full_image: bool
) -> tuple[Indices, npt.NDArray[np.uint8]]:
    """Return the emitted rows as indices into (images, stored rows), and their change types. `old`: earlier rows."""
    sizes = updated.astype(np.int64) * (2 if full_image else 1) + inserted + deleted
    ends = np.cumsum(sizes)
    positions = ends - sizes
    total = int(ends[-1]) if len(ends) else 0
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
    schema: Schema,
    groups: _Groups,
    images: pa.RecordBatch,
    encoded: pa.BinaryArray | None,
    after: Mask,
    changed: Mask,
    standing: Indices | None,
) -> tuple[list[bytes], list[bytes | None]]:
    """Return keys and values in key order. `encoded` has the images if they are encoded already."""
    if groups.previous is None and bool(changed.all()) and bool(after.all()):
        encoded = encode_rows(images, schema) if encoded is None else encoded
        return groups.keys, encoded.take(pa.array(groups.order)).to_pylist()
    touched = np.zeros(len(groups.keys), np.bool_)
    touched[groups.of_row[changed]] = True
    last = groups.last_rows[touched]
    kept = after[last]
    source = last[kept] if standing is None else standing[last[kept]]
    if encoded is None:
        rows = iter(encode_rows(images.take(pa.array(source)), schema).to_pylist())
    else:
        rows = iter(encoded.take(pa.array(source)).to_pylist())
    keys = list(compress(groups.keys, touched.tolist()))
    return keys, [next(rows) if keep else None for keep in kept.tolist()]


def _is_key_only(rules: MergeRules, targets: frozenset[int]) -> bool:
    return all(rules.schema.columns[index].name in rules.schema.primary_key for index in targets)


def _existence(
    rules: MergeRules,
    groups: _Groups,
    stored: _Stored,
    deletes: Mask | None,
    targets: frozenset[int] | None,
) -> tuple[Mask, Mask]:
    """Return whether there is a row before and after each operation, two bool[n]."""
    count = len(groups.of_row)
    before, after = stored.exists[groups.of_row], np.ones(count, np.bool_)
    if deletes is None:
        if groups.previous is not None:
            before[groups.previous >= 0] = True
        return before, after
    from headrace.tablelayer.server.merge.fold_kernels import (
        existence,  # imports numba: only if needed
    )

    removes, removes_new = np.ones(len(groups.keys), np.bool_), True
    if targets is not None:
        # A column outside of the targets that is not null keeps the row (R6.7); an auto-increment column never is null.
        removes_new = rules.auto_increment is None and not any(
            index not in targets and (column.default is not None or not column.nullable)
            for index, column in enumerate(rules.schema.columns)
        )
        removes[:] = rules.auto_increment is None and _others_are_null(rules.schema, stored, targets)
    existence(
        sealed(groups.order), sealed(groups.of_row), sealed(stored.exists), sealed(deletes), sealed(removes),
        removes_new, before, after,
    )  # fmt: skip
    return before, after


def _made_here(groups: _Groups, inserted: Mask) -> pa.Array:
    """Return bool[n]: the row after an operation was inserted by this batch, and is not the stored one."""
    order = groups.order
    of = groups.of_row[order]
    places = np.arange(len(order))
    begins = np.flatnonzero(np.diff(of, prepend=-1))
    last_made = np.maximum.accumulate(np.where(inserted[order], places, -1))
    made = np.empty(len(order), np.bool_)
    made[order] = last_made >= begins[of]
    return pa.array(made)


def _first_rows(groups: _Groups, stored: _Stored) -> Indices:
    """Return the stored row, else the batch's first row with the key (R7)."""
    count = len(groups.of_row)
    first = np.arange(len(groups.keys)) + count
    starts = groups.order[np.flatnonzero(np.diff(groups.of_row[groups.order], prepend=-1))]
    absent = ~stored.exists
    first[absent] = starts[absent]
    standing: Indices = first[groups.of_row]
    return standing


def _newest_rows(rules: MergeRules, rows: pa.RecordBatch, groups: _Groups, stored: _Stored) -> Indices:
    """Return the row with the highest version; of equal versions the later row (R8)."""
    from headrace.tablelayer.server.merge.aggregation import ranks_of
    from headrace.tablelayer.server.merge.fold_kernels import newest_version

    assert rules.version_column is not None
    versions = pa.concat_arrays([rows.column(rules.version_column), stored.column(rules.version_column)])
    valid = validity(versions)
    standing = np.empty(rows.num_rows, np.int64)
    newest_version(
        sealed(groups.order), sealed(groups.of_row), sealed(stored.exists), ranks_of(versions),
        sealed(np.ones(len(versions), np.bool_) if valid is None else valid), standing,
    )  # fmt: skip
    return standing


def _images(
    rules: MergeRules,
    engine: MergeEngine | None,
    operations: Operations,
    targets: frozenset[int] | None,
    groups: _Groups,
    stored: _Stored,
    before: Mask,
    inserted: Mask,
    take_numbers: TakeNumbers | None,
) -> pa.RecordBatch:
    """Return the row after each operation, if there is one (R6.4, R6.5, R6.7, R9, R10)."""
    from headrace.tablelayer.server.merge.aggregation import Chain, fold, pick
    from headrace.tablelayer.server.merge.fold_kernels import FIRST

    schema, rows, deletes = rules.schema, operations.rows, operations.deletes
    no_deletes = np.zeros(rows.num_rows, np.bool_)
    chain = Chain(groups.order, groups.of_row, before, no_deletes if deletes is None else deletes)
    of_row = pa.array(groups.of_row)
    made: pa.Array | None = None
    columns = []
    for index, column in enumerate(schema.columns):
        if index == rules.auto_increment:
            assert take_numbers is not None
            numbers = np.zeros(rows.num_rows, np.int64)
            numbers[inserted] = take_numbers(int(inserted.sum()))
            given = pa.array(numbers).cast(column.type.arrow())
            # A delete of some columns keeps the number; after a delete of all columns there is a new one, as `before`
            # shows.
            kept = Chain(chain.order, chain.of_row, before, no_deletes)
            columns.append(pick(given, stored.rows.column(index), kept, FIRST))
        elif targets is not None and index not in targets:
            others = stored.rows.column(index).take(of_row)
            if column.default is not None:
                made = _made_here(groups, inserted) if made is None else made
                others = pc.if_else(made, column.default_scalar(), others)
            columns.append(others)
        elif column.name in schema.primary_key:
            columns.append(rows.column(index))
        elif engine is MergeEngine.AGGREGATION:
            columns.append(fold(column, rows.column(index), stored.rows.column(index), chain))
        elif deletes is None:
            columns.append(rows.column(index))
        else:
            columns.append(pc.if_else(pa.array(deletes), None, rows.column(index)))
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow())


def _with_kept(
    rules: MergeRules,
    engine: MergeEngine | None,
    images: pa.RecordBatch,
    kept: Mapping[int, Mask],
    stored: _Stored,
    before: Mask,
    old: Indices,
) -> pa.RecordBatch:
    """Replace cells that the writer does not know by those of the previous row (R17.11). `old` has the previous rows'
    numbers.
    """
    from headrace.tablelayer.server.merge.aggregation import taken

    count, columns = images.num_rows, list(images.columns)
    for index, column in enumerate(rules.schema.columns):
        cells = kept.get(column.id)
        if cells is None or not cells.any():
            continue
        if engine is MergeEngine.AGGREGATION:
            what = "the value was not sent, and the merge engine 'aggregation' needs one to merge"
            raise RowError(int(cells.argmax()), column.name, what)
        absent = cells & ~before
        if absent.any():
            _check_absent(rules, int(absent.argmax()), column)
        cells = cells & before
        source = np.where(cells, old, np.arange(count))
        while True:  # the previous row may have kept the cell too; each step doubles the distance
            within = np.where(source < count, source, 0)
            further = np.where((source < count) & cells[within], source[within], source)
            if (further == source).all():
                break
            source = further
        columns[index] = taken(columns[index], stored.column(index), source)
    return pa.RecordBatch.from_arrays(columns, schema=images.schema)


def _check_absent(rules: MergeRules, row: int, column: Column) -> None:
    """Raise RowError for a left-out value of a row that does not exist, unless null is allowed for it."""
    option = TableOptions.kafka_without_row.name
    if rules.without_row is WithoutRow.REFUSE:
        what = (
            "the value was left out as unchanged, but no row with this key is stored; load "
            f"the table from a snapshot, or allow null for such values: '{option}' = '{WithoutRow.NULL}'"
        )
        raise RowError(row, column.name, what)
    if not column.nullable:
        what = (
            "the value was left out as unchanged, no row with this key is stored, and the column is NOT NULL"
        )
        raise RowError(row, column.name, what)


def _others_are_null(schema: Schema, stored: _Stored, targets: frozenset[int]) -> Mask:
    """Return bool[groups]: every column outside of the targets is null (or there is no row)."""
    null = np.ones(len(stored.exists), np.bool_)
    for index in range(len(schema.columns)):
        if index not in targets:
            valid = validity(stored.rows.column(index))
            if valid is None:
                null[:] = False
                return null
            null &= ~valid
    return null
