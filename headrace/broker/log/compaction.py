"""Compaction of single batches: which records of a batch are kept, and in which form (rules C1 and C2).

- The last record of a key is kept; order and offsets stay. Records without a key are removed: none can be written
  today.
- A tombstone is kept until a time that is stored in its batch the first time it is cleaned (delete horizon, KIP-534).
  The same holds for the marker of a transaction, counted from when the last record of its transaction was removed.
- Records of aborted transactions are removed.
- A batch without remaining records is removed, with two exceptions whose header is kept. One holds the last sequence
  number of a known producer. The other is the last batch of the cleaned range: it keeps the log's offsets known.

Pure; every loop over records is a kernel. `compaction_plan` chooses the segments, `compaction_run` replaces them.
Source: Kafka's Cleaner, CleanedTransactionMetadata and MemoryRecords.filterTo.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.broker.log import compaction_kernels as kernels
from headrace.broker.log.transaction_index import AbortedTransaction
from headrace.protocol.errors import DecodeError
from headrace.protocol.records import rewrite
from headrace.protocol.records.decode import RecordColumns, decode_records
from headrace.protocol.records.header import HEADER_SIZE, MAGIC_V2, BatchHeader
from headrace.protocol.records.kernels import frozen

BYTES_PER_KEY: Final = 24
LOAD_FACTOR: Final = 0.75
"""Maximum load: a fuller table with linear probing gets slow."""

_SLOTS_MIN: Final = 64


class OffsetMap:
    """The latest offset of each key from one offset on, in at most `memory_bytes`.

    `end_offset` is the offset after the last batch that was added. `secret` is 16 random bytes.
    """

    def __init__(self, memory_bytes: int, keys_max: int, secret: bytes) -> None:
        """`keys_max` bounds the number of different keys: no more memory is taken than they need."""
        slots = _SLOTS_MIN
        while slots * 2 * BYTES_PER_KEY <= memory_bytes and slots * LOAD_FACTOR < keys_max:
            slots *= 2
        self._lows = np.empty(slots, np.uint64)
        self._highs = np.empty(slots, np.uint64)
        self._offsets = np.full(slots, kernels.FREE, np.int64)
        self._secret = frozen(np.frombuffer(secret, np.uint64), np.uint64)
        self.capacity = int(slots * LOAD_FACTOR)
        self.end_offset = 0
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def has_room_for(self, records: int) -> bool:
        return self._used + records <= self.capacity

    def add(self, records: RecordColumns, from_offset: int) -> None:
        self._used += kernels.remember(
            records.payload,
            frozen(records.key_start, np.int64),
            frozen(records.key_length, np.int64),
            frozen(records.offsets, np.int64),
            from_offset,
            self._secret,
            self._lows,
            self._highs,
            self._offsets,
        )

    def judge(self, records: RecordColumns, *, drop_tombstones: bool) -> tuple[NDArray[np.bool_], int, int]:
        """Return (which records to keep, their number, number of tombstones among them)."""
        keep = np.empty(len(records), np.bool_)
        kept, tombstones = kernels.judge(
            records.payload,
            frozen(records.key_start, np.int64),
            frozen(records.key_length, np.int64),
            frozen(records.value_length, np.int64),
            frozen(records.offsets, np.int64),
            self.end_offset,
            drop_tombstones,
            self._secret,
            self._lows,
            self._highs,
            self._offsets,
            keep,
        )
        return keep, kept, tombstones


class TransactionView:
    """Finds the batches of aborted transactions, and the markers whose transactions have no records left.

    It has to see every batch of the cleaned range, in order.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: -transaction.first_offset)
        self._aborted: set[int] = set()
        self._seen: set[int] = set()
        """Producers with a batch of their open transaction in the log, even an empty one: its marker has to stay."""

    def may_go(self, header: BatchHeader) -> bool:
        """Return whether a batch may be removed: data if it was aborted, a marker if nothing of its transaction is
        left.
        """
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._aborted.add(self._coming.pop().producer_id)
        producer_id = header.producer_id
        if header.is_control:
            was_seen = producer_id in self._seen
            self._seen.discard(producer_id)
            self._aborted.discard(producer_id)
            return not was_seen
        if not header.is_transactional:
            return False
        self._seen.add(producer_id)
        return producer_id in self._aborted


LastOfProducer = Mapping[int, tuple[int | None, int]]
"""Per known producer: the last offset of its last batch (None if there is a marker only), and its epoch."""


class CleaningCounts(msgspec.Struct):
    """Counts of the records that one cleaning read and kept."""

    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0


class BatchFilter:
    """Cleans one batch after the other, from the log's first segment to the end of the cleaned range.

    `round_end` is the offset where the cleaning ends; the batch before it is never removed.
    """

    def __init__(
        self,
        keys: OffsetMap,
        transactions: TransactionView,
        producers: LastOfProducer,
        *,
        round_end: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self.counts = CleaningCounts()
        self._keys = keys
        self._transactions = transactions
        self._producers = producers
        self._round_end = round_end
        self._now_ms = now_ms
        self._new_horizon = now_ms + delete_retention_ms

    def clean(self, header: BatchHeader, batch: memoryview) -> memoryview | bytes | None:
        """Return the remainder of a batch: itself, a smaller one, its header only, or None.

        A batch whose records cannot be read stays as it is.
        """
        result: memoryview | bytes | None = batch
        if header.magic == MAGIC_V2:
            with contextlib.suppress(DecodeError):
                result = self._clean(batch, header)
        counts = self.counts
        counts.records_read += header.record_count
        counts.bytes_read += header.size
        if result is not None:
            counts.bytes_kept += len(result)
        return result

    def _clean(self, batch: memoryview, header: BatchHeader) -> memoryview | bytes | None:
        horizon = rewrite.delete_horizon(header)
        is_over = horizon is not None and horizon <= self._now_ms
        may_go = self._transactions.may_go(header)
        new_horizon = None
        if header.is_control:
            if header.record_count and not (may_go and is_over):
                self.counts.records_kept += header.record_count
                if not may_go or horizon is not None:
                    return batch
                records = decode_records(batch)
                return rewrite.selected(batch, records, np.ones(len(records), np.bool_), self._new_horizon)
        elif header.record_count and not may_go:
            records = decode_records(batch)
            keep, kept, tombstones = self._keys.judge(records, drop_tombstones=is_over)
            self.counts.records_kept += kept
            if tombstones and horizon is None:
                new_horizon = self._new_horizon
            if kept == len(records) and new_horizon is None:
                return batch
            if kept:
                return rewrite.selected(batch, records, keep, new_horizon)
        if not self._must_stay(header):
            return None
        return batch if len(batch) == HEADER_SIZE else rewrite.emptied(batch, header)

    def _must_stay(self, header: BatchHeader) -> bool:
        if header.next_offset == self._round_end:
            return True
        last = self._producers.get(header.producer_id)
        if last is None:
            return False
        offset, epoch = last
        if offset is None:
            return header.is_control and header.producer_epoch == epoch
        return header.last_offset == offset
