"""A round of retention beside other changes of the partitions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.broker.cluster.retention import Retention


async def test_a_partition_that_closes_while_its_retention_waits_keeps_its_segments() -> None:
    """Its log may be open for a while, but its hooks, which know what they need of it, have gone."""
    applied: list[Any] = []

    def apply(now_ms: int, floor: int | None) -> int:
        applied.append(partition)
        return 0

    partition: Any = SimpleNamespace(closed=False, hooks=None, apply_retention=apply)
    removals, nothing = asyncio.Lock(), SimpleNamespace(time_ms=lambda: 0)
    retention = Retention({}, nothing, [], nothing, nothing, nothing, nothing, removals)  # type: ignore[arg-type]
    async with removals:
        waiting = asyncio.create_task(retention._apply(partition))
        await asyncio.sleep(0)
        partition.closed = True
    await waiting
    assert not applied
    partition.closed = False
    await retention._apply(partition)
    assert applied == [partition]
