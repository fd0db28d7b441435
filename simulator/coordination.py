"""A simulated ensemble: many sessions over one tree of nodes in memory, with the faults of a real one.

It runs in any event loop, also under virtual time, and draws its delays from a seeded generator: the same seed gives
the same trace. Where the port leaves a choice, it follows ZooKeeper: a session ends when it was silent for its timeout,
its ephemeral nodes are removed, and its client learns this only when it is connected again.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from headrace.broker.runtime.ports import (
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

Result = TypeVar("Result")

LEASE_OF_SESSION = 0.8
BEATS_PER_SESSION = 6


class SimulatedEnsemble:
    """The servers' side. `delays` are the bounds of what one way of a message takes, in seconds; `loss` is the chance
    that a client's connection breaks under one, whose session goes on; `watch_seconds_max` is what it takes until a
    watch tells. `observers` are told of every transaction: whose session, and its operations.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int = 0,
        delays: tuple[float, float] = (0.0, 0.002),
        watch_seconds_max: float = 0.002,
        loss: float = 0.0,
    ) -> None:
        self.clock = clock
        self.random = random.Random(seed)
        self.loss = loss
        self.watch_seconds_max = watch_seconds_max
        self.observers: list[Callable[[int, Sequence[StoreOperation]], None]] = []
        self.end_observers: list[Callable[[int, Sequence[str]], None]] = []
        """Called for every session that ends, with the nodes that are removed with it."""
        self._delays = delays
        self._nodes: dict[str, Node] = {"/": Node(b"", 0)}
        self._counters: dict[str, int] = {}
        self._heard: dict[int, float] = {}
        self._first_end = math.inf
        """Earliest time at which a silent session may end."""
        self._stores: list[SimulatedStore] = []
        self._sessions = 0
        self.clients: dict[int, SimulatedStore] = {}
        """The client of each session."""
        self._transactions = 0

    async def connect(self, *, session_timeout_ms: float = 6_000) -> SimulatedStore:
        """Open a session. With an infinite timeout only `end` ends it, like the session of an embedded store."""
        store = SimulatedStore(self, session_timeout_ms / 1000)
        self._stores.append(store)
        await store.open()
        return store

    # -- faults --------------------------------------------------------------------------------------------

    def cut(self, store: SimulatedStore) -> None:
        """Stop all messages between this client and the ensemble until `heal`. Its session ends after its timeout."""
        store.connected = False
        store.disconnected()

    def heal(self, store: SimulatedStore) -> None:
        store.connected = True
        store.reconnected()

    def expire(self, store: SimulatedStore) -> None:
        """End the session at once, as after its timeout."""
        self._end(store.session)
        store.reconnected()

    # -- requests of stores ---------------------------------------------------------------------------------

    def delay(self) -> float:
        return self.random.uniform(*self._delays)

    def begin(self, store: SimulatedStore) -> int:
        self._sessions += 1
        self.clients[self._sessions] = store
        self._heard[self._sessions] = now = self.clock.monotonic()
        self._first_end = min(self._first_end, now + store.session_timeout)
        return self._sessions

    def hear(self, session: int, timeout: float) -> bool:
        """Note a sign of life. Return False if the session is over."""
        self.end_silent()
        if session not in self._heard:
            return False
        self._heard[session] = self.clock.monotonic()
        return True

    def end_silent(self) -> None:
        """End the sessions that were silent for their timeout. Called before every read or change."""
        now = self.clock.monotonic()
        if now <= self._first_end:
            return
        for session in [each for each, heard in self._heard.items() if now - heard > self._timeout(each)]:
            self._end(session)
        self._first_end = min(
            (heard + self._timeout(session) for session, heard in self._heard.items()), default=math.inf
        )

    def _timeout(self, session: int) -> float:
        return self.clients[session].session_timeout

    def end(self, session: int) -> None:
        self._end(session)

    @property
    def changes(self) -> int:
        return self._transactions

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
        for observer in self.observers:
            observer(session, operations)
        return paths

    def _end(self, session: int) -> None:
        self._heard.pop(session, None)
        touched: set[str] = set()
        gone = [path for path, node in self._nodes.items() if node.owner == session and session]
        for path in gone:
            del self._nodes[path]
            touched |= {path, _parent(path)}
        self._tell(touched)
        for observer in self.end_observers:
            observer(session, gone)

    def _tell(self, touched: set[str]) -> None:
        for store in self._stores:
            if store.session in self._heard:  # watches of other sessions fire when they are connected again
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
    """A CoordinationStore: one session with a simulated ensemble. Created by `SimulatedEnsemble.connect`.

    Requests arrive in order and are carried out, even if the caller has gone. Answers come in order.
    """

    def __init__(self, ensemble: SimulatedEnsemble, session_timeout: float) -> None:
        self.connected = True
        self.session_timeout = session_timeout
        self._ensemble = ensemble
        self._session = 0
        self._lease_end = -math.inf
        self._watches: dict[str, list[tuple[Callable[[], None], Context]]] = {}
        self._beats: asyncio.Task[None] | None = None
        self._closed = False
        self._connections = 0  # number of the present connection
        self._asked: dict[asyncio.Future[Any], Exception] = {}
        self._there = self._back = 0.0  # when the latest message of each direction arrives

    async def open(self) -> None:
        self._session = self._ensemble.begin(self)
        await self._beat()
        if self.session_timeout < math.inf:
            self._beats = asyncio.get_running_loop().create_task(self._keep_beating(), name="simulated lease")

    @property
    def session(self) -> int:
        return self._session

    @property
    def changes(self) -> int:
        return self._ensemble.changes

    def lease_end(self) -> float:
        return self._lease_end

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        entry = callback, contextvars.copy_context()
        callbacks = self._watches.setdefault(path, [])
        callbacks.append(entry)
        return partial(callbacks.remove, entry)

    async def get(self, path: str) -> Node | None:
        _check_path(path)
        return await self._read(lambda: self._ensemble.node(path))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            _check_path(path)
        wanted = tuple(paths)
        return await self._read(lambda: [self._ensemble.node(path) for path in wanted])

    async def children(self, path: str) -> list[str]:
        _check_path(path)
        return await self._read(lambda: self._ensemble.children(path))

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        for operation in operations:
            _check_path(operation.path)
        session, wanted = self._session, tuple(operations)
        return await self._ask(
            lambda: self._ensemble.transact(wanted, session),
            StoreOutcomeUnknownError("the ensemble is lost under a transaction"),
        )

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

    # -- events of the ensemble ------------------------------------------------------------------------------

    def disconnected(self) -> None:
        """Fail all waiting requests; requests under way may still be carried out."""
        self._connections += 1
        asked, self._asked = self._asked, {}
        for answer, error in asked.items():
            if not answer.done():
                answer.set_exception(error)

    def reconnected(self) -> None:
        """Reconnect. Changes may have been missed, and the session may be over."""
        if self._closed or not self.connected:
            return
        if not self._ensemble.hear(self._session, self.session_timeout):
            self._lease_end = -math.inf
            self._session = self._ensemble.begin(self)
        self.changed(set(self._watches))

    def changed(self, touched: set[str]) -> None:
        if self._closed or not self.connected:
            return
        loop = asyncio.get_running_loop()
        for path in sorted(touched & self._watches.keys()):
            for callback, context in tuple(self._watches[path]):
                delay = self._ensemble.random.uniform(0, self._ensemble.watch_seconds_max)
                loop.call_later(delay, callback, context=context)

    # -- asking ----------------------------------------------------------------------------------------------

    async def _read(self, ask: Callable[[], Result]) -> Result:
        return await self._ask(ask, StoreUnavailableError("the ensemble is lost"))

    async def _ask(self, ask: Callable[[], Result], lost: Exception) -> Result:
        """Send a request and return the answer. Raise `lost` when the connection or the session is lost."""
        loop, ensemble = asyncio.get_running_loop(), self._ensemble
        answer: asyncio.Future[Result] = loop.create_future()
        if not self.connected or self._closed:
            await asyncio.sleep(ensemble.delay())
            raise lost
        self._asked[answer] = lost
        session, connection = self._session, self._connections

        def arrives() -> None:
            if connection != self._connections and ensemble.random.random() < 0.5:
                return  # it was under way when the connection was lost
            if ensemble.loss and ensemble.random.random() < ensemble.loss:
                is_carried_out = ensemble.random.random() < 0.5
                if is_carried_out and ensemble.hear(session, self.session_timeout):
                    with contextlib.suppress(StoreError):
                        ask()
                self._breaks(loop)
                return
            try:
                outcome: Result | Exception = ask() if ensemble.hear(session, self.session_timeout) else lost
            except StoreError as error:
                outcome = error
            self._back = max(self._back, loop.time() + ensemble.delay())
            loop.call_at(self._back, answers, outcome, context=Context())

        def answers(outcome: Result | Exception) -> None:
            if connection != self._connections or answer.done():
                return
            self._asked.pop(answer, None)
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self._there = max(self._there, loop.time() + ensemble.delay())
        loop.call_at(self._there, arrives, context=Context())
        try:
            return await answer
        finally:
            self._asked.pop(answer, None)

    def _breaks(self, loop: asyncio.AbstractEventLoop) -> None:
        """Break the connection; the next one follows a little later, with the same session."""
        self.connected = False
        self.disconnected()
        connection = self._connections

        def again() -> None:
            if connection == self._connections:
                self._ensemble.heal(self)

        loop.call_later(0.01 + self._ensemble.delay(), again, context=Context())

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self.session_timeout / BEATS_PER_SESSION)
            try:
                await self._beat()
            except StoreUnavailableError:
                self.reconnected()  # unless it is cut off: then the lease ends by time

    async def _beat(self) -> None:
        session, sent = self._session, self._ensemble.clock.monotonic()
        await self._read(lambda: None)
        if session == self._session:
            self._lease_end = max(self._lease_end, sent + LEASE_OF_SESSION * self.session_timeout)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _check_path(path: str) -> None:
    if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path:
        raise StoreError(f"{path!r} is not a node path: it must be absolute, without empty parts")
