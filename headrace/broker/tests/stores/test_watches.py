"""A ZooKeeper watch that could not be set, without ZooKeeper."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.runtime.ports import StoreUnavailableError
from headrace.broker.stores import zookeeper


async def test_a_watch_whose_answer_was_late_is_set_again_and_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection may stay open, so that no new one sets the watch by its state."""
    monkeypatch.setattr(zookeeper, "_WATCH_AGAIN_SECONDS", 0.001)
    asked: list[str] = []

    async def read(what: str) -> None:
        asked.append(what)
        if len(asked) in (2, 3):
            raise StoreUnavailableError("ZooKeeper is lost: TimeoutError")

    client: Any = SimpleNamespace(
        connected=True,
        exists_async=lambda path, watch: "exists",
        get_children_async=lambda path, watch: "children",
    )
    store: Any = SimpleNamespace(
        _loop=asyncio.get_running_loop(), _read=read, _client=client, _closed=False, _watches={}
    )
    watch = store._watches["/a"] = zookeeper._Watch(store, "/a")
    told = asyncio.Event()
    watch.callbacks.append(told.set)
    watch.arm()
    async with asyncio.timeout(60):
        while asked[-2:] != ["exists", "children"] or len(asked) < 5:  # noqa: ASYNC110 - what is waited for is another's
            await asyncio.sleep(0.001)
        await told.wait()
    assert asked == ["exists", "children", "exists", "exists", "children"]
