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
    """What the records of a tiered topic are."""

    RAW = "raw"
    JSON = "json"
    DEBEZIUM_JSON = "debezium-json"


class TopicOptions:
    """The effective values of one topic's configurations, defaults filled in; they never change."""

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
        "How far the lake may be behind the topic (3 min).",
    )
    table = Option(
        "datalake.table",
        TEXT,
        "",
        "The lake table, as database.table; by default named like the topic.",
    )
    value_format = Option(
        "datalake.value-format",
        one_of(TopicFormat),
        TopicFormat.RAW,
        "What the records are: raw (default: the record as it is), json, or debezium-json.",
    )
    schema = Option(
        "datalake.schema",
        TEXT,
        "",
        "The columns, as 'id BIGINT, name STRING'; without it they are what the records have.",
    )
    primary_key = Option(
        "datalake.primary-key",
        COLUMNS,
        (),
        "The columns by which the lake table keeps one row each, separated by commas.",
    )
    unknown_fields = Option(
        "datalake.unknown-fields",
        one_of(UnknownFields),
        UnknownFields.IGNORE,
        "What happens to fields that are no columns of 'datalake.schema': ignore, or fail.",
    )
    compaction = Option(
        "datalake.auto-compaction",
        BOOLEAN,
        False,
        "Whether the tiering job makes few large files of the lake table's many small ones.",
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
    """Raises TableError(INVALID_TABLE) naming the configuration and its value."""
    options = TopicOptions()
    for attribute, option in _ATTRIBUTES.items():
        try:
            setattr(options, attribute, option.effective(given))
        except ValueError as error:
            raise TableError(
                TableErrorCode.INVALID_TABLE, f"'{option.name}' = '{given[option.name]}': {error}"
            ) from None
    return options
