"""A filter over batches of the log: it skips batches by their statistics, and chooses rows of the others.

A filter with an equality first searches small batches for the value (`key_search`). Then it reads a batch's front
(header, statistics), and if these do not decide, the columns that the filter names. Blocking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import HEADER_SIZE, BatchHeader
from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.batches.batch import EXTENSION, PREFIX_SIZE, ArrowBatch, encode_arrow_batch
from headrace.tablelayer.model.batches.ipc import STORED_BYTES_MAX
from headrace.tablelayer.model.batches.statistics import ColumnStatistics, comparable, decode
from headrace.tablelayer.model.filters.filters import Filter, Verdict
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.rows.versions import Conversion, SchemaVersions
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.server.read.projection import Projection, project_batch
from headrace.tablelayer.server.regions import headers_of

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion

_FRONT_SIZE = 2048  # holds the statistics of some 50 columns
_COMPRESS_FROM_BYTES = 4096
_SEARCH_FROM_BYTES = 64 << 10  # a smaller region is read before compiled code is loaded


Finder = Callable[[int], "ColumnStatistics | None"]
"""Returns the statistics of a column in a batch, by column id."""


class BatchColumns:
    """Some columns of one of a table's schemas, by position, in stored batches of any schema.

    `versions` must be read after the batches, so that it has all of their schemas.
    """

    def __init__(self, versions: SchemaVersions, schema: Schema, columns: Sequence[int]) -> None:
        self._versions = versions
        self._schema = schema
        self._columns = columns
        self._projections: dict[int, tuple[Schema, Conversion, Projection | None, pa.Schema]] = {}

    def statistics(self, region: FileRegion, position: int, header: BatchHeader) -> Finder:
        """Return the statistics of the batch at a position of the region, by columns of the schema."""
        front = memoryview(region.read_at(position, min(header.size, _FRONT_SIZE)))
        if len(front) < PREFIX_SIZE:
            raise DecodeError(f"an Arrow batch of {len(front)} bytes is cut off")
        _, schema_id, _, _, changes, size = EXTENSION.unpack_from(front, HEADER_SIZE)
        if not size:
            return lambda column_id: None
        start = PREFIX_SIZE + changes
        if min(changes, size) < 0 or start + size > header.size:
            raise DecodeError(
                f"an Arrow batch of {header.size} bytes claims to have {size} bytes of statistics"
            )
        stored = (
            front[start : start + size]
            if start + size <= len(front)
            else memoryview(region.read_at(position + start, size))
        )
        source, conversion, _, _ = self._plan(schema_id)
        statistics = decode(stored, source, header.record_count)
        by_id = {column.id: column for column in source.columns}

        def find(column_id: int) -> ColumnStatistics | None:
            column = by_id.get(column_id)
            index = next(i for i, each in enumerate(conversion.columns) if each.id == column_id)
            if column is not None:
                return statistics.get(column_id) if comparable(column, conversion.columns[index]) else None
            fill = conversion.fills[index]
            if fill is None or fill.is_valid:
                return None
            return ColumnStatistics(header.record_count, header.record_count)

        return find

    def rows(self, region: FileRegion, position: int, header: BatchHeader) -> pa.RecordBatch:
        """Return the rows of the batch at a position of the region, with these columns in this order."""
        schema_id = EXTENSION.unpack(region.read_at(position + HEADER_SIZE, EXTENSION.size))[1]
        _, conversion, projection, sent = self._plan(schema_id)
        arrays: list[pa.Array] = []
        if projection is not None:
            data = read_projected(region, position, header.size, projection)
            arrays = ArrowBatch.parse(data).to_record_batch(sent, bytes_max=STORED_BYTES_MAX).columns
        return conversion.of_needed(arrays, header.record_count)

    def _plan(self, schema_id: int) -> tuple[Schema, Conversion, Projection | None, pa.Schema]:
        plan = self._projections.get(schema_id)
        if plan is None:
            source = self._versions.get(schema_id)
            conversion = self._versions.conversion(schema_id, self._schema, self._columns)
            sent = pa.schema([source.columns[index].field() for index in conversion.needed])
            projection = Projection.of(source.arrow(), conversion.needed) if conversion.needed else None
            plan = self._projections[schema_id] = (source, conversion, projection, sent)
        return plan


class BatchFilter:
    """A filter over batches. `versions` as for `BatchColumns`."""

    def __init__(self, wanted: Filter, versions: SchemaVersions) -> None:
        self._filter = wanted
        self._versions = versions
        self._columns = BatchColumns(versions, wanted.schema, wanted.columns)

    def batches(self, region: FileRegion) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch of a region, without some that have no matching row."""
        search = None
        if region.size >= _SEARCH_FROM_BYTES:
            from headrace.tablelayer.server.read.key_search import KeySearch

            search = KeySearch.of(self._filter, self._versions)
        return headers_of(region) if search is None else search.batches(region)

    def verdict(self, region: FileRegion, position: int, header: BatchHeader) -> Verdict:
        """Return the statistics' verdict on the batch at a position of the region."""
        if not header.record_count:
            return Verdict.NONE
        return self._filter.verdict(self._columns.statistics(region, position, header))

    def mask(self, region: FileRegion, position: int, header: BatchHeader) -> Mask:
        """Return bool[rows]: the matching rows of the batch at a position of the region."""
        return self._filter.mask(self._columns.rows(region, position, header))


def read_projected(region: FileRegion, position: int, size: int, projection: Projection) -> bytes:
    """Return the batch at a position of the region with the projection's columns only, as one piece."""
    front, ranges = project_batch(region.read_at, position, size, lambda _: projection)
    return b"".join((front, *(region.read_at(at, length) for at, length in ranges)))


def filtered_batch(batch: ArrowBatch, rows: pa.RecordBatch, mask: Mask) -> memoryview:
    """Return a batch with its matching rows only, at their own offsets."""
    kept = rows.filter(pa.array(mask))
    header = batch.header
    compressed = batch.compression is not ArrowCompression.NONE and kept.nbytes >= _COMPRESS_FROM_BYTES
    return encode_arrow_batch(
        kept,
        schema_id=batch.schema_id,
        change_types=None if batch.change_types is None else batch.change_types[mask],
        # It is sent once to one reader, so use the fast codec, whatever the log's compression is.
        compression=ArrowCompression.LZ4_FRAME if compressed else ArrowCompression.NONE,
        timestamp_ms=header.max_timestamp,
        last_offset_delta=header.last_offset_delta,
        base_offset=header.base_offset,
        offset_deltas=np.flatnonzero(mask).astype(np.int32),
    )
