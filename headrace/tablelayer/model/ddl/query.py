"""The properties of a parsed query (`tablelayer.model.ddl.select`). Plain values, which need no parser."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from headrace.tablelayer.model.types.values import Value


class Bounds(msgspec.Struct, frozen=True):
    """The bounds of a column by conditions that are joined by AND; None: no bound on that side."""

    lower: Value = None
    upper: Value = None
    include_lower: bool = True
    include_upper: bool = True


class ReadOptions(msgspec.Struct, frozen=True):
    """The way to read a table that a hint gives: the start of its changes, or a snapshot of its lake.

    `start`: earliest, latest or timestamp; with timestamp, `start_time` is a number of milliseconds or a time as text.
    """

    start: str | None = None
    start_time: str | None = None
    snapshot: int | None = None
    snapshot_time: int | None = None


class PastTable(msgspec.Struct, frozen=True):
    """A table in the past: at a time (`FOR SYSTEM_TIME AS OF`) or at offsets by bucket (`FOR VERSION AS OF`).

    A time is a number of milliseconds or a datetime. `options` are those of a hint, instead of a moment.
    """

    table: str
    moment: int | datetime | Mapping[int, int] | None
    options: ReadOptions | None = None


class Select(msgspec.Struct, frozen=True):
    """One query.

    `tables`: the tables that it reads, as `database.table`, with suffixes such as `$changelog`. A simple query also
    has `columns` in order (None: all), `equals` (the literals that columns must equal), `limit`, and `is_count` for
    COUNT(*). A query that renames columns is not simple; DuckDB does that.
    """

    sql: str
    tables: tuple[str, ...]
    is_simple: bool = False
    columns: tuple[str, ...] | None = None
    equals: Mapping[str, Value] = msgspec.field(default_factory=dict)
    limit: int | None = None
    is_count: bool = False
    bounds: Mapping[str, Bounds] = msgspec.field(default_factory=dict)
    """In a query over one table: the bounds of columns (lower case) that hold for every row."""
    moments: Mapping[str, PastTable] = msgspec.field(default_factory=dict)
    """The tables that are read as they were in the past."""
    columns_read: Mapping[str, frozenset[str] | None] = msgspec.field(default_factory=dict)
    """For each table the names that may be its columns (a superset; lower case), or None for all columns."""
    conditions: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """For each table the conditions on its columns, in unqualified DuckDB SQL, that a row must meet to be needed.

    A condition may name things that are not columns of the table.
    """
    counts: str | None = None
    """The table of a query that is only COUNT(*) with a WHERE, all of which is in `conditions`."""
    reads: str | None = None
    """The table of a query that only returns plain columns of it (`columns_given`; None: all), with an optional
    WHERE.

    All of the WHERE is in `conditions`.
    """
    columns_given: tuple[str, ...] | None = None
    aggregates: tuple[tuple[str, str | None], ...] = ()
    """The answer's columns in a query over one table that only returns MIN, MAX and COUNT of plain columns, and
    COUNT(*).

    Each is (function in capitals, column or None for `*`). All of the WHERE is in `conditions`.
    """
    database: str = "default"
    """The database of names without a database."""
    reads_once: bool = False
    """Each of `tables` is read once from its beginning to its end, so that its rows may come as a stream."""

    pivots: bool = False
    """The columns of the result may depend on the rows."""

    notices: tuple[str, ...] = ()
    """Sentences for the user about words that have no effect here."""
    times: tuple[tuple[str, str], ...] = ()
    """Pairs of a table and a name that the table must declare as the time of processing, for lookup joins."""

    @property
    def table(self) -> str | None:
        """The only table of a simple query."""
        return self.tables[0] if self.is_simple else None
