"""Names and texts in the quotes that statements need."""

from __future__ import annotations

import re

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that have another meaning at the beginning of a column.
_QUOTED_WORDS = frozenset({"PRIMARY", "CONSTRAINT", "WATERMARK", "UNIQUE", "INDEX", "IF", "CHECK", "FOREIGN"})


def quote_name(name: str) -> str:
    """Return a name in the form for a statement, in backticks if it needs them."""
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in _QUOTED_WORDS:
        return name
    return "`" + name.replace("`", "``") + "`"


def quoted(name: str) -> str:
    """Return a name in double quotes, as DuckDB and SQL's standard have them."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text in single quotes."""
    return "'" + text.replace("'", "''") + "'"
