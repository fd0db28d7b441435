"""Errors of statements that were parsed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from headrace.tablelayer.client.errors import SqlError as SqlError


def near(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence that suggests similar names; '' if there are none."""
    by_small = {each.lower(): each for each in names}
    found = [by_small[each] for each in get_close_matches(name.lower(), by_small, n=3)]
    return f"; did you mean {' or '.join(found)}?" if found else ""
