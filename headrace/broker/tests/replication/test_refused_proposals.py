"""A leader whose change of the ISR is refused proposes it again, and the broker goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from headrace.broker.cluster.replication import Replication

TURNS = 10


class Leader:
    """A leader that proposes the same again as soon as it was refused."""

    closed = False

    def __init__(self, replication: Replication) -> None:
        self._replication = replication
        self.refusals = 0

    def refused(self, change: Any) -> None:
        self.refusals += 1
        assert self.refusals < TURNS, "no other task has run meanwhile"
        self._replication.propose(self, change)  # type: ignore[arg-type]


async def test_a_refused_isr_proposal_yields_before_its_next_attempt() -> None:
    async def refuse(proposals: Sequence[Any]) -> None:
        assert len(proposals) == 1

    unused: Any = SimpleNamespace(monotonic=lambda: 0.0)
    replication = Replication(1, unused, unused, unused)
    replication._changes = SimpleNamespace(change_isrs=refuse)  # type: ignore[assignment]
    leader = Leader(replication)
    replication.propose(leader, object())  # type: ignore[arg-type]
    writing = asyncio.ensure_future(replication._write_isrs())
    while not leader.refusals and not writing.done():  # noqa: ASYNC110 - one turn each
        await asyncio.sleep(0)
    assert leader.refusals == 1
    assert not writing.done()
    writing.cancel()
