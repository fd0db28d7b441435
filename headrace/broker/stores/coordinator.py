"""The coordinator of the broker processes of one server: sessions over one embedded store.

Each process has one end of a pair of connected sockets, and one session. Its session ends when its end of the pair is
closed, as by any end of the process, or when it has been silent for the session's time. The pair has no name, so no
other process can connect.

Silence is counted in ticks of the coordinator's own loop. If the coordinator stood still, only one tick has passed, and
the requests that arrived meanwhile are read before the next. A process's lease (`coordinated.py`) ends earlier than the
shortest silence that ends its session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from socket import socket
from typing import Any, Final

from headrace.broker.runtime.ports import StoreError, StoreUnavailableError
from headrace.broker.stores.embedded import OWN_SESSION, EmbeddedStore
from headrace.broker.stores.messages import (
    BEATS_PER_SESSION,
    REFUSALS,
    REQUEST_BYTES_MAX,
    SESSION_OVER,
    SESSION_SECONDS,
    Answer,
    Beat,
    Begin,
    Children,
    End,
    GetMany,
    Refusal,
    Request,
    Transact,
    Unwatch,
    Watch,
    decode_request,
    frame,
    raw,
    read_frame,
)
from headrace.protocol.errors import KafkaError

logger = logging.getLogger("headrace.coordinator")

REQUESTS_MAX: Final = 256
"""Number of requests of a process that are carried out at a time; others wait in its socket."""
_AGAIN_SECONDS: Final = 1.0


class Coordinator:
    """Serves an open store, which its owner closes."""

    def __init__(self, store: EmbeddedStore, *, session_seconds: float = SESSION_SECONDS) -> None:
        self.store = store
        self.session_seconds = session_seconds
        self.changes = 0
        """Number of transactions that have been carried out."""
        self._last_session = OWN_SESSION

    def new_session(self) -> int:
        self._last_session += 1
        return self._last_session

    async def serve(self, end: socket) -> None:
        """Serve a process at this end of its pair, until the process closes the other one. Closes the end."""
        reader, writer = await asyncio.open_connection(sock=end)
        connection = _Connection(self, writer)
        silence = asyncio.create_task(connection.count_silence(), name="silence of a process")
        try:
            await connection.serve(reader)
        except ValueError as error:  # msgspec's errors, too
            logger.error("a process sent what is not a request: %s", error)
        finally:
            silence.cancel()
            await asyncio.gather(silence, return_exceptions=True)
            await connection.close()


class _Connection:
    """The session of one process, and its watches."""

    def __init__(self, coordinator: Coordinator, writer: asyncio.StreamWriter) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._writer = writer
        self._session = 0
        self._watches: dict[str, Callable[[], None]] = {}
        self._silent_ticks = 0
        self._requests: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        while (data := await read_frame(reader, REQUEST_BYTES_MAX)) is not None:
            self._silent_ticks = 0
            request = decode_request(data)
            if isinstance(request.call, Begin):
                await self._end()
                self._session = self._coordinator.new_session()
                self._answer(request, self._session)
            elif request.session != self._session:
                self._refuse_session(request)
            elif isinstance(request.call, Watch):
                self._watch(request.call.path)
                self._answer(request, None)
            elif isinstance(request.call, Unwatch):
                self._watches.pop(request.call.path, lambda: None)()
                self._answer(request, None)
            else:
                await self._start(request)

    async def _start(self, request: Request) -> None:
        """Begin to carry out a request. The store gets requests in the order of their arrival."""
        if len(self._requests) >= REQUESTS_MAX:
            await asyncio.wait(self._requests, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._carry_out(request))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _carry_out(self, request: Request) -> None:
        if request.session != self._session:  # it has ended while the request waited
            self._refuse_session(request)
            return
        try:
            result = await self._result(request)
        except StoreError as error:
            self._refuse(request, type(error).__name__, str(error))
        except KafkaError as error:  # a full disk: nothing was done
            self._refuse(request, StoreUnavailableError.__name__, error.message)
        except Exception as error:
            logger.exception("a request of a broker process failed")
            self._refuse(request, "", repr(error))
        else:
            self._answer(request, result)

    async def _result(self, request: Request) -> Any:
        call, store = request.call, self._store
        if isinstance(call, GetMany):
            return await store.get_many(call.paths)
        if isinstance(call, Children):
            return await store.children(call.path)
        if isinstance(call, Transact):
            paths = await store.transact_as(request.session, call.operations)
            self._coordinator.changes += 1
            return paths
        if isinstance(call, End):
            await self._end()
            return None
        if isinstance(call, Beat):
            return None
        raise TypeError(f"{call!r} is not a request for the store")

    def _watch(self, path: str) -> None:
        if path not in self._watches:
            event = frame(Answer(0, 0, raw(path)))
            self._watches[path] = self._store.watch(path, lambda: self._send(event))

    # -- the session -------------------------------------------------------------------------------------------

    async def count_silence(self) -> None:
        """End the session after silence, again and again until cancelled."""
        while True:
            await asyncio.sleep(self._coordinator.session_seconds / BEATS_PER_SESSION)
            self._silent_ticks += 1
            # One tick more: the first may have come directly after the last request.
            if self._silent_ticks > BEATS_PER_SESSION and self._session:
                logger.warning(
                    "a process was silent for %.0f s: its session is over", self._coordinator.session_seconds
                )
                await self._end()

    async def _end(self) -> None:
        """End the session, if there is one: its watches, and its ephemeral nodes when earlier requests are in the
        store.
        """
        session, self._session = self._session, 0
        for end in self._watches.values():
            end()
        self._watches.clear()
        while session:
            try:
                await self._store.end(session)
            except KafkaError as error:
                logger.error("a session cannot be ended: %s; it is tried again", error.message)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self._coordinator.changes += 1
                return

    async def close(self) -> None:
        if self._requests:
            await asyncio.wait(self._requests)
        await self._end()
        self._writer.close()

    # -- answers -----------------------------------------------------------------------------------------------

    def _answer(self, request: Request, result: Any) -> None:
        self._send(frame(Answer(request.number, self._coordinator.changes, raw(result))))

    def _refuse_session(self, request: Request) -> None:
        self._refuse(request, SESSION_OVER, str(request.session))

    def _refuse(self, request: Request, kind: str, message: str) -> None:
        assert kind in REFUSALS or kind in ("", SESSION_OVER)
        answer = Answer(request.number, self._coordinator.changes, raw(None), Refusal(kind, message))
        self._send(frame(answer))

    def _send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)
