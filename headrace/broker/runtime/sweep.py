"""Work that comes back to each of many keys, a few at a time, for as long as the broker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.broker.runtime.background import BackgroundTasks

KEYS_PER_TURN: Final = 100
"""Number of keys in one turn of the event loop."""


class Sweep:
    """Calls `each` with every one of `keys()`, once in `interval_ms` from `start` to `close`.

    A failure with one key is reported with `name` and the key, and does not delay the other keys. On the event loop.
    """

    def __init__(
        self,
        background: BackgroundTasks,
        name: str,
        interval_ms: int,
        keys: Callable[[], Iterable[str]],
        each: Callable[[str], None],
    ) -> None:
        self._background = background
        self._name = name
        self._interval_ms = interval_ms
        self._keys = keys
        self._each = each
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._begin)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._background.start(self.run(), self._name)

    async def run(self) -> None:
        """Go once over all present keys. The next round starts later by itself."""
        try:
            for turn, key in enumerate(list(self._keys())):
                try:
                    self._each(key)
                except Exception as error:  # noqa: BLE001 - of one key: told
                    self._background.failed(f"{self._name} {key!r}", error)
                if turn % KEYS_PER_TURN == KEYS_PER_TURN - 1:
                    await asyncio.sleep(0)
        finally:
            if not self._closed:
                self.start()
