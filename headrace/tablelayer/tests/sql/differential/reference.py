"""The reference of right answers: DuckDB over a copy of a table, and each row's value of a condition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace.tablelayer.tests.sql.differential.conditions import REFERENCE, Condition
from headrace.tablelayer.tests.sql.differential.tables import RandomTable, quoted
from headrace.tablelayer.tests.sql.logic_files import values_of

Truth = Sequence[bool | None]


class RefusedError(Exception):
    """DuckDB cannot compute the condition, so there is no right answer."""


class Reference:
    """A DuckDB of its own, in UTC, with one copy at a time."""

    def __init__(self) -> None:
        import duckdb

        self._database = duckdb.connect()
        self._database.execute("SET TimeZone = 'UTC'; SET threads = 1")
        self._error = duckdb.Error
        self.table: RandomTable | None = None
        self._cells: dict[str, list[str]] = {}

    def load(self, table: RandomTable) -> None:
        rows = table.rows.append_column("__row", pa.array(range(table.rows.num_rows), pa.int64()))
        for index, field in enumerate(rows.schema):
            if pa.types.is_timestamp(field.type) and field.type.unit == "ns" and field.type.tz:
                # DuckDB compares its TIMESTAMPTZ_NS with nothing else; here every zone is UTC.
                rows = rows.set_column(index, field.name, rows.column(index).cast(pa.timestamp("ns")))
        self._database.register("arriving", rows)
        self._database.execute("CREATE OR REPLACE TABLE copy AS SELECT * FROM arriving")
        self._database.unregister("arriving")
        self.table = table
        self._cells = {name: cells_of(table.rows.column(name)) for name in table.rows.column_names}

    def truth(self, condition: Condition) -> Truth:
        """Return the condition's value for each row. Raise RefusedError."""
        text = condition.text(REFERENCE, quoted)
        try:
            found = self._database.execute(f"SELECT ({text}) AS z FROM copy ORDER BY __row").fetchall()
        except self._error as error:
            raise RefusedError(str(error)) from None
        return [value for (value,) in found]

    def asked(self, sql: str) -> list[str]:
        """Return the lines of an answer over `copy`. Raise RefusedError."""
        try:
            return lines_of(self._database.sql(sql).to_arrow_table())
        except self._error as error:
            raise RefusedError(str(error)) from None

    def lines(self, columns: Sequence[str], rows: Iterable[int]) -> list[str]:
        """Return these rows of these columns, in the form of `lines_of`."""
        cells = [self._cells[name] for name in columns]
        return ["\t".join(each[row] for each in cells) for row in rows]


def cells_of(column: pa.ChunkedArray) -> list[str]:
    """The values as text, instants without their zone."""
    return [text.removesuffix("+00") for text in values_of(column)]


def lines_of(rows: pa.Table) -> list[str]:
    columns = [cells_of(column) for column in rows.columns]
    return ["\t".join(row) for row in zip(*columns, strict=True)]


def true_rows(truth: Truth) -> list[int]:
    return [row for row, value in enumerate(truth) if value]


def difference(found: Sequence[str], wanted: Sequence[str], *, at_most: int | None = None) -> str | None:
    """Return the difference of two answers, whatever their order. `at_most`: any of the wanted rows, at most that
    many.
    """
    has, needs = Counter(found), Counter(wanted)
    more, less = has - needs, needs - has
    if at_most is not None:
        if not more and len(found) == min(at_most, len(wanted)):
            return None
        return f"{len(found)} of {at_most} rows, wrongly {_some(more)}"
    if not more and not less:
        return None
    return f"{len(found)} rows, not {len(wanted)}; missing {_some(less)}; wrongly there {_some(more)}"


def _some(lines: Counter[str]) -> str:
    listed = list(lines.elements())
    shown = ", ".join(f"({line})" for line in listed[:4])
    return (shown or "none") + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")


def rows_told(table: RandomTable, condition: Condition, rows: Iterable[int]) -> str:
    """Return some rows as text, in the columns that a condition names."""
    names = dict.fromkeys(["k", *condition.columns])
    cells = {name: values_of(table.rows.column(name)) for name in names}
    return "; ".join(
        ", ".join(f"{name} {table.column(name).words} = {cells[name][row]}" for name in names)
        for row in list(rows)[:3]
    )
