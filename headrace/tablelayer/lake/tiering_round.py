"""Tiering round: moves the new changes in a table's log into its lake table, exactly once.

1. Take a round from the coordinator (epoch, lease; a thread renews it).
2. Find the tiered offsets **in the lake**. Report them to the coordinator if it does not know them: a tiering job may
   have died between its commit and its report.
3. Pin the log's end offsets. With nothing new, the round ends and changes nothing.
4. Read the range in the executors: for a PK table the last change of each key, or in its first round the state of its
key-value store. Write it to a branch together with the new offsets, and move `main` onto the branch if `main` has not
moved meanwhile.
5. Report to the coordinator; repeat step 4 until the pinned end, or until the coordinator wants the round to finish.
6. Expire partitions and snapshots and compact, if the table's options say so; end the round.

A crash at any point leaves either a branch that no reader sees or a complete round. If two tiering jobs run at once,
the coordinator gives the round to one of them. If both have a round all the same, the lake takes one commit and the
other tiering job learns that it lost.

One commit has at most `ROUND_ROWS_MAX` changes per bucket, so that memory does not grow with the backlog. A table that
is further behind takes several commits, and each of them is final.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from headrace.tablelayer.lake.adapter import LakeError, LakeState, LakeTable, RoundLostError
from headrace.tablelayer.lake.change_source import ChangeSource, with_state
from headrace.tablelayer.lake.coordinator import Coordinator, Heartbeats, TieringRound
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import Offsets, without_dropped
from headrace.tablelayer.model.table.path import TablePath

Expire = Callable[[LakeState], tuple[LakeState, str]]
"""Expiry of old partitions: takes the lake's state, and returns the one after it and a report."""

ROUND_ROWS_MAX = 2_000_000
"""Maximum number of offsets per bucket and commit: some hundred megabytes of Arrow in one worker at 100 bytes a row."""


class Outcome(StrEnum):
    """Outcome of a round."""

    COMMITTED = "committed"
    NOTHING_NEW = "nothing new"
    BUSY = "another tiering job has this table"
    LOST = "lost to another tiering job"
    FENCED = "fenced by another tiering job"


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Result of one round. `changes` is the number of offsets moved into the lake, over all buckets."""

    path: TablePath | str | None
    outcome: Outcome
    changes: int = 0
    snapshot: int | None = None
    offsets: Offsets = field(default_factory=dict)
    seconds: float = 0.0
    more: bool = False
    detail: str = ""

    def __str__(self) -> str:
        if self.outcome is Outcome.COMMITTED:
            text = (
                f"{self.path}: {self.changes:,} changes into snapshot {self.snapshot} in {self.seconds:.1f} s"
            )
        elif self.outcome is Outcome.NOTHING_NEW:
            lake = "has no snapshot yet" if self.snapshot is None else f"is at snapshot {self.snapshot}"
            text = f"{self.path}: nothing new, the lake {lake}"
        else:
            text = f"{self.path}: {self.outcome.value}"
        return f"{text} ({self.detail})" if self.detail else text


def tier_round(
    granted: TieringRound,
    coordinator: Coordinator,
    lake: LakeTable,
    source: ChangeSource,
    spark: Any,
    before_commit: Callable[[Offsets, Offsets], None] = lambda _start, _end: None,
    may_maintain: Callable[[], bool] = lambda: True,
    expire: Expire | None = None,
) -> RoundResult:
    """Run one round up to the log's present end. Its holder ends it with the coordinator.

    `before_commit` is called with the start and end of each piece, after the piece is written and before readers see
    it; `may_maintain` after the last commit. `expire` is called then, even if the log has nothing new. Raises LakeError
    for problems that a person must fix, and the source's errors.
    """
    started = time.monotonic()
    with Heartbeats(coordinator, granted) as heartbeats:
        heartbeats.doing = "looking"
        base = lake.find_committed(coordinator.describe(granted.table_id).snapshot_id)
        start, end = _plan(granted.path, base, source)
        # A client's drop is recorded before the partition is deleted. It is read after the list of partitions, so that
        # it is known if a successor is.
        dropped = coordinator.describe(granted.table_id).dropped
        new = {place: offset for place, offset in end.items() if place not in base.offsets}
        state = source.state(spark, new) if new else None
        if state is not None:
            start |= dict.fromkeys(new, 0)  # all that the log still has
        if base.committed is not None and start == end:
            base, said = _expire(expire, base) if may_maintain() else (base, "")
            detail = "; ".join(filter(None, (said, _report(coordinator, granted, base))))
            nothing = Outcome.NOTHING_NEW
            return RoundResult(granted.path, nothing, 0, base.committed, base.offsets, detail=detail)
        if start == end:
            return RoundResult(granted.path, Outcome.NOTHING_NEW)
        first = start
        details = []
        while start != end and not (base.committed is not None and heartbeats.finish.is_set()):
            heartbeats.doing = "writing"
            upto = {place: min(offset, start[place] + ROUND_ROWS_MAX) for place, offset in end.items()}
            if state is not None:
                upto |= new
            changes = with_state(state, new, source, spark, start, upto)
            state = None
            offsets = without_dropped({**base.offsets, **upto}, end)
            try:
                snapshot = lake.write(replace(base, dropped=dropped), changes, offsets, granted.epoch)
                if heartbeats.fenced.is_set():
                    return RoundResult(granted.path, Outcome.FENCED)
                heartbeats.doing = "committing"
                before_commit(start, upto)
                lake.commit(base, snapshot, granted.epoch)
            except RoundLostError as error:
                return RoundResult(granted.path, Outcome.LOST, detail=str(error))
            finally:
                lake.discard(granted.epoch)
            base = LakeState(snapshot, snapshot, offsets, granted.epoch)
            details = [_report(coordinator, granted, base)]
            start = upto
            heartbeats.changes = sum(upto[place] - first[place] for place in upto)
        if may_maintain():
            heartbeats.doing = "maintaining"
            base, said = _expire(expire, base)
            details += [said, _maintain(lake)]
        detail = "; ".join(each for each in details if each)
        more, seconds = start != end, time.monotonic() - started
        committed = Outcome.COMMITTED
        return RoundResult(
            granted.path, committed, heartbeats.changes, base.committed, base.offsets, seconds, more, detail
        )


def _plan(
    path: TablePath | str, base: LakeState, source: ChangeSource
) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return (start, end) by place: from the tiered offsets, or for a new place the log's begin, to the log's end."""
    earliest, latest = source.earliest(), source.latest()
    start = {place: base.offsets.get(place, earliest.get(place, 0)) for place in latest}
    for place, first in start.items():
        if earliest.get(place, 0) > first:
            raise LakeError(
                f"{path}: bucket {place} is tiered up to offset {first}, but its log begins at"
                f" {earliest[place]}: the rows in between have been deleted from the log. Drop the lake table to"
                " tier again from the log's beginning."
            )
        if latest[place] < first:
            raise LakeError(
                f"{path}: bucket {place} is tiered up to offset {first}, but its log ends at"
                f" {latest[place]}: the log was truncated, or the lake belongs to another server. Check the data"
                " directory."
            )
    return start, latest


def _expire(expire: Expire | None, base: LakeState) -> tuple[LakeState, str]:
    """Expire partitions. A failure is only reported: the next check tries again."""
    if expire is None:
        return base, ""
    try:
        return expire(base)
    except Exception as error:  # noqa: BLE001 - reported, see above
        return base, f"partitions did not expire: {first_line(error)}"


def _maintain(lake: LakeTable) -> str:
    """Maintain the lake table. A failure is only reported: the data is tiered, and the next round tries again."""
    try:
        return lake.maintain()
    except Exception as error:  # noqa: BLE001 - reported, see above
        return f"maintenance failed: {first_line(error)}"


def first_line(error: Exception) -> str:
    """Return the line of an error that names its cause.

    Errors of the JVM have a whole stack trace, after a line that only names the failed call.
    """
    lines = (str(error).strip() or repr(error)).splitlines()
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        return lines[1].removeprefix(": ")
    return lines[0]


def _report(coordinator: Coordinator, granted: TieringRound, committed: LakeState) -> str:
    """Report the commit to the coordinator; return a readable note, usually empty.

    A failed report does not undo the commit.
    """
    assert committed.committed is not None
    try:
        coordinator.commit(granted, committed.committed, committed.offsets)
    except TableError as error:
        if error.code is not TableErrorCode.FENCED_TIERING_EPOCH:
            raise
        return f"the server refused the report; the next round repeats it: {error.message}"
    except Exception as error:  # noqa: BLE001 - the lake holds the truth
        return f"the report did not reach the server; the next round repeats it: {error}"
    return ""
