"""Conditions that only a defect of the broker can break, never a client's fault. They are checked in production,
too.
"""

from __future__ import annotations


class InvariantError(Exception):
    """A part of the broker contradicts itself."""


def invariant(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
