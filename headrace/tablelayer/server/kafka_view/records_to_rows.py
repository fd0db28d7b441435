"""Rows of produced Kafka records, a batch at a time (semantics R17).

A record's value is a row, which is appended or upserted. A null value deletes the row of the record's key (primary-key
tables only); the JSON text `null`, and null at the path of the row, do the same. The key of an upsert is ignored: the
row has it. A flattened event whose field `__deleted` is true, or whose `__op` is `d`, is a delete of the key in it.

Pure: no clock, no log. A bad record raises `RowError` with the record's index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records.decode import RecordColumns
from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json.debezium import EnvelopeGroup, read_envelopes
from headrace.tablelayer.model.json.debezium_values import Conventions
from headrace.tablelayer.model.json.path import descend
from headrace.tablelayer.model.json.python_values import python_value
from headrace.tablelayer.model.json.rows import Rows, find_rows, json_to_rows
from headrace.tablelayer.model.json.texts import JsonTexts
from headrace.tablelayer.model.json.unavailable import Placeholder
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.options.table_options import KeyMismatch, UnknownFields
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.kafka_view import avro as avro_view
from headrace.tablelayer.server.kafka_view.avro import Schemas
from headrace.tablelayer.server.kafka_view.record_keys import (
    Indices,
    deleted_rows,
    key_columns,
    key_rows,
    of_key,
)


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

    `schemas` has those of the ids in Avro values and keys (`avro_view.schema_ids`).
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
                avro_view.add_rows(
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
        parts.add(nulls, lambda: deleted_rows(records, nulls, table), deletes=True)
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
        columns = key_columns(table) if deletes else schema.columns

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
            return key_rows(rows.rows, schema) if deletes else rows

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
        return key_rows(json_to_rows(group.deleted, key_columns(table), make_field=field), schema)

    parts.add(at[group.upserts], upserts)
    keyed = at[group.keyed]
    if not table.is_primary_key_table:
        parts.refuse_deletes(at[group.deletes], table, "its op is 'd'")
        parts.refuse_deletes(keyed, table, "its op is 'd'")
        return
    parts.add(at[group.deletes], deletes, deletes=True)
    parts.add(keyed, lambda: deleted_rows(records, keyed, table), deletes=True)


def _add_deletes(
    parts: _Parts, records: RecordColumns, at: Indices, table: TableDefinition, schemas: Schemas
) -> None:
    """Add null values. In a table with Avro values, keys may be Avro with a registry's schema too."""
    start, length = records.key_start[at], records.key_length[at]
    if table.settings.kafka_value_format is KafkaValueFormat.AVRO:
        encoded = avro_view.has_id(records.payload, start, length)
        keyed = at[encoded]
        avro_view.add_rows(
            records.payload, start[encoded], length[encoded], key_columns(table), schemas, UnknownFields.IGNORE,
            lambda part, decode: parts.add(
                keyed[part], lambda: key_rows(of_key(decode), table.schema), deletes=True
            ),
            bare=True, units=table.settings.debezium_units,
        )  # fmt: skip
        at = at[~encoded]
    parts.add(at, lambda: deleted_rows(records, at, table), deletes=True)
