"""A table's definition, read from the configuration of its topic, and changes of that configuration.

Reading what `TableDefinition.to_topic_config` writes gives an equal definition. A user may write `table.schema` as a
column list of a CREATE TABLE statement, so this module stands above both tables and statements.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.options import table_options
from headrace.tablelayer.model.options.option_types import parse_name_list
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.strict_json import loads
from headrace.tablelayer.model.table.definition import (
    BUCKET_KEY_CONFIG,
    COMMENT_CONFIG,
    HISTORY_CONFIG,
    PARTITIONED_BY_CONFIG,
    PRIMARY_KEY_CONFIG,
    RETENTION_CONFIG,
    SCHEMA_CONFIG,
    TableDefinition,
    history_from_dict,
)
from headrace.tablelayer.model.table.evolution import check_successor, drop_followed_retention
from headrace.tablelayer.model.table.path import TablePath


def from_topic_config(path: TablePath, partitions: int, config: Mapping[str, str]) -> TableDefinition:
    """Return the table that a topic's configuration describes. `partitions` is its number of buckets.

    `table.schema` is JSON or a DDL column list, which may include the primary key; `table.primary-key` may give it
    instead. Raises TableError(INVALID_TABLE), or a DdlError pointing into the column list.
    """
    given = dict(config)
    schema = _parse_schema(given.pop(SCHEMA_CONFIG, None), given.pop(PRIMARY_KEY_CONFIG, None))
    history = _parse_history(given.pop(HISTORY_CONFIG, None))
    bucket_key = parse_name_list(given.pop(BUCKET_KEY_CONFIG, ""))
    comment = given.pop(COMMENT_CONFIG, None)
    partition_keys = parse_name_list(given.pop(PARTITIONED_BY_CONFIG, ""))
    ttl, retention = given.get(TableOptions.log_ttl_ms.name), given.get(RETENTION_CONFIG)
    if ttl is not None and retention is not None:
        if retention.strip() != str(table_options.parse(TableOptions.log_ttl_ms.name, ttl)):
            raise invalid_table(
                f"table.log.ttl = '{ttl}' and retention.ms = '{retention}' contradict: give one of them"
            )
        del given[RETENTION_CONFIG]
    return TableDefinition(
        path=path,
        schema=schema,
        bucket_key=bucket_key,
        bucket_count=partitions,
        options=given,
        comment=comment,
        history=history,
        partition_keys=partition_keys,
    )


def changed_table(
    path: TablePath, partitions: int, old: Mapping[str, str], new: Mapping[str, str]
) -> TableDefinition:
    """Return the table after its configuration changed from `old` to `new`, both explicit and complete.

    Raises the errors of `check_successor`.
    """
    wanted = dict(new)
    drop_followed_retention(old, wanted)
    if wanted.get(SCHEMA_CONFIG) == old.get(SCHEMA_CONFIG) and HISTORY_CONFIG in old:
        wanted.setdefault(HISTORY_CONFIG, old[HISTORY_CONFIG])  # a client need not repeat it
    before = from_topic_config(path, partitions, old)
    if wanted.get(HISTORY_CONFIG) == old.get(HISTORY_CONFIG):
        # The schema may be written differently, but it must be equal.
        alone = {name: value for name, value in wanted.items() if name != HISTORY_CONFIG}
        given = from_topic_config(path, partitions, alone)
        if given.schema not in (before.schema, before.as_created().schema):
            raise invalid_table(
                f"the schema of table {path} is changed by ALTER TABLE, not by its configuration"
            )
        wanted[SCHEMA_CONFIG] = old[SCHEMA_CONFIG]
        wanted.pop(PRIMARY_KEY_CONFIG, None)
    after = from_topic_config(path, partitions, wanted)
    check_successor(before, after)
    return after


def _parse_history(text: str | None) -> tuple[Schema, ...]:
    if text is None:
        return ()
    try:
        return history_from_dict(loads(text))
    except (ValueError, RecursionError) as error:
        raise invalid_table(f"'{HISTORY_CONFIG}' is not valid JSON: {error}") from error


def _parse_schema(text: str | None, primary_key: str | None) -> Schema:
    if text is None:
        raise invalid_table(
            f"a table needs '{SCHEMA_CONFIG}': columns as 'id BIGINT, name STRING' or in JSON"
        )
    if text.lstrip().startswith("{"):
        schema = Schema.from_json(text)
    else:
        # Imported here because sqlglot takes a third of a second to load, and stored schemas are JSON.
        from headrace.tablelayer.model.ddl.clauses import parse_columns

        schema = parse_columns(text)
    names = () if primary_key is None else parse_name_list(primary_key)
    if not names or names == schema.primary_key:
        return schema
    if schema.primary_key:
        raise invalid_table(f"'{SCHEMA_CONFIG}' says PRIMARY KEY ({', '.join(schema.primary_key)}), but "
                       f"'{PRIMARY_KEY_CONFIG}' says ({', '.join(names)})")  # fmt: skip
    return Schema.of(schema.columns, names, schema_id=schema.schema_id)
