"""The loggers of this process as Kafka's resource BROKER_LOGGER: levels by component, changed while it runs (KIP-412).

Levels have log4j's names, which Kafka's tools send: TRACE DEBUG INFO WARN ERROR FATAL. A logger without a level of its
own shows the level of its nearest ancestor, and goes back to it when its level is deleted. Levels belong to the
process, not to the store: they are lost at a restart, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.broker.configs.config_key import ConfigType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.describe_configs import DescribeConfigsResourceResult
from headrace.protocol.messages.incremental_alter_configs import AlterableConfig

LOGGER_SOURCE: Final = 6  # ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
ROOT: Final = "root"
PREFIX: Final = "headrace"
LEVELS: Final[Mapping[str, int]] = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_SET, _DELETE = 0, 1  # AlterConfigOp.OpType
_OPERATIONS: Final = {2: "APPEND", 3: "SUBTRACT"}


def loggers() -> dict[str, logging.Logger]:
    """Headrace's loggers by name, and the root logger."""
    known = logging.Logger.manager.loggerDict
    own = {
        name: found
        for name, found in sorted(known.items())
        if isinstance(found, logging.Logger) and (name == PREFIX or name.startswith(f"{PREFIX}."))
    }
    return {ROOT: logging.getLogger(), **own}


def level_name(level: int) -> str:
    """Return the name of the level, or of the next more severe one."""
    return next((name for name, number in LEVELS.items() if level <= number), "FATAL")


def describe_loggers() -> list[DescribeConfigsResourceResult]:
    """Return the level in effect of each logger."""
    return [
        DescribeConfigsResourceResult(
            name=name,
            value=level_name(each.getEffectiveLevel()),
            read_only=False,
            config_source=LOGGER_SOURCE,
            is_sensitive=False,
            synonyms=[],
            config_type=int(ConfigType.STRING),
            documentation=f"Lowest level that {name} logs: {', '.join(LEVELS)}.",
        )
        for name, each in loggers().items()
    ]


def change_loggers(entries: Sequence[AlterableConfig], *, validate_only: bool) -> None:
    """Set or delete levels (SET, DELETE), all or none. Raises KafkaError."""
    known = loggers()
    wanted: dict[str, int] = {}
    for entry in entries:
        if entry.name in wanted:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Error due to duplicate config keys: {entry.name} is in the request twice",
            )
        if entry.name not in known:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Logger {entry.name} does not exist! There are: {', '.join(known)}",
            )
        wanted[entry.name] = _level(entry)
    if not validate_only:
        for name, level in wanted.items():
            known[name].setLevel(level)


def _level(entry: AlterableConfig) -> int:
    if entry.config_operation == _DELETE:
        if entry.name == ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
            )
        return logging.NOTSET
    if entry.config_operation != _SET:
        operation = _OPERATIONS.get(entry.config_operation, f"Unknown {entry.config_operation}")
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{operation} operation is not allowed for the BROKER_LOGGER resource"
        )
    level = LEVELS.get((entry.value or "").upper())
    if level is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {entry.name} to {entry.value!r} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}",
        )
    return level
