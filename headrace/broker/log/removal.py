"""The removal of a log's segments: those that retention or DeleteRecords deletes, and those that compaction replaces.

The log start moves first, durably, and files go afterwards: after a crash in between they are removed later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.broker.log.parts import LogParts
from headrace.broker.log.retention import retention_plan
from headrace.broker.log.segment import Segment
from headrace.broker.runtime import disk_errors
from headrace.protocol.errors import ErrorCode, KafkaError


class SegmentRemoval:
    """Removes segments of one log; see the module."""

    def __init__(self, parts: LogParts, remove_later: Callable[[Path, int], object] | None) -> None:
        """`remove_later` removes a file after a number of milliseconds; None: files are removed at once."""
        self._name = parts.name
        self._disk = parts.disk
        self._chain = parts.chain
        self._folder = parts.folder
        self._epochs = parts.epochs
        self._producers = parts.producers
        self._durability = parts.durability
        self._health = parts.health
        self._remove_later = remove_later

    def delete_old(
        self, now_ms: int, high_watermark: int, floor: int | None, roll: Callable[[], object]
    ) -> int:
        """Delete segments that retention no longer covers, and return their number. Also forget silent producers.

        Only whole segments below the high watermark and `floor` are deleted, oldest first. The age of a segment is that
        of its largest timestamp. When all records are too old, the active segment is deleted, too, once `roll` has
        begun another one. Raises KafkaError.
        """
        self._health.check()
        self._producers.expire(self._chain.config.producer_id_expiration_ms)
        count = retention_plan(
            self._chain.sealed,
            self._chain.config.retention,
            active=self._chain.active,
            size_bytes=self._chain.size_bytes,
            log_start_offset=self._durability.log_start_offset,
            deletable_to=high_watermark if floor is None else min(high_watermark, floor),
            now_ms=now_ms,
        )
        if count:
            if count == len(self._chain.segments):
                roll()
            self._move_log_start(self._chain.bases[count], count)
        return count

    def has_local_excess(self, now_ms: int) -> bool:
        """Return whether local retention no longer covers the first segment, regardless of remote storage."""
        count = retention_plan(
            self._chain.sealed[:1],
            self._chain.config.local_retention,
            size_bytes=self._chain.size_bytes,
            log_start_offset=0,
            deletable_to=self._chain.active.end_offset,
            now_ms=now_ms,
        )
        return count > 0

    def delete_local(self, now_ms: int, floor: int | None) -> int:
        """Delete files of segments that remote storage has, that local retention no longer covers and that are below
        `floor`; return their number.

        The start of the log does not change. The active segment stays, as in Kafka. Raises KafkaError.
        """
        self._health.check()
        self._producers.expire(self._chain.config.producer_id_expiration_ms)
        tiered_to = self._durability.tiered_to
        count = retention_plan(
            self._chain.sealed,
            self._chain.config.local_retention,
            size_bytes=self._chain.size_bytes,
            log_start_offset=self._durability.log_start_offset,
            deletable_to=tiered_to if floor is None else min(tiered_to, floor),
            now_ms=now_ms,
        )
        if count:
            try:
                self._remove_first(count, self._durability.log_start_offset)
            except OSError as error:
                raise self._health.storage_error("delete old records of", error) from error
        return count

    def delete_records(self, before_offset: int) -> None:
        """Raise the log start to `before_offset` and remove segments wholly below it. A lower offset changes
        nothing.

        Raises KafkaError: OFFSET_OUT_OF_RANGE past the log's end, KAFKA_STORAGE_ERROR.
        """
        self._health.check()
        if before_offset > self._chain.active.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to offset {before_offset}: {self._name} ends at "
                f"{self._chain.active.end_offset}",
            )
        if before_offset > self._durability.log_start_offset:
            count = sum(segment.end_offset <= before_offset for segment in self._chain.sealed)
            self._move_log_start(before_offset, count)

    def _move_log_start(self, log_start_offset: int, count: int) -> None:
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
                self._remove_first(gone, chain.bases[gone], at_once=True)
                count -= gone
                durability.write_checkpoint(log_start_offset)
            self._remove_first(count, log_start_offset)
        except OSError as error:
            raise self._health.storage_error("delete old records of", error) from error

    def _remove_first(self, count: int, log_start_offset: int, *, at_once: bool = False) -> None:
        """Remove segments as the configuration says, or at once and durably."""
        durability = self._durability
        durability.log_start_offset = max(durability.log_start_offset, log_start_offset)
        self._epochs.truncate_from_start(log_start_offset)
        self._folder.unmark_clean()
        for segment in self._chain.drop_first(count):
            if at_once:
                segment.remove()
                self._folder.sync()  # only the files show where the log begins: a power cut must not leave a hole
            else:
                segment.remove(self._discard())

    def _discard(self) -> Callable[[Path], object]:
        """Return the removal of one file: after the delay of the topic, if there is a way to remove it later."""
        later = self._remove_later
        if later is None:
            return self._disk.remove
        return lambda path: later(path, self._chain.config.file_delete_delay_ms)

    def exchange(self, group: Sequence[Segment], cleaned: Segment | None) -> None:
        """Put `cleaned` in the place of `group`, whose files are removed; None if nothing is left of it.

        The new file keeps its own name until `finish_exchange`. Readers of the old files go on. Raises OSError.
        """
        self._folder.unmark_clean()
        self._chain.exchange(group, cleaned)
        try:
            for segment in group:
                segment.remove(self._discard())
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
