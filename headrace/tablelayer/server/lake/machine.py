"""Who may tier which table now, and how far the lake is: decisions alone, without clock, store or loop.

A round is granted with an epoch, one higher than every earlier round of that table, and a lease that heartbeats
renew. Whoever has an older epoch, or whose lease ran out and was noticed, is fenced. Rules:

- one round per table at a time; a worker that asks again for its own table fences its earlier round;
- a table is due when its last commit is older than its freshness, the longest waiting first;
- a round that failed, or whose worker fell silent, puts its table off: RETRY, twice that, ... up to a limit; a
  commit ends that. A round that ends without a failure puts off nothing;
- a round that lasts too long, or that somebody asked to finish, is told so with its next heartbeat. Its worker
  then ends it after what it has in hand, so that one table with a large backlog does not starve the others;
- an offset that was tiered is never forgotten, and a table that was dropped has no rounds.

Of a table's record (`LakeState`) the caller keeps a durable copy, written before it answers; rounds and
failures are in memory: after a restart every table is free, and its next round fences the ones before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import (
    Offsets,
    offsets_from_value,
    offsets_to_value,
    without_dropped,
)


class LakeState(msgspec.Struct, frozen=True):
    """What is known of one table's lake; `snapshot_id` and `committed_at_ms` are -1 before its first commit.

    `commits` counts the reported ones since the server started.
    """

    epoch: int = 0
    snapshot_id: int = -1
    committed_at_ms: int = -1
    commits: int = 0
    offsets: Offsets = msgspec.field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "version": 1,
                "epoch": self.epoch,
                "snapshot_id": self.snapshot_id,
                "committed_at_ms": self.committed_at_ms,
                "offsets": offsets_to_value(self.offsets),
            }
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> LakeState:
        values = json.loads(data)
        return cls(
            epoch=values["epoch"],
            snapshot_id=values["snapshot_id"],
            committed_at_ms=values["committed_at_ms"],
            offsets=offsets_from_value(values["offsets"]),
        )


class Candidate(msgspec.Struct, frozen=True):
    """A table that may be tiered: its id and how far its lake may be behind."""

    table_id: UUID
    freshness_ms: int


class Now(msgspec.Struct, frozen=True):
    """A moment: `time_ms` of the day's clock, for what people see and what survives restarts; `monotonic_ms`
    for everything that is waited for.
    """

    time_ms: int
    monotonic_ms: int


class Timing(msgspec.Struct, frozen=True):
    """In milliseconds: a lease; the longest round; the first and the longest wait after failures."""

    lease: int = 60_000
    round_max: int = 1_800_000
    retry: int = 10_000
    retry_max: int = 600_000

    def wait_after(self, failures: int) -> int:
        """The wait after so many failures in a row."""
        return min(self.retry << min(failures - 1, 32), self.retry_max) if failures > 0 else 0


class Round(msgspec.Struct, frozen=True):
    """A round that is running. `changes` and `doing` are what its worker last said of its progress."""

    worker: str
    epoch: int
    started: Now
    lease_ends: int
    finish: bool = False
    changes: int = 0
    doing: str = ""


class Trouble(msgspec.Struct, frozen=True):
    """The failures in a row of a table, the moment before which it is left alone, and what the last one was."""

    failures: int = 0
    retry_at: int = 0
    error: str = ""


class LakeMachine:
    """All tables of one server. Every method is a step; those that return a LakeState changed it."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.timing = Timing() if timing is None else timing
        self._states: dict[UUID, LakeState] = {}
        self._rounds: dict[UUID, Round] = {}
        self._troubles: dict[UUID, Trouble] = {}

    # ---- looking

    def state(self, table_id: UUID) -> LakeState:
        return self._states.get(table_id, LakeState())

    def round_of(self, table_id: UUID) -> Round | None:
        return self._rounds.get(table_id)

    def trouble(self, table_id: UUID) -> Trouble:
        return self._troubles.get(table_id, Trouble())

    def tables(self) -> list[UUID]:
        """Tables that ever had a round."""
        return list(self._states)

    # ---- steps

    def restore(self, table_id: UUID, state: LakeState) -> None:
        """What the durable copy says; before every other step, and when somebody else has written it: that one has
        granted what rounds there are.
        """
        self._states[table_id] = state
        running = self._rounds.get(table_id)
        if running is not None and running.epoch < state.epoch:
            del self._rounds[table_id]

    def begin(
        self, now: Now, worker: str, candidates: Iterable[Candidate], *, force: bool
    ) -> tuple[UUID, int] | None:
        """Grant `worker` a round of the table that has waited longest: its id and the round's epoch.

        None when every candidate is leased to another, or, without `force`, none is due or it is put off.
        """
        listed = list(candidates)
        for table in listed:
            self._notice_silence(now, table.table_id)
        free = [table for table in listed if self._is_free_for(table.table_id, worker)]
        due = [table for table in free if force or self._is_due(now, table)]
        if not due:
            return None
        table_id = min(due, key=self._due_at).table_id
        state = self.state(table_id)
        self._states[table_id] = replace(state, epoch=state.epoch + 1)
        ends = now.monotonic_ms + self.timing.lease
        self._rounds[table_id] = Round(worker, state.epoch + 1, now, ends)
        return table_id, state.epoch + 1

    def heartbeat(self, now: Now, table_id: UUID, epoch: int, changes: int = 0, doing: str = "") -> bool:
        """Renew the lease; whether the worker is to finish. Raises TableError(FENCED_TIERING_EPOCH)."""
        running = self._check(table_id, epoch)
        ends = now.monotonic_ms + self.timing.lease
        self._rounds[table_id] = replace(running, lease_ends=ends, changes=changes, doing=doing)
        return running.finish or now.monotonic_ms - running.started.monotonic_ms >= self.timing.round_max

    def commit(
        self,
        now: Now,
        table_id: UUID,
        epoch: int,
        snapshot_id: int,
        offsets: Offsets,
        existing: Collection[Any] = (),
    ) -> LakeState:
        """Take what the lake holds and renew the lease: the round goes on until it is given back.

        An offset below the known one is refused: a lake does not forget. `existing`: of a partitioned table the places
        that there are; what is known of others is let go. Raises TableError(FENCED_TIERING_EPOCH).
        """
        running = self._check(table_id, epoch)
        state = self.state(table_id)
        for place, offset in offsets.items():
            known = state.offsets.get(place, 0)
            if offset < known:
                raise TableError(
                    TableErrorCode.FENCED_TIERING_EPOCH,
                    f"bucket {place} was tiered up to offset {known} before; {offset} is behind it",
                )
        changed = replace(
            state,
            snapshot_id=snapshot_id,
            committed_at_ms=now.time_ms,
            offsets=without_dropped({**state.offsets, **offsets}, existing),
            commits=state.commits + 1,
        )
        self._states[table_id] = changed
        self._troubles.pop(table_id, None)
        self._rounds[table_id] = replace(running, lease_ends=now.monotonic_ms + self.timing.lease)
        return changed

    def give_back(self, now: Now, table_id: UUID, epoch: int, failure: str | None) -> None:
        """End a round: `failure` says why it could not be done, None that nothing was wrong.

        Raises TableError(FENCED_TIERING_EPOCH).
        """
        self._check(table_id, epoch)
        del self._rounds[table_id]
        if failure is not None:
            self._put_off(now.monotonic_ms, table_id, failure)

    def finish(self, table_id: UUID) -> bool:
        """Have the running round told to finish; False if there is none."""
        running = self._rounds.get(table_id)
        if running is not None:
            self._rounds[table_id] = replace(running, finish=True)
        return running is not None

    def drop_round(self, table_id: UUID, epoch: int) -> None:
        """The grant could not be written down, so nobody was told of it."""
        running = self._rounds.get(table_id)
        if running is not None and running.epoch == epoch:
            del self._rounds[table_id]

    def forget(self, table_id: UUID) -> bool:
        """The table was dropped; whether anything was known of it."""
        self._rounds.pop(table_id, None)
        self._troubles.pop(table_id, None)
        return self._states.pop(table_id, None) is not None

    # ---- inside

    def _due_at(self, table: Candidate) -> int:
        committed_at = self.state(table.table_id).committed_at_ms
        return committed_at + table.freshness_ms if committed_at >= 0 else -1

    def _is_due(self, now: Now, table: Candidate) -> bool:
        put_off_until = self.trouble(table.table_id).retry_at
        return self._due_at(table) <= now.time_ms and put_off_until <= now.monotonic_ms

    def _is_free_for(self, table_id: UUID, worker: str) -> bool:
        running = self._rounds.get(table_id)
        return running is None or running.worker == worker

    def _notice_silence(self, now: Now, table_id: UUID) -> None:
        running = self._rounds.get(table_id)
        if running is not None and running.lease_ends <= now.monotonic_ms:
            del self._rounds[table_id]
            failure = f"worker {running.worker} fell silent in round {running.epoch}"
            self._put_off(running.lease_ends, table_id, failure)

    def _put_off(self, since: int, table_id: UUID, error: str) -> None:
        failures = self.trouble(table_id).failures + 1
        self._troubles[table_id] = Trouble(failures, since + self.timing.wait_after(failures), error)

    def _check(self, table_id: UUID, epoch: int) -> Round:
        state, running = self.state(table_id), self._rounds.get(table_id)
        if running is None or epoch != running.epoch:
            raise TableError(
                TableErrorCode.FENCED_TIERING_EPOCH,
                f"tiering round {epoch} of table {table_id} is over; the newest round is {state.epoch}. "
                "Ask for a new round",
            )
        return running
