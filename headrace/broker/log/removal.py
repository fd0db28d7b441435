"""The removal of a log's segments: those before a new log start, and those that compaction replaces.

The log start moves first, durably, and files go afterwards: after a crash in between they are removed later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.broker.log.config import LogConfig
from headrace.broker.log.durability import Durability
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.folder import LogFolder
from headrace.broker.log.health import LogHealth
from headrace.broker.log.segment import Segment
from headrace.broker.log.segment_chain import SegmentChain
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.ports import Disk


class SegmentRemoval:
    """Removes segments of one log; see the module."""

    def __init__(
        self,
        disk: Disk,
        chain: SegmentChain,
        folder: LogFolder,
        epochs: LeaderEpochs,
        durability: Durability,
        health: LogHealth,
        remove_later: Callable[[Path, int], object] | None,
    ) -> None:
        """`remove_later` removes a file after a number of milliseconds; None: files are removed at once."""
        self._disk = disk
        self._chain = chain
        self._folder = folder
        self._epochs = epochs
        self._durability = durability
        self._health = health
        self._remove_later = remove_later

    def move_log_start(self, log_start_offset: int, count: int, config: LogConfig) -> None:
        """Move the log start, and remove the first `count` segments. Raises KafkaError.

        A full disk has no room to note the log start, so there the files are removed first, at once, the oldest first:
        the first remaining file shows where the log begins.
        """
        durability, chain = self._durability, self._chain
        log_start_offset = max(log_start_offset, durability.log_start_offset)
        try:
            try:
                durability.write_checkpoint(log_start_offset)
            except OSError as error:
                gone = count if chain.segments[count].size else count - 1
                if gone <= 0 or not disk_errors.is_disk_full(error):
                    raise
                self._remove_first(gone, chain.bases[gone], None)
                count -= gone
                durability.write_checkpoint(log_start_offset)
            self._remove_first(count, log_start_offset, config)
        except OSError as error:
            raise self._health.storage_error("delete old records of", error) from error

    def remove_local(self, count: int, config: LogConfig) -> None:
        """Remove the first `count` segments, which remote storage has. Raises KafkaError."""
        try:
            self._remove_first(count, self._durability.log_start_offset, config)
        except OSError as error:
            raise self._health.storage_error("delete old records of", error) from error

    def _remove_first(self, count: int, log_start_offset: int, config: LogConfig | None) -> None:
        """Remove segments as the configuration says; None: at once, and durably."""
        durability = self._durability
        durability.log_start_offset = max(durability.log_start_offset, log_start_offset)
        self._epochs.truncate_from_start(log_start_offset)
        self._folder.unmark_clean()
        for segment in self._chain.drop_first(count):
            if config is None:
                segment.remove()
                self._folder.sync()  # only the files show where the log begins: a power cut must not leave a hole
            else:
                segment.remove(self._discard(config))

    def _discard(self, config: LogConfig) -> Callable[[Path], object]:
        """Return the removal of one file: after the delay of the topic, if there is a way to remove it later."""
        later = self._remove_later
        if later is None:
            return self._disk.remove
        return lambda path: later(path, config.file_delete_delay_ms)

    def exchange(self, group: Sequence[Segment], cleaned: Segment | None, config: LogConfig) -> None:
        """Put `cleaned` in the place of `group`, whose files are removed; None if nothing is left of it.

        The new file keeps its own name until `finish_exchange`. Readers of the old files go on. Raises OSError.
        """
        self._folder.unmark_clean()
        self._chain.exchange(group, cleaned)
        try:
            for segment in group:
                segment.remove(self._discard(config))
        except OSError as error:
            self._health.fail(f"an exchange of compacted segments failed half-way: {error}")
            raise

    def finish_exchange(self, cleaned: Segment) -> None:
        """Give the new segment its name, once the removal of the files by `exchange` is durable. Raises OSError."""
        try:
            cleaned.take_place()
        except OSError as error:
            self._health.fail(f"a compacted segment could not take its place: {error}")
            raise
