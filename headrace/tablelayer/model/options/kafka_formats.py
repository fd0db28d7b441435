"""The formats of a table's rows in the values of Kafka records, and their parameters.

They are declared as options in `options.py`; the folders `json` and `avro` implement them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import urlsplit

VALUE_PATH_LEVELS_MAX = 32  # far beyond any envelope in use; each level is a pass over the batch


class KafkaValueFormat(StrEnum):
    """The format of a row for a Kafka client."""

    JSON = "json"
    DEBEZIUM_JSON = "debezium-json"
    AVRO = "avro"


JSON_FORMATS = (KafkaValueFormat.JSON, KafkaValueFormat.DEBEZIUM_JSON)


class DebeziumTime(StrEnum):
    """The unit of numbers in DATE, TIME and TIMESTAMP columns: Debezium's `time.precision.mode`. PLAIN is that of other
    programs: milliseconds in columns of instants, and no numbers elsewhere.
    """

    ADAPTIVE = "adaptive"
    ADAPTIVE_TIME_MICROSECONDS = "adaptive_time_microseconds"
    CONNECT = "connect"
    MICROSECONDS = "microseconds"
    NANOSECONDS = "nanoseconds"
    ISOSTRING = "isostring"
    STRUCTURED = "structured"
    PLAIN = "plain"


class DebeziumDecimals(StrEnum):
    """The form of strings in DECIMAL columns: Debezium's `decimal.handling.mode` (its `double` are numbers)."""

    AUTO = "auto"
    STRING = "string"
    PRECISE = "precise"


class OutOfRange(StrEnum):
    """The treatment of a date before year 1 or after 9999, and of PostgreSQL's `infinity`."""

    REFUSE = "refuse"
    NULL = "null"
    CLAMP = "clamp"
    KEEP = "keep"


class WithoutRow(StrEnum):
    """The treatment of a value that was left out as unchanged, if no row is stored."""

    REFUSE = "refuse"
    NULL = "null"


TIME_UNITS = ("d", "ms", "us", "ns")
PLACEHOLDER_BYTES_MAX = 1024  # Debezium's own has 28
UNAVAILABLE = "__debezium_unavailable_value"
DELETED_FIELD = "__deleted"


def parse_placeholder(text: str) -> str:
    """Check a connector's placeholder for an unknown value: a text, or `hex:` and its bytes. Raises ValueError."""
    if text.startswith("hex:"):
        try:
            bytes.fromhex(text[4:])
        except ValueError as error:
            raise ValueError(f"'hex:' must be followed by bytes in hexadecimal: {error}") from error
    if len(text.encode()) > PLACEHOLDER_BYTES_MAX:
        raise ValueError(f"the value has {len(text.encode())} bytes; the maximum is {PLACEHOLDER_BYTES_MAX}")
    return text


def parse_time_units(text: str) -> dict[str, str]:
    """Return units by column from `created=ms, changed=us`. Raises ValueError."""
    units: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, unit = (each.strip() for each in part.rpartition("="))
        if not equals or not name or unit not in TIME_UNITS:
            raise ValueError(
                f"'{part.strip()}' must be a column, '=' and the unit of its numbers, one of {', '.join(TIME_UNITS)}, "
                "as in 'created=ms,changed=us'"
            )
        if name in units:
            raise ValueError(f"column '{name}' occurs twice")
        units[name] = unit
    return units


def render_time_units(units: Mapping[str, str]) -> str:
    return ",".join(f"{name}={unit}" for name, unit in units.items())


class AvroSchemaPlace(StrEnum):
    """The place where a reader of an Avro value finds its writer's schema."""

    REGISTRY = "registry"
    RECORD = "record"


def parse_value_path(text: str) -> tuple[str, ...]:
    """Return the names of a path such as `payload.data` or `$.payload.data`. Raises ValueError."""
    stripped = text.strip()
    names = tuple(stripped.removeprefix("$.").split("."))
    if not all(names) or stripped == "$" or any(re.search(r"[\[\]*\x00-\x1f]", name) for name in names):
        raise ValueError(
            "the value must be names of fields, from the outermost to the row, separated by dots, such as "
            "'payload.data'"
        )
    if len(names) > VALUE_PATH_LEVELS_MAX:
        raise ValueError(f"the path has {len(names)} levels; the maximum is {VALUE_PATH_LEVELS_MAX}")
    return names


def render_value_path(names: tuple[str, ...]) -> str:
    return ".".join(names)


def parse_registry_url(text: str) -> str:
    """Return the URL of a schema registry without a slash at its end. Raises ValueError."""
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"the value must be a URL such as 'http://registry:8081': {error}") from error
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", url):
        raise ValueError("the value must be a URL such as 'http://registry:8081'")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "a URL with credentials would be visible to all users who may describe the table: give them to the server "
            "('schema.registry.basic.auth.user.info', 'schema.registry.bearer.auth.token')"
        )
    if parts.query or parts.fragment:
        raise ValueError("the URL of a registry has no query and no fragment")
    return url
