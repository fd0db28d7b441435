"""The broker configurations of SASL and of delegation tokens, under Kafka's names and with its defaults.

`settings.py` looks them up by listener and mechanism. A configuration of one mechanism alone belongs to a family of
names, `plain.*` for example, as in Kafka: a name of the family exists once it is set.
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
        f"Mechanisms that SASL listeners offer, of {', '.join(OFFERED)}.",
        choices=OFFERED,
    ),
    ConfigKey(
        "sasl.mechanism.inter.broker.protocol",
        _STRING,
        "GSSAPI",
        "Mechanism by which a broker authenticates itself to the other brokers of its cluster, if the "
        "listener between brokers uses SASL.",
    ),
    ConfigKey(
        "connections.max.reauth.ms",
        _LONG,
        "0",
        "Time after which a connection has to authenticate again (KIP-368), in milliseconds; 0: when its "
        "credentials expire.",
        at_least(0),
    ),
    ConfigKey(
        "connection.failed.authentication.delay.ms",
        _INT,
        "100",
        "Time that a client waits for the answer and the end of the connection after a failed "
        "authentication, in milliseconds.",
        at_least(0),
    ),
    ConfigKey(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        None,
        "Secret that delegation tokens are made with; without it there are no delegation tokens.",
    ),
    ConfigKey(
        "delegation.token.max.lifetime.ms",
        _LONG,
        "604800000",
        "Longest time that a delegation token can be renewed, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "delegation.token.expiry.time.ms",
        _LONG,
        "86400000",
        "Time that a delegation token is valid without being renewed, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "delegation.token.expiry.check.interval.ms",
        _LONG,
        "3600000",
        "Interval between removals of expired delegation tokens, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        "URL (file:, http: or https:) of the keys that bearer tokens are signed with, a JWK set. "
        "ssl.truststore.* in the JAAS configuration names the certificates that are trusted for it; "
        "otherwise those of the system are.",
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        _LONG,
        "3600000",
        "Interval between reads of the keys of bearer tokens, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        _LONG,
        "100",
        "Time to wait after the keys of bearer tokens could not be read, in milliseconds; it doubles with "
        "each failure.",
        at_least(1),
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        _LONG,
        "10000",
        "Longest wait after the keys of bearer tokens could not be read, in milliseconds; also the shortest "
        "time before they are read again for a token of an unknown key.",
        at_least(1),
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.issuer",
        _STRING,
        None,
        "Required issuer (`iss`) of bearer tokens; not set: any.",
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        "",
        "Audiences (`aud`) of bearer tokens, which must have one of these; empty: not checked.",
    ),
    ConfigKey(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        "30",
        "Maximum difference between the clocks of the issuer of bearer tokens and the broker, in seconds.",
        at_least(0),
    ),
    ConfigKey(
        "sasl.oauthbearer.sub.claim.name", _STRING, "sub", "Claim of a bearer token that names the principal."
    ),
    ConfigKey(
        "sasl.oauthbearer.scope.claim.name",
        _STRING,
        "scope",
        "Claim of an unsecured bearer token that has its scopes.",
    ),
    ConfigKey(
        "sasl.oauthbearer.token.endpoint.url",
        _STRING,
        None,
        "URL from which this broker gets its own bearer tokens for the other brokers of its cluster: a "
        "file: URL, or the https: URL of a server that issues them for an id and a secret (OAuth's client "
        "credentials).",
    ),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.id",
        _STRING,
        None,
        "Client id for sasl.oauthbearer.token.endpoint.url; if not set, JAAS's clientId.",
    ),
    ConfigKey(
        _CLIENT_SECRET,
        ConfigType.PASSWORD,
        None,
        "Client secret for sasl.oauthbearer.token.endpoint.url; if not set, JAAS's clientSecret.",
    ),
    ConfigKey(
        "sasl.oauthbearer.scope",
        _STRING,
        None,
        "Scope of this broker's own bearer tokens; if not set, JAAS's scope.",
    ),
    *(
        ConfigKey(
            f"{mechanism.lower()}.*",
            _STRING,
            None,
            f"Configurations of the SASL mechanism {mechanism} alone.",
            type_of=_type_of,
            dynamic_of=lambda name: name.endswith(_JAAS),
        )
        for mechanism in OFFERED
    ),
)
