"""Kafka's configurations of listeners: their addresses, their protocols, and the addresses that clients are told.

A listener has a name; `listener.security.protocol.map` says which protocol it speaks. Any configuration may be given
for one listener alone, with the prefix `listener.name.<name in lower case>.`. (KIP-103, KIP-226)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType, nearest_name


class SecurityProtocol(StrEnum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.startswith("SASL_")


class Listener(msgspec.Struct, frozen=True):
    """`host` "" is every address of the machine; `port` 0 is a free one. `advertised` is None if it is the address of
    the listener.
    """

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised: tuple[str, int] | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def listener_prefix(name: str) -> str:
    return f"{_OF_ONE}{name.lower()}."


def without_listener(name: str) -> str | None:
    """Return the name for all listeners of a configuration that is set for one; None for any other name."""
    found = _OF_ONE_LISTENER.match(name)
    return None if found is None else name[found.end() :]


_OF_ONE: Final = "listener.name."
_OF_ONE_LISTENER: Final = re.compile(r"listener\.name\.[^.]+\.(?=.)")
_ADDRESS: Final = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_-]+)://)?(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>\d{1,5})/?"
)
_PROTOCOLS: Final = ",".join(f"{protocol}:{protocol}" for protocol in SecurityProtocol)


def parse_listener(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[v6]:port` or `PLAINTEXT://host:port`. Raises ConfigError."""
    name, host, port = _parse(text)
    if name not in (None, SecurityProtocol.PLAINTEXT):
        raise ConfigError(
            f"{text!r}: only PLAINTEXT can be given here; set listeners with other protocols in the "
            "configuration listeners"
        )
    if not host:
        raise ConfigError(f"{text!r} is not an address; write host:port, for example 127.0.0.1:9092")
    return host, port


def _parse(text: str) -> tuple[str | None, str, int]:
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ConfigError(f"{text!r} is not an address; write host:port, for example 127.0.0.1:9092")
    return found["name"], found["v6"] or found["host"] or "", int(found["port"])


def _parse_map(text: str) -> dict[str, SecurityProtocol]:
    protocols = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, _, protocol = item.rpartition(":")
        try:
            protocols[name.strip().upper()] = SecurityProtocol(protocol.strip())
        except ValueError:
            raise ConfigError(
                f"{item!r} is not NAME:PROTOCOL; the protocols are {', '.join(SecurityProtocol)}"
            ) from None
    return protocols


def listeners_of(
    config: Mapping[str, Any], explicit: Mapping[str, str], listen: tuple[str, int]
) -> tuple[Listener, ...]:
    """Return the listeners of a configuration, in its order; `listen` is used if it names none. `explicit` has the
    values that are set. Raises ConfigError.

    Listeners in `controller.listener.names` are left out, because there are no separate controllers.
    """
    protocols = _parse_map(config["listener.security.protocol.map"])
    controllers = {name.upper() for name in config["controller.listener.names"]}
    advertised = _advertised(config)
    texts = config["listeners"]
    found: dict[str, Listener] = {}
    for text in texts if texts is not None else ["PLAINTEXT://:0"]:
        name, host, port = _parse(text)
        if name is None:
            raise _wrong("listeners", text, "write NAME://host:port")
        name = name.upper()
        if name in controllers:
            continue
        if texts is None:
            host, port = listen
        if name in found:
            raise _wrong(
                "listeners",
                ",".join(texts),
                f"Each listener must have a different name; {name} is named twice",
            )
        taken = [each.name for each in found.values() if port and (each.host, each.port) == (host, port)]
        if taken:
            raise _wrong("listeners", ",".join(texts), f"{taken[0]} and {name} have the same address")
        if texts is not None and name not in protocols:
            raise ConfigError(
                f"No security protocol defined for listener {name}: add {name}:PROTOCOL to "
                "listener.security.protocol.map"
            )
        found[name] = Listener(
            name, protocols.get(name, SecurityProtocol.PLAINTEXT), host, port, advertised.pop(name, None)
        )
    if not found:
        raise ConfigError("listeners has no listener for clients")
    _check_inter_broker(config, explicit, found)
    _check_prefixes(explicit, {*found, *controllers, *protocols})
    if None in advertised and len(found) == 1:
        only = next(iter(found.values()))
        return (msgspec.structs.replace(only, advertised=advertised[None]),)
    for name in advertised:
        if name is None:
            raise ConfigError("advertised.listeners must name the listener of each address: NAME://host:port")
        if name not in controllers:
            raise ConfigError(
                f"advertised.listeners names {name}, which is not in listeners; it has {', '.join(found)}"
            )
    return tuple(found.values())


def inter_broker_listener(name: str | None, protocol: str) -> str:
    """Return the name of the listener that brokers use among themselves, from the two configurations that can set
    it.
    """
    return (name or protocol).upper()


def _advertised(config: Mapping[str, Any]) -> dict[str | None, tuple[str, int]]:
    addresses: dict[str | None, tuple[str, int]] = {}
    for text in config["advertised.listeners"] or ():
        name, host, port = _parse(text)
        if not host or host in ("0.0.0.0", "::"):
            raise _wrong(
                "advertised.listeners",
                text,
                "it must be an address that clients can connect to; this one is not",
            )
        addresses[None if name is None else name.upper()] = host, port
    return addresses


def _check_inter_broker(
    config: Mapping[str, Any], explicit: Mapping[str, str], found: dict[str, Listener]
) -> None:
    name = config["inter.broker.listener.name"]
    if name is None:
        return
    if "security.inter.broker.protocol" in explicit:
        raise ConfigError(
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."
        )
    if name.upper() not in found:
        raise ConfigError(
            f"inter.broker.listener.name is {name}, which is not in listeners; it has {', '.join(found)}"
        )


def _check_prefixes(explicit: Mapping[str, str], names: set[str]) -> None:
    """Refuse configurations of unknown listeners, which would otherwise be ignored: a demand for client certificates,
    for example.
    """
    known = [listener_prefix(name) for name in sorted(names)]
    for name in explicit:
        if name.startswith(_OF_ONE) and not name.startswith(tuple(known)):
            prefix = name[: -len(without_listener(name) or "")]
            guess = nearest_name(prefix, known)
            hint = f"; did you mean {guess}*?" if guess else ""
            raise ConfigError(f"Unknown listener in the config name {name}{hint}")


def _wrong(name: str, value: str, complaint: str) -> ConfigError:
    return ConfigError(f"Invalid value {value} for configuration {name}: {complaint}")


def _checked(parse: Any) -> Any:
    def check(value: Any) -> str | None:
        try:
            for text in value if isinstance(value, list) else [value]:
                parse(text)
        except ConfigError as error:
            return str(error)
        return None

    return check


LISTENER_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey(
        "listeners",
        ConfigType.LIST,
        None,
        "Addresses that this broker listens on: NAME://host:port, separated by commas. Without a host: "
        "every address; port 0: a free port. If not set, --listen of the command line is used.",
        _checked(_parse),
    ),
    ConfigKey(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "Addresses that the broker advertises to clients: NAME://host:port for each listener, or host:port if there is "
        "only one. By default the address of the listener, or the machine's name if that is every address.",
        _checked(_parse),
    ),
    ConfigKey(
        "listener.security.protocol.map",
        ConfigType.STRING,
        _PROTOCOLS,
        "Protocol of each listener, NAME:PROTOCOL: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        _checked(_parse_map),
    ),
    ConfigKey(
        "inter.broker.listener.name",
        ConfigType.STRING,
        None,
        "Name of the listener that brokers use among themselves. Set only one of this and "
        "security.inter.broker.protocol.",
    ),
    ConfigKey(
        "security.inter.broker.protocol",
        ConfigType.STRING,
        "PLAINTEXT",
        "Protocol that brokers use among themselves, if inter.broker.listener.name is not set.",
        choices=tuple(SecurityProtocol),
    ),
)
