"""How a configuration is declared: one `ConfigKey` per name, for the broker, for topics and for extensions.

A declaration carries everything that is ever said about the configuration: its type on the wire, its default,
a line of documentation and its rule. DescribeConfigs, `--help` and the error messages are computed from it.
Values travel as text (Kafka's own way); `ConfigKey.parse` turns text into a value and is the only place that
does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import msgspec


class ConfigError(Exception):
    """A configuration that cannot be accepted; the text says which one, its value and what to do."""


class ConfigType(IntEnum):
    """The `config_type` of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_BOUNDS = {
    ConfigType.SHORT: (-(1 << 15), (1 << 15) - 1),
    ConfigType.INT: (-(1 << 31), (1 << 31) - 1),
    ConfigType.LONG: (-(1 << 63), (1 << 63) - 1),
}


class ConfigKey(msgspec.Struct, frozen=True):
    """One configuration.

    `default` is text, or None for "not set". `check` gets the parsed value and returns what is wrong with it,
    or None. `choices` lists the legal texts where there are few. A `dynamic` one of the broker may be changed
    while it runs.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    check: Callable[[Any], str | None] | None = None
    choices: tuple[str, ...] = ()
    dynamic: bool = False

    def parse(self, text: str) -> Any:
        """The value of `text`: bool, int, float, str or list[str] by type; raises ConfigError."""
        text = text.strip()
        value: Any = text
        if self.choices and self.type != ConfigType.LIST and text not in self.choices:
            raise ConfigError(f"{self.name} is {text!r}; it must be one of {', '.join(self.choices)}")
        if self.type == ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{self.name} is {text!r}; it must be true or false")
            value = text.lower() == "true"
        elif self.type in _BOUNDS:
            try:
                value = int(text)
            except ValueError:
                raise ConfigError(f"{self.name} is {text!r}; it must be a whole number") from None
            low, high = _BOUNDS[self.type]
            if not low <= value <= high:
                raise ConfigError(f"{self.name} is {text}; it must lie between {low} and {high}")
        elif self.type == ConfigType.DOUBLE:
            try:
                value = float(text)
            except ValueError:
                raise ConfigError(f"{self.name} is {text!r}; it must be a number") from None
        elif self.type == ConfigType.LIST:
            value = [item.strip() for item in text.split(",") if item.strip()]
            for item in value:
                if self.choices and item not in self.choices:
                    raise ConfigError(f"{self.name} has {item!r}; legal are {', '.join(self.choices)}")
        if self.check is not None and (complaint := self.check(value)) is not None:
            raise ConfigError(f"{self.name} is {text!r}; {complaint}")
        return value

    @property
    def default_value(self) -> Any:
        return None if self.default is None else self.parse(self.default)


def at_least(minimum: int) -> Callable[[Any], str | None]:
    return lambda value: None if value >= minimum else f"it must be at least {minimum}"


def between(minimum: int, maximum: int) -> Callable[[Any], str | None]:
    return lambda value: None if minimum <= value <= maximum else f"it must be from {minimum} to {maximum}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped `name` most likely meant."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a configuration nobody declared."""
    guess = nearest_name(name, known)
    hint = f"; did you mean {guess!r}?" if guess else ""
    return ConfigError(f"unknown {what} configuration {name!r}{hint}")
