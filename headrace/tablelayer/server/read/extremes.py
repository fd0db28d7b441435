"""The lowest and highest values of a bucket's columns (`model.batches.extremes`), and the numbers of rows and values.

In a log table, only the fronts of batches with exact statistics are read, and the requested columns of other batches.
In a primary-key table the state is read, as for a count with a filter, because statistics are of its changes. Blocking
work runs in executor threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.batches.extremes import extremes
from headrace.tablelayer.model.batches.statistics import ColumnStatistics, scalar_of
from headrace.tablelayer.model.filters.filters import Verdict
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.server.read.batch_filter import BatchColumns, BatchFilter
from headrace.tablelayer.server.read.bucket_state import pieces
from headrace.tablelayer.server.read.wanted import Versions, Wanted
from headrace.tablelayer.server.regions import headers_of

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion
    from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
    from headrace.tablelayer.server.bucket.log_bucket import LogBucket

_READ_BYTES = 16 << 20
_PARTS_MAX = 256


class Found(msgspec.Struct):
    """The result so far; the log below `offset` has been searched."""

    columns: Sequence[Column]
    offset: int = 0
    row_count: int = 0
    value_counts: list[int] = msgspec.field(default_factory=list)
    parts: list[pa.RecordBatch] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self.value_counts = [0] * len(self.columns)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([column.field().with_nullable(True) for column in self.columns])

    def add_rows(self, rows: pa.RecordBatch) -> None:
        self.row_count += rows.num_rows
        for index, array in enumerate(rows.columns):
            self.value_counts[index] += len(array) - array.null_count
        self._add(extremes([rows], self.schema))

    def add_statistics(self, row_count: int, statistics: Sequence[ColumnStatistics]) -> None:
        """Add the exact statistics of `row_count` rows."""
        self.row_count += row_count
        arrays = []
        for index, (column, known) in enumerate(zip(self.columns, statistics, strict=True)):
            self.value_counts[index] += known.value_count
            arrow = column.type.arrow()
            bounds = [pa.scalar(None, arrow) if each is None else scalar_of(each, column.type)
                      for each in (known.lowest, known.highest)]  # fmt: skip
            if known.has_nan:
                nan = pa.scalar(float("nan"), arrow)
                bounds = [nan if known.lowest is None else bounds[0], nan]
            arrays.append(pa.concat_arrays([pa.repeat(bound, 1) for bound in bounds]))
        self._add(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _add(self, part: pa.RecordBatch) -> None:
        self.parts.append(part)
        if len(self.parts) >= _PARTS_MAX:
            self.parts = [extremes(self.parts, self.schema)]

    def result(self) -> pa.RecordBatch:
        return extremes(self.parts, self.schema)


def _columns(wanted: Wanted) -> list[Column]:
    assert wanted.columns is not None
    return [wanted.schema.columns[index] for index in wanted.columns]


async def state_extremes(bucket: KeyBucket, wanted: Wanted) -> Found:
    """Return the extremes of a primary-key table's present rows (that match the filter)."""
    found = Found(_columns(wanted))
    async for rows, taken_at in pieces(bucket, wanted):
        found.offset = taken_at
        await bucket.services.run(found.add_rows, rows)
    return found


async def log_extremes(bucket: LogBucket, wanted: Wanted) -> Found:
    """Return the extremes of a log table's rows (that match the filter)."""
    partition, found = bucket.partition, Found(_columns(wanted))
    start, end = partition.log.log_start_offset, partition.high_watermark
    found.offset = start
    while found.offset < end:
        bucket.check_open()
        read = await partition.read_anywhere(found.offset, _READ_BYTES, True, end)
        if read.region is None:
            break
        await bucket.services.run_on(
            read.region, partition, _look, read.region, bucket.versions, wanted, start, found
        )
    return found


def _look(region: FileRegion, versions: Versions, wanted: Wanted, start: int, found: Found) -> None:
    known = versions()
    chosen = None if wanted.filter is None else BatchFilter(wanted.filter, known)
    columns = BatchColumns(known, wanted.schema, tuple(wanted.columns or ()))
    for position, header in headers_of(region):
        found.offset = header.next_offset
        count = header.record_count
        verdict = Verdict.ALL if chosen is None else chosen.verdict(region, position, header)
        if not count or verdict is Verdict.NONE:
            continue
        mask: Mask | None = None
        if verdict is Verdict.SOME:
            assert chosen is not None
            mask = chosen.mask(region, position, header)
        if header.base_offset < start:
            kept = np.arange(count) >= start - header.base_offset
            mask = kept if mask is None else mask & kept
        if mask is not None and mask.all():
            mask = None
        elif mask is not None and not mask.any():
            continue
        statistics = None if mask is not None else _exact(columns, region, position, header, found.columns)
        if statistics is not None:
            found.add_statistics(count, statistics)
        else:
            rows = columns.rows(region, position, header)
            found.add_rows(rows if mask is None else rows.filter(pa.array(mask)))


def _exact(
    columns: BatchColumns, region: FileRegion, position: int, header: BatchHeader, asked: Sequence[Column]
) -> list[ColumnStatistics] | None:
    """Return the statistics of all requested columns; None unless they are exact."""
    find = columns.statistics(region, position, header)
    known = []
    for column in asked:
        found = find(column.id)
        if found is None or (found.lowest is None and found.value_count and not found.has_nan):
            return None
        if found.lowest is not None and not (found.lowest_exact and found.highest_exact):
            return None
        known.append(found)
    return known
