"""The writer of one log: it checks a batch, stamps its offsets into it, appends it to the active segment and notes it.

All checks come before the first change. A segment that has no room for the next batch is sealed first.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.broker.log.errors import HalfWrittenError
from headrace.broker.log.parts import LogParts
from headrace.broker.log.preparation import prepare
from headrace.broker.log.producer_state import AppendedBatch
from headrace.broker.log.segment import Segment
from headrace.broker.log.stamp import stamp, stamp_with_time
from headrace.broker.log.validation import AppendOrigin, validate_batch
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.check import Effort
from headrace.protocol.records.control import EndMarker, read_end_marker
from headrace.protocol.records.header import CONTROL_BIT, NO_PRODUCER_ID, BatchHeader, Buffer


class AppendInfo(msgspec.Struct):
    """The place of a batch. `log_append_time_ms` is -1 unless the topic stamps log append time.

    `duplicate`: the batch was there before; the offsets are the original's.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class LogWriter:
    """Appends to one log; see the module."""

    __slots__ = (
        "_background",
        "_chain",
        "_clock",
        "_durability",
        "_epochs",
        "_folder",
        "_health",
        "_producers",
    )

    def __init__(self, parts: LogParts, background: Callable[[Callable[[], None]], object] | None) -> None:
        """`background` syncs sealed segments elsewhere; None: a flush syncs them."""
        self._chain = parts.chain
        self._clock = parts.clock
        self._durability = parts.durability
        self._epochs = parts.epochs
        self._folder = parts.folder
        self._health = parts.health
        self._producers = parts.producers
        self._background = background

    def check_producer(self, header: BatchHeader) -> AppendInfo | None:
        """Return the original's place if an idempotent producer repeats a batch, None if it may be appended.

        Raises KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE.
        """
        if not header.has_producer:
            return None
        original = self._producers.state().check(header)
        return None if original is None else self._duplicate(original)

    def prepare(self, batch: Buffer, *, large: bool = True) -> memoryview:
        """Do the slow part of a client's append, if the topic demands it: check the records, recompress the batch.

        Any thread may call it; `append` does it unless the caller says that it was done. Raises KafkaError. Unless
        `large`, raises TakesTime for a batch that must be prepared alone because of its decompressed size.
        """
        config, now_ms = self._chain.config, self._clock.time_ms()
        view = memoryview(batch)
        header = validate_batch(view, config, AppendOrigin.CLIENT, now_ms)
        return prepare(view, header, config, now_ms, large=large)

    def append(
        self,
        batch: Buffer,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        prepared: bool = False,
        effort: Effort | None = None,
    ) -> AppendInfo:
        """Validate one batch, give it the next offsets and write it. `batch` itself is not changed.

        Afterwards `must_commit` tells whether a `commit` has to come before the acknowledgement. With `effort` it
        raises TakesTime for a batch that has to be prepared in a thread first; nothing has changed then.

        Raises KafkaError with Kafka's code for a refused batch, and with KAFKA_STORAGE_ERROR when the disk fails. In
        both cases the log is unchanged, except after a failed fsync (see `PartitionLog`).
        """
        if not self._health.is_usable:
            self._health.check()
        config = self._chain.config
        view = memoryview(batch)
        now_ms = self._clock.time_ms()
        header = validate_batch(view, config, origin, now_ms, effort)
        if config.looks_into_batches and origin is AppendOrigin.CLIENT and not prepared:
            sent, view = view, prepare(view, header, config, now_ms, effort)
            if view is not sent:
                # another codec changes the batch's size
                header = validate_batch(view, config, origin, now_ms, effort)
        producers = self._producers.loaded
        if producers is None:
            producers = self._producers.state()
        marker = None
        if header.attributes & CONTROL_BIT:
            marker = read_end_marker(view)
            producers.check_marker(header.producer_id, header.producer_epoch, marker.coordinator_epoch)
        elif header.producer_id != NO_PRODUCER_ID:
            original = producers.check(header, has_sequence=origin is not AppendOrigin.COORDINATOR)
            if original is not None:
                return self._duplicate(original)
        size = len(view)
        base_offset = self._chain.active.end_offset
        last_offset = base_offset + header.last_offset_delta
        if config.is_log_append_time:
            timestamp = append_time = now_ms
            prefix, rest = stamp_with_time(view, header, base_offset, leader_epoch, now_ms)
        else:
            timestamp, append_time = header.max_timestamp, -1
            prefix, rest = stamp(view, header, base_offset, leader_epoch)
        segment = self.segment_for(size, base_offset, last_offset, timestamp, leader_epoch)
        self.write(segment, prefix, rest)
        self.written(segment, header, base_offset, last_offset, size, timestamp, marker, now_ms)
        return AppendInfo(base_offset, last_offset, append_time, self._durability.log_start_offset)

    def segment_for(
        self, size: int, base_offset: int, last_offset: int, newest_ms: int, leader_epoch: int
    ) -> Segment:
        """Return the active segment, prepared for the next `size` bytes. Raises KafkaError."""
        segment = self._chain.active
        if segment.size and (
            segment.base_offset < self._durability.tiered_to  # a copy in remote storage does not grow
            or segment.must_roll(self._chain.config, size, last_offset, newest_ms)
        ):
            segment = self.roll()
        if leader_epoch != self._epochs.ready or not segment.size:
            self._prepare_to_write(leader_epoch, base_offset)
        return segment

    def written(
        self,
        segment: Segment,
        header: BatchHeader,
        base_offset: int,
        last_offset: int,
        size: int,
        timestamp: int,
        marker: EndMarker | None,
        now_ms: int,
    ) -> None:
        """Note a batch whose bytes were written to the end of the active segment."""
        position = segment.size
        segment.appended(last_offset, size, timestamp)
        if timestamp < 0:
            segment.untimed_append_ms = now_ms
        if marker is not None:
            aborted = self._producers.state().marker_appended(
                header.producer_id,
                header.producer_epoch,
                marker,
                last_offset,
                timestamp,
                self._clock.monotonic(),
            )
            if aborted is not None:
                segment.aborted.append(aborted)
        elif header.producer_id != NO_PRODUCER_ID:
            self._producers.state().update(header, base_offset, timestamp, self._clock.monotonic())
        self._chain.reader.appended(base_offset, position)

    def _duplicate(self, original: AppendedBatch) -> AppendInfo:
        append_time = original.timestamp if self._chain.config.is_log_append_time else -1
        start = self._durability.log_start_offset
        return AppendInfo(original.base_offset, original.last_offset, append_time, start, duplicate=True)

    def _prepare_to_write(self, leader_epoch: int, base_offset: int) -> None:
        """Prepare the log for a batch: no clean marker, an existing folder, and a known epoch.

        The epoch reaches its file with the next flush or close; until then a recovery finds it in the batch.
        """
        epochs = self._epochs
        if leader_epoch < epochs.latest:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {leader_epoch} cannot write after epoch {epochs.latest}",
            )
        self._health.reading(self._chain.active.prepare_to_grow)
        try:
            if self._folder.is_marked_clean:
                self._folder.unmark_clean()
            elif not base_offset and not self._chain.active.size:
                self._folder.make()
            if leader_epoch > epochs.latest:
                epochs.assign(leader_epoch, base_offset)
            epochs.ready = leader_epoch
        except OSError as error:
            raise self._health.storage_error("append to", error) from error

    def write(self, segment: Segment, prefix: bytes, rest: memoryview) -> None:
        """Write bytes to the end of the active segment, all or nothing. Raises KafkaError."""
        try:
            segment.write((prefix, rest))
            if not segment.size:
                # Set after the write: a commit under way has not seen the new name.
                self._folder.has_new_names = True
        except OSError as error:
            if isinstance(error, HalfWrittenError):
                self._health.fail(str(error))
            raise self._health.storage_error("append to", error) from error

    def roll(self) -> Segment:
        """Seal the active segment and begin another, whose file is made by its first batch. Raises KafkaError."""
        try:
            self._chain.active.seal()
            self._folder.write_snapshot(self._chain.active.end_offset, self._producers.load)
            self._folder.has_new_names = True
            self._chain.extend()
        except OSError as error:
            raise self._health.storage_error("append to", error) from error
        if self._background is not None:
            self._background(self._durability.flush_in_background)
        return self._chain.active
