"""The SASL settings of a listener, from Kafka's configurations: its mechanisms, and how each knows its users.

The most specific name that is set counts, in this order:

    listener.name.<listener>.<mechanism>.<name>    listener.name.<listener>.<name>    <mechanism>.<name>    <name>

Listener and mechanism are in lower case. JAAS configurations have the mechanism in their name, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.sasl import OFFERED
from headrace.broker.runtime.ports import Clock, Entropy
from headrace.broker.security.sasl import plain
from headrace.broker.security.sasl.authentication import Mechanism
from headrace.broker.security.sasl.exchange import Identity
from headrace.broker.security.sasl.oauthbearer import OAuthBearerExchange, Validator
from headrace.broker.security.sasl.plain import PlainExchange, PlainUsers
from headrace.broker.security.sasl.scram import BY_NAME, ScramExchange, ScramMechanism, Subject
from headrace.broker.security.sasl.tokens import DelegationTokens
from headrace.broker.security.sasl.users import ScramUsers
from headrace.protocol.security.jaas import JaasEntry, JaasError, parse_jaas

if TYPE_CHECKING:
    from headrace.broker.security.sasl.jwks import JwksSource, Pauses
    from headrace.broker.security.sasl.jwt import Expectations
    from headrace.broker.security.tls.client_tls import ClientTls

_ENABLED: Final = "sasl.enabled.mechanisms"
_BETWEEN_BROKERS: Final = "sasl.mechanism.inter.broker.protocol"
_JAAS: Final = "sasl.jaas.config"
_HANDLER: Final = "sasl.server.callback.handler.class"
_REAUTHENTICATION: Final = "connections.max.reauth.ms"
_JWKS: Final = "sasl.oauthbearer.jwks.endpoint.url"
_TOKENS: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
_SIGNED: Final = "OAuthBearerValidatorCallbackHandler"
_UNSECURED: Final = "OAuthBearerUnsecuredValidatorCallbackHandler"
_USER: Final = "user_"

Texts = Callable[[str], str | None]
"""Returns the text that a configuration is set to, None if it is not set."""


class SaslParts(msgspec.Struct):
    """The parts that mechanisms are made of. `sources` collects what has to be run; an existing source is used
    again.
    """

    users: ScramUsers
    tokens: DelegationTokens
    clock: Clock
    entropy: Entropy
    executor: Executor
    sources: dict[tuple[str, Pauses, ClientTls], JwksSource] = {}


class _Settings:
    """The settings of one mechanism of one listener."""

    def __init__(self, texts: Texts, listener: str, mechanism: str) -> None:
        self.listener = listener
        self.mechanism = mechanism
        self._texts = texts
        self._own = f"listener.name.{listener.lower()}."
        self._of_mechanism = f"{mechanism.lower()}."

    def text(self, name: str) -> str | None:
        for prefix in (self._own + self._of_mechanism, self._own, self._of_mechanism, ""):
            value = self._texts(prefix + name)
            if value is not None:
                return value
        return None

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        try:
            number = default if text is None else int(text)
        except ValueError:
            number = -1
        if number < 0:
            raise ConfigError(
                f"Invalid value {text} for configuration {name}: it is not a number of at least 0"
            )
        return number

    def listed(self, name: str) -> tuple[str, ...]:
        return tuple(item.strip() for item in (self.text(name) or "").split(",") if item.strip())

    def jaas(self, module: str) -> JaasEntry | None:
        """Return the entry of the login module, which must be `module`; None without a JAAS configuration."""
        for prefix in (self._own + self._of_mechanism, self._of_mechanism):
            text = self._texts(prefix + _JAAS)
            if text is not None:
                entry = _jaas_entry(prefix + _JAAS, text)
                if entry.module_name != module:
                    raise ConfigError(
                        f"{prefix}{_JAAS} names the login module {entry.module}; {self.mechanism} needs "
                        f"org.apache.kafka.common.security....{module}"
                    )
                return entry
        return None

    def example(self) -> str:
        """Return the name of the JAAS configuration."""
        return f"{self._own}{self._of_mechanism}{_JAAS}"


def _jaas_entry(name: str, text: str) -> JaasEntry:
    try:
        return parse_jaas(text)
    except JaasError as error:
        raise ConfigError(f"Invalid value [hidden] for configuration {name}: {error}") from None


def sasl_of_listener(listener: str, texts: Texts, parts: SaslParts) -> dict[str, Mechanism]:
    """Return the mechanisms of a listener, in the order in which they are enabled. Raises ConfigError."""
    enabled = _Settings(texts, listener, "").listed(_ENABLED)
    if not enabled:
        raise ConfigError(
            f"the listener {listener} uses SASL and offers no mechanism; set {_ENABLED} to some of "
            f"{','.join(OFFERED)}"
        )
    found = {}
    for name in enabled:
        if name not in OFFERED:
            raise ConfigError(
                f"Invalid value {name} for configuration {_ENABLED}: the offered mechanisms are "
                f"{','.join(OFFERED)}"
            )
        settings = _Settings(texts, listener, name)
        if name in BY_NAME:
            mechanism = _scram(settings, BY_NAME[name], parts)
        elif name == plain.MECHANISM:
            mechanism = _plain(settings)
        else:
            mechanism = _oauthbearer(settings, parts)
        found[name] = mechanism
    return found


class Login(msgspec.Struct, frozen=True):
    """Credentials of this broker for other brokers."""

    mechanism: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.user!r})"


class TokenLogin(msgspec.Struct, frozen=True):
    """The source of this broker's bearer tokens for other brokers: a file, or a server that issues them for an id and a
    secret.
    """

    url: str
    client_id: str
    secret: str
    scope: str | None
    tls: ClientTls

    mechanism: ClassVar[str] = "OAUTHBEARER"

    def __repr__(self) -> str:
        return f"TokenLogin({self.url!r}, {self.client_id!r})"


def login_of(listener: str, texts: Texts) -> Login | TokenLogin:
    """Return the credentials for the listener that brokers use among themselves. Raises ConfigError."""
    name = texts(_BETWEEN_BROKERS) or "GSSAPI"
    modules = {
        plain.MECHANISM: "PlainLoginModule",
        **dict.fromkeys(BY_NAME, "ScramLoginModule"),
        TokenLogin.mechanism: "OAuthBearerLoginModule",
    }
    if name not in modules:
        raise ConfigError(
            f"brokers use the SASL listener {listener} among themselves: set {_BETWEEN_BROKERS} (it is "
            f"{name}) to one of {', '.join(modules)}"
        )
    settings = _Settings(texts, listener, name)
    entry = settings.jaas(modules[name])
    options = {} if entry is None else entry.options
    if name == TokenLogin.mechanism:
        return _token_login(settings, options)
    if not options.get("username") or "password" not in options:
        raise ConfigError(
            f"brokers authenticate themselves by {name} on the listener {listener}: {settings.example()} "
            "must have username and password"
        )
    return Login(name, options["username"], options["password"])


def _token_login(settings: _Settings, options: Mapping[str, str]) -> TokenLogin:
    from headrace.broker.security.tls.client_tls import client_tls

    url = settings.text(_TOKENS) or ""
    scheme = url.partition(":")[0].lower()
    client_id = settings.text(_CLIENT_ID) or options.get("clientId", "")
    secret = settings.text(_CLIENT_SECRET) or options.get("clientSecret", "")
    if scheme not in ("file", "http", "https"):
        raise ConfigError(
            f"brokers authenticate themselves by OAUTHBEARER on the listener {settings.listener}: set "
            f"{_TOKENS} (it is {url!r}) to the URL of their tokens: a file: URL, or the https: URL of a "
            "server that issues them"
        )
    if scheme != "file" and not (client_id and secret):
        raise ConfigError(
            f"brokers get their tokens from {url}: set {_CLIENT_ID} and {_CLIENT_SECRET}, or clientId and clientSecret "
            f"in {settings.example()}"
        )
    scope = settings.text("sasl.oauthbearer.scope") or options.get("scope")
    return TokenLogin(url, client_id, secret, scope, client_tls(options))


def _made(settings: _Settings, start: Callable[[], object]) -> Mechanism:
    return Mechanism(start, settings.number(_REAUTHENTICATION, 0))  # type: ignore[arg-type]


def _plain(settings: _Settings) -> Mechanism:
    _no_handler(settings)
    entry = settings.jaas("PlainLoginModule")
    if entry is None:
        raise ConfigError(
            f"PLAIN on the listener {settings.listener} has no users; set {settings.example()} to "
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="..." ;'
        )
    users = PlainUsers(
        {key[len(_USER) :]: value for key, value in entry.options.items() if key.startswith(_USER)}
    )
    return _made(settings, partial(PlainExchange, users))


def _scram(settings: _Settings, mechanism: ScramMechanism, parts: SaslParts) -> Mechanism:
    _no_handler(settings)
    settings.jaas("ScramLoginModule")  # its options are the broker's own credentials for other brokers
    users, tokens, clock, entropy = parts.users, parts.tokens, parts.clock, parts.entropy

    def subject(mechanism: ScramMechanism, name: str, is_token: bool) -> Subject | None:
        if is_token:
            return _token_subject(tokens, mechanism, name, clock.time_ms())
        credential = users.credentials(name).get(mechanism)
        return None if credential is None else Subject(Identity(name), credential)

    def nonce() -> str:
        return entropy.uuid().hex + entropy.uuid().hex

    return _made(settings, lambda: ScramExchange(mechanism, subject, users.decoy, nonce))


def _token_subject(
    tokens: DelegationTokens, mechanism: ScramMechanism, token_id: str, now_ms: int
) -> Subject | None:
    token = tokens.find(token_id)
    if token is None or token.ends_ms < now_ms or mechanism not in token.credentials:
        return None
    identity = Identity(token.owner.name, token.ends_ms, by_token=True, principal_type=token.owner.type)
    return Subject(identity, token.credentials[mechanism])


def _oauthbearer(settings: _Settings, parts: SaslParts) -> Mechanism:
    from headrace.broker.security.sasl.jwt import (
        Expectations,  # imported here, because it loads all of cryptography
    )

    entry = settings.jaas("OAuthBearerLoginModule")
    handler = (settings.text(_HANDLER) or "").rpartition(".")[2]
    expectations = Expectations(
        settings.text("sasl.oauthbearer.expected.issuer"),
        settings.listed("sasl.oauthbearer.expected.audience"),
        settings.number("sasl.oauthbearer.clock.skew.seconds", 30),
        settings.text("sasl.oauthbearer.sub.claim.name") or "sub",
        settings.text("sasl.oauthbearer.scope.claim.name") or "scope",
    )
    if handler == _UNSECURED:
        validate = _unsecured(expectations, {} if entry is None else entry.options, parts.clock)
    elif handler in ("", _SIGNED):
        validate = _signed(settings, {} if entry is None else entry.options, expectations, parts)
    else:
        raise ConfigError(
            f"{_HANDLER}: {handler} is not offered; use {_SIGNED}, or {_UNSECURED} (which accepts unsigned "
            "tokens)"
        )
    return _made(settings, partial(OAuthBearerExchange, validate))


def _signed(
    settings: _Settings, options: Mapping[str, str], expectations: Expectations, parts: SaslParts
) -> Validator:
    from headrace.broker.security.sasl.jwks import JwksSource, Pauses, read_document
    from headrace.broker.security.sasl.jwt import SignedValidator
    from headrace.broker.security.tls.client_tls import client_tls

    url = settings.text(_JWKS)
    if not url:
        raise ConfigError(
            f"OAUTHBEARER on the listener {settings.listener} has no keys; set {_JWKS} to a JWK set: a "
            "file: or https: URL"
        )
    pauses = Pauses(
        settings.number("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000) / 1000,
        settings.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100) / 1000,
        settings.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000) / 1000,
    )
    tls = client_tls(options)
    source = parts.sources.get((url, pauses, tls))
    if source is None:
        if url.lower().startswith("https:"):
            tls.context()  # a source that cannot be used is reported now
        read = partial(read_document, context=tls.context)
        source = parts.sources[url, pauses, tls] = JwksSource(url, pauses, parts.executor, read)
    return SignedValidator(source.current, expectations, parts.clock.time_ms, source.expedite)


def _unsecured(expectations: Expectations, options: Mapping[str, str], clock: Clock) -> Validator:
    from msgspec.structs import replace

    from headrace.broker.security.sasl.jwt import UnsecuredValidator

    skew = options.get("unsecuredValidatorAllowableClockSkewMs", "0")
    if not skew.isdecimal():
        raise ConfigError("unsecuredValidatorAllowableClockSkewMs in a JAAS configuration is not a number")
    changed = replace(
        expectations,
        clock_skew_seconds=int(skew) / 1000,
        subject_claim=options.get("unsecuredValidatorPrincipalClaimName") or "sub",
        scope_claim=options.get("unsecuredValidatorScopeClaimName") or "scope",
    )
    scope = options.get("unsecuredValidatorRequiredScope", "").split()
    return UnsecuredValidator(changed, clock.time_ms, scope)


def _no_handler(settings: _Settings) -> None:
    handler = settings.text(_HANDLER)
    if handler is not None:
        raise ConfigError(
            f"{_HANDLER}: {handler} cannot be used for {settings.mechanism}: Java classes cannot be plugged "
            "in"
        )
