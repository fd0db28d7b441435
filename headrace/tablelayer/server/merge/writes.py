"""Batches of writers, checked against the table before they have any effect (R1.5, R4.1, R16).

The result can be applied without further checks. Pure; called in executor threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.header import MAGIC_ARROW, BatchHeader, read_header, verify_crc
from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.avro.schema import check_range
from headrace.tablelayer.model.batches.batch import PREFIX_SIZE, ArrowBatch, ChangeType
from headrace.tablelayer.model.batches.ipc import STORED_BYTES_MAX
from headrace.tablelayer.model.batches.statistics import STATISTICS_FROM_ROWS, automatic_columns, compute
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.options.table_options import ArrowCompression, DeleteBehavior, MergeEngine
from headrace.tablelayer.model.rows.nested import check_inside, has_rules
from headrace.tablelayer.model.rows.versions import Conversion
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partitions import check_rows_of_partition
from headrace.tablelayer.model.types.sizes import check_rows
from headrace.tablelayer.server.merge.engines import Operations


class WriterFields(TypedDict):
    """The fields of a writer in a batch and in requests between brokers."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    sequence_count: int


class Writer(msgspec.Struct, frozen=True):
    """The identity of a writer, for deduplication: a batch's producer fields and its number of sequence numbers."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    sequence_count: int = 0

    @classmethod
    def of(cls, header: BatchHeader) -> Writer:
        return cls(header.producer_id, header.producer_epoch, header.base_sequence, header.sequence_count)

    def fields(self) -> WriterFields:
        """Return the same as arguments of the encoders of a batch."""
        return {
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "base_sequence": self.base_sequence,
            "sequence_count": self.sequence_count,
        }

    def header(self) -> BatchHeader:
        """Return a header with only the producer's fields, to ask the log whether it has the batch."""
        return BatchHeader(
            0, 0, -1, MAGIC_ARROW, 0, 0, 0, -1, -1,
            self.producer_id, self.producer_epoch, self.base_sequence, 0, max(1, self.sequence_count),
        )  # fmt: skip


class ClientWrite(msgspec.Struct, frozen=True):
    """One batch of a table client, and its target columns (ids of its schema; None: all). `update`: only existing rows
    are written (R6.10).
    """

    targets: tuple[int, ...] | None
    batch: memoryview
    update: bool = False

    def operations(self, definition: TableDefinition) -> Operations:
        """Return the operations for a primary-key table; errors as `decode_put`."""
        return decode_put(self.batch, definition, self.targets, overwrite=self.update, update=self.update)


COMPRESS_FROM_BYTES = 4096

OperationSource = Callable[[TableDefinition], Operations]
"""Decodes and checks a write for the present table; raises TableError or KafkaError. It is called in an executor thread
when it is the write's turn, because the table may have been altered since the request."""


def made_for(definition: TableDefinition, operations: Operations) -> OperationSource:
    """Return a source of already decoded operations; it converts them if the table's schema has changed."""

    def source(now: TableDefinition) -> Operations:
        if now.schema.schema_id == definition.schema.schema_id:
            return operations
        conversion = now.versions.conversion(definition.schema.schema_id)
        return replace(operations, rows=conversion.of(operations.rows))

    return source


def compression_of(definition: TableDefinition, rows: pa.RecordBatch) -> ArrowCompression:
    """Return the table's compression; none for small batches, because buffers are compressed one by one: small ones
    would grow, and cost a third of a millisecond.
    """
    return (
        definition.settings.arrow_compression if rows.nbytes >= COMPRESS_FROM_BYTES else ArrowCompression.NONE
    )


def target_columns(
    definition: TableDefinition, schema: Schema, column_ids: Sequence[int], *, inserts: bool = True
) -> list[Column]:
    """Return the target columns in the writer's schema. Raises TableError(INVALID_TARGET_COLUMNS): R6.1, R6.2, R6.9.

    If the write may insert rows, all other columns must be nullable in the present table, or have a default.
    """
    latest, settings = definition.schema, definition.settings
    if settings.merge_engine in (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED):
        raise _target_error(
            f"table {definition.path} has the merge engine '{settings.merge_engine}', which takes whole rows only"
        )
    positions = {column.id: index for index, column in enumerate(schema.columns)}
    unknown = [str(each) for each in column_ids if each not in positions]
    if unknown or not column_ids:
        raise _target_error(
            f"there is no column with id {', '.join(unknown)}" if unknown else "no columns are given"
        )
    targets = [positions[each] for each in column_ids]
    if targets != sorted(set(targets)):
        raise _target_error("columns must be given once each, in the table's order")
    numbered = settings.auto_increment_column
    if numbered is not None and latest.column(numbered).id in column_ids:
        raise _target_error(f"column '{numbered}' is numbered by the server; leave it out")
    for column in schema.key_columns:
        if positions[column.id] not in targets:
            raise _target_error(f"key column '{column.name}' must be one of them")
    for column in latest.columns if inserts else ():
        if column.id not in column_ids and not column.nullable and column.default is None:
            raise _target_error(f"column '{column.name}' is NOT NULL and would be left out")
    return [schema.columns[position] for position in targets]


def check_insertable(definition: TableDefinition) -> list[Column]:
    """Return the columns of a row inserted by its key alone (R15). Raises TableError(INVALID_TARGET_COLUMNS)."""
    schema = definition.schema
    ids = [column.id for column in schema.columns if column.name in schema.primary_key]
    return target_columns(definition, schema, ids)


def key_insertions(definition: TableDefinition, keys: pa.RecordBatch) -> Operations:
    """Return rows with only the key set, for keys in the primary key's order (R6.6, R15). Raises TableError."""
    schema = definition.schema
    targets = frozenset(schema.index(column.name) for column in check_insertable(definition))
    check_rows(keys.num_rows, schema.row_cost, STORED_BYTES_MAX)
    given = dict(zip(schema.primary_key, keys.columns, strict=True))
    columns = [
        given[column.name].cast(column.type.arrow())
        if column.name in given
        else pa.nulls(keys.num_rows, column.type.arrow())
        for column in schema.columns
    ]
    return Operations(pa.RecordBatch.from_arrays(columns, schema=schema.arrow()), None, targets)


def write_header(batch: memoryview) -> BatchHeader:
    """Return the header of a batch from the network; its CRC is not checked. Raises KafkaError(CORRUPT_MESSAGE)."""
    if len(batch) < PREFIX_SIZE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(batch)} bytes are not an Arrow batch")
    try:
        return read_header(batch)
    except DecodeError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None


def parse_write(batch: memoryview, definition: TableDefinition) -> tuple[ArrowBatch, Schema]:
    """Return a complete batch with a correct CRC, and its schema, which is one of the table's (R4.1).

    Raises KafkaError, TableError.
    """
    try:
        parsed = ArrowBatch.parse(batch)
        if parsed.header.size != len(batch):
            raise DecodeError(
                f"{len(batch) - parsed.header.size} bytes follow the batch; one batch is expected"
            )
        intact = verify_crc(batch)
    except DecodeError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if not intact:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes; send it again")
    if parsed.offset_deltas is not None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a filtered batch is an answer to a scan, not a write")
    header = parsed.header
    problem = None
    if header.attributes:
        problem = f"the attributes {header.attributes:#06x}, which are those of Kafka's batches"
    elif header.producer_id < -1:
        problem = f"producer id {header.producer_id}"
    elif header.producer_id >= 0 and min(header.producer_epoch, header.base_sequence) < 0:
        problem = (
            f"producer id {header.producer_id} with epoch {header.producer_epoch} "
            f"and sequence number {header.base_sequence}"
        )
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the batch has {problem}")
    return parsed, definition.versions.get(parsed.schema_id)


def decode_put(
    batch: memoryview,
    definition: TableDefinition,
    target_ids: Sequence[int] | None,
    *,
    overwrite: bool = False,
    update: bool = False,
) -> Operations:
    """Return the operations of a write to a primary-key table, in its latest schema (R4.1, R5, R6, R10).

    `target_ids` are the target columns in the writer's schema; None for all. `update`: only existing rows are written
    (R6.10). Raises KafkaError or TableError.
    """
    latest = definition.schema
    parsed, schema = parse_write(batch, definition)
    columns: Sequence[Column] = schema.columns
    if target_ids is not None:
        columns = target_columns(definition, schema, target_ids, inserts=not update)
    try:
        sent = schema.arrow() if target_ids is None else pa.schema([column.field() for column in columns])
        rows = parsed.to_record_batch(sent, untrusted=True)
    except DecodeError as error:
        raise TableError(TableErrorCode.INVALID_ROW, str(error)) from None
    check_rows(rows.num_rows, latest.row_cost, STORED_BYTES_MAX)
    targets: frozenset[int] | None = None
    if target_ids is not None:
        targets = frozenset(index for index, each in enumerate(latest.columns) if each.id in target_ids)
    if schema is not latest:
        source = Schema(schema.schema_id, tuple(columns), schema.primary_key)
        wanted = None if targets is None else sorted(targets)
        rows = Conversion.between(source, latest, wanted).of(rows)
    if targets is not None:
        columns = [latest.columns[index] for index in sorted(targets)]
        if len(targets) == len(latest.columns):
            targets = None
    else:
        columns = latest.columns
    deletes: Mask | None = None
    changes = parsed.change_types
    if changes is not None and len(changes):
        deletes = changes == ChangeType.DELETE
        if not bool((deletes | (changes == ChangeType.UPDATE_AFTER)).all()):
            raise TableError(
                TableErrorCode.INVALID_ROW,
                "a write to a primary-key table consists of upserts (change type 3) and deletes (4)",
            )
        if not deletes.any():
            deletes = None
    if update and deletes is not None:
        raise TableError(TableErrorCode.INVALID_ROW, "an update of existing rows must not have deletes")
    check_columns(columns, rows, deletes, latest.primary_key, partial=targets is not None)
    _check_value_format(definition, columns, rows)
    if definition.partition_keys:
        check_rows_of_partition(definition, rows)
    if targets is not None:
        filled = dict(zip(sorted(targets), rows.columns, strict=True))
        rows = pa.RecordBatch.from_arrays(
            [
                filled[index] if index in filled else pa.nulls(rows.num_rows, column.type.arrow())
                for index, column in enumerate(latest.columns)
            ],
            schema=latest.arrow(),
        )
    return admit(definition, Operations(rows, deletes, targets, overwrite, update))


def check_overwritable(definition: TableDefinition) -> None:
    """Raise TableError(INVALID_ROW) if only the merge engine may replace rows (R9.10)."""
    engine = definition.settings.merge_engine
    if engine is MergeEngine.FIRST_ROW or engine is MergeEngine.VERSIONED:
        raise TableError(
            TableErrorCode.INVALID_ROW,
            f"table {definition.path} has the merge engine '{engine}': its rows cannot be overwritten",
        )


def statistics_of(definition: TableDefinition, schema: Schema, rows: pa.RecordBatch) -> bytes:
    """Return statistics of rows that are logged under a schema; none for small batches."""
    if rows.num_rows < STATISTICS_FROM_ROWS:
        return b""
    names = definition.settings.statistics_columns
    if names is None:
        names = automatic_columns(schema)
    elif names == ("*",):
        names = tuple(schema.names)
    return compute(rows, schema, frozenset(names)) if names else b""


def decode_append(
    batch: memoryview, definition: TableDefinition
) -> tuple[ArrowBatch, Schema, pa.RecordBatch]:
    """Check a batch of appends to a log table; return its rows as sent, and their schema. Raises KafkaError or
    TableError.
    """
    parsed, schema = parse_write(batch, definition)
    if parsed.change_types is not None:
        raise TableError(
            TableErrorCode.INVALID_ROW, "a write to a log table consists of appends: no change types"
        )
    header = parsed.header
    if header.last_offset_delta != max(0, header.record_count - 1):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, "the batch's last offset delta is not that of its last row"
        )
    try:
        rows = parsed.to_record_batch(schema.arrow(), untrusted=True)
    except DecodeError as error:
        raise TableError(TableErrorCode.INVALID_ROW, str(error)) from None
    check_columns(schema.columns, rows, None, (), partial=False)
    _check_value_format(definition, schema.columns, rows)
    if definition.path.partition is not None:
        latest = rows
        if schema is not definition.schema:
            check_rows(rows.num_rows, definition.schema.row_cost, STORED_BYTES_MAX)
            latest = definition.versions.conversion(schema.schema_id).of(rows)
        check_rows_of_partition(definition, latest)
    return parsed, schema, rows


def check_columns(
    columns: Sequence[Column],
    rows: pa.RecordBatch,
    deletes: Mask | None,
    primary_key: Sequence[str],
    *,
    partial: bool,
) -> None:
    """Check NOT NULL, CHAR(n) and the digits of a second, also in nested columns. Raises TableError.

    For a delete only the key counts, but a partial delete may not clear a NOT NULL column.
    """
    for column, values in zip(columns, rows.columns, strict=True):
        if column.name in primary_key:
            if values.null_count:
                raise _null_error(column, _nulls(values))
        elif not column.nullable:
            if deletes is not None and partial:
                raise TableError(
                    TableErrorCode.INVALID_ROW,
                    f"a partial delete would clear column '{column.name}', which is NOT NULL",
                )
            if values.null_count:
                bad = _nulls(values) if deletes is None else _nulls(values) & ~deletes
                if bad.any():
                    raise _null_error(column, bad)
        if has_rules(column.type):
            counts = deletes is None or column.name in primary_key
            check_inside(column, values if counts else pc.if_else(pa.array(deletes), None, values))


def _check_value_format(definition: TableDefinition, columns: Sequence[Column], rows: pa.RecordBatch) -> None:
    """Raise RowError for a value that a Kafka consumer could never read."""
    if definition.settings.kafka_value_format is KafkaValueFormat.AVRO:
        check_range(columns, rows)


def admit(definition: TableDefinition, operations: Operations) -> Operations:
    """Refuse or drop deletes as the table says (R5); refuse values of the column that the server numbers (R10)."""
    _check_numbered(definition, operations)
    behavior = definition.settings.delete_behavior
    if operations.overwrite and definition.settings.merge_engine is MergeEngine.AGGREGATION:
        behavior = DeleteBehavior.ALLOW  # R9.10: undoing an insert is a delete
    if operations.deletes is None or behavior is DeleteBehavior.ALLOW:
        return operations
    if behavior is DeleteBehavior.DISABLE:
        raise TableError(
            TableErrorCode.DELETION_DISABLED,
            f"table {definition.path} has 'table.delete.behavior' = 'DISABLE'; nothing of the batch was written",
        )
    return operations.select(np.flatnonzero(~operations.deletes))


def _check_numbered(definition: TableDefinition, operations: Operations) -> None:
    name = definition.settings.auto_increment_column
    if name is None:
        return
    values = operations.rows.column(definition.schema.index(name))
    given = values.is_valid().to_numpy(zero_copy_only=False)
    if operations.deletes is not None:
        given = given & ~operations.deletes
    if given.any():
        row = int(given.argmax())
        raise RowError(
            row,
            name,
            f"{values[row].as_py()}, but the server numbers this column: leave it out, or set null",
        )


def _nulls(values: pa.Array) -> Mask:
    nulls: Mask = values.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _null_error(column: Column, bad: Mask) -> TableError:
    row = int(bad.argmax())
    return TableError(
        TableErrorCode.INVALID_ROW, f"row {row}, column '{column.name}': null, but the column is NOT NULL"
    )


def _target_error(reason: str) -> TableError:
    return TableError(TableErrorCode.INVALID_TARGET_COLUMNS, f"target columns: {reason}")
