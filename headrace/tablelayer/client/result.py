"""The result of `connection.sql`: rows, which may still be arriving, or a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.client.read.frames import to_pandas, to_polars
from headrace.tablelayer.client.shown import ROWS_SHOWN, rows_html, rows_text
from headrace.tablelayer.model.json.python_values import python_rows

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class SqlResult:
    """The rows of a statement, for one thread.

    Rows are read on demand. `for batch in result.batches()` and all readers of Arrow's streams
    (`polars.DataFrame(result)`, `pyarrow.table(result)`, DuckDB) hold a few batches in memory and can read them once.
    `to_arrow`, `to_pandas`, `to_polars`, `len` and iteration hold all rows and may be repeated. A statement that is not
    a query has no columns; `text` says what was done and `row_count` to how many rows.
    """

    def __init__(
        self,
        schema: pa.Schema | None,
        batches: Iterator[pa.RecordBatch],
        *,
        text: str | None = None,
        row_count: int | None = None,
    ) -> None:
        self.schema = pa.schema([]) if schema is None else schema
        self.text = text
        self.row_count = row_count
        self._has_rows = schema is not None
        self._ahead: list[pa.RecordBatch] = []
        self._left: Iterator[pa.RecordBatch] | None = batches
        self._rows: pa.Table | None = None
        self.watched: Callable[[], AbstractContextManager[None]] = nullcontext
        """Shows the progress of reading all rows."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        names: list[str] = self.schema.names
        return names

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over arriving rows, once; again only after `to_arrow`. ClientError the second time."""
        if self._rows is not None:
            yield from self._rows.to_batches()
            return
        if self._left is None:
            raise ClientError(
                "the rows of this result were read already: run the query again, or keep to_arrow()"
            )
        left, ahead = self._left, self._ahead
        self._left, self._ahead = None, []
        yield from ahead
        yield from left

    def to_arrow(self) -> pa.Table:
        """Return all rows as a pyarrow Table."""
        if self._rows is None:
            with self.watched():
                self._rows = pa.Table.from_batches(self.batches(), self.schema)
        return self._rows

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame. ClientError if pandas is not installed."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars DataFrame. ClientError if polars is not installed."""
        return to_polars(self.to_arrow())

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows as dicts."""
        return python_rows(self.to_arrow())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __bool__(self) -> bool:
        return True

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream the rows by Arrow's PyCapsule interface."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _first(self) -> tuple[pa.Table, bool]:
        """Return a few rows without consuming them, and whether there are more."""
        if self._rows is not None:
            return self._rows, False
        if self._left is not None:
            while sum(batch.num_rows for batch in self._ahead) <= ROWS_SHOWN:
                batch = next(self._left, None)
                if batch is None:
                    break
                self._ahead.append(batch)
        rows = pa.Table.from_batches(self._ahead, self.schema)
        return rows, rows.num_rows > ROWS_SHOWN

    def __repr__(self) -> str:
        if not self._has_rows:
            return f"<SqlResult: {self.text or 'done'}>"
        if self._rows is None and self._left is None:
            return f"<SqlResult of {', '.join(self.columns)}: its rows were read already>"
        rows, more = self._first()
        return rows_text(rows, more=more)

    def _repr_html_(self) -> str:
        if not self._has_rows or (self._rows is None and self._left is None):
            from html import escape

            return f"<p>{escape(repr(self))}</p>"
        rows, more = self._first()
        return rows_html(rows, more=more)

    def close(self) -> None:
        """Close the result and its query. Idempotent."""
        left, self._left, self._ahead = self._left, None, []
        end = getattr(left, "close", None)
        if end is not None:
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
