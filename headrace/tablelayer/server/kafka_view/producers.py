"""Checks of a Kafka producer's batch for a table, and the errors it gets (R17.2, R17.3).

The batch as a whole is checked here; `records_to_rows` turns its records into operations. Pure; called in executor
threads.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.broker.log.config import DECOMPRESSED_BYTES, DECOMPRESSED_RATIO
from headrace.broker.log.errors import RecordErrors
from headrace.broker.log.preparation import decode_client_batch
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.decode import RecordColumns
from headrace.protocol.records.header import BatchHeader, read_header, verify_crc
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import RowError, TableError
from headrace.tablelayer.model.options.table_options import TableOptions, UnknownFields
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.derived import Sample, missing_columns
from headrace.tablelayer.model.table.evolution import AddColumn
from headrace.tablelayer.model.table.partitions import check_rows_of_partition
from headrace.tablelayer.server.kafka_view.avro import Schemas, schema_ids
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.server.merge.engines import Operations
from headrace.tablelayer.server.merge.writes import admit

_SAMPLES = 200
"""Number of records that are examined together for fields that are not columns."""
PRODUCER_IDS = (1 << 50) - 1
"""Exclusive maximum of producer ids: the ids derived from them, one for each producer and partition, must fit int64.

Ids are assigned one after another from 0. Kafka's logs accept ids that were never assigned; tables cannot.
"""


def check_frame(batch: memoryview) -> BatchHeader:
    """Return the header of a producer's batch. Raises KafkaError for a batch that a producer may not send."""
    try:
        header = read_header(batch)
    except DecodeError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if header.size != len(batch):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size} bytes in {len(batch)} bytes of records"
        )
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch has {header.record_count} records and last offset delta {header.last_offset_delta}",
        )
    if header.is_transactional:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "tables do not take part in transactions; produce without transactional.id",
        )
    if header.is_control or header.producer_id < -1:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch has attributes that producers may not set")
    if header.producer_id >= PRODUCER_IDS:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"producer id {header.producer_id} was not assigned by InitProducerId; request one",
        )
    return header


def open_batch(batch: memoryview) -> RecordColumns:
    """Return the records of a producer's batch. Raises KafkaError."""
    if not verify_crc(batch):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes; send it again")
    return decode_client_batch(
        check_frame(batch), batch, max(DECOMPRESSED_BYTES, DECOMPRESSED_RATIO * len(batch))
    )


class OpenedBatch(msgspec.Struct, frozen=True):
    """A producer's records and the schemas of the ids in them. `sent_as` has the records' indices in the batch if some
    are left out.
    """

    records: RecordColumns
    schemas: Schemas
    sent_as: npt.NDArray[np.int64] | None = None


Opened = memoryview | OpenedBatch
"""A producer's batch, as sent or decoded."""


def avro_ids(definition: TableDefinition, batch: memoryview) -> tuple[RecordColumns, list[int]]:
    """Return the records of a batch of Avro values, and the schema ids in them. Raises KafkaError."""
    records = open_batch(batch)
    try:
        return records, schema_ids(records)
    except RowError as error:
        raise refused_record(definition, error) from None


def decode_produced(definition: TableDefinition, batch: memoryview | OpenedBatch) -> Operations:
    """Return the rows of a producer's batch, in order: values are upserts (appends), null values are deletes by key.

    Raises RecordErrors (INVALID_RECORD) that names record and column, or KafkaError.
    """
    try:
        return _decoded(definition, batch)
    except RecordErrors as error:
        if not isinstance(batch, OpenedBatch) or batch.sent_as is None or not error.errors:
            raise
        index, reason = error.errors[0]
        raise _refused(definition, int(batch.sent_as[index]), reason) from None


def _decoded(definition: TableDefinition, batch: memoryview | OpenedBatch) -> Operations:
    try:
        if isinstance(batch, OpenedBatch):
            write = from_kafka(batch.records, definition, batch.schemas)
        else:
            write = from_kafka(open_batch(batch), definition)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
    except RowError as error:
        raise refused_record(definition, error) from None
    if not definition.is_partitioned:
        try:
            check_rows_of_partition(definition, write.rows)
        except RowError as error:
            raise refused_record(definition, error) from None
    deletes = None if write.change_types is None else write.change_types == ChangeType.DELETE
    sent_as = batch.sent_as if isinstance(batch, OpenedBatch) else None
    if deletes is None:
        return Operations(write.rows, sent_as=sent_as)
    operations = Operations(write.rows, deletes if deletes.any() else None, sent_as=sent_as, kept=write.kept)
    try:
        return admit(definition, operations)
    except RowError as error:
        raise refused_record(definition, error) from None
    except TableError as error:
        raise _refused(definition, int(deletes.argmax()), error.message) from None


def ignoring(definition: TableDefinition) -> TableDefinition:
    """Return the table as if it ignored fields that are not columns."""
    options = {**definition.options, TableOptions.kafka_unknown_fields.name: UnknownFields.IGNORE.value}
    return replace(definition, options=options)


def decode_ignoring(definition: TableDefinition, batch: Opened) -> Operations:
    """Decode a batch as `decode_produced` does, ignoring fields that are not columns."""
    return decode_produced(ignoring(definition), batch)


def added_columns(definition: TableDefinition, batch: Opened) -> list[AddColumn]:
    """Return the columns that the first records with unknown fields need."""
    records = batch.records if isinstance(batch, OpenedBatch) else open_batch(batch)
    for begin in range(0, len(records), _SAMPLES):
        samples = (
            Sample.of(None, _value(records, at)) for at in range(begin, min(begin + _SAMPLES, len(records)))
        )
        found = missing_columns(definition, samples)
        if found:
            return found
    return []


def _value(records: RecordColumns, at: int) -> bytes | None:
    start, length = int(records.value_start[at]), int(records.value_length[at])
    return None if length < 0 else records.payload[start : start + length].tobytes()


def refused_record(definition: TableDefinition, error: RowError) -> RecordErrors:
    """Return a row's error as its record's error; rows have the numbers of the batch's records."""
    place = "" if error.column is None else f"column '{error.column}': "
    return _refused(definition, error.index, f"{place}{error.reason}")


def _refused(definition: TableDefinition, index: int, reason: str) -> RecordErrors:
    nothing = "; nothing of the batch was written"  # some reasons say so, too
    where = f"record {index} of the batch for table {definition.path}"
    return RecordErrors(f"{where}: {reason.removesuffix(nothing)}{nothing}", [(index, reason)])
