"""A table for Spark, lazily: columns, predicate and limit are gathered first and carried to the server
together.

    table(spark, "127.0.0.1:9092", "default.orders").select("order_key", "total_price").limit(100).to_df()

Spark's Python data sources prune no columns, so `spark.read...load().select("a")` moves all of them. Here
only the columns that are selected or that the predicate names leave the server. The predicate itself is
Spark's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlglot
from sqlglot import expressions

from tablelayer.spark.splits import ReadMode
from tablelayer.spark.worker import connection


@dataclass(frozen=True, slots=True)
class TableBuilder:
    """One read in the making. Every method gives a new builder; `to_df` makes the DataFrame."""

    spark: Any
    bootstrap: str
    path: str
    columns: tuple[str, ...] = ()
    predicates: tuple[str, ...] = ()
    row_limit: int | None = None
    mode: ReadMode = "current"

    def select(self, *columns: str) -> TableBuilder:
        """Only these columns, in this order."""
        return replace(self, columns=columns)

    def where(self, predicate: str) -> TableBuilder:
        """Only rows for which a condition in Spark SQL holds; several are joined by AND."""
        return replace(self, predicates=(*self.predicates, predicate))

    def limit(self, count: int) -> TableBuilder:
        """At most `count` rows, any of them."""
        return replace(self, row_limit=count)

    def changelog(self) -> TableBuilder:
        """Every change instead of the current rows, with `_change_type`, `_log_offset` and
        `_commit_timestamp`.
        """
        return replace(self, mode="changelog")

    def to_df(self) -> Any:
        """The DataFrame. Raises TableError for a table or a column that is not there."""
        definition = connection(self.bootstrap).admin.describe_table(self.path)
        known = definition.schema.names
        reader = self.spark.read.format("headrace").option("bootstrap.servers", self.bootstrap)
        reader = reader.option("table", self.path).option("mode", self.mode)
        if self.columns:
            needed = dict.fromkeys([*self.columns, *self._predicate_columns(known)])
            reader = reader.option(
                "columns", ",".join(name for name in needed if name in known or name in self.columns)
            )
        frame = reader.load()
        for predicate in self.predicates:
            frame = frame.where(predicate)
        if self.columns:
            extra = [name for name in frame.columns if name not in known]
            frame = frame.select(*[f"`{name}`" for name in [*self.columns, *extra]])
        return frame if self.row_limit is None else frame.limit(self.row_limit)

    def _predicate_columns(self, known: list[str]) -> list[str]:
        lower = {name.lower(): name for name in known}
        found = []
        for predicate in self.predicates:
            for column in sqlglot.parse_one(predicate, read="spark").find_all(expressions.Column):
                name = lower.get(column.name.lower())
                if name is not None:
                    found.append(name)
        return found


def table(spark: Any, bootstrap: str, path: str) -> TableBuilder:
    """A read of table `path` ("db.t") on the server at `bootstrap`."""
    return TableBuilder(spark, bootstrap, path)
