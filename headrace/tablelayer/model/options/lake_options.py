"""Options of a lake's own table, which a table's definition passes on: `paimon.*` and `iceberg.*`.

Any name is possible except those that tiering sets itself. The server decides which of them a client may set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.options.option import Option, OptionType
from headrace.tablelayer.model.options.option_types import BOOLEAN, DURATION, TEXT, whole_number

PAIMON_PREFIX = "paimon."
PAIMON_DOC = (
    "An option of the Paimon table, with its name in Paimon's documentation: paimon.changelog-producer."
)

# Options on which tiering and its reads depend.
_PAIMON_RESERVED = (
    "auto-create", "branch", "bucket", "bucket-key", "commit.user-prefix", "consumer-id", "data-evolution.enabled",
    "data-file.thin-mode", "deletion-vectors.bitmap64", "dynamic-bucket.", "file.format.per.level", "headrace.",
    "ignore-delete", "index-file-in-data-file-dir", "manifest.format", "merge-engine", "partition", "path",
    "pk-clustering-override", "primary-key", "row-tracking.enabled", "rowkind.field", "scan.", "sequence.field", "type",
    "write-only",
)  # fmt: skip
ICEBERG_PREFIX = "iceberg."
ICEBERG_DOC = (
    "A property of the Iceberg table, with its name in Iceberg's documentation, such as"
    " iceberg.history.expire.max-snapshot-age-ms."
)
_ICEBERG_RESERVED = (
    "headrace.", "location", "write.delete.format.default", "write.delete.mode",
    "write.distribution-mode", "write.format.default", "write.merge.distribution-mode", "write.merge.mode",
    "write.update.mode", "write.wap.",
)  # fmt: skip
ICEBERG_FORMAT_VERSION = "iceberg.format-version"
_PAIMON_PRODUCERS = ("none", "lookup", "full-compaction")
PAIMON_FILE_FORMAT = "paimon.file.format"
PAIMON_DELETION_VECTORS = "paimon.deletion-vectors.enabled"
PAIMON_PRODUCER = "paimon.changelog-producer"
ORC, AVRO = "orc", "avro"
_PAIMON_FILE_FORMATS = ("parquet", ORC, AVRO)
EXPIRATION_TIME = "paimon.partition.expiration-time"
EXPIRATION_CHECK = "paimon.partition.expiration-check-interval"
EXPIRATION_COUNT = "paimon.partition.expiration-max-num"
TIMESTAMP_FORMATTER, TIMESTAMP_PATTERN = (
    "paimon.partition.timestamp-formatter",
    "paimon.partition.timestamp-pattern",
)
_EXPIRATION_STRATEGY = "paimon.partition.expiration-strategy"
_EXPIRATION = ("paimon.partition.expiration-", "paimon.partition.timestamp-")
_EXPIRATION_CHECK_MS = 3_600_000
"""Paimon's default of the interval."""
NOT_IN_ICEBERG = (
    "Iceberg has no expiry of partitions: choose 'table.datalake.format' = 'paimon', or drop old partitions with"
    " ALTER TABLE ... DROP PARTITION"
)


def find_passed(name: str) -> Option[Any] | None:
    """Return the option of a name with a lake's prefix; None for other names.

    Raises TableError(INVALID_TABLE) for a name that cannot be set.
    """
    if name.startswith(PAIMON_PREFIX):
        return _passed_to_paimon(name)
    if name.startswith(ICEBERG_PREFIX):
        if name.startswith("iceberg.partition.expiration-"):
            raise invalid_table(f"option '{name}' cannot be given: {NOT_IN_ICEBERG}")
        _check_passed(name, ICEBERG_PREFIX, "Iceberg", _ICEBERG_RESERVED)
        if name == ICEBERG_FORMAT_VERSION:
            return Option(name, OptionType(_parse_format_version), None, ICEBERG_DOC)
        return Option(name, TEXT, None, ICEBERG_DOC)
    return None


def _passed_to_paimon(name: str) -> Option[Any]:
    """Return an option of Paimon that tiering does not set itself. Raises TableError(INVALID_TABLE)."""
    _check_passed(name, PAIMON_PREFIX, "Paimon", _PAIMON_RESERVED)
    if is_expiration_option(name):
        kind = _EXPIRATION_TYPES.get(name)
        if kind is None:
            raise invalid_table(
                f"option '{name}' cannot be given: the options of the expiry of partitions are"
                f" {', '.join(sorted(_EXPIRATION_TYPES))}"
            )
        return Option(name, kind, None, PAIMON_DOC, partitioned_only=True)
    if name == PAIMON_PRODUCER:
        return Option(name, OptionType(_parse_producer), None, PAIMON_DOC, primary_key_only=True)
    if name == PAIMON_DELETION_VECTORS:
        return Option(name, BOOLEAN, None, PAIMON_DOC, primary_key_only=True)
    if name == PAIMON_FILE_FORMAT:
        return Option(name, OptionType(_parse_file_format), None, PAIMON_DOC)
    return Option(name, TEXT, None, PAIMON_DOC)


def _check_passed(name: str, prefix: str, lake: str, all_reserved: tuple[str, ...]) -> None:
    own = name.removeprefix(prefix)
    if not own:
        raise invalid_table(f"option '{name}' does not name an option of {lake}")
    for reserved in all_reserved:
        if own == reserved or (reserved.endswith(".") and own.startswith(reserved)):
            raise invalid_table(
                f"option '{name}' cannot be given: tiering into {lake} sets it itself; leave it out"
            )


def passed_options(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return a table's options with this prefix, by their names in the lake format."""
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def is_expiration_option(name: str) -> bool:
    """Return whether a name is one of the expiry of partitions in Paimon."""
    return name.startswith(_EXPIRATION)


def expiration_check_ms(options: Mapping[str, str]) -> int | None:
    """Return the interval between two checks for expired partitions; None for a table whose partitions stay."""
    if EXPIRATION_TIME not in options:
        return None
    text = options.get(EXPIRATION_CHECK)
    return _EXPIRATION_CHECK_MS if text is None else DURATION.parse(text)


def _parse_strategy(text: str) -> str:
    """Check a strategy. The time of the last change is not known for rows that are not in the lake yet."""
    if text != "values-time":
        raise ValueError("must be 'values-time': the time of a partition is in its values")
    return text


_EXPIRATION_TYPES: Mapping[str, OptionType[Any]] = {
    EXPIRATION_TIME: DURATION,
    EXPIRATION_CHECK: DURATION,
    EXPIRATION_COUNT: whole_number(1, 1_000_000, " from 1 to 1,000,000"),
    _EXPIRATION_STRATEGY: OptionType(_parse_strategy),
    TIMESTAMP_FORMATTER: TEXT,
    TIMESTAMP_PATTERN: TEXT,
}


def _parse_format_version(text: str) -> str:
    """Check a version of Iceberg's format. Version 1 has no deletes of rows."""
    if text not in ("2", "3"):
        raise ValueError("must be '2' or '3'")
    return text


def _parse_file_format(text: str) -> str:
    """Check a format of data files."""
    if text not in _PAIMON_FILE_FORMATS:
        raise ValueError(f"must be one of {', '.join(repr(each) for each in _PAIMON_FILE_FORMATS)}")
    return text


def _parse_producer(text: str) -> str:
    """Check a changelog producer. 'input' is not possible: a round writes only the last change of each key."""
    if text not in _PAIMON_PRODUCERS:
        raise ValueError(f"must be one of {', '.join(repr(each) for each in _PAIMON_PRODUCERS)}")
    return text
