"""Position of a stream, and the end of its next micro-batch. Pure: no Spark, no server.

Spark keeps a position in the checkpoint as JSON:

    {"table": "<table id>", "offsets": {"0": 17, ...}, "began": {"0": 5, ...} | "full"}

`offsets` are the next ones to read, by bucket. `began` is where the stream began. Until its first micro-batch is
committed, Spark's checkpoint knows only the end of that batch, and asks for the beginning again after a restart.
"latest" would then be another offset, and rows would be lost; so the end carries the beginning. A position with
`"initial": true` is the answer to that question: where the stream would begin if it began now.

For a partitioned table (`PartitionedPosition`) the offsets are by partition:

    {"table": "<id>", "partitions": {"2024": {"id": "<its id>", "offsets": {"0": 17}}}, "began": {"2024": {...}}}

A partition that a batch's start does not know is new, or was dropped and created again (another id). It is read from
offset 0, or, if its end has `"full": true`, with its state.

`"lake"` is the snapshot of the lake that the server knew when it had these partitions (-1: none). A partition that is
made and expires between two batches is in neither position, but in the snapshots between theirs. `"began_lake"` is the
snapshot at the beginning. Positions of earlier releases, and those of tables whose lake has no log, have neither.
`"gone"` are the counts of partitions that are gone, see `nothing_passed`. While only the snapshot changes, the position
stays the same, and no batch is made. `"since_lake"` in the end of the next batch is the last snapshot of that time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

from headrace.tablelayer.model.lake.offsets import PartitionBucket

Offsets = Mapping[int, int]
Began = Offsets | Literal["full"]
_LOST_SHOWN: Final = 5
_LAKES: Final = ("lake", "began_lake", "since_lake")
Place = TypeVar("Place", bound=Any)
"""A bucket; for a partitioned table a partition and its bucket."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position in a table, see the module. An initial position that begins "full" has no `offsets`."""

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
        """Parse a position. Raises ValueError if it is not a position of this source."""
        try:
            began: Began = "full" if value["began"] == "full" else _numbers(value["began"])
            return cls(
                str(value["table"]), _numbers(value["offsets"]), began, bool(value.get("initial", False))
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _no_position(value) from None


@dataclass(frozen=True, slots=True)
class PartitionAt:
    """A partition, by its id, and the next offsets of its buckets.

    `full`: a batch whose start does not know the partition begins with its state.
    """

    table: str
    offsets: Offsets
    full: bool = False


@dataclass(frozen=True, slots=True)
class PartitionedPosition:
    """Position in a partitioned table, by partition name; see the module.

    `began` is where the partitions that existed at first began, as in `Position`.
    """

    table: str
    partitions: Mapping[str, PartitionAt]
    began: Mapping[str, PartitionAt] = field(default_factory=dict)
    initial: bool = False
    lake: int | None = None
    began_lake: int | None = None
    since_lake: int | None = None
    gone: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "table": self.table,
            "partitions": _texts_by_partition(self.partitions),
            "began": _texts_by_partition(self.began),
        }
        value |= {name: at for name in _LAKES if (at := getattr(self, name)) is not None}
        value |= {"gone": list(self.gone)} if self.gone else {}
        return value | ({"initial": True} if self.initial else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PartitionedPosition:
        """Parse a position. Raises ValueError if it is not a position of this source."""
        try:
            partitions, began = (_numbers_by_partition(value[name]) for name in ("partitions", "began"))
            lakes = {name: int(value[name]) for name in _LAKES if value.get(name) is not None}
            gone, is_initial = tuple(map(int, value.get("gone", ()))), bool(value.get("initial", False))
            return cls(str(value["table"]), partitions, began, is_initial, gone=gone, **lakes)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _no_position(value) from None


def partition_starts(
    start: PartitionedPosition, end: PartitionedPosition
) -> Iterator[tuple[str, PartitionAt, Began]]:
    """Yield (name, end, beginning) of the batch from `start` to `end` for each partition of `end`."""
    known = end.began if start.initial else start.partitions
    for name, at in end.partitions.items():
        before = known.get(name)
        if before is not None and before.table == at.table:
            yield name, at, before.offsets
        else:
            yield name, at, "full" if at.full else dict.fromkeys(at.offsets, 0)


def replaced_partitions(start: PartitionedPosition, end: PartitionedPosition) -> dict[str, PartitionAt]:
    """Return the partitions that the start of a batch knows, and that its end does not know or knows by another id."""
    known = end.began if start.initial else start.partitions
    return {
        name: at
        for name, at in known.items()
        if name not in end.partitions or end.partitions[name].table != at.table
    }


def places_of(position: PartitionedPosition) -> list[PartitionBucket]:
    """Return the buckets of a position's partitions."""
    return [
        PartitionBucket(name, UUID(at.table), bucket)
        for name, at in position.partitions.items()
        for bucket in at.offsets
    ]


def lake_snapshots(start: PartitionedPosition, end: PartitionedPosition) -> tuple[int, int] | None:
    """Return the lake's snapshots at both ends of a batch; None if they are the same, or one is not known."""
    since = end.began_lake if start.initial else start.lake
    if since is None or end.lake is None or since == end.lake or nothing_passed(start, end):
        return None
    return since if end.since_lake is None else end.since_lake, end.lake


def nothing_passed(start: PartitionedPosition, end: PartitionedPosition) -> bool:
    """Return whether it is certain that no partition expired between two positions that neither of them knows.

    `gone` counts the partitions that expired without a client's drop, and all that are gone; the latter only if the
    position has every partition that was left.
    """
    # The server counts each id once, in one step with the list of those that are left. So between positions with both
    # counts, all that are gone = known ones that are gone (by id, whatever has their names) + those that came and went.
    # If no more have expired, none did, whatever clients dropped. Any other difference proves nothing.
    if start.initial or not start.gone or not end.gone:
        return False
    if start.gone[0] == end.gone[0]:
        return True
    known = len(replaced_partitions(start, end))
    return len(start.gone) == len(end.gone) == 2 and end.gone[1] - start.gone[1] == known


def batch_start(start: Position, end: Position) -> Began:
    """Return the beginning of the batch from `start` to `end`: "full" for the state without the log before it."""
    return end.began if start.initial else start.offsets


def admit(start: Mapping[Place, int], latest: Mapping[Place, int], most: int | None) -> dict[Place, int]:
    """Return the ends of the next micro-batch: at most `most` offsets (None: all), in proportion to the lag.

    The result is between `start` and `latest`, and has exactly `most` offsets if that many are waiting. No lagging
    bucket is left out for ever: the remainder of the division goes to the largest remainders. Buckets that are new in
    `latest` begin at 0.
    """
    lags = {bucket: max(0, stop - start.get(bucket, 0)) for bucket, stop in latest.items()}
    total = sum(lags.values())
    ends = {bucket: start.get(bucket, 0) + lag for bucket, lag in lags.items()}
    if most is None or total <= most:
        return ends
    shares = {bucket: divmod(lag * most, total) for bucket, lag in lags.items()}
    left = most - sum(share for share, _ in shares.values())
    # Among equal remainders the longer lag comes first, so that no bucket starves.
    order = sorted(lags, key=lambda bucket: (-shares[bucket][1], -lags[bucket], bucket))
    extra = set(order[:left])
    return {
        bucket: start.get(bucket, 0) + share + (1 if bucket in extra else 0)
        for bucket, (share, _) in shares.items()
    }


def lost_ranges(start: Offsets, earliest: Offsets, latest: Offsets) -> dict[int, tuple[int, int]]:
    """Return the buckets whose start is no longer in the log: (start, where the log begins or ends instead)."""
    lost = {}
    for bucket, offset in start.items():
        if offset < earliest.get(bucket, 0):
            lost[bucket] = (offset, earliest[bucket])
        elif bucket in latest and offset > latest[bucket]:
            lost[bucket] = (offset, latest[bucket])
    return lost


def lost_text(path: Any, lost: Mapping[int, tuple[int, int]]) -> str:
    """Return a sentence about the offsets in `lost_ranges`."""
    shown = [
        f"bucket {bucket} from {wanted}, its log {'begins' if instead > wanted else 'ends'} at {instead}"
        for bucket, (wanted, instead) in sorted(lost.items())[:_LOST_SHOWN]
    ]
    more = f"; and {len(lost) - len(shown)} more buckets" if len(lost) > len(shown) else ""
    count = sum(max(0, instead - wanted) for wanted, instead in lost.values())
    return f"{count:,} offsets of {path} that this stream should read are not in the log: {'; '.join(shown)}{more}"


def _no_position(value: Any) -> ValueError:
    return ValueError(
        f"the checkpoint holds {json.dumps(value)}, which is not a position in this table: it belongs to"
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
