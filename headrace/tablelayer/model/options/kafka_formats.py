"""How the rows of a table look in the values of Kafka records: the formats and their parameters.

Declared as options in `options.py`; what a format does is in the rooms `json` and `avro`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import urlsplit

VALUE_PATH_LEVELS_MAX = 32  # far beyond any envelope that is in use; every level is a pass over the batch


class KafkaValueFormat(StrEnum):
    """What a row looks like to a Kafka client."""

    JSON = "json"
    DEBEZIUM_JSON = "debezium-json"
    AVRO = "avro"


JSON_FORMATS = (KafkaValueFormat.JSON, KafkaValueFormat.DEBEZIUM_JSON)


class DebeziumTime(StrEnum):
    """What numbers in DATE, TIME and TIMESTAMP columns count: Debezium's `time.precision.mode`."""

    ADAPTIVE = "adaptive"
    ADAPTIVE_TIME_MICROSECONDS = "adaptive_time_microseconds"
    CONNECT = "connect"
    MICROSECONDS = "microseconds"
    NANOSECONDS = "nanoseconds"
    ISOSTRING = "isostring"
    STRUCTURED = "structured"


class DebeziumDecimals(StrEnum):
    """What strings in DECIMAL columns hold: Debezium's `decimal.handling.mode` (its `double` are numbers)."""

    AUTO = "auto"
    STRING = "string"
    PRECISE = "precise"


class OutOfRange(StrEnum):
    """What becomes of a date before year 1 or after 9999, and of PostgreSQL's `infinity`."""

    REFUSE = "refuse"
    NULL = "null"
    CLAMP = "clamp"
    KEEP = "keep"


class WithoutRow(StrEnum):
    """What becomes of a value that was left out as unchanged, where no row is stored."""

    REFUSE = "refuse"
    NULL = "null"


TIME_UNITS = ("d", "ms", "us", "ns")
PLACEHOLDER_BYTES_MAX = 1024  # Debezium's own has 28
UNAVAILABLE = "__debezium_unavailable_value"
DELETED_FIELD = "__deleted"


def parse_placeholder(text: str) -> str:
    """What a connector writes for a value that it does not know; `hex:` and its bytes. Raises ValueError."""
    if text.startswith("hex:"):
        try:
            bytes.fromhex(text[4:])
        except ValueError as error:
            raise ValueError(f"behind 'hex:' there must be bytes in hexadecimal: {error}") from error
    if len(text.encode()) > PLACEHOLDER_BYTES_MAX:
        raise ValueError(
            f"the value has {len(text.encode())} bytes; at most {PLACEHOLDER_BYTES_MAX} are allowed"
        )
    return text


def parse_time_units(text: str) -> dict[str, str]:
    """Units by column, of `created=ms, changed=us`. Raises ValueError."""
    units: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, unit = (each.strip() for each in part.rpartition("="))
        if not equals or not name or unit not in TIME_UNITS:
            raise ValueError(
                f"'{part.strip()}' must be a column, '=' and what its numbers count, one of {', '.join(TIME_UNITS)}, "
                "as in 'created=ms,changed=us'"
            )
        if name in units:
            raise ValueError(f"column '{name}' comes twice")
        units[name] = unit
    return units


def render_time_units(units: Mapping[str, str]) -> str:
    return ",".join(f"{name}={unit}" for name, unit in units.items())


class AvroSchemaPlace(StrEnum):
    """Where a reader of an Avro value finds the schema it was written with."""

    REGISTRY = "registry"
    RECORD = "record"


def parse_value_path(text: str) -> tuple[str, ...]:
    """The names of a path such as `payload.data` or `$.payload.data`. Raises ValueError."""
    stripped = text.strip()
    names = tuple(stripped.removeprefix("$.").split("."))
    if not all(names) or stripped == "$" or any(re.search(r"[\[\]*\x00-\x1f]", name) for name in names):
        raise ValueError(
            "the value must be names of fields from the outermost to that of the row, separated by dots, such as "
            "'payload.data'"
        )
    if len(names) > VALUE_PATH_LEVELS_MAX:
        raise ValueError(f"the path has {len(names)} levels; at most {VALUE_PATH_LEVELS_MAX} are allowed")
    return names


def render_value_path(names: tuple[str, ...]) -> str:
    return ".".join(names)


def parse_registry_url(text: str) -> str:
    """The URL of a schema registry without a slash at its end. Raises ValueError."""
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
            "a URL with credentials would be shown to everybody who may describe the table: give them to the server "
            "('schema.registry.basic.auth.user.info', 'schema.registry.bearer.auth.token')"
        )
    if parts.query or parts.fragment:
        raise ValueError("the URL of a registry has no query and no fragment")
    return url
