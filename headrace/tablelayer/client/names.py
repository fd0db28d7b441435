"""Arguments that are lists of names. A single text is refused: Python would take it as a list of letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def several(argument: str, value: Iterable[Any]) -> list[Any]:
    """Return the elements of an argument that is a list. Raises TypeError for a single text, or bytes."""
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(f"{argument}={value!r}: give a list, {argument}=[{value!r}]")
    return list(value)


def pairs_of_names(argument: str, value: Mapping[str, str] | Iterable[Any] | str) -> dict[str, str]:
    """Return names by names from a mapping, pairs, or names that are equal on both sides (Spark's `join`).

    Raises TypeError for anything else, ValueError for a name that is given twice.
    """
    if isinstance(value, str):
        value = [value]
    listed = list(value.items()) if isinstance(value, Mapping) else [_pair(argument, each) for each in value]
    pairs = dict(listed)
    if not all(isinstance(name, str) for pair in listed for name in pair):
        raise TypeError(f"{argument}={value!r}: names must be texts")
    if len(pairs) < len(listed):
        raise ValueError(f"{argument}={value!r}: a name is given twice")
    return pairs


def _pair(argument: str, each: Any) -> tuple[str, str]:
    if isinstance(each, str):
        return each, each
    if isinstance(each, (tuple, list)) and len(each) == 2:
        return each[0], each[1]
    raise TypeError(f"{argument} has {each!r}: give a name, or a pair of names")
