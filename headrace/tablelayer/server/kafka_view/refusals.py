"""Records that tables refused from Kafka producers: their number, and the last ones of each table.

They explain missing records if a producer ignores its errors, or its library reports only a code. They are in this
broker's memory, since its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.protocol.errors import ErrorCode
from headrace.protocol.one_line import one_line

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.tablelayer.model.table.definition import StoredTable

KEPT: Final = 50
"""Number of refused records that are kept for each table."""
TABLES_MAX: Final = 1000
_REASON_LENGTH_MAX: Final = 1000
REFUSALS: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Errors that the same batch gets again when it is repeated."""


class Refusal(msgspec.Struct, frozen=True):
    """A refused record. `index` is its index in the batch, or -1 for the batch as a whole; `reason` is one line."""

    time_ms: int
    topic: str
    partition: int
    index: int
    code: ErrorCode
    reason: str
    dead_letter: bool


class OfTable:
    """The records that a table refused. `counts` is by error code and by whether the rest of the batch was written."""

    def __init__(self) -> None:
        self.last: deque[Refusal] = deque(maxlen=KEPT)
        self.counts: dict[tuple[str, bool], int] = {}

    @property
    def count(self) -> int:
        return sum(self.counts.values())


class Refusals:
    """The refused records of all tables. Runs on the event loop."""

    def __init__(self) -> None:
        self._tables: dict[UUID, OfTable] = {}

    def note(
        self,
        definition: StoredTable,
        topic: str,
        partition: int,
        refused: Iterable[tuple[int, str]],
        code: ErrorCode,
        time_ms: int,
        *,
        dead_letter: bool,
    ) -> None:
        """Note refused records: pairs of a record's index and the reason."""
        found = self._tables.pop(definition.table_id, None) or OfTable()
        self._tables[definition.table_id] = found  # moved to the end: it is forgotten last
        for index, reason in refused:
            text = one_line(reason, _REASON_LENGTH_MAX)
            found.last.append(Refusal(time_ms, topic, partition, index, code, text, dead_letter))
            kind = (code.name, dead_letter)
            found.counts[kind] = found.counts.get(kind, 0) + 1
        if len(self._tables) > TABLES_MAX:
            del self._tables[next(iter(self._tables))]

    def of(self, table_id: UUID) -> OfTable | None:
        return self._tables.get(table_id)
