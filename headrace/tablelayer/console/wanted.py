"""The records that a request asks for: by key, by a text in the value, and by a condition in SQL.

With a schema registry, a key and a text are also searched for in decoded keys and values. The condition's column `json`
is the decoded value.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.tablelayer.client import Connection
from headrace.tablelayer.console.decoding import DecodedTexts
from headrace.tablelayer.console.routes import RequestError

if TYPE_CHECKING:
    from headrace.protocol.records.decode import RecordColumns

_NUMBER: Final = "number of the row"
_PIECE_CHARACTERS: Final = 8 << 20
"""Decoded texts that one run of the condition takes, whatever a schema makes of a batch."""


class Wanted:
    """A filter of records. `where` is a condition in SQL over the columns of the topic as a table.

    `texts` decodes keys and values, if there is a schema registry. Raises RequestError for a condition that DuckDB
    refuses.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        key: str | None,
        contains: str | None,
        where: str | None,
        texts: DecodedTexts | None = None,
    ) -> None:
        from headrace.tablelayer.sql.topics import Topic

        self._texts = texts
        self._key = None if key is None else key.encode("utf-8", "surrogatepass")
        self._decoded_keys = set() if key is None or texts is None else _as_json(key)
        self._contains = None if contains is None else contains.encode("utf-8", "surrogatepass")
        self._where = where
        self._topic = Topic(connection, topic)
        if where is not None:
            from headrace.tablelayer.sql.duck import connect

            lowered = where.lower()
            self._columns = [each for each in self._topic.schema().names if each in lowered] or ["offset"]
            self._database = connect(files=False)
            self._true(self._topic.schema(self._columns).empty_table())

    @property
    def not_decoded(self) -> str | None:
        """The reason that a key or value was searched by its bytes alone; None if there was none."""
        return None if self._texts is None else self._texts.failure

    def indices(self, partition: int, records: RecordColumns, begin: int, end: int) -> Sequence[int]:
        """Return the places in a batch of wanted records from offset `begin` to `end` (exclusive)."""
        first, last = np.searchsorted(records.offsets, (begin, end)).tolist()
        found: Sequence[int] = range(first, last)
        if self._key is not None:
            keys = records.keys()
            found = [each for each in found if keys[each] == self._key or self._has_decoded_key(keys[each])]
        if self._contains is not None:
            values = records.values()
            found = [
                each
                for each in found
                if self._contains in (values[each] or b"") or self._contains in self._text(values[each])
            ]
        if self._where is not None and found:
            rows = self._topic.rows(partition, records, begin, end, self._columns)
            chosen = {first + each for each in self._fitting(pa.Table.from_batches([rows]), records, first)}
            found = [each for each in found if each in chosen]
        return found

    def _text(self, data: bytes | None) -> bytes:
        text = None if self._texts is None else self._texts.text(data)
        return b"" if text is None else text.encode("utf-8", "surrogatepass")

    def _has_decoded_key(self, data: bytes | None) -> bool:
        return bool(text := self._text(data)) and not self._decoded_keys.isdisjoint(_as_json(text))

    def _fitting(self, rows: pa.Table, records: RecordColumns, first: int) -> list[int]:
        """Return the numbers of the rows for which the condition is true, with decoded values as `json`."""
        if self._texts is None or "json" not in self._columns:
            return self._true(rows)
        place = rows.schema.get_field_index("json")
        own, values = rows.column(place).to_pylist(), records.values()
        chosen, start, size = list[int](), 0, 0
        for at in range(len(own)):
            own[at] = self._texts.text(values[first + at]) or own[at]
            size += len(own[at] or "")
            if size > _PIECE_CHARACTERS or at + 1 == len(own):
                texts = pa.array(own[start : at + 1], pa.string())
                piece = rows.slice(start, len(texts)).set_column(place, "json", texts)
                chosen += [start + each for each in self._true(piece)]
                own[start : at + 1] = [None] * len(texts)
                start, size = at + 1, 0
        return chosen

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


def _as_json(text: str | bytes) -> set[bytes]:
    """Return the JSON of a text: of its value if it is JSON, and a typed key also as a string."""
    found = set[bytes]()
    with suppress(msgspec.DecodeError, UnicodeError):
        if isinstance(text, str):
            found.add(msgspec.json.encode(text))
        found.add(msgspec.json.encode(msgspec.json.decode(text)))
    return found
