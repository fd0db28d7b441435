"""Hooks by which an extension serves a partition.

Invariants
- A partition with hooks publishes its high watermark only through `Partition.publish_high_watermark`, called by the
  hooks; records at or above it are never shown. A hook that has heard `high_watermark_candidate(n)` must in the end
  publish n, or fail the partition.
- Life of the hooks of a partition: `start` -> (`produce` | `produce_at_once` | `wait_published` | `fetch` |
  `high_watermark_candidate` | `truncated`)* -> `close` or `delete`. Nothing is called after `close` or `delete`.
- Hooks that can rest are served before their `start`, which follows beside the requests: a broker with thousands of
  idle partitions answers its clients at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import AppendInfo, PartitionLog
    from headrace.broker.log.region import FileRegion


class FetchedRecords(msgspec.Struct, frozen=True):
    """The records that a hook returns to a Kafka consumer: whole record batches v2 with the log's own offsets, or
    nothing.

    `parts` are sent one after the other; `size` is their length in bytes. `record_count` is for the statistics.
    """

    parts: tuple[bytes | bytearray | memoryview | FileRegion, ...] = ()
    size: int = 0
    record_count: int = 0


class PartitionHooks(Protocol):
    """The interface by which an extension serves one partition. One object per partition; called on the event loop
    only.
    """

    def can_rest(self, end_offset: int) -> bool:
        """Return whether a start would find nothing to replay in a log that was closed cleanly at `end_offset`. It is
        called in any thread, before `start`. If the result is true, all records are published, and calls other than
        `start` may come before it.
        """

    async def start(self) -> None:
        """Replay the log, which is open, and publish the high watermark that results. Nothing is served yet, unless
        the hooks rest.

        An exception fails the partition, not the broker.
        """

    def produce_at_once(self, batch: memoryview) -> AppendInfo | None:
        """Accept a Kafka client's small batch without a wait; `wait_published` is the rest of what `produce` does.

        Return None, without any effect, if that is not possible or the batch is not accepted; then call `produce`.
        """

    async def wait_published(self, info: AppendInfo, acks: int, timeout_ms: int) -> AppendInfo:
        """Wait as `acks` demands for a batch that is in the log. Raises KafkaError."""

    async def produce(self, batch: memoryview, acks: int, timeout_ms: int) -> AppendInfo:
        """Accept a Kafka client's batch and wait as `acks` (0, 1, -1) demands.

        The batch has been checked to be exactly one batch with magic 2. Raises KafkaError or RecordErrors.
        """

    async def fetch(self, offset: int, max_bytes: int, min_one: bool) -> FetchedRecords:
        """Return records for a Kafka consumer, from `offset` on, below the published high watermark.

        Offsets without anything to show must be passed (with an empty batch that covers them), so that a consumer
        advances. With `min_one` at least one whole batch is returned, however large.
        """

    def high_watermark_candidate(self, offset: int) -> None:
        """Note that the log is replicated up to `offset`. Publish it with `Partition.publish_high_watermark` when
        ready.
        """

    def retention_floor(self) -> int | None:
        """Return the offset at and above which retention must not delete; None if it may delete anything."""

    def local_floor(self) -> int | None:
        """Return the offset at and above which a log with remote storage stays local; None if every copied segment may
        be deleted.
        """

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        """Return whether a follower that has the log may join the ISR. Return False while it lacks the data that is
        kept beside the log; when it has the data, `ReplicatedPartition.look_again` asks again.
        """

    async def truncated(self, end_offset: int) -> None:
        """Note that records at and above `end_offset` are gone from the log."""

    async def close(self) -> None: ...

    async def delete(self) -> None:
        """Release and remove everything that belongs to the partition, because the topic was deleted."""


class ReplicaHooks(Protocol):
    """The interface by which an extension keeps up with a replica whose leader is another broker. Called on the event
    loop.

    Life: `opened` -> (`advanced` | `truncated`)* -> `close` or `delete`. If the replica becomes the leader, its state
    goes to the hooks of the new leader partition.
    """

    def opened(self, log: PartitionLog) -> None:
        """Note that the log is open, as it was found. It may be read, below the follower's high watermark."""

    def advanced(self) -> None:
        """Note that the follower's high watermark may have moved."""

    def truncated(self, end_offset: int) -> None:
        """Note that the log is about to be cut to `end_offset`, or to begin again there."""

    @property
    def floor(self) -> int:
        """Return the offset at and above which nothing is deleted, whatever the leader has deleted."""

    @property
    def may_fetch(self) -> bool:
        """Return False while the log cannot be continued: then the replica must not join the ISR either."""

    async def close(self) -> None: ...

    async def delete(self) -> None:
        """Remove everything that belongs to the replica, because this broker does not have one any more."""
