"""The part of a log that a power cut leaves: the recovery point, the checkpoint, and the syncs that move them.

Everything below `recovery_point` is on the disk: data, names and directories. A commit raises it in memory. A flush
also writes it to the checkpoint, from which a recovery begins to scan. One lock is for syncs and for changes of files
that a sync reads; a second one, taken after it, is for the checkpoint.
"""

from __future__ import annotations

import contextlib
import threading

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.folder import LogFolder
from headrace.broker.log.health import LogHealth
from headrace.broker.log.segment import Segment
from headrace.broker.log.segment_chain import SegmentChain
from headrace.protocol.errors import KafkaError


class Durability:
    """The durability of one log; see the module. Any thread may call its methods."""

    def __init__(
        self,
        chain: SegmentChain,
        folder: LogFolder,
        epochs: LeaderEpochs,
        health: LogHealth,
        checkpoint: Checkpoint,
    ) -> None:
        self.log_start_offset = checkpoint.log_start_offset
        self.recovery_point = checkpoint.recovery_point
        self.compacted_to = checkpoint.compacted_to
        """Offsets below it may be missing, because compaction has removed their records."""
        self.gaps_to = checkpoint.gaps_to
        """The same for offsets that the leader's compacted log lacks."""
        self.tiered_to = checkpoint.tiered_to
        """Remote storage has everything below it."""
        self.lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._chain = chain
        self._folder = folder
        self._epochs = epochs
        self._health = health

    def flush(self) -> None:
        """Make everything appended so far durable and note its end.

        Raises KafkaError(KAFKA_STORAGE_ERROR); the log then refuses everything.
        """
        with self.lock:
            self._health.check()
            end_offset = self._chain.active.end_offset
            if self.recovery_point >= end_offset and not self._indexes_wait:
                return
            self._sync(end_offset)
            try:
                self._folder.write_epochs(self._epochs, sync=True)
                self.write_checkpoint()
            except OSError as error:
                raise self._health.storage_error("flush", error) from error

    def flush_in_background(self) -> None:
        """Flush, and log a failure instead of raising it: there is no caller. The failure has stopped the log."""
        with contextlib.suppress(KafkaError):
            if not self._health.is_closed:
                self.flush()

    def commit(self) -> None:
        """Sync everything appended so far to the disk; afterwards `recovery_point` is its end.

        Cheaper than `flush`: the end is noted in memory only, so a recovery scans from the last flush on. Raises
        KafkaError(KAFKA_STORAGE_ERROR); the log then refuses everything.
        """
        with self.lock:
            self._health.check()
            end_offset = self._chain.active.end_offset
            if self.recovery_point < end_offset:
                self._sync(end_offset)

    def sync_all(self) -> None:
        """Sync everything, even if the log is no longer usable. Raises KafkaError."""
        with self.lock:
            self._sync(self._chain.active.end_offset)

    def _sync(self, end_offset: int) -> None:
        """Sync records above the recovery point, then raise it to `end_offset`."""
        for segment in list(self._chain.segments):
            if segment.size and (segment.end_offset > self.recovery_point or segment.has_unsynced_indexes):
                try:
                    segment.sync()
                except FileNotFoundError:
                    if segment in self._chain.segments:
                        raise self._health.sync_error(OSError(f"{segment.path} is gone")) from None
                except OSError as error:
                    raise self._health.sync_error(error) from error
        if self._folder.has_new_names:
            try:
                self._folder.has_new_names = False
                self._folder.sync_names(self._chain.active.base_offset)
            except OSError as error:
                self._folder.has_new_names = True
                raise self._health.sync_error(error) from error
        self.recovery_point = max(self.recovery_point, end_offset)

    # -- the checkpoint ------------------------------------------------------------------------------------

    def write_checkpoint(self, log_start_offset: int | None = None) -> None:
        """Durably note the recovery point and the log start, which moves if it is given. Raises OSError."""
        with self._checkpoint_lock:
            if log_start_offset is None:
                log_start_offset = self.log_start_offset
            self._folder.write_checkpoint(self.checkpoint(log_start_offset))
            self.log_start_offset = log_start_offset

    def note_tiered(self, up_to: int) -> None:
        """Durably note that remote storage has everything below `up_to`. Raises OSError."""
        self.tiered_to = max(self.tiered_to, up_to)
        self.write_checkpoint()

    def note_compaction(self, up_to: int) -> None:
        """Durably allow offsets below `up_to` to be missing. Raises OSError."""
        self.compacted_to = max(self.compacted_to, up_to)
        self.write_checkpoint()

    def truncate_to(self, end_offset: int) -> None:
        """Durably lower all points to the log's new end. Raises OSError."""
        self.recovery_point = min(self.recovery_point, end_offset)
        self.compacted_to = min(self.compacted_to, end_offset)
        self.tiered_to = min(self.tiered_to, end_offset)
        self.write_checkpoint(min(self.log_start_offset, end_offset))

    def checkpoint(self, log_start_offset: int) -> Checkpoint:
        """Return the checkpoint of the present state, with this log start."""
        aborted = {
            segment.base_offset: len(segment.aborted)
            for segment in list(self._chain.segments)
            if len(segment.aborted)
        }
        recovery_point = min([self.recovery_point, *(segment.base_offset for segment in self._indexes_wait)])
        return Checkpoint(
            log_start_offset, recovery_point, aborted, self.compacted_to, self.gaps_to, self.tiered_to
        )

    @property
    def _indexes_wait(self) -> list[Segment]:
        """Return the segments whose index files are not synced yet."""
        return [segment for segment in list(self._chain.segments) if segment.has_unsynced_indexes]
