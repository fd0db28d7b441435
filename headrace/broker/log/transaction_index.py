"""The aborted transactions of a segment, which a read_committed consumer must leave out (rule T5).

One entry per transaction whose abort marker lies in the segment and that had written something, in the order of the
markers. The file is Kafka's `.txnindex`: entries of 34 bytes,

    int16 version (0), int64 producer id, int64 first offset, int64 last offset (of the marker),
    int64 last stable offset after it

A segment without entries has no file. The index has the form of the file in memory. Pure. Source: KIP-98, Kafka's
TransactionIndex and AbortedTxn.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import Final

import msgspec

FILE_SUFFIX: Final = ".txnindex"

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(msgspec.Struct, frozen=True):
    """One aborted transaction. `last_offset` is the marker's. All transactions before `last_stable_offset` had ended by
    then.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The index of one segment. `entries` is the content of the file."""

    __slots__ = ("entries",)

    def __init__(self, entries: bytes = b"") -> None:
        self.entries = bytearray(entries)

    def __len__(self) -> int:
        return len(self.entries) // _ENTRY.size

    def __getitem__(self, row: int) -> AbortedTransaction:
        _, *fields = _ENTRY.unpack_from(self.entries, row * _ENTRY.size)
        return AbortedTransaction(*fields)

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction, whose marker follows those of all earlier entries."""
        self.entries += _ENTRY.pack(
            _VERSION,
            aborted.producer_id,
            aborted.first_offset,
            aborted.last_offset,
            aborted.last_stable_offset,
        )

    def _row_from(self, offset: int) -> int:
        """Return the first entry whose marker is at or after `offset`."""
        return bisect_left(range(len(self)), offset, key=lambda row: self[row].last_offset)

    def overlapping(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the entries with an offset in [start, end), and whether later segments cannot have more of them."""
        found = []
        for row in range(self._row_from(start_offset), len(self)):
            aborted = self[row]
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def truncate(self, end_offset: int) -> None:
        """Remove the transactions whose markers are at or after `end_offset`."""
        del self.entries[self._row_from(end_offset) * _ENTRY.size :]

    def is_plausible(self, count: int, base_offset: int, end_offset: int) -> bool:
        """Return whether this can be the index of a segment with these offsets and `count` aborted transactions."""
        if len(self.entries) != count * _ENTRY.size:
            return False
        before = base_offset - 1
        for row in range(count):
            version, _, first, last, _ = _ENTRY.unpack_from(self.entries, row * _ENTRY.size)
            if version != _VERSION or not (0 <= first < last and before < last < end_offset):
                return False
            before = last
        return True
