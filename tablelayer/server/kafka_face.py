"""The Kafka face of a table (R17): rows to records for consumers, records to rows for producers.

A row is a JSON object. A record's key is the JSON object of the primary key (of the bucket key for log tables
that have one, else null); its timestamp is the time the row was appended; its offset is the row's own. Pure and
vectorised; called in executor threads.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.extension import RecordErrors
from protocol.errors import DecodeError, ErrorCode, KafkaError
from protocol.records.decode import RecordColumns, decode_records
from protocol.records.encode import encode_batch
from protocol.records.gather import gather
from protocol.records.header import HEADER_SIZE, BatchHeader, read_header, verify_crc
from tablelayer.model.arrays import Mask, binary_array, variable_values
from tablelayer.model.batch import ArrowBatch, ChangeType
from tablelayer.model.errors import RowError, TableError
from tablelayer.model.json_rows import json_to_rows, rows_to_json
from tablelayer.model.options import KafkaChangelog
from tablelayer.model.schema import Column
from tablelayer.model.table import TableDefinition
from tablelayer.server.merge import Operations
from tablelayer.server.writes import apply_delete_behavior

CHANGE_TYPE_HEADER = "change-type"
_BLANKS = b" \t\r\n"
_FORWARDED_PARTITIONS = 4096


# -- consuming ---------------------------------------------------------------------------------------------


def to_kafka_batch(definition: TableDefinition, stored: memoryview) -> bytes:
    """The Kafka batch that stands for one stored batch: the same offsets, and a record for each row shown.

    It has no records when there is nothing to show, and still covers the offsets, so that consumers get past it.
    """
    batch = ArrowBatch.parse(stored)
    header = batch.header
    rows = batch.to_record_batch(definition.schema.arrow())
    changes = batch.change_types
    every_image = definition.settings.kafka_changelog is KafkaChangelog.FULL
    deltas: npt.NDArray[np.int32] | None = None
    if changes is not None and not every_image and bool((changes == ChangeType.UPDATE_BEFORE).any()):
        shown = np.flatnonzero(changes != ChangeType.UPDATE_BEFORE)
        rows, changes, deltas = rows.take(pa.array(shown)), changes[shown], shown.astype(np.int32)
    count = rows.num_rows
    value_offsets, value_data = variable_values(_json(rows))
    key_offsets = key_data = None
    if definition.bucket_key:
        names = definition.schema.primary_key or definition.bucket_key
        key_offsets, key_data = variable_values(_json(rows.select(list(names))))
    valid = headers = None
    if changes is not None:
        if every_image:
            headers = _change_type_headers(changes)
        elif bool((changes == ChangeType.DELETE).any()):
            valid = changes != ChangeType.DELETE
            value_offsets, value_data = _without(value_offsets, value_data, valid)
    return encode_batch(
        timestamps=np.full(count, header.max_timestamp, np.int64),
        value_offsets=value_offsets,
        value_data=value_data,
        value_valid=valid,
        key_offsets=key_offsets,
        key_data=key_data,
        headers=headers,
        offset_deltas=deltas,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        leader_epoch=header.partition_leader_epoch,
    )


def _json(rows: pa.RecordBatch) -> pa.Array:
    values = rows_to_json(rows)
    return values.cast(pa.binary()) if values.type != pa.binary() else values


def _without(
    offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], valid: Mask
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """The values without those of tombstones."""
    lengths = np.where(valid, np.diff(offsets), -1).astype(np.int64)
    return gather(data, offsets[:-1].astype(np.int64), lengths)


def _change_type_headers(changes: npt.NDArray[np.uint8]) -> Any:
    """One encoded record header for each row: its change type's short name."""
    name = CHANGE_TYPE_HEADER.encode()
    blocks = [
        bytes([2 * len(name)]) + name + bytes([2 * len(change.short)]) + change.short.encode()
        for change in ChangeType
    ]
    size = len(blocks[0])
    table = np.frombuffer(b"".join(blocks), np.uint8).reshape(len(blocks), size)
    count = len(changes)
    return (
        np.arange(count + 1, dtype=np.int32) * np.int32(size),
        np.ascontiguousarray(table[changes]).reshape(-1),
        np.ones(count, np.int32),
    )


# -- producing ---------------------------------------------------------------------------------------------


def check_frame(batch: memoryview) -> BatchHeader:
    """The header of a producer's batch. Raises KafkaError unless it is one that a producer may send."""
    try:
        header = read_header(batch)
    except DecodeError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch has {header.record_count} records and last offset delta {header.last_offset_delta}",
        )
    if header.is_control or header.is_transactional or header.producer_id < -1:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch has attributes that producers may not set")
    if header.size != len(batch) or header.size < HEADER_SIZE:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size} bytes in {len(batch)} bytes of records"
        )
    return header


def forwarded_producer_id(producer_id: int, source_partition: int) -> int:
    """The identity under which rows of another bucket are forwarded: its own for each writer and partition."""
    if producer_id < 0:
        return -1
    return -(2 + producer_id * _FORWARDED_PARTITIONS + source_partition)


def decode_produced(definition: TableDefinition, batch: memoryview) -> Operations:
    """The rows of a producer's batch, in order: values are upserts (appends), null values deletes by key.

    Raises RecordErrors (INVALID_RECORD) naming record and column, or KafkaError.
    """
    if not verify_crc(batch):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes; send it again")
    try:
        records = decode_records(batch)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
    deletes = records.value_length < 0
    unknown = definition.settings.kafka_unknown_fields
    if not deletes.any():
        values = _pieces(records.payload, records.value_start, records.value_length)
        try:
            rows = json_to_rows(values, definition.schema, unknown_fields=unknown)
        except RowError as error:
            raise _record_error(definition, error, error.index) from None
        return Operations(_named(definition, rows))
    at = np.flatnonzero(deletes)
    if not definition.is_primary_key_table:
        reason = f"a null value deletes, but {definition.path} is a log table"
        raise _refused(definition, int(at[0]), reason)
    key_rows = _deleted_keys(definition, records, at)
    upserts = np.flatnonzero(~deletes)
    values = _pieces(records.payload, records.value_start[upserts], records.value_length[upserts])
    try:
        rows = json_to_rows(values, definition.schema, unknown_fields=unknown)
    except RowError as error:
        raise _record_error(definition, error, int(upserts[error.index])) from None
    places = np.empty(len(deletes), np.int64)
    places[upserts] = np.arange(len(upserts))
    places[at] = np.arange(len(at)) + len(upserts)
    both = pa.concat_batches([_named(definition, rows), key_rows])
    operations = Operations(both.take(pa.array(places)), deletes)
    try:
        return apply_delete_behavior(definition, operations)
    except TableError as error:
        raise _refused(definition, int(at[0]), error.message) from None


def _deleted_keys(
    definition: TableDefinition, records: RecordColumns, at: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    """Rows of nulls but for the keys, which the record keys give."""
    missing = np.flatnonzero(records.key_length[at] < 0)
    names = ", ".join(definition.schema.primary_key)
    if len(missing):
        raise _refused(definition, int(at[missing[0]]), f"a delete needs a key: a JSON object of {names}")
    keys = _pieces(records.payload, records.key_start[at], records.key_length[at])
    columns = definition.schema.key_columns
    if len(columns) == 1:
        keys = _wrapped(keys, columns[0])
    try:
        found = json_to_rows(keys, columns)
    except RowError as error:
        raise _record_error(definition, error, int(at[error.index]), part="key") from None
    by_name = dict(zip(definition.schema.primary_key, found.columns, strict=True))
    return pa.RecordBatch.from_arrays(
        [
            by_name[column.name] if column.name in by_name else pa.nulls(len(at), column.type.arrow())
            for column in definition.schema.columns
        ],
        schema=definition.schema.arrow(),
    )


def _wrapped(keys: pa.Array, column: Column) -> pa.Array:
    """Bare JSON values as objects of the one key column; objects stay as they are."""
    offsets, data = variable_values(keys)
    starts, ends = offsets[:-1], offsets[1:]
    first = (
        np.where(ends > starts, data[np.minimum(starts, max(0, len(data) - 1))], 0) if len(data) else starts
    )
    is_object = pa.array(np.isin(first, np.frombuffer(b"{" + _BLANKS, np.uint8)))
    head = b"{" + json.dumps(column.name).encode() + b":"
    wrapped = pc.binary_join_element_wise(
        pa.scalar(head, pa.binary()), keys, pa.scalar(b"}", pa.binary()), pa.scalar(b"", pa.binary())
    )
    return pc.if_else(is_object, keys, wrapped)


def _named(definition: TableDefinition, rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(rows.columns, schema=definition.schema.arrow())


def _pieces(
    payload: npt.NDArray[np.uint8], start: npt.NDArray[np.int64], length: npt.NDArray[np.int64]
) -> pa.Array:
    return binary_array(*gather(payload, start, length))


def _record_error(
    definition: TableDefinition, error: RowError, index: int, part: str = "value"
) -> RecordErrors:
    place = "" if error.column is None else f"column '{error.column}': "
    prefix = "key: " if part == "key" else ""
    return _refused(definition, index, f"{prefix}{place}{error.reason}")


def _refused(definition: TableDefinition, index: int, reason: str) -> RecordErrors:
    return RecordErrors(
        f"record {index} of the batch for table {definition.path}: {reason}; nothing of the batch was written",
        [(index, reason)],
    )
