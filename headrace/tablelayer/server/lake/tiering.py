"""The server's side of lake tiering: `lake/machine.py` decides; this module stores and answers.

The lake's own compare-and-set makes tiering exact. Rounds keep two workers from doing the same work. The committed
offsets are copied here from the lake's snapshots, so that retention never deletes records that the lake lacks.

Epoch, snapshot and offsets are stored under /lake/<table id> in the coordination store before an answer is given. The
controller grants rounds. Other brokers follow its writes (`run`), for retention, and to continue when one of them
becomes the controller. If two brokers believe they are the controller, the store accepts the writes of one. Everything
runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final
from uuid import UUID

from headrace.broker.metadata.nodes import OwnedNodes, follow
from headrace.broker.runtime.ports import Clock, CoordinationStore
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.lake.offsets import Offsets, Place
from headrace.tablelayer.server.lake.machine import (
    Candidate,
    LakeMachine,
    LakeState,
    Now,
    Round,
    Timing,
    Trouble,
)

LAKE_NODES: Final = "/lake"


class LakeRounds:
    """Grants, renews and ends rounds. One object per server."""

    def __init__(self, store: CoordinationStore, clock: Clock, timing: Timing | None = None) -> None:
        self._machine = LakeMachine(timing)
        self._store = store
        self._nodes = OwnedNodes(store, LAKE_NODES, noted=True)
        self._clock = clock
        self._saving = asyncio.Lock()
        self._overtaken: Counter[UUID] = Counter()
        """Number of times that other brokers have written a table's state."""

    async def load(self) -> None:
        """Read the stored state. Call it once, before anything else."""
        for name in await self._nodes.children():
            await self._restore(UUID(name))

    async def run(self) -> None:
        """Follow other brokers' writes until cancelled. Raises StoreError; a new call misses nothing."""
        await follow(self._store, LAKE_NODES, self._read_on)

    async def _read_on(self) -> None:
        async with self._saving:
            names = await self._nodes.children()
            for name in names:
                data = await self._nodes.read_if_changed(name)
                if data is not None:
                    self._overtaken[UUID(name)] += 1
                    self._machine.restore(UUID(name), LakeState.from_json(data))
            for table_id in set(self._machine.tables()) - {UUID(name) for name in names}:
                self._machine.forget(table_id)

    @property
    def lease_ms(self) -> int:
        return self._machine.timing.lease

    def state(self, table_id: UUID) -> LakeState:
        return self._machine.state(table_id)

    def round_of(self, table_id: UUID) -> Round | None:
        """Return the running round; its worker may have fallen silent."""
        return self._machine.round_of(table_id)

    def trouble(self, table_id: UUID) -> Trouble:
        return self._machine.trouble(table_id)

    def retry_in_ms(self, table_id: UUID) -> int:
        """Return how long the table is still delayed."""
        return max(0, self._machine.trouble(table_id).retry_at - self._now().monotonic_ms)

    def known_tables(self) -> list[UUID]:
        """Return the tables that ever had a round."""
        return self._machine.tables()

    def tiered_offset(self, table_id: UUID, bucket: Place) -> int:
        """Return the offset below which the lake has the bucket's log: retention must not pass it."""
        return self.state(table_id).offsets.get(bucket, 0)

    async def begin(
        self, worker: str, candidates: Iterable[Candidate], *, force: bool
    ) -> tuple[UUID, int] | None:
        """See `LakeMachine.begin`."""
        granted = self._machine.begin(self._now(), worker, candidates, force=force)
        if granted is None:
            return None
        try:
            await self._save(granted[0])
        except BaseException:
            self._machine.drop_round(*granted)
            raise
        return granted

    def heartbeat(self, table_id: UUID, epoch: int, changes: int = 0, doing: str = "") -> bool:
        """See `LakeMachine.heartbeat`."""
        return self._machine.heartbeat(self._now(), table_id, epoch, changes, doing)

    def check(self, table_id: UUID, epoch: int) -> None:
        """Raise TableError(FENCED_TIERING_EPOCH) if the round is over."""
        self._machine.check(table_id, epoch)

    async def commit(
        self,
        table_id: UUID,
        epoch: int,
        snapshot_id: int,
        offsets: Offsets,
        existing: Collection[Any] = (),
    ) -> None:
        """See `LakeMachine.commit`."""
        self._machine.commit(self._now(), table_id, epoch, snapshot_id, offsets, existing)
        await self._save(table_id)

    def give_back(self, table_id: UUID, epoch: int, failure: str | None) -> None:
        """See `LakeMachine.give_back`."""
        self._machine.give_back(self._now(), table_id, epoch, failure)

    def finish(self, table_id: UUID) -> bool:
        """See `LakeMachine.finish`."""
        return self._machine.finish(table_id)

    async def forget(self, table_id: UUID) -> None:
        """Forget a dropped table."""
        self._machine.forget(table_id)
        async with self._saving:
            await self._nodes.delete(str(table_id))

    def _now(self) -> Now:
        return Now(self._clock.time_ms(), int(self._clock.monotonic() * 1000))

    async def _save(self, table_id: UUID) -> None:
        """Write the newest state. One write runs at a time, so that an older state is never written last.

        Raises KafkaError if another broker has written; its state is then valid.
        """
        before = self._overtaken[table_id]
        async with self._saving:
            if table_id not in self._machine.tables():
                return  # dropped in the meantime
            if self._overtaken[table_id] != before:
                raise KafkaError(
                    ErrorCode.NOT_COORDINATOR,
                    f"another broker has granted a tiering round of table {table_id}",
                )
            try:
                await self._nodes.write(str(table_id), self._machine.state(table_id).to_json())
            except KafkaError as error:
                if error.code is ErrorCode.NOT_COORDINATOR:
                    running = self._machine.round_of(table_id)
                    if running is not None:
                        self._machine.drop_round(table_id, running.epoch)
                    await self._restore(table_id)
                raise

    async def _restore(self, table_id: UUID) -> None:
        data = await self._nodes.read(str(table_id))
        if data is not None:
            self._machine.restore(table_id, LakeState.from_json(data))
