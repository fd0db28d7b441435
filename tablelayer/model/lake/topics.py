"""A plain topic in the lake: its `datalake.*` configurations, and the lake table that they describe.

| format | the lake table |
|---|---|
| `raw` | `key`, `value`, `headers` (JSON: names and base64 values), `timestamp`, `partition`, `offset`; appended |
| `json` | the fields of the value's object; with a primary key, upserts, and a null value deletes what the key names |
| `debezium-json` | the rows in the envelopes, as upserts and deletes by primary key |

The columns of the last two are those of `datalake.schema`, or what the records have: fields found later are added, with
numbers that have a fraction as DOUBLE, objects, arrays and what is mixed as STRING. Records that do not fit go to the
lake table of the same name with `_dead_letters`: whole, with the reason.

The server checks the configurations; the tiering job goes by them. Everything here is pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.options.option_types import parse_duration_ms, parse_name_list
from tablelayer.model.options.table_options import TableOptions, UnknownFields
from tablelayer.model.schema.schema import Column
from tablelayer.model.table.definition import (
    DEFAULT_DATABASE,
    PRIMARY_KEY_CONFIG,
    SCHEMA_CONFIG,
    TableDefinition,
    TablePath,
)
from tablelayer.model.table.evolution import AddColumn, Change, DropColumn, ModifyColumn, evolve, widens
from tablelayer.model.topic_config import from_topic_config

PREFIX = "datalake."
ENABLED = "datalake.enabled"
FORMAT = "datalake.format"
FRESHNESS = "datalake.freshness"
TABLE = "datalake.table"
VALUE_FORMAT = "datalake.value-format"
SCHEMA = "datalake.schema"
PRIMARY_KEY = "datalake.primary-key"
UNKNOWN_FIELDS = "datalake.unknown-fields"
COMPACTION = "datalake.auto-compaction"
EXPIRY = "datalake.auto-expire-snapshot"

DOCS: Mapping[str, str] = {
    ENABLED: "Whether this plain topic is tiered into the lake: true or false.",
    FORMAT: "The lake's format: iceberg or paimon.",
    FRESHNESS: "How far the lake may be behind the topic (3 min).",
    TABLE: "The lake table, as database.table; by default named like the topic.",
    VALUE_FORMAT: "What the records are: raw (default: the record as it is), json, or debezium-json.",
    SCHEMA: "The columns, as 'id BIGINT, name STRING'; without it they are what the records have.",
    PRIMARY_KEY: "The columns by which the lake table keeps one row each, separated by commas.",
    UNKNOWN_FIELDS: "What happens to fields that are no columns of 'datalake.schema': ignore, or fail.",
    COMPACTION: "Whether the tiering job makes few large files of the lake table's many small ones.",
    EXPIRY: "Whether the tiering job removes old snapshots of the lake table.",
}
DEAD_LETTERS_SUFFIX = "_dead_letters"

RAW_COLUMNS = (
    "`key` BYTES, `value` BYTES, headers STRING, `timestamp` TIMESTAMP_LTZ(3) NOT NULL, `partition` INT NOT NULL,"
    " `offset` BIGINT NOT NULL"
)
DEAD_LETTER_COLUMNS = RAW_COLUMNS + ", error STRING NOT NULL"


class TopicFormat(StrEnum):
    """What the records of a tiered topic are."""

    RAW = "raw"
    JSON = "json"
    DEBEZIUM_JSON = "debezium-json"


class TopicLake(msgspec.Struct, frozen=True):
    """A topic's configurations, checked. `schema` None: inferred (or fixed, of raw records)."""

    enabled: bool
    format: str
    freshness_ms: int
    path: TablePath
    value_format: TopicFormat
    schema: str | None
    primary_key: tuple[str, ...]
    unknown_fields: UnknownFields
    compaction: bool
    expiry: bool

    @classmethod
    def parse(cls, topic: str, config: Mapping[str, str]) -> TopicLake:
        """Raises TableError(INVALID_TABLE) naming the configuration and its value."""
        given = {name: value.strip() for name, value in config.items() if name.startswith(PREFIX)}
        value_format = _word(
            VALUE_FORMAT, given.get(VALUE_FORMAT, "raw"), [each.value for each in TopicFormat]
        )
        found = cls(
            enabled=_word(ENABLED, given.get(ENABLED, "false"), ["true", "false"]) == "true",
            format=_word(FORMAT, given.get(FORMAT, "iceberg"), ["iceberg", "paimon"]),
            freshness_ms=_duration(given.get(FRESHNESS, "3 min")),
            path=_lake_path(topic, given.get(TABLE)),
            value_format=TopicFormat(value_format),
            schema=given.get(SCHEMA) or None,
            primary_key=parse_name_list(given.get(PRIMARY_KEY, "")),
            unknown_fields=UnknownFields(
                _word(
                    UNKNOWN_FIELDS,
                    given.get(UNKNOWN_FIELDS, "ignore"),
                    [each.value for each in UnknownFields],
                )
            ),
            compaction=_word(COMPACTION, given.get(COMPACTION, "false"), ["true", "false"]) == "true",
            expiry=_word(EXPIRY, given.get(EXPIRY, "false"), ["true", "false"]) == "true",
        )
        found._check(given)
        return found

    def _check(self, given: Mapping[str, str]) -> None:
        if self.value_format is TopicFormat.RAW:
            for name in (SCHEMA, PRIMARY_KEY, UNKNOWN_FIELDS):
                if name in given:
                    raise _invalid(
                        f"'{name}' = '{given[name]}': '{VALUE_FORMAT}' is raw, whose columns are fixed; set it to"
                        " json or debezium-json"
                    )
        if self.value_format is TopicFormat.DEBEZIUM_JSON and not self.primary_key:
            raise _invalid(
                f"'{VALUE_FORMAT}' = 'debezium-json' gives upserts and deletes: say by which columns with"
                f" '{PRIMARY_KEY}'"
            )
        if self.schema is None and self.unknown_fields is UnknownFields.FAIL:
            raise _invalid(
                f"'{UNKNOWN_FIELDS}' = 'fail' is for topics with '{SCHEMA}': without one every field becomes a column"
            )
        if self.schema is not None:
            self.definition(self.schema, None, 1)

    @property
    def is_inferred(self) -> bool:
        return self.schema is None and self.value_format is not TopicFormat.RAW

    def declared(self, topic_id: UUID, partitions: int) -> TableDefinition | None:
        """The lake table as it was declared; None where its columns are inferred."""
        if self.is_inferred:
            return None
        return self.definition(self.schema or RAW_COLUMNS, topic_id, partitions)

    def undefined(self, topic_id: UUID) -> TableDefinition:
        """Of the right name and id, to look for the lake table before its columns are known."""
        config = {SCHEMA_CONFIG: RAW_COLUMNS, **self.options}
        return from_topic_config(self.path, topic_id, 1, config)

    @property
    def options(self) -> dict[str, str]:
        """The options of the lake table's definition."""
        return {
            TableOptions.datalake_enabled.name: "true",
            TableOptions.datalake_format.name: self.format,
            TableOptions.datalake_compaction.name: str(self.compaction).lower(),
            TableOptions.datalake_expiry.name: str(self.expiry).lower(),
        }

    def definition(self, schema: str, topic_id: UUID | None, partitions: int) -> TableDefinition:
        """The lake table with these columns. Raises TableError(INVALID_TABLE)."""
        config = {SCHEMA_CONFIG: schema, **self.options}
        if self.primary_key:
            config[PRIMARY_KEY_CONFIG] = ",".join(self.primary_key)
            config["table.bucket-key"] = self.primary_key[0]
        found = from_topic_config(self.path, topic_id, partitions, config)
        for column in found.schema.columns:
            if self.primary_key and not column.nullable and column.name not in self.primary_key:
                raise _invalid(
                    f"'{SCHEMA}': column '{column.name}' is NOT NULL, but of a deleted row only the primary key is"
                    " known: leave NOT NULL out"
                )
        return found

    @property
    def dead_letters_path(self) -> TablePath:
        """Where records that do not fit go."""
        return TablePath(self.path.database, self.path.table + DEAD_LETTERS_SUFFIX)

    def dead_letters(self, topic_id: UUID) -> TableDefinition:
        """The lake table of the records that do not fit."""
        config = {SCHEMA_CONFIG: DEAD_LETTER_COLUMNS, **self.options}
        return from_topic_config(self.dead_letters_path, topic_id, 1, config)


def is_tiered_topic(config: Mapping[str, str]) -> bool:
    """Whether a topic that is no table asks for the lake."""
    return config.get(ENABLED, "").strip().lower() == "true"


def successor(stored: TableDefinition, wanted: Sequence[Column], *, keep: bool) -> TableDefinition:
    """The lake table after its columns became `wanted`: matched by name, ids kept.

    With `keep`, as for inferred columns, none is dropped and a type changes only to a wider one; otherwise
    TableError(INVALID_TABLE) says what cannot be.
    """
    changes: list[Change] = []
    known = {column.name: column for column in stored.schema.columns}
    names = {column.name for column in wanted}
    if not keep:
        changes += [DropColumn(name) for name in known if name not in names]
    for column in wanted:
        before = known.get(column.name)
        if before is None:
            changes.append(AddColumn(column.name, column.type))
        elif before.type != column.type and (not keep or widens(before.type, column.type)):
            changes.append(ModifyColumn(column.name, column.type))
    return evolve(stored, changes) if changes else stored


def stored_text(definition: TableDefinition) -> str:
    """A definition with its history, to be kept with the lake table."""
    return json.dumps({"config": definition.to_topic_config(), "buckets": definition.bucket_count})


def from_stored(text: str, path: TablePath, topic_id: UUID) -> TableDefinition:
    """What `stored_text` wrote."""
    value: dict[str, Any] = json.loads(text)
    return from_topic_config(path, topic_id, value["buckets"], value["config"])


def _lake_path(topic: str, given: str | None) -> TablePath:
    try:
        if given:
            path = TablePath.parse(given)
        else:
            database, dot, table = topic.partition(".")
            path = TablePath(database, table.replace(".", "_")) if dot else TablePath(DEFAULT_DATABASE, topic)
        if path.partition is not None:
            raise _invalid("a lake table is named database.table")
    except TableError as error:
        raise _invalid(
            f"'{TABLE}': topic '{topic}' cannot be lake table '{given or topic}': {error.message}; set '{TABLE}' to"
            " database.table"
        ) from None
    return path


def _duration(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise _invalid(f"'{FRESHNESS}' = '{text}': {error}") from None


def _word(name: str, text: str, words: Sequence[str]) -> str:
    found = text.strip().lower()
    if found not in words:
        raise _invalid(f"'{name}' = '{text}': it must be {' or '.join(words)}")
    return found


def _invalid(message: str) -> TableError:
    return TableError(TableErrorCode.INVALID_TABLE, message)
