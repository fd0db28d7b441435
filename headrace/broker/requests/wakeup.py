"""The wait of a request that was asked to wait: for its time to be up, or for whoever wakes it."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Of one waiter. On the event loop."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Does nothing while nobody waits: what is waited for is looked at before."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, deadline: float) -> None:
        """Until it is woken, or the loop's time is `deadline`."""
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        timer = loop.call_at(deadline, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._woken = None
