"""The coordination store of one of several broker processes on a machine: a session with their coordinator.

- **The lease is that of our own clock**, as with ZooKeeper: the time when the last answered beat was sent, plus four
  fifths of the session's time. A process that stood still for longer leads nothing until it has registered again.
- **A session that the coordinator has ended** (it heard nothing for the session's time) is followed by another. Every
  watch is set again, and then called.
- **A closed connection** means that the coordinator's process has ended. There is no other coordinator to go to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from socket import socket
from typing import Any, Final, NoReturn

from headrace.broker.runtime.ports import (
    Clock,
    Node,
    StoreError,
    StoreOperation,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from headrace.broker.stores.embedded import check_path
from headrace.broker.stores.messages import (
    BEATS_PER_SESSION,
    LEASE_OF_SESSION,
    REFUSALS,
    REQUEST_BYTES_MAX,
    SESSION_OVER,
    SESSION_SECONDS,
    Answer,
    Beat,
    Begin,
    Call,
    Children,
    End,
    GetMany,
    Refusal,
    Request,
    Transact,
    Unwatch,
    Watch,
    decode_answer,
    decode_names,
    decode_nodes,
    decode_number,
    decode_path,
    frame,
    read_frame,
)

logger = logging.getLogger("headrace.coordinator")

NODES_PER_REQUEST: Final = 1000


class CoordinatedStore:
    """A CoordinationStore. `end` is this process's end of the pair. Call `open` before anything else."""

    def __init__(
        self,
        end: socket,
        *,
        clock: Clock,
        session_seconds: float = SESSION_SECONDS,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost` is called when the coordinator's process has ended."""
        self._end = end
        self._clock = clock
        self._session_seconds = session_seconds
        self._on_lost = on_lost
        self._session = 0
        self._changes = 0
        self._lease_end = -math.inf
        self._watches: dict[str, list[Callable[[], None]]] = {}
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._number = 0
        self._writer: asyncio.StreamWriter
        self._tasks: list[asyncio.Task[None]] = []
        self._renewal: asyncio.Task[None] | None = None
        self._is_lost = False
        self._closed = False

    async def open(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._end)
        self._tasks.append(asyncio.create_task(self._read(reader), name="answers of the coordinator"))
        await self._begin()
        self._tasks.append(asyncio.create_task(self._keep_beating(), name="lease of the coordinator"))

    @property
    def session(self) -> int:
        return self._session

    @property
    def changes(self) -> int:
        return self._changes

    def lease_end(self) -> float:
        return self._lease_end

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        check_path(path)
        callbacks = self._watches.setdefault(path, [])
        callbacks.append(callback)
        if len(callbacks) == 1:
            self._send(Watch(path))
        return partial(self._unwatch, path, callback)

    def _unwatch(self, path: str, callback: Callable[[], None]) -> None:
        callbacks = self._watches[path]
        callbacks.remove(callback)
        if not callbacks:
            del self._watches[path]
            self._send(Unwatch(path))

    async def get(self, path: str) -> Node | None:
        (node,) = await self.get_many([path])
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            check_path(path)
        found: list[Node | None] = []
        for first in range(0, len(paths), NODES_PER_REQUEST):
            some = tuple(paths[first : first + NODES_PER_REQUEST])
            found += decode_nodes(await self._ask(GetMany(some)))
        return found

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return decode_names(await self._ask(Children(path)))

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        for operation in operations:
            check_path(operation.path)
        return decode_names(await self._ask(Transact(tuple(operations))))

    async def close(self) -> None:
        """End the session: its ephemeral nodes are gone afterwards."""
        if self._closed or not self._tasks:
            return
        self._closed = True
        self._lease_end = -math.inf
        with contextlib.suppress(StoreError, StoreOutcomeUnknownError):
            await self._ask(End())
        tasks = [*self._tasks, *filter(None, [self._renewal])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writer.close()

    # -- the session -------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        sent = self._clock.monotonic()
        self._session = decode_number(await self._ask(Begin()))
        self._extend(sent)

    def _extend(self, sent: float) -> None:
        """Extend the lease by an answer to what was sent then."""
        self._lease_end = sent + LEASE_OF_SESSION * self._session_seconds

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._session_seconds / BEATS_PER_SESSION)
            session, sent = self._session, self._clock.monotonic()
            try:
                await self._ask(Beat())
            except StoreUnavailableError:
                continue  # the lease ends by itself
            except Exception:
                logger.exception("the lease of the coordinator is not renewed; the next attempt follows")
                continue
            if session == self._session:
                self._extend(sent)

    def _ended(self, session: int) -> None:
        """Begin another session in the background, once, unless there is another one already."""
        if session == self._session and self._renewal is None and not self._closed:
            self._renewal = asyncio.create_task(self._begin_again(), name="another session")
            self._renewal.add_done_callback(self._renewed)

    async def _begin_again(self) -> None:
        logger.warning("the coordinator has ended this broker's session; another one begins")
        await self._begin()
        for path in self._watches:
            self._send(Watch(path))
        for path, callbacks in tuple(self._watches.items()):
            self._tell(path, callbacks)

    def _renewed(self, renewal: asyncio.Task[None]) -> None:
        """If it failed, the next beat is refused, and begins the next renewal."""
        self._renewal = None
        if not renewal.cancelled() and (error := renewal.exception()) is not None:
            logger.warning("no session has begun: %s", error)

    # -- requests and answers ----------------------------------------------------------------------------------

    async def _ask(self, call: Call) -> Any:
        """Return the result of a request. Raises StoreError, and StoreOutcomeUnknownError for a transaction."""
        is_change = isinstance(call, Transact)
        lost = StoreOutcomeUnknownError if is_change else StoreUnavailableError
        if self._is_lost:
            raise StoreUnavailableError("the coordinator is lost")
        number, answer = self._send(call), asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(self._session_seconds):
                answered = await answer
        except TimeoutError:
            raise lost("the coordinator does not answer") from None
        except ConnectionError:
            raise lost("the coordinator was lost during a request") from None
        finally:
            self._asked.pop(number, None)
        if answered.refusal is not None:
            self._refused(answered.refusal, lost)
        return answered.result

    def _refused(self, refusal: Refusal, lost: Callable[[str], Exception]) -> NoReturn:
        if refusal.kind == SESSION_OVER:
            self._ended(int(refusal.message))
            raise StoreUnavailableError("the session with the coordinator is over")
        if refusal.kind in REFUSALS:
            raise REFUSALS[refusal.kind](refusal.message)
        raise lost(f"the coordinator failed: {refusal.message}")

    def _send(self, call: Call) -> int:
        """Send a request and return its number. Raises StoreError for one that is too long."""
        self._number += 1
        data = frame(Request(self._number, self._session, call))
        if len(data) > REQUEST_BYTES_MAX:
            raise StoreError(f"a request of {len(data):,} bytes exceeds the limit of {REQUEST_BYTES_MAX:,}")
        if not self._writer.is_closing():
            self._writer.write(data)
        return self._number

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand on answers until the connection ends, or until one cannot be read."""
        try:
            await self._read_answers(reader)
        except Exception:
            logger.exception("an answer of the coordinator cannot be read")
        self._is_lost = True
        self._lease_end = -math.inf
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ConnectionResetError())
        if not self._closed:
            self._on_lost()

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        while (data := await read_frame(reader)) is not None:
            answer = decode_answer(data)
            if answer.number == 0:
                path = decode_path(answer.result)
                self._tell(path, self._watches.get(path, []))
                continue
            self._changes = max(self._changes, answer.changes)
            asked = self._asked.get(answer.number)
            if asked is not None and not asked.done():
                asked.set_result(answer)
            elif answer.refusal is not None and answer.refusal.kind == SESSION_OVER:
                self._ended(int(answer.refusal.message))  # the answer to a watch: no request waits for it

    def _tell(self, path: str, callbacks: list[Callable[[], None]]) -> None:
        for callback in tuple(callbacks):
            try:
                callback()
            except Exception:
                logger.exception("a watch of %s failed", path)
