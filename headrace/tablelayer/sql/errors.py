"""What can go wrong with a statement that was understood."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from headrace.tablelayer.client.errors import ClientError


class SqlError(ClientError):
    """A statement that cannot be carried out; its text is for whoever wrote it."""


def near(name: str, names: Iterable[str]) -> str:
    """The names that were meant, as the end of a sentence; '' if none is like it."""
    by_small = {each.lower(): each for each in names}
    found = [by_small[each] for each in get_close_matches(name.lower(), by_small, n=3)]
    return f"; did you mean {' or '.join(found)}?" if found else ""
