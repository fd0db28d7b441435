"""Open a log: trust the state of a clean close, or find out the state after a crash.

After a crash every segment from the recovery point on is scanned, CRCs included. If an acknowledgement requires an
fsync, the bytes are read from the medium.

- The log ends at the first batch that is not whole and intact, if nothing readable follows: a torn tail, which is cut.
- The damage is in acknowledged records if an intact batch follows, in that file or a later one; if offsets are missing
  between two segments; or if the batch lies below the recovery point. Then CorruptLogError is raised, and nothing is
  changed on disk.
- Indexes of scanned segments are made again. Leader epochs and producer state are completed from the batches, the
  latter from the newest readable snapshot that is not ahead of the log.
- Transaction indexes are made again with them, and wherever they differ from the checkpoint.

Runs once, before the log is used; blocking.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from headrace.broker.log import compaction_swap
from headrace.broker.log.checkpoint import CHECKPOINT_NAME, Checkpoint, read_checkpoint, read_clean_marker
from headrace.broker.log.config import LogConfig
from headrace.broker.log.epochs import FILE_NAME as EPOCHS_NAME
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.errors import CorruptLogError
from headrace.broker.log.producer_state import SNAPSHOT_SUFFIX, ProducerState
from headrace.broker.log.scan import (
    Batches,
    IndexBuilder,
    WalkEnd,
    epoch_bounds,
    find_batch,
    replay_producers,
    walk,
)
from headrace.broker.log.segment import LOG_SUFFIX, Segment, file_stem
from headrace.broker.log.transaction_index import AbortedTransaction, TransactionIndex
from headrace.broker.runtime.ports import Clock, Disk
from headrace.protocol.records.header import CONTROL_BIT

logger = logging.getLogger("headrace.log")

TEMPORARY_SUFFIX = ".tmp"


class RecoveryReport(msgspec.Struct):
    """Report of opening a log. `cut_bytes` is the size of a torn tail; `notes` are sentences for the log."""

    was_clean: bool = False
    scanned_bytes: int = 0
    scanned_batches: int = 0
    cut_bytes: int = 0
    seconds: float = 0.0
    notes: list[str] = msgspec.field(default_factory=list)


class RecoveredLog(msgspec.Struct):
    """The parts of a log as recovery found them. `producers` is None when they can be loaded later."""

    segments: list[Segment]
    checkpoint: Checkpoint
    epochs: LeaderEpochs
    producers: ProducerState | None
    report: RecoveryReport


_NOTHING_DONE: Final = RecoveryReport()


def nothing() -> RecoveredLog:
    """Return the parts of a new log."""
    return RecoveredLog([], Checkpoint(), LeaderEpochs(), ProducerState(), _NOTHING_DONE)


def recover(disk: Disk, directory: Path, config: LogConfig, clock: Clock) -> RecoveredLog:
    """Read or recover the log in `directory`, which need not exist. Raises CorruptLogError, OSError."""
    marker = read_clean_marker(disk, directory)
    if marker is not None:
        segments = [
            Segment(
                disk,
                directory,
                row.base_offset,
                interval_bytes=config.index_interval_bytes,
                size=row.size,
                end_offset=row.end_offset,
                largest=(row.largest_timestamp, row.offset_of_largest),
                first_timestamp=row.first_timestamp,
            )
            for row in marker.segments
        ]
        epochs = LeaderEpochs(marker.epochs)
        report = RecoveryReport(was_clean=True)
        unindexed = _load_transaction_indexes(segments, marker.checkpoint)
        if unindexed is not None:
            reindex_transactions(disk, directory, segments, unindexed.base_offset, clock)
            for segment in segments:
                segment.write_transaction_index()
        return RecoveredLog(segments, marker.checkpoint, epochs, None, report)
    started = clock.monotonic()
    recovered = _Recovery(disk, directory, config, clock).run()
    report = recovered.report
    report.seconds = clock.monotonic() - started
    if report.scanned_bytes or report.notes:
        logger.info(
            "%s: scanned %d bytes in %d batches in %.3f s%s",
            directory.name,
            report.scanned_bytes,
            report.scanned_batches,
            report.seconds,
            "".join(f"; {note}" for note in report.notes),
        )
    return recovered


def load_producers(
    disk: Disk, directory: Path, segments: list[Segment], end_offset: int, clock: Clock
) -> ProducerState:
    """Return the state at `end_offset`: the newest readable snapshot at or below it, completed from the batches after
    it.
    """
    for offset in snapshot_offsets(disk, directory):
        if offset > end_offset:
            disk.remove(directory / snapshot_name(offset))  # the snapshot describes batches that are gone
    state, snapshot_offset = _newest_snapshot(disk, directory, segments, end_offset, clock)
    for _ in _replay(state, segments, snapshot_offset, clock):
        pass
    return state


def reindex_transactions(
    disk: Disk, directory: Path, segments: list[Segment], from_offset: int, clock: Clock
) -> None:
    """Make the transaction indexes of the segments from `from_offset` on again, in memory.

    This requires the transactions that were open there, so it begins at an earlier snapshot, or at the log's start.
    """
    state, snapshot_offset = _newest_snapshot(disk, directory, segments, from_offset, clock)
    for segment in segments:
        if segment.base_offset >= from_offset:
            segment.aborted = TransactionIndex()
    for segment, aborted in _replay(state, segments, snapshot_offset, clock):
        if segment.base_offset >= from_offset:
            segment.aborted.append(aborted)


def _newest_snapshot(
    disk: Disk, directory: Path, segments: list[Segment], offset_max: int, clock: Clock
) -> tuple[ProducerState, int]:
    """Return the newest readable snapshot not above an offset, and its offset; an empty one at the log's start."""
    for offset in sorted(snapshot_offsets(disk, directory), reverse=True):
        if offset > offset_max:
            continue
        path = directory / snapshot_name(offset)
        try:
            return ProducerState.decode_snapshot(disk.read(path), clock.monotonic()), offset
        except ValueError as error:
            logger.warning("%s cannot be used (%s); an older one or the log itself is used", path, error)
            disk.remove(path)
    return ProducerState(), segments[0].base_offset if segments else 0


def _replay(
    state: ProducerState, segments: list[Segment], from_offset: int, clock: Clock
) -> Iterator[tuple[Segment, AbortedTransaction]]:
    """Bring `state` from `from_offset` to the end; return the transactions that were aborted on the way."""
    for segment in segments:
        if segment.end_offset > from_offset:
            view = segment.file.view()[: segment.size]
            for batches in _walk_known(segment, view):
                for aborted in replay_producers(state, batches, view, from_offset, clock.monotonic()):
                    yield segment, aborted


def _load_transaction_indexes(segments: list[Segment], checkpoint: Checkpoint) -> Segment | None:
    """Read the indexes of `segments`; return the first segment whose index is missing or wrong, if any."""
    unindexed = None
    for segment in segments:
        if not segment.load_transaction_index(checkpoint.aborted.get(segment.base_offset, 0)):
            logger.warning("%s is missing or wrong; it is rebuilt", segment.transaction_index_path)
            unindexed = unindexed or segment
    return unindexed


def snapshot_name(offset: int) -> str:
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offsets(disk: Disk, directory: Path) -> list[int]:
    return _numbered(disk.names(directory), SNAPSHOT_SUFFIX)


def _numbered(names: list[str], suffix: str) -> list[int]:
    """Return the offsets in names like 00000000000000000042.log, ascending."""
    stems = (name[: -len(suffix)] for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdigit())


def _read_epochs(disk: Disk, directory: Path) -> LeaderEpochs | None:
    """Read the checkpoint file; None if it is missing or cannot be read."""
    try:
        return LeaderEpochs.decode(disk.read(directory / EPOCHS_NAME))
    except FileNotFoundError:
        return None
    except (ValueError, IndexError) as error:
        logger.warning("%s cannot be used (%s); it is rebuilt from the log", directory / EPOCHS_NAME, error)
        return None


def _walk_known(segment: Segment, view: memoryview) -> Iterator[Batches]:
    """Yield the headers of a segment whose bytes were checked before. Raises CorruptLogError."""
    end = WalkEnd(0, 0)
    yield from walk(view, segment.base_offset, end, check_crc=False, gaps_below=segment.end_offset)
    if end.problem is not None:
        raise CorruptLogError(
            f"{segment.path} is damaged: at byte {end.position} a batch should begin, but {end.problem}. "
            "Restore the file from a copy."
        )


class _Recovery:
    def __init__(self, disk: Disk, directory: Path, config: LogConfig, clock: Clock) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._clock = clock
        self._report = RecoveryReport()
        self._epoch_bounds: list[tuple[int, int]] = []
        self._scanned: dict[int, bool] = {}  # base offset -> whether there are control batches

    def run(self) -> RecoveredLog:
        disk, directory = self._disk, self._directory
        compaction_swap.finish_swaps(disk, directory)
        names = disk.names(directory)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                disk.remove(directory / name)
        checkpoint = read_checkpoint(disk, directory) or Checkpoint()
        segments = []
        for base_offset in _numbered(names, LOG_SUFFIX):
            segment = self._segment(base_offset)
            if segment.size:
                segments.append(segment)
            else:
                segment.remove()  # made for a batch that was never written
        for segment, following in pairwise(segments):
            segment.end_offset = following.base_offset
        # A power cut may have kept any of the segments that were about to be removed, so offsets may be missing there.
        while len(segments) > 1 and segments[0].end_offset <= checkpoint.log_start_offset:
            segments.pop(0).remove()
        self._scan(segments, checkpoint)
        end_offset = segments[-1].end_offset if segments else checkpoint.tiered_to
        compacted_to = checkpoint.compacted_to
        if end_offset < compacted_to:
            # Compaction removed records at the log's end; their offsets must not be assigned again.
            end_offset = compacted_to
            if segments:
                segments[-1].end_offset = end_offset
        if checkpoint.log_start_offset > end_offset:
            if segments:
                self._note(
                    f"the log ended at {end_offset}, before its start offset {checkpoint.log_start_offset}; "
                    "it continues empty from there"
                )
            for segment in segments:
                segment.remove()
            segments, end_offset = [], checkpoint.log_start_offset
            compacted_to = min(compacted_to, end_offset)
        start_offset = checkpoint.log_start_offset
        if segments and segments[0].base_offset > checkpoint.tiered_to:  # earlier records exist nowhere else
            start_offset = max(start_offset, segments[0].base_offset)
        epochs = self._recover_epochs(segments, end_offset)
        producers = load_producers(disk, directory, segments, end_offset, self._clock)
        self._recover_transaction_indexes(segments, checkpoint)
        recovery_point = min(checkpoint.recovery_point, end_offset)
        return RecoveredLog(
            segments,
            Checkpoint(
                start_offset,
                recovery_point,
                compacted_to=compacted_to,
                gaps_to=checkpoint.gaps_to,
                tiered_to=checkpoint.tiered_to,
            ),
            epochs,
            producers,
            self._report,
        )

    def _segment(self, base_offset: int) -> Segment:
        path = self._directory / (file_stem(base_offset) + LOG_SUFFIX)
        return Segment(
            self._disk,
            self._directory,
            base_offset,
            interval_bytes=self._config.index_interval_bytes,
            size=self._disk.size(path) or 0,
        )

    def _note(self, text: str) -> None:
        self._report.notes.append(text)
        logger.warning("%s: %s", self._directory.name, text)

    # -- segments ------------------------------------------------------------------------------------------

    def _scan(self, segments: list[Segment], checkpoint: Checkpoint) -> None:
        """Scan segments that may not be durable; cut a torn tail."""
        gaps_below = max(checkpoint.compacted_to, checkpoint.gaps_to)
        builders: list[tuple[Segment, IndexBuilder]] = []
        for index, segment in enumerate(segments):
            is_last = index == len(segments) - 1
            if not is_last and segment.end_offset <= checkpoint.recovery_point:
                continue
            builder = IndexBuilder(segment.base_offset, self._config.index_interval_bytes)
            end = WalkEnd(0, 0)
            if self._config.flushes_by_count:
                segment.file.settle()
                segment.size = segment.file.size()
            view = segment.file.view()
            self._scanned[segment.base_offset] = False
            for batches in walk(view, segment.base_offset, end, check_crc=True, gaps_below=gaps_below):
                builder.add(batches)
                self._epoch_bounds += epoch_bounds(batches)
                self._report.scanned_batches += len(batches)
                if (batches.attributes & CONTROL_BIT).any():
                    self._scanned[segment.base_offset] = True
            self._report.scanned_bytes += len(view)
            builders.append((segment, builder))
            later = segments[index + 1 :]
            if end.problem is not None:
                self._check_tail(segment, view, end, later, checkpoint.recovery_point)
            elif later and end.next_offset != (following := later[0].base_offset):
                if end.next_offset < following <= gaps_below:
                    segment.end_offset = following
                    continue
                self._check_gap(segment, end, later)
            else:
                segment.end_offset = end.next_offset
                continue
            self._cut(segment, end, later)
            del segments[index + 1 :]
            break
        for segment, builder in builders:
            segment.adopt(builder)
            if segment is not segments[-1]:
                segment.write_indexes()
                segment.release()

    def _check_tail(
        self, segment: Segment, view: memoryview, end: WalkEnd, later: list[Segment], recovery_point: int
    ) -> None:
        """Raise CorruptLogError if anything readable follows the bad batch, or if it was whole on disk before."""
        if end.next_offset < recovery_point:
            raise CorruptLogError(
                f"{segment.path} is damaged: the batch at byte {end.position}, offset {end.next_offset}, is "
                f"unreadable ({end.problem}), and everything below offset {recovery_point} had been written "
                "and synced. Restore the file from a copy. To abandon everything from offset "
                f"{end.next_offset} on, cut the file there (truncate -s {end.position}) and remove the "
                "later segments."
            )
        where, position = segment, find_batch(view, end.position + 1, end.next_offset + 1)
        for other in later:
            if position is None:
                where, position = other, find_batch(other.file.view(), 0, end.next_offset + 1)
        if position is not None:
            raise CorruptLogError(
                f"{segment.path} is damaged in the middle: the batch at byte {end.position}, offset "
                f"{end.next_offset}, is unreadable ({end.problem}), while an intact one follows at byte "
                f"{position} of {where.path.name}. Restore the file from a copy. To abandon everything from "
                f"offset {end.next_offset} on, cut the file there (truncate -s {end.position}) and remove "
                "the later segments."
            )

    def _check_gap(self, segment: Segment, end: WalkEnd, later: list[Segment]) -> None:
        if any(find_batch(other.file.view(), 0, end.next_offset + 1) is not None for other in later):
            raise CorruptLogError(
                f"{segment.path} ends at offset {end.next_offset}, but the next segment begins at "
                f"{later[0].base_offset}: the offsets between are missing. Restore the file from a copy. To "
                f"give up everything from offset {end.next_offset} on, remove the later segments. If they are missing "
                f"because the topic was compacted, and its {CHECKPOINT_NAME} was lost, put this into that file: "
                f'{{"version": 1, "log_start_offset": 0, "recovery_point": 0, '
                f'"compacted_to": {later[-1].base_offset}}}'
            )

    def _cut(self, segment: Segment, end: WalkEnd, later: list[Segment]) -> None:
        torn = segment.size - end.position
        if torn:
            file = self._disk.open(segment.path)
            file.truncate(end.position)
            file.sync()
            self._note(f"cut {torn} bytes off {segment.path.name} at offset {end.next_offset}: {end.problem}")
        for other in later:
            torn += other.size
            self._note(f"removed {other.path.name}, which held nothing readable")
            other.remove()
        self._disk.sync_directory(self._directory)
        self._report.cut_bytes += torn
        segment.size, segment.end_offset = end.position, end.next_offset

    # -- what hangs on the segments ------------------------------------------------------------------------

    def _recover_transaction_indexes(self, segments: list[Segment], checkpoint: Checkpoint) -> None:
        """Make the transaction indexes of scanned segments again if a transaction ended there."""
        known = [segment for segment in segments if segment.base_offset not in self._scanned]
        unindexed = _load_transaction_indexes(known, checkpoint)
        doubtful = [unindexed.base_offset] if unindexed is not None else []
        if any(self._scanned.values()):
            doubtful.append(min(self._scanned))
        if doubtful and segments:
            reindex_transactions(self._disk, self._directory, segments, min(doubtful), self._clock)
        for segment in segments[:-1]:
            if segment.base_offset in self._scanned or doubtful:
                segment.write_transaction_index()

    def _recover_epochs(self, segments: list[Segment], end_offset: int) -> LeaderEpochs:
        """Return the epochs of the file, completed from the scanned batches; without a file, from all batches."""
        epochs = _read_epochs(self._disk, self._directory)
        bounds = self._epoch_bounds
        if epochs is None:
            epochs = LeaderEpochs()
            bounds = [
                bound
                for s in segments
                for batches in _walk_known(s, s.file.view()[: s.size])
                for bound in epoch_bounds(batches)
            ]
        epochs.truncate_from_end(end_offset)
        for epoch, offset in bounds:
            # The file may name an epoch that had written nothing by then, and another epoch has written there since.
            epochs.found(epoch, offset)
        return epochs
