"""Avro in the values and keys of Kafka records: the schema of each one, and the rows decoded by it.

Two forms are read: Confluent's wire format (a zero byte, four bytes with the schema's id in a registry, the record) and
object container files (the schema, then one block of one record, not compressed). `table.kafka.avro.schema` chooses the
form of a table's own values. Single-object encoding is not supported: it names a schema by a fingerprint alone.

Pure; `schema_registry` gives the schemas of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records.decode import RecordColumns
from headrace.protocol.records.gather import gather
from headrace.tablelayer.model.arrays.arrays import binary_array
from headrace.tablelayer.model.avro import kernels
from headrace.tablelayer.model.avro.read import AvroTexts, avro_to_rows
from headrace.tablelayer.model.avro.schema import SCHEMA_TEXT_MAX, AvroKind, AvroSchema, AvroSchemaError
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.schema.schema import Column

Indices = npt.NDArray[np.int64]
Schemas = Mapping[int, "AvroSchema | str"]
"""Schemas by id; a text instead of a schema is the reason why there is none."""

SCHEMAS_PER_BATCH_MAX = 64
"""Maximum number of Avro schemas in a batch. A producer has one or two; each may cost a registry request or parsing."""

_ID_END = 5  # a zero byte and four bytes of the id
_CONTAINER = b"Obj\x01"
_SYNC_SIZE = 16


def schema_ids(records: RecordColumns) -> list[int]:
    """Return the schema ids at the start of values, and of the keys of null values. Raises RowError if there are too
    many.
    """
    deleted = records.value_length < 0
    start = np.where(deleted, records.key_start, records.value_start)
    length = np.where(deleted, records.key_length, records.value_length)
    ids = np.unique(_ids(records.payload, start, length)).tolist()
    known: list[int] = [each for each in ids if each >= 0]
    if len(known) > SCHEMAS_PER_BATCH_MAX:
        raise RowError(
            0, None, f"the batch has {len(known)} Avro schemas; the maximum is {SCHEMAS_PER_BATCH_MAX}"
        )
    return known


def has_id(payload: np.ndarray, start: Indices, length: Indices) -> npt.NDArray[np.bool_]:
    """Return which pieces begin with a schema id."""
    found: npt.NDArray[np.bool_] = _ids(payload, start, length) >= 0
    return found


def _ids(payload: np.ndarray, start: Indices, length: Indices) -> Indices:
    """Return the schema id at the start of each piece, -1 if there is none."""
    long_enough = length >= _ID_END
    at = np.where(long_enough, start, 0)
    if not len(payload):
        return np.full(len(start), -1, np.int64)
    words = [payload[np.minimum(at + index, len(payload) - 1)].astype(np.int64) for index in range(_ID_END)]
    ids = (words[1] << 24) | (words[2] << 16) | (words[3] << 8) | words[4]
    return np.where(long_enough & (words[0] == 0), ids, -1)


Add = Callable[[Indices, Callable[[], pa.RecordBatch]], None]


def add_rows(
    payload: np.ndarray,
    start: Indices,
    length: Indices,
    columns: Sequence[Column],
    schemas: Schemas,
    unknown_fields: UnknownFields,
    add: Add,
    *,
    bare: bool = False,
    units: Mapping[str, str] | None = None,
) -> None:
    """Group n values by schema and `add` each group: its indices, and a function that decodes them or raises RowError.

    With `bare`, the value of the only column need not be in a record. `units`: see `avro_to_rows`.
    """
    ids = _ids(payload, start, length)
    for each in np.unique(ids).tolist():
        at = np.flatnonzero(ids == each)
        texts = AvroTexts.of(binary_array(*gather(payload, start[at], length[at])))
        if each < 0:
            _add_containers(texts, at, columns, unknown_fields, units, add)
        else:
            behind = AvroTexts(texts.data, texts.starts + _ID_END, texts.ends)
            schema = _known(schemas, each)
            alone = bare and len(columns) == 1
            if alone and isinstance(schema, AvroSchema) and schema.root.kind is not AvroKind.RECORD:
                schema = schema.as_field(columns[0].name)
            add(at, _decoder(behind, schema, columns, unknown_fields, units))


def _known(schemas: Schemas, schema_id: int) -> AvroSchema | str:
    nowhere = (
        f"its schema is number {schema_id} of a registry, but neither the table ('table.kafka.avro.registry-url') nor "
        "the server ('schema.registry.url') has one"
    )
    return schemas.get(schema_id, nowhere)


def _decoder(
    texts: AvroTexts,
    schema: AvroSchema | str,
    columns: Sequence[Column],
    unknown_fields: UnknownFields,
    units: Mapping[str, str] | None,
) -> Callable[[], pa.RecordBatch]:
    def decode() -> pa.RecordBatch:
        if isinstance(schema, str):
            raise RowError(0, None, schema)
        return avro_to_rows(texts, schema, columns, unknown_fields=unknown_fields, units=units)

    return decode


def _add_containers(
    texts: AvroTexts,
    at: Indices,
    columns: Sequence[Column],
    unknown_fields: UnknownFields,
    units: Mapping[str, str] | None,
    add: Add,
) -> None:
    """Add values that contain their schemas. Those of one producer begin alike, up to the sync marker, and are read
    together.
    """
    values = binary_array(np.append(texts.starts, texts.ends[-1]).astype(np.int32), texts.data)
    left = np.ones(len(at), np.bool_)
    for number in range(SCHEMAS_PER_BATCH_MAX + 1):
        if not left.any():
            return None
        first = int(np.argmax(left))
        data = values[first].as_py()
        try:
            if number == SCHEMAS_PER_BATCH_MAX:
                raise AvroSchemaError(f"the batch has more than {SCHEMAS_PER_BATCH_MAX} Avro schemas")
            size, text = _metadata(data)
            schema = _parsed(text)
        except AvroSchemaError as error:
            return add(at[first:], _failing(str(error)))
        alike = left & pc.starts_with(values, pattern=data[:size]).to_numpy(zero_copy_only=False)
        left &= ~alike
        chosen = np.flatnonzero(alike)
        add(at[chosen], _container_decoder(texts, chosen, size, schema, columns, unknown_fields, units))
    return None


def _failing(reason: str) -> Callable[[], pa.RecordBatch]:
    def decode() -> pa.RecordBatch:
        raise RowError(0, None, reason)

    return decode


def _container_decoder(
    texts: AvroTexts,
    chosen: Indices,
    size: int,
    schema: AvroSchema,
    columns: Sequence[Column],
    unknown_fields: UnknownFields,
    units: Mapping[str, str] | None,
) -> Callable[[], pa.RecordBatch]:
    def decode() -> pa.RecordBatch:
        starts, sizes = np.zeros(len(chosen), np.int64), np.zeros(len(chosen), np.int64)
        positions, ends = texts.starts[chosen] + size, texts.ends[chosen]
        bad = int(kernels.container_bodies(texts.data, positions, ends, starts, sizes))
        good = len(chosen) if bad < 0 else bad
        part = AvroTexts(texts.data, starts[:good], (starts + sizes)[:good])
        rows = avro_to_rows(part, schema, columns, unknown_fields=unknown_fields, units=units)
        if bad >= 0:
            raise RowError(bad, None, "it is not a complete Avro container file of one block with one record")
        return rows

    return decode


@lru_cache(maxsize=256)
def _parsed(text: str) -> AvroSchema:
    return AvroSchema.parse(text)


def _metadata(data: bytes) -> tuple[int, str]:
    """Return (bytes before the sync marker, the schema) of a container file. Raises AvroSchemaError."""
    if data[:4] != _CONTAINER:
        begins = data[:8].hex(" ") or "nothing"
        raise AvroSchemaError(
            "it is not an Avro value: it begins with "
            + begins
            + ", where a zero byte and the schema's id in a registry "
            "are expected, or a container file"
        )
    position, entries = 4, {}
    padded = data[: 4 + SCHEMA_TEXT_MAX] + bytes(kernels.PADDING)
    try:
        while True:
            count, position = _number(padded, position)
            if count < 0:
                _, position = _number(padded, position)
            if not count:
                break
            for _ in range(abs(count)):
                pieces = []
                for _ in range(2):
                    length, position = _number(padded, position)
                    if not 0 <= length <= len(data) - position:
                        raise AvroSchemaError("the metadata of the Avro container file is cut off")
                    pieces.append(padded[position : position + length])
                    position += length
                entries[pieces[0]] = pieces[1]
        text = entries[b"avro.schema"].decode()
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise AvroSchemaError(f"the metadata of the Avro container file is wrong: {error!r}") from None
    codec = entries.get(b"avro.codec", b"null")
    if codec != b"null":
        raise AvroSchemaError(
            f"the Avro container file is compressed ({codec.decode(errors='replace')[:20]}), which is not "
            "supported: leave compression to the producer's compression.type"
        )
    return position, text


def _number(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        shift += 7
        if byte < 128 or shift > 63:
            return (value >> 1) ^ -(value & 1), position
