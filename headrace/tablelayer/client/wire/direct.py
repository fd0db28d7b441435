"""Small reads in the caller's own thread, on a connection that no other thread uses meanwhile.

The blocking client hands a call to the thread of its event loop and waits for it, and the loop runs five times for a
request. That takes most of a lookup's time. So a small read is first tried here, with the same code: its coroutine is
run to its end without a loop (`at_once`), because `DirectCluster` returns only with an answer.

Any other wait raises NotAtOnce, and the call is repeated in the loop, which handles retries, routes and errors.
Examples are an unknown leader, a connection that is missing or closed, an answer that is late or malformed, and a pause
before another attempt. So only requests that change nothing are sent here.

Connections with TLS or authentication are used by the loop only. May be used from any thread.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Any, Final, TypeVar

from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import (
    MAX_FRAME_SIZE,
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.security.settings import ConnectionSettings
from headrace.tablelayer.client.wire.cluster import CONTROL, Cluster, NotAtOnce, TopicRoutes
from headrace.tablelayer.client.wire.connection import BrokerConnection
from headrace.tablelayer.client.wire.retry import Deadline
from headrace.tablelayer.client.wire.silence import SILENCE_SECONDS
from headrace.tablelayer.model.messages.read import LimitScanRequest, LookupRequest, PrefixLookupRequest

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=ApiMessage)

_READS: Final = (LookupRequest, PrefixLookupRequest, LimitScanRequest)
_LINES_MAX: Final = 8
"""Connections of one client besides those of its loop. Further threads read through the loop."""
_PAUSE_SECONDS: Final = 1.0
"""Time for which only the loop is used after a connection failed or was lost."""
_SCRATCH_SIZE: Final = 64 << 10


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that does not wait. Raises its errors, and NotAtOnce if it waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coroutine.close()
    raise NotAtOnce


class _Line:
    """A connection to the same broker as one of the loop's connections, with the same request versions."""

    def __init__(self, beside: BrokerConnection, connect_timeout_ms: int) -> None:
        """Connect. Raises OSError."""
        self.beside = beside
        self._socket = socket.create_connection((beside.host, beside.port), connect_timeout_ms / 1000)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._scratch = bytearray(_SCRATCH_SIZE)
        self._next_correlation_id = 0

    def exchange(
        self, message: ApiMessage, response: type[ResponseT], client_id: str, timeout_ms: int
    ) -> tuple[ResponseT, int, int]:
        """Send a request; return (answer, bytes sent, bytes received). Raises OSError, DecodeError."""
        kind = type(message)
        version = self.beside.version_for(kind)
        self._next_correlation_id = correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        header = RequestHeader(kind.API_KEY, version, correlation_id, client_id)
        body = b"".join(
            [encode_request_header(header, kind.header_version(version)), *message.encode_parts(version)]
        )
        self._socket.settimeout(timeout_ms / 1000)
        self._socket.sendall(len(body).to_bytes(4, "big") + body)
        frame = self._receive()
        found, offset = decode_response_header(frame, response.header_version(version))
        if found != correlation_id:
            raise DecodeError(f"request {correlation_id} got answer {found}")
        return response.decode(frame[offset:], version), len(body), len(frame)

    def _receive(self) -> memoryview:
        scratch = memoryview(self._scratch)
        filled = self._more(scratch)
        while filled < 4:
            filled += self._more(scratch[filled:])
        size = int.from_bytes(scratch[:4], "big", signed=True)
        if not 4 <= size <= MAX_FRAME_SIZE or filled > size + 4:
            raise DecodeError(f"the size of an answer is {size} bytes, but {filled} came")
        frame = bytearray(size)
        frame[: filled - 4] = scratch[4:filled]
        rest = memoryview(frame)[filled - 4 :]
        while len(rest):
            rest = rest[self._more(rest) :]
        return memoryview(frame)

    def _more(self, into: memoryview) -> int:
        count = self._socket.recv_into(into)
        if not count:
            raise ConnectionResetError("the connection was closed")
        return count

    def end(self) -> None:
        """End the connection: a thread that waits for an answer gets an error."""
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class DirectCluster(Cluster):
    """A cluster for small reads without a loop; `behind` is the loop's cluster, which has the routes."""

    waits = False

    def __init__(self, settings: ConnectionSettings, config: ClientConfig, behind: Cluster) -> None:
        super().__init__(settings, config)
        self.counters = behind.counters
        self._behind = behind
        self._spread = behind._spread
        self._lock = threading.Lock()
        self._idle: list[_Line] = []
        self._lines: set[_Line] = set()
        self._being_made = 0
        self._not_before = 0.0

    @property
    def is_possible(self) -> bool:
        """Whether connections have neither authentication nor TLS."""
        return self._access.tls is None and self._access.begin is None

    @property
    def connection_count(self) -> int:
        return len(self._lines)

    def close(self) -> None:
        """End all requests. Waiting threads continue in the loop, which raises the error."""
        with self._lock:
            self._closed = True
            for line in self._lines:
                line.end()
            for line in self._idle:
                self._lines.discard(line)
                line.close()
            self._idle.clear()

    async def connection(self, node_id: int | None, channel: str = CONTROL) -> BrokerConnection:
        raise NotAtOnce

    async def routes(self, topic: str, deadline: Deadline) -> TopicRoutes:
        routes = self._behind.known_routes(topic)
        if routes is None:
            raise NotAtOnce
        return routes

    async def fresh_routes(self, topic: str, deadline: Deadline) -> TopicRoutes:
        raise NotAtOnce

    def forget_routes(self, topic: str) -> None:
        self._behind.forget_routes(topic)

    async def replicas(self, topic: str, partition: int, deadline: Deadline) -> tuple[list[int], int]:
        self._brokers, self._racks, self._silent = (
            self._behind._brokers,
            self._behind._racks,
            self._behind._silent,
        )
        return await super().replicas(topic, partition, deadline)

    async def by_leader(
        self, topic: str, partitions: Sequence[int], deadline: Deadline
    ) -> dict[int, list[int]]:
        groups = await super().by_leader(topic, partitions, deadline)
        if len(groups) > 1:
            raise NotAtOnce  # the loop asks several leaders at the same time
        return groups

    async def send(
        self,
        message: ApiMessage,
        response: type[ResponseT],
        *,
        node_id: int | None = None,
        channel: str = CONTROL,
        deadline: Deadline,
        extra_wait_ms: int = 0,
    ) -> ResponseT:
        if node_id is None or channel != CONTROL or not isinstance(message, _READS):
            raise NotAtOnce
        line = self._take(self._behind.connected(node_id))
        timeout_ms = min(self.config.request_timeout_ms, max(deadline.remaining_ms, 1))
        if self._behind.has_several:  # the loop finds out whether the leader has changed
            timeout_ms = min(timeout_ms, int(SILENCE_SECONDS * 1000))
        began = perf_counter()
        try:
            answer, sent, received = line.exchange(message, response, self.config.client_id, timeout_ms)
        except (OSError, DecodeError):
            self._drop(line)
            self._not_before = monotonic() + _PAUSE_SECONDS
            raise NotAtOnce from None
        except BaseException:  # an answer may still come
            self._drop(line)
            raise
        self.counters.answered(type(message).__name__, perf_counter() - began, sent + 4, received)
        self._give_back(line)
        throttled_ms = getattr(answer, "throttle_time_ms", 0)
        if throttled_ms > 0:
            self._not_before = monotonic() + throttled_ms / 1000
        return answer

    def _take(self, beside: BrokerConnection | None) -> _Line:
        if beside is None or self._closed or monotonic() < self._not_before:
            raise NotAtOnce
        with self._lock:
            old = [line for line in self._idle if line.beside.is_closed]
            self._idle = [line for line in self._idle if not line.beside.is_closed]
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].beside is beside:
                    return self._idle.pop(index)
            is_full = len(self._lines) - len(old) + self._being_made >= _LINES_MAX
            self._being_made += not is_full
        for line in old:
            self._drop(line)
        if is_full:
            raise NotAtOnce
        return self._make(beside)

    def _make(self, beside: BrokerConnection) -> _Line:
        line = None
        try:
            line = _Line(beside, self.config.connect_timeout_ms)
        except OSError:
            self._not_before = monotonic() + _PAUSE_SECONDS
            raise NotAtOnce from None
        finally:
            with self._lock:
                self._being_made -= 1
                if line is not None:
                    self._lines.add(line)
        self.counters.connections_made += 1
        if self._closed:
            self._drop(line)
            raise NotAtOnce
        return line

    def _give_back(self, line: _Line) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(line)
                return
        self._drop(line)

    def _drop(self, line: _Line) -> None:
        with self._lock:
            self._lines.discard(line)
        line.close()
