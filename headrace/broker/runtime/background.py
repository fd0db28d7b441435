"""Work that runs beside the requests. It may fail, and the broker goes on.

A failure is logged with its traceback and counted (`headrace_background_failures_total`). Work that runs as long as the
broker is started again after a pause. The pause doubles with each failure; it is short again once the work has run for
as long as the longest pause. Losing the coordination store is not a failure: the work is started again until the store
is back.

Work for many topics, tables or groups catches the errors of each one itself and reports them with `failed`. So one
failure does not make the rest wait for that pause.
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
    """All background tasks of one broker, on its event loop."""

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
        """Run the work that `work` returns as long as the broker runs, and start it again after each failure. Stop when
        it ends without a failure.
        """
        return self.start(self._again_and_again(work, name), name)

    def failed(self, what: str, error: BaseException) -> None:
        """Report that a part of the work failed; the rest of it goes on."""
        self.failures += 1
        logger.error("%s failed", what, exc_info=error)

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended."""
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
                self.failed(f"{name} (started again in {pause:.0f} s)", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
