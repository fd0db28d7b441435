"""The `datalake.*` configurations of a plain topic: each is declared once, as an attribute of `TopicOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.options.option import Option
from headrace.tablelayer.model.options.option_types import BOOLEAN, COLUMNS, DURATION, TEXT, one_of
from headrace.tablelayer.model.options.table_options import DatalakeFormat, UnknownFields

PREFIX = "datalake."


class TopicFormat(StrEnum):
    """The format of a tiered topic's records."""

    RAW = "raw"
    JSON = "json"
    DEBEZIUM_JSON = "debezium-json"


class TopicOptions:
    """The effective values of one topic's configurations, with defaults filled in. They never change."""

    enabled = Option(
        "datalake.enabled",
        BOOLEAN,
        False,
        "Whether this plain topic is tiered into the lake: true or false.",
    )
    format = Option(
        "datalake.format",
        one_of(DatalakeFormat),
        DatalakeFormat.ICEBERG,
        "The lake's format: iceberg or paimon.",
    )
    freshness_ms = Option(
        "datalake.freshness",
        DURATION,
        180_000,
        "Maximum time that the lake may be behind the topic (3 min).",
    )
    table = Option(
        "datalake.table",
        TEXT,
        "",
        "The lake table, as database.table; by default it has the topic's name.",
    )
    value_format = Option(
        "datalake.value-format",
        one_of(TopicFormat),
        TopicFormat.RAW,
        "The format of the records: raw (default: the record as it is), json, or debezium-json.",
    )
    schema = Option(
        "datalake.schema",
        TEXT,
        "",
        "The columns, as 'id BIGINT, name STRING'; by default they are inferred from the records.",
    )
    primary_key = Option(
        "datalake.primary-key",
        COLUMNS,
        (),
        "The primary key of the lake table: its columns, separated by commas.",
    )
    unknown_fields = Option(
        "datalake.unknown-fields",
        one_of(UnknownFields),
        UnknownFields.IGNORE,
        "The treatment of fields without a column in 'datalake.schema': ignore, or fail.",
    )
    compaction = Option(
        "datalake.auto-compaction",
        BOOLEAN,
        False,
        "Whether the tiering job merges the lake table's small files into large ones.",
    )
    expiry = Option(
        "datalake.auto-expire-snapshot",
        BOOLEAN,
        False,
        "Whether the tiering job removes old snapshots of the lake table.",
    )


_ATTRIBUTES: Mapping[str, Option[Any]] = {
    attribute: option for attribute, option in vars(TopicOptions).items() if isinstance(option, Option)
}
DECLARED: Mapping[str, Option[Any]] = {option.name: option for option in _ATTRIBUTES.values()}


def read(given: Mapping[str, str]) -> TopicOptions:
    """Return the effective values. Raises TableError(INVALID_TABLE) that names the configuration and its value."""
    options = TopicOptions()
    for attribute, option in _ATTRIBUTES.items():
        try:
            setattr(options, attribute, option.effective(given))
        except ValueError as error:
            raise TableError(
                TableErrorCode.INVALID_TABLE, f"'{option.name}' = '{given[option.name]}': {error}"
            ) from None
    return options
