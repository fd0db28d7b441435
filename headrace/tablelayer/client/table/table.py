"""The asynchronous table: write, look up, scan. `tablelayer.client.blocking.Table` is the blocking one.

A table is its partitions, or a single part without partitions (`tablelayer.client.table.parts`). Rows go to their
parts, reads to all parts that may have an answer. One class does each kind of work, over the `OpenTable` that all of
them share; `AsyncTable` names what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from headrace.tablelayer.client.table.lookups import Lookups
from headrace.tablelayer.client.table.open_table import OpenTable
from headrace.tablelayer.client.table.parts import Parts
from headrace.tablelayer.client.table.positions import Positions
from headrace.tablelayer.client.table.reads import Reads
from headrace.tablelayer.client.table.summaries import Summaries
from headrace.tablelayer.client.table.writes import Writes
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partitions import Partition, check_partitioned, spec_texts
from headrace.tablelayer.model.table.path import TablePath

P = ParamSpec("P")
T = TypeVar("T")
WorkerT = TypeVar("WorkerT", Writes, Lookups, Reads, Summaries, Positions)
_WORKERS = (Writes, Lookups, Reads, Summaries, Positions)


def by(
    worker: type[WorkerT], method: Callable[Concatenate[WorkerT, P], T]
) -> Callable[Concatenate[AsyncTable, P], T]:
    """Return a method of the table that a worker does. Arguments, answer and documentation are the worker's."""

    @wraps(method)
    def do(self: AsyncTable, /, *args: P.args, **named: P.kwargs) -> T:
        return method(self._workers[worker], *args, **named)

    return do


class AsyncTable:
    """A table as it was when it was opened, or at the last `refresh`. `await connection.table("db.t")` opens one.

    Rows are a pa.Table, RecordBatch, list of dicts, or a pandas or polars DataFrame. They must fit the schema:
    DataError names the column that does not. Safe to use from many tasks at once.
    """

    def __init__(self, cluster: Cluster, definition: StoredTable, parts: Parts | None = None) -> None:
        self._open = OpenTable(cluster, definition, parts or Parts(cluster, definition))
        self._workers: dict[type, Any] = {worker: worker(self._open) for worker in _WORKERS}

    @property
    def definition(self) -> StoredTable:
        """The definition (columns, keys, options) that this handle knows."""
        return self._open.definition

    @property
    def path(self) -> TablePath:
        """The table's database and name."""
        return self.definition.path

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the table's rows."""
        return self.definition.schema.arrow()

    async def refresh(self) -> StoredTable:
        """Read the table's definition again, so that later calls see the columns it has now.

        This is not needed after an ALTER: this handle continues with the columns it knows. Writes and lookups that name
        an unknown column refresh by themselves. Running scans keep their columns.
        """
        return await self._open.refresh()

    def adopt(self, definition: StoredTable) -> None:
        """Use this definition of the same table from now on."""
        self._open.adopt(definition)

    async def close(self) -> None:
        """Stop this table's writers. Waiting writes fail."""
        await self._open.parts.close()

    append = by(Writes, Writes.append)
    upsert = by(Writes, Writes.upsert)
    delete = by(Writes, Writes.delete)
    partial = by(Writes, Writes.partial)
    write_rows = by(Writes, Writes.write_rows)
    staged_writer = by(Writes, Writes.staged_writer)
    commit_staged = by(Writes, Writes.commit_staged)
    abort_staged = by(Writes, Writes.abort_staged)

    lookup = by(Lookups, Lookups.lookup)
    lookup_one = by(Lookups, Lookups.lookup_one)
    prefix_lookup = by(Lookups, Lookups.prefix_lookup)
    prefix_lookup_grouped = by(Lookups, Lookups.prefix_lookup_grouped)

    scan = by(Reads, Reads.scan)
    snapshot = by(Reads, Reads.snapshot)
    to_arrow = by(Reads, Reads.to_arrow)
    batches = by(Reads, Reads.batches)
    to_pandas = by(Reads, Reads.to_pandas)
    to_polars = by(Reads, Reads.to_polars)
    range_scan = by(Reads, Reads.range_scan)

    limit = by(Summaries, Summaries.limit)
    count = by(Summaries, Summaries.count)
    extremes = by(Summaries, Summaries.extremes)
    reads_lake = by(Summaries, Summaries.reads_lake)

    offsets = by(Positions, Positions.offsets)
    offsets_as_of = by(Positions, Positions.offsets_as_of)
    partition_offsets = by(Positions, Positions.partition_offsets)
    partition_offsets_as_of = by(Positions, Positions.partition_offsets_as_of)
    commit = by(Positions, Positions.commit)
    committed = by(Positions, Positions.committed)
    partition_committed = by(Positions, Positions.partition_committed)

    async def partitions(self) -> list[Partition]:
        """Return the partitions that exist now, by name. TableError NOT_PARTITIONED for other tables."""
        return await self._open.parts.partitions()

    async def partition(self, name: str) -> AsyncTable:
        """Return one partition as a table. Its name is the values of the partition columns, joined by dots.

        TableError PARTITION_NOT_FOUND, NOT_PARTITIONED.
        """
        part = await self._open.parts.named(name)
        parts = Parts(self._open.cluster, part.definition, whole=part)
        return AsyncTable(self._open.cluster, part.definition, parts)

    def only(self, spec: Mapping[str, Any]) -> AsyncTable:
        """Return the same table limited, for reads, to the partitions with these values of partition columns.

        TableError NOT_PARTITIONED, INVALID_PARTITION.
        """
        check_partitioned(self.definition)
        texts = {**self._open.parts.only, **spec_texts(self.definition, spec)}
        return AsyncTable(
            self._open.cluster, self.definition, Parts(self._open.cluster, self.definition, texts)
        )
