"""One connection to one broker: frames, correlation ids, pipelining, version negotiation.

The protocol object owns the socket's bytes. Small frames are cut out of a scratch buffer; a frame larger than what
has arrived gets a buffer of its own size and the rest of it is received straight into place, so the records of a scan
are copied by nobody. Answers are matched by correlation id. Every wait has a deadline: when one passes, the
connection is closed, because what is behind a late answer on the same connection would be late too.

A connection is for one event loop and is never reused after it has failed; `tablelayer.client.wire.cluster` makes
a new one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from protocol.errors import DecodeError, ErrorCode
from protocol.framing import MAX_FRAME_SIZE
from protocol.headers import RequestHeader, decode_response_header, encode_request_header
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.schema import ApiMessage
from tablelayer.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    OutcomeUnknown,
    RequestTimeout,
    UnsupportedRequest,
)
from tablelayer.client.metrics import Counters

ResponseT = TypeVar("ResponseT", bound=ApiMessage)

_SCRATCH_SIZE = 64 << 10
_FIRST_TABLE_KEY = 10_000
_NEWEST_BY_NAME = {
    8: 9,
    9: 9,
}  # OffsetCommit and OffsetFetch 10 know topics by id, positions know them by name


class _Frames(asyncio.BufferedProtocol):
    """Cuts the byte stream into frames and hands each to `on_frame`; tells `on_lost` once when the stream ends."""

    def __init__(
        self, on_frame: Callable[[memoryview], None], on_lost: Callable[[Exception | None], None]
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._scratch = bytearray(_SCRATCH_SIZE)
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._transport: asyncio.Transport | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._can_write.set()
        self._on_lost(exc)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    async def drained(self) -> None:
        await self._can_write.wait()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                frame, self._frame, self._frame_filled = self._frame, None, 0
                self._on_frame(frame)
            return
        self._filled += nbytes
        self._cut()

    def _cut(self) -> None:
        position = 0
        scratch = self._scratch
        while self._filled - position >= 4:
            size = int.from_bytes(scratch[position : position + 4], "big", signed=True)
            if not 4 <= size <= MAX_FRAME_SIZE:
                assert self._transport is not None
                self._transport.abort()
                return
            have = self._filled - position - 4
            if have < size:
                if size + 4 > _SCRATCH_SIZE:
                    frame = bytearray(size)
                    frame[:have] = scratch[position + 4 : self._filled]
                    self._frame, self._frame_filled = memoryview(frame), have
                    position = self._filled
                break
            self._on_frame(memoryview(bytes(scratch[position + 4 : position + 4 + size])))
            position += 4 + size
        if position:
            rest = self._filled - position
            scratch[:rest] = scratch[position : self._filled]
            self._filled = rest


class BrokerConnection:
    """A negotiated connection. Make one with `BrokerConnection.open`."""

    def __init__(self, host: str, port: int, client_id: str, counters: Counters) -> None:
        self._counters = counters
        self.host = host
        self.port = port
        self._client_id = client_id
        self._frames: _Frames | None = None
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._next_correlation_id = 0
        self._ranges: dict[int, tuple[int, int]] = {}
        self._closed_because: Exception | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        connect_timeout_ms: int,
        request_timeout_ms: int,
        counters: Counters | None = None,
    ) -> BrokerConnection:
        """Connect and learn which requests and versions the broker offers.

        Raises ConnectionFailed when nobody answers there, or what answers is not a broker.
        """
        self = cls(host, port, client_id, counters or Counters())
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                transport, frames = await loop.create_connection(
                    lambda: _Frames(self._received, self._lost), host, port
                )
        except TimeoutError:
            raise ConnectionFailed(
                f"{host}:{port} did not accept a connection within {connect_timeout_ms} ms"
            ) from None
        except OSError as error:
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else str(error)
            raise ConnectionFailed(
                f"cannot connect to {host}:{port}: {reason}. Is the server running there?"
            ) from None
        self._transport, self._frames = transport, frames
        try:
            await self._negotiate(min(request_timeout_ms, max(connect_timeout_ms, 1_000)))
        except BaseException as error:
            self.close()
            if isinstance(error, (DecodeError, OutcomeUnknown)):
                raise ConnectionFailed(
                    f"{host}:{port} does not answer like a Kafka broker: {error}"
                ) from error
            raise
        self._counters.connections_made += 1
        return self

    async def _negotiate(self, timeout_ms: int) -> None:
        version = min(3, ApiVersionsRequest.MAX_VERSION)
        request = ApiVersionsRequest(client_software_name="headrace-client", client_software_version="1")
        frame = await self._exchange(request, version, timeout_ms)
        response = self._decode_api_versions(frame, version)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = self._decode_api_versions(await self._exchange(ApiVersionsRequest(), 0, timeout_ms), 0)
        if response.error_code != ErrorCode.NONE:
            name = ErrorCode(response.error_code).name
            raise ConnectionFailed(f"{self.host}:{self.port} refused the version negotiation: {name}")
        self._ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}

    @staticmethod
    def _decode_api_versions(frame: memoryview, version: int) -> ApiVersionsResponse:
        # The error code is the first field in every version; a broker that does not know ours answers in
        # version 0.
        body = frame[4:]
        if int.from_bytes(body[:2], "big") == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
        return ApiVersionsResponse.decode(body, version)

    @property
    def is_closed(self) -> bool:
        return self._closed_because is not None or self._transport is None or self._transport.is_closing()

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def offers(self, request: type[ApiMessage]) -> bool:
        """Whether the broker offers this request in a version that both sides speak."""
        theirs = self._ranges.get(request.API_KEY)
        return theirs is not None and max(theirs[0], request.MIN_VERSION) <= min(
            theirs[1], request.MAX_VERSION
        )

    def version_for(self, request: type[ApiMessage]) -> int:
        """The highest version both sides speak. Raises UnsupportedRequest, saying which side lacks what."""
        theirs = self._ranges.get(request.API_KEY)
        if theirs is None:
            if request.API_KEY >= _FIRST_TABLE_KEY:
                raise UnsupportedRequest(
                    f"{self.host}:{self.port} is a Kafka broker without tables: "
                    f"it does not know {request.__name__}"
                )
            raise UnsupportedRequest(f"{self.host}:{self.port} does not offer {request.__name__}")
        newest = _NEWEST_BY_NAME.get(request.API_KEY, request.MAX_VERSION)
        lowest, highest = max(theirs[0], request.MIN_VERSION), min(theirs[1], newest)
        if lowest > highest:
            raise UnsupportedRequest(
                f"{self.host}:{self.port} speaks {request.__name__} {theirs[0]} to {theirs[1]}, "
                f"this client {request.MIN_VERSION} to {newest}"
            )
        return highest

    async def request(self, message: ApiMessage, response: type[ResponseT], *, timeout_ms: int) -> ResponseT:
        """Send a request and wait for its answer; any number may be in flight.

        Raises UnsupportedRequest (nothing sent), ConnectionFailed (nothing sent), OutcomeUnknown (sent; the connection
        is closed): ConnectionLost, RequestTimeout, or itself for an answer that makes no sense.
        """
        version = self.version_for(type(message))
        frame = await self._exchange(message, version, timeout_ms)
        try:
            _, offset = decode_response_header(frame, response.header_version(version))
            return response.decode(frame[offset:], version)
        except DecodeError as error:
            self._fail(error)
            raise OutcomeUnknown(
                f"{self.host}:{self.port} answered {type(message).__name__} with what makes no sense: {error}"
            ) from error

    async def _exchange(self, message: ApiMessage, version: int, timeout_ms: int) -> memoryview:
        if self.is_closed or self._transport is None or self._frames is None:
            raise ConnectionFailed(
                f"the connection to {self.host}:{self.port} is closed"
            ) from self._closed_because
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        kind = type(message)
        header = encode_request_header(
            RequestHeader(kind.API_KEY, version, correlation_id, self._client_id),
            kind.header_version(version),
        )
        parts = [header, *message.encode_parts(version)]
        size = sum(len(part) for part in parts)
        began, received = perf_counter(), None
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        self._transport.writelines([size.to_bytes(4, "big"), *parts])
        # A cancelled wait leaves its future here, cancelled, so that the late answer is recognised and
        # dropped.
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._frames.drained()
                frame = await future
                received = len(frame)
                return frame
        except TimeoutError:
            future.cancel()
            error = RequestTimeout(
                f"{self.host}:{self.port} did not answer {kind.__name__} within {timeout_ms} ms; "
                "if it changes something, whether it was carried out is not known"
            )
            self._fail(error)
            raise error from None
        finally:
            self._counters.answered(kind.__name__, perf_counter() - began, size, received)

    def _received(self, frame: memoryview) -> None:
        future = self._waiting.pop(int.from_bytes(frame[:4], "big"), None)
        if future is None:
            self._fail(DecodeError("an answer that belongs to no request"))
        elif not future.done():
            future.set_result(frame)

    def _lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error else ""
        self._fail(ConnectionLost(f"the connection to {self.host}:{self.port} was lost{reason}"))

    def _fail(self, error: Exception) -> None:
        if self._closed_because is None:
            self._closed_because = error
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                lost = ConnectionLost(
                    f"the connection to {self.host}:{self.port} was lost before the answer came"
                )
                lost.__cause__ = error
                future.set_exception(lost)

    def close(self) -> None:
        """Close at once. Waiting requests fail with ConnectionLost."""
        self._fail(ConnectionFailed(f"the connection to {self.host}:{self.port} was closed"))
