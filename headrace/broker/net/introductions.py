"""Authenticate this broker to the other brokers of its cluster, on the listener between brokers.

The configurations of this broker's own listener also apply when it connects to another broker's, as in Kafka:
`listener.name.<name>.ssl.*` for trust and for its own certificate. SASL uses `sasl.mechanism.inter.broker.protocol`,
with `username` and `password` of the mechanism's JAAS configuration or a bearer token
(`sasl.oauthbearer.token.endpoint.url`). ACLs and `super.users` of the other broker must allow CLUSTER_ACTION.

This is an `Introduction` (`broker.net.outgoing`). Changed files are read again; if they cannot be used, the previous
ones stay in use. A session is renewed before it expires (`connections.max.reauth.ms`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.net.tls import TlsStream
from headrace.broker.runtime.ports import Entropy
from headrace.broker.security.sasl.settings import Login, TokenLogin, login_of
from headrace.protocol.errors import DecodeError, ErrorCode
from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.protocol.security.sasl import OAuthBearer, Plain, SaslClient, SaslError, Scram

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.configs.listeners import Listener
    from headrace.broker.net.outgoing import OutgoingConnection
    from headrace.broker.security.sasl.bearer_tokens import BearerTokens
    from headrace.broker.security.tls.listener_tls import TlsSettings
    from headrace.protocol.schema import ApiMessage

logger = logging.getLogger("headrace.security")

ResponseT = TypeVar("ResponseT", bound="ApiMessage")
ResultT = TypeVar("ResultT")

SESSION_USED: Final = 0.85
"""Fraction of a session's lifetime after which a connection authenticates again; Kafka's clients use at least the same.
"""
_CLIENT_ID: Final = "broker"


class InterBroker:
    """Authenticates connections to other brokers. `listener`: this broker's own listener between brokers."""

    def __init__(
        self, config: BrokerConfig, listener: Listener, entropy: Entropy, executor: Executor
    ) -> None:
        self._config = config
        self._listener = listener
        self._entropy = entropy
        self._executor = executor
        self._tokens: BearerTokens | None = None
        self._context: ssl.SSLContext | None = None
        self._read: object = None
        """The settings and file stamps of the present context."""

    async def check(self) -> None:
        """Check the configuration. Raises ConfigError if it cannot be used."""
        login = self._login()
        if isinstance(login, TokenLogin):
            await self._run(self._tokens_of(login).check)
        if self._listener.protocol.has_tls:
            await self._tls()

    async def encryption(self, host: str) -> TlsStream | None:
        if not self._listener.protocol.has_tls:
            return None
        try:
            return TlsStream(await self._tls(), host)
        except ConfigError as error:
            raise ConnectionAbortedError(str(error)) from None

    async def introduce(self, connection: OutgoingConnection) -> float | None:
        login = self._login()
        if login is None:
            return None
        client = await self._client(login, connection)
        try:
            shaken = await _ask(
                connection, SaslHandshakeRequest(mechanism=client.mechanism), SaslHandshakeResponse
            )
            if shaken.error_code != ErrorCode.NONE:
                offered = ", ".join(shaken.mechanisms) or "none"
                raise _refused(connection, client, f"it offers {offered}")
            said: bytes | None = client.first()
            while said is not None:
                answer = await _ask(
                    connection, SaslAuthenticateRequest(auth_bytes=said), SaslAuthenticateResponse
                )
                if answer.error_code != ErrorCode.NONE:
                    reason = answer.error_message or ErrorCode(answer.error_code).name
                    raise _refused(connection, client, reason)
                # Hashing a password takes a while.
                said = await self._run(partial(client.answer, answer.auth_bytes))
        except (SaslError, DecodeError) as error:
            raise _refused(connection, client, str(error)) from None
        lifetime_ms = answer.session_lifetime_ms
        return lifetime_ms / 1000 * SESSION_USED if lifetime_ms > 0 else None

    def _login(self) -> Login | TokenLogin | None:
        """Return the login that is configured now. Raises ConfigError."""
        listener = self._listener
        return login_of(listener.name, self._config.explicit.get) if listener.protocol.has_sasl else None

    async def _client(self, login: Login | TokenLogin, connection: OutgoingConnection) -> SaslClient:
        """Return the client's side of the login. Raises ConnectionError if it cannot get a token."""
        if isinstance(login, TokenLogin):
            now = asyncio.get_running_loop().time()
            try:
                return OAuthBearer(await self._run(partial(self._tokens_of(login).token, now)))
            except (OSError, ValueError, ConfigError) as error:
                raise ConnectionAbortedError(
                    f"cannot authenticate to {connection.name}, because no token could be fetched: {error}"
                ) from None
        if login.mechanism == Plain.mechanism:
            return Plain(login.user, login.password)
        nonce = self._entropy.uuid().hex + self._entropy.uuid().hex
        return Scram(login.mechanism, login.user, login.password, nonce)

    def _tokens_of(self, login: TokenLogin) -> BearerTokens:
        # this imports the cryptography library
        from headrace.broker.security.sasl.bearer_tokens import BearerTokens

        if self._tokens is None or self._tokens.login != login:
            self._tokens = BearerTokens(login)
        return self._tokens

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _tls(self) -> ssl.SSLContext:
        return await self._run(self._current_tls)

    def _current_tls(self) -> ssl.SSLContext:
        """Return the TLS context, in a thread. Raises ConfigError if there is no usable one yet."""
        from headrace.broker.security.tls.listener_tls import settings_of, stamps_of

        settings = settings_of(self._config, self._listener)
        by_name = self._config.of_listener(self._listener.name, "ssl.endpoint.identification.algorithm") != ""
        read = settings, by_name, stamps_of(settings.files)
        if self._context is None or read != self._read:
            try:
                self._context = _context_of(settings, by_name=by_name)
            except ConfigError as error:
                if self._context is None:
                    raise
                logger.error(
                    "connections to other brokers keep the present certificates, because the new ones cannot be "
                    "used: %s",
                    error,
                )
            self._read = read
        return self._context


def _context_of(settings: TlsSettings, *, by_name: bool) -> ssl.SSLContext:
    from headrace.broker.configs.ciphers import PROTOCOLS, choose_suites
    from headrace.broker.security.tls.client_tls import ClientTls

    context = ClientTls(settings.trusted, settings.keys).context()
    context.check_hostname = by_name
    versions = [PROTOCOLS[name] for name in settings.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    suites = choose_suites(settings.suites)
    if suites.older:
        context.set_ciphers(suites.older)
    return context


async def _ask(connection: OutgoingConnection, request: ApiMessage, response: type[ResponseT]) -> ResponseT:
    version = type(request).MAX_VERSION
    header = RequestHeader(request.API_KEY, version, 0, _CLIENT_ID)
    head = encode_request_header(header, request.header_version(version))
    frame = bytes(await connection.ask_before_others([head, request.encode(version)]))
    _, position = decode_response_header(frame, response.header_version(version))
    return response.decode(frame, version, None, position)


def _refused(connection: OutgoingConnection, client: SaslClient, reason: str) -> ConnectionError:
    return ConnectionAbortedError(
        f"{connection.name} refused the user {client.user} with {client.mechanism}: {reason}"
    )
