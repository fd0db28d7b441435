"""Kafka records of a table's rows, a batch at a time (semantics R17).

A record's value is the row as JSON, its key the primary key (or a log table's bucket key) as JSON. Both are in the
table's latest schema, whatever the batch's schema is. Its timestamp is the append time; its offset is the log's. In a
primary-key table -U is left out and -D is a tombstone; with `table.kafka.changelog=full` every image has its row as
value and a header `change-type`. A batch without visible records becomes an empty batch over the same offsets, so that
consumers advance.

Pure: no clock, no log.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records.encode import EncodedHeaders, encode_batch
from headrace.protocol.records.header import LOG_APPEND_TIME_BIT, BatchHeader
from headrace.tablelayer.model.arrays.arrays import Bytes, Mask, Offsets, variable_values
from headrace.tablelayer.model.avro.write import Frame, rows_to_avro
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType
from headrace.tablelayer.model.json.debezium import CREATED, DELETED, UPDATED, write_envelopes
from headrace.tablelayer.model.json.path import wrap
from headrace.tablelayer.model.json.rows import rows_to_json
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.options.table_options import KafkaChangelog
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.kafka_view.record_keys import Indices

CHANGE_TYPE_HEADER: Final = "change-type"


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
        attributes=LOG_APPEND_TIME_BIT,
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
        attributes=LOG_APPEND_TIME_BIT,
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
