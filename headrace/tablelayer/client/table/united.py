"""Reads of a tiered table by its plain name: the lake's rows up to the tiered offsets, and the log from there.

A log table's log may have lost its beginning to retention, and a partitioned table partitions to its calendar. Their
rows are in the lake. `tablelayer.lake.union_scan` plans such a read and pins both halves; it is a plug-in
(`tablelayer.plugins`). It blocks, so it runs in threads of its own.

`ClientConfig.scan_mode` = "log" reads the log alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import cache
from typing import Any, Final, TypeVar

import pyarrow as pa

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer import plugins
from headrace.tablelayer.client.admin.databases import AsyncAdmin
from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.client.table.parts import WHOLE, Parts
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.model.messages.lake import DescribeLakeRequest, DescribeLakeResponse
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partition_keys import values_of

T = TypeVar("T")

_ATTEMPTS: Final = 4
"""Maximum number of attempts of a read: the log may be cut between its plan and its end."""


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads of reads of the lake.

    They are not those of the loop, whose work such a thread waits for.
    """
    return ThreadPoolExecutor(8, thread_name_prefix="headrace-lake")


class United:
    """The lake's part in the reads of one table, or of one partition."""

    def __init__(self, cluster: Cluster, parts: Parts) -> None:
        self.cluster = cluster
        self._parts = parts

    @property
    def _definition(self) -> StoredTable:
        return self._parts.definition

    @property
    def is_possible(self) -> bool:
        """Whether rows of this table may be in the lake alone."""
        definition = self._definition
        if self.cluster.config.scan_mode == "log" or not definition.settings.datalake_enabled:
            return False
        return not definition.is_primary_key_table or self._has_partitions

    @property
    def _has_partitions(self) -> bool:
        definition = self._definition
        return definition.is_partitioned or definition.path.partition is not None

    async def is_needed(self) -> bool:
        """Return whether the server does not have all rows now."""
        return self.is_possible and await self.starts() is None

    async def _has_expired_partitions(self) -> bool:
        """Return whether partitions that are gone may have rows in the lake that belong to the table."""
        definition = self._definition
        table_id = definition.table_id
        if definition.path.partition is not None:
            whole = await AsyncAdmin(self.cluster).describe_table(definition.path.whole)
            table_id = whole.table_id
        answer = await self.cluster.call(
            DescribeLakeRequest(table_id=table_id),
            DescribeLakeResponse,
            doing=f"describe the lake of {definition.path}",
            to_controller=True,
        )
        return bool(answer.expired)

    async def either(self, log: Callable[[], Awaitable[T]], union: Callable[[], Awaitable[T]]) -> T:
        """Read by `log` if it has all rows from the beginning to the end of that read, else by `union`."""
        if not self.is_possible:
            return await log()
        for attempt in range(_ATTEMPTS):
            try:
                if await self.is_needed():
                    return await union()
                found = await log()
                if not await self.is_needed():
                    return found
            except (ClientError, KafkaError) as error:
                if attempt == _ATTEMPTS - 1 or not _is_cut(error):
                    raise
        return await union()

    async def starts(self) -> dict[str, dict[int, int]] | None:
        """Return the first offsets by part and bucket of a log that has all rows; None if it does not have them.

        A primary-key table's rows are on the server whatever has left its log.
        """
        if self._has_partitions and await self._has_expired_partitions():
            return None
        earliest = await self._parts.ask_all(lambda part: part.reader.offsets("earliest", part.buckets))
        is_cut = any(any(each.values()) for each in earliest.values())
        return None if is_cut and not self._definition.is_primary_key_table else earliest

    async def open(
        self,
        columns: Sequence[str] | None,
        wanted: Any,
        until: Mapping[str, Mapping[int, int]] | None = None,
    ) -> UnitedScan:
        """Plan a read and pin it; with `until` up to these offsets by part and bucket, and of no other part.

        Raises ClientError: the lake cannot be read here; the message says what to install.
        """
        definition, parts = self._definition, self._parts
        path = definition.path
        only: Mapping[str, str] = parts.only
        if path.partition is not None:
            only = dict(zip(definition.partition_keys, values_of(path.partition), strict=True))
            until = None if until is None else {path.partition: until[WHOLE]}
        loop = asyncio.get_running_loop()

        def plan() -> Any:
            try:
                return plugins.union_scan(
                    self.cluster, loop, str(path.whole), columns, wanted, only=only, until=until
                )
            except ModuleNotFoundError as error:
                raise ClientError(
                    f"{path}: rows that have left its log are in the lake, and reading the lake needs {error.name},"
                    " which is not installed: pip install 'headrace[lake]', or read the log alone with"
                    " ClientConfig(scan_mode='log')"
                ) from error

        return UnitedScan(await loop.run_in_executor(_threads(), plan))

    async def missed(self, starts: Mapping[int, int], until: Mapping[int, int] | None) -> MissedScan:
        """Plan a read of a log table's rows from these offsets on that have left its log.

        Raises ClientError: the lake does not have them.
        """
        loop = asyncio.get_running_loop()
        path = self._definition.path

        def plan() -> Any:
            try:
                return plugins.missed_rows(self.cluster, loop, path, starts, until)
            except ModuleNotFoundError as error:
                raise ClientError(f"reading it needs {error.name}: pip install 'headrace[lake]'") from error

        return MissedScan(await loop.run_in_executor(_threads(), plan), until)


class MissedScan:
    """A planned read of rows that have left the log; the log goes on at `log_starts`, up to `until`."""

    def __init__(self, rows: Any, until: Mapping[int, int] | None) -> None:
        self._rows = rows
        self.until = until
        self.log_starts: Mapping[int, int] = rows.log_starts

    def batches(
        self, columns: Sequence[str] | None, wanted: Any
    ) -> AsyncGenerator[tuple[int, pa.RecordBatch, Any, int], None]:
        """Iterate over (bucket, rows, their offsets, their time in milliseconds)."""
        return _iterated(self._rows.matching(columns, wanted))


class UnitedScan:
    """A planned read: both halves are pinned."""

    def __init__(self, scan: Any) -> None:
        self._scan = scan

    def batches(self, schema: pa.Schema) -> AsyncGenerator[pa.RecordBatch, None]:
        """Iterate over all rows, in batches of this schema."""
        return _in_threads(iter(self._scan), schema)

    def of_lake(self, schema: pa.Schema) -> AsyncGenerator[pa.RecordBatch, None]:
        """Iterate over the lake's half."""
        return _in_threads(self._scan.lake_rows(), schema)

    @property
    def log_ends(self) -> dict[str, dict[int, int]]:
        """The log's half ends at these offsets, by part and bucket."""
        found: dict[str, dict[int, int]] = self._scan.log_ends
        return found

    @property
    def log_starts(self) -> dict[str, dict[int, int]]:
        """The log's half begins at these offsets, by part and bucket."""
        found: dict[str, dict[int, int]] = self._scan.log_starts
        return found

    async def to_arrow(self, schema: pa.Schema) -> pa.Table:
        return pa.Table.from_batches([batch async for batch in self.batches(schema)], schema=schema)


async def _in_threads(
    rows: Iterator[pa.RecordBatch], schema: pa.Schema
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with aclosing(_iterated(rows)) as batches:
        async for batch in batches:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


async def _iterated(rows: Iterator[T]) -> AsyncGenerator[T, None]:
    loop = asyncio.get_running_loop()
    try:
        while True:
            found = await loop.run_in_executor(_threads(), next, rows, None)
            if found is None:
                return
            yield found
    finally:
        close = getattr(rows, "close", None)
        if close is not None and not loop.is_closed():
            loop.run_in_executor(_threads(), _closed, close)


def _closed(close: Callable[[], None]) -> None:
    """Close a generator, unless its thread still works on it."""
    try:
        close()
    except ValueError:
        return


def _is_cut(error: Exception) -> bool:
    """Return whether the log was cut during a read, so that a new plan finds the rows in the lake."""
    if isinstance(error, KafkaError):
        return error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    return bool(getattr(error, "cut", False))
