"""Lookup join: enrich a DataFrame, batch or streaming, with rows of a PK table as they are now.

What Flink writes as `FOR SYSTEM_TIME AS OF`: every Arrow batch of the left side makes one batched lookup
through the table client, in the executors (`mapInArrow`); Spark holds no state, and the table is not read
as a whole. The answer is the table at the time of the lookup: running a micro-batch again may see newer rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.table import TableDefinition
from tablelayer.spark.types import choose_columns, conform, spark_arrow_schema, spark_schema
from tablelayer.spark.worker import connection
from tablelayer.spark.worker import table as open_table


def lookup_join(
    frame: Any,
    bootstrap: str,
    table: str,
    *,
    on: Mapping[str, str],
    select: Sequence[str] | Mapping[str, str] | None = None,
    how: Literal["left", "inner"] = "left",
) -> Any:
    """`frame` with columns of PK table `table` ("db.t") added.

    `on`: the frame's column for each primary-key column, `{"cust_key": "c_custkey"}`; all of the key, no
    more.
    `select`: columns to add; a mapping gives them new names, `{"name": "cust_name"}`; default all that are
    not in the key. `how`: "left" keeps rows without a match (nulls; a null in the key matches nothing),
    "inner" drops them. Raises TableError for a table without a primary key and for columns that are missing
    or clash.
    """
    definition = connection(bootstrap).admin.describe_table(table)
    if not definition.is_primary_key_table:
        raise TableError(
            TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
            f"{table} has no primary key: only PK tables can be looked up",
        )
    schema = definition.schema
    keys = schema.primary_key
    if set(on.values()) != set(keys) or len(on) != len(keys):
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"a lookup in {table} needs its whole primary key ({', '.join(keys)}); `on` gives"
            f" {', '.join(on.values()) or 'nothing'}",
        )
    missing = [name for name in on if name not in frame.columns]
    if missing:
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"`on` names column {', '.join(missing)}, but the frame has {', '.join(frame.columns)}",
        )
    if how not in ("left", "inner"):
        raise ValueError(f"how={how!r}: a lookup join is 'left' or 'inner'")
    if select is None:
        select = [column.name for column in schema.columns if column.name not in keys]
    names = dict(select) if isinstance(select, Mapping) else {name: name for name in select}
    if not names:
        raise ValueError("select=[]: name the columns to add, or leave it out for all")
    columns = choose_columns(schema, list(names))
    clashes = [name for name in names.values() if name in frame.columns]
    if clashes or len(set(names.values())) < len(names):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"column {', '.join(clashes) or 'names'} would be there twice: give new names,"
            f" select={{'{columns[0].name}': 'new_name'}}",
        )
    added = spark_schema(columns)
    output = type(added)(frame.schema.fields.copy())
    for field, name in zip(added.fields, names.values(), strict=True):
        output = output.add(name, field.dataType, True)
    on_keys = {key: name for name, key in on.items()}
    lookup = BatchLookup(
        bootstrap,
        definition,
        tuple(on_keys[key] for key in keys),
        tuple(names),
        tuple(names.values()),
        how == "inner",
    )
    return frame.mapInArrow(lookup, output)


@dataclass(frozen=True, slots=True)
class BatchLookup:
    """The worker's side: one lookup per Arrow batch.

    `key_columns` are the frame's, in the primary key's order; `columns` the table's, `new_names` what they
    are called in the result.
    """

    bootstrap: str
    definition: TableDefinition
    key_columns: tuple[str, ...]
    columns: tuple[str, ...]
    new_names: tuple[str, ...]
    matched_only: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = open_table(self.bootstrap, self.definition)
        schema = self.definition.schema
        target = spark_arrow_schema([replace(schema.column(name), nullable=True) for name in self.columns])
        for batch in batches:
            if batch.num_rows:
                yield self.join(batch, table, target)

    def join(self, batch: pa.RecordBatch, table: Any, target: pa.Schema) -> pa.RecordBatch:
        """One batch, joined. Keys that occur often are asked for once."""
        keys = pa.table(
            {
                column.name: batch.column(name).cast(column.type.arrow())
                for column, name in zip(self.definition.schema.key_columns, self.key_columns, strict=True)
            }
        )
        distinct, positions = distinct_keys(keys)
        found, rows = table.lookup(distinct, columns=list(self.columns))
        rows = conform(rows.combine_chunks().to_batches()[0], target) if distinct.num_rows else None
        return self._widen(batch, found, rows, positions, target)

    def _widen(
        self,
        batch: pa.RecordBatch,
        found: Any,
        rows: pa.RecordBatch | None,
        positions: pa.Array,
        target: pa.Schema,
    ) -> pa.RecordBatch:
        if rows is None:
            added = [pa.nulls(batch.num_rows, field.type) for field in target]
            matched = pa.repeat(pa.scalar(False), batch.num_rows)
        else:
            added = [column.take(positions) for column in rows.columns]
            matched = pc.fill_null(pa.array(found, pa.bool_()).take(positions), False)
        fields = [pa.field(name, field.type) for name, field in zip(self.new_names, target, strict=True)]
        joined = pa.RecordBatch.from_arrays(
            [*batch.columns, *added], schema=pa.schema([*batch.schema, *fields])
        )
        return joined.filter(matched) if self.matched_only else joined


def distinct_keys(keys: pa.Table) -> tuple[pa.Table, pa.Array]:
    """The distinct keys without nulls in them, and for each row its key's position among them (null: no
    key).
    """
    names = keys.column_names
    numbered = keys.append_column("_row", pa.array(np.arange(keys.num_rows)))
    groups = numbered.drop_null().group_by(names, use_threads=False).aggregate([("_row", "list")])
    rows_of_group = groups.column("_row_list").combine_chunks()
    positions = np.full(keys.num_rows, -1, np.int64)
    positions[rows_of_group.flatten().to_numpy()] = pc.list_parent_indices(rows_of_group).to_numpy()
    return groups.select(names), pa.array(positions, mask=positions < 0)
