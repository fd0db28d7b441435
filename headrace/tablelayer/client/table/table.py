"""The asynchronous table: write, look up, scan. `tablelayer.client.blocking.Table` is the blocking one.

A table is its partitions, or a single part without partitions (`tablelayer.client.table.parts`). Rows go to their
parts, reads to all parts that may have an answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.read.frames import to_pandas, to_polars
from headrace.tablelayer.client.read.group_offsets import commit_offsets, fetch_offsets
from headrace.tablelayer.client.read.reader import (
    AnyMoment,
    Extremes,
    LookupResult,
    Moment,
    Reader,
    first_row,
    nullable_schema,
    reorder,
)
from headrace.tablelayer.client.read.state import KeyBound, snapshot_pieces
from headrace.tablelayer.client.table.parts import DELETE, Part, Parts
from headrace.tablelayer.client.table.scan import AsyncScan, PartitionOffsets, Start, Until
from headrace.tablelayer.client.table.staging import AsyncStagedWriter, Receipt, abort_staged, commit_staged
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, retrying, together
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.client.write.conform import Data, as_rows, bare_keys, conform
from headrace.tablelayer.client.write.lane import WriteMode
from headrace.tablelayer.client.write.writer import WriteResult
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.batches.extremes import check_ordered
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import filter_of_sql
from headrace.tablelayer.model.filters.filters import FilterLike, encode_filter
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition, TablePath
from headrace.tablelayer.model.table.partitions import Partition, check_partitioned, spec_texts

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

T = TypeVar("T")

FEW_KEYS: Final = 8
"""Number of keys up to which preparing a request is faster than handing it to a thread."""
_snapshot_numbers = itertools.count(1)
_UPSERT = int(ChangeType.UPDATE_AFTER)


class AsyncTable:
    """A table as it was when it was opened, or at the last `refresh`. `await connection.table("db.t")` opens one.

    Rows are a pa.Table, RecordBatch, list of dicts, or a pandas or polars DataFrame. They must fit the schema:
    DataError names the column that does not. Safe to use from many tasks at once.
    """

    def __init__(self, cluster: Cluster, definition: TableDefinition, parts: Parts | None = None) -> None:
        self._cluster = cluster
        self.definition = definition
        self._parts = parts or Parts(cluster, definition)
        self._reader = Reader(cluster, definition)

    @property
    def path(self) -> TablePath:
        """The table's database and name."""
        return self.definition.path

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the table's rows."""
        return self.definition.schema.arrow()

    async def refresh(self) -> TableDefinition:
        """Read the table's definition again, so that later calls see the columns it has now.

        This is not needed after an ALTER: this handle continues with the columns it knows. Writes and lookups that name
        an unknown column refresh by themselves. Running scans keep their columns.
        """
        deadline = Deadline(self._cluster.config.delivery_timeout_ms)
        definition = await retrying(
            TableRoutes(self._cluster, self.definition).describe,
            config=self._cluster.config,
            deadline=deadline,
            repeatable=True,
        )
        self.adopt(definition)
        return definition

    def adopt(self, definition: TableDefinition) -> None:
        """Use this definition of the same table from now on."""
        self.definition = definition
        self._reader = Reader(self._cluster, definition)
        self._parts.adopt(definition)

    async def _with_fresh_schema(self, work: Callable[[], Awaitable[T]]) -> T:
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

    async def close(self) -> None:
        """Stop this table's writers. Waiting writes fail."""
        await self._parts.close()

    # -- writing

    async def append(self, data: Data) -> WriteResult:
        """Append rows to a log table.

        A missing column gets its default, or null. Returns when every row is acknowledged; then each row is in the log
        exactly once. `result.end_offsets` tells readers how far to read to see them.
        """
        self._must_be(log_table=True, doing="append")
        rows, definition = await self._whole_rows(data)
        return await self._parts.write(rows, definition)

    async def upsert(self, data: Data, *, overwrite: bool = False) -> WriteResult:
        """Insert rows, or replace the rows with the same primary key. The last of equal keys wins.

        Rows are whole: a missing column gets its default, or null. To change some columns only, use `partial`. A table
        with a merge engine merges instead of replacing. An auto-increment column is left out. `overwrite` replaces rows
        even with the aggregation engine, for example to undo writes.
        """
        self._must_be(log_table=False, doing="upsert")
        rows, definition = await self._whole_rows(data)
        return await self._parts.write(rows, definition, _UPSERT, WriteMode(None, overwrite))

    async def delete(
        self, keys: Data, columns: Sequence[str] | None = None, *, overwrite: bool = False
    ) -> WriteResult:
        """Delete the rows with these primary keys. Other columns are ignored; absent keys are not an error.

        With `columns` only those become null, and a row is deleted when only its key is left: the opposite of a partial
        update. The table's `table.delete.behavior` applies. With `overwrite` the aggregation engine always deletes.
        """
        self._must_be(log_table=False, doing="delete")
        definition = self.definition
        schema = definition.schema
        cleared = several("columns", columns) if columns else []
        chosen, targets = (
            self._targets([*schema.primary_key, *cleared]) if cleared else (list(schema.columns), None)
        )
        key_rows = await self._keys(keys, schema.key_columns)
        count = key_rows.num_rows
        arrays = [
            key_rows.column(column.name)
            if column.name in schema.primary_key
            else pa.nulls(count, column.type.arrow())
            for column in chosen
        ]
        rows = pa.table(arrays, schema=nullable_schema(chosen))
        return await self._parts.write(rows, definition, DELETE, WriteMode(targets, overwrite))

    async def partial(
        self, data: Data, columns: Sequence[str], *, overwrite: bool = False, only_existing: bool = False
    ) -> WriteResult:
        """Write only these columns, including the primary key. The others keep their values.

        A null in the data overwrites with null. A new key is inserted with defaults, or null, in the other columns, so
        these must be nullable or have a default. Writers of disjoint columns do not interfere. Tables with the merge
        engines first_row and versioned take whole rows only. `overwrite` as with `upsert`. With `only_existing`
        existing rows are set as `overwrite` does, and other keys are not written; the other columns may then be NOT
        NULL.
        """
        self._must_be(log_table=False, doing="partial update")

        async def prepare() -> tuple[pa.Table, TableDefinition, tuple[int, ...] | None]:
            definition = self.definition
            chosen, targets = self._targets(several("columns", columns))
            return await self._conformed(data, chosen, fill_missing=False), definition, targets

        rows, definition, targets = await self._with_fresh_schema(prepare)
        return await self._parts.write(
            rows, definition, _UPSERT, WriteMode(targets, overwrite, only_existing)
        )

    async def write_rows(
        self,
        rows: pa.Table,
        *,
        definition: TableDefinition,
        change_type: int | None = None,
        target_columns: tuple[int, ...] | None = None,
        only_existing: bool = False,
    ) -> WriteResult:
        """Write rows that conform to `definition` (`tablelayer.client.write.writer.Writer.write`)."""
        mode = WriteMode(target_columns, overwrite=only_existing, update=only_existing)
        return await self._parts.write(rows, definition, change_type, mode)

    def staged_writer(
        self,
        writer: str,
        batch_id: int,
        attempt: str,
        target_columns: tuple[int, ...] | None = None,
        *,
        definition: TableDefinition | None = None,
        only_existing: bool = False,
    ) -> AsyncStagedWriter:
        """Return a writer whose rows become part of the table with `commit_staged` (`tablelayer.client.table.staging`).

        With `only_existing`, keys that do not exist at the commit are not written, as with `partial`.
        """
        return AsyncStagedWriter(
            self._cluster,
            self._parts,
            definition or self.definition,
            writer=writer,
            batch_id=batch_id,
            attempt=attempt,
            target_columns=target_columns,
            only_existing=only_existing,
        )

    async def commit_staged(
        self, writer: str, batch_id: int, receipts: Sequence[Receipt], *, single: bool = False
    ) -> None:
        """Write the rows that these attempts have staged, exactly once even if it is called again.

        Returns when they are visible. `single` says that this writer will have no other batch.
        """
        await commit_staged(
            self._cluster, self.definition, writer=writer, batch_id=batch_id, receipts=receipts, single=single
        )

    async def abort_staged(self, writer: str, batch_id: int, receipts: Sequence[Receipt]) -> None:
        """Drop the rows that these attempts have staged, unless they are committed."""
        await abort_staged(
            self._cluster, self.definition, writer=writer, batch_id=batch_id, receipts=receipts
        )

    def _targets(self, names: Sequence[str]) -> tuple[list[Column], tuple[int, ...] | None]:
        """Return these columns in the table's order, and their ids for the request (None: whole rows)."""
        schema = self.definition.schema
        wanted = set(names)
        schema.select(list(names))
        missing = [name for name in schema.primary_key if name not in wanted]
        if missing:
            raise TableError(
                TableErrorCode.INVALID_TARGET_COLUMNS,
                f"a partial update of {self.path} needs the whole primary key; {', '.join(missing)} is missing",
            )
        chosen = [column for column in schema.columns if column.name in wanted]
        return chosen, self.definition.target_ids(chosen)

    def _must_be(self, *, log_table: bool, doing: str) -> None:
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

    async def _whole_rows(self, data: Data) -> tuple[pa.Table, TableDefinition]:
        """Return the rows, and the definition that they conform to."""

        async def prepare() -> tuple[pa.Table, TableDefinition]:
            definition = self.definition
            return await self._conformed(data, definition.schema.columns), definition

        return await self._with_fresh_schema(prepare)

    async def _conformed(
        self, data: Data, columns: Sequence[Column], *, fill_missing: bool = True
    ) -> pa.Table:
        return await asyncio.to_thread(
            conform, data, columns, table=str(self.path), fill_missing=fill_missing
        )

    async def _keys(self, keys: Data, columns: Sequence[Column]) -> pa.Table:
        if isinstance(keys, (Mapping, str, bytes)) or (
            isinstance(keys, (list, tuple)) and len(keys) <= FEW_KEYS
        ):
            return self._conform_keys(keys, columns)  # faster than handing it to a thread
        return await asyncio.to_thread(self._conform_keys, keys, columns)

    def _conform_keys(self, keys: Data, columns: Sequence[Column]) -> pa.Table:
        names = [column.name for column in columns]
        if isinstance(keys, (list, tuple)) and not any(isinstance(key, Mapping) for key in keys):
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

    # -- by key

    async def lookup(
        self, keys: Data, columns: Sequence[str] | None = None, *, insert_if_absent: bool = False
    ) -> LookupResult:
        """Look up many primary keys at once: `found, rows = await table.lookup(keys)`.

        `keys` has the primary-key columns (others are ignored), or is a list of bare values if the key is one column.
        Row i of the answer belongs to key i, and is null where `found[i]` is false. `columns` limits the answer to
        these. With `insert_if_absent`, missing keys first become rows of defaults (null without one, and the next
        number in an auto-increment column). Each key is inserted once, even for several callers, and all get its row.
        """
        self._must_be(log_table=False, doing="lookup")

        async def look() -> LookupResult:
            key_rows = await self._keys(keys, self.definition.schema.key_columns)
            return await self._lookup(key_rows, columns, insert_if_absent)

        return await self._with_fresh_schema(look)

    async def _lookup(
        self, keys: pa.Table, columns: Sequence[str] | None, insert_if_absent: bool
    ) -> LookupResult:
        schema = self._reader.answer_schema(columns)
        if not keys.num_rows:
            return LookupResult(np.zeros(0, bool), schema.empty_table())
        parts = await self._parts.split(keys)

        async def look(name: str, part_keys: pa.Table) -> LookupResult:
            result = await self._parts.ask(
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
        self._must_be(log_table=False, doing="prefix lookup")
        if not self.definition.allows_prefix_lookup:
            bucket_key = ", ".join(self.definition.bucket_key)
            primary_key = ", ".join(self.definition.schema.primary_key)
            raise TableError(
                TableErrorCode.INVALID_KEY,
                f"{self.path} does not allow prefix lookups: its bucket key ({bucket_key}) must be a "
                f"prefix of its primary key ({primary_key}), and shorter",
            )

        async def look() -> tuple[np.ndarray, pa.Table]:
            definition = self.definition
            names = definition.prefix_columns if definition.is_partitioned else definition.key_prefix
            prefix_rows = await self._keys(prefixes, self.definition.schema.select(names))
            return await self._prefix_lookup(prefix_rows, columns)

        return await self._with_fresh_schema(look)

    async def _prefix_lookup(
        self, prefixes: pa.Table, columns: Sequence[str] | None
    ) -> tuple[np.ndarray, pa.Table]:
        schema = self._reader.answer_schema(columns)
        parts = await self._parts.split(prefixes)

        async def look(name: str, theirs: pa.Table) -> tuple[np.ndarray, pa.Table]:
            result = await self._parts.ask(
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

    # -- partitions

    async def partitions(self) -> list[Partition]:
        """Return the partitions that exist now, by name. TableError NOT_PARTITIONED for other tables."""
        return await self._parts.partitions()

    async def partition(self, name: str) -> AsyncTable:
        """Return one partition as a table. Its name is the values of the partition columns, joined by dots.

        TableError PARTITION_NOT_FOUND, NOT_PARTITIONED.
        """
        part = await self._parts.named(name)
        parts = Parts(self._cluster, part.definition, whole=part)
        return AsyncTable(self._cluster, part.definition, parts)

    def only(self, spec: Mapping[str, Any]) -> AsyncTable:
        """Return the same table limited, for reads, to the partitions with these values of partition columns.

        TableError NOT_PARTITIONED, INVALID_PARTITION.
        """
        check_partitioned(self.definition)
        texts = {**self._parts.only, **spec_texts(self.definition, spec)}
        return AsyncTable(self._cluster, self.definition, Parts(self._cluster, self.definition, texts))

    # -- counts and samples

    def _condition(self, wanted: FilterLike) -> bytes | None:
        """Return an encoded filter. Raises TableError INVALID_FILTER."""
        if wanted is None:
            return None
        schema = self.definition.schema
        return encode_filter(filter_of_sql(wanted, schema) if isinstance(wanted, str) else wanted, schema)

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
            condition = self._condition(filter)
            found, left = list[pa.Table](), count
            parts = await self._parts.all()
            for part in parts if self.definition.is_primary_key_table else reversed(parts):
                more = await self._parts.ask_part(part, partial(_limit, left, columns, condition))
                if more is not None:
                    found.append(more)
                    left -= more.num_rows
                if left <= 0:
                    break
            if len(found) == 1:
                return found[0]
            return pa.concat_tables([self._reader.answer_schema(columns).empty_table(), *found])

        return await self._with_fresh_schema(look)

    async def count(self, filter: FilterLike = None, *, as_of: AnyMoment | None = None) -> int:
        """Return the number of rows now (that match), without reading them. With `as_of` one column is read."""
        if as_of is not None:
            schema = self.definition.schema
            column = schema.primary_key[0] if schema.primary_key else schema.names[0]
            return int((await self.to_arrow([column], filter, as_of=as_of)).num_rows)

        async def count() -> int:
            condition = self._condition(filter)
            return sum((await self._parts.ask_all(lambda part: part.reader.count(condition))).values())

        return await self._with_fresh_schema(count)

    async def extremes(self, columns: Sequence[str], filter: FilterLike = None) -> Extremes:
        """Return the least and greatest values of columns, and the counts of rows and values now (that match).

        `(await table.extremes(["at"])).maximum("at")`. For a log table the server uses the statistics of batches where
        they are exact, and reads only these columns of other batches. For a primary-key table it reads the rows.
        """

        async def look() -> Extremes:
            condition = self._condition(filter)
            names = list(dict.fromkeys(several("columns", columns)))
            schema = self._reader.answer_schema(names)
            check_ordered(self.definition.schema.select(names))
            found = await self._parts.ask_all(lambda part: part.reader.extremes(names, condition))
            return Extremes.of_all(list(found.values()), schema)

        return await self._with_fresh_schema(look)

    async def offsets(
        self, at: str | int, buckets: Sequence[int] | None = None, *, partition: str | None = None
    ) -> dict[int, int]:
        """Return offsets by bucket: "earliest", "latest" (the end), or the first at or after a time in milliseconds.

        A partitioned table needs the `partition` (else TableError PARTITION_NEEDED).
        """
        part = await self._parts.one(partition, "offsets")
        return await part.reader.offsets(at, part.buckets if buckets is None else buckets)

    async def offsets_as_of(self, moment: Moment, *, partition: str | None = None) -> dict[int, int]:
        """Return the log's end offsets at a time (milliseconds or datetime), including writes at that time.

        They are what `as_of` reads. TableError OUTSIDE_RETENTION for a time before the log's beginning.
        """
        part = await self._parts.one(partition, "offsets_as_of")
        return await part.reader.offsets_as_of(moment, part.buckets)

    async def partition_offsets(self, at: str | int) -> dict[str, dict[int, int]]:
        """Return `offsets` of every partition, or `{"": offsets}` for a table without partitions."""
        return await self._parts.ask_all(lambda part: part.reader.offsets(at, part.buckets))

    async def partition_offsets_as_of(self, moment: Moment) -> dict[str, dict[int, int]]:
        """Return `offsets_as_of` of every partition, or `{"": offsets}` for a table without partitions."""
        return await self._parts.ask_all(lambda part: part.reader.offsets_as_of(moment, part.buckets))

    # -- scans

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

        - `start`: "full" (the state, then every change after it; a log table from its beginning), "earliest", "latest",
          a time in milliseconds, or offsets by bucket.
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
            self._cluster,
            self._parts,
            columns=columns,
            start=start,
            until=until,
            buckets=buckets,
            poll_timeout=poll_timeout,
            as_of=as_of,
            condition=self._condition(filter),
            row_filter=row_filter,
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
        self._must_be(log_table=False, doing="snapshot")
        part = await self._parts.one(partition, "a snapshot")
        ids, schema, order = self._reader.project(columns)
        channel = f"snapshot-of-one-{next(_snapshot_numbers)}"
        pieces = snapshot_pieces(
            self._cluster, part.definition, bucket, ids, schema, channel,
            as_of=as_of, condition=self._condition(filter),
        )  # fmt: skip
        try:
            async with aclosing(pieces):
                async for rows, offset in pieces:
                    yield rows if order is None else rows.select(order), offset
        finally:
            self._cluster.release(channel)

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
        ids, schema, order = self._reader.project(columns)
        condition = self._condition(filter)

        async def read(part: Part, moment: Moment | None) -> pa.Table:
            offsets = None if moment is None else await part.reader.offsets_as_of(moment, part.buckets)
            if self.definition.is_primary_key_table:
                batches = await part.states(ids, schema, offsets, condition=condition)
                return reorder(pa.Table.from_batches(batches, schema=schema), order)
            until: Until = "latest" if offsets is None else offsets
            alone = Parts(self._cluster, part.definition, whole=part)
            scan = AsyncScan(
                self._cluster, alone, columns=columns, start="earliest", until=until, condition=condition
            )
            async with scan:
                batches = [piece.batch async for piece in scan]
            return pa.Table.from_batches(batches, schema=answer)

        answer = schema if order is None else pa.schema([schema.field(name) for name in order])
        found = await self._read_parts(as_of, read)
        return found[0] if len(found) == 1 else pa.concat_tables([answer.empty_table(), *found])

    async def batches(
        self, columns: Sequence[str] | None = None, filter: FilterLike = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Iterate over the rows of `to_arrow`, a few MiB at a time, so that a table may be larger than memory.

        The table is read bucket by bucket, each as it is when its first row comes. Close the iteration (`aclosing`) if
        it ends early. TableError SCAN_EXPIRED if an interrupted read cannot continue because of retention.
        """
        ids, schema, order = self._reader.project(columns)
        condition = self._condition(filter)
        if not self.definition.is_primary_key_table:
            scan = AsyncScan(
                self._cluster,
                self._parts,
                columns=columns,
                start="earliest",
                until="latest",
                condition=condition,
            )
            async with scan:
                async for piece in scan:
                    yield piece.batch
            return
        channel = f"batches-{next(_snapshot_numbers)}"
        try:
            for part in await self._parts.all():
                for bucket in part.buckets:
                    pieces = snapshot_pieces(
                        self._cluster, part.definition, bucket, ids, schema, channel, condition=condition
                    )
                    async with aclosing(pieces):
                        async for rows, _ in pieces:
                            yield rows if order is None else rows.select(order)
        finally:
            self._cluster.release(channel)

    async def _read_parts(
        self, as_of: AnyMoment | None, read: Callable[[Part, Moment | None], Awaitable[pa.Table]]
    ) -> list[pa.Table]:
        """Read every part now or at a time, or the parts that offsets are given for, in the order of names."""
        if not isinstance(as_of, Mapping):
            return list((await self._parts.ask_all(lambda part: read(part, as_of))).values())
        offsets = self._parts.by_part(as_of, "reading at offsets")
        return [
            await read(await self._parts.one(name or None, "reading at offsets"), offsets[name])
            for name in sorted(offsets)
        ]

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
        self._must_be(log_table=False, doing="range scan")
        if limit is not None and limit < 0:
            raise ValueError(f"the limit is {limit}: it must be 0 or more")
        primary_key = self.definition.schema.primary_key
        is_sorted = not self.definition.is_partitioned and self.definition.bucket_count == 1
        columns = None if columns is None else several("columns", columns)
        wanted = columns
        if columns is not None and not is_sorted:
            wanted = list(dict.fromkeys([*columns, *primary_key]))
        ids, schema, _ = self._reader.project(wanted)
        asked: dict[str, Any] = {
            "limit": limit if filter is None else None,
            "condition": self._condition(filter),
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

    async def _bound(self, bound: Any, *, inclusive: bool) -> KeyBound | None:
        if bound is None:
            return None
        key_columns = self.definition.schema.key_columns
        given = bound if isinstance(bound, Mapping) else {key_columns[0].name: bound}
        columns = key_columns[: len(given)]
        if {column.name for column in columns} != set(given):
            raise DataError(
                f"{self.path}: a bound must have the first columns of the primary key "
                f"({', '.join(column.name for column in key_columns)}), not {', '.join(given)}"
            )
        rows = await self._keys([given], columns)
        (row,) = rows.combine_chunks().to_batches()
        return KeyBound(bytes(encode_ipc(row)), len(columns), inclusive)

    # -- committed positions

    async def commit(self, group: str, positions: Mapping[int, int] | PartitionOffsets) -> None:
        """Commit positions (`scan.positions`, `scan.partition_positions`) for a consumer group, as in Kafka."""
        for name, offsets in self._parts.by_part(positions, "commit").items():
            await commit_offsets(self._cluster, group, self._topic_of(name), offsets)

    async def partition_committed(self, group: str) -> dict[str, dict[int, int]]:
        """Return `committed` of every partition, or `{"": positions}` for a table without partitions."""
        topics = {part.topic: part.name for part in await self._parts.all()}
        found: dict[str, dict[int, int]] = {}
        for (topic, bucket), offset in sorted((await fetch_offsets(self._cluster, group)).items()):
            if topic in topics:
                found.setdefault(topics[topic], {})[bucket] = offset
        return found

    async def committed(self, group: str, *, partition: str | None = None) -> dict[int, int]:
        """Return the positions committed by this group (of one partition), without buckets that have none."""
        part = await self._parts.one(partition, "committed positions")
        return (await self.partition_committed(group)).get(part.name, {})

    def _topic_of(self, partition: str) -> str:
        return (self.path.of_partition(partition) if partition else self.path).topic


async def _limit(count: int, columns: Sequence[str] | None, condition: bytes | None, part: Part) -> pa.Table:
    return await part.reader.limit(count, columns, condition)
