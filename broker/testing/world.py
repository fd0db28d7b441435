"""Whole brokers and their clients in one thread under virtual time: the composition root as it is, and seeded faults.

    with World(seed, folder) as world:
        world.run(scenario(world))

A broker is the real one: its logs, its coordinators and its extensions. Simulated are time, randomness, threads
(`loop.py`), its disk (`disk.py`), its coordination store (`coordination.py`) and the way of a request. What RocksDB has
is on a real disk, under the folder of the same name.

What can be done to a broker: `kill` (what was written is there, nothing else runs), `cut_power` (what was not synced is
lost, torn, or there without the rest), `crash_soon` (either, in the middle of what it does to its disk), `suspend` and
`resume` (a stopped process, whose timers fire late), `restart`. Files are taken over at that moment and the next start
has a folder of its own, so that nothing that is left of the dead can touch them.

What can be done to the network: `loss` (the chance that a request loses its connection, on one of its two ways), `cut`
(one way or both: what is sent waits, as in TCP, until it is healed or the client gives up), and slow ways (`delays`).
A client of a broker whose power was cut hears nothing, one of a broker that was killed is told. Requests of one
connection keep their order; those of several do not.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.config import BrokerConfig
from broker.extension import Extension
from broker.net.reply import Peer
from broker.ports import CoordinationStore
from broker.security.principal import ANONYMOUS, Session
from broker.server import Broker
from broker.testing.coordination import SimulatedEnsemble
from broker.testing.direct import QUICK, DirectBroker
from broker.testing.disk import SimulatedCrash, SimulatedDisk, Tear
from broker.testing.files import copy_as_killed
from broker.testing.loop import OWNER, SimulatedClock, SimulatedEntropy, SimulatedLoop, SimulatedThreads
from protocol.schema import ApiMessage

ONE_WAY_SECONDS = (0.0001, 0.003)
REFUSED_SECONDS = 0.001
REQUEST_SECONDS = 10.0
"""After this a client gives a request up."""
_WHERE = re.compile(r" at 0x[0-9a-f]+")
KV_LOST = 0.3
"""How often a power cut takes a key-value store as a whole: nobody promised that its folder was durable."""


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
        self.ensemble = SimulatedEnsemble(SimulatedClock(world.loop), seed=world.loop.random.getrandbits(64))
        self.skew = 0.0
        """Of its wall clock, in seconds; a running process sees it change."""
        self.died = asyncio.Event()
        """By `crash_soon`."""
        self._store: CoordinationStore | None = None
        self._world = world
        self._config = {
            **QUICK, "advertised.listeners": f"PLAINTEXT://broker-{node_id}:9092", **config, "node.id": str(node_id)
        }  # fmt: skip
        self.clock = _MemberClock(self, world.loop)
        self.disk = SimulatedDisk(
            seed=world.loop.random.getrandbits(64), now_ms=self.clock.time_ms, mounted_at=world.folder
        )

    @property
    def owner(self) -> str:
        return f"broker {self.node_id}, incarnation {self.incarnation}"

    @property
    def folder(self) -> Path:
        return self._world.folder / f"{self.node_id}-{self.incarnation}"

    @property
    def is_up(self) -> bool:
        return self.direct is not None

    async def start(self) -> bool:
        """Whether it serves; not if it died on the way (`crash_soon`). What it starts is its own, and goes with it."""
        world, loop = self._world, self._world.loop
        extensions = tuple(world.make_extensions())
        keys = [key for extension in extensions for key in extension.broker_configs()]
        self.died.clear()
        self.disk.on_crash = self._crashed
        self.disk.on_change = lambda operation, path: loop.note(
            self.node_id, operation, str(path).removeprefix(str(world.folder))
        )
        loop.note("start", self.owner)
        context = contextvars.copy_context()
        context.run(OWNER.set, self.owner)

        async def begin() -> Broker:
            broker = Broker(
                BrokerConfig(self._config, keys),
                data_dir=self.folder,
                port=0,
                extensions=extensions,
                clock=self.clock,
                entropy=SimulatedEntropy(loop.random.getrandbits(64)),
                disk=self.disk,
                threads=SimulatedThreads(loop),
                store=await self._connect(),
            )
            await broker.start()
            return broker

        starting = asyncio.get_running_loop().create_task(begin(), context=context)
        died = asyncio.ensure_future(self.died.wait())
        await asyncio.wait([starting, died], return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if not starting.done() or self.died.is_set():
            return False
        self.direct = DirectBroker(starting.result())
        self._context = context
        return True

    async def _connect(self) -> CoordinationStore:
        """As an embedded store: the session of the process before is over."""
        if self._store is not None:
            self.ensemble.end(self._store.session)
        self._store = await self.ensemble.connect()
        return self._store

    async def stop(self) -> None:
        """As by SIGTERM."""
        if self.direct is None:
            return
        self._world.loop.note("stop", self.owner)
        broker, self.direct = self.direct.broker, None
        await asyncio.get_running_loop().create_task(broker.stop(), context=self._context)

    def kill(self) -> None:
        """As by `kill -9`, between two of its steps."""
        self._end(Tear.KEPT)

    def cut_power(self, tear: Tear) -> None:
        """Its clients hear nothing of it."""
        self._end(tear)

    def crash_soon(self, operations: int, tear: Tear) -> None:
        """It dies in the middle of what it does to its disk, after so many more changes; `died` is set then."""
        self._tear = tear
        self.disk.crash_at = self.disk.operations + operations

    def _crashed(self) -> None:
        self._world.loop.kill(self.owner)
        self.died.set()

    def suspend(self) -> None:
        self._world.loop.note("suspend", self.owner)
        self._world.loop.suspend(self.owner)

    def resume(self) -> None:
        self._world.loop.note("resume", self.owner)
        self._world.loop.resume(self.owner)

    async def restart(self) -> None:
        self.kill()
        await self.start()

    def bury(self) -> None:
        """What `crash_soon` has left is what the next start finds."""
        self._end(self._tear)

    def _end(self, tear: Tear) -> None:
        world, loop = self._world, self._world.loop
        loop.note("end", self.owner, tear.value)
        loop.kill(self.owner)
        if self.direct is not None:
            world.dead.append(self.direct)  # no destructor of it runs
        self.direct = None
        old, is_cut = self.folder, tear is not Tear.KEPT
        if is_cut:
            world.silent.add(self.owner)
        self.incarnation += 1
        self.disk = self.disk.restart(tear)
        self.disk.move(old, self.folder)
        if old.exists():
            copy_as_killed(old, self.folder)
            if is_cut:
                for current in sorted(self.folder.rglob("CURRENT")):
                    if loop.random.random() < KV_LOST:
                        shutil.rmtree(current.parent)

    def __repr__(self) -> str:
        return self.owner


class _MemberClock(SimulatedClock):
    def __init__(self, member: Member, loop: SimulatedLoop) -> None:
        super().__init__(loop)
        self._member = member

    def time_ms(self) -> int:
        return super().time_ms() + int(self._member.skew * 1000)


class Link:
    """A client's connection to one broker, whichever process of it runs. `name` is the client's place."""

    def __init__(self, world: World, member: Member, name: str) -> None:
        self._world = world
        self._member = member
        self._name = name
        self._connection: _Connection | None = None
        self._turn = asyncio.Lock()
        self._losses = 0

    async def send(self, request: ApiMessage, version: int | None = None) -> Any:
        """The answer. Raises LinkLostError, for all that were to go over the connection that is lost. Requests that are
        sent meanwhile keep their order.
        """
        loop, losses = self._world.loop, self._losses
        async with self._turn:
            if losses != self._losses:
                raise LinkLostError(sent=False)
            connection = self._connection
            if connection is None or connection.is_lost:
                try:
                    connection = self._connection = await self._connect()
                except LinkLostError:
                    self._losses += 1
                    raise
            loop.note(self._name, "sends", type(request).__name__)
            answer = connection.ask(request, version)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                return await answer
        except TimeoutError:
            connection.lose()
            raise LinkLostError(sent=True) from None

    async def _connect(self) -> _Connection:
        world, member = self._world, self._member
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await world.travel(self._name, member)
        except TimeoutError:
            raise LinkLostError(sent=False) from None
        if member.direct is None:
            await asyncio.sleep(REFUSED_SECONDS)
            raise LinkLostError(sent=False)
        world.peers += 1
        session = Session(ANONYMOUS, "PLAINTEXT", since=world.loop.time())
        peer = Peer(world.peers, self._name, world.peers, "PLAINTEXT", session)
        return _Connection(world, member, self._name, peer, self._lost)

    def _lost(self) -> None:
        self._losses += 1


class _Connection:
    """One connection between a client and one process."""

    def __init__(
        self, world: World, member: Member, name: str, peer: Peer, on_loss: Callable[[], None]
    ) -> None:
        self.is_lost = False
        self._is_broken = False
        self._on_loss = on_loss
        self._world = world
        self._member = member
        self._name = name
        assert member.direct is not None
        self._direct = DirectBroker(member.direct.broker)
        self._direct.peer = peer
        self._owner = member.owner
        self._last: asyncio.Future[Any] | None = None
        self._asked: list[asyncio.Future[Any]] = []

    def ask(self, request: ApiMessage, version: int | None) -> asyncio.Future[Any]:
        loop = self._world.loop
        answer = loop.create_future()
        self._asked.append(answer)
        carried = loop.create_task(self._carry(request, version, answer, self._last))
        self._last = carried
        return answer

    def lose(self, *, sent: bool = True) -> None:
        """Whoever waits for an answer is told; what is under way may arrive all the same."""
        if not self.is_lost:
            self._on_loss()
        self.is_lost = True
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(LinkLostError(sent=sent))
                answer.exception()  # whoever waited may be gone
        self._asked.clear()

    async def _carry(
        self, request: ApiMessage, version: int | None, answer: asyncio.Future[Any], before: Any
    ) -> None:
        world, loop, owner = self._world, self._world.loop, self._owner
        await world.travel(self._name, self._member)
        if before is not None and not before.done():
            await asyncio.wait([before])
        if loop.random.random() < world.loss / 2:
            self.lose()
        if self._is_broken or (self.is_lost and loop.random.random() < 0.5):
            self._is_broken = True  # this was in the way when it broke, and so is what follows
            return
        if loop.is_dead(owner):
            if owner not in world.silent or self._member.owner != owner:
                self.lose()
            return
        if self._member.direct is None:
            self.lose()
            return
        context = contextvars.copy_context()
        context.run(OWNER.set, owner)
        handled = loop.create_task(self._direct.send(request, version), context=context)
        while not handled.done():
            await asyncio.wait([handled], timeout=0.05)
            if loop.is_dead(owner) and not handled.done():
                if owner not in world.silent:
                    self.lose()
                return
        if handled.cancelled() or handled.exception() is not None:
            self.lose()  # it has hung up
            return
        self._last = None if self._last is asyncio.current_task() else self._last
        await world.travel(self._member, self._name)
        if (loop.is_dead(owner) and owner not in world.silent) or loop.random.random() < world.loss / 2:
            self.lose()
        elif not answer.done():
            loop.note(
                self._name,
                "hears",
                _WHERE.sub("", repr(handled.result()).replace(str(world.folder), ""))[:200],
            )
            answer.set_result(handled.result())


Place = str | Member


class World:
    """Members and links of one simulation. `loss` is the chance that a request loses its connection."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        loss: float = 0.0,
        delays: tuple[float, float] = ONE_WAY_SECONDS,
        make_extensions: Callable[[], Sequence[Extension]] = tuple,
    ) -> None:
        self.seed = seed
        self.folder = folder
        self.loss = loss
        self.delays = delays
        self.make_extensions = make_extensions
        self.loop = SimulatedLoop(seed)
        self.loop.set_exception_handler(_unless_dead)
        self.members: dict[int, Member] = {}
        self.dead: list[Any] = []
        self.silent: set[str] = set()
        """Owners whose power was cut: nobody is told."""
        self.peers = 0
        self._cuts: set[tuple[str, str]] = set()
        self._healed: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<World of seed {self.seed}, loss={self.loss}, delays={self.delays}, members {list(self.members)}>"

    def add(self, node_id: int, config: Mapping[str, str] | None = None) -> Member:
        """A broker that is not started yet."""
        member = self.members[node_id] = Member(self, node_id, config or {})
        return member

    def link(self, node_id: int, name: str = "client") -> Link:
        return Link(self, self.members[node_id], name)

    # -- the network ---------------------------------------------------------------------------------------

    def cut(self, sender: Place, receiver: Place, *, both: bool = True) -> None:
        """What one sends the other does not hear until `heal`."""
        self.loop.note("cut", str(sender), str(receiver), both)
        self._cuts.add((_place(sender), _place(receiver)))
        if both:
            self._cuts.add((_place(receiver), _place(sender)))

    def heal(self) -> None:
        """All cuts."""
        self.loop.note("heal")
        self._cuts.clear()
        healed, self._healed = self._healed, []
        for waiter in healed:
            if not waiter.done():
                waiter.set_result(None)

    async def travel(self, sender: Place, receiver: Place) -> None:
        """What a message takes from one to the other."""
        await asyncio.sleep(self.loop.random.uniform(*self.delays))
        while (_place(sender), _place(receiver)) in self._cuts:
            waiter = self.loop.create_future()
            self._healed.append(waiter)
            await waiter
            await asyncio.sleep(self.loop.random.uniform(*self.delays))

    # -- the run -------------------------------------------------------------------------------------------

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
        if error is not None:
            error.add_note(repr(self))
        for member in self.members.values():
            self.loop.kill(member.owner)
            if member.direct is not None:
                self.dead.append(member.direct)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()  # a scenario that has failed
        self.loop.bury()
        for direct in self.dead:
            direct.broker._network.close()
        self.loop.close()


def _place(place: Place) -> str:
    return place if isinstance(place, str) else f"broker {place.node_id}"


def _unless_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a process says while it dies is not heard."""
    if not isinstance(context.get("exception"), SimulatedCrash):
        loop.default_exception_handler(context)
