"""SASL for listeners: authenticate connections, and pass requests of authenticated ones to the APIs.

Before that only ApiVersions is answered. After a session has expired, any request except a new authentication closes
the connection (KIP-368). A failed authentication is answered after `connection.failed.authentication.delay.ms`, which
slows down guessing, and then the connection is closed.

SaslHandshake (17) and SaslAuthenticate (36) are answered here. On listeners without authentication, or after it is
complete, they go to handlers that report it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final, NoReturn

from headrace.broker.net.faults import Fault
from headrace.broker.net.reply import Answer, Answerer, CloseConnection, Part, Peer, Pending
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.security.requirement import public
from headrace.broker.security.sasl.authentication import Authentication, Mechanism, Refusal, State
from headrace.protocol.budget import DecodeBudget
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.headers import decode_request_header, encode_response_header, peek_request
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.protocol.schema import ApiMessage

logger = logging.getLogger("headrace.security")

_HANDSHAKE: Final = SaslHandshakeRequest.API_KEY
_AUTHENTICATE: Final = SaslAuthenticateRequest.API_KEY
_API_VERSIONS: Final = 18
_KEY: Final = Struct(">h")
_MEMORY: Final = 16 << 10
"""Memory that decoding may allocate, in addition to the mechanism's bytes (at most the frame's size)."""


class SaslDoor:
    """An Answerer in front of another; see the module."""

    def __init__(
        self,
        inner: Answerer,
        mechanisms: Mapping[str, Mapping[str, Mechanism]],
        time: Callable[[], float],
        time_ms: Callable[[], int],
        delay_seconds: Callable[[], float],
    ) -> None:
        """`mechanisms`: by listener and name, in the order in which they are offered. `time`: the event loop's."""
        self.inner = inner
        self._mechanisms = mechanisms
        self._time = time
        self._time_ms = time_ms
        self._delay_seconds = delay_seconds

    def __call__(self, peer: Peer, frame: bytes | memoryview) -> Answer:
        authentication: Authentication | None = peer.authentication
        if authentication is None:
            mechanisms = self._mechanisms.get(peer.listener)
            if peer.session is not None or mechanisms is None:
                return self.inner(peer, frame)
            authentication = peer.authentication = Authentication(peer.listener, mechanisms)
        state = authentication.state
        if state is State.DONE:
            session = authentication.session
            if session is None or session.expires is None:
                return self.inner(peer, frame)
            now = self._time()
            if not (_key(frame) == _HANDSHAKE and authentication.may_begin(now)):
                if now >= session.expires:
                    raise CloseConnection(
                        "its session has expired and it did not authenticate again", fault=Fault.SESSION
                    )
                return self.inner(peer, frame)
        try:
            if state is State.RAW:
                return self._raw(peer, authentication, bytes(frame))
            return self._framed(peer, authentication, frame)
        except CloseConnection:
            raise
        except Exception:
            logger.exception("authentication on the listener %s failed with an internal error", peer.listener)
            raise CloseConnection("authentication failed: internal error", fault=Fault.SERVER) from None

    def _raw(self, peer: Peer, authentication: Authentication, message: bytes) -> Answer:
        try:
            challenge = authentication.raw(message, self._time(), self._time_ms())
        except Refusal as refusal:
            return self._refused(refusal, None)
        peer.session = authentication.session
        return [challenge]

    def _framed(self, peer: Peer, authentication: Authentication, frame: bytes | memoryview) -> Answer:
        key = _key(frame)
        if key == _API_VERSIONS and authentication.state is State.START:
            return self.inner(peer, frame)
        if key not in (_HANDSHAKE, _AUTHENTICATE):
            raise CloseConnection(f"API key {key} before authentication")
        request, version, correlation_id = _decoded(frame)
        now = self._time()
        response: SaslHandshakeResponse | SaslAuthenticateResponse
        try:
            if isinstance(request, SaslHandshakeRequest):
                response = authentication.handshake(request.mechanism, version, now)
            else:
                response = authentication.authenticate(bytes(request.auth_bytes), now, self._time_ms())
                peer.session = authentication.session
        except Refusal as refusal:
            answer = refusal.answer
            parts = None if answer is None else _encoded(answer, version, correlation_id)
            return self._refused(refusal, parts)
        return _encoded(response, version, correlation_id)

    def _refused(self, refusal: Refusal, answer: list[Part] | None) -> Pending:
        reason = str(refusal)  # and not the exception, which holds the frames of all its calls

        def hang_up(outcome: asyncio.Future[Any]) -> NoReturn:
            raise CloseConnection(reason, answer, Fault.AUTHENTICATION)

        return Pending(asyncio.sleep(self._delay_seconds()), hang_up, may_cancel=True)


class SaslApi:
    """The answers where authentication is not needed, or is complete."""

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(SaslHandshakeRequest, SaslHandshakeResponse, self.handshake, public()),
            ApiDeclaration(SaslAuthenticateRequest, SaslAuthenticateResponse, self.authenticate, public()),
        ]

    def handshake(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])

    def authenticate(
        self, context: RequestContext, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse:
        if context.session.mechanism not in ("", "SSL"):
            raise KafkaError(
                ErrorCode.ILLEGAL_SASL_STATE,
                "SaslAuthenticate request received after successful authentication",
            )
        raise KafkaError(
            ErrorCode.ILLEGAL_SASL_STATE,
            "connections are not authenticated here; use security.protocol=PLAINTEXT",
        )


def _key(frame: bytes | memoryview) -> int:
    if len(frame) < _KEY.size:
        raise CloseConnection("a request cannot be decoded: it ends before its API key")
    key: int = _KEY.unpack_from(frame)[0]
    return key


def _decoded(
    frame: bytes | memoryview,
) -> tuple[SaslHandshakeRequest | SaslAuthenticateRequest, int, int]:
    """Return the request, its version and its correlation id. Raises CloseConnection."""
    try:
        key, version, correlation_id = peek_request(frame)
        request: type[SaslHandshakeRequest | SaslAuthenticateRequest] = (
            SaslHandshakeRequest if key == _HANDSHAKE else SaslAuthenticateRequest
        )
        if not request.MIN_VERSION <= version <= request.MAX_VERSION:
            raise CloseConnection(f"version {version} of API key {key} is not supported")
        _, position = decode_request_header(frame, request.header_version(version))
        budget = DecodeBudget(len(frame) + _MEMORY)
        return request.decode(frame, version, budget, position, ignore_rest=True), version, correlation_id
    except DecodeError as error:
        raise CloseConnection(f"a request cannot be decoded: {error}") from None


def _encoded(response: ApiMessage, version: int, correlation_id: int) -> list[Part]:
    header = encode_response_header(correlation_id, response.header_version(version))
    return [header + b"".join(response.encode_parts(version))]
