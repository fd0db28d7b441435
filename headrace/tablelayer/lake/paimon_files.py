"""Data files of a Paimon table as Arrow batches: Parquet, ORC and Avro, without rows that deletion vectors mark.

A deletion vector is the set of the positions of a file's deleted rows: a magic number and a Roaring bitmap. The vectors
of a bucket are in one index file, each between its size and its CRC (Paimon's documentation, "Concepts: Spec: Table
Index").

Avro's times are read as the numbers that they are in the file, because Python's ends at the year 9999. pyarrow reads
ORC's times as nanoseconds, without a check that they fit. Therefore a table with times cannot have ORC files
(`model/table/lake_shape.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tablelayer.lake.adapter import LakeError

BATCH_ROWS = 1 << 16
_MAGIC = 1581511376
_OF_TIME = frozenset(
    {"date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"}
)


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Place of a data file's deletion vector: `size_bytes` are those of the magic number and the bitmap."""

    path: str
    offset: int
    size_bytes: int


def read_file(
    files: Any,
    path: str,
    deleted: DeletionVector | None,
    names: Sequence[str],
    types: Mapping[str, pa.DataType],
) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of a data file in batches; `types` are those of Avro's columns.

    Raises LakeError for a file of another format, and for a deletion vector that cannot be read.
    """
    with files.open_input_file(path) as opened:
        if path.endswith(".parquet"):
            batches = _of_parquet(opened, names)
        elif path.endswith(".orc"):
            batches = _of_orc(opened, names)
        elif path.endswith(".avro"):
            batches = _of_avro(opened, names, types)
        else:
            raise LakeError(f"data file {path} is neither Parquet nor ORC nor Avro, and cannot be read here")
        yield from batches if deleted is None else _living(batches, _positions(files, deleted))


def _of_parquet(opened: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    with parquet.ParquetFile(opened) as stored:
        yield from stored.iter_batches(BATCH_ROWS, columns=list(names))


def _of_orc(opened: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import orc

    stored = orc.ORCFile(opened)
    # To ORC's reader, a dot is a path into a struct.
    chosen = None if any("." in name for name in names) else list(names)
    for stripe in range(stored.nstripes):
        rows = pa.Table.from_batches([stored.read_stripe(stripe, columns=chosen)])
        yield from rows.to_batches(max_chunksize=BATCH_ROWS)


def _of_avro(opened: Any, names: Sequence[str], types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    import fastavro

    fields = [pa.field(name, types.get(name, pa.null())) for name in names]
    held: list[Any] = []
    schema = None
    for block in fastavro.block_reader(opened):
        if schema is None:
            schema = fastavro.parse_schema(_without_times(block.writer_schema))
        held += [fastavro.schemaless_reader(block.bytes_, schema, None) for _ in range(block.num_records)]
        if len(held) >= BATCH_ROWS:
            yield _batch(held, fields)
            held = []
    if held:
        yield _batch(held, fields)


def _batch(records: Sequence[Mapping[str, Any]], fields: Sequence[pa.Field]) -> pa.RecordBatch:
    arrays = []
    for field in fields:
        if pa.types.is_null(field.type):
            arrays.append(pa.nulls(len(records)))
            continue
        values = [record[field.name] for record in records]
        if pa.types.is_nested(field.type):
            values = [_plain(value, field.type) for value in values]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a nested value as pyarrow takes it. Paimon writes a MAP whose keys are not text as a list of records."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else (tuple(each.values()) for each in value)
        return [(key, _plain(item, kind.item_type)) for key, item in pairs]
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    return [_plain(each, kind.value_type) for each in value]


def _without_times(schema: Any) -> Any:
    """Return an Avro schema in which dates and timestamps are numbers."""
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    of_time = schema.get("logicalType") in _OF_TIME
    return {
        name: _without_times(each)
        for name, each in schema.items()
        if not (name == "logicalType" and of_time) and not name.startswith("__fastavro")
    }


def _living(batches: Iterator[pa.RecordBatch], deleted: npt.NDArray[np.uint32]) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose positions in the file are not in `deleted`, which is sorted."""
    position = 0
    for batch in batches:
        end = position + batch.num_rows
        first, last = np.searchsorted(deleted, (position, end))
        if first < last:
            keep = np.ones(batch.num_rows, bool)
            keep[deleted[first:last] - position] = False
            batch = batch.filter(pa.array(keep))
        position = end
        yield batch


def _positions(files: Any, vector: DeletionVector) -> npt.NDArray[np.uint32]:
    with files.open_input_file(vector.path) as opened:
        opened.seek(vector.offset)
        data = opened.read(vector.size_bytes + 8)
    try:
        return deleted_positions(data, vector.size_bytes)
    except ValueError as error:
        raise LakeError(f"the deletion vector at {vector.offset} of {vector.path}: {error}") from error


def deleted_positions(data: bytes, size_bytes: int) -> npt.NDArray[np.uint32]:
    """Return the positions in a deletion vector, sorted; `data` begins with its size and ends with its CRC.

    Raises ValueError if it is damaged, or has 64-bit positions.
    """
    body, check = data[4 : 4 + size_bytes], data[4 + size_bytes :]
    if len(check) != 4 or int.from_bytes(data[:4], "big") != size_bytes:
        raise ValueError(f"its size is not {size_bytes} bytes, as its manifest says")
    if zlib.crc32(body) != int.from_bytes(check, "big"):
        raise ValueError("its checksum is wrong")
    if int.from_bytes(body[:4], "big") != _MAGIC:
        raise ValueError("only 32-bit vectors are read here ('deletion-vectors.bitmap64' is false)")
    try:
        from pyroaring import BitMap
    except ImportError as error:
        raise LakeError(
            "deletion vectors are read by pyroaring, which is not installed: pip install 'headrace[lake]'"
        ) from error
    return np.array(BitMap.deserialize(body[4:]).to_array(), np.uint32)
