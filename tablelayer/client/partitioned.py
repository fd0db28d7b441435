"""A partitioned table as a whole: rows go to their partitions, questions to all that may have an answer.

Every partition is a table of its own on the server; here they are one. Which partitions there are is asked when a name
is met that is not known, and before everything that reads all of them. A write makes the partitions that it needs
(`ClientConfig.dynamic_create_partition`); rows of a partition that is dropped meanwhile go into a new one of that name.
A partition that is dropped while it is read gives nothing (more).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa

from tablelayer.client.cluster import Cluster
from tablelayer.client.errors import ConnectionFailed, DataError, OutcomeUnknown
from tablelayer.client.lane import WHOLE_ROWS, WriteMode
from tablelayer.client.partitioned_scan import AsyncPartitionedScan
from tablelayer.client.partitions import create_partition, list_partitions
from tablelayer.client.positions import commit_positions, fetch_positions
from tablelayer.client.reader import AnyMoment, Extremes, LookupResult, Moment
from tablelayer.client.retry import together
from tablelayer.client.scan import AsyncScan, PartitionPositions, Start, Until
from tablelayer.client.split import split_by_partition
from tablelayer.client.staging import AsyncStagedWriter
from tablelayer.client.table import DELETE, AsyncTable
from tablelayer.client.writer import WriteResult
from tablelayer.model.errors import RowError, TableError, TableErrorCode
from tablelayer.model.extremes import check_ordered
from tablelayer.model.filters import FilterLike
from tablelayer.model.partitions import Partition, matching, spec_texts, value_problem, values_of
from tablelayer.model.table import TableDefinition

T = TypeVar("T")
_ATTEMPTS = 3
_AT_ONCE = 8
"""Partitions that are asked at the same time."""


class AsyncPartitionedTable(AsyncTable):
    """See the module. Offsets and positions are by partition here: `partition_offsets`, `partition_positions`."""

    def __init__(
        self, cluster: Cluster, definition: TableDefinition, only: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(cluster, definition)
        self._only = dict(only or {})
        self._children: dict[str, AsyncTable] = {}
        self._listing = asyncio.Lock()

    # -- partitions
    # -------------------------------------------------------------------------------------------

    async def partitions(self) -> list[Partition]:
        found = {each.name: each for each in await self._list()}
        return [found[name] for name in matching(self.definition, found, self._only)]

    async def partition(self, name: str) -> AsyncTable:
        child = await self._child(name)
        if child is None:
            raise _no_partition(self.definition, name)
        return child

    def only(self, spec: Mapping[str, Any]) -> AsyncPartitionedTable:
        texts = {**self._only, **spec_texts(self.definition, spec)}
        return AsyncPartitionedTable(self._cluster, self.definition, texts)

    async def _list(self) -> list[Partition]:
        async with self._listing:
            found = await list_partitions(self._cluster, self.definition)
            by_name = {each.name: each for each in found}
            for name, child in list(self._children.items()):
                now = by_name.get(name)
                if now is None or now.table_id != child.definition.table_id:
                    await self._forget(child)
            return found

    def _open(self, partition: Partition) -> AsyncTable:
        child = self._children.get(partition.name)
        if child is None or child.definition.table_id != partition.table_id:
            definition = self.definition.of_partition(
                partition.name, partition.table_id, partition.bucket_count
            )
            child = self._children[partition.name] = AsyncTable(self._cluster, definition)
        return child

    async def _forget(self, child: AsyncTable) -> None:
        name = child.path.partition
        if name is not None and self._children.get(name) is child:
            del self._children[name]
            await child.close()

    async def _child(self, name: str) -> AsyncTable | None:
        child = self._children.get(name)
        if child is None:
            for each in await self._list():
                if each.name == name:
                    return self._open(each)
        return child

    async def _child_to_write(self, name: str) -> AsyncTable:
        child = await self._child(name)
        if child is not None:
            return child
        if not self._cluster.config.dynamic_create_partition:
            raise _no_partition(self.definition, name)
        return self._open(await create_partition(self._cluster, self.definition, name, if_not_exists=True))

    async def refresh(self) -> TableDefinition:
        definition = await super().refresh()
        for name, child in self._children.items():
            known = child.definition
            child.adopt(definition.of_partition(name, known.table_id, known.bucket_count))
        return definition

    async def close(self) -> None:
        await super().close()
        for child in list(self._children.values()):
            await child.close()

    # -- writing
    # ----------------------------------------------------------------------------------------------

    async def _write(
        self,
        rows: pa.Table,
        definition: TableDefinition,
        change_type: int | None = None,
        mode: WriteMode = WHOLE_ROWS,
    ) -> WriteResult:
        parts = await self._parts(definition, rows)

        async def write(name: str, part: pa.Table) -> WriteResult:
            for attempt in range(_ATTEMPTS):
                child = await (self._child(name) if change_type == DELETE else self._child_to_write(name))
                if child is None:
                    return WriteResult(part.num_rows)  # nothing to delete
                known = child.definition
                target = definition.of_partition(name, known.table_id, known.bucket_count)
                try:
                    return await child._write(part, target, change_type, mode)
                except (TableError, ConnectionFailed, OutcomeUnknown) as error:
                    # A scan or another write may have found out first that the partition is another one now, and
                    # closed the child under this one. What was written to the old one is gone with it.
                    is_gone = isinstance(error, TableError) and error.code is TableErrorCode.TABLE_NOT_FOUND
                    is_forgotten = self._children.get(name) is not child
                    if not (is_gone or is_forgotten) or attempt == _ATTEMPTS - 1:
                        raise
                    await self._forget(child)
                    await self._list()  # TABLE_NOT_FOUND if it is the table that is gone
            raise AssertionError("unreachable")

        results = await asyncio.gather(
            *(write(name, part) for name, part, _ in parts), return_exceptions=True
        )
        failure = next((each for each in results if isinstance(each, BaseException)), None)
        if failure is not None:
            done = sum(each.row_count for each in results if isinstance(each, WriteResult))
            failure.add_note(
                f"{done} of {rows.num_rows} rows were written to other partitions of {self.path}"
            )
            raise failure
        ends = {
            name: result.end_offsets
            for (name, _, _), result in zip(parts, results, strict=True)
            if isinstance(result, WriteResult) and result.end_offsets
        }
        return WriteResult(rows.num_rows, partition_end_offsets=ends)

    async def _parts(
        self, definition: TableDefinition, rows: pa.Table
    ) -> list[tuple[str, pa.Table, np.ndarray]]:
        """As `split_by_partition`; DataError for a row whose values cannot name a partition."""
        try:
            parts = await asyncio.to_thread(split_by_partition, definition, rows)
        except RowError as error:
            raise DataError(f"{self.path}: {error.message}", column=error.column, row=error.index) from None
        for name, _, positions in parts:
            for column, value in zip(definition.partition_keys, values_of(name), strict=False):
                problem = value_problem(value)
                if problem is not None or name.count(".") >= len(definition.partition_keys):
                    row = int(positions[0])
                    raise DataError(
                        f"{self.path}: row {row}, column '{column}': {problem or f'{name!r} has a dot in it'}",
                        column=column,
                        row=row,
                    )
        return parts

    async def parts_to_stage(
        self, definition: TableDefinition, rows: pa.Table, change_type: int | None
    ) -> list[tuple[TableDefinition, pa.Table]]:
        """Rows by partition, each with its partition's definition; partitions that are missing are made, but not to
        delete from.
        """
        found = []
        for name, part, _ in await self._parts(definition, rows):
            child = await (self._child(name) if change_type == DELETE else self._child_to_write(name))
            if child is None:
                continue
            known = child.definition
            found.append((definition.of_partition(name, known.table_id, known.bucket_count), part))
        return found

    def staged_writer(
        self,
        writer: str,
        batch_id: int,
        attempt: str,
        target_columns: tuple[int, ...] | None = None,
        *,
        definition: TableDefinition | None = None,
    ) -> AsyncStagedWriter:
        return _PartitionedStagedWriter(
            self,
            definition or self.definition,
            writer=writer,
            batch_id=batch_id,
            attempt=attempt,
            target_columns=target_columns,
        )

    # -- by key
    # -----------------------------------------------------------------------------------------------

    async def _lookup(
        self, keys: pa.Table, columns: Sequence[str] | None, insert_if_absent: bool
    ) -> LookupResult:
        schema = self._reader.answer_schema(columns)
        if not keys.num_rows:
            return LookupResult(np.zeros(0, bool), schema.empty_table())
        parts = await asyncio.to_thread(split_by_partition, self.definition, keys)

        async def look(name: str, part: pa.Table) -> LookupResult:
            child = await (self._child_to_write(name) if insert_if_absent else self._child(name))
            if child is not None and matching(self.definition, [name], self._only):
                try:
                    return await child._lookup(part, columns, insert_if_absent)
                except TableError as error:
                    if error.code is not TableErrorCode.TABLE_NOT_FOUND:
                        raise
                    await self._forget(child)
                    await self._list()
            nothing = [pa.nulls(part.num_rows, field.type) for field in schema]
            return LookupResult(np.zeros(part.num_rows, bool), pa.table(nothing, schema=schema))

        results = await together(look(name, part) for name, part, _ in parts)
        if len(results) == 1:
            return results[0]
        back = np.empty(keys.num_rows, np.int64)
        back[np.concatenate([positions for _, _, positions in parts])] = np.arange(keys.num_rows)
        found = np.concatenate([result.found for result in results])
        rows = pa.concat_tables([result.rows for result in results])
        return LookupResult(found[back], rows.take(pa.array(back)))

    async def _prefix_lookup(
        self, prefixes: pa.Table, columns: Sequence[str] | None
    ) -> tuple[np.ndarray, pa.Table]:
        schema = self._reader.answer_schema(columns)
        parts = await asyncio.to_thread(split_by_partition, self.definition, prefixes)

        async def look(name: str, part: pa.Table) -> tuple[np.ndarray, pa.Table]:
            child = await self._child(name)
            if child is not None and matching(self.definition, [name], self._only):
                try:
                    wanted = part.select(list(child.definition.key_prefix))
                    return await child._prefix_lookup(wanted, columns)
                except TableError as error:
                    if error.code is not TableErrorCode.TABLE_NOT_FOUND:
                        raise
                    await self._forget(child)
                    await self._list()
            return np.zeros(0, np.int64), schema.empty_table()

        results = await together(look(name, part) for name, part, _ in parts)
        owners = [np.zeros(0, np.int64)]
        owners += [positions[owner] for (_, _, positions), (owner, _) in zip(parts, results, strict=True)]
        owner = np.concatenate(owners)
        rows = pa.concat_tables([schema.empty_table(), *(found for _, found in results)])
        order = np.argsort(owner, kind="stable")
        return owner[order], rows.take(pa.array(order))

    # -- numbers and samples
    # ----------------------------------------------------------------------------------

    async def _of_each(self, work: Callable[[AsyncTable], Awaitable[T]]) -> dict[str, T]:
        """What every partition says, by name, without those that are dropped meanwhile."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(partition: Partition) -> tuple[str, T] | None:
            async with gate:
                child = self._open(partition)
                try:
                    return partition.name, await work(child)
                except TableError as error:
                    if error.code is not TableErrorCode.TABLE_NOT_FOUND:
                        raise
                    await self._forget(child)
                    return None

        answers = await together([one(each) for each in await self.partitions()])
        if None in answers:
            await self._list()  # TABLE_NOT_FOUND if it is the table that is gone
        return dict(each for each in answers if each is not None)

    async def _at(
        self, as_of: AnyMoment | None, read: Callable[[AsyncTable, Moment | None], Awaitable[T]]
    ) -> dict[str, T]:
        """What every present partition says of a time (or of now), or those that have offsets of theirs."""
        if not isinstance(as_of, Mapping):
            return await self._of_each(lambda child: read(child, as_of))
        return {
            name: await read(await self.partition(name), offsets)
            for name, offsets in self._by_partition(as_of).items()
        }

    async def limit(
        self, count: int, columns: Sequence[str] | None = None, filter: FilterLike = None
    ) -> pa.Table:
        """At most `count` rows, quickly: of a PK table from the first partitions, of a log table from the last."""
        if count < 0:
            raise ValueError(f"a limit of {count} rows makes no sense")

        async def look() -> pa.Table:
            partitions = await self.partitions()
            if not self.definition.is_primary_key_table:
                partitions.reverse()
            found = [self._reader.answer_schema(columns).empty_table()]
            missing = count
            for partition in partitions:
                if missing <= 0:
                    break
                rows = await self._limit_of(partition, missing, columns, filter)
                found.append(rows)
                missing -= rows.num_rows
            return pa.concat_tables(found)

        return await self._with_fresh_schema(look)

    async def _limit_of(
        self, partition: Partition, count: int, columns: Sequence[str] | None, wanted: FilterLike
    ) -> pa.Table:
        child = self._open(partition)
        try:
            return await child.limit(count, columns, wanted)
        except TableError as error:
            if error.code is not TableErrorCode.TABLE_NOT_FOUND:
                raise
            await self._forget(child)
            return self._reader.answer_schema(columns).empty_table()

    async def count(self, filter: FilterLike = None, *, as_of: AnyMoment | None = None) -> int:
        """How many rows there are now (that match), or were, over all partitions."""
        if as_of is not None:
            return await super().count(filter, as_of=as_of)
        self._condition(filter)
        return sum((await self._of_each(lambda child: child.count(filter))).values())

    async def extremes(self, columns: Sequence[str], filter: FilterLike = None) -> Extremes:
        """As `AsyncTable.extremes`, over all partitions."""
        self._condition(filter)
        names = list(dict.fromkeys(columns))
        schema = self._reader.answer_schema(names)
        check_ordered(self.definition.schema.select(names))
        found = await self._of_each(lambda child: child.extremes(names, filter))
        return Extremes.of_all(list(found.values()), schema)

    async def partition_offsets(self, at: str | int) -> dict[str, dict[int, int]]:
        return await self._of_each(lambda child: child.offsets(at))

    async def partition_offsets_as_of(self, moment: Moment) -> dict[str, dict[int, int]]:
        return await self._of_each(lambda child: child.offsets_as_of(moment))

    async def offsets_as_of(self, moment: Moment) -> dict[int, int]:
        raise self._needs_partition("offsets_as_of", "partition_offsets_as_of")

    async def offsets(self, at: str | int, buckets: Sequence[int] | None = None) -> dict[int, int]:
        raise self._needs_partition("offsets", "partition_offsets")

    # -- scans
    # ------------------------------------------------------------------------------------------------

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
        """As `AsyncTable.scan`, over all partitions, new ones included.

        A partition that is added while the scan goes on is read from its beginning; one that is dropped ends. Offsets
        for `start` and `until` are by partition and bucket; partitions that they do not name are read from their
        beginning (a PK table's with their state), and not at all when `until` names others. Of each partition rows
        come in log order. `as_of`: a time, or offsets by partition and bucket; partitions that these do not name, or
        that came later, were empty then, and their rows come as changes.
        """
        if buckets is not None:
            raise self._needs_partition("scan of some buckets", "partition(name).scan")
        if isinstance(as_of, Mapping):
            as_of = self._by_partition(as_of)
        return AsyncPartitionedScan(
            self._cluster,
            self.definition,
            self.partitions,
            columns=columns,
            start=start,
            until=until,
            poll_timeout=poll_timeout,
            as_of=as_of,
            condition=self._condition(filter),
            row_filter=row_filter,
        )

    def _by_partition(self, moment: Mapping[Any, Any]) -> dict[str, Mapping[int, int]]:
        """The moment as offsets by partition and bucket. Raises TableError(PARTITION_NEEDED)."""
        found = {}
        for name, offsets in moment.items():
            if not isinstance(name, str) or not isinstance(offsets, Mapping):
                raise self._needs_partition(
                    "reading at offsets", "offsets by partition and bucket, or a time"
                )
            found[name] = offsets
        return found

    def snapshot(
        self,
        bucket: int,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: int | None = None,
    ) -> AsyncGenerator[tuple[pa.RecordBatch, int], None]:
        raise self._needs_partition("snapshot of a bucket", "partition(name).snapshot")

    async def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: AnyMoment | None = None,
    ) -> pa.Table:
        """The rows (that match) as they are now, or what the present partitions held at a time, one after the other; or
        what those had that offsets are given for.
        """
        self._condition(filter)
        parts = await self._at(as_of, lambda child, moment: child.to_arrow(columns, filter, as_of=moment))
        _, schema, order = self._reader.project(columns)
        if order is not None:
            schema = pa.schema([schema.field(name) for name in order])
        return pa.concat_tables([schema.empty_table(), *(parts[name] for name in sorted(parts))])

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
        """As `AsyncTable.range_scan`, over the present partitions, or those that `as_of` gives offsets for."""
        self._must_be(log_table=False, doing="range scan")
        primary_key = self.definition.schema.primary_key
        wanted = None if columns is None else list(dict.fromkeys([*columns, *primary_key]))

        def look(child: AsyncTable, moment: Moment | None) -> Awaitable[pa.Table]:
            return child.range_scan(
                lower, upper, wanted,
                include_lower=include_lower, include_upper=include_upper, limit=limit, as_of=moment,
                filter=filter,
            )  # fmt: skip

        parts = await self._at(as_of, look)
        _, schema, order = self._reader.project(wanted)
        empty = schema.empty_table() if order is None else schema.empty_table().select(order)
        rows = pa.concat_tables([empty, *parts.values()]).sort_by(
            [(name, "ascending") for name in primary_key]
        )
        rows = rows if limit is None else rows.slice(0, limit)
        return rows if columns is None else rows.select(list(columns))

    # -- committed positions
    # ----------------------------------------------------------------------------------

    async def commit(self, group: str, positions: Mapping[int, int] | PartitionPositions) -> None:
        for name, offsets in positions.items():
            if not isinstance(name, str) or not isinstance(offsets, Mapping):
                raise self._needs_partition("commit", "positions by partition (`scan.partition_positions`)")
            await commit_positions(self._cluster, group, self.path.of_partition(name).topic, offsets)

    async def partition_committed(self, group: str) -> dict[str, dict[int, int]]:
        topics = {self.path.of_partition(each.name).topic: each.name for each in await self.partitions()}
        found: dict[str, dict[int, int]] = {}
        for (topic, bucket), offset in sorted((await fetch_positions(self._cluster, group)).items()):
            if topic in topics:
                found.setdefault(topics[topic], {})[bucket] = offset
        return found

    async def committed(self, group: str) -> dict[int, int]:
        raise self._needs_partition("committed", "partition_committed")

    def _needs_partition(self, what: str, instead: str) -> TableError:
        return TableError(
            TableErrorCode.PARTITION_NEEDED,
            f"{self.path} is partitioned, and {what} is by bucket: use {instead}",
        )


class _PartitionedStagedWriter(AsyncStagedWriter):
    """Stages rows of a whole partitioned table."""

    def __init__(self, table: AsyncPartitionedTable, definition: TableDefinition, **named: Any) -> None:
        super().__init__(table._cluster, definition, **named)
        self._table = table

    async def _write(
        self, definition: TableDefinition, partition: UUID, rows: pa.Table, change_type: int | None
    ) -> None:
        for part, theirs in await self._table.parts_to_stage(definition, rows, change_type):
            assert part.table_id is not None
            await super()._write(part, part.table_id, theirs, change_type)


def _no_partition(definition: TableDefinition, name: str) -> TableError:
    return TableError(
        TableErrorCode.PARTITION_NOT_FOUND,
        f"table {definition.path} has no partition {name}; add it with ALTER TABLE ... ADD PARTITION",
    )
