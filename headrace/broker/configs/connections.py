"""The configurations of how many connections there may be and how fast they come. Kafka's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType, at_least

UNLIMITED: Final = 2**31 - 1
"""Kafka's word for no limit."""
PER_ADDRESS: Final = "max.connections.per.ip"
OVERRIDES: Final = "max.connections.per.ip.overrides"
_HOST: Final = re.compile(r"[\w.:%-]+")


def overrides(text: str) -> dict[str, int]:
    """`app.example:100,10.0.0.7:200,::1:5`: numbers of connections by host names and addresses, as Kafka reads them.
    Raises ValueError.
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
        "Most connections at a time; who comes beyond waits until one is closed. For one listener with its prefix, "
        "which is all that holds for the listener of brokers: it takes the place of clients that are silent.",
        at_least(1),
        dynamic=True,
    ),
    ConfigKey(
        PER_ADDRESS,
        ConfigType.INT,
        str(UNLIMITED),
        "Most connections of one address at a time; who comes beyond is closed.",
        at_least(0),
        dynamic=True,
    ),
    ConfigKey(
        OVERRIDES,
        ConfigType.STRING,
        "",
        "Addresses and host names that may have another number of connections: HOST:NUMBER,HOST:NUMBER.",
        _check_overrides,
        dynamic=True,
    ),
    ConfigKey(
        "max.connection.creation.rate",
        ConfigType.INT,
        str(UNLIMITED),
        "Most connections accepted in a second; who comes beyond waits. For one listener with its prefix, which is all "
        "that holds for the listener of brokers.",
        at_least(0),
        dynamic=True,
    ),
)
