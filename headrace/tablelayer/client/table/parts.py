"""The parts of a table: its partitions, or the single part of a table without partitions.

Every partition is a table of its own on the server. The partitions are listed before each read of all of them, and when
an unknown name is used. A write creates the partitions that it needs (`ClientConfig.dynamic_create_partition`). If a
partition is dropped during a write, the rows go into a new one of that name. A partition that is dropped while it is
read gives no more rows. The single part of other tables has the name `""` and ends with the table (TABLE_NOT_FOUND).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from time import monotonic
from typing import Any, Final, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client.admin.partitions import create_partition, list_partitions
from headrace.tablelayer.client.errors import ConnectionFailed, DataError, OutcomeUnknown, RequestTimeout
from headrace.tablelayer.client.read.reader import Reader
from headrace.tablelayer.client.read.state import snapshot_pieces
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import retrying, together
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.client.write.lane import WHOLE_ROWS, WriteMode
from headrace.tablelayer.client.write.pieces import check_rows_fit
from headrace.tablelayer.client.write.split import split_by_partition
from headrace.tablelayer.client.write.writer import Writer, WriteResult
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partition_keys import value_problem, values_of
from headrace.tablelayer.model.table.partitions import Partition, check_partitioned, matching

T = TypeVar("T")

WHOLE: Final = ""
"""The name of the one part of a table without partitions."""

DELETE: Final = int(ChangeType.DELETE)
_ATTEMPTS = 3
_AT_ONCE = 8
"""Partitions that are asked at the same time."""
_SNAPSHOT_ATTEMPTS = 3
_SNAPSHOTS_AT_ONCE = 4

Split = list[tuple[str, pa.Table, np.ndarray | None]]
"""Rows by part: (name, rows, their positions in the given rows; None if they are all rows in order)."""


class Part:
    """One partition, or a table without partitions, with its reader and its writer."""

    def __init__(self, cluster: Cluster, definition: StoredTable, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self.definition = definition
        self.reader = Reader(cluster, definition)
        self.writer = Writer(cluster, definition)
        self._grew_at = monotonic()

    @property
    def table_id(self) -> UUID:
        return self.definition.table_id

    @property
    def topic(self) -> str:
        return self.definition.path.topic

    @property
    def buckets(self) -> range:
        return range(self.definition.bucket_count)

    def adopt(self, definition: StoredTable) -> None:
        """Use this definition of the same part from now on. The number of buckets never becomes smaller."""
        self.definition = definition.with_buckets(max(definition.bucket_count, self.definition.bucket_count))
        self.reader = Reader(self._cluster, self.definition)
        self.writer.grow(self.definition.bucket_count)

    async def grow(self) -> None:
        """Learn the number of buckets, if it may have grown. Raises KafkaError, ConnectionFailed, TableError."""
        if not self.definition.may_grow:
            return
        self._grew_at = monotonic()
        found = await retrying(
            TableRoutes(self._cluster, self.definition).bucket_count,
            config=self._cluster.config,
            repeatable=True,
        )
        if found > self.definition.bucket_count:
            self.adopt(self.definition.with_buckets(found))

    async def grow_to_write(self) -> None:
        """Learn the number of buckets every `partition_discovery_ms`; the known ones do until it can be learned."""
        if monotonic() - self._grew_at >= self._cluster.config.partition_discovery_ms / 1000:
            with suppress(KafkaError, ConnectionFailed, RequestTimeout):
                await self.grow()

    async def states(
        self, ids: list[int] | None, schema: pa.Schema, offsets: Mapping[int, int] | None, **asked: Any
    ) -> list[pa.RecordBatch]:
        """Return the rows of all buckets of a primary-key table, now or at these offsets, in the order of the buckets.

        A state that expires while it is read is read again.
        """
        gate = asyncio.Semaphore(_SNAPSHOTS_AT_ONCE)

        async def one(bucket: int) -> list[pa.RecordBatch]:
            as_of = None if offsets is None else offsets[bucket]
            async with gate:
                for attempt in range(_SNAPSHOT_ATTEMPTS):
                    try:
                        pieces = snapshot_pieces(
                            self._cluster, self.definition, bucket, ids, schema, f"snapshot-{bucket % 4}",
                            as_of=as_of, **asked,
                        )  # fmt: skip
                        async with aclosing(pieces):
                            return [rows async for rows, _ in pieces]
                    except TableError as error:
                        if error.code is not TableErrorCode.SCAN_EXPIRED or attempt == _SNAPSHOT_ATTEMPTS - 1:
                            raise
                raise AssertionError("unreachable")

        found = await together(map(one, self.buckets))
        return [batch for batches in found for batch in batches]

    async def close(self) -> None:
        await self.writer.close()


class Parts:
    """The parts, as the module describes. Reads see the partitions with the texts of `only` in their columns."""

    def __init__(
        self,
        cluster: Cluster,
        definition: StoredTable,
        only: Mapping[str, str] | None = None,
        whole: Part | None = None,
    ) -> None:
        self._cluster = cluster
        self.definition = definition
        self.only = dict(only or {})
        self._whole = None if definition.is_partitioned else whole or Part(cluster, definition, WHOLE)
        self._known: dict[str, Part] = {}
        self._listing = asyncio.Lock()

    # -- finding parts

    async def partitions(self) -> list[Partition]:
        """Return the partitions that reads see, by name. TableError NOT_PARTITIONED, TABLE_NOT_FOUND."""
        check_partitioned(self.definition)
        found = {each.name: each for each in await self._list()}
        return [found[name] for name in matching(self.definition, found, self.only)]

    async def all(self) -> list[Part]:
        """Return the parts that reads see, by name."""
        if self._whole is not None:
            return [await self._grown(self._whole)]
        return [self.opened(each) for each in await self.partitions()]

    async def named(self, name: str) -> Part:
        """Return a partition's part. TableError NOT_PARTITIONED, PARTITION_NOT_FOUND."""
        check_partitioned(self.definition)
        part = await self._find(name)
        if part is None:
            raise self._missing(name)
        return part

    async def one(self, partition: str | None, doing: str) -> Part:
        """Return the named partition's part, or the single part of a table without partitions.

        TableError PARTITION_NEEDED if no partition is named, NOT_PARTITIONED, PARTITION_NOT_FOUND.
        """
        if partition is not None:
            return await self.named(partition)
        if self._whole is None:
            raise self.needs_partition(doing, "name one with `partition`")
        return await self._grown(self._whole)

    async def _grown(self, whole: Part) -> Part:
        """Return the single part, with the buckets that it has now."""
        await whole.grow()
        self.definition = self.definition.with_buckets(whole.definition.bucket_count)
        return whole

    def opened(self, partition: Partition) -> Part:
        """Return the part of a partition that exists."""
        part = self._known.get(partition.name)
        if part is None or part.table_id != partition.table_id:
            definition = self.definition.of_partition(
                partition.name, partition.table_id, partition.bucket_count
            )
            part = self._known[partition.name] = Part(self._cluster, definition, partition.name)
        return part

    def adopt(self, definition: StoredTable) -> None:
        """Use this definition of the same table from now on."""
        self.definition = definition
        if self._whole is not None:
            self._whole.adopt(definition)
        for name, part in self._known.items():
            part.adopt(self._of_partition(definition, name, part))

    async def close(self) -> None:
        for part in [*self._known.values(), *([self._whole] if self._whole is not None else [])]:
            await part.close()

    def needs_partition(self, what: str, instead: str) -> TableError:
        return TableError(
            TableErrorCode.PARTITION_NEEDED,
            f"{self.definition.path} is partitioned, and {what} is by bucket: {instead}",
        )

    def by_part(self, places: Mapping[Any, Any], what: str) -> dict[str, Mapping[int, int]]:
        """Return offsets by partition and bucket; those of a table without partitions are given by bucket.

        TableError PARTITION_NEEDED for offsets by bucket of a partitioned table, ValueError for other mistakes.
        """
        if self._whole is not None and not any(isinstance(each, Mapping) for each in places.values()):
            places = {WHOLE: places}
        found: dict[str, Mapping[int, int]] = {}
        for name, offsets in places.items():
            if not isinstance(name, str) or not isinstance(offsets, Mapping):
                raise self.needs_partition(what, "give offsets by partition and bucket, as {'2024': {0: 17}}")
            if (self._whole is not None) is not (name == WHOLE):
                raise ValueError(
                    f"{self.definition.path} has no partition {name!r}: its offsets are by bucket"
                )
            for bucket, offset in offsets.items():
                if not isinstance(bucket, int) or not isinstance(offset, int):
                    raise ValueError(
                        f"{bucket!r}: {offset!r} is not a bucket with an offset: give for example {{0: 17}}"
                    )
            found[name] = offsets
        return found

    async def _list(self) -> list[Partition]:
        async with self._listing:
            found = await list_partitions(self._cluster, self.definition)
            by_name = {each.name: each for each in found}
            for name, part in list(self._known.items()):
                now = by_name.get(name)
                if now is None or now.table_id != part.table_id:
                    await self.forget(part)
            return found

    async def forget(self, part: Part) -> None:
        """Close the part of a partition that no longer exists."""
        if self._known.get(part.name) is part:
            del self._known[part.name]
            await part.close()

    async def _find(self, name: str) -> Part | None:
        part = self._whole if name == WHOLE else self._known.get(name)
        if part is None:
            for each in await self._list():
                if each.name == name:
                    return self.opened(each)
        return part

    async def _find_or_make(self, name: str) -> Part:
        part = await self._find(name)
        if part is not None:
            return part
        if not self._cluster.config.dynamic_create_partition:
            raise self._missing(name)
        return self.opened(await create_partition(self._cluster, self.definition, name, if_not_exists=True))

    def _missing(self, name: str) -> TableError:
        return TableError(
            TableErrorCode.PARTITION_NOT_FOUND,
            f"table {self.definition.path} has no partition {name}; add it with ALTER TABLE ... ADD PARTITION",
        )

    @staticmethod
    def _of_partition(definition: StoredTable, name: str, part: Part) -> StoredTable:
        known = part.definition
        if name == WHOLE:
            return definition.with_buckets(known.bucket_count)
        return definition.of_partition(name, known.table_id, known.bucket_count)

    # -- rows

    async def split(self, rows: pa.Table) -> Split:
        """Return rows, or keys, by part. DataError for a row without a partition."""
        if self._whole is not None:
            return [(WHOLE, rows, None)]
        try:
            return list(await asyncio.to_thread(split_by_partition, self.definition, rows))
        except RowError as error:
            raise DataError(
                f"{self.definition.path}: {error.message}", column=error.column, row=error.index
            ) from None

    async def _split_to_write(self, rows: pa.Table) -> Split:
        """Split rows. DataError also for a row whose values cannot name a partition."""
        parts = await self.split(rows)
        keys = self.definition.partition_keys
        for name, _, positions in parts:
            if positions is None:
                continue
            for column, value in zip(keys, values_of(name), strict=False):
                problem = value_problem(value)
                if problem is not None or name.count(".") >= len(keys):
                    row = int(positions[0])
                    problem = problem or f"{name!r} contains a dot"
                    text = f"{self.definition.path}: row {row}, column '{column}': {problem}"
                    raise DataError(text, column=column, row=row)
        return parts

    async def write(
        self,
        rows: pa.Table,
        definition: StoredTable,
        change_type: int | None = None,
        mode: WriteMode = WHOLE_ROWS,
    ) -> WriteResult:
        """Write rows that conform to `definition`, this table's in any of its schemas.

        Raises DataError for a row that is too large.
        """
        check_rows_fit(rows, str(definition.path))
        if self._whole is not None:
            await self._whole.grow_to_write()
            return await self._whole.writer.write(
                rows, definition=definition, change_type=change_type, mode=mode
            )
        parts = await self._split_to_write(rows)
        results = await asyncio.gather(
            *(self._write_to(name, part, definition, change_type, mode) for name, part, _ in parts),
            return_exceptions=True,
        )
        failure = next((each for each in results if isinstance(each, BaseException)), None)
        if failure is not None:
            done = sum(each.row_count for each in results if isinstance(each, WriteResult))
            failure.add_note(
                f"{done} of {rows.num_rows} rows were written to other partitions of {definition.path}"
            )
            raise failure
        ends = {
            name: result.end_offsets
            for (name, _, _), result in zip(parts, results, strict=True)
            if isinstance(result, WriteResult) and result.end_offsets
        }
        return WriteResult(rows.num_rows, partition_end_offsets=ends)

    async def _write_to(
        self,
        name: str,
        rows: pa.Table,
        definition: StoredTable,
        change_type: int | None,
        mode: WriteMode,
    ) -> WriteResult:
        for attempt in range(_ATTEMPTS):
            made = change_type != DELETE and not mode.update
            part = await (self._find_or_make(name) if made else self._find(name))
            if part is None:
                return WriteResult(rows.num_rows)  # nothing to delete or to update
            theirs = self._of_partition(definition, name, part)
            try:
                return await part.writer.write(rows, definition=theirs, change_type=change_type, mode=mode)
            except (TableError, ConnectionFailed, OutcomeUnknown) as error:
                # A scan or another write may have found out first that the partition was dropped and created
                # again, and closed this part. Rows that were written to the old partition are gone with it.
                is_gone = isinstance(error, TableError) and error.code is TableErrorCode.TABLE_NOT_FOUND
                is_forgotten = self._known.get(name) is not part
                if not (is_gone or is_forgotten) or attempt == _ATTEMPTS - 1:
                    raise
                await self.forget(part)
                await self._list()  # TABLE_NOT_FOUND if the table itself was dropped
        raise AssertionError("unreachable")

    async def to_stage(
        self,
        definition: StoredTable,
        rows: pa.Table,
        change_type: int | None,
        *,
        only_existing: bool = False,
    ) -> list[tuple[str, StoredTable, pa.Table]]:
        """Return rows by part: (name, the part's definition, rows).

        Missing partitions are created, except for deletes and for changes of existing rows only.
        """
        made = change_type != DELETE and not only_existing
        found = []
        for name, theirs, _ in await self._split_to_write(rows):
            part = await (self._find_or_make(name) if made else self._find(name))
            if part is not None:
                await part.grow_to_write()
                found.append((name, self._of_partition(definition, name, part), theirs))
        return found

    # -- reads

    async def ask(
        self, name: str, question: Callable[[Part], Awaitable[T]], *, making: bool = False
    ) -> T | None:
        """Ask a part. None if it does not exist or reads do not see it. With `making`, create it if needed."""
        part = await (self._find_or_make(name) if making else self._find(name))
        if part is None or (part is not self._whole and not matching(self.definition, [name], self.only)):
            return None
        return await self.ask_part(part, question)

    async def ask_part(self, part: Part, question: Callable[[Part], Awaitable[T]]) -> T | None:
        """Ask a part; None if it is dropped meanwhile."""
        try:
            return await question(part)
        except TableError as error:
            if part is self._whole or error.code is not TableErrorCode.TABLE_NOT_FOUND:
                raise
            await self.forget(part)
            await self._list()  # TABLE_NOT_FOUND if the table itself was dropped
            return None

    async def ask_all(self, question: Callable[[Part], Awaitable[T]]) -> dict[str, T]:
        """Ask every part and return the answers by name, sorted, without parts that are dropped meanwhile."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(part: Part) -> T | None:
            async with gate:
                return await self.ask_part(part, question)

        parts = await self.all()
        answers = [await one(parts[0])] if len(parts) == 1 else await together([one(each) for each in parts])
        return {part.name: said for part, said in zip(parts, answers, strict=True) if said is not None}
