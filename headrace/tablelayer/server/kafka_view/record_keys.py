"""Keys of produced records: the rows that they name, which a delete needs and a check compares.

The key of a delete is a JSON object of the key columns, with or without Connect's schema around it. If the key is one
column, it may also be that column's bare value; a text needs no quotes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records.decode import RecordColumns
from headrace.protocol.records.gather import gather
from headrace.tablelayer.model.arrays.arrays import binary_array
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.debezium import KeyGroup, key_groups, mongo_keys
from headrace.tablelayer.model.json.debezium_values import Conventions
from headrace.tablelayer.model.json.rows import json_to_rows, rows_to_json
from headrace.tablelayer.model.json.texts import EXCERPT_LENGTH
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.model.types.sizes import RowsTooLargeError, check_rows

Indices = npt.NDArray[np.int64]

_ONE_VALUE: Final = rb'(?s)^\s*("([^"\\]|\\.)*"|[^\s",:\[\]{}]+)\s*$'
"""A text or a word: a key's bare value."""


def key_columns(table: TableDefinition) -> list[Column]:
    """Return the key columns without defaults: a key must have all of them."""
    return [replace(column, default=None) for column in table.schema.key_columns]


def key_rows(decoded: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
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


def of_key(decode: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
    """Return decoded rows; an error says that it is in a record's key."""
    try:
        return decode()
    except RowError as error:
        raise RowError(error.index, error.column, f"in the record's key, {error.reason}") from error


def deleted_rows(records: RecordColumns, at: Indices, table: TableDefinition) -> pa.RecordBatch:
    """Return rows with only the key columns, from the records' keys. Indices of RowErrors are within `at`."""
    length = records.key_length[at]
    missing = length < 0
    if missing.any():
        first = int(np.argmax(missing))
        if first:
            deleted_rows(records, at[:first], table)  # raises an earlier error first
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
        return key_rows(json_to_rows(keys, key_columns(table), make_field=field), table.schema)
    except RowsTooLargeError:
        raise
    except RowError as error:
        if error.column is None and bare is not None and bare[error.index].as_py():
            (column,) = table.schema.key_columns
            error = _no_value(error.index, group.keys, column)
        raise error


def _no_value(row: int, keys: pa.BinaryArray, column: Column) -> RowError:
    text = keys[row].as_py().decode(errors="replace")
    shown = text if len(text) <= EXCERPT_LENGTH else text[:EXCERPT_LENGTH] + "..."
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
