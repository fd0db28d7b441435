"""The log of one partition: batches in segments, in order, each stamped with its final offset.

Invariants:

- Offsets are dense: a batch begins where the one before it ended. A record that was read at an offset never changes.
- An append is all or nothing: after a failed write the file is cut back, the log stays readable, and the next append
  may succeed (a full disk that has room again needs no restart).
- After a failed fsync nothing is acknowledged: the log refuses everything until it is opened again. The same holds for
  a truncation that ends half-way. If it lacked room, files or memory (`is_interrupted`), the log can be opened at once.
- `log_start_offset` and `recovery_point` never go back, except that truncation lowers the latter.

Durability (`durability.py`): `append` writes into the page cache, so the records survive the end of the process. If
`must_commit` is true (`durability=power`, `flush.messages`), they may be acknowledged and read only after a `commit`,
and then survive a power cut: data, names and directories are fsynced. One commit covers everything that was appended
before it began. An open commits what it finds in such a log before it can be read.

Blocking and not thread-safe: one thread (the event loop) uses it. The exceptions are `commit` and `flush`, which any
thread may call. An empty log has no files at all; everything is opened when it is first needed.

The files have Kafka's layout; `checkpoint` describes the two files that Kafka does not have. Compaction
(`compaction_run`) replaces sealed segments by smaller ones: offsets may then be missing below `compacted_to`, never
above; in a copy of such a log also below `gaps_to`.

A follower's log appends its leader's batches unchanged (`append_copies`): offsets, epochs and gaps are the leader's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.log import recovery, time_lookup
from headrace.broker.log.config import LogConfig
from headrace.broker.log.copying import Copy, check_copies
from headrace.broker.log.durability import Durability
from headrace.broker.log.errors import CleaningAbandoned, HalfWrittenError, InRemoteStorage
from headrace.broker.log.folder import LogFolder
from headrace.broker.log.health import READ_ERRORS, LogHealth
from headrace.broker.log.log_producers import LogProducers
from headrace.broker.log.preparation import prepare
from headrace.broker.log.producer_state import AppendedBatch, Producer
from headrace.broker.log.removal import SegmentRemoval
from headrace.broker.log.retention import retention_plan
from headrace.broker.log.segment import Segment
from headrace.broker.log.segment_chain import SegmentChain
from headrace.broker.log.slice import LogSlice
from headrace.broker.log.stamp import stamp, stamp_with_time
from headrace.broker.log.time_lookup import Opened
from headrace.broker.log.transaction_index import AbortedTransaction
from headrace.broker.log.truncation import LogTruncation
from headrace.broker.log.validation import AppendOrigin, validate_batch
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import Clock, Disk
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.check import Effort
from headrace.protocol.records.control import EndMarker, read_end_marker
from headrace.protocol.records.header import (
    CONTROL_BIT,
    NO_PRODUCER_ID,
    BatchHeader,
    Buffer,
)

if TYPE_CHECKING:
    from headrace.broker.runtime.slices import Work

__all__ = ["AppendInfo", "AppendOrigin", "PartitionLog"]

logger = logging.getLogger("headrace.log")


_INDEX_ENTRY_BYTES_MAX: Final = 12


class AppendInfo(msgspec.Struct):
    """The place of a batch. `log_append_time_ms` is -1 unless the topic stamps log append time.

    `duplicate`: the batch was there before; the offsets are the original's.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class PartitionLog:
    """The log of one partition; see the module. Made by `open`."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        disk: Disk,
        recovered: recovery.RecoveredLog,
        background: Callable[[Callable[[], None]], object] | None,
        discard: Callable[[Path, int], object] | None = None,
        companions: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.config = config
        self.recovered = recovered.report
        begin = recovered.checkpoint
        self._clock = clock
        self._disk = disk
        self._background = background
        self._epochs = recovered.epochs
        self._epochs.truncate_from_start(begin.log_start_offset)
        self._chain = SegmentChain(
            disk,
            directory,
            recovered.segments,
            config,
            max(begin.log_start_offset, begin.compacted_to, begin.tiered_to),
        )
        self._producers = LogProducers(disk, directory, self._chain, clock, recovered.producers)
        self._folder = LogFolder(disk, directory, companions, was_clean=recovered.report.was_clean)
        self._ready_epoch = -1
        """The leader epoch for which `_prepare_to_write` has nothing more to do, or -1."""
        self._health = LogHealth(directory.name)
        self._durability = Durability(self._chain, self._folder, self._epochs, self._health, begin)
        self._removal = SegmentRemoval(
            disk, self._chain, self._folder, self._epochs, self._durability, self._health, discard
        )
        self._truncation = LogTruncation(
            directory.name,
            clock,
            self._chain,
            self._folder,
            self._epochs,
            self._producers,
            self._durability,
            self._health,
        )

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        clock: Clock,
        disk: Disk | None = None,
        background: Callable[[Callable[[], None]], object] | None = None,
        discard: Callable[[Path, int], object] | None = None,
        is_new: bool = False,
        companions: Sequence[str] = (),
    ) -> PartitionLog:
        """Open the log in `directory`, which need not exist. `recovered` describes what that took.

        - background: syncs sealed segments elsewhere, for example `executor.submit`; None: they are synced on `flush`
          only
        - discard: removes a file after a number of milliseconds; None removes it at once
        - is_new: the caller has just made the directory, so there is nothing to look for
        - companions: names of files that the caller has put into the directory; they are durable when the log is

        Raises CorruptLogError when the log is damaged in the middle, OSError when the disk does not answer, and
        KafkaError(KAFKA_STORAGE_ERROR) when the records that were found cannot be made durable as required.
        """
        disk = SystemDisk() if disk is None else disk
        recovered = recovery.nothing() if is_new else recovery.recover(disk, directory, config, clock)
        log = cls(directory, config, clock, disk, recovered, background, discard, companions)
        log._folder.is_there = is_new
        if log.must_commit:
            log.commit()
        return log

    def __repr__(self) -> str:
        return (
            f"<PartitionLog {self.directory.name} offsets {self.log_start_offset} to {self.log_end_offset}>"
        )

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._chain.active.end_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._durability.log_start_offset

    @property
    def local_start_offset(self) -> int:
        """The first offset that is stored locally. Earlier ones, from the log's start on, are in remote storage only
        (KIP-405).
        """
        return max(self.log_start_offset, min(self.tiered_to, self._chain.bases[0]))

    @property
    def size_bytes(self) -> int:
        return self._chain.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._chain.segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, read-only; the last one is the active one."""
        return self._chain.segments

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """(leader epoch, start offset) of each epoch, ascending."""
        return self._epochs.entries

    @property
    def failure(self) -> str | None:
        """The reason why the log refuses everything, or None."""
        return self._health.failure

    @property
    def is_damaged(self) -> bool:
        """Whether it has failed because of the contents of its files; then it can be replaced by a copy of another
        replica's log.
        """
        return self._health.is_damaged

    @property
    def is_interrupted(self) -> bool:
        """Whether it has failed in a change that needs only room to succeed: it may be opened again, as after a
        crash.
        """
        return self._health.is_interrupted

    def reconfigure(self, config: LogConfig) -> None:
        """Use another configuration from now on. Written records stay as they are."""
        self.config = config

    # -- append --------------------------------------------------------------------------------------------

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
        config, now_ms = self.config, self._clock.time_ms()
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
        both cases the log is unchanged, except after a failed fsync (see the module).
        """
        if not self._health.is_usable:
            self._health.check()
        config = self.config
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
        segment = self._segment_for(size, base_offset, last_offset, timestamp, leader_epoch)
        self._write(segment, prefix, rest)
        self._written(segment, header, base_offset, last_offset, size, timestamp, marker, now_ms)
        return AppendInfo(base_offset, last_offset, append_time, self._durability.log_start_offset)

    def _segment_for(
        self, size: int, base_offset: int, last_offset: int, newest_ms: int, leader_epoch: int
    ) -> Segment:
        """Return the active segment, prepared for the next `size` bytes. Raises KafkaError."""
        segment = self._chain.active
        if segment.size and segment.must_roll(self.config, size, last_offset, newest_ms):
            try:
                segment = self._roll()
            except OSError as error:
                raise self._health.storage_error("append to", error) from error
        if leader_epoch != self._ready_epoch or not segment.size:
            self._prepare_to_write(leader_epoch, base_offset)
        return segment

    def _written(
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
        append_time = original.timestamp if self.config.is_log_append_time else -1
        return AppendInfo(
            original.base_offset, original.last_offset, append_time, self.log_start_offset, duplicate=True
        )

    # -- following a leader --------------------------------------------------------------------------------

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record, -1 if there is none."""
        return self._epochs.epoch_at(self.log_end_offset - 1)

    def follow(self) -> None:
        """Prepare for copies of another log's batches. An epoch that has written nothing here is removed."""
        self._ready_epoch = -1
        self._epochs.truncate_from_end(self.log_end_offset)

    def append_copies(self, batches: Buffer, *, gaps_to: int) -> Work[int]:
        """Append whole batches of a leader's log unchanged; the result is their number. The work pauses between
        batches. No other code may change the log meanwhile; batches that were already appended stay if the work is
        abandoned.

        Batches that are here already are left out. Offsets that the leader's compacted log lacks are missing here, too;
        `gaps_to` is the offset up to which the leader says that this is possible. Afterwards `must_commit` has the same
        meaning as after an append. Raises KafkaError: CORRUPT_MESSAGE for bytes that were damaged on the way or that do
        not continue the log (nothing was appended then), KAFKA_STORAGE_ERROR.
        """
        self._health.check()
        view = memoryview(batches)
        try:
            copies = yield from check_copies(view, self.log_end_offset, self.last_epoch)
        except DecodeError as error:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{self.directory.name} cannot append the batches of its leader: {error}",
            ) from None
        if not copies.batches:
            return 0
        try:
            if copies.have_gap and copies.end_offset > self._durability.gaps_to:
                self._folder.make()
                self._durability.gaps_to = max(gaps_to, copies.end_offset)
                self._durability.write_checkpoint()
        except OSError as error:
            raise self._health.storage_error("append to", error) from error
        self._producers.state()
        for run in copies.writes():
            yield
            for part in self._parts(run):
                self._append_part(view, part)
        return len(copies.batches)

    def _parts(self, run: Sequence[Copy]) -> Iterable[Sequence[Copy]]:
        """Return all batches together, or one by one if the segment has to be sealed on the way."""
        size = run[-1].end_position - run[0].position
        newest_ms = max(copy.header.max_timestamp for copy in run)
        segment = self._chain.active
        index_bytes = segment.index_bytes + len(run) * _INDEX_ENTRY_BYTES_MAX
        if index_bytes <= self.config.segment_index_bytes and not segment.must_roll(
            self.config, size, run[-1].header.last_offset, newest_ms
        ):
            return (run,)
        return ((copy,) for copy in run)

    def _append_part(self, view: memoryview, part: Sequence[Copy]) -> None:
        """Write some copies together, and note each one."""
        first, last = part[0], part[-1]
        epoch = first.header.partition_leader_epoch
        segment = self._segment_for(
            last.end_position - first.position,
            first.header.base_offset,
            last.header.last_offset,
            first.header.max_timestamp,
            epoch,
        )
        self._write(segment, b"", view[first.position : last.end_position])
        now_ms = self._clock.time_ms()
        for position, header in part:
            if header.partition_leader_epoch != epoch:
                epoch = header.partition_leader_epoch
                self._epochs.assign(epoch, header.base_offset)
                self._ready_epoch = epoch
            marker = None
            if header.is_control:
                marker = read_end_marker(view[position : position + header.size])
            self._written(
                segment,
                header,
                header.base_offset,
                header.last_offset,
                header.size,
                header.max_timestamp,
                marker,
                now_ms,
            )

    def restart_at(self, offset: int) -> None:
        """Discard every record; the log continues at `offset`. For a follower whose leader begins after its end, or
        ends before its start. Raises KafkaError.
        """
        self.truncate_to(min(offset, self.log_start_offset))
        if offset != self.log_end_offset:
            self._ready_epoch = -1
            self._truncation.start_at(offset, self.config, log_start_offset=offset, tiered_to=self.tiered_to)

    def begin_after(
        self, tiered_to: int, log_start_offset: int, epochs: Iterable[tuple[int, int]], producers: bytes
    ) -> None:
        """Discard every local record; the log continues at `tiered_to`, the end of what remote storage has, with the
        leader epochs and producers known there. For a follower whose leader has no local records for it any more
        (KIP-405). Raises KafkaError.
        """
        self._health.check()
        self._ready_epoch = -1
        self._truncation.start_at(
            tiered_to,
            self.config,
            log_start_offset=log_start_offset,
            tiered_to=tiered_to,
            epochs=epochs,
            producers=producers,
        )

    # -- transactions --------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest open transaction, None if none is open. Raises KafkaError."""
        producers = self._producers.loaded
        if producers is None:
            producers = self._health.reading(self._producers.state)
        offset = producers.first_unstable_offset
        return offset if offset is None else max(offset, self.log_start_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [start, end), by first offset (rule T5)."""
        found: list[AbortedTransaction] = []
        for segment in self._chain.from_offset(start_offset):
            if len(segment.aborted):
                here, is_complete = segment.aborted.overlapping(start_offset, end_offset)
                found += here
                if is_complete:
                    break
        found.sort(key=lambda aborted: aborted.first_offset)
        return found

    def check_end_marker(self, producer_id: int, epoch: int, *, is_next_epoch: bool) -> None:
        """Check a marker as `LogProducers.check_end_marker`. Raises KafkaError."""
        self._producers.check_end_marker(producer_id, epoch, is_next_epoch=is_next_epoch)

    def producers(self) -> Mapping[int, Producer]:
        """The known producers by id, read-only."""
        return self._producers.state().producers

    def open_transactions(self) -> Mapping[int, int]:
        """First offsets of the open transactions by producer id, earliest first; read-only."""
        return self._producers.state().open_transactions

    def _prepare_to_write(self, leader_epoch: int, base_offset: int) -> None:
        """Establish what a batch requires: no clean marker, an existing folder, and a known epoch.

        The epoch reaches its file with the next flush or close; until then a recovery finds it in the batch.
        """
        epochs = self._epochs
        if leader_epoch < epochs.latest:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {leader_epoch} cannot write after epoch {epochs.latest}",
            )
        self._health.reading(self._chain.active.load_small_indexes)
        try:
            if self._folder.is_marked_clean:
                self._folder.unmark_clean()
            elif not base_offset and not self._chain.active.size:
                self._folder.make()
            if leader_epoch > epochs.latest:
                epochs.assign(leader_epoch, base_offset)
            self._ready_epoch = leader_epoch
        except OSError as error:
            raise self._health.storage_error("append to", error) from error

    def _write(self, segment: Segment, prefix: bytes, rest: memoryview) -> None:
        try:
            segment.write((prefix, rest))
            if not segment.size:
                # Set after the write: a commit under way has not seen the new name.
                self._folder.has_new_names = True
        except OSError as error:
            if isinstance(error, HalfWrittenError):
                self._health.fail(str(error))
            raise self._health.storage_error("append to", error) from error

    def _roll(self) -> Segment:
        """Seal the active segment and begin another, whose file is made by its first batch."""
        self._chain.active.seal()
        self._folder.write_snapshot(self.log_end_offset, self._producers.state)
        self._folder.has_new_names = True
        self._chain.extend(self.config)
        if self._background is not None:
            self._background(self._durability.flush_in_background)
        return self._chain.active

    # -- read ----------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool = True) -> LogSlice:
        """Return whole batches from the one that holds `offset` on, none that reaches `up_to`, at most `max_bytes`.

        With `min_one_batch` the first batch is returned even if it is larger. The batches are of one segment, so there
        may be fewer than possible. Raises KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR; and InRemoteStorage
        below `local_start_offset`.
        """
        self._health.check()
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in {self.directory.name}, which has {self.log_start_offset} "
                f"to {end_offset}",
            )
        if offset >= up_to or offset == end_offset:
            return LogSlice(offset)
        if offset < self._chain.bases[0] and offset < self.tiered_to:
            raise InRemoteStorage(f"{self.directory.name} has offset {offset} in remote storage only")
        try:
            return self._chain.reader.read(offset, max_bytes, min(up_to, end_offset), min_one_batch)
        except READ_ERRORS as error:
            raise self._health.read_error(error) from error

    def offset_for_timestamp(
        self, timestamp_ms: int, opened: Opened | None = None
    ) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record at or after a time; None if there is none.

        Raises KafkaError, and BatchTakesTime if `opened` demands it.
        """
        return self._health.reading(
            lambda: time_lookup.first_at_or_after(
                self._chain.segments, timestamp_ms, self.log_start_offset, opened or Opened()
            )
        )

    def max_timestamp(self, opened: Opened | None = None) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record with the largest timestamp. Raises the same
        errors as `offset_for_timestamp`.
        """
        return self._health.reading(
            lambda: time_lookup.latest(self._chain.segments, self.log_start_offset, opened or Opened())
        )

    # -- leader epochs -------------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int) -> None:
        """Begin leader epoch `epoch` at the log's end. It reaches its file with a flush or a close."""
        self._ready_epoch = -1
        self._epochs.assign(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that wrote an offset, -1 if it is not known."""
        return self._epochs.epoch_at(offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (largest known epoch not above `epoch`, its end offset); (-1, -1) if it is not known (KIP-101,
        279).
        """
        return self._epochs.end_offset(epoch, self.log_end_offset)

    # -- retention and truncation --------------------------------------------------------------------------

    def delete_old_segments(self, now_ms: int, high_watermark: int, floor: int | None = None) -> int:
        """Delete segments that retention no longer covers, and return their number. Also forget silent producers.

        Only whole segments below the high watermark and `floor` are deleted, oldest first. The age of a segment is that
        of its largest timestamp. When all records are too old, the active segment is deleted, too. Raises KafkaError.
        """
        self._health.check()
        self._producers.expire(self.config.producer_id_expiration_ms)
        count = retention_plan(
            self._chain.sealed,
            self.config.retention,
            active=self._chain.active,
            size_bytes=self.size_bytes,
            log_start_offset=self.log_start_offset,
            deletable_to=high_watermark if floor is None else min(high_watermark, floor),
            now_ms=now_ms,
        )
        if count:
            if count == self.segment_count:
                self._roll()
            self._move_log_start(self._chain.bases[count], count)
        return count

    def has_local_excess(self, now_ms: int) -> bool:
        """Return whether local retention no longer covers the first segment, regardless of remote storage."""
        count = retention_plan(
            self._chain.sealed[:1],
            self.config.local_retention,
            size_bytes=self.size_bytes,
            log_start_offset=0,
            deletable_to=self.log_end_offset,
            now_ms=now_ms,
        )
        return count > 0

    def roll(self) -> None:
        """Begin another segment, so that the present one can be copied. Raises KafkaError."""
        self._health.check()
        if self._chain.active.size:
            try:
                self._roll()
            except OSError as error:
                raise self._health.storage_error("append to", error) from error

    def delete_local_segments(self, now_ms: int, floor: int | None = None) -> int:
        """Delete files of segments that remote storage has, that local retention no longer covers and that are below
        `floor`; return their number.

        The start of the log does not change. The active segment stays, as in Kafka. Raises KafkaError.
        """
        self._health.check()
        self._producers.expire(self.config.producer_id_expiration_ms)
        count = retention_plan(
            self._chain.sealed,
            self.config.local_retention,
            size_bytes=self.size_bytes,
            log_start_offset=self.log_start_offset,
            deletable_to=self.tiered_to if floor is None else min(self.tiered_to, floor),
            now_ms=now_ms,
        )
        if count:
            self._ready_epoch = -1
            self._removal.remove_local(count, self.config)
        return count

    def delete_records(self, before_offset: int) -> None:
        """Raise the log start to `before_offset` and remove segments wholly below it. A lower offset changes
        nothing.

        Raises KafkaError: OFFSET_OUT_OF_RANGE past the log's end, KAFKA_STORAGE_ERROR.
        """
        self._health.check()
        if before_offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to offset {before_offset}: {self.directory.name} ends at "
                f"{self.log_end_offset}",
            )
        if before_offset > self.log_start_offset:
            count = sum(segment.end_offset <= before_offset for segment in self._chain.sealed)
            self._move_log_start(before_offset, count)

    def _move_log_start(self, offset: int, count: int) -> None:
        self._ready_epoch = -1
        self._removal.move_log_start(offset, count, self.config)

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that reaches `offset` or beyond; the log then ends at or before `offset`.

        For leaders that lost an election, never for acknowledged records. Raises KafkaError.
        """
        self._health.check()
        if offset >= self.log_end_offset:
            return
        self._ready_epoch = -1
        self._truncation.truncate_to(offset, self.config)

    # -- compaction (for `compaction_run`) -----------------------------------------------------------------

    @property
    def disk(self) -> Disk:
        return self._disk

    def sealed_segments(self) -> list[Segment]:
        return [segment for segment in self._chain.sealed if segment.size]

    def last_of_producers(self) -> dict[int, tuple[int | None, int]]:
        return self._producers.last_batches()

    def check_segments(self, group: Sequence[Segment]) -> None:
        """Raise CleaningAbandoned unless the segments are still there, one after another."""
        if not self._health.is_usable:
            raise CleaningAbandoned(f"{self.directory.name} is closed")
        if not self._chain.has(group):
            raise CleaningAbandoned(f"segments of {self.directory.name} are gone")

    def exchange(self, group: Sequence[Segment], cleaned: Segment | None) -> None:
        """Put `cleaned` in the place of `group`, whose files are removed; None if nothing is left of it.

        The new file keeps its own name until `finish_exchange`. Readers of the old files go on. Raises OSError.
        """
        self._removal.exchange(group, cleaned, self.config)

    def finish_exchange(self, cleaned: Segment) -> None:
        """Give the new segment its name, once the removal of the files by `exchange` is durable. Raises OSError."""
        self._removal.finish_exchange(cleaned)

    # -- durability (see `Durability`) ---------------------------------------------------------------------

    @property
    def recovery_point(self) -> int:
        """The end of the records that are on the disk."""
        return self._durability.recovery_point

    @property
    def must_commit(self) -> bool:
        """Whether the last append waits for a `commit`."""
        return self._chain.active.end_offset - self._durability.recovery_point >= self.config.flush_messages

    def commit(self) -> None:
        """Sync everything appended so far, as `Durability.commit`. Any thread may call it."""
        self._durability.commit()

    def flush(self) -> None:
        """Sync everything appended so far and note its end, as `Durability.flush`. Any thread may call it."""
        self._durability.flush()

    @property
    def tiered_to(self) -> int:
        """Remote storage has everything below this offset."""
        return self._durability.tiered_to

    def note_tiered(self, up_to: int) -> None:
        """Durably note that remote storage has everything below `up_to`. Any thread may call it. Raises OSError."""
        self._durability.note_tiered(up_to)

    @property
    def compacted_to(self) -> int:
        """Offsets below it may be missing, because compaction has removed their records."""
        return self._durability.compacted_to

    def note_compaction(self, up_to: int) -> None:
        """Durably allow offsets below `up_to` to be missing. Any thread may call it. Raises OSError."""
        self._durability.note_compaction(up_to)

    # -- the end -------------------------------------------------------------------------------------------

    def close(self, clean: bool = True) -> None:
        """Close all files. `clean` flushes first and leaves a marker, so that the next open scans nothing.

        Raises KafkaError(KAFKA_STORAGE_ERROR) when that fails; the log is closed all the same.
        """
        if self._health.is_closed:
            return
        try:
            if (
                clean
                and self._health.failure is None
                and not self._folder.is_marked_clean
                and self._has_history
            ):
                self._leave_clean()
        finally:
            self._health.close()
            for segment in self._chain.segments:
                segment.release()
            self._chain.reader.forget()

    @property
    def _has_history(self) -> bool:
        return self.log_end_offset > 0

    def _leave_clean(self) -> None:
        self._durability.sync_all()
        active = self._chain.active
        try:
            # A small log is read at once, so it needs no files that make reading faster.
            is_small = self.segment_count == 1 and active.is_small and not active.has_index_files()
            if not is_small:
                self._folder.write_snapshot(self.log_end_offset, self._producers.state)
            if active.size:
                active.write_transaction_index() if is_small else active.write_indexes()
            else:
                active.remove()  # a file may have been made for a batch that could not be written
            if self._epochs.written != tuple(self._epochs.entries):
                self._folder.write_epochs(self._epochs, sync=False)
            self._folder.mark_clean(
                self._durability.checkpoint(self.log_start_offset),
                self._epochs,
                [segment for segment in self._chain.segments if segment.size],
            )
        except OSError as error:
            raise self._health.storage_error("close", error) from error

    def delete(self) -> None:
        """Close the log and remove its files; also the directory, unless it has other files.

        Raises OSError.
        """
        self.close(clean=False)
        for segment in self._chain.segments:
            segment.remove()
        self._folder.delete()
