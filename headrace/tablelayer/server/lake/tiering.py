"""The server's side of lake tiering: `lake_machine.py` decides, this carries out.

What makes tiering exact is the lake's own compare-and-set; rounds keep two tierers from working in vain, and the
committed offsets kept here are a copy of what the lake's snapshots say, so that retention never deletes what
the lake does not have.

Epoch, snapshot and offsets are in the coordination store under /lake/<table id> before an answer is given. Of several
brokers the controller gives out rounds; the others follow what it writes (`run`), for retention, and to go on when one
of them is the controller. Of two that think they are, the store takes the writes of one.

Everything here runs on the event loop.
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

_ROOT: Final = "/lake"


class LakeRounds:
    """Grants rounds, renews and ends them. One object per server."""

    def __init__(self, store: CoordinationStore, clock: Clock, timing: Timing | None = None) -> None:
        self._machine = LakeMachine(timing)
        self._store = store
        self._nodes = OwnedNodes(store, _ROOT, noted=True)
        self._clock = clock
        self._saving = asyncio.Lock()
        self._overtaken: Counter[UUID] = Counter()
        """How often others have written what is kept of a table."""

    async def load(self) -> None:
        """Read what is in the store. Call once, before anything else."""
        for name in await self._nodes.children():
            await self._restore(UUID(name))

    async def run(self) -> None:
        """Follow what other brokers write, until cancelled. Raises StoreError; begun again it misses nothing."""
        await follow(self._store, _ROOT, self._read_on)

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
        """The round that is running; it may be one whose worker fell silent."""
        return self._machine.round_of(table_id)

    def trouble(self, table_id: UUID) -> Trouble:
        return self._machine.trouble(table_id)

    def retry_in_ms(self, table_id: UUID) -> int:
        """How long the table is still put off."""
        return max(0, self._machine.trouble(table_id).retry_at - self._now().monotonic_ms)

    def known_tables(self) -> list[UUID]:
        """Tables that ever had a round."""
        return self._machine.tables()

    def tiered_offset(self, table_id: UUID, bucket: Place) -> int:
        """The log of this bucket is in the lake below this offset: retention must not pass it."""
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
        """The table was dropped."""
        self._machine.forget(table_id)
        async with self._saving:
            await self._nodes.delete(str(table_id))

    def _now(self) -> Now:
        return Now(self._clock.time_ms(), int(self._clock.monotonic() * 1000))

    async def _save(self, table_id: UUID) -> None:
        """Write the newest state; one writer at a time, so that an older one never comes last.

        Raises KafkaError when another broker has written: what it wrote counts then.
        """
        before = self._overtaken[table_id]
        async with self._saving:
            if table_id not in self._machine.tables():
                return  # dropped meanwhile
            if self._overtaken[table_id] != before:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker tiers {table_id}")
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
