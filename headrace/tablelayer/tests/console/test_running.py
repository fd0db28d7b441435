"""Work that is stopped leaves nothing behind when the console ends."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import pytest

from headrace.tablelayer.client import stopping
from headrace.tablelayer.console.routes import RequestError
from headrace.tablelayer.console.running import Running


class Native:
    """An object that must not outlive the process."""


class Reading:
    """A request whose client stays."""

    async def receive(self) -> dict[str, str]:
        await asyncio.Event().wait()
        return {}


def test_the_end_of_the_console_waits_for_cancelled_work() -> None:
    held: list[weakref.ref[Native]] = []
    said: list[Any] = []
    began, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        native = Native()
        held.append(weakref.ref(native))
        began.set()
        while True:
            stopping.check() if goes_on.is_set() else goes_on.wait()

    async def console() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        running = Running(0)
        reading = asyncio.ensure_future(running.read(Reading(), work))  # type: ignore[arg-type]
        await asyncio.to_thread(began.wait)
        running.end()
        with pytest.raises(RequestError, match="the console is stopping"):
            await reading
        asyncio.get_running_loop().call_later(0.05, goes_on.set)
        await running.finish()
        assert held[0]() is None

    asyncio.run(console())
    assert said == []
