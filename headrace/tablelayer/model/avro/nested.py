"""Records, arrays and maps of Avro as ROW, ARRAY and MAP columns, one level at a time.

Fields match by name, as columns do; a field that the writer does not know is null. If a map has a key twice, the last
value counts. The caller checks the rules for the values inside (`check_inside`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.avro import kernels
from headrace.tablelayer.model.avro.schema import AvroKind, AvroSchema, AvroSchemaError, Node
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.rows.nested import last_of_each_key, make_entries, make_row, owners
from headrace.tablelayer.model.types.column_types import DataType
from headrace.tablelayer.model.types.sizes import RowBytes, value_width

_EMPTY_ITEMS_MAX = 1 << 20
"""Maximum number of items without bytes, such as nulls, in a batch, unless the batch has more bytes than this."""

_POSITION_BYTES = 8
_KEY = Node(-1, AvroKind.STRING)  # the node of a map's keys


class MisfitError(Exception):
    """A row's value does not fit the column. `place`: the position inside the value, as in `.name[2]`."""

    def __init__(self, row: int, reason: str, place: str = "") -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason
        self.place = place


class Reader(Protocol):
    """The part of the reader in `read.py` that reads values of any type."""

    data: np.ndarray
    writer: AvroSchema
    fail_unknown: bool
    sizes: RowBytes

    def walk(
        self, record: Node, wanted: dict[str, int], starts: np.ndarray, given: Mask, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, RowError | None]: ...

    def read(self, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array: ...


def is_map(node: Node) -> bool:
    """Whether values of the type can be read as maps."""
    if node.kind is AvroKind.MAP:
        return True
    pair = node.children[0] if node.kind is AvroKind.ARRAY else None
    return pair is not None and pair.kind is AvroKind.RECORD and len(pair.children) == 2


def rows(reader: Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
    """Return n records as a ROW column. Raises MisfitError and AvroSchemaError as the reader does."""
    wanted = {field.name: index for index, field in enumerate(data_type.fields)}
    unknown = [name for name in node.names if name not in wanted]
    if unknown and reader.fail_unknown:
        raise AvroSchemaError(
            f"the ROW has no field '{unknown[0]}', and table.kafka.unknown-fields is 'fail'"
        )
    try:
        reader.sizes.add(len(positions), _POSITION_BYTES * len(wanted))
    except RowError as error:
        raise MisfitError(error.index, error.reason) from None
    ends = np.full(len(positions), len(reader.data) - kernels.PADDING, np.int64)
    found, _, wrong_row = reader.walk(node, wanted, positions, given, ends)
    if wrong_row is not None:
        raise MisfitError(wrong_row.index, wrong_row.reason)
    by_name = dict(zip(node.names, node.children, strict=True))
    fields = []
    for index, field in enumerate(data_type.fields):
        child = by_name.get(field.name)
        if child is None:
            fields.append(pa.nulls(len(positions), field.type.arrow()))
            continue
        try:
            fields.append(reader.read(child, found[index], given, field.type))
        except MisfitError as misfit:
            raise MisfitError(misfit.row, misfit.reason, f".{field.name}{misfit.place}") from None
        except AvroSchemaError as wrong:
            raise AvroSchemaError(f"field '{field.name}': {wrong}") from None
    return make_row(data_type.arrow(), len(positions), fields, _valid(given))


def lists(reader: Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
    """Return n arrays. Raises as `rows` does."""
    counts, _, values = _items(reader, node, positions, given)
    _count_items(reader, counts, data_type)
    part = _inside(reader, node.children[0], values, data_type.fields[0].type, counts)
    return make_entries(data_type.arrow(), counts, [part], _valid(given))


def maps(reader: Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
    """Return n maps, given as maps or as arrays of pairs. Raises as `rows` does."""
    counts, starts, values = _items(reader, node, positions, given)
    _count_items(reader, counts, data_type)
    key, value = data_type.fields
    if node.kind is AvroKind.MAP:
        keys = _inside(reader, _KEY, starts, key.type, counts)
    else:
        pair = node.children[0]
        every = np.ones(len(values), np.bool_)
        ends = np.full(len(values), len(reader.data) - kernels.PADDING, np.int64)
        found, _, _ = reader.walk(
            pair, {name: index for index, name in enumerate(pair.names)}, values, every, ends
        )
        # The names of a pair's fields are free; Avro's maps in Parquet and Iceberg rely on the order.
        keys = _inside(reader, pair.children[0], found[0], key.type, counts)
        values = found[1]
    if keys.null_count:
        at = int(np.argmax(keys.is_null().to_numpy(zero_copy_only=False)))
        raise _entry_error(counts, at, MisfitError(at, "the key is null"))
    item = node.children[0] if node.kind is AvroKind.MAP else node.children[0].children[1]
    parts = [keys, _inside(reader, item, values, value.type, counts)]
    of = owners(counts)
    kept = last_of_each_key(of, keys)
    if kept is not None:
        parts = [part.take(pa.array(kept)) for part in parts]
        counts = np.bincount(of[kept], minlength=len(counts))
    return make_entries(data_type.arrow(), counts, parts, _valid(given))


def _valid(given: Mask) -> Mask | None:
    return None if given.all() else given


def _items(
    reader: Reader, node: Node, positions: np.ndarray, given: Mask
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (int64[n] numbers of items, positions of a map's keys, positions of the values)."""
    counts = np.zeros(len(positions), np.int64)
    none = np.zeros(0, np.int64)
    most = max(len(reader.data), _EMPTY_ITEMS_MAX)
    table, links = reader.writer.table, reader.writer.links
    row = int(
        kernels.items(
            reader.data, table, links, node.index, positions, given, most, False, counts, none, none
        )
    )
    if row >= 0:
        raise MisfitError(row, f"the arrays of the batch have more than {most} items that take no bytes")
    total = int(counts.sum())
    keys, values = np.zeros(total if node.kind is AvroKind.MAP else 0, np.int64), np.zeros(total, np.int64)
    kernels.items(reader.data, table, links, node.index, positions, given, most, True, counts, keys, values)
    return counts, keys, values


def _count_items(reader: Reader, counts: np.ndarray, data_type: DataType) -> None:
    """Raise MisfitError if these items would take too much memory."""
    of = owners(counts)
    try:
        with reader.sizes.inside(of):
            reader.sizes.add(len(of), sum(value_width(field.type.arrow()) for field in data_type.fields))
    except RowError as error:
        raise MisfitError(int(of[error.index]), error.reason) from None


def _inside(
    reader: Reader, node: Node, positions: np.ndarray, data_type: DataType, counts: np.ndarray
) -> pa.Array:
    try:
        with reader.sizes.inside(owners(counts)):
            return reader.read(node, positions.copy(), np.ones(len(positions), np.bool_), data_type)
    except MisfitError as misfit:
        raise _entry_error(counts, misfit.row, misfit) from None


def _entry_error(counts: np.ndarray, at: int, misfit: MisfitError) -> MisfitError:
    """Return an item's error as an error of the row that has the item."""
    row = int(owners(counts)[at])
    return MisfitError(row, misfit.reason, f"[{at - int(counts[:row].sum())}]{misfit.place}")
