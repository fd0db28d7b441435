"""The records that a request asks for: by key, by a text in the value, and by a condition in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.tablelayer.client import Connection
from headrace.tablelayer.console.routes import RequestError

if TYPE_CHECKING:
    from headrace.protocol.records.decode import RecordColumns

_NUMBER: Final = "number of the row"


class Wanted:
    """A filter of records. `where` is a condition in SQL over the columns of the topic as a table.

    Raises RequestError for a condition that DuckDB refuses.
    """

    def __init__(
        self, connection: Connection, topic: str, key: str | None, contains: str | None, where: str | None
    ) -> None:
        from headrace.tablelayer.sql.topics import Topic

        self._key = None if key is None else key.encode("utf-8", "surrogatepass")
        self._contains = None if contains is None else contains.encode("utf-8", "surrogatepass")
        self._where = where
        self._topic = Topic(connection, topic)
        if where is not None:
            from headrace.tablelayer.sql.duck import connect

            lowered = where.lower()
            self._columns = [each for each in self._topic.schema().names if each in lowered] or ["offset"]
            self._database = connect(files=False)
            self._true(self._topic.schema(self._columns).empty_table())

    def indices(self, partition: int, records: RecordColumns, begin: int, end: int) -> Sequence[int]:
        """Return the places in a batch of wanted records from offset `begin` to `end` (exclusive)."""
        first, last = np.searchsorted(records.offsets, (begin, end)).tolist()
        found: Sequence[int] = range(first, last)
        if self._key is not None:
            keys = records.keys()
            found = [each for each in found if keys[each] == self._key]
        if self._contains is not None:
            values = records.values()
            found = [each for each in found if self._contains in (values[each] or b"")]
        if self._where is not None and found:
            rows = self._topic.rows(partition, records, begin, end, self._columns)
            chosen = {first + each for each in self._true(pa.Table.from_batches([rows]))}
            found = [each for each in found if each in chosen]
        return found

    def _true(self, rows: pa.Table) -> list[int]:
        """Return the numbers of the rows for which the condition is true."""
        import duckdb

        numbered = rows.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
        try:
            answer = (
                self._database.from_arrow(numbered).filter(self._where).project(f'"{_NUMBER}"').fetchall()
            )
        except duckdb.Error as error:
            raise RequestError(f"the condition cannot be used: {error}") from None
        return [number for (number,) in answer]
