"""Declaration of a configuration: one `ConfigKey` per name, for the broker, for topics and for extensions.

A declaration has all facts about the configuration: its type on the wire, its default, a line of documentation and its
rule. DescribeConfigs, `--help` and the error messages are computed from it. Values are passed as text, as in Kafka;
`ConfigKey.parse` is the only place that turns text into a value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import msgspec
from msgspec.structs import replace


class ConfigError(Exception):
    """A configuration that cannot be accepted. The text names it, its value and the remedy."""


_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_USER_INFO = re.compile(r"//[^/@\s]*@")
"""User and password in a URL."""


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

    `default` is text, or None for "not set". `check` gets the parsed value and returns a description of its fault, or
    None. `choices` lists the legal texts if there are few. A `dynamic` configuration of the broker may be changed while
    it runs. For a family of names, `type_of` and `dynamic_of` return type and dynamic of each name. `names_topic`: the
    value is a topic that is written to, and setting it needs the right to write to that topic.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    check: Callable[[Any], str | None] | None = None
    choices: tuple[str, ...] = ()
    dynamic: bool = False
    type_of: Callable[[str], ConfigType] | None = None
    dynamic_of: Callable[[str], bool] | None = None
    names_topic: bool = False

    def named(self, name: str) -> ConfigKey:
        """Return the declaration of one name of this family."""
        return replace(
            self,
            name=name,
            type=self.type if self.type_of is None else self.type_of(name),
            dynamic=self.dynamic if self.dynamic_of is None else self.dynamic_of(name),
        )

    def parse(self, text: str) -> Any:
        """Return the value of `text`: bool, int, float, str or list[str] by type. Raises ConfigError, in Kafka's
        words.
        """
        text = text.strip()
        value: Any = text
        if self.type == ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._wrong(text, "Expected value to be either true or false")
            value = text.lower() == "true"
        elif self.type in _BOUNDS:
            low, high = _BOUNDS[self.type]
            value = int(text) if _WHOLE.fullmatch(text) else high + 1
            if not low <= value <= high:
                raise self._wrong(text, f"Not a number of type {self.type.name}")
        elif self.type == ConfigType.DOUBLE:
            try:
                value = float(text.replace("_", "not a number"))  # Python also reads 1_000
            except ValueError:
                raise self._wrong(text, "Not a number of type DOUBLE") from None
        elif self.type == ConfigType.LIST:
            value = [item.strip() for item in text.split(",") if item.strip()]
        for item in value if isinstance(value, list) else (text,):
            if self.choices and item not in self.choices:
                raise self._wrong(item, f"String must be one of: {', '.join(self.choices)}")
        if self.check is not None and (complaint := self.check(value)) is not None:
            raise self._wrong(text, complaint)
        return value

    def _wrong(self, text: str, complaint: str) -> ConfigError:
        shown = "[hidden]" if self.type == ConfigType.PASSWORD else _USER_INFO.sub("//[hidden]@", text)
        return ConfigError(f"Invalid value {shown} for configuration {self.name}: {complaint}")

    @property
    def default_value(self) -> Any:
        return None if self.default is None else self.parse(self.default)


def at_least(minimum: float) -> Callable[[Any], str | None]:
    return lambda value: None if value >= minimum else f"Value must be at least {minimum}"


def between(minimum: float, maximum: float) -> Callable[[Any], str | None]:
    least = at_least(minimum)
    return lambda value: least(value) if value <= maximum else f"Value must be no more than {maximum}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a mistyped `name` most likely meant."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an undeclared configuration, in Kafka's words."""
    guess = nearest_name(name, known)
    hint = f"; did you mean {guess!r}?" if guess else ""
    return ConfigError(f"Unknown {what} config name: {name}{hint}")
