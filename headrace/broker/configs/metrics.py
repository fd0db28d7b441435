"""Configurations of `GET /metrics`: TLS and the rights of readers."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType

METRICS_LISTENER: Final = "METRICS"
"""Name of the listener whose configurations its TLS uses: `listener.name.metrics.ssl.keystore.location`, or the value
for all listeners.
"""


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
        "Protocol of the metrics: PLAINTEXT, or SSL for TLS configured as that of a listener named METRICS.",
        _check_protocol,
    ),
    ConfigKey(
        "metrics.basic.auth.user.info",
        ConfigType.PASSWORD,
        None,
        "USER:PASSWORD that readers of metrics must send (HTTP basic authentication).",
        _check_credentials,
    ),
    ConfigKey(
        "metrics.bearer.token",
        ConfigType.PASSWORD,
        None,
        "Token that readers of metrics must send (HTTP bearer authentication), or the credentials of HTTP "
        "basic authentication.",
    ),
    ConfigKey(
        "metrics.principal",
        ConfigType.STRING,
        None,
        "User (User:NAME) whose ACLs apply to readers of metrics if there is an authorizer: topics, tables "
        "and groups that it may not describe are left out. If not set, all are shown.",
        _check_principal,
    ),
)
