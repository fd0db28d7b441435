"""INSERT OVERWRITE of a table with a primary key, or of its partitions: all rows at once, or none.

The new rows are staged, then the deletions of the keys that are in the table and not among them. One commit writes
both: a statement that fails leaves nothing, and no reader sees an empty table. The changelog has an insertion or an
update for each new row, and a deletion for each key that is gone. Rows that others insert while the statement runs may
stay. The keys of the new rows are held in memory. Rows of expired partitions, which only the lake has, stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client import Table, stopping
from headrace.tablelayer.client.read.answers import nullable_schema
from headrace.tablelayer.client.table.staging import Receipt
from headrace.tablelayer.client.write.conform import Data, conform
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.ddl import Value
from headrace.tablelayer.model.table.partitions import spec_texts, typed_value
from headrace.tablelayer.model.table.replacing import must_be_replaceable
from headrace.tablelayer.spark.key_set import KeySet

_UPSERT, _DELETE = int(ChangeType.UPDATE_AFTER), int(ChangeType.DELETE)
_ROWS_AT_ONCE = 65_536


class Overwrite:
    """Replaces the rows of the partitions `spec` of a table; without `spec`, all of its rows."""

    def __init__(self, table: Table, spec: Mapping[str, Value]) -> None:
        """Raises TableError if the table cannot be overwritten, or has no such partition columns."""
        self._table, self._definition = table, table.definition
        must_be_replaceable(self._definition)
        self._part = table.only(spec) if spec else table
        schema = self._definition.schema
        texts = spec_texts(self._definition, spec) if spec else {}
        self._constants = {name: typed_value(schema.column(name), text) for name, text in texts.items()}
        self._key = list(schema.primary_key)
        self._writer = f"headrace-sql-{uuid4().hex}"

    def by(self, pieces: Iterable[Data]) -> int:
        """Write these rows in place of the present ones, and return their number."""
        receipts: list[Receipt] = []
        try:
            fresh = self._stage(pieces, receipts)
            self._stage_gone(fresh, receipts)
            stopping.check()
            self._table.commit_staged(self._writer, 0, receipts[::-1], single=True)  # deletions first
        except BaseException:
            with stopping.running(None):
                self._table.abort_staged(self._writer, 0, receipts)
            raise
        return int(fresh.num_rows)

    def _stage(self, pieces: Iterable[Data], receipts: list[Receipt]) -> pa.Table:
        """Stage the new rows and return their keys."""
        columns = [each for each in self._definition.schema.columns if each.name not in self._constants]
        schema = self._definition.schema.arrow()
        keys = [pa.schema([schema.field(name) for name in self._key]).empty_table()]
        with closing(self._staged()) as staged:
            for piece in pieces:
                stopping.check()
                rows = conform(piece, columns, table=str(self._table.path))
                for name, value in self._constants.items():
                    place = schema.get_field_index(name)
                    rows = rows.add_column(place, schema.field(name), pa.repeat(value, rows.num_rows))
                rows = rows.select(schema.names)
                staged.write(rows, change_type=_UPSERT)
                keys.append(rows.select(self._key).cast(keys[0].schema))
            receipts.append(staged.finish())
        return pa.concat_tables(keys)

    def _stage_gone(self, fresh: pa.Table, receipts: list[Receipt]) -> None:
        known = KeySet(fresh, self._key)
        present = pa.table(self._part.to_arrow(self._key))
        if self._definition.is_partitioned and self._table.reads_lake():
            present = present.filter(pa.array(self._table.lookup(present, columns=self._key)[0]))
        columns = self._definition.schema.columns
        with closing(self._staged()) as staged:
            for batch in present.combine_chunks().to_batches(_ROWS_AT_ONCE):
                gone = batch.filter(pc.invert(known.contains(batch)))
                arrays = [
                    gone.column(each.name)
                    if each.name in self._key
                    else pa.nulls(gone.num_rows, each.type.arrow())
                    for each in columns
                ]
                if gone.num_rows:
                    staged.write(pa.table(arrays, schema=nullable_schema(columns)), change_type=_DELETE)
            receipts.append(staged.finish())

    def _staged(self) -> Any:
        return self._table.staged_writer(self._writer, 0, uuid4().hex, definition=self._definition)
