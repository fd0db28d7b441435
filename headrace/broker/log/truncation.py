"""The end of a log moves: back to an earlier offset, or to any offset once every local record is discarded.

Both change several files, so a failure half-way stops the log (`LogHealth.fail`) until it is opened again. The lock of
`Durability` keeps a sync from reading files that are being removed.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.log.config import LogConfig
from headrace.broker.log.durability import Durability
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.folder import LogFolder
from headrace.broker.log.health import LogHealth
from headrace.broker.log.log_producers import LogProducers
from headrace.broker.log.producer_state import ProducerState
from headrace.broker.log.segment_chain import SegmentChain
from headrace.broker.runtime.ports import Clock
from headrace.protocol.errors import ErrorCode, KafkaError


class LogTruncation:
    """Moves the end of one log; see the module."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        chain: SegmentChain,
        folder: LogFolder,
        epochs: LeaderEpochs,
        producers: LogProducers,
        durability: Durability,
        health: LogHealth,
    ) -> None:
        """`name` is that of the partition, for messages."""
        self._name = name
        self._clock = clock
        self._chain = chain
        self._folder = folder
        self._epochs = epochs
        self._producers = producers
        self._durability = durability
        self._health = health

    def truncate_to(self, offset: int, config: LogConfig) -> None:
        """Remove every batch that reaches `offset`, which is below the log's end, or beyond. Raises KafkaError."""
        with self._durability.lock:
            try:
                self._folder.unmark_clean()
                self._producers.loaded = None
                end_offset = offset
                if offset >= self._chain.bases[0]:
                    end_offset = self._chain.from_offset(offset)[0].locate(offset)[1]
                self._durability.truncate_to(end_offset)
                self._chain.cut(offset, config, self._folder)
                self._epochs.truncate_from_end(self._chain.active.end_offset)
                self._folder.write_epochs(self._epochs, sync=True)
            except OSError as error:
                self._health.fail(f"truncation to {offset} failed half-way: {error}", error)
                raise self._health.storage_error("truncate", error) from error

    def start_at(
        self,
        offset: int,
        config: LogConfig,
        *,
        log_start_offset: int,
        tiered_to: int,
        epochs: Iterable[tuple[int, int]] = (),
        producers: bytes = b"",
    ) -> None:
        """Discard every local record; the log continues at `offset`, with these leader epochs and producers (the
        contents of a snapshot). Raises KafkaError.
        """
        with self._durability.lock:
            try:
                known = ProducerState()
                if producers:
                    known = ProducerState.decode_snapshot(producers, self._clock.monotonic())
                self._folder.unmark_clean()
                self._chain.reader.forget()
                self._folder.remove_snapshots()
                self._folder.make()
                self._durability.tiered_to = tiered_to
                self._durability.write_checkpoint(log_start_offset)
                self._chain.begin_at(offset, config)
                self._producers.loaded = known
                if producers:
                    self._folder.write_snapshot(offset, self._producers.state)
                self._epochs.truncate_from_end(0)
                for epoch, start_offset in epochs:
                    self._epochs.assign(epoch, start_offset)
                self._epochs.truncate_from_start(log_start_offset)
                self._folder.write_epochs(self._epochs, sync=True)
                self._durability.recovery_point = offset
            except (OSError, ValueError) as error:
                self._health.fail(f"it could not continue at offset {offset}: {error}", error)
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{self._name} could not continue at offset {offset}: {error}",
                ) from error
