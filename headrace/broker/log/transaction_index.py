"""The aborted transactions of a segment: what a read_committed consumer must be told to leave out (rule T5).

One entry per transaction whose abort marker lies in the segment and that had written something, in the order
of the markers. The file is Kafka's `.txnindex`: entries of 34 bytes,

    int16 version (0), int64 producer id, int64 first offset, int64 last offset (of the marker),
    int64 last stable offset after it

There is no file for a segment without entries. Held in memory in the form of the file. Pure.
Source: KIP-98, Kafka's TransactionIndex and AbortedTxn.
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
    """`last_offset` is the marker's. `last_stable_offset`: every transaction before it had ended then."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """`entries` is the content of the file."""

    __slots__ = ("entries",)

    def __init__(self, entries: bytes = b"") -> None:
        self.entries = bytearray(entries)

    def __len__(self) -> int:
        return len(self.entries) // _ENTRY.size

    def __getitem__(self, row: int) -> AbortedTransaction:
        _, *fields = _ENTRY.unpack_from(self.entries, row * _ENTRY.size)
        return AbortedTransaction(*fields)

    def append(self, aborted: AbortedTransaction) -> None:
        """Its marker follows those of all the others."""
        self.entries += _ENTRY.pack(
            _VERSION,
            aborted.producer_id,
            aborted.first_offset,
            aborted.last_offset,
            aborted.last_stable_offset,
        )

    def _row_from(self, offset: int) -> int:
        """The first entry whose marker is at or after `offset`."""
        return bisect_left(range(len(self)), offset, key=lambda row: self[row].last_offset)

    def overlapping(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Entries with an offset in [start, end), and whether later segments cannot have more of them."""
        found = []
        for row in range(self._row_from(start_offset), len(self)):
            aborted = self[row]
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def truncate(self, end_offset: int) -> None:
        """Forget the transactions whose markers are at or after `end_offset`."""
        del self.entries[self._row_from(end_offset) * _ENTRY.size :]

    def is_plausible(self, count: int, base_offset: int, end_offset: int) -> bool:
        """Whether this can be the index of a segment with these offsets and `count` aborted transactions."""
        if len(self.entries) != count * _ENTRY.size:
            return False
        before = base_offset - 1
        for row in range(count):
            version, _, first, last, _ = _ENTRY.unpack_from(self.entries, row * _ENTRY.size)
            if version != _VERSION or not (0 <= first < last and before < last < end_offset):
                return False
            before = last
        return True
