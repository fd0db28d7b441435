"""One connection to one broker: frames, correlation ids, pipelining, version negotiation.

The protocol object owns the socket's bytes. Small frames are cut out of a scratch buffer. A frame larger than what has
arrived gets a buffer of its own size, and the rest is received straight into it, so the records of a scan are not
copied. Answers are matched by correlation id. Every wait has a deadline. When one passes, the connection is closed,
because the answers behind a late one on the same connection would be late too.

If `Access` says so, the stream is TLS and the client authenticates before any other request, and again before its
session ends (KIP-368). Requests wait meanwhile.

A connection is for one event loop and is not used after a failure; `tablelayer.client.wire.cluster` makes a new one.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from headrace.protocol.errors import DecodeError, ErrorCode
from headrace.protocol.headers import (
    MAX_FRAME_SIZE,
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.protocol.schema import ApiMessage
from headrace.protocol.security.sasl import SaslClient, SaslError
from headrace.tablelayer.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    OutcomeUnknown,
    RequestTimeout,
    UnsupportedRequest,
)
from headrace.tablelayer.client.metrics import Counters
from headrace.tablelayer.client.security.access import Access

ResponseT = TypeVar("ResponseT", bound=ApiMessage)

_SCRATCH_SIZE = 64 << 10
_FIRST_TABLE_KEY = 10_000
_NEWEST_BY_NAME = {
    8: 9,
    9: 9,
}  # OffsetCommit and OffsetFetch 10 name topics by id, committed positions by name
_OPEN = Access("PLAINTEXT")
_SESSION_USED = (0.85, 0.95)
"""Part of a session's lifetime after which a client authenticates again. It is random, as in Kafka, so that clients
which connected at the same time do not authenticate again at the same time.
"""


class _Frames(asyncio.BufferedProtocol):
    """Cuts the byte stream into frames and gives each to `on_frame`. Calls `on_lost` once when it ends."""

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
                self._on_lost(
                    DecodeError(f"the size of an answer is {size} bytes: it must be 4 to {MAX_FRAME_SIZE}")
                )
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
    """A negotiated connection, made by `BrokerConnection.open`."""

    def __init__(
        self, host: str, port: int, client_id: str, counters: Counters, access: Access = _OPEN
    ) -> None:
        self._counters = counters
        self._access = access
        self._authenticating = asyncio.Lock()
        self._session_ends_at: float | None = None
        self._throttled_until = 0.0
        self.has_answered = False
        """Whether any request has been answered that an unauthenticated client may not send."""
        self.is_given_up = False
        """Whether this client closed it because another broker says that the broker left the cluster."""
        self._heard_at = 0.0
        """The time of the last answer, or the time since when the first request waits."""
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
        access: Access = _OPEN,
        is_told: bool = False,
    ) -> BrokerConnection:
        """Connect, learn which requests and versions the broker offers, and authenticate.

        `is_told` says that a server named the address, not the user. Raises ConnectionFailed if no server answers, or
        the server is not a broker; AuthenticationFailed if one side does not accept the other; SettingsError for TLS
        files that cannot be used.
        """
        self = cls(host, port, client_id, counters or Counters(), access)
        loop = asyncio.get_running_loop()
        context = None if access.tls is None else access.tls.context()
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                transport, frames = await loop.create_connection(
                    lambda: _Frames(self._received, self._lost), host, port, ssl=context
                )
        except TimeoutError:
            what = "a connection" if context is None else "a connection with TLS"
            raise ConnectionFailed(
                f"{host}:{port} did not accept {what} within {connect_timeout_ms} ms"
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(
                f"the certificate of {host}:{port} is not trusted ({error.verify_message}): name the trusted"
                " certificates with ssl.ca.location"
            ) from None
        except ssl.SSLError as error:
            raise AuthenticationFailed(
                f"no TLS with {host}:{port}: {_reason(error)}. Check that the listener has TLS, and"
                " whether it requires a client certificate"
            ) from None
        except OSError as error:
            if isinstance(error, ConnectionResetError) and context is not None:
                raise ConnectionFailed(
                    f"{host}:{port} closed the connection in the TLS handshake: check that it is a TLS listener"
                ) from None
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            hint = (
                "The server advertises this address (advertised.listeners): check that it can be reached from"
                " here and that the server is running"
                if is_told
                else "Check that the server is running"
            )
            raise ConnectionFailed(f"cannot connect to {host}:{port}: {reason}. {hint}") from None
        self._transport, self._frames = transport, frames
        try:
            timeout_ms = min(request_timeout_ms, max(connect_timeout_ms, 1_000))
            await self._negotiate(timeout_ms)
            await self._authenticate(timeout_ms)
        except BaseException as error:
            self.close()
            if isinstance(error, (DecodeError, OutcomeUnknown)):
                cause = error.__cause__
                if isinstance(
                    cause, ssl.SSLError
                ):  # TLS 1.3 reports a missing certificate after the handshake
                    raise AuthenticationFailed(
                        f"{host}:{port} closed TLS: {_reason(cause)}. It may require a client certificate"
                    ) from None
                hint = (
                    "requires TLS: security.protocol" if context is None else "requires a client certificate"
                )
                if isinstance(error, RequestTimeout):
                    raise ConnectionFailed(
                        f"{host}:{port} accepted the connection, but did not answer within {timeout_ms} ms: it hangs"
                        f" or is very busy, is not a Kafka broker, or {hint}"
                    ) from error
                if isinstance(error, ConnectionLost) and not isinstance(cause, DecodeError):
                    raise ConnectionFailed(
                        f"{host}:{port} closed the connection before it answered: it has no room for more (its log"
                        f" names max.connections or open files), is not a Kafka broker, or {hint}"
                    ) from error
                raise ConnectionFailed(
                    f"{host}:{port} does not answer like a Kafka broker, or {hint}: {error}"
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

    async def _authenticate(self, timeout_ms: int) -> None:
        """Carry out one SASL exchange if the settings name a mechanism. Raises AuthenticationFailed."""
        if self._access.begin is None:
            return
        loop = asyncio.get_running_loop()
        client = await asyncio.to_thread(self._access.begin)
        handshake = await self._ask(
            SaslHandshakeRequest(mechanism=client.mechanism), SaslHandshakeResponse, timeout_ms
        )
        if handshake.error_code != ErrorCode.NONE:
            offered = ", ".join(handshake.mechanisms) or "none"
            raise AuthenticationFailed(
                f"{self.host}:{self.port} does not support {client.mechanism}: use one that it offers: {offered}"
            )
        try:
            said: bytes | None = client.first()
            while said is not None:
                began = loop.time()
                answer = await self._ask(
                    SaslAuthenticateRequest(auth_bytes=said), SaslAuthenticateResponse, timeout_ms
                )
                if answer.error_code != ErrorCode.NONE:
                    raise self._refused(client, answer)
                said = await asyncio.to_thread(
                    client.answer, answer.auth_bytes
                )  # hashing a password takes long
        except SaslError as error:
            raise AuthenticationFailed(
                f"{self.host}:{self.port} failed the authentication by {client.mechanism}: {error}"
            ) from None
        lifetime_s = answer.session_lifetime_ms / 1000
        self._session_ends_at = (
            began + lifetime_s * random.uniform(*_SESSION_USED) if lifetime_s > 0 else None
        )

    def _refused(self, client: SaslClient, answer: SaslAuthenticateResponse) -> ClientError:
        code = ErrorCode(answer.error_code)
        why = answer.error_message or code.name
        text = f"{self.host}:{self.port} refused user {client.user} by {client.mechanism}: {why}"
        return ConnectionFailed(text) if code.retriable else AuthenticationFailed(text)

    async def _still_known(self, timeout_ms: int) -> None:
        """Authenticate again if the session ends soon, or wait until another request has done it."""
        if self._session_ends_at is None:
            return
        now = asyncio.get_running_loop().time
        if now() < self._session_ends_at and not self._authenticating.locked():
            return
        async with self._authenticating:
            if self._session_ends_at is not None and now() >= self._session_ends_at and not self.is_closed:
                try:
                    await self._authenticate(timeout_ms)
                except BaseException as error:
                    self._fail(
                        error
                        if isinstance(error, Exception)
                        else ConnectionFailed("the authentication was cancelled")
                    )
                    if isinstance(error, OutcomeUnknown):
                        raise ConnectionFailed(
                            f"{self.host}:{self.port} was lost while authenticating again: {error}"
                        ) from error
                    raise

    @staticmethod
    def _decode_api_versions(frame: memoryview, version: int) -> ApiVersionsResponse:
        # The error code is the first field in every version. A broker that does not know our version answers
        # in version 0.
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

    def silent_seconds(self, now: float) -> float:
        """Return the seconds since the last answer while requests wait, cancelled ones included; 0 without any."""
        return now - self._heard_at if self._waiting else 0.0

    def offers(self, request: type[ApiMessage]) -> bool:
        """Return whether the broker offers this request in a version that both sides support."""
        theirs = self._ranges.get(request.API_KEY)
        return theirs is not None and max(theirs[0], request.MIN_VERSION) <= min(
            theirs[1], request.MAX_VERSION
        )

    def version_for(self, request: type[ApiMessage]) -> int:
        """Return the highest version that both sides support. Raises UnsupportedRequest, with both ranges."""
        theirs = self._ranges.get(request.API_KEY)
        if theirs is None:
            if request.API_KEY >= _FIRST_TABLE_KEY:
                raise UnsupportedRequest(
                    f"{self.host}:{self.port} is a Kafka broker without tables: "
                    f"it does not support {request.__name__}"
                )
            raise UnsupportedRequest(f"{self.host}:{self.port} does not offer {request.__name__}")
        newest = _NEWEST_BY_NAME.get(request.API_KEY, request.MAX_VERSION)
        lowest, highest = max(theirs[0], request.MIN_VERSION), min(theirs[1], newest)
        if lowest > highest:
            raise UnsupportedRequest(
                f"{self.host}:{self.port} supports {request.__name__} {theirs[0]} to {theirs[1]}, "
                f"this client {request.MIN_VERSION} to {newest}"
            )
        return highest

    async def request(self, message: ApiMessage, response: type[ResponseT], *, timeout_ms: int) -> ResponseT:
        """Send a request and wait for its answer. Any number may be in flight.

        Raises UnsupportedRequest and ConnectionFailed if nothing was sent. Raises OutcomeUnknown if it was sent, and
        closes the connection: ConnectionLost, RequestTimeout, or OutcomeUnknown itself for a malformed answer.
        """
        now = asyncio.get_running_loop().time
        if now() < self._throttled_until:
            # The server does not read before that time, so the timeout of the answer begins then.
            await asyncio.sleep(min(self._throttled_until - now(), timeout_ms / 1000))
        await self._still_known(timeout_ms)
        answer = await self._ask(message, response, timeout_ms)
        self.has_answered = True
        throttled_ms = getattr(answer, "throttle_time_ms", 0)
        if throttled_ms > 0:
            self._throttled_until = max(self._throttled_until, now() + throttled_ms / 1000)
        return answer

    async def _ask(self, message: ApiMessage, response: type[ResponseT], timeout_ms: int) -> ResponseT:
        version = self.version_for(type(message))
        frame = await self._exchange(message, version, timeout_ms)
        try:
            _, offset = decode_response_header(frame, response.header_version(version))
            return response.decode(frame[offset:], version)
        except DecodeError as error:
            self._fail(error)
            raise OutcomeUnknown(
                f"{self.host}:{self.port} answered {type(message).__name__} with a malformed message: {error}"
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
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        if not self._waiting:
            self._heard_at = loop.time()
        self._waiting[correlation_id] = future
        self._transport.writelines([size.to_bytes(4, "big"), *parts])
        # A cancelled wait leaves its cancelled future here, so that the late answer is recognised and
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
                "a change may or may not have been carried out"
            )
            self._fail(error)
            raise error from None
        finally:
            self._counters.answered(kind.__name__, perf_counter() - began, size, received)

    def _received(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big")
        self._heard_at = asyncio.get_running_loop().time()
        future = self._waiting.pop(correlation_id, None)
        if future is None:
            self._fail(DecodeError(f"answer {correlation_id} does not belong to any request"))
        elif not future.done():
            future.set_result(frame)

    def _lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error else ""
        lost = ConnectionLost(f"the connection to {self.host}:{self.port} was lost{reason}")
        self._fail(error if isinstance(error, (ssl.SSLError, DecodeError)) else lost)

    def _fail(self, error: Exception) -> None:
        if self._closed_because is None:
            self._closed_because = error
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        unwelcome = (
            self._ranges and not self.has_answered and not self.is_given_up and self._access.begin is None
        )
        hint = ", the first on it: check whether the server requires authentication" if unwelcome else ""
        reason = f": {error}" if isinstance(error, DecodeError) else ""
        for future in waiting.values():
            if not future.done():
                lost = ConnectionLost(
                    f"the connection to {self.host}:{self.port} was lost before the answer came{hint}{reason}"
                )
                lost.__cause__ = error
                future.set_exception(lost)
                future.exception()  # the request may have been cancelled

    def give_up(self, why: str) -> None:
        """Fail as if the broker had closed the connection: waiting requests raise ConnectionLost."""
        self.is_given_up = True
        self._fail(ConnectionLost(f"the connection to {self.host}:{self.port} was abandoned: {why}"))

    def close(self) -> None:
        """Close at once. Waiting requests raise ConnectionLost."""
        self._fail(ConnectionFailed(f"the connection to {self.host}:{self.port} was closed"))


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in readable words."""
    return (error.reason or "it failed").replace("_", " ").lower()
