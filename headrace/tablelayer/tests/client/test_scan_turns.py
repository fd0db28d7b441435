"""Other tasks run while a scan returns batches that have arrived, but not after each batch."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.tablelayer.client.table import scan as module


async def test_a_scan_lets_other_tasks_run_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    scan: Any = module.AsyncScan.__new__(module.AsyncScan)
    scan._next, scan._turn_ends = None, 0.0
    scan._source = SimpleNamespace(has_arrived=True)
    monkeypatch.setattr(module.AsyncScan, "take_arrived", lambda self: "batch")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    for _ in range(1000):
        assert await anext(scan) == "batch"
        now += module._TURN_SECONDS / 10
    task.cancel()
    assert 90 <= turns <= 110
