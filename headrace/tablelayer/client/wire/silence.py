"""What a client does about a broker that says nothing.

A process that is stopped and a machine that is cut off end no connection: who asked them would wait for the whole
timeout of a request, though another broker has led for long. So of a broker from which nothing has come for
`SILENCE_SECONDS` though somebody waits, another one is asked whether it still belongs to the cluster, as long as the
silence lasts. If it does not, its connections are given up, as those of a killed process end by themselves: who waits
asks anew who leads, and tries again.

It is only ever another broker's word, and of who is known by number: an address that stands for several, or for one
under another name, is not given up. A single broker is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

SILENCE_SECONDS: Final = 1.0
"""Until others are asked. Lookups and writes take milliseconds; a scan may be held back for half a second."""
LOOK_SECONDS: Final = 0.5
"""From look to look while somebody waits: so much later than the cluster a client misses a broker."""

Address = tuple[str, int]


class Watch:
    """Looks after those that somebody waits for, while there are any. Of one event loop.

    `waited_for()`: the addresses of brokers that somebody waits for, and for how long nothing has come from each.
    `gone(addresses)`: those of them that do not belong to the cluster any more, by somebody else's word.
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
        """Somebody is about to wait."""
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
