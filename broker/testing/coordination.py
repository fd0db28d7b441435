"""A simulated ensemble: many sessions over one tree of nodes in memory, with the faults of a real one.

Runs in any event loop, under virtual time too, and draws its delays from a seeded generator: the same seed, the same
trace. It follows ZooKeeper where the port leaves room: a session ends when it was not heard of for its timeout, its
ephemeral nodes go with it, and a client hears of that only when it is connected again.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from broker.ports import (
    BadVersionError,
    CheckNode,
    Clock,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NoNodeError,
    SetNode,
    StoreError,
    StoreOperation,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)

LEASE_OF_SESSION = 0.8
BEATS_PER_SESSION = 6


class SimulatedEnsemble:
    """The servers' side. `delays` are the bounds of what one way of a message takes, in seconds."""

    def __init__(self, clock: Clock, *, seed: int = 0, delays: tuple[float, float] = (0.0, 0.002)) -> None:
        self.clock = clock
        self.random = random.Random(seed)
        self._delays = delays
        self._nodes: dict[str, Node] = {"/": Node(b"", 0)}
        self._counters: dict[str, int] = {}
        self._heard: dict[int, float] = {}
        self._stores: list[SimulatedStore] = []
        self._sessions = 0
        self._transactions = 0

    async def connect(self, *, session_timeout_ms: int = 6_000) -> SimulatedStore:
        store = SimulatedStore(self, session_timeout_ms / 1000)
        self._stores.append(store)
        await store.open()
        return store

    # -- faults --------------------------------------------------------------------------------------------

    def cut(self, store: SimulatedStore) -> None:
        """Nothing passes between this client and the ensemble until `heal`. Its session ends by time."""
        store.connected = False

    def heal(self, store: SimulatedStore) -> None:
        store.connected = True
        store.reconnected()

    def expire(self, store: SimulatedStore) -> None:
        """End the session at once, as after a silence of its timeout."""
        self._end(store.session)
        store.reconnected()

    # -- what stores ask ------------------------------------------------------------------------------------

    async def travel(self) -> None:
        await asyncio.sleep(self.random.uniform(*self._delays))

    def begin(self) -> int:
        self._sessions += 1
        self._heard[self._sessions] = self.clock.monotonic()
        return self._sessions

    def hear(self, session: int, timeout: float) -> bool:
        """A sign of life. False: the session is over."""
        self.end_silent()
        if session not in self._heard:
            return False
        self._heard[session] = self.clock.monotonic()
        return True

    def end_silent(self) -> None:
        """Sessions that were not heard of for their timeout are over: looked at before anything is read or changed."""
        now = self.clock.monotonic()
        for store in self._stores:
            heard = self._heard.get(store.session)
            if heard is not None and now - heard > store.session_timeout:
                self._end(store.session)

    def end(self, session: int) -> None:
        self._end(session)

    def node(self, path: str) -> Node | None:
        self.end_silent()
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        self.end_silent()
        start = path.rstrip("/") + "/"
        return sorted(
            name[len(start) :]
            for name in self._nodes
            if name != "/" and name.startswith(start) and "/" not in name[len(start) :]
        )

    def transact(self, operations: Sequence[StoreOperation], session: int) -> list[str]:
        self.end_silent()
        before, counters = dict(self._nodes), dict(self._counters)
        self._transactions += 1
        touched: set[str] = set()
        try:
            paths = [self._apply(operation, session, touched) for operation in operations]
        except BaseException:
            self._nodes, self._counters = before, counters
            raise
        self._tell(touched)
        return paths

    def _end(self, session: int) -> None:
        self._heard.pop(session, None)
        touched: set[str] = set()
        for path in [path for path, node in self._nodes.items() if node.owner == session and session]:
            del self._nodes[path]
            touched |= {path, _parent(path)}
        self._tell(touched)

    def _tell(self, touched: set[str]) -> None:
        for store in self._stores:
            store.changed(touched)

    def _apply(self, operation: StoreOperation, session: int, touched: set[str]) -> str:
        path = operation.path
        if isinstance(operation, CreateNode):
            return self._create(operation, session, touched)
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(f"{path} does not exist")
        if operation.version != node.version:
            raise BadVersionError(f"{path} is at version {node.version}, not {operation.version}")
        if isinstance(operation, SetNode):
            self._nodes[path] = Node(operation.data, node.version + 1, node.owner, node.created)
            touched.add(path)
        elif isinstance(operation, DeleteNode):
            if self.children(path):
                raise StoreError(f"{path} has children and cannot be deleted")
            del self._nodes[path]
            touched |= {path, _parent(path)}
        elif not isinstance(operation, CheckNode):
            raise TypeError(f"{operation!r} is not a store operation")
        return path

    def _create(self, operation: CreateNode, session: int, touched: set[str]) -> str:
        path, parent = operation.path, _parent(operation.path)
        if operation.sequence:
            number = self._counters.get(parent, 0)
            self._counters[parent] = number + 1
            path = f"{path}{number:010d}"
        if path in self._nodes:
            raise NodeExistsError(f"{path} exists")
        missing, above = [], parent
        while above not in self._nodes:
            missing.append(above)
            above = _parent(above)
        if self._nodes[above].owner:
            raise StoreError(f"{above} is ephemeral and cannot have children")
        for each in missing:
            self._nodes[each] = Node(b"", 0)
        touched |= {path, parent, *missing, above}
        owner, created = (session, self._transactions) if operation.ephemeral else (0, 0)
        self._nodes[path] = Node(operation.data, 0, owner, created)
        return path


class SimulatedStore:
    """A CoordinationStore: one session with a simulated ensemble. Made by `SimulatedEnsemble.connect`."""

    def __init__(self, ensemble: SimulatedEnsemble, session_timeout: float) -> None:
        self.connected = True
        self.session_timeout = session_timeout
        self._ensemble = ensemble
        self._session = 0
        self._lease_end = -math.inf
        self._watches: dict[str, list[Callable[[], None]]] = {}
        self._beats: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        self._session = self._ensemble.begin()
        await self._beat()
        self._beats = asyncio.get_running_loop().create_task(self._keep_beating(), name="simulated lease")

    @property
    def session(self) -> int:
        return self._session

    def lease_end(self) -> float:
        return self._lease_end

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        callbacks = self._watches.setdefault(path, [])
        callbacks.append(callback)
        return partial(callbacks.remove, callback)

    async def get(self, path: str) -> Node | None:
        _check_path(path)
        await self._ask()
        return self._ensemble.node(path)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            _check_path(path)
        await self._ask()
        return [self._ensemble.node(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        _check_path(path)
        await self._ask()
        return self._ensemble.children(path)

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        for operation in operations:
            _check_path(operation.path)
        await self._ensemble.travel()
        if not self.connected or not self._ensemble.hear(self._session, self.session_timeout):
            raise StoreOutcomeUnknownError("the ensemble is lost under a transaction")
        paths = self._ensemble.transact(operations, self._session)
        await self._ensemble.travel()
        if not self.connected:
            raise StoreOutcomeUnknownError("the answer to a transaction is lost")
        return paths

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lease_end = -math.inf
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self.connected:
            self._ensemble.end(self._session)

    # -- what the ensemble does to it ------------------------------------------------------------------------

    def reconnected(self) -> None:
        """It may have missed anything; its session is over if the ensemble says so."""
        if self._closed or not self.connected:
            return
        if not self._ensemble.hear(self._session, self.session_timeout):
            self._lease_end = -math.inf
            self._session = self._ensemble.begin()
        self.changed(set(self._watches))

    def changed(self, touched: set[str]) -> None:
        if self._closed or not self.connected:
            return
        for path in sorted(touched & self._watches.keys()):
            for callback in tuple(self._watches[path]):
                asyncio.get_running_loop().call_later(self._ensemble.random.uniform(0, 0.002), callback)

    async def _ask(self) -> None:
        await self._ensemble.travel()
        if not self.connected or not self._ensemble.hear(self._session, self.session_timeout):
            raise StoreUnavailableError("the ensemble is lost")
        await self._ensemble.travel()

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self.session_timeout / BEATS_PER_SESSION)
            try:
                await self._beat()
            except StoreUnavailableError:
                self.reconnected()  # unless it is cut off: then the lease ends by itself

    async def _beat(self) -> None:
        session, sent = self._session, self._ensemble.clock.monotonic()
        await self._ask()
        if session == self._session:
            self._lease_end = max(self._lease_end, sent + LEASE_OF_SESSION * self.session_timeout)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _check_path(path: str) -> None:
    if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path:
        raise StoreError(f"{path!r} is not a node path: it must be absolute, without empty parts")
