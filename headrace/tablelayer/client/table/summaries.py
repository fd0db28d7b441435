"""Answers that are small whatever the size of the table: first rows, counts, least and greatest values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.read.reader import (
    AnyMoment,
    Extremes,
)
from headrace.tablelayer.client.table.parts import Part
from headrace.tablelayer.model.batches.extremes import check_ordered
from headrace.tablelayer.model.filters.filters import FilterLike

if TYPE_CHECKING:
    pass
from headrace.tablelayer.client.table.open_table import OpenTable
from headrace.tablelayer.client.table.reads import Reads

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
            if len(found) == 1:
                return found[0]
            return pa.concat_tables([self._table.reader.answer_schema(columns).empty_table(), *found])

        return await self._table.with_fresh_schema(look)

    async def count(self, filter: FilterLike = None, *, as_of: AnyMoment | None = None) -> int:
        """Return the number of rows now (that match), without reading them. With `as_of` one column is read."""
        if as_of is not None:
            schema = self._table.definition.schema
            column = schema.primary_key[0] if schema.primary_key else schema.names[0]
            return int((await Reads(self._table).to_arrow([column], filter, as_of=as_of)).num_rows)

        async def count() -> int:
            condition = self._table.condition(filter)
            return sum((await self._table.parts.ask_all(lambda part: part.reader.count(condition))).values())

        return await self._table.with_fresh_schema(count)

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
            found = await self._table.parts.ask_all(lambda part: part.reader.extremes(names, condition))
            return Extremes.of_all(list(found.values()), schema)

        return await self._table.with_fresh_schema(look)


async def _limit(count: int, columns: Sequence[str] | None, condition: bytes | None, part: Part) -> pa.Table:
    return await part.reader.limit(count, columns, condition)
