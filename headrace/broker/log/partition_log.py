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

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.log import recovery, time_lookup, truncation
from headrace.broker.log.config import LogConfig
from headrace.broker.log.copying import append_copies
from headrace.broker.log.durability import Durability
from headrace.broker.log.errors import CleaningAbandoned, InRemoteStorage
from headrace.broker.log.folder import LogFolder
from headrace.broker.log.health import READ_ERRORS, LogHealth
from headrace.broker.log.log_producers import LogProducers
from headrace.broker.log.parts import LogParts
from headrace.broker.log.producer_state import Producer
from headrace.broker.log.removal import SegmentRemoval
from headrace.broker.log.segment import Segment
from headrace.broker.log.segment_chain import SegmentChain
from headrace.broker.log.slice import LogSlice
from headrace.broker.log.time_lookup import Opened
from headrace.broker.log.transaction_index import AbortedTransaction
from headrace.broker.log.validation import AppendOrigin
from headrace.broker.log.writer import AppendInfo, LogWriter
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import Clock, Disk
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.header import Buffer

if TYPE_CHECKING:
    from headrace.broker.runtime.slices import Work
    from headrace.protocol.records.header import BatchHeader

__all__ = ["AppendInfo", "AppendOrigin", "PartitionLog"]


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
        self.recovered = recovered.report
        self.disk = disk
        begin = recovered.checkpoint
        self._epochs = recovered.epochs
        self._epochs.truncate_from_start(begin.log_start_offset)
        self._chain = SegmentChain(
            disk,
            directory,
            recovered.segments,
            config,
            max(begin.log_start_offset, begin.compacted_to, begin.tiered_to),
        )
        self._folder = LogFolder(disk, directory, companions, was_clean=recovered.report.was_clean)
        self._health = LogHealth(directory.name)
        self._producers = LogProducers(disk, directory, self._chain, clock, self._health, recovered.producers)
        self._durability = Durability(self._chain, self._folder, self._epochs, self._health, begin)
        self._parts = LogParts(
            name=directory.name,
            disk=disk,
            clock=clock,
            chain=self._chain,
            folder=self._folder,
            epochs=self._epochs,
            producers=self._producers,
            health=self._health,
            durability=self._durability,
        )
        self._writer = LogWriter(self._parts, background)
        self._removal = SegmentRemoval(self._parts, discard)
        self.append: Final = self._writer.append
        """See `LogWriter.append`; it is the hot path, so nothing stands before it."""

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
    def config(self) -> LogConfig:
        return self._chain.config

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
        self._chain.config = config

    # -- write ---------------------------------------------------------------------------------------------

    def check_producer(self, header: BatchHeader) -> AppendInfo | None:
        """Return the place of a producer's earlier batch, as `LogWriter.check_producer`."""
        return self._writer.check_producer(header)

    def prepare(self, batch: Buffer, *, large: bool = True) -> memoryview:
        """Do the slow part of a client's append, as `LogWriter.prepare`. Any thread may call it."""
        return self._writer.prepare(batch, large=large)

    def roll(self) -> None:
        """Begin another segment, so that the present one can be copied. Raises KafkaError."""
        self._health.check()
        if self._chain.active.size:
            self._writer.roll()

    # -- following a leader --------------------------------------------------------------------------------

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record, -1 if there is none."""
        return self._epochs.epoch_at(self.log_end_offset - 1)

    def follow(self) -> None:
        """Prepare for copies of another log's batches. An epoch that has written nothing here is removed."""
        self._epochs.truncate_from_end(self.log_end_offset)

    def append_copies(self, batches: Buffer, *, gaps_to: int) -> Work[int]:
        """Append whole batches of a leader's log unchanged, as `copying.append_copies`."""
        return append_copies(self._writer, self._parts, batches, gaps_to=gaps_to)

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that reaches `offset` or beyond, as `truncation.truncate_to`."""
        truncation.truncate_to(self._parts, offset)

    def restart_at(self, offset: int) -> None:
        """Discard every record and continue at `offset`, as `truncation.restart_at`."""
        truncation.restart_at(self._parts, offset)

    def begin_after(
        self, tiered_to: int, log_start_offset: int, epochs: Iterable[tuple[int, int]], producers: bytes
    ) -> None:
        """Discard every local record and continue at `tiered_to`, as `truncation.begin_after`."""
        truncation.begin_after(self._parts, tiered_to, log_start_offset, epochs, producers)

    # -- transactions --------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest open transaction, None if none is open. Raises KafkaError."""
        producers = self._producers.loaded
        if producers is None:
            producers = self._producers.state()
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
        self._epochs.assign(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that wrote an offset, -1 if it is not known."""
        return self._epochs.epoch_at(offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (largest known epoch not above `epoch`, its end offset); (-1, -1) if it is not known (KIP-101,
        279).
        """
        return self._epochs.end_offset(epoch, self.log_end_offset)

    # -- retention -----------------------------------------------------------------------------------------

    def delete_old_segments(self, now_ms: int, high_watermark: int, floor: int | None = None) -> int:
        """Delete segments that retention no longer covers, as `SegmentRemoval.delete_old`."""
        return self._removal.delete_old(now_ms, high_watermark, floor, self._writer.roll)

    def has_local_excess(self, now_ms: int) -> bool:
        """Return whether local retention no longer covers the first segment, regardless of remote storage."""
        return self._removal.has_local_excess(now_ms)

    def delete_local_segments(self, now_ms: int, floor: int | None = None) -> int:
        """Delete files of segments that remote storage has, as `SegmentRemoval.delete_local`."""
        return self._removal.delete_local(now_ms, floor)

    def delete_records(self, before_offset: int) -> None:
        """Raise the log start to `before_offset`, as `SegmentRemoval.delete_records`."""
        self._removal.delete_records(before_offset)

    # -- compaction (for `compaction_run`) -----------------------------------------------------------------

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
        self._removal.exchange(group, cleaned)

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
        chain = self._chain
        return chain.active.end_offset - self._durability.recovery_point >= chain.config.flush_messages

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
                self._folder.write_snapshot(self.log_end_offset, self._producers.load)
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
