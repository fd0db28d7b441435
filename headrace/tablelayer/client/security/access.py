"""The access to a cluster by connection properties: TLS or not, and the SASL mechanism."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from headrace.protocol.security.jaas import JaasEntry, JaasError, parse_jaas
from headrace.protocol.security.sasl import SCRAM_HASHES, OAuthBearer, Plain, SaslClient, Scram
from headrace.tablelayer.client.errors import SettingsError
from headrace.tablelayer.client.security.settings import ConnectionSettings
from headrace.tablelayer.client.security.tls import Tls
from headrace.tablelayer.client.security.tokens import ClientCredentials, TokenFile, TokenSource

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", *SCRAM_HASHES, "OAUTHBEARER")
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"


@dataclass(frozen=True, slots=True)
class Access:
    """The security of connections. `tls` is None for plain text. `begin` makes the client's side of one SASL exchange
    and may block for a token; it is None without authentication.
    """

    protocol: str
    tls: Tls | None = field(default=None, repr=False)
    begin: Callable[[], SaslClient] | None = field(default=None, repr=False)


def access_of(settings: ConnectionSettings) -> Access:
    """Return the access that properties describe. Raises SettingsError, which names the property but no secret."""
    given = settings.named()
    protocol = given.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise SettingsError(f"security.protocol is {protocol!r}: use {', '.join(_PROTOCOLS)}")
    tls = Tls(given) if protocol.endswith("SSL") else None
    if tls is not None:
        tls.context()
    if not protocol.startswith("SASL_"):
        return Access(protocol, tls)
    return Access(protocol, tls, _mechanism(given))


def _mechanism(given: Mapping[str, str]) -> Callable[[], SaslClient]:
    name = (given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "GSSAPI").strip().upper()
    if name not in _MECHANISMS:
        why = " (Kafka's default)" if name == "GSSAPI" and not given.get("sasl.mechanism") else ""
        raise SettingsError(f"sasl.mechanism is {name!r}{why}: use {', '.join(_MECHANISMS)}")
    jaas = _jaas_entry(given.get("sasl.jaas.config"))
    if name == "OAUTHBEARER":
        source, extensions = _token_source(given, jaas.options), _extensions(given, jaas.options)
        return lambda: OAuthBearer(source.token(), extensions)
    user = given.get("sasl.username", jaas.options.get("username"))
    password = given.get("sasl.password", jaas.options.get("password"))
    if not user or password is None:
        raise SettingsError(
            f"{name} needs a user and a password: sasl.username and sasl.password, or sasl.jaas.config with both"
        )
    if name == "PLAIN":
        return lambda: Plain(user, password)
    by_token = jaas.options.get("tokenauth", "").lower() == "true"
    return lambda: Scram(
        name, user, password, secrets.token_urlsafe(24), {"tokenauth": "true"} if by_token else None
    )


def _jaas_entry(text: str | None) -> JaasEntry:
    if not text:
        return JaasEntry("", {})
    try:
        return parse_jaas(text)
    except JaasError as error:
        raise SettingsError(
            f'sasl.jaas.config does not have the form `CLASS required NAME="VALUE" ...;`: {error}'
        ) from None


def _token_source(given: Mapping[str, str], jaas: Mapping[str, str]) -> TokenSource:
    url = given.get(_TOKEN_URL, "")
    parts = urlsplit(url)
    if parts.scheme == "file":
        return TokenFile(Path(unquote(parts.path)))
    if parts.scheme not in ("http", "https"):
        raise SettingsError(f"OAUTHBEARER needs {_TOKEN_URL}: file:///path of a token, or https://...")
    credentials = "sasl.oauthbearer.client.credentials.client."
    client_id = given.get("sasl.oauthbearer.client.id", given.get(credentials + "id", jaas.get("clientId")))
    secret = given.get(
        "sasl.oauthbearer.client.secret", given.get(credentials + "secret", jaas.get("clientSecret"))
    )
    if not client_id or secret is None:
        raise SettingsError(
            f"{_TOKEN_URL} needs sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret: give both, or"
            " clientId and clientSecret in sasl.jaas.config"
        )
    scope = given.get("sasl.oauthbearer.scope", jaas.get("scope"))
    of_tls = {name: value for name, value in jaas.items() if name.startswith("ssl.")}
    if not of_tls:
        return ClientCredentials(url, client_id, secret, scope)
    tls = Tls(of_tls)  # as in Kafka, the token server has its own properties
    tls.context()
    return ClientCredentials(url, client_id, secret, scope, tls.context)


def _extensions(given: Mapping[str, str], jaas: Mapping[str, str]) -> dict[str, str]:
    listed = given.get("sasl.oauthbearer.extensions", "")
    found = dict(part.split("=", 1) for part in listed.split(",") if "=" in part)
    prefix = "extension_"
    return found | {
        name.removeprefix(prefix): value for name, value in jaas.items() if name.startswith(prefix)
    }
