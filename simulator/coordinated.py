"""Sessions with a coordinator in one event loop, for tests of the store of broker processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.broker.runtime.ports import Clock, SystemClock
from headrace.broker.stores.coordinated import CoordinatedStore
from headrace.broker.stores.coordinator import Coordinator
from headrace.broker.stores.embedded import EmbeddedStore


@asynccontextmanager
async def coordinated_stores(
    path: Path | EmbeddedStore, count: int, *, session_seconds: float, clock: Clock | None = None
) -> AsyncIterator[tuple[Coordinator, list[CoordinatedStore]]]:
    """Open a coordinator over a store, or over the file of one, and `count` sessions with it."""
    store = path if isinstance(path, EmbeddedStore) else EmbeddedStore(path)
    await store.open()
    coordinator = Coordinator(store, session_seconds=session_seconds)
    opened: list[CoordinatedStore] = []
    serving: list[asyncio.Task[None]] = []
    try:
        for _ in range(count):
            ours, theirs = socket.socketpair()
            serving.append(asyncio.create_task(coordinator.serve(ours)))
            session = CoordinatedStore(theirs, clock=clock or SystemClock(), session_seconds=session_seconds)
            opened.append(session)
            await session.open()
        yield coordinator, opened
    finally:
        for session in opened:
            await session.close()
        await asyncio.gather(*serving)
        await store.close()
