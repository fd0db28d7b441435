"""The part of a partition's log that is in remote storage, as a partition and the readers of its log need it.

`broker.remote.log` has the implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from headrace.broker.log.slice import LogSlice
from headrace.broker.log.time_lookup import OffsetAtTime
from headrace.broker.log.transaction_index import AbortedTransaction

Result = TypeVar("Result")


class RemoteManifest(Protocol):
    """The list of the segments that are in remote storage."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    def epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, start offset) of every epoch in remote storage."""


class RemoteLog(Protocol):
    """The remote segments of one partition. Every coroutine raises KafkaError when remote storage cannot be read."""

    def reload(self) -> None:
        """Read the manifest again before the next read: another leader may have written it."""

    def newest_with_producers(self) -> tuple[RemoteManifest, bytes]:
        """Return the newest manifest and the state of producers at its end. Blocks: call it through `run`."""

    async def read(self, offset: int, max_bytes: int, up_to: int, min_one_batch: bool) -> LogSlice:
        """Return batches from `offset` on, as `PartitionLog.read` does. The offset is not in the local log."""

    async def offset_for_timestamp(self, timestamp_ms: int, log_start_offset: int) -> OffsetAtTime | None:
        """Return the first record at or after a timestamp, or None if remote storage has none."""

    async def max_timestamp(self, log_start_offset: int) -> OffsetAtTime | None:
        """Return the first record with the largest timestamp in remote storage."""

    async def aborted_transactions(
        self, start_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Return the aborted transactions in [start, end), and whether later segments cannot have more."""

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function that waits for the network in a thread."""
