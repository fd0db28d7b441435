"""What tables refused of what Kafka producers sent: counted, and the last of each table kept to be asked for.

A producer that takes no notice of its errors, or whose library tells a code alone, leaves nobody who knows why records
are missing. In memory, of this broker, since it started.
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

    from headrace.tablelayer.model.table.definition import TableDefinition

KEPT: Final = 50
"""Of a table: what a person looks at."""
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
"""What the same batch is answered with again, whoever repeats it."""


class Refusal(msgspec.Struct, frozen=True):
    """`index`: of the record in its batch, -1: the batch as a whole; `reason` in one line."""

    time_ms: int
    topic: str
    partition: int
    index: int
    code: ErrorCode
    reason: str
    dead_letter: bool


class OfTable:
    """What one table refused. `counts` by the name of the error's code, and whether the rest of the batch went on."""

    def __init__(self) -> None:
        self.last: deque[Refusal] = deque(maxlen=KEPT)
        self.counts: dict[tuple[str, bool], int] = {}

    @property
    def count(self) -> int:
        return sum(self.counts.values())


class Refusals:
    """Used on the event loop only."""

    def __init__(self) -> None:
        self._tables: dict[UUID, OfTable] = {}

    def note(
        self,
        definition: TableDefinition,
        topic: str,
        partition: int,
        refused: Iterable[tuple[int, str]],
        code: ErrorCode,
        time_ms: int,
        *,
        dead_letter: bool,
    ) -> None:
        """Pairs of a record's index and what is wrong with it."""
        table_id = definition.table_id
        if table_id is None:
            return
        found = self._tables.pop(table_id, None) or OfTable()
        self._tables[table_id] = found  # the last one to be forgotten
        for index, reason in refused:
            text = one_line(reason, _REASON_LENGTH_MAX)
            found.last.append(Refusal(time_ms, topic, partition, index, code, text, dead_letter))
            kind = (code.name, dead_letter)
            found.counts[kind] = found.counts.get(kind, 0) + 1
        if len(self._tables) > TABLES_MAX:
            del self._tables[next(iter(self._tables))]

    def of(self, table_id: UUID) -> OfTable | None:
        return self._tables.get(table_id)
