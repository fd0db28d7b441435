"""Whole brokers and their clients in one thread under virtual time: the real composition root, and seeded faults.

with World(seed, folder) as world:
        world.run(scenario(world))

A broker is the real one, with its logs, coordinators and extensions. Simulated are time, randomness, threads
(`loop.py`), its disk (`disk.py`), its coordination store (`coordination.py`) and the network (`network.py`). RocksDB's
files are on a real disk, under the folder of the same name.

Each broker has a store of its own, or all are sessions of one ensemble (`shared`). In an ensemble the nodes of a dead
process stay until its session is over, and a broker can be cut off from it (`Member.lose_store`).

Faults of a broker: `kill` leaves the written data and ends all work. `cut_power` loses or tears unsynced data.
`crash_soon` does either in the middle of a change of the disk. `suspend` and `resume` stop a process, whose timers
fire late then. `restart` starts it again. Its files are taken over at that moment, and the next start has a folder of
its own, so that leftovers of the dead process cannot touch them.

`network.py` describes faults of the network; `cut` takes members and names of clients. A client hears nothing from a
broker whose power was cut; one of a killed broker gets a reset. Requests of one connection keep their order; those of
several do not.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import math
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.extension import Extension
from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.net.outgoing import OutgoingConnection
from headrace.broker.net.reply import CloseConnection, Peer
from headrace.broker.server import Broker
from headrace.protocol.schema import ApiMessage
from simulator.coordination import SimulatedEnsemble, SimulatedStore
from simulator.direct import QUICK, DirectBroker, decode_answer, encode_request
from simulator.disk import SimulatedCrash, SimulatedDisk, Tear
from simulator.files import copy_as_killed
from simulator.loop import OWNER, SimulatedClock, SimulatedEntropy, SimulatedLoop, SimulatedThreads
from simulator.network import ONE_WAY_SECONDS, SimulatedNetwork

PORT = 9092
SESSION_MS = 6_000
REFUSED_SECONDS = 0.001
REQUEST_SECONDS = 10.0
"""Time after which a client abandons a request."""
KV_LOST = 0.3
"""Chance that a power cut loses a whole key-value store, whose folder was not made durable."""


class LinkLostError(Exception):
    """The connection is lost. `sent`: the broker may have carried the request out."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("after the request" if sent else "before the request")
        self.sent = sent


class Member:
    """One broker of the world: the process that runs now, and its files."""

    def __init__(self, world: World, node_id: int, config: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.incarnation = 0
        self.direct: DirectBroker | None = None
        self.machine = world.network.machine(f"broker-{node_id}")
        self.ensemble = world.ensemble or world.make_ensemble()
        self.skew = 0.0
        """Error of its wall clock in seconds; a running process sees changes of it."""
        self.died = asyncio.Event()
        """Set when `crash_soon` has ended the process."""
        self.store: SimulatedStore | None = None
        self._tear = Tear.KEPT
        self._world = world
        self._config = {
            **QUICK, "advertised.listeners": f"PLAINTEXT://broker-{node_id}:{PORT}", **config, "node.id": str(node_id)
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
        """Start the broker; return whether it serves.

        It does not if it ended on the way (`crash_soon`), or if it gave up in a cluster because it lost the store or
        another broker has its place. All that it starts ends with it.
        """
        world, loop = self._world, self._world.loop
        extensions = tuple(world.make_extensions())
        keys = [key for extension in extensions for key in extension.broker_configs()]
        self.died.clear()
        self.machine.on()
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
                host=self.machine.name,
                port=PORT,
                extensions=extensions,
                clock=self.clock,
                entropy=SimulatedEntropy(loop.random.getrandbits(64)),
                disk=self.disk,
                threads=SimulatedThreads(loop),
                sockets=self.machine,
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
        error = starting.exception()
        if world.ensemble is not None and isinstance(error, Exception):
            loop.note("gives up", self.owner, type(error).__name__)
            self.kill()
            return False
        self.direct = DirectBroker(starting.result())
        self._context = context
        return True

    async def _connect(self) -> SimulatedStore:
        """Connect to the store. In a store of its own, the session of the former process is over."""
        if self.store is not None and self._world.ensemble is None:
            self.ensemble.end(self.store.session)
        is_alone = self._world.ensemble is None
        self.store = await self.ensemble.connect(session_timeout_ms=math.inf if is_alone else SESSION_MS)
        return self.store

    def lose_store(self) -> None:
        """Cut this broker off from the ensemble until `find_store`."""
        self._world.loop.note("lose store", self.owner)
        if self.store is not None:
            self.ensemble.cut(self.store)

    def find_store(self) -> None:
        self._world.loop.note("find store", self.owner)
        if self.store is not None:
            self.ensemble.heal(self.store)

    async def stop(self) -> None:
        """Stop it as by SIGTERM."""
        if self.direct is None:
            return
        self._world.loop.note("stop", self.owner)
        broker, self.direct = self.direct.broker, None
        await asyncio.get_running_loop().create_task(broker.stop(), context=self._context)

    def kill(self) -> None:
        """Kill it as by `kill -9`, between two of its steps."""
        self._end(Tear.KEPT)

    def cut_power(self, tear: Tear) -> None:
        """Cut its power; its clients hear nothing."""
        self._end(tear)

    def crash_soon(self, operations: int, tear: Tear) -> None:
        """End it in the middle of a change of its disk, after that many more changes; `died` is set then."""
        self._tear = tear
        self.disk.crash_at = self.disk.operations + operations

    def _crashed(self) -> None:
        self._world.loop.kill(self.owner)
        self.machine.ended(silently=self._tear is not Tear.KEPT)
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
        """Take over the files that `crash_soon` has left, for the next start."""
        self._end(self._tear)

    def _end(self, tear: Tear) -> None:
        world, loop = self._world, self._world.loop
        loop.note("end", self.owner, tear.value)
        loop.kill(self.owner)
        if self.direct is not None:
            world.dead.append(self.direct)  # so that no destructor of it runs
        self.direct = None
        old, is_cut = self.folder, tear is not Tear.KEPT
        self.machine.ended(silently=is_cut)
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
    """A client's connection to one broker, whichever process of it runs. `name` is the client's machine."""

    def __init__(self, world: World, member: Member, name: str) -> None:
        self._world = world
        self._member = member
        self._name = name
        self._network = world.client(name)
        self._connection: OutgoingConnection | None = None
        self._turn = asyncio.Lock()
        self._losses = 0
        self._sent = 0
        self.node_id = member.node_id

    async def send(self, request: ApiMessage, version: int | None = None) -> Any:
        """Send a request and return the answer; concurrent requests keep their order.

        Raise LinkLostError for every request on a lost connection.
        """
        loop = self._world.loop
        api_version = type(request).MAX_VERSION if version is None else version
        self._note_loss()
        losses = self._losses
        async with self._turn:
            self._note_loss()
            if losses != self._losses:
                raise LinkLostError(sent=False)
            connection = self._connection or await self._connect()
            self._sent = number = self._sent + 1
            loop.note(self._name, "sends", type(request).__name__)
            try:
                answer = connection.ask([encode_request(request, api_version, number)])
            except ConnectionError:
                raise LinkLostError(sent=False) from None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                frame = await answer
        except TimeoutError:
            connection.close("it was not answered in time")
            raise LinkLostError(sent=True) from None
        except ConnectionError:
            raise LinkLostError(sent=True) from None
        return decode_answer(bytes(frame), request, api_version, number)

    def _note_loss(self) -> None:
        if self._connection is not None and self._connection.closed:
            self._connection = None
            self._losses += 1

    async def _connect(self) -> OutgoingConnection:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                self._connection = await self._network.connect(self._member.machine.name, PORT)
        except (TimeoutError, OSError):
            self._losses += 1
            await asyncio.sleep(REFUSED_SECONDS)
            raise LinkLostError(sent=False) from None
        return self._connection


Place = str | Member


class World:
    """The members and links of one simulation. `loss` is the chance that a request loses its connection."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        loss: float = 0.0,
        delays: tuple[float, float] = ONE_WAY_SECONDS,
        make_extensions: Callable[[], Sequence[Extension]] = tuple,
        shared: bool = False,
    ) -> None:
        """Create a world. `shared`: all brokers are members of one cluster."""
        self.seed = seed
        self.folder = folder
        self.make_extensions = make_extensions
        self.loop = SimulatedLoop(seed)
        self.network = SimulatedNetwork(self.loop, loss=loss, delays=delays, hidden=str(folder).encode())
        self.ensemble = self.make_ensemble() if shared else None
        self.loop.set_exception_handler(_unless_dead)
        self.members: dict[int, Member] = {}
        self.dead: list[Any] = []
        self._clients: dict[str, Network] = {}

    def __repr__(self) -> str:
        loss, delays = self.network.loss, self.network.delays
        return f"<World of seed {self.seed}, loss={loss}, delays={delays}, members {list(self.members)}>"

    @property
    def loss(self) -> float:
        return self.network.loss

    @loss.setter
    def loss(self, chance: float) -> None:
        self.network.loss = chance

    def make_ensemble(self) -> SimulatedEnsemble:
        return SimulatedEnsemble(SimulatedClock(self.loop), seed=self.loop.random.getrandbits(64))

    def add(self, node_id: int, config: Mapping[str, str] | None = None) -> Member:
        """Add a broker that is not started yet."""
        member = self.members[node_id] = Member(self, node_id, config or {})
        return member

    def link(self, node_id: int, name: str = "client") -> Link:
        return Link(self, self.members[node_id], name)

    def client(self, name: str) -> Network:
        """Return the network as a client's process sees it."""
        network = self._clients.get(name)
        if network is None:
            network = self._clients[name] = Network(
                _nobody_is_served,
                Limits(scratch_bytes=1 << 14),
                loop=self.loop,
                sockets=self.network.machine(name),
            )
        return network

    def cut(self, sender: Place, receiver: Place, *, both: bool = True) -> None:
        """Cut two machines off from each other until `heal`."""
        self.network.cut(_place(sender), _place(receiver), both=both)

    def heal(self) -> None:
        """Heal all cuts."""
        self.network.heal()

    # -- the run -------------------------------------------------------------------------------------------

    def run(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        """Run a scenario to its end, and stop every running member. Raise DeadlockError when no task can go on."""

        async def whole() -> Any:
            result = await scenario
            for member in self.members.values():
                await member.stop()
            return result

        return self.loop.run_until_complete(whole())

    def __enter__(self) -> Self:
        logging.getLogger("headrace").setLevel(logging.CRITICAL)
        self._is_collecting = gc.isenabled()
        gc.disable()  # it would destroy leftovers of dead processes at moments that no seed decides
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(repr(self))
        for member in self.members.values():
            self.loop.kill(member.owner)
            if member.direct is not None:
                self.dead.append(member.direct)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()  # if the scenario has failed
        self.loop.bury()
        for direct in self.dead:
            direct.broker.network.close()
        for client in self._clients.values():
            client.close()
        self.loop.close()
        if self._is_collecting:
            gc.enable()
        logging.getLogger("headrace").setLevel(logging.NOTSET)


def _place(place: Place) -> str:
    return place if isinstance(place, str) else place.machine.name


def _nobody_is_served(peer: Peer, frame: bytes | memoryview) -> None:
    raise CloseConnection("a client has no server")


def _unless_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Run a callback, unless the process has ended meanwhile."""
    if not isinstance(context.get("exception"), SimulatedCrash):
        loop.default_exception_handler(context)
