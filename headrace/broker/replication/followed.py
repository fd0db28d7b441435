"""Reads by consumers from a follower (KIP-392).

- A follower shows records below the high watermark of its leader, which every later leader has too. A fetch beyond its
  end gets OFFSET_OUT_OF_RANGE, and the consumer then asks the leader.
- The last stable offset is never above the leader's at that high watermark: a transaction whose end is copied but above
  the high watermark counts as open.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NoReturn, Protocol

from headrace.broker.partitions.partition import Partition
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.metadata.image import PartitionState


class Followed(Protocol):
    """The copy of the partition: a `Follower`."""

    partition: Partition

    @property
    def state(self) -> PartitionState: ...
    @property
    def log(self) -> PartitionLog: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def high_watermark(self) -> int: ...


class FollowedPartition(Partition):
    """The readable part of a follower's log, as it was at the last `refresh`."""

    __slots__ = ("_copying_from", "_follower", "_open_before", "_unpublished")

    def __init__(self, follower: Followed) -> None:
        at = follower.partition
        super().__init__(at.topic, at.index, self._never, changes=at.changes)
        self.traffic = at.traffic
        self._follower = follower
        self._unpublished: deque[tuple[int, int]] = deque()
        """(end, bound): until the high watermark reaches `end`, offsets from `bound` on are not known to be stable."""
        self._copying_from: int | None = None
        self._open_before: dict[int, int] = {}
        self._take()
        self._forget_what_was_copied()

    @staticmethod
    def _never(partition: Partition) -> NoReturn:
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"partition {partition.name} cannot be read from this broker now",
        )

    def _open(self) -> NoReturn:
        self._never(self)

    def refresh(self) -> None:
        """Take over the follower's new state, and wake waiting reads."""
        self._take()
        self._moved()

    def _take(self) -> None:
        follower = self._follower
        self.topic = follower.partition.topic
        self.leader_epoch = follower.state.leader_epoch
        self.closed = follower.ended
        self._log = follower.log if follower.is_open else None
        self.high_watermark = follower.high_watermark
        while self._unpublished and self._unpublished[0][0] <= self.high_watermark:
            self._unpublished.popleft()

    # -- the last stable offset ----------------------------------------------------------------------------

    def copying(self, log: PartitionLog) -> None:
        """Prepare for batches that are about to be appended."""
        self._open_before = dict(log.open_transactions())
        self._copying_from = log.log_end_offset

    def copied(self, log: PartitionLog) -> None:
        """Note appended batches: they may have ended open transactions, perhaps above the high watermark."""
        still_open = log.open_transactions()
        ended = [first for who, first in self._open_before.items() if still_open.get(who) != first]
        if self._copying_from is not None:
            self._unpublished.append((log.log_end_offset, min([self._copying_from, *ended])))
        self._copying_from, self._open_before = None, {}

    def truncated(self) -> None:
        self._forget_what_was_copied()
        self.refresh()

    def _forget_what_was_copied(self) -> None:
        """Assume that unpublished batches may end any transaction."""
        self._unpublished.clear()
        if self._log is not None and self._log.log_end_offset > self.high_watermark:
            self._unpublished.append((self._log.log_end_offset, 0))

    @property
    def last_stable_offset(self) -> int:
        unstable = self.log.first_unstable_offset
        bounds = [self.high_watermark, *(bound for _, bound in self._unpublished)]
        if unstable is not None:
            bounds.append(unstable)
        if self._copying_from is not None:
            bounds += [self._copying_from, *self._open_before.values()]
        return max(min(bounds), self.log.log_start_offset)
