"""The state of an open table, which its reads and writes share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.read.reader import (
    Reader,
)
from headrace.tablelayer.client.table.parts import Parts
from headrace.tablelayer.client.table.united import United
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, retrying
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.client.write.conform import Data, as_rows, bare_keys, conform
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import expression_of
from headrace.tablelayer.model.filters.filters import FilterLike, encode_filter
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath

T = TypeVar("T")

FEW_KEYS: Final = 8
"""Number of keys up to which preparing a request is faster than handing it to a thread."""


class OpenTable:
    """A table's definition as it is known here, and its parts. `AsyncTable` documents `refresh`."""

    def __init__(self, cluster: Cluster, definition: StoredTable, parts: Parts) -> None:
        self.cluster = cluster
        self.definition = definition
        self.parts = parts
        self.reader = Reader(cluster, definition)
        self.united = United(cluster, parts)

    @property
    def path(self) -> TablePath:
        return self.definition.path

    async def refresh(self) -> StoredTable:
        """Read the table's definition again, so that later calls see the columns it has now.

        This is not needed after an ALTER: this handle continues with the columns it knows. Writes and lookups that name
        an unknown column refresh by themselves. Running scans keep their columns.
        """
        deadline = Deadline(self.cluster.config.delivery_timeout_ms)
        definition = await retrying(
            TableRoutes(self.cluster, self.definition).describe,
            config=self.cluster.config,
            deadline=deadline,
            repeatable=True,
        )
        self.adopt(definition)
        return definition

    def adopt(self, definition: StoredTable) -> None:
        """Use this definition of the same table from now on."""
        self.definition = definition
        self.reader = Reader(self.cluster, definition)
        self.parts.adopt(definition)

    async def with_fresh_schema(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`, which sends no writes; run it again if it fails and the table's schema has changed."""
        try:
            return await work()
        except (TableError, DataError) as error:
            if isinstance(error, TableError):
                stale = error.code.needs_refresh or error.code in (
                    TableErrorCode.INVALID_PROJECTION,
                    TableErrorCode.INVALID_FILTER,
                )
            else:
                stale = error.column is not None and error.row is None
            known = self.definition.schema.schema_id
            if not stale or (await self.refresh()).schema.schema_id == known:
                raise
        return await work()

    def must_be(self, *, log_table: bool, doing: str) -> None:
        """Raise TableError for a table of the other kind."""
        if self.definition.is_primary_key_table is not log_table:
            return
        if log_table:
            raise TableError(
                TableErrorCode.NOT_A_LOG_TABLE,
                f"{self.path} has a primary key: use upsert, partial or delete, not {doing}",
            )
        raise TableError(
            TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
            f"{self.path} is a log table: {doing} needs a primary key",
        )

    def condition(self, wanted: FilterLike) -> bytes | None:
        """Return an encoded filter. Raises TableError INVALID_FILTER."""
        if wanted is None:
            return None
        schema = self.definition.schema
        return encode_filter(expression_of(wanted, schema), schema)

    async def key_rows(self, keys: Data, columns: Sequence[Column]) -> pa.Table:
        """Return a caller's keys as rows of these columns. Raises DataError."""
        if isinstance(keys, (Mapping, str, bytes)) or (
            isinstance(keys, (list, tuple)) and len(keys) <= FEW_KEYS
        ):
            return self._conform_keys(keys, columns)  # faster than handing it to a thread
        return await asyncio.to_thread(self._conform_keys, keys, columns)

    def _conform_keys(self, keys: Data, columns: Sequence[Column]) -> pa.Table:
        names = [column.name for column in columns]
        if isinstance(keys, (list, tuple)) and keys and not any(isinstance(key, Mapping) for key in keys):
            if len(names) != 1:
                raise DataError(
                    f"{self.path}: the key has {len(names)} columns; give dicts with {', '.join(names)}"
                )
            found = bare_keys(keys, columns[0])
            if found is not None:
                return found
            keys = [{names[0]: key} for key in keys]
        rows = as_rows(keys)
        if isinstance(rows, list):
            rows = [{name: row[name] for name in names if name in row} for row in rows]
        else:
            rows = rows.select([name for name in names if name in rows.column_names])
        return conform(rows, columns, table=str(self.path), fill_missing=False)
