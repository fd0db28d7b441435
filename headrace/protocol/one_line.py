"""Text of other parties, made safe for one line of a log or of a message."""

from __future__ import annotations


def one_line(text: str, most: int) -> str:
    """Return at most `most` characters of `text`, with those that are not printable as escapes.

    Line ends, terminal codes and halves of surrogate pairs are escaped, so the text cannot begin a line of its own.
    """
    clipped = text if len(text) <= most else text[: max(0, most - 1)] + "\u2026"
    if clipped.isprintable():
        return clipped
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in clipped)
