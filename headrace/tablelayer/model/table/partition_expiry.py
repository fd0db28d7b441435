"""Expiry of old partitions in a Paimon lake: how the time of a partition is read from its values.

The options are Paimon's own (`paimon.partition.expiration-time` and others). The pattern makes one text of the values,
`$name` standing for the value of a column; by default it is the first value. The formatter, in Java's letters, reads
the time from the text. For a table with automatic partitions both follow from the calendar.
"""

from __future__ import annotations

from headrace.tablelayer.model.options.lake_options import (
    EXPIRATION_TIME,
    PAIMON_PREFIX,
    TIMESTAMP_FORMATTER,
    TIMESTAMP_PATTERN,
    is_expiration_option,
)
from headrace.tablelayer.model.options.table_options import TimeUnit
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import TypeKind

_OF_UNIT = {
    TimeUnit.HOUR: ("", "yyyyMMddHH"),
    TimeUnit.DAY: ("", "yyyyMMdd"),
    TimeUnit.MONTH: ("-01", "yyyyMM-dd"),
    TimeUnit.YEAR: ("-01-01", "yyyy-MM-dd"),
}
"""The end of the pattern, and the formatter, for names of automatic partitions."""


def time_options(definition: TableDefinition) -> dict[str, str]:
    """Return the pattern and formatter of a table whose partitions expire, by Paimon's names, as far as it has them."""
    given = {
        name.removeprefix(PAIMON_PREFIX): definition.options[name]
        for name in (TIMESTAMP_PATTERN, TIMESTAMP_FORMATTER)
        if name in definition.options
    }
    if given or EXPIRATION_TIME not in definition.options or not definition.settings.auto_partition:
        return given
    key = definition.settings.auto_partition_key or definition.partition_keys[0]
    end, formatter = _OF_UNIT.get(definition.settings.auto_partition_unit, ("", ""))
    if definition.schema.column(key).type.kind is TypeKind.DATE:
        formatter = "yyyy-MM-dd"
    found = {TIMESTAMP_PATTERN: f"${key}{end}", TIMESTAMP_FORMATTER: formatter}
    return {name.removeprefix(PAIMON_PREFIX): value for name, value in found.items()}


def expiry_complaint(definition: TableDefinition) -> str | None:
    """Return why the partitions of a table cannot expire as its options say; None if they can, or do not expire."""
    options, settings = definition.options, definition.settings
    if EXPIRATION_TIME not in options:
        alone = next(filter(is_expiration_option, options), None)
        return alone and f"option '{alone}' needs '{EXPIRATION_TIME}', the age at which a partition expires"
    pattern = rest = options.get(TIMESTAMP_PATTERN, "")
    for key in definition.partition_keys:
        rest = rest.replace(f"${key}", "")
    if "$" in rest:
        return (
            f"option '{TIMESTAMP_PATTERN}' = '{pattern}': '$' must come before the name of a partition column; they are"
            f" {', '.join(definition.partition_keys)}"
        )
    if settings.auto_partition and settings.auto_partition_unit not in _OF_UNIT:
        return (
            f"option '{EXPIRATION_TIME}' is not possible with partitions of a {settings.auto_partition_unit}: Paimon"
            " cannot read their time. Use 'table.auto-partition.num-retention', and drop partitions by hand"
        )
    return None
