"""How somebody else than the broker serves a partition.

Invariants
- A partition with hooks publishes its high watermark only through `Partition.publish_high_watermark`, called
  by the hooks; what lies at or above it is never shown to anyone. A hook that has heard
  `high_watermark_candidate(n)` must in the end publish n, or fail the partition.
- Life of the hooks of a partition: `start` -> (`produce` | `fetch` | `high_watermark_candidate` |
  `truncated`)* -> `close` or `delete`. Nothing is called after `close` or `delete`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import AppendInfo, PartitionLog
    from headrace.broker.log.region import FileRegion


class FetchedRecords(msgspec.Struct, frozen=True):
    """What a hook gives to a Kafka consumer: whole record batches v2 with the log's own offsets, or nothing.

    `parts` are sent one after the other; `size` is their length in bytes. `record_count` is for the statistics.
    """

    parts: tuple[bytes | bytearray | memoryview | FileRegion, ...] = ()
    size: int = 0
    record_count: int = 0


class PartitionHooks(Protocol):
    """How an extension serves one partition. One object per partition; called on the event loop only."""

    async def start(self) -> None:
        """The log is open; nothing is served yet. Replay here, and publish the high watermark that results.

        An exception fails the partition, not the broker.
        """

    async def produce(self, batch: memoryview, acks: int, timeout_ms: int) -> AppendInfo:
        """Take a Kafka client's batch and wait for what `acks` (0, 1, -1) demands.

        The batch has been checked to be exactly one batch with magic 2. Raises KafkaError or RecordErrors.
        """

    async def fetch(self, offset: int, max_bytes: int, min_one: bool) -> FetchedRecords:
        """Records for a Kafka consumer, from `offset` on, below the published high watermark.

        Must get past offsets at which there is nothing to show (an empty batch that covers them), so that a
        consumer advances. With `min_one` at least one whole batch, however large.
        """

    def high_watermark_candidate(self, offset: int) -> None:
        """The log is replicated up to `offset`. Publish it with `Partition.publish_high_watermark` when ready."""

    def retention_floor(self) -> int | None:
        """Retention never deletes at or above this offset; None if it may delete anything."""

    def local_floor(self) -> int | None:
        """Of a log with remote storage: what is at or above this offset stays local; None if all may go that was
        copied."""

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        """Whether a follower that has the log may come into the ISR. False while it lacks what is kept beside the log;
        when it has that, `ReplicatedPartition.look_again` asks again.
        """

    async def truncated(self, end_offset: int) -> None:
        """Records at and above `end_offset` are gone from the log."""

    async def close(self) -> None: ...

    async def delete(self) -> None:
        """The topic was deleted: release and remove everything that belongs to the partition."""


class ReplicaHooks(Protocol):
    """How somebody else than the broker keeps up with a replica that is led elsewhere. Called on the event loop.

    Life: `opened` -> (`advanced` | `truncated`)* -> `close` or `delete`; or the replica begins to lead, and what is
    kept up goes to the hooks of the partition that is made of it.
    """

    def opened(self, log: PartitionLog) -> None:
        """The log is open, as it was found. It may be read, below the follower's high watermark."""

    def advanced(self) -> None:
        """The follower's high watermark may be another one."""

    def truncated(self, end_offset: int) -> None:
        """The log is about to be cut to `end_offset`, or to begin again there."""

    @property
    def floor(self) -> int:
        """What lies at or above this offset is not deleted, whatever the leader has deleted."""

    @property
    def may_fetch(self) -> bool:
        """False while the log cannot be gone on with: then the replica must not come into the ISR either."""

    async def close(self) -> None: ...

    async def delete(self) -> None:
        """This broker is to have no replica any more: remove everything that belongs to it."""
