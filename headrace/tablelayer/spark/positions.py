"""Where a stream is, and how far its next micro-batch goes. Pure: no Spark, no server.

A position is what Spark keeps in the checkpoint, as JSON:

    {"table": "<table id>", "offsets": {"0": 17, ...}, "began": {"0": 5, ...} | "full"}

`offsets` are the next to read by bucket. `began` says where the stream began, for one reason: until its first
micro-batch is committed, Spark's checkpoint knows only where that batch ends, and asks for the beginning again
after a restart. "latest" would then be another one, and rows would be lost; so the end carries the beginning.
A position with `"initial": true` is such an answer: where the stream would begin if it began now.

Of a partitioned table (`PartitionedPosition`) the offsets are by partition:

    {"table": "<id>", "partitions": {"2024": {"id": "<its id>", "offsets": {"0": 17}}}, "began": {"2024": {...}}}

A partition that a batch's start does not know is new, or was dropped and made again (another id): it is read from
offset 0, or, where its end says `"full": true`, with its state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Offsets = Mapping[int, int]
Began = Offsets | Literal["full"]
Place = TypeVar("Place", bound=Any)
"""A bucket; of a partitioned table a partition and its bucket."""


@dataclass(frozen=True, slots=True)
class Position:
    """See the module. `offsets` of an initial position that begins "full" are empty."""

    table: str
    offsets: Offsets
    began: Began
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "table": self.table,
            "offsets": _texts(self.offsets),
            "began": self.began if isinstance(self.began, str) else _texts(self.began),
        }
        return value | ({"initial": True} if self.initial else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Position:
        """Raises ValueError for what is not a position of this source."""
        try:
            began: Began = "full" if value["began"] == "full" else _numbers(value["began"])
            return cls(
                str(value["table"]), _numbers(value["offsets"]), began, bool(value.get("initial", False))
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _no_position(value) from None


@dataclass(frozen=True, slots=True)
class PartitionAt:
    """A partition, by its id, and the next offsets of its buckets. `full`: who did not know it began with the state
    that it had.
    """

    table: str
    offsets: Offsets
    full: bool = False


@dataclass(frozen=True, slots=True)
class PartitionedPosition:
    """See the module; by the partitions' names. `began` is where those that were there at first began, as in
    `Position`.
    """

    table: str
    partitions: Mapping[str, PartitionAt]
    began: Mapping[str, PartitionAt] = field(default_factory=dict)
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        value = {
            "table": self.table,
            "partitions": _texts_by_partition(self.partitions),
            "began": _texts_by_partition(self.began),
        }
        return value | ({"initial": True} if self.initial else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PartitionedPosition:
        """Raises ValueError for what is not a position of this source."""
        try:
            partitions, began = (_numbers_by_partition(value[name]) for name in ("partitions", "began"))
            return cls(str(value["table"]), partitions, began, bool(value.get("initial", False)))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _no_position(value) from None


def partition_starts(
    start: PartitionedPosition, end: PartitionedPosition
) -> Iterator[tuple[str, PartitionAt, Began]]:
    """Where the batch from `start` to `end` begins in each partition of `end`: (name, its end, its beginning)."""
    known = end.began if start.initial else start.partitions
    for name, at in end.partitions.items():
        before = known.get(name)
        if before is not None and before.table == at.table:
            yield name, at, before.offsets
        else:
            yield name, at, "full" if at.full else dict.fromkeys(at.offsets, 0)


def batch_start(start: Position, end: Position) -> Began:
    """Where the batch from `start` to `end` really begins: "full" for the state and nothing before it."""
    return end.began if start.initial else start.offsets


def admit(start: Mapping[Place, int], latest: Mapping[Place, int], most: int | None) -> dict[Place, int]:
    """Ends of the next micro-batch: at most `most` offsets (None: all), shared out in proportion to the lag.

    The result is never before `start` nor behind `latest`, has exactly `most` offsets where so many wait, and a
    bucket that lags is not left out for ever: what division leaves over goes to the largest remainders. Buckets
    that are new in `latest` begin at 0.
    """
    lags = {bucket: max(0, stop - start.get(bucket, 0)) for bucket, stop in latest.items()}
    total = sum(lags.values())
    ends = {bucket: start.get(bucket, 0) + lag for bucket, lag in lags.items()}
    if most is None or total <= most:
        return ends
    shares = {bucket: divmod(lag * most, total) for bucket, lag in lags.items()}
    left = most - sum(share for share, _ in shares.values())
    # Of equal remainders the longer lag first, so that nobody starves.
    order = sorted(lags, key=lambda bucket: (-shares[bucket][1], -lags[bucket], bucket))
    extra = set(order[:left])
    return {
        bucket: start.get(bucket, 0) + share + (1 if bucket in extra else 0)
        for bucket, (share, _) in shares.items()
    }


def lost_ranges(start: Offsets, earliest: Offsets, latest: Offsets) -> dict[int, tuple[int, int]]:
    """Buckets whose start is not in the log any more: (start, where the log begins or ends instead)."""
    lost = {}
    for bucket, offset in start.items():
        if offset < earliest.get(bucket, 0):
            lost[bucket] = (offset, earliest[bucket])
        elif bucket in latest and offset > latest[bucket]:
            lost[bucket] = (offset, latest[bucket])
    return lost


def _no_position(value: Any) -> ValueError:
    return ValueError(
        f"the checkpoint holds {json.dumps(value)}, which is no position in this table: it belongs to"
        " another source; use a new checkpoint location"
    )


def _texts_by_partition(partitions: Mapping[str, PartitionAt]) -> dict[str, Any]:
    return {
        name: {"id": at.table, "offsets": _texts(at.offsets)} | ({"full": True} if at.full else {})
        for name, at in sorted(partitions.items())
    }


def _numbers_by_partition(value: Mapping[str, Any]) -> dict[str, PartitionAt]:
    return {
        str(name): PartitionAt(str(at["id"]), _numbers(at["offsets"]), bool(at.get("full", False)))
        for name, at in value.items()
    }


def _texts(offsets: Offsets) -> dict[str, int]:
    return {str(bucket): offset for bucket, offset in sorted(offsets.items())}


def _numbers(value: Mapping[str, Any]) -> dict[int, int]:
    return {int(bucket): int(offset) for bucket, offset in value.items()}
