"""The offsets up to which a lake has a table's buckets, and their JSON form.

Lake snapshots, the server's record and the wire share this form. A place is a bucket of a table, or of one partition
of a partitioned table. A partition is known by name **and id**: a partition that was dropped and created again begins
at offset 0 and is another place. As JSON:

    {"0": 1200, "1": 7}                        a table: exclusive ends by bucket
    {"2024-09-19@<id>": {"0": 1200, "1": 7}}   a partitioned table: the same by partition
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, order=True)
class PartitionBucket:
    """A bucket of the partition `partition` whose own table id is `table_id`."""

    partition: str
    table_id: UUID
    bucket: int

    def __str__(self) -> str:
        return f"{self.bucket} of partition {self.partition}"


Place = int | PartitionBucket
"""A bucket's number in a table without partitions, else a `PartitionBucket`. A table has places of one kind only."""

Offsets = Mapping[Any, int]
"""Exclusive ends by `Place`. A mapping's key type is invariant, and most mappings have numbers only, so it is Any."""


def in_order(offsets: Offsets) -> list[tuple[Any, int]]:
    """Return the places with their offsets, sorted."""
    return sorted(offsets.items())


def offsets_to_json(offsets: Offsets) -> str:
    """Return offsets in the JSON form that the module describes."""
    return json.dumps(offsets_to_value(offsets))


def offsets_from_json(text: str | bytes) -> dict[Place, int]:
    """Return the offsets in a JSON text. Raises ValueError for a text that `offsets_to_json` does not write."""
    return offsets_from_value(json.loads(text))


def offsets_to_value(offsets: Offsets) -> dict[str, Any]:
    """Return offsets as the value of a JSON text."""
    value: dict[str, Any] = {}
    for place, offset in in_order(offsets):
        if isinstance(place, PartitionBucket):
            value.setdefault(f"{place.partition}@{place.table_id}", {})[str(place.bucket)] = offset
        else:
            value[str(place)] = offset
    return value


def offsets_from_value(listed: Mapping[str, Any]) -> dict[Place, int]:
    """Return the offsets in the value of a JSON text."""
    found: dict[Place, int] = {}
    for name, value in listed.items():
        if isinstance(value, dict):
            partition, _, table_id = name.rpartition("@")
            for bucket, offset in value.items():
                found[PartitionBucket(partition, UUID(table_id), int(bucket))] = int(offset)
        else:
            found[int(name)] = int(value)
    return found


def without_dropped(offsets: Offsets, existing: Collection[Any]) -> dict[Place, int]:
    """Return the offsets without those of partitions that were dropped; all buckets of a table stay.

    Otherwise a table whose partitions come and go would collect them for years.
    """
    return {
        place: offset
        for place, offset in offsets.items()
        if not isinstance(place, PartitionBucket) or place in existing
    }


def partitions_of(places: Collection[Any]) -> list[str]:
    """Return the names of the partitions among places, in order."""
    return sorted({place.partition for place in places if isinstance(place, PartitionBucket)})
