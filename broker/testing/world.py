"""Whole brokers and their clients in one thread under virtual time: the composition root as it is, and seeded faults.

    with World(seed, folder) as world:
        world.run(scenario(world))

A broker is the real one: its data directory with real files, its store, its logs, its coordinators and its extensions.
Simulated are time, randomness, threads (`loop.py`) and the way of a request: links delay it, and lose the connection
before the broker has it, or before the answer comes back. `kill` is `kill -9`: what was written is there, nothing else
runs. The files are copied as they are at that moment and the next start uses the copy, so that nothing that is left of
the dead can touch them.

Not simulated here: what a power cut takes (`broker.testing.disk` does, under the log alone).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.config import BrokerConfig
from broker.extension import Extension
from broker.net.reply import Peer
from broker.security.principal import ANONYMOUS, Session
from broker.server import Broker
from broker.testing.direct import QUICK, DirectBroker
from broker.testing.files import copy_as_killed
from broker.testing.loop import OWNER, InlineExecutor, SimulatedClock, SimulatedEntropy, SimulatedLoop
from protocol.schema import ApiMessage

ONE_WAY_SECONDS = (0.0001, 0.003)
REFUSED_SECONDS = 0.001


class LinkLostError(Exception):
    """The connection is gone. `sent`: the broker may have carried the request out."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("after the request" if sent else "before the request")
        self.sent = sent


class Member:
    """One broker of the world: the process that runs now, and its files."""

    def __init__(self, world: World, node_id: int, config: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.incarnation = 0
        self.direct: DirectBroker | None = None
        self._world = world
        self._config = {**QUICK, **config, "node.id": str(node_id)}

    @property
    def owner(self) -> str:
        return f"broker {self.node_id}, incarnation {self.incarnation}"

    @property
    def folder(self) -> Path:
        return self._world.folder / f"{self.node_id}-{self.incarnation}"

    async def start(self) -> None:
        """Returns when it serves. Everything it starts is its own, and goes with it."""
        loop, extensions = self._world.loop, tuple(self._world.make_extensions())
        keys = [key for extension in extensions for key in extension.broker_configs()]
        broker = Broker(
            BrokerConfig(self._config, keys),
            data_dir=self.folder,
            port=0,
            extensions=extensions,
            clock=SimulatedClock(loop),
            entropy=SimulatedEntropy(loop.random.getrandbits(64)),
            executor=InlineExecutor(),
        )
        context = contextvars.copy_context()
        context.run(OWNER.set, self.owner)
        await asyncio.get_running_loop().create_task(broker.start(), context=context)
        self.direct = DirectBroker(broker)
        self._context = context

    async def stop(self) -> None:
        """As by SIGTERM."""
        if self.direct is None:
            return
        broker, self.direct = self.direct.broker, None
        await asyncio.get_running_loop().create_task(broker.stop(), context=self._context)

    def kill(self) -> None:
        """As by `kill -9`, between two of its steps."""
        if self.direct is None:
            return
        self._world.loop.kill(self.owner)
        self._world.dead.append(self.direct)  # no destructor of it runs
        self.direct = None
        here = self.folder
        self.incarnation += 1
        copy_as_killed(here, self.folder)

    async def restart(self) -> None:
        self.kill()
        await self.start()

    def __repr__(self) -> str:
        return self.owner


class Link:
    """A client's connection to one broker, whichever process of it runs."""

    def __init__(self, world: World, member: Member) -> None:
        self._world = world
        self._member = member
        self._peer: tuple[str, Peer] | None = None  # of which process

    async def send(self, request: ApiMessage, version: int | None = None) -> Any:
        """The answer. Raises LinkLostError."""
        world, loop = self._world, self._world.loop
        await asyncio.sleep(loop.random.uniform(*ONE_WAY_SECONDS))
        process, owner = self._member.direct, self._member.owner
        if process is None:
            await asyncio.sleep(REFUSED_SECONDS)
            raise LinkLostError(sent=False)
        if loop.random.random() < world.loss / 2:
            raise LinkLostError(sent=False)
        direct = DirectBroker(process.broker)
        direct.peer = self._connection(owner)
        context = contextvars.copy_context()
        context.run(OWNER.set, owner)
        answer = loop.create_task(direct.send(request, version), context=context)
        while not answer.done():
            await asyncio.wait([answer], timeout=0.05)
            if loop.is_dead(owner) and not answer.done():
                raise LinkLostError(sent=True)
        await asyncio.sleep(loop.random.uniform(*ONE_WAY_SECONDS))
        if loop.is_dead(owner) or loop.random.random() < world.loss / 2:
            self._peer = None
            raise LinkLostError(sent=True)
        return answer.result()

    def _connection(self, owner: str) -> Peer:
        """Brokers remember things of a connection: each process, and each connection after a lost one, has another."""
        if self._peer is None or self._peer[0] != owner:
            self._world.peers += 1
            self._peer = (
                owner,
                Peer(
                    self._world.peers,
                    "127.0.0.1",
                    self._world.peers,
                    "PLAINTEXT",
                    Session(ANONYMOUS, "PLAINTEXT"),
                ),
            )
        return self._peer[1]


class World:
    """Members and links of one simulation. `loss` is the chance that a request loses its connection."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        loss: float = 0.0,
        make_extensions: Callable[[], Sequence[Extension]] = tuple,
    ) -> None:
        self.seed = seed
        self.folder = folder
        self.loss = loss
        self.make_extensions = make_extensions
        self.loop = SimulatedLoop(seed)
        self.members: dict[int, Member] = {}
        self.dead: list[Any] = []
        self.peers = 0

    def add(self, node_id: int, config: Mapping[str, str] | None = None) -> Member:
        """A broker that is not started yet."""
        member = self.members[node_id] = Member(self, node_id, config or {})
        return member

    def link(self, node_id: int) -> Link:
        return Link(self, self.members[node_id])

    def run(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end, and stop every member that is up. Raises DeadlockError when nobody can go on."""

        async def whole() -> Any:
            result = await scenario
            for member in self.members.values():
                await member.stop()
            return result

        return self.loop.run_until_complete(whole())

    def __enter__(self) -> Self:
        logging.getLogger("headrace").setLevel(logging.CRITICAL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("headrace").setLevel(logging.NOTSET)
        for member in self.members.values():
            member.kill()
        self.loop.bury()
        for direct in self.dead:
            direct.broker._network.close()
        self.loop.close()
