"""The tasks of a bucket that go on beside its requests, at most one of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    START = "start"
    STORE = "store"
    FLUSH = "flush"
    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    REBUILD = "rebuild"


USES_STORE = (Kind.STORE, Kind.FLUSH, Kind.SNAPSHOT, Kind.CHECKPOINT)
"""The tasks that use the store of the bucket: they end before the store is closed."""


class Tasks:
    """See the module's contract. `owner` is the bucket's name, for the names of the tasks. On the event loop."""

    __slots__ = ("_owner", "_tasks")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: dict[Kind, asyncio.Task[None]] = {}

    def start(self, kind: Kind, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a task. No other of its kind may be under way."""
        task = self._tasks[kind] = asyncio.get_running_loop().create_task(
            work, name=f"{kind} of {self._owner}"
        )
        return task

    def under_way(self, kind: Kind) -> asyncio.Task[None] | None:
        """Return the task of this kind; None if there is none, or it has ended."""
        task = self._tasks.get(kind)
        return None if task is None or task.done() else task

    async def wait(self, *kinds: Kind) -> None:
        """Wait until the tasks of these kinds have ended. Their errors are not raised here."""
        tasks = [task for kind in kinds if (task := self.under_way(kind)) is not None]
        if tasks:
            await asyncio.wait(tasks)
