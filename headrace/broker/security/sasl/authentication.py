"""The states of one connection's authentication: the message that each accepts, and the answer.

|| state | waits for | next state |
||---|---|---|
|| START | SaslHandshake | FRAMED (version 1), RAW (version 0), or refused: a mechanism that is not offered |
|| FRAMED | SaslAuthenticate | DONE, or refused |
|| RAW | a message of the mechanism, without any header (KIP-43) | DONE, or refused |
|| DONE | SaslHandshake, to authenticate again (KIP-368) | as from START, for the same principal and mechanism |

As Kafka's SaslServerAuthenticator. Pure: the time is a parameter, and `broker.api.sasl` sends its answers. A refused
client gets the answer that says so, if the protocol has one, and its connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NoReturn

import msgspec

from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.sasl.exchange import AuthenticationError, Exchange, Identity
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse

REAUTHENTICATION_SECONDS_MIN: Final = 1.0
"""Shortest time between the beginnings of two re-authentications of a connection, as in Kafka's KafkaChannel."""


class State(Enum):
    START = auto()
    FRAMED = auto()
    RAW = auto()
    DONE = auto()
    REFUSED = auto()


class Mechanism(msgspec.Struct, frozen=True):
    """A mechanism that a listener offers."""

    start: Callable[[], Exchange]
    """Return a new exchange."""
    session_ms_max: int = 0
    """`connections.max.reauth.ms`; 0: a session ends only with its credentials."""


class Refusal(Exception):  # noqa: N818 - an outcome of the exchange
    """The connection is over: `answer` is sent, then it is closed. The text is for the log."""

    def __init__(
        self, reason: str, answer: SaslHandshakeResponse | SaslAuthenticateResponse | None = None
    ) -> None:
        super().__init__(reason)
        self.answer = answer


class Authentication:
    """The authentication of one connection; see the module. After a Refusal it must not be used any more."""

    def __init__(self, listener: str, mechanisms: Mapping[str, Mechanism]) -> None:
        self.state = State.START
        self.session: Session | None = None
        """The latest session; it stays while its connection authenticates again."""
        self._listener = listener
        self._mechanisms = mechanisms
        self._mechanism = ""
        self._wanted = ""
        self._exchange: Exchange | None = None
        self._began_again: float | None = None

    def may_begin(self, now: float) -> bool:
        """Return whether a handshake may begin an authentication now. `now` is in seconds, as all times of sessions."""
        if self.state is State.START:
            return True
        if self.state is not State.DONE or self.session is None or self.session.expires is None:
            return False
        # The first authentication does not count: credentials may be changed or deleted right after it.
        return self._began_again is None or now - self._began_again >= REAUTHENTICATION_SECONDS_MIN

    def handshake(self, mechanism: str, version: int, now: float) -> SaslHandshakeResponse:
        """Answer a SaslHandshake. Raises Refusal."""
        offered = list(self._mechanisms)
        if not self.may_begin(now):
            self._refuse(
                "SaslHandshake during SASL authentication",
                SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered),
            )
        if mechanism not in self._mechanisms:
            self._refuse(
                f"the SASL mechanism {mechanism!r} is not one of {', '.join(offered)}",
                SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered),
            )
        if self.state is State.DONE:
            self._began_again = now
        self._wanted = mechanism
        self._exchange = self._mechanisms[mechanism].start()
        self.state = State.FRAMED if version >= 1 else State.RAW
        return SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=offered)

    def authenticate(self, message: bytes, now: float, now_ms: int) -> SaslAuthenticateResponse:
        """Return the answer to a SaslAuthenticate; afterwards `session` may be a new one. Raises Refusal."""
        if self.state is not State.FRAMED:
            self._refuse(
                "SaslAuthenticate without a SaslHandshake before it",
                SaslAuthenticateResponse(
                    error_code=ErrorCode.ILLEGAL_SASL_STATE,
                    error_message="SaslAuthenticate request received without a SaslHandshake before it",
                ),
            )
        try:
            challenge, lifetime_ms = self._step(message, now, now_ms)
        except AuthenticationError as error:
            told = error.told or (
                f"Authentication failed during {self._kind} due to invalid credentials with SASL mechanism "
                f"{self._wanted}"
            )
            self._refuse(
                self._failure(error),
                SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=told),
            )
        return SaslAuthenticateResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            auth_bytes=challenge,
            session_lifetime_ms=lifetime_ms,
        )

    def raw(self, message: bytes, now: float, now_ms: int) -> bytes:
        """Return the challenge that answers a message without headers. Raises Refusal; it has no answer."""
        try:
            return self._step(message, now, now_ms)[0]
        except AuthenticationError as error:
            self._refuse(self._failure(error))

    @property
    def _kind(self) -> str:
        return "authentication" if self.session is None else "re-authentication"

    def _failure(self, error: AuthenticationError) -> str:
        return f"{self._kind} by {self._wanted} failed: {error}"

    def _refuse(
        self, reason: str, answer: SaslHandshakeResponse | SaslAuthenticateResponse | None = None
    ) -> NoReturn:
        self.state = State.REFUSED
        self._exchange = None
        raise Refusal(reason, answer)

    def _step(self, message: bytes, now: float, now_ms: int) -> tuple[bytes, int]:
        """Return the challenge, and the lifetime of the session that has begun (0: none has begun, or it does not
        end).
        """
        exchange = self._exchange
        if exchange is None:
            raise AuthenticationError("no exchange has begun")
        before = self.session
        if before is not None and self._mechanism != self._wanted:
            raise AuthenticationError(
                "another mechanism",
                told=f"SASL mechanism '{self._wanted}' requested by client is not supported for re-authentication "
                f"of mechanism '{self._mechanism}'",
            )
        challenge = exchange.answer(message)
        identity = exchange.identity
        if identity is None:
            return challenge, 0
        principal = Principal(identity.principal_type, identity.name)
        if before is not None and (before.principal, before.by_token) != (principal, identity.by_token):
            old = before.principal
            raise AuthenticationError(
                "another principal",
                told=f"Cannot change principals during re-authentication from {old.type}.{old.name}: "
                f"{principal.type}.{principal.name}",
            )
        lifetime_ms = self._lifetime_ms(identity, now_ms)
        self.session = Session(
            principal,
            self._listener,
            self._wanted,
            now,
            None if lifetime_ms is None else now + lifetime_ms / 1000,
            identity.by_token,
        )
        self._mechanism = self._wanted
        self._exchange = None
        self.state = State.DONE
        return challenge, lifetime_ms or 0

    def _lifetime_ms(self, identity: Identity, now_ms: int) -> int | None:
        """Return the lifetime of the session: that of its credentials, but not longer than the listener allows."""
        most = self._mechanisms[self._wanted].session_ms_max
        ends = [most] if most > 0 else []
        if identity.expires_ms is not None:
            ends.append(max(0, identity.expires_ms - now_ms))
        return min(ends, default=None)
