"""Work that runs beside the requests: it may fail, and the broker goes on.

What fails is logged with its traceback and counted (`headrace_background_failures_total`). Work that is meant to run as
long as the broker does is begun again after a pause, which doubles from failure to failure and is short again once the
work has held out for as long as the longest pause. Work that has lost the coordination store has not failed: it is
begun again until the store is back. Work for many topics, tables or groups catches what goes wrong with
one of them itself and tells of it by `failed`, so that the others do not wait for that pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headrace.broker.runtime.ports import STORE_LOST

logger = logging.getLogger("headrace.server")

PAUSE_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0

Work = Coroutine[Any, Any, None]


class BackgroundTasks:
    """All of one broker. On its event loop."""

    def __init__(self) -> None:
        self.failures = 0
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Work, name: str) -> asyncio.Task[None]:
        """Run `work` once."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def keep(self, work: Callable[[], Work], name: str) -> asyncio.Task[None]:
        """Run what `work` gives as long as the broker runs, from the beginning after each failure; over when it ends
        without one.
        """
        return self.start(self._again_and_again(work, name), name)

    def failed(self, what: str, error: BaseException) -> None:
        """Something went wrong with a part of the work; the rest of it goes on."""
        self.failures += 1
        logger.error("%s failed", what, exc_info=error)

    async def cancel(self) -> None:
        """End all of it, and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(task.get_name(), error)

    async def _again_and_again(self, work: Callable[[], Work], name: str) -> None:
        loop, pause = asyncio.get_running_loop(), PAUSE_SECONDS_MIN
        while True:
            began = loop.time()
            try:
                return await work()
            except STORE_LOST as error:
                logger.info("%s waits for the coordination store: %s", name, error.message)
                pause = PAUSE_SECONDS_MIN
            except Exception as error:  # noqa: BLE001 - told
                if loop.time() - began >= PAUSE_SECONDS_MAX:
                    pause = PAUSE_SECONDS_MIN
                self.failed(f"{name} (begun again in {pause:.0f} s)", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
