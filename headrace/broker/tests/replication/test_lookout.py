"""A broker finds the end of other brokers' processes and reports it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.broker.cluster.lookout import Lookout
from headrace.broker.net.peers import PeerLostError
from headrace.broker.runtime.background import BackgroundTasks


class Conversation:
    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def ended(self) -> None:
        await self.over.wait()

    def close(self, reason: str) -> None:
        """Do nothing: there is nothing to close."""


class Others:
    """Another broker as seen through the connection; the store answers nothing."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.is_gone = False
        self.told: list[tuple[str, int]] = []
        self.image = SimpleNamespace(brokers={2: SimpleNamespace(broker_id=2, epoch=7)})
        self.broker_listeners: list[Any] = []
        self.asked = asyncio.Event()

    async def connect(self, broker_id: int) -> Conversation:
        if self.is_gone:
            raise PeerLostError("nobody listens", sent=False, refused=True)
        return self.conversation

    def note_ended(self, broker_id: int, epoch: int) -> None:
        self.told.append(("ended", epoch))

    def note_there(self, broker_id: int) -> None:
        self.told.append(("there", broker_id))

    async def get(self, path: str) -> None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_an_ended_broker_is_noted_before_the_store_is_asked() -> None:
    others: Any = Others()
    background = BackgroundTasks()
    Lookout(1, others, others, others, background).start()
    while others.told != [("there", 2)]:  # noqa: ASYNC110 - a task of its own
        await asyncio.sleep(0)
    others.is_gone = True
    others.conversation.over.set()
    async with asyncio.timeout(20):
        await others.asked.wait()
    assert others.told == [("there", 2), ("ended", 7)]
    await background.cancel()
