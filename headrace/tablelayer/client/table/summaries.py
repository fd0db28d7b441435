"""Answers that are small whatever the size of the table: first rows, counts, least and greatest values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import pyarrow as pa

from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.read.answers import Extremes
from headrace.tablelayer.client.read.offsets import AnyMoment
from headrace.tablelayer.client.table.open_table import OpenTable
from headrace.tablelayer.client.table.parts import Part
from headrace.tablelayer.client.table.reads import Reads
from headrace.tablelayer.model.batches.extremes import check_ordered
from headrace.tablelayer.model.filters.filters import FilterLike

T = TypeVar("T")


class Summaries:
    """The answers of a table that are small whatever its size."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table

    async def limit(
        self, count: int, columns: Sequence[str] | None = None, filter: FilterLike = None
    ) -> pa.Table:
        """Return at most `count` rows (that match), quickly.

        They are the first rows by key of each bucket of a primary-key table, the latest of a log table. They come from
        the first partitions, those of a log table from its last ones.
        """
        if count < 0:
            raise ValueError(f"the limit is {count}: it must be 0 or more")

        async def look() -> pa.Table:
            condition = self._table.condition(filter)
            found, left = list[pa.Table](), count
            parts = await self._table.parts.all()
            for part in parts if self._table.definition.is_primary_key_table else reversed(parts):
                more = await self._table.parts.ask_part(part, partial(_limit, left, columns, condition))
                if more is not None:
                    found.append(more)
                    left -= more.num_rows
                if left <= 0:
                    break
            if left > 0 and await self._table.united.is_needed():
                return await self._first_of_both(count, columns, filter)
            if len(found) == 1:
                return found[0]
            return pa.concat_tables([self._table.reader.answer_schema(columns).empty_table(), *found])

        return await self._table.with_fresh_schema(look)

    async def _first_of_both(self, count: int, columns: Sequence[str] | None, wanted: FilterLike) -> pa.Table:
        schema, found, left = self._table.reader.answer_schema(columns), list[pa.RecordBatch](), count
        scan = await self._table.united.open(columns, wanted)
        async with aclosing(scan.batches(schema)) as batches:
            async for batch in batches:
                found.append(batch.slice(0, left))
                left -= found[-1].num_rows
                if left <= 0:
                    break
        return pa.Table.from_batches(found, schema=schema)

    async def reads_lake(self) -> bool:
        """Return whether a read of the whole table now takes rows from the lake, because the server lacks them."""
        return await self._table.united.is_needed()

    async def count(self, filter: FilterLike = None, *, as_of: AnyMoment | None = None) -> int:
        """Return the number of rows now (that match), without reading them. With `as_of` one column is read."""
        if as_of is not None:
            schema = self._table.definition.schema
            column = schema.primary_key[0] if schema.primary_key else schema.names[0]
            return int((await Reads(self._table).to_arrow([column], filter, as_of=as_of)).num_rows)

        async def count() -> int:
            condition = self._table.condition(filter)
            return sum((await self._table.parts.ask_all(lambda part: part.reader.count(condition))).values())

        async def count_both() -> int:
            names = [self._table.definition.schema.names[0]]
            scan = await self._table.united.open(names, filter)
            async with aclosing(scan.batches(self._table.reader.answer_schema(names))) as batches:
                return sum([batch.num_rows async for batch in batches])

        return await self._table.with_fresh_schema(lambda: self._table.united.either(count, count_both))

    async def extremes(self, columns: Sequence[str], filter: FilterLike = None) -> Extremes:
        """Return the least and greatest values of columns, and the counts of rows and values now (that match).

        `(await table.extremes(["at"])).maximum("at")`. For a log table the server uses the statistics of batches where
        they are exact, and reads only these columns of other batches. For a primary-key table it reads the rows.
        """

        async def look() -> Extremes:
            condition = self._table.condition(filter)
            names = list(dict.fromkeys(several("columns", columns)))
            schema = self._table.reader.answer_schema(names)
            check_ordered(self._table.definition.schema.select(names))

            async def of_log() -> list[Extremes]:
                found = await self._table.parts.ask_all(lambda part: part.reader.extremes(names, condition))
                return list(found.values())

            async def of_both() -> list[Extremes]:
                scan, found = await self._table.united.open(names, filter), list[Extremes]()
                async with aclosing(scan.batches(schema)) as batches:
                    async for batch in batches:
                        found = [Extremes.of_all([*found, Extremes.of(batch)], schema)]
                return found

            return Extremes.of_all(await self._table.united.either(of_log, of_both), schema)

        return await self._table.with_fresh_schema(look)


async def _limit(count: int, columns: Sequence[str] | None, condition: bytes | None, part: Part) -> pa.Table:
    return await part.reader.limit(count, columns, condition)
