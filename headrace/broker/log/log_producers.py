"""The producers of one log: their state is loaded from snapshots and batches when it is first needed."""

from __future__ import annotations

from pathlib import Path

from headrace.broker.log import recovery
from headrace.broker.log.health import LogHealth
from headrace.broker.log.producer_state import ProducerState
from headrace.broker.log.segment_chain import SegmentChain
from headrace.broker.runtime.ports import Clock, Disk
from headrace.protocol.errors import ErrorCode, KafkaError


class LogProducers:
    """The state of the idempotent and transactional producers at the end of one log.

    Every method but `expire` loads the state if necessary. Raises KafkaError if it cannot be read.
    """

    __slots__ = ("_chain", "_clock", "_directory", "_disk", "_health", "loaded")

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        chain: SegmentChain,
        clock: Clock,
        health: LogHealth,
        loaded: ProducerState | None,
    ) -> None:
        self._disk = disk
        self._health = health
        self._directory = directory
        self._chain = chain
        self._clock = clock
        self.loaded = loaded
        """The state, or None before it is needed. None is assigned when the log's end moves back."""

    def state(self) -> ProducerState:
        return self._health.reading(self.load) if self.loaded is None else self.loaded

    def load(self) -> ProducerState:
        """Do the same as `state`, also in a log that is not usable. Raises OSError, CorruptLogError and DecodeError."""
        if self.loaded is None:
            self.loaded = recovery.load_producers(
                self._disk,
                self._directory,
                self._chain.segments,
                self._chain.active.end_offset,
                self._clock,
            )
        return self.loaded

    def expire(self, expiration_ms: int) -> None:
        """Forget producers that have written nothing for `expiration_ms`. A state that is not loaded stays as it is."""
        if self.loaded is not None:
            self.loaded.expire(self._clock.monotonic(), expiration_ms / 1000)

    def last_batches(self) -> dict[int, tuple[int | None, int]]:
        """Return, for each known producer, the last offset of its last batch (None after a marker alone), and its
        epoch.
        """
        return {
            producer_id: (producer.batches[-1].last_offset if producer.batches else None, producer.epoch)
            for producer_id, producer in self.state().producers.items()
        }

    def check_end_marker(self, producer_id: int, epoch: int, *, is_next_epoch: bool) -> None:
        """Check that a marker belongs to the transaction that is open here.

        With transactions version 2 (`is_next_epoch`) its epoch is above that of the batches that it ends: a marker with
        their own epoch is a late one of the transaction before. Raises KafkaError(INVALID_PRODUCER_EPOCH).
        """
        state = self.state()
        producer = state.producers.get(producer_id)
        if producer is None or producer_id not in state.open_transactions:
            return
        if is_next_epoch and epoch <= producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {producer_id} has epoch {epoch}, and a transaction of epoch "
                f"{producer.epoch} is open: the marker belongs to one that ended before",
            )
