"""What a statement of SQL gives."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tablelayer.model.table.definition import TableDefinition


class Answer:
    """What a statement gave: rows, a table's definition, or a text (`is_code`: SQL to copy, not a message).

    Rows may still be arriving: whoever takes `batches` has them once, and whoever asks for `rows` waits for all.
    """

    __slots__ = ("_given", "definition", "is_code", "row_count", "text")

    def __init__(
        self,
        rows: pa.Table | pa.RecordBatchReader | None = None,
        definition: TableDefinition | None = None,
        text: str | None = None,
        *,
        is_code: bool = False,
        row_count: int | None = None,
    ) -> None:
        self._given = rows
        self.definition = definition
        self.text = text
        self.is_code = is_code
        self.row_count = row_count
        """How many rows were written, changed or deleted, if that is what the statement does."""

    @property
    def schema(self) -> pa.Schema | None:
        """Of the rows; None if it has none."""
        return None if self._given is None else self._given.schema

    @property
    def rows(self) -> pa.Table | None:
        """All rows."""
        if isinstance(self._given, pa.RecordBatchReader):
            self._given = self._given.read_all()
        return self._given

    def batches(self, rows_max: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows as they come, at most so many at a time."""
        most = rows_max or _ROWS_AT_ONCE
        if isinstance(self._given, pa.RecordBatchReader):
            for batch in self._given:
                for start in range(0, batch.num_rows, most):
                    yield batch.slice(start, most)
        elif self._given is not None:
            yield from self._given.to_batches(max_chunksize=most)


_ROWS_AT_ONCE = 10_000
"""As Python's values they are some ten MB."""
