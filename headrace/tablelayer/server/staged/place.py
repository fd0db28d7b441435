"""The place of staged rows: a bucket of a table, or of one partition of a partitioned table."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol
from uuid import UUID

from headrace.tablelayer.model.messages.between import StagedPlace

THE_TABLE_ITSELF: Final = UUID(int=0)
"""The partition id of a table that is not partitioned, as in the messages."""


class NamesPlace(Protocol):
    """A part of a message that names a place."""

    partition_id: UUID
    bucket: int


class Place(NamedTuple):
    """A bucket of a table; in a partitioned table the partition's id, and its bucket."""

    partition_id: UUID
    bucket: int

    @classmethod
    def named(cls, part: NamesPlace) -> Place:
        return cls(part.partition_id, part.bucket)

    @classmethod
    def from_text(cls, text: str) -> Place:
        """Return the place from its `text`. Raises ValueError."""
        partition, dot, bucket = text.rpartition(".")
        return cls(UUID(partition) if dot else THE_TABLE_ITSELF, int(bucket))

    @property
    def text(self) -> str:
        """The place in a file's name, and in a ledger."""
        return f"{self.partition_id}.{self.bucket}" if self.is_of_partition else str(self.bucket)

    @property
    def is_of_partition(self) -> bool:
        return self.partition_id != THE_TABLE_ITSELF

    def table_id(self, whole: UUID) -> UUID:
        """Return the id of the topic that has the bucket; `whole` is the id of the table."""
        return self.partition_id if self.is_of_partition else whole

    def counted(self, count: int) -> StagedPlace:
        """Return the place for a message, with a number of chunks or a chunk's number."""
        return StagedPlace(partition_id=self.partition_id, bucket=self.bucket, count=count)


def bucket_of_table(bucket: int) -> Place:
    """Return the place of a bucket of a table that is not partitioned."""
    return Place(THE_TABLE_ITSELF, bucket)
