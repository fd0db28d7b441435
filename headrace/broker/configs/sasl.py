"""The broker configurations of SASL and of delegation tokens, under Kafka's names and with its defaults.

How they are looked up by listener and mechanism is in `settings.py`. What belongs to a mechanism alone is a family of
names, `plain.*` and so on, as Kafka has them: no name of it is there until it is set.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least

OFFERED: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_INT, _LONG, _STRING, _LIST = ConfigType.INT, ConfigType.LONG, ConfigType.STRING, ConfigType.LIST


_JAAS: Final = "sasl.jaas.config"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"


def _type_of(name: str) -> ConfigType:
    return ConfigType.PASSWORD if name.endswith((_JAAS, _CLIENT_SECRET)) else ConfigType.STRING


SASL_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey(
        "sasl.enabled.mechanisms",
        _LIST,
        "",
        f"The mechanisms that listeners of SASL offer, of {', '.join(OFFERED)}.",
        choices=OFFERED,
    ),
    ConfigKey(
        "sasl.mechanism.inter.broker.protocol",
        _STRING,
        "GSSAPI",
        "How a broker authenticates itself to others of its cluster, where the listener that they use among themselves "
        "is one of SASL.",
    ),
    ConfigKey(
        "connections.max.reauth.ms",
        _LONG,
        "0",
        "How long a connection goes on before it has to authenticate again (KIP-368); 0: as long as its "
        "credentials hold.",
        at_least(0),
    ),
    ConfigKey(
        "connection.failed.authentication.delay.ms",
        _INT,
        "100",
        "How long who could not authenticate waits before it is told and hung up on.",
        at_least(0),
    ),
    ConfigKey(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        None,
        "What delegation tokens are made with; without it there are none.",
    ),
    ConfigKey(
        "delegation.token.max.lifetime.ms",
        _LONG,
        "604800000",
        "How long a delegation token can be renewed.",
        at_least(1),
    ),
    ConfigKey(
        "delegation.token.expiry.time.ms",
        _LONG,
        "86400000",
        "How long a delegation token is good without being renewed.",
        at_least(1),
    ),
    ConfigKey(
        "delegation.token.expiry.check.interval.ms",
        _LONG,
        "3600000",
        "How often delegation tokens that have ended are removed.",
        at_least(1),
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        "The keys that bearer tokens are signed with, a JWK set: a file:, http: or https: URL. Who is trusted there is "
        "said by ssl.truststore.* in the JAAS configuration; otherwise it is who the system trusts.",
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        _LONG,
        "3600000",
        "How often those keys are read.",
        at_least(1),
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        _LONG,
        "100",
        "How long to wait after the keys could not be read; it doubles.",
        at_least(1),
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        _LONG,
        "10000",
        "The longest of those waits, and the shortest before the keys are read for a token of an unknown key.",
        at_least(1),
    ),
    ConfigKey("sasl.oauthbearer.expected.issuer", _STRING, None, "The `iss` of bearer tokens; not set: any."),
    ConfigKey(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        "",
        "Bearer tokens have one of these in their `aud`; empty: it is not looked at.",
    ),
    ConfigKey(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        "30",
        "How far the clock of the issuer may be off.",
        at_least(0),
    ),
    ConfigKey("sasl.oauthbearer.sub.claim.name", _STRING, "sub", "The claim that names the principal."),
    ConfigKey(
        "sasl.oauthbearer.scope.claim.name",
        _STRING,
        "scope",
        "The claim with the scopes of an unsecured token.",
    ),
    ConfigKey(
        "sasl.oauthbearer.token.endpoint.url",
        _STRING,
        None,
        "Where this broker has its own bearer tokens from, for the others of its cluster: a file: URL, or the https: "
        "URL of a server that gives them for an id and a secret (OAuth's client credentials).",
    ),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.id", _STRING, None, "That id; otherwise JAAS's clientId."
    ),
    ConfigKey(_CLIENT_SECRET, ConfigType.PASSWORD, None, "That secret; otherwise JAAS's clientSecret."),
    ConfigKey("sasl.oauthbearer.scope", _STRING, None, "The scope of these tokens; otherwise JAAS's scope."),
    *(
        ConfigKey(
            f"{mechanism.lower()}.*",
            _STRING,
            None,
            f"Of {mechanism} alone.",
            type_of=_type_of,
            dynamic_of=lambda name: name.endswith(_JAAS),
        )
        for mechanism in OFFERED
    ),
)
