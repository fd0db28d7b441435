"""Errors of key-value stores, and the meaning of RocksDB's errors, which have no types."""

from __future__ import annotations

import errno


class DamagedStoreError(Exception):
    """The files are not a store that this version can use."""


class StoreInUseError(Exception):
    """Another part of this process, or another process, has the files open."""


def is_damage(error: BaseException) -> bool:
    """Return whether an error means that RocksDB's files are damaged."""
    return isinstance(error, DamagedStoreError) or "Corruption:" in str(error)


def is_halted(error: BaseException) -> bool:
    """Return whether RocksDB cannot write any more until it is opened again: after an error of its files in the
    background, whatever its cause, each later write and flush fails with the same text.
    """
    return "IO error:" in str(error) and not isinstance(error, DiskFullError)


class StalledStoreError(Exception):
    """RocksDB accepts no writes for now: its files cannot be written as fast as new rows arrive, or not at all."""


class DiskFullError(OSError):
    """The disk has no space for the store's files. Nothing is lost: the same call may succeed later."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.ENOSPC, text)


_PASSING = {
    "Too many open files in system": errno.ENFILE,
    "Too many open files": errno.EMFILE,
    "Cannot allocate memory": errno.ENOMEM,
}
"""Texts of RocksDB's errors that say nothing about its files: the same call may succeed later."""


def raise_passing(error: Exception) -> None:
    """Raise OSError if RocksDB's error means a lack of room, files or memory; its errors have no types."""
    text = str(error)
    if "No space left" in text or "quota exceeded" in text:
        raise DiskFullError(text) from error
    for said, number in _PASSING.items():
        if said in text:
            raise OSError(number, text) from error
