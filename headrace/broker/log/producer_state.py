"""State of a partition's producers: the last five batches of each, and its open transaction (rules P1 to P5, T4,
T5).

A retry of one of these batches is answered with the original's offsets; any other batch must continue the sequence. A
transaction is open from its first batch to the marker that ends it; the earliest open one bounds the stable offsets. A
marker with a newer epoch fences batches that the producer sends with the old one. Producer ids below -1 are forwarded
identities: one writer's stream split over partitions. There, gaps in the sequence are expected, and everything at or
before the last sequence (modulo its wrap) is a repeat.

Snapshots are Kafka's `<offset>.snapshot`, version 1: the state that the log below that offset gives. Kafka keeps one
entry per producer there; we write up to five, the latest last, which is the one that Kafka keeps. When the sequence
count of a batch is not its number of offsets (Arrow batches), the file gets the private version 100, which has the
first sequence as well.

Pure. Kept in memory, rebuilt from snapshot and log. Source: KIP-98, Kafka's ProducerStateManager.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from struct import Struct
from typing import Final

import crc32c
import msgspec

from headrace.broker.log.transaction_index import AbortedTransaction
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.control import EndMarker
from headrace.protocol.records.header import (
    MAGIC_ARROW,
    MAX_SEQUENCE,
    NO_SEQUENCE,
    BatchHeader,
    advance_sequence,
)

BATCHES_KEPT: Final = 5
SNAPSHOT_SUFFIX: Final = ".snapshot"

_PREFIX: Final = Struct(">hI")
_COUNT: Final = Struct(">i")
_ENTRY: Final = Struct(">qhiqiqiq")
_WIDE_ENTRY: Final = Struct(">qhiqiqiqi")
_VERSION: Final = 1
_WIDE_VERSION: Final = 100
_NO_COORDINATOR_EPOCH: Final = -1
_NO_TRANSACTION: Final = -1
_NO_OFFSET: Final = -1


class AppendedBatch(msgspec.Struct):
    """The place of a producer's batch. `timestamp` is its largest one, after any stamping by the log. Must not be
    changed.
    """

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Producer:
    """One producer. `batches` is empty when the epoch began with a marker: the first batch must then have sequence
    0.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "seen", "timestamp")

    def __init__(
        self,
        epoch: int,
        batches: list[AppendedBatch],
        seen: float,
        coordinator_epoch: int = _NO_COORDINATOR_EPOCH,
        timestamp: int = -1,
    ) -> None:
        self.epoch = epoch
        self.batches = batches
        self.seen = seen
        """Monotonic time of the last append, or of the restart; expiry counts from it."""
        self.coordinator_epoch = coordinator_epoch
        """The coordinator epoch of the last marker."""
        self.timestamp = timestamp
        """The timestamp of the last batch or marker."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerState:
    """All producers of a partition. `open_transactions` maps producer ids to the first offset of their transaction,
    earliest first.
    """

    __slots__ = ("open_transactions", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self.open_transactions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.producers)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest open transaction, None if none is open."""
        return next(iter(self.open_transactions.values()), None)

    def check(self, header: BatchHeader, *, has_sequence: bool = True) -> AppendedBatch | None:
        """Return the original if `header` repeats a batch, None if it may be appended; changes nothing.

        A coordinator writes for a producer without sequences: then only epoch and transaction are checked.

        Raises KafkaError with INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or INVALID_TXN_STATE.
        """
        producer_id, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        producer = self.producers.get(producer_id)
        if producer is None:
            # A Kafka producer may continue a sequence that the log has forgotten. A table's writer may not.
            if header.magic == MAGIC_ARROW and producer_id >= 0 and first != 0:
                raise _out_of_order(
                    header, "the log does not know this producer, so its sequence must begin with 0"
                )
            return None
        if epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} wrote with epoch {epoch}, but epoch {producer.epoch} has taken over",
            )
        if not header.is_transactional and producer_id in self.open_transactions:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has an open transaction, and this batch is not part of it",
            )
        if not has_sequence:
            return None
        batches = producer.batches
        if epoch > producer.epoch or not batches:
            if producer_id >= 0 and first != 0:
                raise _out_of_order(header, f"epoch {epoch} is new, so its sequence must begin with 0")
            return None
        latest = batches[-1]
        if producer_id < -1:
            return None if _is_after(first, latest.last_sequence) else _covering(batches, first)
        if first == advance_sequence(latest.last_sequence, 1):
            return None
        last = header.last_sequence
        for batch in batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        raise _out_of_order(header, f"the last sequence was {latest.last_sequence}")

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Check that a marker may be written. Raises KafkaError: INVALID_PRODUCER_EPOCH for a marker of an old epoch,
        TRANSACTION_COORDINATOR_FENCED for one of an old coordinator.
        """
        producer = self.producers.get(producer_id)
        if producer is None:
            return
        if epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {producer_id} has epoch {epoch}, but epoch {producer.epoch} has taken over",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of producer {producer_id} comes from coordinator epoch {coordinator_epoch}, after "
                f"one of {producer.coordinator_epoch}",
            )

    def marker_appended(
        self, producer_id: int, epoch: int, marker: EndMarker, offset: int, timestamp: int, now: float
    ) -> AbortedTransaction | None:
        """Note that a marker is in the log at `offset`. Return the transaction if it aborted one that had written
        something (T6: a transaction without data leaves no trace).
        """
        producer = self.producers.get(producer_id)
        if producer is None:
            self.producers[producer_id] = Producer(epoch, [], now, marker.coordinator_epoch, timestamp)
        else:
            if producer.epoch != epoch:
                producer.epoch = epoch
                producer.batches = []
            producer.seen, producer.timestamp = now, timestamp
            producer.coordinator_epoch = max(marker.coordinator_epoch, producer.coordinator_epoch)
        if marker.commit is None:
            return None
        first_offset = self.open_transactions.pop(producer_id, None)
        if first_offset is None or marker.commit:
            return None
        stable = self.first_unstable_offset
        return AbortedTransaction(producer_id, first_offset, offset, offset + 1 if stable is None else stable)

    def update(self, header: BatchHeader, base_offset: int, timestamp: int, now: float) -> None:
        """Note a batch that is in the log. `now` is monotonic time."""
        if header.is_transactional:
            self.open_transactions.setdefault(header.producer_id, base_offset)
        self.add(
            header.producer_id,
            header.producer_epoch,
            AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                timestamp,
            ),
            now,
        )

    def add(self, producer_id: int, epoch: int, batch: AppendedBatch, now: float) -> None:
        producer = self.producers.get(producer_id)
        if producer is None:
            self.producers[producer_id] = Producer(epoch, [batch], now, timestamp=batch.timestamp)
            return
        producer.seen, producer.timestamp = now, batch.timestamp
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches = [batch]
            return
        batches = producer.batches
        batches.append(batch)
        if len(batches) > BATCHES_KEPT:
            del batches[0]

    def expire(self, now: float, age: float) -> int:
        """Forget producers that sent nothing for `age` seconds of monotonic time, and return their number.

        A producer with an open transaction stays: its coordinator has to end the transaction.
        """
        old = [
            producer_id
            for producer_id, producer in self.producers.items()
            if now - producer.seen > age and producer_id not in self.open_transactions
        ]
        for producer_id in old:
            del self.producers[producer_id]
        return len(old)

    def _rows(self) -> Iterator[tuple[int, Producer, AppendedBatch]]:
        for producer_id, producer in self.producers.items():
            for batch in producer.batches or (
                AppendedBatch(NO_SEQUENCE, NO_SEQUENCE, _NO_OFFSET, _NO_OFFSET, producer.timestamp),
            ):
                yield producer_id, producer, batch

    def encode_snapshot(self) -> bytes:
        rows = list(self._rows())
        wide = any(
            batch.first_sequence >= 0
            and advance_sequence(batch.first_sequence, batch.last_offset - batch.base_offset)
            != batch.last_sequence
            for _, _, batch in rows
        )
        parts = [_COUNT.pack(len(rows))]
        for producer_id, producer, batch in rows:
            entry = (
                producer_id,
                producer.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.base_offset,
                batch.timestamp,
                producer.coordinator_epoch,
                self.open_transactions.get(producer_id, _NO_TRANSACTION),
            )
            parts.append(_WIDE_ENTRY.pack(*entry, batch.first_sequence) if wide else _ENTRY.pack(*entry))
        body = b"".join(parts)
        return _PREFIX.pack(_WIDE_VERSION if wide else _VERSION, crc32c.crc32c(body)) + body

    @classmethod
    def decode_snapshot(cls, data: bytes, now: float) -> ProducerState:
        """Decode a snapshot. Raises ValueError unless it is whole and intact."""
        try:
            version, crc = _PREFIX.unpack_from(data)
            body = memoryview(data)[_PREFIX.size :]
            (count,) = _COUNT.unpack_from(body)
        except struct.error as error:
            raise ValueError(f"cut short: {error}") from None
        layout = {_VERSION: _ENTRY, _WIDE_VERSION: _WIDE_ENTRY}.get(version)
        if layout is None:
            raise ValueError(f"version {version} is unknown")
        if crc32c.crc32c(body) != crc:
            raise ValueError("the CRC does not match")
        if len(body) - _COUNT.size != count * layout.size:
            raise ValueError(f"{count} entries do not fit into {len(body)} bytes")
        state = cls()
        opened: list[tuple[int, int]] = []
        for (
            producer_id,
            epoch,
            last_sequence,
            last_offset,
            delta,
            timestamp,
            coordinator_epoch,
            first_of_transaction,
            *rest,
        ) in layout.iter_unpack(body[4:]):
            if last_offset >= 0:
                if rest:
                    first_sequence = rest[0]
                else:
                    first_sequence = (
                        (last_sequence - delta) & MAX_SEQUENCE if last_sequence >= 0 else NO_SEQUENCE
                    )
                batch = AppendedBatch(
                    first_sequence, last_sequence, last_offset - delta, last_offset, timestamp
                )
                state.add(producer_id, epoch, batch, now)
                state.producers[producer_id].coordinator_epoch = coordinator_epoch
            else:  # a producer with a marker only, or whose records are all gone
                state.producers[producer_id] = Producer(epoch, [], now, coordinator_epoch, timestamp)
            if first_of_transaction >= 0:
                opened.append((first_of_transaction, producer_id))
        for first_of_transaction, producer_id in sorted(opened):
            state.open_transactions[producer_id] = first_of_transaction
        return state


def _is_after(sequence: int, last: int) -> bool:
    """Return whether `sequence` comes after `last` on the circle of 2^31 numbers: less than half of it ahead."""
    return 0 < ((sequence - last) & MAX_SEQUENCE) < (MAX_SEQUENCE + 1) // 2


def _covering(batches: list[AppendedBatch], sequence: int) -> AppendedBatch:
    """Return the kept batch that a repeated sequence belongs to; the latest one if the sequence is older than all of
    them.
    """
    for batch in batches:
        span = (batch.last_sequence - batch.first_sequence) & MAX_SEQUENCE
        if ((sequence - batch.first_sequence) & MAX_SEQUENCE) <= span:
            return batch
    return batches[-1]


def _out_of_order(header: BatchHeader, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence}: {why}",
    )
