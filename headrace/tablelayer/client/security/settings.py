"""The address of a cluster and the properties to connect with, as one value.

`ConnectionSettings` goes wherever a connection is opened: to other threads, Spark's executors, tiering. It is
immutable, hashable and picklable, and shows no secret in its `repr`, `str` or errors. The properties have the names of
Kafka's Java client and librdkafka. An unknown name with a prefix of security properties is an error, because a misspelt
one could leave a connection unsecured. All others (`acks`, `group.id`, ...) are ignored, so that clients can share a
file.

Defaults come from the environment: HEADRACE_CONFIG names a file of properties. Variables such as
HEADRACE_CLIENT_SASL_PASSWORD (`sasl.password`) override the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from headrace.protocol.security.properties import PropertiesError
from headrace.protocol.security.properties import read_properties as parse_properties
from headrace.tablelayer.client.errors import SettingsError

CONFIG_VARIABLE: Final = "HEADRACE_CONFIG"
VARIABLE_PREFIX: Final = "HEADRACE_CLIENT_"
SERVER_VARIABLE: Final = "HEADRACE_SERVER"
DEFAULT_SERVER: Final = "127.0.0.1:9092"

_USED: Final = frozenset(
    """
    security.protocol sasl.mechanism sasl.mechanisms sasl.jaas.config sasl.username sasl.password
    sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.scope sasl.oauthbearer.extensions sasl.oauthbearer.method
    ssl.ca.location ssl.ca.pem ssl.truststore.location ssl.truststore.type ssl.truststore.password
    ssl.truststore.certificates ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem
    ssl.key.password ssl.keystore.location ssl.keystore.type ssl.keystore.password ssl.keystore.key
    ssl.keystore.certificate.chain ssl.endpoint.identification.algorithm enable.ssl.certificate.verification
    ssl.enabled.protocols ssl.cipher.suites
    """.split()  # noqa: SIM905
)
"""Names that this client uses."""

_OF_OTHERS: Final = frozenset(
    """
    security.providers sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.ms
    sasl.login.retry.backoff.max.ms sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.refresh.min.period.seconds sasl.login.refresh.buffer.seconds sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwt.retriever.class
    sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.client.credentials.scope
    sasl.kerberos.service.name sasl.kerberos.kinit.cmd sasl.kerberos.ticket.renew.window.factor
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.keytab ssl.protocol ssl.provider ssl.keymanager.algorithm ssl.trustmanager.algorithm
    ssl.secure.random.implementation ssl.engine.factory.class ssl.providers ssl.curves.list ssl.sigalgs.list
    ssl.crl.location ssl.ca.certificate.stores ssl.engine.location ssl.engine.id
    """.split()  # noqa: SIM905
)
"""Kafka's other security properties. They are accepted, for files shared with other clients, and ignored."""

_OF_SECURITY: Final = ("security.", "sasl.", "ssl.", "enable.ssl.")


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionSettings:
    """The addresses of a cluster ("host:port,host:port") and the security properties, sorted by name."""

    bootstrap: str
    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def make(
        cls, bootstrap: str | ConnectionSettings, properties: Mapping[str, object] | None = None
    ) -> ConnectionSettings:
        """Return settings with these properties, or with those of the environment if None.

        Raises SettingsError for a security property that Kafka does not know.
        """
        if isinstance(bootstrap, ConnectionSettings):
            if properties is None:
                return bootstrap
            bootstrap = bootstrap.bootstrap
        given = environment() if properties is None else properties
        return cls(bootstrap, tuple(sorted(_of_security(given).items())))

    def named(self) -> dict[str, str]:
        """Return the properties by name. Passwords are among them: do not show them."""
        return dict(self.properties)

    def __str__(self) -> str:
        return self.bootstrap

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.properties)
        return f"ConnectionSettings({self.bootstrap!r}{', with ' + names if names else ''})"


Bootstrap: TypeAlias = str | ConnectionSettings
"""The address of a cluster. A text takes the properties of the environment."""


def _of_security(properties: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for given, value in properties.items():
        name = given.strip()
        if name in _USED:
            if value is None:
                continue
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        elif name.startswith(_OF_SECURITY) and name not in _OF_OTHERS:
            raise SettingsError(f"{name} is not a property of Kafka's clients: check its spelling")
    return found


def environment(file: Path | None = None) -> dict[str, str]:
    """Return the properties of the environment; `file` replaces the one that it names.

    Either may be the name of a profile (`profile`). Raises SettingsError for a file that cannot be read.
    """
    named = file or os.environ.get(CONFIG_VARIABLE)
    found = read_properties(profile(Path(named))) if named else {}
    for variable, value in os.environ.items():
        if variable.startswith(VARIABLE_PREFIX):
            found[variable.removeprefix(VARIABLE_PREFIX).lower().replace("_", ".")] = value
    return found


def environment_server() -> str:
    """Return the server where none is given: HEADRACE_SERVER, else `bootstrap.servers` of HEADRACE_CONFIG."""
    return os.environ.get(SERVER_VARIABLE) or environment().get("bootstrap.servers") or DEFAULT_SERVER


def profile(path: Path) -> Path:
    """Return a profile's file: `prod` is `~/.config/headrace/prod.properties` unless a file `prod` exists."""
    if path.name != str(path) or path.exists():
        return path
    kept = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "headrace"
    found = kept / f"{path.name}.properties"
    return found if found.exists() else path


def read_properties(path: Path) -> dict[str, str]:
    """Return the properties of a file in Java's format.

    Raises SettingsError if it cannot be read; the error repeats nothing of its content.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read the properties in {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not a properties file: it is not UTF-8") from None
    try:
        return parse_properties(text)
    except PropertiesError as error:
        raise SettingsError(f"{path}: {error}") from None
