"""What is known of a query once it is parsed (`tablelayer.model.ddl.select`). Values; no parser is loaded for them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from headrace.tablelayer.model.types.values import Value


class Bounds(msgspec.Struct, frozen=True):
    """What a column is between, by AND; None: no bound on that side."""

    lower: Value = None
    upper: Value = None
    include_lower: bool = True
    include_upper: bool = True


class PastTable(msgspec.Struct, frozen=True):
    """A table as of a time (`FOR SYSTEM_TIME AS OF`, milliseconds or a datetime) or at offsets by bucket (`FOR
    VERSION AS OF`)."""

    table: str
    moment: int | datetime | Mapping[int, int]


class Select(msgspec.Struct, frozen=True):
    """One query.

    `tables`: what it reads, `database.table` each, with suffixes such as `$changelog` as they are written. Of a
    simple query: `columns` in order (None: all), `equals` the literals that columns must equal, `limit`,
    `is_count` for COUNT(*). `alias` names of columns are DuckDB's business: such a query is not simple.
    """

    sql: str
    tables: tuple[str, ...]
    is_simple: bool = False
    columns: tuple[str, ...] | None = None
    equals: Mapping[str, Value] = msgspec.field(default_factory=dict)
    limit: int | None = None
    is_count: bool = False
    bounds: Mapping[str, Bounds] = msgspec.field(default_factory=dict)
    """Of a query over one table: what its condition says about columns (lower case) that must hold in any case."""
    moments: Mapping[str, PastTable] = msgspec.field(default_factory=dict)
    """Those of `tables` that are read as they were."""
    columns_read: Mapping[str, frozenset[str] | None] = msgspec.field(default_factory=dict)
    """Per table the names that may be columns of it (a superset; lower case), or None for all columns."""
    conditions: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Per table, conditions in DuckDB's SQL over its columns, unqualified: rows that do not meet all of them are of
    no use. A condition may name things that are no columns of the table."""
    counts: str | None = None
    """The table of a query that is COUNT(*) with WHERE, all of it in `conditions`, and nothing else."""
    reads: str | None = None
    """The table of a query that gives plain columns of it (`columns_given`; None: all), with a WHERE or without one,
    all of it in `conditions`, and has no other clause."""
    columns_given: tuple[str, ...] | None = None
    aggregates: tuple[tuple[str, str | None], ...] = ()
    """Of a query over one table that gives nothing but MIN, MAX and COUNT of plain columns and COUNT(*), all of its
    WHERE in `conditions`: (function in capitals, column or None for `*`), for each column of the answer."""
    database: str = "default"
    """Where names without a database are."""
    reads_once: bool = False
    """Each of `tables` is gone through once from its beginning to its end, so that its rows may come as a stream."""

    pivots: bool = False
    """Which columns it gives may depend on the rows."""

    @property
    def table(self) -> str | None:
        """The only table of a simple query."""
        return self.tables[0] if self.is_simple else None
