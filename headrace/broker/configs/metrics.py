"""The configurations of `GET /metrics`: whether it is TLS, and who may read."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType

METRICS_LISTENER: Final = "METRICS"
"""As which listener its TLS is configured: `listener.name.metrics.ssl.keystore.location`, or what counts for all."""


def _check_protocol(text: str) -> str | None:
    return None if text.upper() in ("PLAINTEXT", "SSL") else "use PLAINTEXT or SSL"


def _check_credentials(text: str) -> str | None:
    user, colon, password = text.partition(":")
    return None if not text or (user and colon and password) else "write USER:PASSWORD"


def _check_principal(text: str) -> str | None:
    kind, colon, name = text.partition(":")
    return None if not text or (kind and colon and name) else "write User:NAME"


METRICS_CONFIGS: Final = (
    ConfigKey(
        "metrics.security.protocol",
        ConfigType.STRING,
        "PLAINTEXT",
        "SSL: metrics are served over TLS, configured as that of a listener named METRICS.",
        _check_protocol,
    ),
    ConfigKey(
        "metrics.basic.auth.user.info",
        ConfigType.PASSWORD,
        None,
        "USER:PASSWORD that readers of metrics have to give (HTTP basic authentication).",
        _check_credentials,
    ),
    ConfigKey(
        "metrics.bearer.token",
        ConfigType.PASSWORD,
        None,
        "The token that readers of metrics have to give (HTTP bearer authentication); or the credentials above.",
    ),
    ConfigKey(
        "metrics.principal",
        ConfigType.STRING,
        None,
        "Whose rights readers of metrics have where there is an authorizer, as in ACLs (User:NAME): topics, tables and "
        "groups that it may not describe are left out. Not set: all are there.",
        _check_principal,
    ),
)
