"""The error for a statement that cannot be understood."""

from __future__ import annotations

from headrace.tablelayer.model.errors import TableError, TableErrorCode

_SHOWN = 200
"""Maximum number of characters of a line that an error shows."""


class DdlError(TableError):
    """A statement that cannot be understood or is not allowed.

    `line` and `column` are the position of `word` ('' at the end of the text), counted from 1; `start` counts from 0.
    `reason` is the sentence without the position. `message` has the position and shows the line with the word marked;
    of a long line it shows the part around the word.
    """

    def __init__(self, reason: str, sql: str, start: int, length: int) -> None:
        start = min(start, len(sql))
        self.reason = reason
        self.start = start
        self.word = sql[start : start + length]
        self.line = sql.count("\n", 0, start) + 1
        line_start = sql.rfind("\n", 0, start) + 1
        self.column = start - line_start + 1
        line_end = sql.find("\n", start)
        line_end = line_end if line_end >= 0 else len(sql)
        shown = line_start if line_end - line_start <= _SHOWN else max(line_start, start - _SHOWN // 2)
        text = sql[shown : min(line_end, shown + _SHOWN)]
        marked = max(1, min(length, len(text) - (start - shown)))
        blank = "".join("\t" if character == "\t" else " " for character in text[: start - shown])
        super().__init__(
            TableErrorCode.INVALID_STATEMENT,
            f"line {self.line}, column {self.column}: {reason}\n  {text}\n  {blank}{'^' * marked}",
        )
        self._arguments = (reason, sql, start, length)

    def __reduce__(self) -> tuple[type[TableError], tuple[object, ...]]:
        return DdlError, self._arguments
