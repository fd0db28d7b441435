"""Java's properties format, as java.util.Properties.load reads it.

A logical line is `name=value`, `name:value` or `name value`. A backslash at the end of a line continues it with the
next line, without that line's leading white space. `\\n`, `\\t` and `\\uXXXX` are escapes; a backslash before any other
character is dropped. Lines that begin with `#` or `!` are comments. The last value of a repeated name counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_WHITE: Final = " \t\f"
_NAME: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)|\\$", re.DOTALL)
_MEANT: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """A line is not of the format. The message has its number and not its text, which can be a secret."""


def read_properties(text: str) -> dict[str, str]:
    """Return values by name. Raises PropertiesError for a line that has only a name."""
    values = {}
    for number, line in _logical_lines(text):
        found = _NAME.match(line)
        end = found.end() if found is not None else 0
        separator = _SEPARATOR.match(line, end)
        if separator is None or separator.end() == end:
            raise PropertiesError(f"line {number} is not of the form name=value")
        values[_plain(line[:end])] = _plain(line[separator.end() :].rstrip(_WHITE))
    return values


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    begun: list[str] = []
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_WHITE)
        if not begun:
            if not line or line[0] in "#!":
                continue
            first = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun.append(line[:-1])
            continue
        yield first, "".join((*begun, line))
        begun = []
    if begun:
        yield first, "".join(begun)


def _plain(text: str) -> str:
    return _ESCAPE.sub(_meant, text) if "\\" in text else text


def _meant(found: re.Match[str]) -> str:
    escaped = found[1] or ""
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _MEANT.get(escaped, escaped)
