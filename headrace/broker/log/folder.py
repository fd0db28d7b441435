"""The folder of a log, with its files besides segments: leader epochs, checkpoint, snapshots of producers, marker of a
clean close.

A name is durable once its folder was synced, and a folder once its parent was. `enter` syncs both, the first time that
something has to be durable. The marker of a clean close is removed before anything changes that it describes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from headrace.broker.log import checkpoint as checkpoints
from headrace.broker.log import recovery
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.epochs import FILE_NAME as EPOCHS_NAME
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.producer_state import ProducerState
from headrace.broker.log.segment import DELETED_SUFFIX, Segment
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.ports import Disk

logger = logging.getLogger("headrace.log")

_SNAPSHOTS_KEPT: Final = 2


class LogFolder:
    """The folder of one log; see the module. Every method raises OSError unless it says otherwise."""

    def __init__(self, disk: Disk, path: Path, companions: Sequence[str], *, was_clean: bool) -> None:
        """`companions` are names of files that the creator of the folder has put there."""
        self._disk = disk
        self._path = path
        self._companions = companions
        self.is_marked_clean = was_clean
        self.has_new_names = not was_clean
        """Whether there are names that a power cut could remove."""
        self.is_there = False
        """Whether the folder exists for certain; otherwise it is made before the first batch."""
        self._is_entered = was_clean

    def make(self) -> None:
        if not self.is_there:
            self._disk.make_directory(self._path)

    def enter(self) -> None:
        """Make the folder and all its names durable; without it nothing in it is."""
        if not self._is_entered:
            for name in self._companions:
                if self._disk.size(self._path / name) is not None:
                    self._disk.open_read_only(self._path / name).sync()
            self.sync()
            self._disk.sync_directory(self._path.parent)
            self._is_entered = True

    def sync(self) -> None:
        """Make the creation and the removal of names durable."""
        self._disk.sync_directory(self._path)

    def sync_names(self, rolled_at: int) -> None:
        """Make new names durable, and the snapshot of the last roll; then older snapshots can be removed."""
        snapshot = self._path / recovery.snapshot_name(rolled_at)
        if self._disk.size(snapshot) is not None:
            self._disk.open_read_only(snapshot).sync()
        if self._is_entered:
            self.sync()
        else:
            self.enter()
        for offset in recovery.snapshot_offsets(self._disk, self._path)[:-_SNAPSHOTS_KEPT]:
            self._disk.remove(self._path / recovery.snapshot_name(offset))

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint; it is durable on return."""
        checkpoints.write_checkpoint(self._disk, self._path, checkpoint)
        self.enter()

    def write_epochs(self, epochs: LeaderEpochs, *, sync: bool) -> None:
        entries = tuple(epochs.entries)
        self._disk.replace(self._path / EPOCHS_NAME, epochs.encode(), sync=sync)
        epochs.written = entries

    def write_snapshot(self, end_offset: int, producers: Callable[[], ProducerState]) -> None:
        """Write the producer state at the log's end, from which a recovery starts. It is a cache, so a failure is only
        logged.
        """
        try:
            self._disk.replace(
                self._path / recovery.snapshot_name(end_offset), producers().encode_snapshot(), sync=False
            )
        except OSError as error:
            disk_errors.tell(
                logger, f"{self._path.name}: cannot write the producer snapshot at {end_offset}", error
            )

    def mark_clean(self, checkpoint: Checkpoint, epochs: LeaderEpochs, segments: Sequence[Segment]) -> None:
        """Note that the log was closed with all its data written, and its state: the next open scans nothing."""
        checkpoints.write_clean_marker(self._disk, self._path, checkpoint, epochs.entries, segments)

    def unmark_clean(self) -> None:
        checkpoints.remove_clean_marker(self._disk, self._path)
        self.is_marked_clean = False

    def remove_snapshots(self) -> None:
        for offset in recovery.snapshot_offsets(self._disk, self._path):
            self._disk.remove(self._path / recovery.snapshot_name(offset))

    def delete(self) -> None:
        """Remove all files, when the segments are gone; and the folder, unless it has other files."""
        self.remove_snapshots()
        for name in self._disk.names(self._path):
            if name.endswith(DELETED_SUFFIX):
                self._disk.remove(self._path / name)
        for name in (EPOCHS_NAME, checkpoints.CHECKPOINT_NAME, checkpoints.CLEAN_NAME):
            self._disk.remove(self._path / name)
        self._disk.remove_directory(self._path)
