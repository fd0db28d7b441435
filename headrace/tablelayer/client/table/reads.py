"""Reads of many rows: scans, states, ranges of keys."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.read.answers import reorder
from headrace.tablelayer.client.read.frames import to_pandas, to_polars
from headrace.tablelayer.client.read.offsets import AnyMoment, Moment
from headrace.tablelayer.client.read.part_scan import Selection
from headrace.tablelayer.client.read.state import KeyBound, snapshot_pieces
from headrace.tablelayer.client.table.parts import Part, Parts
from headrace.tablelayer.client.table.scan import AsyncScan, Start, Until
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.filters.filters import FilterLike

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
from headrace.tablelayer.client.table.open_table import OpenTable

T = TypeVar("T")


_snapshot_numbers = itertools.count(1)


class Reads:
    """The reads of many rows of a table."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table

    def scan(
        self,
        columns: Sequence[str] | None = None,
        start: Start = "full",
        until: Until = None,
        buckets: Sequence[int] | None = None,
        poll_timeout: float | None = None,
        as_of: AnyMoment | None = None,
        filter: FilterLike = None,
        row_filter: bool = True,
    ) -> AsyncScan:
        """Read rows and changes as a stream of `ScanBatch`.

        - `start`: "full" (the state, then every change after it; a log table from its beginning, in the lake if its log
          has lost it), "earliest" (the log's beginning), "latest", a time in milliseconds, or offsets by bucket.
          Offsets by bucket: only these buckets are read, unless they are all that the table has.
        - `until`: "latest" (the end when the scan began), offsets by bucket (exclusive), or None for no end.
        - `columns`: the server reads and sends only these. `buckets`: only these, of every partition.
        - `poll_timeout`: seconds without a row after which the iteration ends; None waits without limit.
        - `as_of`: the state of a primary-key table is that of an earlier moment (a time in milliseconds, a datetime, or
          offsets by bucket), and the changes follow from there.
        - `filter`: a condition in SQL ("price > 10 AND name LIKE 'a%'"), or a `pyarrow.compute.Expression`. The server
          drops the other rows, and skips whole batches by their statistics. The filter's columns need not be among
          `columns`. Null is not true, as in SQL. Each image of a changelog is judged by itself: a row that stops
          matching shows as a -U alone (and not at all with 'table.changelog.image' = 'WAL'). With `row_filter` false
          the server only skips batches, and the caller drops rows.

        All partitions are read. One that is added during the scan is read from its beginning; one that is dropped ends.
        `start`, `until` and `as_of` then have offsets by partition and bucket. A partition that `start` does not name
        is read from its beginning (a primary-key table's with its state), but not at all if `until` names others. A
        partition that `as_of` does not name, or that came later, was empty then: its rows come as changes. The rows of
        each partition come in log order.
        """
        return AsyncScan(
            self._table.cluster,
            self._table.parts,
            Selection(columns, buckets, poll_timeout, self._table.condition(filter), row_filter),
            start=start,
            until=until,
            as_of=as_of,
            united=self._table.united,
            wanted=filter,
            is_whole=start == "full" and as_of is None,
        )

    async def snapshot(
        self,
        bucket: int,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: int | None = None,
        partition: str | None = None,
    ) -> AsyncGenerator[tuple[pa.RecordBatch, int], None]:
        """Read one bucket of a primary-key table (of one partition) as it is now, or was at an offset, piece by piece.

        Each piece comes with the offset of that moment. There is at least one piece, perhaps an empty one. Close the
        iteration (`aclosing`) if it ends early. Lost connections and restarts of the server do not show, unless
        retention has deleted what that moment needs: then it ends with TableError SCAN_EXPIRED.
        """
        self._table.must_be(log_table=False, doing="snapshot")
        part = await self._table.parts.one(partition, "a snapshot")
        ids, schema, order = self._table.reader.project(columns)
        channel = f"snapshot-of-one-{next(_snapshot_numbers)}"
        pieces = snapshot_pieces(
            self._table.cluster, part.definition, bucket, ids, schema, channel,
            as_of=as_of, condition=self._table.condition(filter),
        )  # fmt: skip
        try:
            async with aclosing(pieces):
                async for rows, offset in pieces:
                    yield rows if order is None else rows.select(order), offset
        finally:
            self._table.cluster.release(channel)

    async def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: AnyMoment | None = None,
    ) -> pa.Table:
        """Return the whole table (the rows that match) as it is now, or was: all rows that it keeps.

        `as_of` is a time (milliseconds or datetime; writes at that time are included), or offsets by bucket. For a
        partitioned table offsets are by partition and bucket, and only these partitions are read. TableError
        OUTSIDE_RETENTION if log and snapshots do not reach back to it.
        """
        ids, schema, order = self._table.reader.project(columns)
        condition = self._table.condition(filter)

        async def read(part: Part, moment: Moment | None) -> pa.Table:
            offsets = None if moment is None else await part.reader.offsets_as_of(moment, part.buckets)
            if self._table.definition.is_primary_key_table:
                batches = await part.states(ids, schema, offsets, condition=condition)
                return reorder(pa.Table.from_batches(batches, schema=schema), order)
            until: Until = "latest" if offsets is None else offsets
            alone = Parts(self._table.cluster, part.definition, whole=part)
            scan = AsyncScan(
                self._table.cluster,
                alone,
                Selection(columns, condition=condition),
                start="earliest",
                until=until,
            )
            async with scan:
                batches = [piece.batch async for piece in scan]
            return pa.Table.from_batches(batches, schema=answer)

        async def of_log() -> pa.Table:
            found = await self._read_parts(as_of, read)
            return found[0] if len(found) == 1 else pa.concat_tables([answer.empty_table(), *found])

        async def of_both() -> pa.Table:
            until = None if as_of is None else await self._offsets_at(as_of)
            return await (await self._table.united.open(columns, filter, until)).to_arrow(answer)

        answer = schema if order is None else pa.schema([schema.field(name) for name in order])
        return await self._table.united.either(of_log, of_both)

    async def batches(
        self, columns: Sequence[str] | None = None, filter: FilterLike = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Iterate over the rows of `to_arrow`, a few MiB at a time, so that a table may be larger than memory.

        The table is read bucket by bucket, each as it is when its first row comes. Close the iteration (`aclosing`) if
        it ends early. TableError SCAN_EXPIRED if an interrupted read cannot continue because of retention.
        """
        ids, schema, order = self._table.reader.project(columns)
        condition = self._table.condition(filter)
        start: Start = "earliest"
        if self._table.united.is_possible:
            begin = await self._table.united.starts()
            if begin is None:
                answer = schema if order is None else pa.schema([schema.field(name) for name in order])
                both = (await self._table.united.open(columns, filter)).batches(answer)
                async with aclosing(both):
                    async for batch in both:
                        yield batch
                return
            start = begin
        if not self._table.definition.is_primary_key_table:
            scan = AsyncScan(
                self._table.cluster,
                self._table.parts,
                Selection(columns, condition=condition),
                start=start,
                until="latest",
            )
            async with scan:
                async for piece in scan:
                    yield piece.batch
            return
        channel = f"batches-{next(_snapshot_numbers)}"
        try:
            for part in await self._table.parts.all():
                for bucket in part.buckets:
                    pieces = snapshot_pieces(
                        self._table.cluster,
                        part.definition,
                        bucket,
                        ids,
                        schema,
                        channel,
                        condition=condition,
                    )
                    async with aclosing(pieces):
                        async for rows, _ in pieces:
                            yield rows if order is None else rows.select(order)
        finally:
            self._table.cluster.release(channel)

    async def _offsets_at(self, as_of: AnyMoment) -> dict[str, Mapping[int, int]]:
        """Return the ends of a read at a moment, by part and bucket."""
        if isinstance(as_of, Mapping):
            return self._table.parts.by_part(as_of, "reading at offsets")
        return dict(
            await self._table.parts.ask_all(lambda part: part.reader.offsets_as_of(as_of, part.buckets))
        )

    async def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: AnyMoment | None = None,
    ) -> pd.DataFrame:
        """`to_arrow` as a pandas DataFrame. ClientError if pandas is not installed."""
        return await asyncio.to_thread(to_pandas, await self.to_arrow(columns, filter, as_of=as_of))

    async def to_polars(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: AnyMoment | None = None,
    ) -> pl.DataFrame:
        """`to_arrow` as a polars DataFrame. ClientError if polars is not installed (`headrace[polars]`)."""
        return await asyncio.to_thread(to_polars, await self.to_arrow(columns, filter, as_of=as_of))

    async def range_scan(
        self,
        lower: Any = None,
        upper: Any = None,
        columns: Sequence[str] | None = None,
        *,
        include_lower: bool = True,
        include_upper: bool = False,
        limit: int | None = None,
        as_of: AnyMoment | None = None,
        filter: FilterLike = None,
    ) -> pa.Table:
        """Return the rows of a primary-key table between two keys, in key order; at most `limit` of them.

        A bound is a dict of the first columns of the primary key (or of all), or the bare value of the first. It stands
        for all keys that begin with it: `range_scan({"customer": 7}, {"customer": 7}, include_upper=True)` returns all
        of customer 7. Only the rows in between are read. `as_of` and `filter` as for `to_arrow`.
        """
        self._table.must_be(log_table=False, doing="range scan")
        if limit is not None and limit < 0:
            raise ValueError(f"the limit is {limit}: it must be 0 or more")
        primary_key = self._table.definition.schema.primary_key
        is_sorted = not self._table.definition.is_partitioned and self._table.definition.bucket_count == 1
        columns = None if columns is None else several("columns", columns)
        wanted = columns
        if columns is not None and not is_sorted:
            wanted = list(dict.fromkeys([*columns, *primary_key]))
        ids, schema, _ = self._table.reader.project(wanted)
        asked: dict[str, Any] = {
            "limit": limit if filter is None else None,
            "condition": self._table.condition(filter),
            "lower": await self._bound(lower, inclusive=include_lower),
            "upper": await self._bound(upper, inclusive=include_upper),
        }

        async def read(part: Part, moment: Moment | None) -> pa.Table:
            offsets = None if moment is None else await part.reader.offsets_as_of(moment, part.buckets)
            return pa.Table.from_batches(await part.states(ids, schema, offsets, **asked), schema=schema)

        rows = pa.concat_tables([schema.empty_table(), *await self._read_parts(as_of, read)])
        if not is_sorted:
            rows = rows.sort_by([(name, "ascending") for name in primary_key])
        rows = rows if limit is None else rows.slice(0, limit)
        return rows if columns is None else rows.select(columns)

    async def _read_parts(
        self, as_of: AnyMoment | None, read: Callable[[Part, Moment | None], Awaitable[pa.Table]]
    ) -> list[pa.Table]:
        """Read every part now or at a time, or the parts that offsets are given for, in the order of names."""
        if not isinstance(as_of, Mapping):
            return list((await self._table.parts.ask_all(lambda part: read(part, as_of))).values())
        offsets = self._table.parts.by_part(as_of, "reading at offsets")
        return [
            await read(await self._table.parts.one(name or None, "reading at offsets"), offsets[name])
            for name in sorted(offsets)
        ]

    async def _bound(self, bound: Any, *, inclusive: bool) -> KeyBound | None:
        if bound is None:
            return None
        key_columns = self._table.definition.schema.key_columns
        given = bound if isinstance(bound, Mapping) else {key_columns[0].name: bound}
        columns = key_columns[: len(given)]
        if {column.name for column in columns} != set(given):
            raise DataError(
                f"{self._table.path}: a bound must have the first columns of the primary key "
                f"({', '.join(column.name for column in key_columns)}), not {', '.join(given)}"
            )
        rows = await self._table.key_rows([given], columns)
        (row,) = rows.combine_chunks().to_batches()
        return KeyBound(bytes(encode_ipc(row)), len(columns), inclusive)
