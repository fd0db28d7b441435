"""Leader epochs: the start offset of each epoch (KIP-101), in Kafka's `leader-epoch-checkpoint` format.

The file is text: a version (0), the number of entries, then `epoch start_offset` per line, both ascending. A leader
change costs no write: the batches correct an entry that is missing in the file, or one of an epoch without records.

Pure; the log reads and writes the file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

FILE_NAME: Final = "leader-epoch-checkpoint"
UNDEFINED: Final = (-1, -1)


class LeaderEpochs:
    """`entries` are (epoch, start offset), both strictly ascending."""

    __slots__ = ("entries", "ready", "written")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries = list(entries)
        self.written = tuple(self.entries)
        """The entries that the file holds."""
        self.ready = -1
        """The epoch for which the log is prepared to be written to, or -1. Each change of the entries resets it."""

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that epoch `epoch` writes from `start_offset` on. An older or equal epoch changes nothing.

        Epochs that have written nothing are removed.
        """
        if epoch <= self.latest:
            return
        self.ready = -1
        while self.entries and self.entries[-1][1] >= start_offset:
            self.entries.pop()
        self.entries.append((epoch, start_offset))

    def found(self, epoch: int, offset: int) -> None:
        """Note that the log has a batch of `epoch` at `offset`, and correct other epochs accordingly."""
        if epoch < 0:
            return
        before = [(e, start) for e, start in self.entries if e <= epoch and start < offset + (e == epoch)]
        after = [(e, start) for e, start in self.entries if e > epoch and start > offset]
        if not before or before[-1][0] != epoch:
            before.append((epoch, offset))
        self.entries = [*before, *after]

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (largest known epoch not above `epoch`, its end offset); (-1, -1) if it is not known.

        An epoch before the first known one ends where the first one begins, as in Kafka.
        """
        if epoch < 0 or not self.entries or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        index = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        if index == 0:
            return epoch, self.entries[0][1]
        return self.entries[index - 1][0], self.entries[index][1]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote `offset`, -1 if it is not known."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[index - 1][0] if index else -1

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin at or after `end_offset`."""
        self.ready = -1
        while self.entries and self.entries[-1][1] >= end_offset:
            self.entries.pop()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or before `start_offset`; the one that covers it begins there now."""
        self.ready = -1
        index = bisect_right(self.entries, start_offset, key=lambda entry: entry[1])
        if index:
            self.entries[:index] = [(self.entries[index - 1][0], start_offset)]

    def encode(self) -> bytes:
        lines = ["0", str(len(self.entries)), *(f"{epoch} {start}" for epoch, start in self.entries)]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        """Decode the file. Raises ValueError for other contents."""
        lines = data.decode("ascii").split("\n")
        if lines[0] != "0" or lines[-1] != "" or int(lines[1]) != len(lines) - 3:
            raise ValueError("not a leader epoch checkpoint of version 0")
        entries = []
        for line in lines[2:-1]:
            epoch, start = line.split(" ")
            entries.append((int(epoch), int(start)))
        for before, after in pairwise(entries):
            if before[0] >= after[0] or before[1] >= after[1]:
                raise ValueError(f"the entries {before} and {after} do not ascend")
        if entries and min(entries[0]) < 0:
            raise ValueError(f"the entry {entries[0]} is negative")
        return cls(entries)
