"""The wait of a fetch for changes of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from headrace.broker.partitions.partition import Partition, PartitionChanges
from headrace.broker.requests.wakeup import Wakeup
from headrace.broker.runtime.slices import Work


class Watched(Protocol):
    """One partition of a fetch; None if it does not exist or may not be read."""

    partition: Partition | None

    @property
    def seen_high_watermark(self) -> int: ...


Entry = TypeVar("Entry", bound=Watched)

_WATCHED_ONE_BY_ONE_MAX: Final = 16
"""A fetch of more partitions is told of each change of any partition: one look-up per change costs less than
registering with hundreds of partitions at every poll.
"""


class FetchWatch:
    """The watch of one fetch over its partitions."""

    __slots__ = ("_callbacks", "_changes", "_moved", "_places", "_seen", "_wakeup")

    def __init__(self, changes: PartitionChanges) -> None:
        self._changes = changes
        self._seen = -1  # the number of changes before the last read of all partitions
        self._places: dict[Partition, list[int]] = {}  # the indexes of the entries of a partition
        self._moved: set[Partition] | None = None  # the partitions to read again; None: all
        self._callbacks: list[tuple[Partition, Callable[[], None]]] = []
        self._wakeup = Wakeup()

    def take_moved(self, wanted: list[Entry]) -> list[Entry]:
        """Return the entries that must be read now: all at first, later those whose partition has changed."""
        self._seen = self._changes.count
        moved, self._moved = self._moved, set()
        if moved is None:
            return wanted
        indexes = sorted(index for partition in moved for index in self._places[partition])
        return [wanted[index] for index in indexes]

    def start(self, wanted: Sequence[Watched]) -> Work[None]:
        """Watch the partitions of a fetch, and note those that have changed since they were read."""
        for index, entry in enumerate(wanted):
            yield
            if entry.partition is not None:
                self._places.setdefault(entry.partition, []).append(index)
        if len(self._places) > _WATCHED_ONE_BY_ONE_MAX:
            self._changes.watchers[self._on_any] = None
        else:
            for partition in self._places:
                callback = partial(self._on_moved, partition)
                partition.add_waiter(callback)
                self._callbacks.append((partition, callback))
        if self._moved is None or self._seen == self._changes.count:
            return
        for entry in wanted:
            yield
            at = entry.partition
            if at is not None and (at.high_watermark != entry.seen_high_watermark or not at.is_open):
                # It changed after it was read and before it was watched.
                self._moved.add(at)

    def end(self) -> None:
        """Watch nothing any more."""
        self._changes.watchers.pop(self._on_any, None)
        for watched, callback in self._callbacks:
            watched.remove_waiter(callback)
        self._callbacks.clear()

    def _on_any(self, partition: Partition) -> None:
        if partition in self._places:
            self._on_moved(partition)

    def _on_moved(self, partition: Partition) -> None:
        if self._moved is not None:
            self._moved.add(partition)
        self.wake()

    def wake(self) -> None:
        """End the wait of the fetch."""
        self._wakeup.wake()

    async def changed(self, deadline: float) -> bool:
        """Wait until a partition changes or `wake` is called; return False if none has changed."""
        if not self._moved:
            await self._wakeup.wait(deadline)
            return bool(self._moved)
        return True
