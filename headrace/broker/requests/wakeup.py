"""The wait of a request: until its time is up, or until it is woken."""

from __future__ import annotations

import asyncio


class Wakeup:
    """The wait of one request. On the event loop."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """End the wait. Does nothing if the request does not wait: it checks its condition before it waits."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, deadline: float) -> None:
        """Wait until it is woken, or until the loop's time is `deadline`."""
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        timer = loop.call_at(deadline, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._woken = None
