"""Detection of brokers that do not answer.

A stopped process or a disconnected machine ends no connection. Its clients would wait for the whole timeout of a
request, although another broker has become the leader. So if nothing has come from a broker for `SILENCE_SECONDS` while
a request waits, another broker is asked whether it still belongs to the cluster, repeatedly until it answers. If it
does not belong to the cluster, its connections are closed, as those of a killed process are: waiting requests look up
the leader again and retry.

The decision is always another broker's, and only about brokers whose ids are known. An address that stands for several
brokers, or for one under another name, is not given up. A single broker is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

SILENCE_SECONDS: Final = 1.0
"""Silence before other brokers are asked. Lookups and writes take milliseconds, a held scan half a second."""
LOOK_SECONDS: Final = 0.5
"""Interval of the checks while requests wait. A client detects a failed broker later by this time."""

Address = tuple[str, int]


class Watch:
    """Watches the brokers that requests wait for, while there are any. For one event loop.

    `waited_for()` returns the addresses of these brokers and the seconds since each last answered. `gone(addresses)`
    returns those that no longer belong to the cluster, as another broker says.
    """

    def __init__(
        self,
        waited_for: Callable[[], dict[Address, float]],
        gone: Callable[[set[Address]], Awaitable[set[Address]]],
        give_up: Callable[[Address], None],
    ) -> None:
        self._waited_for, self._gone, self._give_up = waited_for, gone, give_up
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to watch: a request is about to wait."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _look(self) -> None:
        self._timer = None
        waited_for = self._waited_for()
        silent = {address for address, seconds in waited_for.items() if seconds >= SILENCE_SECONDS}
        if silent and self._asking is None:
            self._asking = asyncio.create_task(self._ask(silent), name="is a silent broker there")
            self._asking.add_done_callback(self._asked)
        if waited_for:
            self.begin()

    def _asked(self, done: asyncio.Task[None]) -> None:
        self._asking = None

    async def _ask(self, silent: set[Address]) -> None:
        for address in await self._gone(silent):
            self._give_up(address)
