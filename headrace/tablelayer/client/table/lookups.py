"""Lookups by primary key and by a prefix of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.tablelayer.client.read.answers import LookupResult, first_row
from headrace.tablelayer.client.table.open_table import OpenTable
from headrace.tablelayer.client.wire.retry import together
from headrace.tablelayer.client.write.conform import Data
from headrace.tablelayer.model.errors import TableError, TableErrorCode

T = TypeVar("T")


class Lookups:
    """The lookups of a table."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table

    async def lookup(
        self, keys: Data, columns: Sequence[str] | None = None, *, insert_if_absent: bool = False
    ) -> LookupResult:
        """Look up many primary keys at once: `found, rows = await table.lookup(keys)`.

        `keys` has the primary-key columns (others are ignored), or is a list of bare values if the key is one column.
        Row i of the answer belongs to key i, and is null where `found[i]` is false. `columns` limits the answer to
        these. With `insert_if_absent`, missing keys first become rows of defaults (null without one, and the next
        number in an auto-increment column). Each key is inserted once, even for several callers, and all get its row.
        """
        self._table.must_be(log_table=False, doing="lookup")

        async def look() -> LookupResult:
            key_rows = await self._table.key_rows(keys, self._table.definition.schema.key_columns)
            return await self._lookup(key_rows, columns, insert_if_absent)

        return await self._table.with_fresh_schema(look)

    async def _lookup(
        self, keys: pa.Table, columns: Sequence[str] | None, insert_if_absent: bool
    ) -> LookupResult:
        schema = self._table.reader.answer_schema(columns)
        if not keys.num_rows:
            return LookupResult(np.zeros(0, bool), schema.empty_table())
        parts = await self._table.parts.split(keys)

        async def look(name: str, part_keys: pa.Table) -> LookupResult:
            result = await self._table.parts.ask(
                name,
                lambda part: part.reader.lookup(part_keys, columns, insert_if_absent=insert_if_absent),
                making=insert_if_absent,
            )
            if result is not None:
                return result
            nothing = [pa.nulls(part_keys.num_rows, field.type) for field in schema]
            return LookupResult(np.zeros(part_keys.num_rows, bool), pa.table(nothing, schema=schema))

        if len(parts) == 1:
            return await look(*parts[0][:2])
        results = await together(look(name, part_keys) for name, part_keys, _ in parts)
        back = np.empty(keys.num_rows, np.int64)
        back[np.concatenate([positions for _, _, positions in parts if positions is not None])] = np.arange(
            keys.num_rows
        )
        found = np.concatenate([result.found for result in results])
        rows = pa.concat_tables([result.rows for result in results])
        stale = max(result.staleness_ms for result in results)
        return LookupResult(found[back], rows.take(pa.array(back)), stale)

    async def lookup_one(
        self, key: Any, columns: Sequence[str] | None = None, *, insert_if_absent: bool = False
    ) -> dict[str, Any] | None:
        """Return one row as a dict, or None: `await table.lookup_one({"order_key": 7})`, or `7` for a one-column key.

        `insert_if_absent` as in `lookup`.
        """
        keys = key if isinstance(key, Mapping) else [key]
        return first_row(await self.lookup(keys, columns, insert_if_absent=insert_if_absent))

    async def prefix_lookup(self, prefix: Data, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows whose primary key begins with these values of the bucket key, in key order.

        A partitioned table also needs the partition columns. The bucket key must be a prefix of the primary key:
        `CREATE TABLE t (a .., b .., PRIMARY KEY (a, b) NOT ENFORCED) WITH ('bucket.key' = 'a')`. The rows of several
        prefixes follow each other.
        """
        return (await self.prefix_lookup_grouped(prefix, columns))[1]

    async def prefix_lookup_grouped(
        self, prefixes: Data, columns: Sequence[str] | None = None
    ) -> tuple[np.ndarray, pa.Table]:
        """Return the rows of `prefix_lookup`, and before them each row's index of its prefix (int64[n], ascending)."""
        self._table.must_be(log_table=False, doing="prefix lookup")
        if not self._table.definition.allows_prefix_lookup:
            bucket_key = ", ".join(self._table.definition.bucket_key)
            primary_key = ", ".join(self._table.definition.schema.primary_key)
            raise TableError(
                TableErrorCode.INVALID_KEY,
                f"{self._table.path} does not allow prefix lookups: its bucket key ({bucket_key}) must be a "
                f"prefix of its primary key ({primary_key}), and shorter",
            )

        async def look() -> tuple[np.ndarray, pa.Table]:
            definition = self._table.definition
            names = definition.prefix_columns if definition.is_partitioned else definition.key_prefix
            prefix_rows = await self._table.key_rows(prefixes, self._table.definition.schema.select(names))
            return await self._prefix_lookup(prefix_rows, columns)

        return await self._table.with_fresh_schema(look)

    async def _prefix_lookup(
        self, prefixes: pa.Table, columns: Sequence[str] | None
    ) -> tuple[np.ndarray, pa.Table]:
        schema = self._table.reader.answer_schema(columns)
        parts = await self._table.parts.split(prefixes)

        async def look(name: str, theirs: pa.Table) -> tuple[np.ndarray, pa.Table]:
            result = await self._table.parts.ask(
                name,
                lambda part: part.reader.prefix_lookup(
                    theirs.select(list(part.definition.key_prefix)), columns
                ),
            )
            return (np.zeros(0, np.int64), schema.empty_table()) if result is None else result

        if len(parts) == 1 and parts[0][2] is None:
            return await look(*parts[0][:2])
        results = await together(look(name, theirs) for name, theirs, _ in parts)
        owners = [np.zeros(0, np.int64)]
        owners += [
            positions[owner]
            for (_, _, positions), (owner, _) in zip(parts, results, strict=True)
            if positions is not None
        ]
        owner = np.concatenate(owners)
        rows = pa.concat_tables([schema.empty_table(), *(found for _, found in results)])
        order = np.argsort(owner, kind="stable")
        return owner[order], rows.take(pa.array(order))
