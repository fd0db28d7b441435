"""The server's side of lake tiering: who may tier a table now, and how far the lake is.

A round is granted with an epoch, one higher than every earlier round of that table, and a lease that
heartbeats renew. A round whose epoch is no longer the newest, or whose lease has run out and was given to
another, is fenced. What makes tiering exact is the lake's own compare-and-set; these rounds keep two tierers
from working in vain, and the committed offsets kept here are a copy of what the lake's snapshots say, so that
retention never deletes what the lake does not have.

Epoch, snapshot and offsets are in the coordination store under /lake/<table id> before an answer is given;
leases are not: after a restart every table is free, and its next round fences the ones before. Everything
here runs on the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from broker.ports import Clock, CoordinationStore, CreateNode, DeleteNode, NoNodeError, SetNode
from tablelayer.model.errors import TableError, TableErrorCode

_ROOT: Final = "/lake"


@dataclass(frozen=True, slots=True)
class LakeState:
    """What is known of one table's lake; `snapshot_id` and `committed_at_ms` are -1 before its first commit."""

    epoch: int = 0
    snapshot_id: int = -1
    committed_at_ms: int = -1
    offsets: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "version": 1,
                "epoch": self.epoch,
                "snapshot_id": self.snapshot_id,
                "committed_at_ms": self.committed_at_ms,
                "offsets": {str(bucket): offset for bucket, offset in sorted(self.offsets.items())},
            }
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> LakeState:
        values = json.loads(data)
        return cls(
            epoch=values["epoch"],
            snapshot_id=values["snapshot_id"],
            committed_at_ms=values["committed_at_ms"],
            offsets={int(bucket): offset for bucket, offset in values["offsets"].items()},
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table that may be tiered: its id and how far its lake may be behind."""

    table_id: UUID
    freshness_ms: int


@dataclass(frozen=True, slots=True)
class _Lease:
    worker: str
    ends: float


class LakeRounds:
    """Grants rounds, renews and ends them. One object per server."""

    def __init__(self, store: CoordinationStore, clock: Clock, lease_ms: int = 60_000) -> None:
        self.lease_ms = lease_ms
        self._store = store
        self._clock = clock
        self._states: dict[UUID, LakeState] = {}
        self._leases: dict[UUID, _Lease] = {}

    async def load(self) -> None:
        """Read what is in the store. Call once, before anything else."""
        for name in await self._store.children(_ROOT):
            node = await self._store.get(f"{_ROOT}/{name}")
            if node is not None:
                self._states[UUID(name)] = LakeState.from_json(node.data)

    def state(self, table_id: UUID) -> LakeState:
        return self._states.get(table_id, LakeState())

    def known_tables(self) -> list[UUID]:
        """Tables that ever had a round."""
        return list(self._states)

    def tiered_offset(self, table_id: UUID, bucket: int) -> int:
        """The log of this bucket is in the lake below this offset: retention must not pass it."""
        return self.state(table_id).offsets.get(bucket, 0)

    async def begin(
        self, worker: str, candidates: Iterable[Candidate], *, force: bool
    ) -> tuple[UUID, int] | None:
        """Grant `worker` a round of the table that has waited longest: its id and the round's epoch.

        None when every candidate is leased to another, or, without `force`, none is due. A worker that asks
        again for a table it holds gets a new round and fences its own earlier one.
        """
        now = self._clock.time_ms()
        free = [table for table in candidates if not self._is_leased_to_another(table.table_id, worker)]
        due = [table for table in free if force or self._due_at(table) <= now]
        if not due:
            return None
        table_id = min(due, key=self._due_at).table_id
        # The lease first: nobody else may be granted the table while the store is being written.
        self._leases[table_id] = _Lease(worker, self._clock.monotonic() + self.lease_ms / 1000)
        state = self.state(table_id)
        try:
            await self._save(table_id, replace(state, epoch=state.epoch + 1))
        except BaseException:
            self._leases.pop(table_id, None)
            raise
        return table_id, state.epoch + 1

    def heartbeat(self, table_id: UUID, epoch: int) -> None:
        """Renew the lease. Raises TableError(FENCED_TIERING_EPOCH)."""
        lease = self._check(table_id, epoch)
        self._leases[table_id] = replace(lease, ends=self._clock.monotonic() + self.lease_ms / 1000)

    async def commit(self, table_id: UUID, epoch: int, snapshot_id: int, offsets: Mapping[int, int]) -> None:
        """Record what the lake holds and end the round. Raises TableError(FENCED_TIERING_EPOCH).

        An offset below the recorded one is refused: a lake does not forget.
        """
        self._check(table_id, epoch)
        state = self.state(table_id)
        for bucket, offset in offsets.items():
            known = state.offsets.get(bucket, 0)
            if offset < known:
                raise TableError(
                    TableErrorCode.FENCED_TIERING_EPOCH,
                    f"bucket {bucket} was tiered up to offset {known} before; {offset} is behind it",
                )
        await self._save(
            table_id,
            replace(
                state,
                snapshot_id=snapshot_id,
                committed_at_ms=self._clock.time_ms(),
                offsets={**state.offsets, **offsets},
            ),
        )
        self._leases.pop(table_id, None)

    async def forget(self, table_id: UUID) -> None:
        """The table was dropped."""
        self._leases.pop(table_id, None)
        if self._states.pop(table_id, None) is not None:
            try:
                await self._store.transact([DeleteNode(_path(table_id))])
            except NoNodeError:
                return

    def _due_at(self, table: Candidate) -> int:
        committed_at = self.state(table.table_id).committed_at_ms
        return committed_at + table.freshness_ms if committed_at >= 0 else -1

    def _is_leased_to_another(self, table_id: UUID, worker: str) -> bool:
        lease = self._leases.get(table_id)
        return lease is not None and lease.worker != worker and lease.ends > self._clock.monotonic()

    def _check(self, table_id: UUID, epoch: int) -> _Lease:
        state, lease = self.state(table_id), self._leases.get(table_id)
        if epoch != state.epoch or lease is None:
            raise TableError(
                TableErrorCode.FENCED_TIERING_EPOCH,
                f"tiering round {epoch} of table {table_id} is over; the newest round is {state.epoch}. "
                "Ask for a new round",
            )
        return lease

    async def _save(self, table_id: UUID, state: LakeState) -> None:
        path = _path(table_id)
        known = table_id in self._states
        operation = SetNode(path, state.to_json()) if known else CreateNode(path, state.to_json())
        await self._store.transact([operation])
        self._states[table_id] = state


def _path(table_id: UUID) -> str:
    return f"{_ROOT}/{table_id}"
