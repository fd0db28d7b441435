"""Where a stream is, and how far its next micro-batch goes. Pure: no Spark, no server.

A position is what Spark keeps in the checkpoint, as JSON:

    {"table": "<table id>", "offsets": {"0": 17, ...}, "began": {"0": 5, ...} | "full"}

`offsets` are the next to read by bucket. `began` says where the stream began, for one reason: until its first
micro-batch is committed, Spark's checkpoint knows only where that batch ends, and asks for the beginning again
after a restart. "latest" would then be another one, and rows would be lost; so the end carries the beginning.
A position with `"initial": true` is such an answer: where the stream would begin if it began now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Offsets = Mapping[int, int]
Began = Offsets | Literal["full"]


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
            raise ValueError(
                f"the checkpoint holds {json.dumps(value)}, which is no position in a table: it belongs to"
                " another source; use a new checkpoint location"
            ) from None


def batch_start(start: Position, end: Position) -> Began:
    """Where the batch from `start` to `end` really begins: "full" for the state and nothing before it."""
    return end.began if start.initial else start.offsets


def admit(start: Offsets, latest: Offsets, most: int | None) -> dict[int, int]:
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


def _texts(offsets: Offsets) -> dict[str, int]:
    return {str(bucket): offset for bucket, offset in sorted(offsets.items())}


def _numbers(value: Mapping[str, Any]) -> dict[int, int]:
    return {int(bucket): int(offset) for bucket, offset in value.items()}
