"""Reads of a log bucket's rows: the last ones, and their number."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.batches.batch import ArrowBatch
from headrace.tablelayer.model.batches.ipc import STORED_BYTES_MAX
from headrace.tablelayer.model.filters.filters import Filter, Verdict
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.server.bucket.log_bucket import Counted, LogBucket
from headrace.tablelayer.server.read.batch_filter import BatchFilter
from headrace.tablelayer.server.read.wanted import (
    FEW_KEYS,
    FEW_ROWS_BYTES,
    LimitedRows,
    Versions,
    Wanted,
    joined_rows,
    selected_schema,
)
from headrace.tablelayer.server.regions import headers_of
from headrace.tablelayer.server.room import Room

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion
    from headrace.broker.partitions.partition import Partition


_REACH_MIN = 1024  # number of offsets searched at once for few rows
_REACH_MAX = 1 << 18
_REGION_BYTES = 8 << 20


async def last_rows(
    bucket: LogBucket, limit: int, wanted: Wanted, room: Room, before: int = -1
) -> LimitedRows:
    """Return the last rows (that match the filter) below the high watermark or `before`, in log order.

    The log is read backwards, a region of batches at a time.
    """
    partition = bucket.partition
    start = partition.high_watermark if before < 0 else min(before, partition.high_watermark)
    found: list[pa.RecordBatch] = []
    total, reach = 0, max(limit, _REACH_MIN)
    while total < limit and start > partition.log.log_start_offset and not room.is_full:
        top, start = start, max(partition.log.log_start_offset, start - reach)
        for place in reversed(await _regions_between(partition, start, top)):
            bucket.check_open()
            place = max(place, partition.log.log_start_offset)
            region = (await partition.read_anywhere(place, _REGION_BYTES, True)).region
            if region is None:
                continue  # the log's start has moved
            rows, at = await bucket.services.run_on(
                region, partition, _last_of, region, bucket, (place, top), wanted, limit - total, room
            )
            found.extend(rows)
            total += sum(each.num_rows for each in rows)
            if room.is_full or total >= limit:
                start = at
                break
            top = place
        reach = min(4 * reach, _REACH_MAX)  # batches without rows take offsets too
    chosen = selected_schema(wanted)
    if room.used <= FEW_ROWS_BYTES and len(found) <= FEW_KEYS:
        return LimitedRows(joined_rows(found[::-1], chosen), room.is_full, start)
    joined = await bucket.services.run(joined_rows, found[::-1], chosen)
    return LimitedRows(joined, room.is_full, start)


async def _regions_between(partition: Partition, start: int, end: int) -> list[int]:
    """Return the start offsets of regions of batches that together have all offsets from `start` to below `end`."""
    places: list[int] = []
    while start < end:
        found = await partition.read_anywhere(start, _REGION_BYTES, True)
        if found.region is None:
            break
        places.append(start)
        start = found.end_offset
        if len(places) % 16 == 0:
            await asyncio.sleep(0)
    return places


def _last_of(
    region: FileRegion, bucket: LogBucket, offsets: tuple[int, int], wanted: Wanted, limit: int, room: Room
) -> tuple[list[pa.RecordBatch], int]:
    """Return the last matching rows of a region with offsets[0] <= offset < offsets[1], and where the search began.

    The last batch is first. There are at most `limit` rows, and as many as fit into `room`.
    """
    found: list[pa.RecordBatch] = []
    at = offsets[1]
    for position, header in reversed(list(headers_of(region))):
        try:
            rows, at = _last_of_batch(
                region, position, header, bucket.versions(), offsets, wanted, limit, room
            )
        except DecodeError as error:
            bucket.unreadable(header, error)
            continue
        found.append(rows)
        limit -= rows.num_rows
        if room.is_full or not limit:
            break
    return found, at


def _last_of_batch(
    region: FileRegion,
    position: int,
    header: BatchHeader,
    versions: SchemaVersions,
    offsets: tuple[int, int],
    wanted: Wanted,
    limit: int,
    room: Room,
) -> tuple[pa.RecordBatch, int]:
    nothing = pa.RecordBatch.from_pylist([], schema=selected_schema(wanted))
    first = max(0, offsets[0] - header.base_offset)
    last = min(header.record_count, offsets[1] - header.base_offset)
    chosen = None if wanted.filter is None else BatchFilter(wanted.filter, versions)
    if first >= last or (chosen is not None and chosen.verdict(region, position, header) is Verdict.NONE):
        return nothing, header.base_offset + first
    stored = ArrowBatch.parse(region.read_at(position, header.size))
    source = stored.schema_id
    batch = stored.to_record_batch(versions.get(source).arrow(), bytes_max=STORED_BYTES_MAX)
    if wanted.filter is None:
        first = max(first, last - limit)
    while first < last:
        part = batch.slice(first, last - first)
        rows = wanted.rows(lambda columns: versions.conversion(source, wanted.schema, columns).of(part))  # noqa: B023
        rows = rows.slice(max(0, rows.num_rows - limit))
        if room.takes(rows.nbytes, rows.num_rows):
            return rows, header.base_offset + first
        first += max(1, (last - first) // 2)
    return nothing, header.base_offset + last


async def count_log_rows(bucket: LogBucket) -> tuple[int, int]:
    """Return (rows since the log's start, end offset). Counted headers are not read again."""
    partition, counted = bucket.partition, bucket.counted
    start, end = partition.log.log_start_offset, partition.high_watermark
    if counted is None or counted.start != start:
        counted = Counted(start, start, 0)
    while counted.end < end:
        found = await partition.read_anywhere(counted.end, 64 << 20)
        if found.region is None:
            break
        counted = await bucket.services.run_on(found.region, partition, _count, found.region, counted)
    bucket.counted = counted
    return counted.rows, counted.end


async def count_matching_log_rows(bucket: LogBucket, wanted: Filter) -> tuple[int, int]:
    """Return (matching rows since the log's start, end offset). Batches that statistics decide are not read."""
    partition = bucket.partition
    start, end = partition.log.log_start_offset, partition.high_watermark
    offset, counted = start, 0
    while offset < end:
        bucket.check_open()
        found = await partition.read_anywhere(offset, 16 << 20, True, end)
        if found.region is None:
            break
        counted += await bucket.services.run_on(
            found.region, partition, _count_matching, found.region, bucket.versions, wanted, start
        )
        offset = found.end_offset
    return counted, offset


def _count_matching(region: FileRegion, versions: Versions, wanted: Filter, start: int) -> int:
    chosen = BatchFilter(wanted, versions())
    counted = 0
    for position, header in chosen.batches(region):
        verdict = chosen.verdict(region, position, header)
        gone = max(0, start - header.base_offset)
        if verdict is Verdict.ALL:
            counted += max(0, header.record_count - gone)
        elif verdict is Verdict.SOME:
            counted += int(chosen.mask(region, position, header)[gone:].sum())
    return counted


def _count(region: FileRegion, counted: Counted) -> Counted:
    rows, end = counted.rows, counted.end
    for _, header in headers_of(region):
        if header.next_offset > end:
            # The batch with the log's start has only the rows from there on.
            rows += max(0, header.record_count - max(0, counted.start - header.base_offset))
            end = header.next_offset
    return Counted(counted.start, end, rows)
