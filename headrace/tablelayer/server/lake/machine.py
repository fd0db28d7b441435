"""Granting of tiering rounds, and the lake's progress: decisions alone, without clock, store or loop.

A round is granted with an epoch, one higher than the table's earlier rounds, and a lease that heartbeats renew. A
worker with an older epoch, or whose lease is known to have expired, is fenced. Rules:
- a table has one round at a time; a worker that asks again for its own table fences its earlier round;
- a table is due when its last commit is older than its freshness; the table that has waited longest is first;
- a round that fails, or whose worker falls silent, delays its table: RETRY, twice that, ... up to a limit. A commit
  ends the delay. A round that ends without a failure causes no delay;
- a round that lasts too long, or that a client asked to finish, learns this from its next heartbeat. Its worker then
  finishes its present work and ends, so that one table with a large backlog does not starve the others;
- a tiered offset is never forgotten, and a dropped table has no rounds.

The caller keeps a durable copy of a table's record (`LakeState`), written before it answers. Rounds and failures are in
memory: after a restart every table is free, and its next round fences the earlier ones.
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
    """The state of one table's lake; `snapshot_id` and `committed_at_ms` are -1 before its first commit.

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
    """A table that may be tiered: its id and the maximum age of its lake."""

    table_id: UUID
    freshness_ms: int


class Now(msgspec.Struct, frozen=True):
    """A moment: `time_ms` is wall-clock time, for display and durable state; `monotonic_ms` is for waiting."""

    time_ms: int
    monotonic_ms: int


class Timing(msgspec.Struct, frozen=True):
    """Durations in milliseconds: a lease; the longest round; the first and the longest delay after failures."""

    lease: int = 60_000
    round_max: int = 1_800_000
    retry: int = 10_000
    retry_max: int = 600_000

    def wait_after(self, failures: int) -> int:
        """Return the delay after a number of consecutive failures."""
        return min(self.retry << min(failures - 1, 32), self.retry_max) if failures > 0 else 0


class Round(msgspec.Struct, frozen=True):
    """A running round. `changes` and `doing` are its worker's last progress report."""

    worker: str
    epoch: int
    started: Now
    lease_ends: int
    finish: bool = False
    changes: int = 0
    doing: str = ""


class Trouble(msgspec.Struct, frozen=True):
    """A table's consecutive failures, the time until which it is delayed, and the last error."""

    failures: int = 0
    retry_at: int = 0
    error: str = ""


class LakeMachine:
    """All tables of one server. Every method is a step; a step that returns a LakeState has changed it."""

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
        """Return the tables that ever had a round."""
        return list(self._states)

    # ---- steps

    def restore(self, table_id: UUID, state: LakeState) -> None:
        """Set a table's state from its durable copy: at the start, and when another broker has written it.

        An older round of this broker ends then, because the other broker has granted a newer one.
        """
        self._states[table_id] = state
        running = self._rounds.get(table_id)
        if running is not None and running.epoch < state.epoch:
            del self._rounds[table_id]

    def begin(
        self, now: Now, worker: str, candidates: Iterable[Candidate], *, force: bool
    ) -> tuple[UUID, int] | None:
        """Grant `worker` a round of the table that has waited longest; return its id and the round's epoch.

        Returns None if every candidate is leased to another worker or, without `force`, is not due or is delayed.
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
        """Renew the lease; return whether the worker is to finish. Raises TableError(FENCED_TIERING_EPOCH)."""
        running = self.check(table_id, epoch)
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
        """Note a commit and renew the lease; the round goes on until `give_back`.

        An offset below the known one is refused: a lake does not forget. `existing` has the places of a partitioned
        table; the state of all other places is removed. Raises TableError(FENCED_TIERING_EPOCH).
        """
        running = self.check(table_id, epoch)
        state = self.state(table_id)
        for place, offset in offsets.items():
            known = state.offsets.get(place, 0)
            if offset < known:
                raise TableError(
                    TableErrorCode.FENCED_TIERING_EPOCH,
                    f"bucket {place} was already tiered up to offset {known}; {offset} is lower",
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
        """End a round. `failure` is the reason if it failed, else None. Raises TableError(FENCED_TIERING_EPOCH)."""
        self.check(table_id, epoch)
        del self._rounds[table_id]
        if failure is not None:
            self._put_off(now.monotonic_ms, table_id, failure)

    def finish(self, table_id: UUID) -> bool:
        """Tell the running round to finish with its next heartbeat; return False if there is none."""
        running = self._rounds.get(table_id)
        if running is not None:
            self._rounds[table_id] = replace(running, finish=True)
        return running is not None

    def drop_round(self, table_id: UUID, epoch: int) -> None:
        """Drop a round whose grant could not be stored; no worker knows it."""
        running = self._rounds.get(table_id)
        if running is not None and running.epoch == epoch:
            del self._rounds[table_id]

    def forget(self, table_id: UUID) -> bool:
        """Forget a dropped table; return whether it had any state."""
        self._rounds.pop(table_id, None)
        self._troubles.pop(table_id, None)
        return self._states.pop(table_id, None) is not None

    def check(self, table_id: UUID, epoch: int) -> Round:
        """Return the running round. Raises TableError(FENCED_TIERING_EPOCH) if it has another epoch."""
        state, running = self.state(table_id), self._rounds.get(table_id)
        if running is None or epoch != running.epoch:
            raise TableError(
                TableErrorCode.FENCED_TIERING_EPOCH,
                f"tiering round {epoch} of table {table_id} is over; the newest round is {state.epoch}. "
                "Ask for a new round",
            )
        return running

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
