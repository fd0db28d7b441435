"""Texts from elsewhere, as they may stand in a line of a log or of a message."""

from __future__ import annotations


def one_line(text: str, most: int) -> str:
    """At most `most` characters of a text, those that are not printable (line ends, terminal's codes, halves of
    surrogate pairs) as escapes: whoever wrote it cannot begin a line of their own.
    """
    clipped = text if len(text) <= most else text[: max(0, most - 1)] + "\u2026"
    if clipped.isprintable():
        return clipped
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in clipped)
