"""A plain topic in the lake: its `datalake.*` configurations, and the lake table that they describe.

| format | the lake table |
|---|---|
| `raw` | `key`, `value`, `headers` (JSON: names and base64 values), `timestamp`, `partition`, `offset`; appended |
| `json` | the fields of the value's object; with a primary key, upserts, and a null value deletes the row of the key |
| `debezium-json` | the rows in the envelopes, as upserts and deletes by primary key |

The columns of the last two are given by `datalake.schema` or else inferred from the records. New fields become new
columns: a number with a fraction is a DOUBLE; an object, an array or a field of mixed types is a STRING. Records that
do not fit go unchanged to the lake table with the suffix `_dead_letters`, with the reason. The server checks the
configurations; the tiering job follows them. Everything here is pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from headrace.tablelayer.model.errors import TableError, invalid_table
from headrace.tablelayer.model.lake.topic_options import PREFIX, TopicFormat, TopicOptions, read
from headrace.tablelayer.model.options.table_options import DatalakeFormat, TableOptions, UnknownFields
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import (
    PRIMARY_KEY_CONFIG,
    SCHEMA_CONFIG,
    StoredTable,
    TableDefinition,
)
from headrace.tablelayer.model.table.evolution import (
    AddColumn,
    Change,
    DropColumn,
    ModifyColumn,
    evolve,
    widens,
)
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE, TablePath
from headrace.tablelayer.model.topic_config import from_topic_config

DEAD_LETTERS_SUFFIX = "_dead_letters"

RAW_COLUMNS = (
    "`key` BYTES, `value` BYTES, headers STRING, `timestamp` TIMESTAMP_LTZ(3) NOT NULL, `partition` INT NOT NULL,"
    " `offset` BIGINT NOT NULL"
)
DEAD_LETTER_COLUMNS = RAW_COLUMNS + ", error STRING NOT NULL"


class TopicLake(msgspec.Struct, frozen=True):
    """A topic's configurations, checked. `schema` None: the columns are inferred, or those of raw records."""

    enabled: bool
    format: DatalakeFormat
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
        """Return a topic's configurations. Raises TableError(INVALID_TABLE) that names the configuration and its
        value.
        """
        given = {name: value.strip() for name, value in config.items() if name.startswith(PREFIX)}
        options = read(given)
        found = cls(
            enabled=options.enabled,
            format=options.format,
            freshness_ms=options.freshness_ms,
            path=_lake_path(topic, options.table),
            value_format=options.value_format,
            schema=options.schema or None,
            primary_key=options.primary_key,
            unknown_fields=options.unknown_fields,
            compaction=options.compaction,
            expiry=options.expiry,
        )
        found._check(given)
        return found

    def _check(self, given: Mapping[str, str]) -> None:
        value_format, schema = TopicOptions.value_format.name, TopicOptions.schema.name
        primary_key, unknown_fields = TopicOptions.primary_key.name, TopicOptions.unknown_fields.name
        if self.value_format is TopicFormat.RAW:
            for name in (schema, primary_key, unknown_fields):
                if name in given:
                    raise invalid_table(
                        f"'{name}' = '{given[name]}': '{value_format}' is raw, whose columns are fixed; set it to"
                        " json or debezium-json"
                    )
        if self.value_format is TopicFormat.DEBEZIUM_JSON and not self.primary_key:
            raise invalid_table(
                f"'{value_format}' = 'debezium-json' writes upserts and deletes, which need a primary key: set"
                f" '{primary_key}'"
            )
        if self.unknown_fields is UnknownFields.ADD:
            raise invalid_table(
                f"'{unknown_fields}' = 'add' is for tables: without '{schema}' every field of a topic becomes a column"
            )
        if self.schema is None and self.unknown_fields is UnknownFields.FAIL:
            raise invalid_table(
                f"'{unknown_fields}' = 'fail' is for topics with '{schema}': without one every field becomes a column"
            )
        if self.schema is not None:
            self.definition(self.schema, 1)

    @property
    def is_inferred(self) -> bool:
        return self.schema is None and self.value_format is not TopicFormat.RAW

    def declared(self, topic_id: UUID, partitions: int) -> StoredTable | None:
        """Return the lake table as it was declared; None where its columns are inferred."""
        if self.is_inferred:
            return None
        return self.definition(self.schema or RAW_COLUMNS, partitions).with_id(topic_id)

    def undefined(self, topic_id: UUID) -> StoredTable:
        """Return a definition with the right name and id, to find the lake table before its columns are known."""
        config = {SCHEMA_CONFIG: RAW_COLUMNS, **self.options}
        return from_topic_config(self.path, 1, config).with_id(topic_id)

    @property
    def options(self) -> dict[str, str]:
        """The options of the lake table's definition."""
        return {
            TableOptions.datalake_enabled.name: "true",
            TableOptions.datalake_format.name: self.format,
            TableOptions.datalake_compaction.name: str(self.compaction).lower(),
            TableOptions.datalake_expiry.name: str(self.expiry).lower(),
        }

    def definition(self, schema: str, partitions: int) -> TableDefinition:
        """Return the lake table with these columns. Raises TableError(INVALID_TABLE)."""
        config = {SCHEMA_CONFIG: schema, **self.options}
        if self.primary_key:
            config[PRIMARY_KEY_CONFIG] = ",".join(self.primary_key)
            config["table.bucket-key"] = self.primary_key[0]
        found = from_topic_config(self.path, partitions, config)
        for column in found.schema.columns:
            if self.primary_key and not column.nullable and column.name not in self.primary_key:
                raise invalid_table(
                    f"'{TopicOptions.schema.name}': column '{column.name}' is NOT NULL, but a deleted row has only its"
                    " primary key: leave NOT NULL out"
                )
        return found

    @property
    def dead_letters_path(self) -> TablePath:
        """The lake table for records that do not fit."""
        return TablePath(self.path.database, self.path.table + DEAD_LETTERS_SUFFIX)

    def dead_letters(self, topic_id: UUID) -> StoredTable:
        """Return the definition of the lake table for records that do not fit."""
        config = {SCHEMA_CONFIG: DEAD_LETTER_COLUMNS, **self.options}
        return from_topic_config(self.dead_letters_path, 1, config).with_id(topic_id)


def is_tiered_topic(config: Mapping[str, str]) -> bool:
    """Return whether the configuration of a plain topic enables the lake."""
    return config.get(TopicOptions.enabled.name, "").strip().lower() == "true"


def successor(stored: StoredTable, wanted: Sequence[Column], *, keep: bool) -> StoredTable:
    """Return the lake table after its columns became `wanted`, matched by name; columns keep their ids.

    With `keep`, as for inferred columns, no column is dropped and a type changes only to a wider one. Raises
    TableError(INVALID_TABLE) for a change that is not possible.
    """
    changes: list[Change] = []
    known = {column.name: column for column in stored.schema.columns}
    names = {column.name for column in wanted}
    if not keep:
        changes += [DropColumn(name) for name in known if name not in names]
    for column in wanted:
        before = known.get(column.name)
        if before is None:
            changes.append(AddColumn(column.name, column.type, comment=column.comment))
        elif before.type != column.type and (not keep or widens(before.type, column.type)):
            changes.append(ModifyColumn(column.name, column.type))
    return evolve(stored, changes) if changes else stored


def stored_text(definition: TableDefinition) -> str:
    """Return the text of a definition with its history, to be kept with the lake table."""
    return json.dumps({"config": definition.to_topic_config(), "buckets": definition.bucket_count})


def from_stored(text: str, path: TablePath, topic_id: UUID) -> StoredTable:
    """Return the definition that `stored_text` wrote."""
    value: dict[str, Any] = json.loads(text)
    return from_topic_config(path, value["buckets"], value["config"]).with_id(topic_id)


def _lake_path(topic: str, given: str | None) -> TablePath:
    try:
        if given:
            path = TablePath.parse(given)
        else:
            database, dot, table = topic.partition(".")
            path = TablePath(database, table.replace(".", "_")) if dot else TablePath(DEFAULT_DATABASE, topic)
        if path.partition is not None:
            raise invalid_table("a lake table is named database.table")
    except TableError as error:
        name = TopicOptions.table.name
        raise invalid_table(
            f"'{name}': topic '{topic}' cannot be lake table '{given or topic}': {error.message}; set '{name}' to"
            " database.table"
        ) from None
    return path
