"""The table layer's errors: each has a number and a message for people.

Codes start at 1000. They share one int16 field with Kafka's own codes, which are all below 1000 and travel in the
same responses. A code never changes its meaning and is never used again. This module does not know how an error
travels.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NO_TABLE_WITH_ID: Final = "there is no table with id"
"""The beginning of the error of a request to a table that was dropped. The client adds the name."""


class TableErrorCode(IntEnum):
    """The reason why a table request failed, as it travels in `error_code`."""

    DATABASE_NOT_FOUND = 1000
    DATABASE_EXISTS = 1001
    DATABASE_NOT_EMPTY = 1002
    TABLE_NOT_FOUND = 1003
    TABLE_EXISTS = 1004
    INVALID_TABLE = 1005
    NOT_A_PRIMARY_KEY_TABLE = 1006
    NOT_A_LOG_TABLE = 1007
    UNKNOWN_SCHEMA_ID = 1008
    INVALID_PROJECTION = 1009
    INVALID_TARGET_COLUMNS = 1010
    DELETION_DISABLED = 1011
    INVALID_ROW = 1012
    SCAN_EXPIRED = 1013
    FENCED_TIERING_EPOCH = 1014
    LAKE_NOT_ENABLED = 1015
    BUFFER_EXHAUSTED = 1016
    INVALID_KEY = 1017
    INVALID_STATEMENT = 1018
    SCHEMA_CHANGED = 1019
    INVALID_FILTER = 1020
    PARTITION_NOT_FOUND = 1021
    PARTITION_EXISTS = 1022
    INVALID_PARTITION = 1023
    NOT_PARTITIONED = 1024
    PARTITION_NEEDED = 1025
    TOO_MANY_PARTITIONS = 1026
    OUTSIDE_RETENTION = 1030
    STAGED_ROWS_MISSING = 1040
    ANSWER_TOO_LARGE = 1050

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, although no client or administrator changes anything."""
        return self in (TableErrorCode.BUFFER_EXHAUSTED, TableErrorCode.SCAN_EXPIRED)

    @property
    def needs_refresh(self) -> bool:
        """Whether the request may succeed once the client has read the table's definition again."""
        return self in (TableErrorCode.SCHEMA_CHANGED, TableErrorCode.UNKNOWN_SCHEMA_ID)


MESSAGE_LENGTH_MAX = 8_000
"""Maximum number of characters of a message, because it may quote what a client sent, which may be a megabyte."""


def _clipped(message: str) -> str:
    if len(message) <= MESSAGE_LENGTH_MAX:
        return message
    half = MESSAGE_LENGTH_MAX // 2
    return f"{message[:half]} [...] {message[-half:]}"


class TableError(Exception):
    """A table request that cannot be carried out; it had no effect. A message that is too long loses its middle."""

    def __init__(self, code: TableErrorCode, message: str) -> None:
        message = _clipped(message)
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[TableError], tuple[object, ...]]:
        return TableError, (self.code, self.message)

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, although no client or administrator changes anything."""
        return self.code.retriable


def invalid_table(message: str) -> TableError:
    """Return the error of a definition, name or option that cannot be."""
    return TableError(TableErrorCode.INVALID_TABLE, message)


class RowError(TableError):
    """One row of a batch does not fit the schema.

    `index` counts from 0 within the batch; `column` is None when the row as a whole is at fault.
    """

    def __init__(self, index: int, column: str | None, reason: str) -> None:
        place = f"row {index}" if column is None else f"row {index}, column '{column}'"
        super().__init__(TableErrorCode.INVALID_ROW, f"{place}: {reason}")
        self.index = index
        self.column = column
        self.reason = reason

    def __reduce__(self) -> tuple[type[TableError], tuple[object, ...]]:
        return RowError, (self.index, self.column, self.reason)
