"""The tasks of a bucket that run beside its requests, at most one of each kind."""

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
"""The tasks that use the bucket's store: they end before the store is closed."""


class Tasks:
    """The running tasks of a bucket (see the module); `owner` names them. Runs on the event loop."""

    __slots__ = ("_owner", "_tasks")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: dict[Kind, asyncio.Task[None]] = {}

    def start(self, kind: Kind, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. No other task of its kind may be running."""
        task = self._tasks[kind] = asyncio.get_running_loop().create_task(
            work, name=f"{kind} of {self._owner}"
        )
        task.add_done_callback(lambda ended: self._forget(kind, ended))
        return task

    def _forget(self, kind: Kind, ended: asyncio.Task[None]) -> None:
        """Keep no ended task: it takes 700 bytes with its coroutine."""
        if self._tasks.get(kind) is ended:
            del self._tasks[kind]
            if not self._tasks:
                self._tasks.clear()  # an emptied dict keeps its 160 bytes

    def under_way(self, kind: Kind) -> asyncio.Task[None] | None:
        """Return the running task of this kind, or None."""
        task = self._tasks.get(kind)
        return None if task is None or task.done() else task

    async def wait(self, *kinds: Kind) -> None:
        """Wait until the tasks of these kinds have ended; ignore their errors."""
        tasks = [task for kind in kinds if (task := self.under_way(kind)) is not None]
        if tasks:
            await asyncio.wait(tasks)
