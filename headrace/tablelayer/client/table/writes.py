"""Writes of a table: rows, partial rows, deletions and staged rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa

from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.read.answers import nullable_schema
from headrace.tablelayer.client.table.open_table import FEW_KEYS, OpenTable
from headrace.tablelayer.client.table.parts import DELETE
from headrace.tablelayer.client.table.staging import AsyncStagedWriter, Receipt, abort_staged, commit_staged
from headrace.tablelayer.client.write.conform import Data, conform
from headrace.tablelayer.client.write.lane import WriteMode
from headrace.tablelayer.client.write.writer import WriteResult
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.digest import digest_of

T = TypeVar("T")


_UPSERT = int(ChangeType.UPDATE_AFTER)


class Writes:
    """The writes of a table."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self._digest: tuple[StoredTable, int] | None = None

    async def append(self, data: Data, *, checked: bool = False) -> WriteResult:
        """Append rows to a log table.

        A missing column gets its default, or null. Returns when every row is acknowledged; then each row is in the log
        exactly once. `result.end_offsets` tells readers how far to read to see them. With `checked` rows are refused
        with SCHEMA_CHANGED if the table has another definition than this handle knows; partitions are not checked.
        """
        self._table.must_be(log_table=True, doing="append")
        rows, definition = await self._whole_rows(data, checked=checked)
        return await self._table.parts.write(rows, definition, mode=self._mode(definition, checked=checked))

    async def upsert(self, data: Data, *, overwrite: bool = False, checked: bool = False) -> WriteResult:
        """Insert rows, or replace the rows with the same primary key. The last of equal keys wins.

        Rows are whole: a missing column gets its default, or null. To change some columns only, use `partial`. A table
        with a merge engine merges instead of replacing. An auto-increment column is left out. `overwrite` replaces rows
        even with the aggregation engine, for example to undo writes. `checked` as with `append`.
        """
        self._table.must_be(log_table=False, doing="upsert")
        rows, definition = await self._whole_rows(data, checked=checked)
        mode = self._mode(definition, overwrite=overwrite, checked=checked)
        return await self._table.parts.write(rows, definition, _UPSERT, mode)

    async def delete(
        self,
        keys: Data,
        columns: Sequence[str] | None = None,
        *,
        overwrite: bool = False,
        checked: bool = False,
    ) -> WriteResult:
        """Delete the rows with these primary keys. Other columns are ignored; absent keys are not an error.

        With `columns` only those become null, and a row is deleted when only its key is left: the opposite of a partial
        update. The table's `table.delete.behavior` applies. With `overwrite` the aggregation engine always deletes.
        `checked` as with `append`; `result.logged_count` is then the number of rows in the changelog, which needs the
        right to read.
        """
        self._table.must_be(log_table=False, doing="delete")
        definition = self._table.definition
        schema = definition.schema
        cleared = several("columns", columns) if columns else []
        chosen, targets = (
            self._targets([*schema.primary_key, *cleared]) if cleared else (list(schema.columns), None)
        )
        key_rows = await self._table.key_rows(keys, schema.key_columns)
        count = key_rows.num_rows
        arrays = [
            key_rows.column(column.name)
            if column.name in schema.primary_key
            else pa.nulls(count, column.type.arrow())
            for column in chosen
        ]
        rows = pa.table(arrays, schema=nullable_schema(chosen))
        mode = self._mode(definition, targets, overwrite=overwrite, checked=checked, counted=True)
        return await self._table.parts.write(rows, definition, DELETE, mode)

    async def partial(
        self,
        data: Data,
        columns: Sequence[str],
        *,
        overwrite: bool = False,
        only_existing: bool = False,
        checked: bool = False,
    ) -> WriteResult:
        """Write only these columns, including the primary key. The others keep their values.

        A null in the data overwrites with null. A new key is inserted with defaults, or null, in the other columns, so
        these must be nullable or have a default. Writers of disjoint columns do not interfere. Tables with the merge
        engines first_row and versioned take whole rows only. `overwrite` as with `upsert`. With `only_existing`
        existing rows are set as `overwrite` does, and other keys are not written; the other columns may then be NOT
        NULL. `checked` as with `append`, and as with `delete` for existing rows only.
        """
        self._table.must_be(log_table=False, doing="partial update")

        async def prepare() -> tuple[pa.Table, StoredTable, tuple[int, ...] | None]:
            definition = self._table.definition
            chosen, targets = self._targets(several("columns", columns))
            return await self._conformed(data, chosen, fill_missing=False), definition, targets

        rows, definition, targets = await (prepare() if checked else self._table.with_fresh_schema(prepare))
        mode = self._mode(
            definition,
            targets,
            overwrite=overwrite,
            update=only_existing,
            checked=checked,
            counted=only_existing,
        )
        return await self._table.parts.write(rows, definition, _UPSERT, mode)

    async def write_rows(
        self,
        rows: pa.Table,
        *,
        definition: StoredTable,
        change_type: int | None = None,
        target_columns: tuple[int, ...] | None = None,
        only_existing: bool = False,
    ) -> WriteResult:
        """Write rows that conform to `definition` (`tablelayer.client.write.writer.Writer.write`)."""
        mode = WriteMode(target_columns, overwrite=only_existing, update=only_existing)
        return await self._table.parts.write(rows, definition, change_type, mode)

    def staged_writer(
        self,
        writer: str,
        batch_id: int,
        attempt: str,
        target_columns: tuple[int, ...] | None = None,
        *,
        definition: StoredTable | None = None,
        only_existing: bool = False,
    ) -> AsyncStagedWriter:
        """Return a writer whose rows become part of the table with `commit_staged` (`tablelayer.client.table.staging`).

        With `only_existing`, keys that do not exist at the commit are not written, as with `partial`.
        """
        return AsyncStagedWriter(
            self._table.cluster,
            self._table.parts,
            definition or self._table.definition,
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
            self._table.cluster,
            self._table.definition,
            writer=writer,
            batch_id=batch_id,
            receipts=receipts,
            single=single,
        )

    async def abort_staged(self, writer: str, batch_id: int, receipts: Sequence[Receipt]) -> None:
        """Drop the rows that these attempts have staged, unless they are committed."""
        await abort_staged(
            self._table.cluster, self._table.definition, writer=writer, batch_id=batch_id, receipts=receipts
        )

    def _mode(
        self,
        definition: StoredTable,
        targets: tuple[int, ...] | None = None,
        *,
        overwrite: bool = False,
        update: bool = False,
        checked: bool,
        counted: bool = False,
    ) -> WriteMode:
        if not checked or definition.is_partitioned:
            return WriteMode(targets, overwrite, update)
        if self._digest is None or self._digest[0] is not definition:
            self._digest = definition, digest_of(definition.to_json())
        return WriteMode(targets, overwrite, update, self._digest[1], counted)

    def _targets(self, names: Sequence[str]) -> tuple[list[Column], tuple[int, ...] | None]:
        """Return these columns in the table's order, and their ids for the request (None: whole rows)."""
        schema = self._table.definition.schema
        wanted = set(names)
        schema.select(list(names))
        missing = [name for name in schema.primary_key if name not in wanted]
        if missing:
            raise TableError(
                TableErrorCode.INVALID_TARGET_COLUMNS,
                f"a partial update of {self._table.path} needs the whole primary key; {', '.join(missing)} is missing",
            )
        chosen = [column for column in schema.columns if column.name in wanted]
        return chosen, self._table.definition.target_ids(chosen)

    async def _whole_rows(self, data: Data, *, checked: bool) -> tuple[pa.Table, StoredTable]:
        """Return the rows, and the definition that they conform to: with `checked`, the one that is known."""

        async def prepare() -> tuple[pa.Table, StoredTable]:
            definition = self._table.definition
            return await self._conformed(data, definition.schema.columns), definition

        return await (prepare() if checked else self._table.with_fresh_schema(prepare))

    async def _conformed(
        self, data: Data, columns: Sequence[Column], *, fill_missing: bool = True
    ) -> pa.Table:
        table = str(self._table.path)
        if isinstance(data, (list, tuple)) and len(data) <= FEW_KEYS:  # faster than handing it to a thread
            return conform(data, columns, table=table, fill_missing=fill_missing)
        return await asyncio.to_thread(conform, data, columns, table=table, fill_missing=fill_missing)
