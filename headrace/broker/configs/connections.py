"""Kafka's configurations that limit the number of connections and how fast they are accepted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType, at_least

UNLIMITED: Final = 2**31 - 1
"""Kafka's default: no limit."""
PER_ADDRESS: Final = "max.connections.per.ip"
OVERRIDES: Final = "max.connections.per.ip.overrides"
_HOST: Final = re.compile(r"[\w.:%-]+")


def overrides(text: str) -> dict[str, int]:
    """Parse `app.example:100,10.0.0.7:200,::1:5`: numbers of connections by host names and addresses, as Kafka reads
    them. Raises ValueError.
    """
    found = {}
    for item in text.split(","):
        if not item.strip():
            continue
        host, _, number = (part.strip() for part in item.rpartition(":"))
        if not (number.isascii() and number.isdigit() and _HOST.fullmatch(host)):
            raise ValueError(f"{item.strip()!r} is not HOST:CONNECTIONS")
        found[host] = min(int(number[:11]), UNLIMITED)
    return found


def _check_overrides(text: str) -> str | None:
    try:
        overrides(text)
    except ValueError as error:
        return str(error)
    return None


def check_together(values: Mapping[str, Any]) -> None:
    """Raises ConfigError, in Kafka's words."""
    if values[PER_ADDRESS] == 0 and not overrides(values[OVERRIDES]):
        raise ConfigError(f"{PER_ADDRESS} can be set to zero only if {OVERRIDES} property is set.")


CONNECTION_CONFIGS: Final = (
    ConfigKey(
        "max.connections",
        ConfigType.INT,
        str(UNLIMITED),
        "Maximum number of open connections; a further one waits until one is closed. It may be set for one "
        "listener with its prefix. The listener of brokers has only that limit: its connections take the "
        "place of silent clients.",
        at_least(1),
        dynamic=True,
    ),
    ConfigKey(
        PER_ADDRESS,
        ConfigType.INT,
        str(UNLIMITED),
        "Maximum number of open connections from one address; a further one is closed.",
        at_least(0),
        dynamic=True,
    ),
    ConfigKey(
        OVERRIDES,
        ConfigType.STRING,
        "",
        "Addresses and host names with another maximum number of connections: HOST:NUMBER,HOST:NUMBER.",
        _check_overrides,
        dynamic=True,
    ),
    ConfigKey(
        "max.connection.creation.rate",
        ConfigType.INT,
        str(UNLIMITED),
        "Maximum number of connections that are accepted in a second; a further one waits. It may be set "
        "for one listener with its prefix. The listener of brokers has only that limit.",
        at_least(0),
        dynamic=True,
    ),
)
