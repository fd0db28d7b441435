"""What can be wrong with a log as a whole."""

from __future__ import annotations


class CorruptLogError(Exception):
    """The log is damaged in the middle: readable batches follow an unreadable one, or offsets are missing.

    Cutting it there would silently drop records that were acknowledged, so it is not opened. The text says
    which file is damaged, where, and how to give the rest up on purpose.
    """
