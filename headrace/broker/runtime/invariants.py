"""What can be false only through a defect here, never through a client's fault: checked in production, too."""

from __future__ import annotations


class InvariantError(Exception):
    """A part of the broker contradicts itself."""


def invariant(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
