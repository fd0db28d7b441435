"""The Kafka view of a table: rows as Kafka records and back, a batch at a time (semantics R17).

Rows to records: a record's value is the row as JSON, its key the primary key (or a log table's bucket key) as JSON.
Both are in the table's latest schema, whatever the batch's schema is. Its timestamp is the append time; its offset is
the log's. In a primary-key table -U is left out and -D is a tombstone; with `table.kafka.changelog=full` every image
has its row as value and a header `change-type`. A batch without visible records becomes an empty batch over the same
offsets, so that consumers advance.

Records to rows: a record's value is a row, which is appended or upserted. A null value deletes the row of the record's
key (primary-key tables only); the JSON text `null`, and null at the path of the row, do the same. The key of a delete
is a JSON object of the key columns, with or without Connect's schema around it. If the key is one column, it may also
be that column's bare value; a text needs no quotes. The key of an upsert is ignored: the row has it. A flattened event
whose field `__deleted` is true, or whose `__op` is `d`, is a delete of the key in it.

Pure: no clock, no log. A bad record raises `RowError` with the record's index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records.decode import RecordColumns
from headrace.protocol.records.encode import EncodedHeaders, encode_batch
from headrace.protocol.records.gather import gather
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.arrays.arrays import Bytes, Mask, Offsets, binary_array, variable_values
from headrace.tablelayer.model.avro.write import Frame, rows_to_avro
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json.debezium import (
    CREATED,
    DELETED,
    UPDATED,
    EnvelopeGroup,
    KeyGroup,
    key_groups,
    mongo_keys,
    read_envelopes,
    write_envelopes,
)
from headrace.tablelayer.model.json.debezium_values import Conventions
from headrace.tablelayer.model.json.path import descend, wrap
from headrace.tablelayer.model.json.python_values import python_value
from headrace.tablelayer.model.json.rows import JsonTexts, Rows, find_rows, json_to_rows, rows_to_json
from headrace.tablelayer.model.json.unavailable import Placeholder
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.options.table_options import KafkaChangelog, KeyMismatch, UnknownFields
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.model.types.sizes import RowsTooLargeError, check_rows
from headrace.tablelayer.server.kafka_face import avro as avro_face
from headrace.tablelayer.server.kafka_face.avro import Schemas

Indices = npt.NDArray[np.int64]

CHANGE_TYPE_HEADER: Final = "change-type"
_LOG_APPEND_TIME: Final = 0x08
_EXCERPT_LENGTH: Final = 60
_ONE_VALUE: Final = rb'(?s)^\s*("([^"\\]|\\.)*"|[^\s",:\[\]{}]+)\s*$'
"""A text or a word: a key's bare value."""


def to_kafka(
    batch: ArrowBatch,
    table: TableDefinition,
    avro: Frame | None = None,
    stored: pa.RecordBatch | None = None,
    piece: tuple[int, int] | None = None,
) -> memoryview:
    """Return one Arrow batch of the log as one record batch v2 over the same offsets. Raises DecodeError.

    `avro` is the frame around Avro values; None for other formats. `stored` has the batch's rows if they are decoded
    already. `piece` is the row range [first, end) to return.
    """
    header, settings = batch.header, table.settings
    rows = stored
    if rows is None:
        rows = batch.to_record_batch(table.versions.get(batch.schema_id).arrow())
    changes = batch.change_types
    first, last, last_offset_delta = 0, rows.num_rows, header.last_offset_delta
    if piece is not None:
        first, last = piece
        if last < rows.num_rows:
            last_offset_delta = last - 1
        rows = rows.slice(first, last - first)
        changes = None if changes is None else changes[first:last]
    rows = table.versions.conversion(batch.schema_id).of(rows)
    full = settings.kafka_changelog is KafkaChangelog.FULL
    if settings.kafka_value_format is KafkaValueFormat.DEBEZIUM_JSON:
        shown = _envelopes(rows, changes, full, header.max_timestamp)
    else:
        shown = _images(rows, changes, full, table, avro)
    key_offsets = key_data = None
    if table.bucket_key:
        names = list(table.schema.primary_key or table.bucket_key)
        key_offsets, key_data = variable_values(rows_to_json(_key_columns_of(shown.rows, names)))
    value_offsets, value_data = shown.values
    return encode_batch(
        timestamps=np.full(shown.rows.num_rows, header.max_timestamp, np.int64),
        key_offsets=key_offsets,
        key_data=key_data,
        value_offsets=value_offsets,
        value_data=value_data,
        value_valid=shown.valid,
        headers=_change_type_headers(shown.changes) if full and shown.changes is not None else None,
        offset_deltas=shown.offsets.astype(np.int32),
        base_offset=header.base_offset + first,
        last_offset_delta=last_offset_delta - first,
        attributes=_LOG_APPEND_TIME,
        leader_epoch=header.partition_leader_epoch,
    )


def _key_columns_of(rows: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return the key columns; equal keys get equal texts, so -0.0 becomes 0."""
    keys = rows.select(names)
    for index, column in enumerate(keys.columns):
        if pa.types.is_floating(column.type):
            keys = keys.set_column(
                index, keys.schema.field(index), pc.add(column, pa.scalar(0.0, column.type))
            )
    return keys


def empty_batch(header: BatchHeader) -> memoryview:
    """Return a record batch v2 without records over the offsets of a batch."""
    return encode_batch(
        timestamps=np.zeros(0, np.int64),
        value_offsets=None,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        attributes=_LOG_APPEND_TIME,
        leader_epoch=header.partition_leader_epoch,
    )


class _Shown(msgspec.Struct, frozen=True):
    """The records of a batch: the rows of their keys, their values (offsets, data), the mask of non-null values (None:
    all), their change types, and their offsets in the batch.
    """

    rows: pa.RecordBatch
    values: tuple[Offsets, Bytes]
    valid: Mask | None
    changes: npt.NDArray[np.uint8] | None
    offsets: Indices


def _images(
    rows: pa.RecordBatch,
    changes: npt.NDArray[np.uint8] | None,
    full: bool,
    table: TableDefinition,
    avro: Frame | None,
) -> _Shown:
    """Return a record for every row. A -D has no value unless `full`."""
    offsets: Indices = np.arange(rows.num_rows)
    valid: Mask | None = None
    if changes is not None and not full:
        kept = changes != ChangeType.UPDATE_BEFORE
        if not kept.all():
            offsets = np.flatnonzero(kept)
            rows, changes = rows.take(pa.array(offsets)), changes[offsets]
        valid = changes != ChangeType.DELETE
        if valid.all():
            valid = None
    value_offsets, value_data = _encode(rows if valid is None else rows.filter(pa.array(valid)), table, avro)
    if valid is not None:
        value_offsets = _spread(value_offsets, valid)
    return _Shown(rows, (value_offsets, value_data), valid, changes, offsets)


def _encode(rows: pa.RecordBatch, table: TableDefinition, avro: Frame | None) -> tuple[Offsets, Bytes]:
    if avro is not None:
        return rows_to_avro(rows, table.schema, avro)
    texts = rows_to_json(rows)
    path = table.settings.kafka_value_path
    return variable_values(texts if path is None else wrap(texts, path))


def _envelopes(
    rows: pa.RecordBatch, changes: npt.NDArray[np.uint8] | None, full: bool, timestamp_ms: int
) -> _Shown:
    """Return Debezium's envelopes. A -U is not a record: with `full` it becomes the `before` of the +U behind it."""
    count = rows.num_rows
    kinds = np.full(count, ChangeType.INSERT, np.uint8) if changes is None else changes
    befores = kinds == ChangeType.UPDATE_BEFORE
    offsets: Indices = np.flatnonzero(~befores)
    if not full and len(offsets) < count:
        rows, positions = rows.take(pa.array(offsets)), np.arange(len(offsets))
    else:
        positions = offsets
    shown = kinds[offsets]
    deleted, updated = shown == ChangeType.DELETE, shown == ChangeType.UPDATE_AFTER
    before, after = np.where(deleted, positions, -1), np.where(deleted, -1, positions)
    if full:
        follows = updated & (offsets > 0) & befores[offsets - 1]
        before[follows] = positions[follows] - 1
    ops = np.where(deleted, DELETED, np.where(updated, UPDATED, CREATED)).astype(np.uint8)
    values = write_envelopes(variable_values(rows_to_json(rows)), before, after, ops, timestamp_ms)
    keyed = rows if rows.num_rows == len(offsets) else rows.take(pa.array(positions))
    return _Shown(keyed, values, None, None if changes is None else shown, offsets)


def _spread(offsets: npt.NDArray[np.int32], valid: Mask) -> npt.NDArray[np.int32]:
    """Turn the offsets of the valid values into offsets of all values; the others are empty."""
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = np.diff(offsets)
    spread = np.zeros(len(valid) + 1, np.int32)
    np.cumsum(lengths, out=spread[1:])
    return spread


def _change_type_headers(changes: npt.NDArray[np.uint8]) -> EncodedHeaders:
    """Return each row's header: name and short change type, each after its length as a zigzag varint."""
    name = CHANGE_TYPE_HEADER.encode()
    front = bytes([2 * len(name)]) + name + bytes([2 * 2])
    blocks = np.frombuffer(b"".join(front + kind.short.encode() for kind in ChangeType), np.uint8)
    size = len(front) + 2
    data = blocks.reshape(len(ChangeType), size)[changes].reshape(-1)
    offsets = np.arange(len(changes) + 1, dtype=np.int32) * np.int32(size)
    return offsets, data, np.ones(len(changes), np.int32)


class KafkaWrite(msgspec.Struct, frozen=True):
    """The rows of a produced batch in the order of its records.

    `change_types` is None for a log table, else uint8[n] of UPDATE_AFTER (upsert) and DELETE; a deleted row has its key
    columns only. `kept` (by column id, bool[n]) marks values that the source left out because they are unchanged.
    """

    rows: pa.RecordBatch
    change_types: npt.NDArray[np.uint8] | None
    kept: dict[int, Mask] | None = None


def from_kafka(records: RecordColumns, table: TableDefinition, schemas: Schemas | None = None) -> KafkaWrite:
    """Return the rows of a Kafka client's records. Raises RowError for the first bad record.

    `schemas` has those of the ids in Avro values and keys (`avro_face.schema_ids`).
    """
    known: Schemas = {} if schemas is None else schemas
    parts = _Parts(len(records))
    absent = records.value_length < 0
    if table.settings.kafka_value_format is not KafkaValueFormat.AVRO:
        absent |= _null_texts(records)
    nulls = np.flatnonzero(absent)
    given = np.flatnonzero(~absent) if len(nulls) else np.arange(len(records))
    if len(nulls) and not table.is_primary_key_table:
        what = f"its value is null, and {table.path} is a log table: nothing to delete"
        parts.failures.append(RowError(int(nulls[0]), None, what))
    elif len(nulls):
        _add_deletes(parts, records, nulls, table, known)
    if len(given):
        match table.settings.kafka_value_format:
            case KafkaValueFormat.JSON:
                _add_json(parts, records, given, table)
            case KafkaValueFormat.DEBEZIUM_JSON:
                _add_envelopes(parts, records, given, table)
            case KafkaValueFormat.AVRO:
                start, length = records.value_start[given], records.value_length[given]
                unknown = table.settings.kafka_unknown_fields
                avro_face.add_rows(
                    records.payload, start, length, table.schema.columns, known, unknown,
                    lambda at, decode: parts.add(given[at], decode), units=table.settings.debezium_units,
                )  # fmt: skip
    write = parts.write(table)
    if table.is_primary_key_table and table.settings.kafka_key_mismatch is KeyMismatch.FAIL:
        _check_keys(records, given, write, table, known)
    return write


_OTHER_KEYS_MAX = 16
"""Maximum number of keys in a batch that do not fit the table's key, each of which costs another check of the records
behind it; after that the rest is not checked."""


def _check_keys(
    records: RecordColumns, given: Indices, write: KafkaWrite, table: TableDefinition, schemas: Schemas
) -> None:
    """Raise RowError for the first record whose key and value name different rows."""
    left = given[records.key_length[given] >= 0]
    for _ in range(_OTHER_KEYS_MAX):
        if not len(left):
            return
        keys = _Parts(len(records))
        _add_deletes(keys, records, left, table, schemas)
        if not keys.failures:
            _compare_keys(keys, write, table)
            return
        bad = min(error.index for error in keys.failures)
        before = left[left < bad]
        if len(before):
            keys = _Parts(len(records))
            _add_deletes(keys, records, before, table, schemas)
            _compare_keys(keys, write, table)
        left = left[left > bad]


def _compare_keys(keys: _Parts, write: KafkaWrite, table: TableDefinition) -> None:
    differing: list[RowError] = []
    for at, rows in keys.pieces:
        values = write.rows if len(at) == write.rows.num_rows else write.rows.take(pa.array(at))
        for column in table.schema.key_columns:
            said, written = rows.column(column.name), values.column(column.name)
            unlike = pc.fill_null(pc.not_equal(said, written), True)
            if pa.types.is_floating(said.type):
                unlike = pc.and_not(unlike, pc.and_(pc.is_nan(said), pc.is_nan(written)))
            place = pc.index(unlike, True).as_py()
            if place >= 0:
                key, value = (python_value(each[place]) for each in (said, written))
                reason = (
                    f"the record's key is {key!s:.60}, but its value has {value!s:.60}: a tombstone of that key would "
                    "delete another row ('table.kafka.key-mismatch' = 'ignore' accepts such records by their values)"
                )
                differing.append(RowError(int(at[place]), column.name, reason))
    if differing:
        raise min(differing, key=lambda error: error.index)


_NULL = np.frombuffer(b"null", np.uint8)


def _null_texts(records: RecordColumns) -> Mask:
    """Return the mask of values that are the JSON text `null`, which a converter without schemas writes for null."""
    found: Mask = records.value_length == len(_NULL)
    at = np.flatnonzero(found)
    if len(at):
        windows = records.value_start[at].astype(np.int64)[:, None] + np.arange(len(_NULL))
        found[at] = (records.payload[windows] == _NULL).all(axis=1)
    return found


class _Parts:
    """The records of a batch, decoded in parts. Errors are raised after all parts are decoded, so that the error names
    the batch's first bad record.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.failures: list[RowError] = []
        self._rows: list[pa.RecordBatch] = []
        self._at: list[Indices] = []
        self._deletes: list[bool] = []
        self._kept: dict[int, Mask] = {}

    def add(self, at: Indices, decode: Callable[[], pa.RecordBatch | Rows], *, deletes: bool = False) -> None:
        """Add the rows of the records `at`. If `decode` raises RowError, its index is that of a row of the part."""
        if not len(at):
            return
        try:
            rows = decode()
        except RowError as error:
            self.fail(error, at)
            return
        if isinstance(rows, Rows):
            for column, cells in rows.kept.items():
                self._kept.setdefault(column, np.zeros(self.count, np.bool_))[at] = cells
            rows = rows.rows
        self._rows.append(rows)
        self._at.append(at)
        self._deletes.append(deletes)

    @property
    def pieces(self) -> list[tuple[Indices, pa.RecordBatch]]:
        """The record indices of each part, and their rows."""
        return list(zip(self._at, self._rows, strict=True))

    def fail(self, error: RowError, at: Indices) -> None:
        self.failures.append(RowError(int(at[error.index]), error.column, error.reason))

    def refuse_deletes(self, at: Indices, table: TableDefinition, what: str) -> None:
        """Refuse deletes of a log table."""
        if len(at):
            reason = f"{what}, and {table.path} is a log table: nothing to delete"
            self.failures.append(RowError(int(at[0]), None, reason))

    def write(self, table: TableDefinition) -> KafkaWrite:
        """Return all rows in the order of the records. Raises the first RowError."""
        if self.failures:
            raise min(self.failures, key=lambda error: error.index)
        changes = np.empty(self.count, np.uint8)
        for at, deletes in zip(self._at, self._deletes, strict=True):
            changes[at] = ChangeType.DELETE if deletes else ChangeType.UPDATE_AFTER
        rows = self._rows[0] if self._rows else pa.RecordBatch.from_pylist([], table.schema.arrow())
        if len(self._rows) > 1:
            order = np.empty(self.count, np.int64)
            order[np.concatenate(self._at)] = np.arange(self.count)
            rows = pa.concat_batches(self._rows).take(pa.array(order))
        return KafkaWrite(rows, changes if table.is_primary_key_table else None, self._kept or None)


def _texts(records: RecordColumns, at: Indices) -> JsonTexts:
    """Return the values of these records, none of which is null. Raises RowError."""
    return JsonTexts.gathered(records.payload, records.value_start[at], records.value_length[at])


def _placeholder(table: TableDefinition) -> Placeholder | None:
    text = table.settings.kafka_unavailable
    return Placeholder.of(text) if text and table.is_primary_key_table else None


_OP_FIELD = "__op"


def _add_json(parts: _Parts, records: RecordColumns, at: Indices, table: TableDefinition) -> None:
    """Add rows, with or without a converter's envelope, and deletes."""
    settings = table.settings
    try:
        found = descend(_texts(records, at), settings.kafka_value_path or ())
    except RowError as error:
        return parts.fail(error, at)
    if found.error is not None:
        parts.fail(found.error, at)
    nulls = at[found.nulls]
    if table.is_primary_key_table:
        parts.add(nulls, lambda: _deleted_rows(records, nulls, table), deletes=True)
    else:
        parts.refuse_deletes(nulls, table, "its row is null")
    for group in found.groups:
        _add_rows(parts, at[group.at], group.texts, Conventions.of(settings, group.schema), table)
    return None


def _add_rows(
    parts: _Parts, at: Indices, texts: JsonTexts, conventions: Conventions, table: TableDefinition
) -> None:
    schema, settings = table.schema, table.settings
    marks: list[str] = []
    deleted_field = settings.kafka_deleted_field
    if table.is_primary_key_table and deleted_field and deleted_field not in schema:
        marks = [deleted_field, *(() if _OP_FIELD in schema else (_OP_FIELD,))]
    try:
        found = find_rows(texts, schema.columns, extra=marks, unknown_fields=settings.kafka_unknown_fields)
    except RowError as error:
        return parts.fail(error, at)
    deleted = np.zeros(len(found), np.bool_)
    for index, name in enumerate(marks):
        deleted |= _says(texts.data, found.extra(index), b"d" if name == _OP_FIELD else b"true")
    if found.error is not None:
        parts.fail(found.error, at)
    placeholder = _placeholder(table)
    for deletes in (False, True):
        chosen = np.flatnonzero(deleted == deletes)
        positions = [schema.index(each.name) for each in schema.key_columns] if deletes else None
        columns = _key_columns(table) if deletes else schema.columns

        def decode(
            chosen: Indices = chosen,
            positions: list[int] | None = positions,
            columns: Sequence[Column] = columns,
            deletes: bool = deletes,
        ) -> pa.RecordBatch | Rows:
            rows = found.rows(
                columns,
                at=chosen,
                of=positions,
                make_field=conventions.field,
                placeholder=None if deletes else placeholder,
                unkept=schema.primary_key,
            )
            return _key_rows(rows.rows, schema) if deletes else rows

        parts.add(at[chosen], decode, deletes=deletes)
    return None


def _says(data: npt.NDArray[np.uint8], field: tuple[np.ndarray, np.ndarray, np.ndarray], word: bytes) -> Mask:
    """Return the mask of found values that are this word, as a text or as a literal."""
    kinds, starts, lengths = field
    found: Mask = (kinds > json_scan.NULL) & (lengths == len(word))
    at = np.flatnonzero(found)
    if len(at):
        windows = starts[at].astype(np.int64)[:, None] + np.arange(len(word))
        found[at] = (data[windows] == np.frombuffer(word, np.uint8)).all(axis=1)
    return found


def _add_envelopes(parts: _Parts, records: RecordColumns, at: Indices, table: TableDefinition) -> None:
    """Add Debezium's envelopes: upserts, deletes by the old row, and deletes by the record's key."""
    try:
        found = read_envelopes(_texts(records, at))
    except RowError as error:
        return parts.fail(error, at)
    if found.error is not None:
        parts.fail(found.error, at)
    for group in found.groups:
        _add_envelope_group(parts, records, at, group, table)
    return None


def _add_envelope_group(
    parts: _Parts, records: RecordColumns, at: Indices, group: EnvelopeGroup, table: TableDefinition
) -> None:
    schema, settings = table.schema, table.settings
    unknown, placeholder = settings.kafka_unknown_fields, _placeholder(table)

    def upserts() -> Rows:
        found = find_rows(group.upserted, schema.columns, unknown_fields=unknown)
        field = Conventions.of(settings, group.rows_schema(), extended=group.extended).field
        rows = found.rows(
            schema.columns, make_field=field, placeholder=placeholder, unkept=schema.primary_key
        )
        if found.error is not None:
            raise found.error
        return rows

    def deletes() -> pa.RecordBatch:
        field = Conventions.of(settings, group.rows_schema(deleted=True), extended=group.extended).field
        return _key_rows(json_to_rows(group.deleted, _key_columns(table), make_field=field), schema)

    parts.add(at[group.upserts], upserts)
    keyed = at[group.keyed]
    if not table.is_primary_key_table:
        parts.refuse_deletes(at[group.deletes], table, "its op is 'd'")
        parts.refuse_deletes(keyed, table, "its op is 'd'")
        return
    parts.add(at[group.deletes], deletes, deletes=True)
    parts.add(keyed, lambda: _deleted_rows(records, keyed, table), deletes=True)


def _key_columns(table: TableDefinition) -> list[Column]:
    """Return the key columns without defaults: a key must have all of them."""
    return [replace(column, default=None) for column in table.schema.key_columns]


def _key_rows(decoded: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Return whole rows in which only the key columns are set. Raises RowError."""
    check_rows(decoded.num_rows, schema.row_cost)
    by_name = dict(zip(decoded.schema.names, decoded.columns, strict=True))
    columns = [by_name.get(field.name) for field in schema.arrow()]
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(decoded.num_rows, field.type) if column is None else column
            for field, column in zip(schema.arrow(), columns, strict=True)
        ],
        schema=schema.arrow(),
    )


def _add_deletes(
    parts: _Parts, records: RecordColumns, at: Indices, table: TableDefinition, schemas: Schemas
) -> None:
    """Add null values. In a table with Avro values, keys may be Avro with a registry's schema too."""
    start, length = records.key_start[at], records.key_length[at]
    if table.settings.kafka_value_format is KafkaValueFormat.AVRO:
        encoded = avro_face.has_id(records.payload, start, length)
        keyed = at[encoded]
        avro_face.add_rows(
            records.payload, start[encoded], length[encoded], _key_columns(table), schemas, UnknownFields.IGNORE,
            lambda part, decode: parts.add(
                keyed[part], lambda: _key_rows(_of_key(decode), table.schema), deletes=True
            ),
            bare=True, units=table.settings.debezium_units,
        )  # fmt: skip
        at = at[~encoded]
    parts.add(at, lambda: _deleted_rows(records, at, table), deletes=True)


def _of_key(decode: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
    try:
        return decode()
    except RowError as error:
        raise RowError(error.index, error.column, f"in the record's key, {error.reason}") from error


def _deleted_rows(records: RecordColumns, at: Indices, table: TableDefinition) -> pa.RecordBatch:
    """Return rows with only the key columns, from the records' keys. Indices of RowErrors are within `at`."""
    length = records.key_length[at]
    missing = length < 0
    if missing.any():
        first = int(np.argmax(missing))
        if first:
            _deleted_rows(records, at[:first], table)  # raises an earlier error first
        value = "null" if records.value_length[at[first]] < 0 else "a delete without 'before'"
        raise RowError(
            first, None, f"its value is {value} and its key is null; a delete needs the key of its row"
        )
    keys = binary_array(*gather(records.payload, records.key_start[at], length))
    failures: list[RowError] = []
    places: list[Indices] = []
    rows: list[pa.RecordBatch] = []
    for group in _keys_by_schema(keys, table):
        try:
            rows.append(_rows_of_keys(group, table))
            places.append(group.at)
        except RowError as error:
            place = int(group.at[error.index])
            failures.append(RowError(place, error.column, f"in the record's key, {error.reason}"))
    if failures:
        raise min(failures, key=lambda error: error.index)
    if len(rows) == 1:
        return rows[0]
    order = np.empty(len(keys), np.int64)
    order[np.concatenate(places)] = np.arange(len(keys))
    return pa.concat_batches(rows).take(pa.array(order))


def _keys_by_schema(keys: pa.BinaryArray, table: TableDefinition) -> list[KeyGroup]:
    """Return keys without Connect's schema around them, unless the table's key has columns `schema` and `payload`."""
    if {"schema", "payload"} <= set(table.schema.primary_key):
        return [KeyGroup(None, np.arange(len(keys)), keys)]
    try:
        return key_groups(keys)
    except RowError as error:
        raise RowError(error.index, error.column, f"in the record's key, {error.reason}") from error


def _rows_of_keys(group: KeyGroup, table: TableDefinition) -> pa.RecordBatch:
    keys, bare = group.keys, None
    mongo = None
    if len(table.schema.primary_key) == 1:
        if table.settings.kafka_value_format is KafkaValueFormat.DEBEZIUM_JSON:
            mongo = mongo_keys(keys, table.schema.primary_key[0])
        keys, bare = _wrapped(keys, table) if mongo is None else (mongo, None)
    schema = group.schema if mongo is None else None
    field = Conventions.of(table.settings, schema, extended=mongo is not None).field
    try:
        return _key_rows(json_to_rows(keys, _key_columns(table), make_field=field), table.schema)
    except RowsTooLargeError:
        raise
    except RowError as error:
        if error.column is None and bare is not None and bare[error.index].as_py():
            (column,) = table.schema.key_columns
            error = _no_value(error.index, group.keys, column)
        raise error


def _no_value(row: int, keys: pa.BinaryArray, column: Column) -> RowError:
    text = keys[row].as_py().decode(errors="replace")
    shown = text if len(text) <= _EXCERPT_LENGTH else text[:_EXCERPT_LENGTH] + "..."
    reason = (
        f"{shown} is neither a value of {column.type} in JSON nor an object with the field '{column.name}'"
    )
    return RowError(row, column.name, reason)


def _wrapped(keys: pa.BinaryArray, table: TableDefinition) -> tuple[pa.BinaryArray, pa.BooleanArray]:
    """Return keys of one column as JSON objects, and the mask of keys that were bare values."""
    (column,) = table.schema.key_columns
    bare = pc.invert(pc.match_substring_regex(keys, pattern=rb"^\s*\{"))
    if not pc.any(bare).as_py():
        return keys, bare
    values, was_bare = keys, bare
    if column.type.kind in (TypeKind.CHAR, TypeKind.STRING):
        # An unquoted text stands for itself.
        unquoted = pc.and_(bare, pc.invert(pc.match_substring_regex(keys, pattern=rb'^\s*"')))
        texts = keys.filter(unquoted)
        try:
            quoted = rows_to_json(pa.record_batch([texts.cast(pa.string())], names=[column.name]))
        except pa.ArrowInvalid as error:
            raise RowError(
                int(pc.index(unquoted, True).as_py()), column.name, f"it is not UTF-8: {error}"
            ) from error
        values = pc.replace_with_mask(keys, unquoted, quoted)
        bare = pc.and_(bare, pc.invert(unquoted))
    # More than one bare value could form another object within the added brackets: keep it an error.
    several = pc.and_(bare, pc.invert(pc.match_substring_regex(values, pattern=_ONE_VALUE)))
    values = pc.if_else(several, b"]", values)
    front = json.dumps(column.name, ensure_ascii=False).encode()
    wrapped = pc.binary_join_element_wise(
        pa.scalar(b"{" + front + b":"), values, pa.scalar(b"}"), pa.scalar(b"")
    )
    return pc.if_else(bare, wrapped, values), was_bare
