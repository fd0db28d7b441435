"""The answer to a SQL statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.model.table.definition import StoredTable

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_module("pyarrow")


class Answer:
    """The answer to a statement: rows, a table's definition, or a text (`is_code`: SQL to copy, not a message).

    Rows may still be arriving. `batches` gives them once; `rows` waits for all.
    """

    __slots__ = ("_given", "definition", "is_code", "is_endless", "notices", "row_count", "text", "texts")

    def __init__(
        self,
        rows: pa.Table | pa.RecordBatchReader | None = None,
        definition: StoredTable | None = None,
        text: str | None = None,
        *,
        is_code: bool = False,
        row_count: int | None = None,
        texts: Mapping[str, Sequence[str | None]] | None = None,
        is_endless: bool = False,
    ) -> None:
        self._given = rows
        self.texts = texts
        """Rows of texts only, by column. They can be shown without Arrow."""
        self.definition = definition
        self.text = text
        self.is_code = is_code
        self.row_count = row_count
        """The number of rows that the statement wrote, changed or deleted; None for other statements."""
        self.is_endless = is_endless
        """Rows arrive until the reader stops: show each batch when it comes."""
        self.notices: tuple[str, ...] = ()
        """Sentences about words of the statement that have no effect here."""

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the rows; None without rows."""
        given = self._arrow()
        return None if given is None else given.schema

    @property
    def rows(self) -> pa.Table | None:
        """All rows; None for an answer without rows."""
        given = self._arrow()
        if isinstance(given, pa.RecordBatchReader):
            given = self._given = given.read_all()
        return given

    def batches(self, rows_max: int | None = None) -> Iterator[pa.RecordBatch]:
        """Iterate over arriving rows, at most `rows_max` at a time."""
        most = rows_max or _ROWS_AT_ONCE
        given = self._arrow()
        if isinstance(given, pa.RecordBatchReader):
            for batch in given:
                for start in range(0, batch.num_rows, most):
                    yield batch.slice(start, most)
        elif given is not None:
            yield from given.to_batches(max_chunksize=most)

    def _arrow(self) -> pa.Table | pa.RecordBatchReader | None:
        if self._given is None and self.texts is not None:
            self._given = pa.table({name: pa.array(each, pa.string()) for name, each in self.texts.items()})
        return self._given


_ROWS_AT_ONCE = 10_000
"""Rows at a time. Python values of them take about 10 MB."""
