"""Rows as Kafka records and back: the Kafka face of a table, a batch at a time (semantics R17).

Out: a record's value is the row as JSON, its key the primary key (or a log table's bucket key) as JSON, both in
the table's latest schema whatever the batch was written under; its timestamp is the time of the append, its offset
the log's own. Of a primary-key table -U is left out and -D is a
tombstone; with `table.kafka.changelog=full` every image has its row as value and a header `change-type`.
A batch of which nothing is shown becomes an empty batch over the same offsets, so that consumers advance.

In: a record's value is a row, which is appended or upserted; a null value deletes the row of the record's key
(primary-key tables only). The key of a delete is a JSON object of the key columns or, when the key is one
column, also that column's bare value; a text need not be quoted. The key of an upsert is not looked at: the
row has it.

Pure: no clock, no log. What does not fit is a `RowError` with the index of the record.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.records.decode import RecordColumns
from protocol.records.encode import EncodedHeaders, encode_batch
from protocol.records.gather import gather
from tablelayer.model.arrays import Mask, binary_array, variable_values
from tablelayer.model.batch import ArrowBatch, ChangeType
from tablelayer.model.errors import RowError
from tablelayer.model.json_rows import json_to_rows, rows_to_json
from tablelayer.model.options import KafkaChangelog
from tablelayer.model.table import TableDefinition
from tablelayer.model.types import TypeKind

CHANGE_TYPE_HEADER: Final = "change-type"
_LOG_APPEND_TIME: Final = 0x08


def to_kafka(batch: ArrowBatch, table: TableDefinition) -> bytes:
    """One Arrow batch of the log as one record batch v2 over the same offsets. Raises DecodeError."""
    header = batch.header
    rows = batch.to_record_batch(table.versions.get(batch.schema_id).arrow())
    rows = table.versions.conversion(batch.schema_id).of(rows)
    offsets: npt.NDArray[np.int64] = np.arange(rows.num_rows)
    valid: Mask | None = None
    headers: EncodedHeaders | None = None
    changes = batch.change_types
    if changes is not None and table.settings.kafka_changelog is KafkaChangelog.FULL:
        headers = _change_type_headers(changes)
    elif changes is not None:
        shown = changes != ChangeType.UPDATE_BEFORE
        if not shown.all():
            offsets = np.flatnonzero(shown)
            rows, changes = rows.take(pa.array(offsets)), changes[offsets]
        valid = changes != ChangeType.DELETE
    values = rows if valid is None or valid.all() else rows.filter(pa.array(valid))
    value_offsets, value_data = variable_values(rows_to_json(values))
    if valid is not None and not valid.all():
        value_offsets = _spread(value_offsets, valid)
    key_offsets = key_data = None
    if table.bucket_key:
        names = list(table.schema.primary_key or table.bucket_key)
        key_offsets, key_data = variable_values(rows_to_json(rows.select(names)))
    return encode_batch(
        timestamps=np.full(rows.num_rows, header.max_timestamp, np.int64),
        key_offsets=key_offsets,
        key_data=key_data,
        value_offsets=value_offsets,
        value_data=value_data,
        value_valid=valid,
        headers=headers,
        offset_deltas=offsets.astype(np.int32),
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        attributes=_LOG_APPEND_TIME,
        leader_epoch=header.partition_leader_epoch,
    )


def _spread(offsets: npt.NDArray[np.int32], valid: Mask) -> npt.NDArray[np.int32]:
    """Offsets of the valid values as offsets of all, the others empty."""
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = np.diff(offsets)
    spread = np.zeros(len(valid) + 1, np.int32)
    np.cumsum(lengths, out=spread[1:])
    return spread


def _change_type_headers(changes: npt.NDArray[np.uint8]) -> EncodedHeaders:
    """The header of each row: its name and its short name, each behind its length as a zigzag varint."""
    name = CHANGE_TYPE_HEADER.encode()
    front = bytes([2 * len(name)]) + name + bytes([2 * 2])
    blocks = np.frombuffer(b"".join(front + kind.short.encode() for kind in ChangeType), np.uint8)
    size = len(front) + 2
    data = blocks.reshape(len(ChangeType), size)[changes].reshape(-1)
    offsets = np.arange(len(changes) + 1, dtype=np.int32) * np.int32(size)
    return offsets, data, np.ones(len(changes), np.int32)


@dataclass(frozen=True, slots=True)
class KafkaWrite:
    """The rows of a produced batch in the order of its records.

    `change_types` is None for a log table, else uint8[n] of UPDATE_AFTER (upsert) and DELETE; a deleted row
    has its key columns only.
    """

    rows: pa.RecordBatch
    change_types: npt.NDArray[np.uint8] | None


def from_kafka(records: RecordColumns, table: TableDefinition) -> KafkaWrite:
    """The rows that a Kafka client's records stand for. Raises RowError naming the first record that is bad."""
    deleted = records.value_length < 0
    if not deleted.any():
        rows = _rows(records, np.arange(len(records)), table)
        changes = np.full(len(records), ChangeType.UPDATE_AFTER, np.uint8)
        return KafkaWrite(rows, changes if table.is_primary_key_table else None)
    if not table.is_primary_key_table:
        raise RowError(
            int(np.argmax(deleted)),
            None,
            f"its value is null, and {table.path} is a log table: nothing to delete",
        )
    upserts, deletes = np.flatnonzero(~deleted), np.flatnonzero(deleted)
    # Both are decoded before either is reported, so that the error names the first bad record of the batch.
    failures: list[RowError] = []
    parts: list[pa.RecordBatch] = []
    for decode, indices in ((_rows, upserts), (_deleted_rows, deletes)):
        try:
            parts.append(decode(records, indices, table))
        except RowError as error:
            failures.append(error)
    if failures:
        raise min(failures, key=lambda error: error.index)
    order = np.empty(len(records), np.int64)
    order[upserts] = np.arange(len(upserts))
    order[deletes] = np.arange(len(upserts), len(records))
    changes = np.where(deleted, ChangeType.DELETE, ChangeType.UPDATE_AFTER).astype(np.uint8)
    return KafkaWrite(pa.concat_batches(parts).take(pa.array(order)), changes)


def _rows(records: RecordColumns, indices: npt.NDArray[np.int64], table: TableDefinition) -> pa.RecordBatch:
    start, length = records.value_start[indices], records.value_length[indices]
    values = binary_array(*gather(records.payload, start, length))
    try:
        return json_to_rows(values, table.schema, unknown_fields=table.settings.kafka_unknown_fields)
    except RowError as error:
        raise RowError(int(indices[error.index]), error.column, error.reason) from error


def _deleted_rows(
    records: RecordColumns, indices: npt.NDArray[np.int64], table: TableDefinition
) -> pa.RecordBatch:
    """Rows of which only the key columns are set, from the records' keys."""
    length = records.key_length[indices]
    if (length < 0).any():
        index = int(indices[np.argmax(length < 0)])
        raise RowError(index, None, "its value and its key are null: which row is to be deleted?")
    schema = table.schema
    keys = binary_array(*gather(records.payload, records.key_start[indices], length))
    try:
        if len(schema.primary_key) == 1:
            keys = _wrapped(keys, table)
        decoded = json_to_rows(keys, [replace(column, default=None) for column in schema.key_columns])
    except RowError as error:
        raise RowError(
            int(indices[error.index]), error.column, f"in the record's key, {error.reason}"
        ) from error
    by_name = dict(zip(decoded.schema.names, decoded.columns, strict=True))
    columns = [by_name.get(field.name) for field in schema.arrow()]
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(len(indices), field.type) if column is None else column
            for field, column in zip(schema.arrow(), columns, strict=True)
        ],
        schema=schema.arrow(),
    )


def _wrapped(keys: pa.BinaryArray, table: TableDefinition) -> pa.BinaryArray:
    """Keys of one column as JSON objects: bare values get the column's name."""
    (column,) = table.schema.key_columns
    bare = pc.invert(pc.match_substring_regex(keys, pattern=rb"^\s*\{"))
    if not pc.any(bare).as_py():
        return keys
    values = keys
    if column.type.kind in (TypeKind.CHAR, TypeKind.STRING):
        # A text that is not in quotes stands for itself.
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
    front = json.dumps(column.name, ensure_ascii=False).encode()
    wrapped = pc.binary_join_element_wise(
        pa.scalar(b"{" + front + b":"), values, pa.scalar(b"}"), pa.scalar(b"")
    )
    return pc.if_else(bare, wrapped, values)
