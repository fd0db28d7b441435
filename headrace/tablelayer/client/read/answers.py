"""Answers to reads by key and to questions about a table's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.tablelayer.client.shown import rows_html
from headrace.tablelayer.model.batches.extremes import extremes
from headrace.tablelayer.model.json.python_values import python_value
from headrace.tablelayer.model.schema.schema import Column


class _FoundRows(NamedTuple):
    found: np.ndarray
    rows: pa.Table


class LookupResult(_FoundRows):
    """Answers to a batch of keys, in the order of the keys: `found, rows = ...`.

    `found` is bool[n]. Row i of `rows` belongs to key i and is all null where `found[i]` is false. The answer has every
    write that all in-sync replicas acknowledged (`acks="all"`) more than `staleness_ms` before it; leaders have 0.
    """

    staleness_ms: int

    def __new__(cls, found: np.ndarray, rows: pa.Table, staleness_ms: int = 0) -> LookupResult:
        made = super().__new__(cls, found, rows)
        made.staleness_ms = staleness_ms
        return made

    def _repr_html_(self) -> str:
        found = pa.chunked_array([pa.array(self.found)])
        return rows_html(self.rows.add_column(0, _free("found", self.rows.column_names), found))


def _free(name: str, taken: Sequence[str]) -> str:
    return name if name not in taken else _free(f"_{name}", taken)


@dataclass(frozen=True, slots=True)
class Extremes:
    """Extremes of a table's rows, at one moment of each bucket.

    `value_counts` is the number of values that are not null, by column. `rows` has two rows, the least and the greatest
    values, null where there is no value. NaN is greater than every number.
    """

    row_count: int
    value_counts: Mapping[str, int]
    rows: pa.Table

    def minimum(self, column: str) -> Any:
        """Return the least value of a column as a Python value; None if there is none."""
        return python_value(self.rows.column(column)[0])

    def maximum(self, column: str) -> Any:
        """Return the greatest value of a column; None if there is none."""
        return python_value(self.rows.column(column)[1])

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Extremes:
        """Return the extremes of a batch's rows."""
        counts = {
            name: len(column) - column.null_count
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        return cls(batch.num_rows, counts, pa.Table.from_batches([extremes([batch], batch.schema)]))

    @classmethod
    def of_all(cls, parts: Sequence[Extremes], schema: pa.Schema) -> Extremes:
        """Return the extremes over all parts; `schema` is that of the answer."""
        batches = [batch for part in parts for batch in part.rows.to_batches()]
        counts = {name: sum(part.value_counts[name] for part in parts) for name in schema.names}
        return cls(
            sum(part.row_count for part in parts), counts, pa.Table.from_batches([extremes(batches, schema)])
        )


def nullable_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of answers. All columns are nullable: rows that were not found are null."""
    return pa.schema([pa.field(column.name, column.type.arrow()) for column in columns])


def reorder(table: pa.Table, names: Sequence[str] | None) -> pa.Table:
    """Return the columns in the caller's order."""
    return table if names is None or table.column_names == list(names) else table.select(list(names))


def first_row(result: LookupResult) -> dict[str, Any] | None:
    """Return the row of a one-key lookup as a dict of `python_value`s; None if it was not found."""
    if not result.found[0]:
        return None
    return {
        name: python_value(column[0])
        for name, column in zip(result.rows.schema.names, result.rows.columns, strict=True)
    }
