"""Definitions of tables, and the form of a definition in its topic's configuration.

A `TableDefinition` is always valid: its constructor checks names, keys and options (semantics R5, R6, R16) and makes
options canonical. It is immutable: a changed table has a new definition (`evolution.py`), whose `history` holds every
earlier schema. A definition has two external forms. JSON is sent to clients and back. The topic configuration
(`table.schema` in JSON, `table.schema.history`, `table.bucket-key`, `table.comment` and the options; read in
`topic_config.py`) lets Kafka's own admin clients create and describe tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import UUID

from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.options import table_options
from headrace.tablelayer.model.options.lake_options import is_expiration_option
from headrace.tablelayer.model.options.option_types import parse_name_list
from headrace.tablelayer.model.options.table_options import (
    DatalakeFormat,
    MergeEngine,
    TableOptions,
    effective_options,
)
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.model.schema.aggregates import Aggregate, is_aggregate_option, parse_options
from headrace.tablelayer.model.schema.schema import NO_NESTED_KEY, SYSTEM_COLUMNS, Column, Schema
from headrace.tablelayer.model.strict_json import loads, whole_number
from headrace.tablelayer.model.table.option_checks import check_iceberg_bucket_key, check_options
from headrace.tablelayer.model.table.partition_keys import (
    check_auto_partition,
    check_partition_keys,
    values_of,
)
from headrace.tablelayer.model.table.path import TablePath

SCHEMA_CONFIG = "table.schema"
HISTORY_CONFIG = "table.schema.history"
PRIMARY_KEY_CONFIG = "table.primary-key"
BUCKET_KEY_CONFIG = "table.bucket-key"
COMMENT_CONFIG = "table.comment"
PARTITIONED_BY_CONFIG = "table.partitioned-by"
PARTITION_OF_CONFIG = "table.partition-of"
DEFINITION_CONFIGS = (
    SCHEMA_CONFIG,
    HISTORY_CONFIG,
    PRIMARY_KEY_CONFIG,
    BUCKET_KEY_CONFIG,
    COMMENT_CONFIG,
    PARTITIONED_BY_CONFIG,
    PARTITION_OF_CONFIG,
)
RETENTION_CONFIG = "retention.ms"


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The definition of one table.

    `bucket_key`: columns whose hash chooses the bucket. By default a primary-key table's is its primary key, and a
    log table has none, so that its writers choose buckets freely. `options`: `table.*` options and Kafka topic
    configurations that were given explicitly; `settings` has the effective values. `bucket.num` and `bucket.key`
    among the options are moved to the fields, `fields.<column>.agg` to the schema's columns. `history`: the schemas
    before `schema`, oldest first; together they are `versions`. `partition_keys`: the columns whose values decide a
    row's partition. `bucket_count` 0, for a new table: the server's `default.bucket.number`. The definition of a table
    that exists is a `StoredTable`.
    """

    path: TablePath
    schema: Schema
    bucket_key: tuple[str, ...] = ()
    bucket_count: int = table_options.SERVER_BUCKET_COUNT
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    history: tuple[Schema, ...] = ()
    partition_keys: tuple[str, ...] = ()
    settings: TableOptions = field(init=False, repr=False, compare=False)
    versions: SchemaVersions = field(init=False, repr=False, compare=False)
    is_primary_key_table: bool = field(init=False, repr=False, compare=False)
    """Whether rows have a key, for upserts, deletes and lookups; otherwise it is a log table."""
    is_partitioned: bool = field(init=False, repr=False, compare=False)
    """Whether this is a whole table that consists of partitions and has no rows of its own."""

    def __post_init__(self) -> None:
        given = dict(self.options)
        table_options.check_texts(given)
        bucket_count, bucket_key = self.bucket_count, tuple(self.bucket_key)
        count_text = given.pop(table_options.BUCKET_COUNT, None)
        if count_text is not None:
            bucket_count = table_options.parse_bucket_count(count_text)
        key_text = given.pop(table_options.BUCKET_KEY, None)
        if key_text is not None:
            bucket_key = parse_name_list(key_text)
        functions = {name: given.pop(name) for name in list(given) if is_aggregate_option(name)}
        schema = with_aggregates(self.schema, parse_options(functions)) if functions else self.schema
        normal = table_options.normalize(given, is_primary_key_table=bool(schema.primary_key))
        for name, value in (
            ("schema", schema),
            ("bucket_count", bucket_count),
            (
                "bucket_key",
                bucket_key or tuple(each for each in schema.primary_key if each not in self.partition_keys),
            ),
            ("partition_keys", tuple(self.partition_keys)),
            ("options", normal),
            ("settings", effective_options(normal)),
            ("history", tuple(self.history)),
            ("versions", SchemaVersions([*self.history, schema])),
            ("is_primary_key_table", bool(schema.primary_key)),
            ("is_partitioned", bool(self.partition_keys) and self.path.partition is None),
        ):
            object.__setattr__(self, name, value)
        _validate(self)

    def __hash__(self) -> int:
        return hash((self.path, self.schema, self.bucket_key, self.bucket_count))

    def __reduce__(self) -> tuple[Any, ...]:
        return TableDefinition, self._given()

    def _given(self) -> tuple[Any, ...]:
        """Return the arguments of the constructor."""
        named = (self.path, self.schema, self.bucket_key, self.bucket_count)
        return (*named, dict(self.options), self.comment, self.history, self.partition_keys)

    @property
    def takes_some_columns(self) -> bool:
        """Whether partial updates are possible (R6.9)."""
        return self.settings.merge_engine in (None, MergeEngine.AGGREGATION)

    def target_ids(self, columns: Sequence[Column]) -> tuple[int, ...] | None:
        """Return the column ids in the request of a partial update of these columns; None: whole rows.

        The ids are also sent if these are all columns of this schema, because the table may have new columns, which
        keep their values. Whole rows are sent if the table has no partial updates, or if the auto-increment column is
        given too.
        """
        numbered = self.settings.auto_increment_column
        if len(columns) == len(self.schema.columns) and (not self.takes_some_columns or numbered is not None):
            return None
        return tuple(column.id for column in columns)

    @property
    def bucket_format(self) -> DatalakeFormat | None:
        """The lake whose own function gives a row its bucket; None: the hash of the encoded bucket key."""
        return self.settings.datalake_format

    def path_of_partition(self, name: str) -> TablePath:
        """Return the path of a partition. Raises TableError if it cannot be the name of one."""
        path = self.path.of_partition(name)
        _check_path(path, self.partition_keys)
        return path

    @property
    def default_bucket_key(self) -> tuple[str, ...]:
        """The bucket key of a table that does not set one."""
        return tuple(name for name in self.schema.primary_key if name not in self.partition_keys)

    @property
    def allows_prefix_lookup(self) -> bool:
        """Whether one bucket holds all rows with a prefix of the primary key.

        It does if the bucket key is a proper prefix of the primary key without partition columns.
        """
        key = self.default_bucket_key
        return len(self.bucket_key) < len(key) and key[: len(self.bucket_key)] == self.bucket_key

    @property
    def key_prefix(self) -> tuple[str, ...]:
        """The shortest prefix of the primary key that has the whole bucket key; a prefix lookup seeks it."""
        key = self.schema.primary_key
        return key[: max(key.index(name) for name in self.bucket_key) + 1] if self.bucket_key else ()

    @property
    def prefix_columns(self) -> tuple[str, ...]:
        """The columns that a prefix lookup needs: the bucket key and the partition columns, in the key's order."""
        wanted = {*self.bucket_key, *self.partition_keys}
        return tuple(name for name in self.schema.primary_key if name in wanted)

    def with_id(self, table_id: UUID) -> StoredTable:
        """Return the same definition, as that of the table with this id."""
        return self._stored(table_id=table_id)

    def _stored(self, **changed: Any) -> StoredTable:
        """Return a stored table with the same fields except those that are given, without checking it again."""
        new = object.__new__(StoredTable)
        for name in _STORED_FIELDS:
            object.__setattr__(new, name, changed[name] if name in changed else getattr(self, name))
        return new

    def without_id(self) -> TableDefinition:
        """Return the same definition, as that of no table in particular."""
        return TableDefinition(*self._given())

    def as_created(self) -> TableDefinition:
        """Return the definition of a new table like this one: without id and history, columns numbered from 0."""
        schema = Schema.of(self.schema.columns, self.schema.primary_key)
        return replace(self.without_id(), schema=schema, history=())

    def to_json(self) -> str:
        """Return compact JSON text; `TableDefinition.from_json` turns it into an equal definition."""
        value = {
            "database": self.path.database,
            "table": self.path.table,
            "schema": self.schema.to_dict(),
            "bucket_key": list(self.bucket_key),
            "bucket_count": self.bucket_count,
            "options": dict(self.options),
            "comment": self.comment,
            "table_id": str(self.table_id) if isinstance(self, StoredTable) else None,
        }
        if self.history:
            value["history"] = _history_to_dict(self.history)
        if self.partition_keys:
            value["partition_keys"] = list(self.partition_keys)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TableDefinition:
        """Return the definition in a JSON text, a `StoredTable` if it has an id. Raises TableError(INVALID_TABLE) for
        another text.
        """
        try:
            value = loads(text)
            path = TablePath(str(value["database"]), str(value["table"]))
            schema = value["schema"]
            bucket_key = tuple(str(name) for name in value.get("bucket_key", ()))
            bucket_count = whole_number(value.get("bucket_count", table_options.SERVER_BUCKET_COUNT))
            given = dict(value.get("options", {}))
            comment = value.get("comment")
            table_id = None if value.get("table_id") is None else UUID(value["table_id"])
            history = value.get("history")
            partition_keys = tuple(str(name) for name in value.get("partition_keys", ()))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise invalid_table(f"this is not a table definition in JSON: {error!r}") from error
        definition = TableDefinition(
            path=path,
            schema=Schema.from_dict(schema),
            bucket_key=bucket_key,
            bucket_count=bucket_count,
            options=given,
            comment=None if comment is None else str(comment),
            history=() if history is None else history_from_dict(history),
            partition_keys=partition_keys,
        )
        return definition if table_id is None else definition.with_id(table_id)

    def to_topic_config(self) -> dict[str, str]:
        """Return the configuration of the table's topic; all values are explicit and canonical."""
        config = {SCHEMA_CONFIG: self.schema.to_json(), **self.options}
        if self.history:
            config[HISTORY_CONFIG] = json.dumps(
                _history_to_dict(self.history), separators=(",", ":"), ensure_ascii=False
            )
        if self.bucket_key:
            config[BUCKET_KEY_CONFIG] = ",".join(self.bucket_key)
        if self.partition_keys:
            config[PARTITIONED_BY_CONFIG] = ",".join(self.partition_keys)
        if self.comment is not None:
            config[COMMENT_CONFIG] = self.comment
        if TableOptions.log_ttl_ms.name in self.options:
            config[RETENTION_CONFIG] = str(self.settings.log_ttl_ms)
        return config


@dataclass(frozen=True, slots=True)
class StoredTable(TableDefinition):
    """The definition of a table that exists, or of one of its partitions: for reads and writes each partition is a
    table of its own (`of_partition`).
    """

    table_id: UUID = field(kw_only=True)
    """The id of its topic."""

    def __hash__(self) -> int:
        return hash((self.table_id, self.schema, self.bucket_count))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_stored, (self.table_id, *self._given())

    def of_partition(self, name: str, table_id: UUID, bucket_count: int = 0) -> StoredTable:
        """Return one partition as a table. `bucket_count` 0: the table's number."""
        return self._stored(
            path=self.path_of_partition(name),
            table_id=table_id,
            bucket_count=bucket_count or self.bucket_count,
            is_partitioned=False,
        )

    @property
    def may_grow(self) -> bool:
        """Whether this part's number of buckets may grow while it is in use: a log table without a bucket key."""
        whole = not self.partition_keys
        return whole and not self.is_primary_key_table and not self.bucket_key

    def with_system_columns(self) -> StoredTable:
        """Return the table as its lake table has it, with `SYSTEM_COLUMNS` last."""
        columns = (*self.schema.columns, *SYSTEM_COLUMNS)
        return self._stored(schema=replace(self.schema, columns=columns))

    def without_system_columns(self) -> StoredTable:
        """Return the table itself."""
        columns = tuple(column for column in self.schema.columns if column not in SYSTEM_COLUMNS)
        return self._stored(schema=replace(self.schema, columns=columns))

    def with_buckets(self, count: int) -> StoredTable:
        """Return the same table with another number of buckets."""
        return self if count == self.bucket_count else self._stored(bucket_count=count)

    def to_partition_config(self) -> dict[str, str]:
        """Return the configuration of a partition's topic: its table's id, and Kafka's configurations of the log.

        The rest is in the table's topic, so that one ALTER changes all partitions at once.
        """
        config = self.to_topic_config()
        kept = {name: text for name, text in config.items() if not table_options.is_table_option(name)}
        return {**kept, PARTITION_OF_CONFIG: str(self.table_id)}


_STORED_FIELDS = tuple(each.name for each in fields(StoredTable))


def _restore_stored(table_id: UUID, *given: Any) -> StoredTable:
    return TableDefinition(*given).with_id(table_id)


def _history_to_dict(history: Sequence[Schema]) -> dict[str, Any]:
    """Return each distinct column once, and each schema as indices of columns, because most columns are in all
    schemas.
    """
    places: dict[Column, int] = {}
    versions = [
        {
            "schema_id": schema.schema_id,
            "columns": [places.setdefault(column, len(places)) for column in schema.columns],
            "primary_key": list(schema.primary_key),
        }
        for schema in history
    ]
    return {"columns": [column.to_dict() for column in places], "versions": versions}


def history_from_dict(value: Any) -> tuple[Schema, ...]:
    """Return earlier schemas from the form in `TableDefinition.to_topic_config`. Raises TableError."""
    try:
        columns = [Column.from_dict(entry) for entry in value["columns"]]
        return tuple(
            Schema(
                whole_number(version["schema_id"]),
                tuple(columns[whole_number(place)] for place in version["columns"]),
                tuple(str(name) for name in version["primary_key"]),
            )
            for version in value["versions"]
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise invalid_table(f"this is not a history of schemas in JSON: {error!r}") from error


def _check_path(path: TablePath, partition_keys: Sequence[str]) -> None:
    name = path.partition
    if name is not None and len(values_of(name)) != len(partition_keys):
        by = ", ".join(partition_keys)
        raise invalid_table(
            f"'{path}' cannot name a table: write 'database.table'"
            if not by
            else f"'{path}' is not a partition of a table that is partitioned by ({by})"
        )


def _validate(definition: TableDefinition) -> None:
    _check_path(definition.path, definition.partition_keys)
    if not 0 <= definition.bucket_count <= table_options.MAX_BUCKET_COUNT:
        raise invalid_table(
            f"table {definition.path}: the number of buckets is {definition.bucket_count}; it must be between 1 and "
            f"{table_options.MAX_BUCKET_COUNT}"
        )
    schema, bucket_key = definition.schema, definition.bucket_key
    for column in SYSTEM_COLUMNS:
        if column.name in schema:
            raise invalid_table(f"column name '{column.name}' is reserved for lake tables")
    ids = [each.schema_id for each in (*definition.history, schema)]
    if ids != sorted(set(ids)):
        raise invalid_table(f"table {definition.path}: its schemas have the ids {ids}, which do not ascend")
    for position, name in enumerate(bucket_key):
        if name not in schema:
            raise invalid_table(f"bucket key column '{name}' is not a column of table {definition.path}")
        if name in bucket_key[:position]:
            raise invalid_table(f"column '{name}' occurs twice in the bucket key of table {definition.path}")
        if schema.column(name).type.is_nested:
            raise invalid_table(
                f"bucket key column '{name}' of table {definition.path} is nested: {NO_NESTED_KEY}"
            )
        if schema.primary_key and name not in schema.primary_key:
            raise invalid_table(
                f"bucket key column '{name}' is not in the primary key ({', '.join(schema.primary_key)})"
            )
    declared = table_options.DECLARED
    unused = [
        name
        for name in definition.options
        if is_expiration_option(name) or (name in declared and declared[name].partitioned_only)
    ]
    if unused and not definition.partition_keys:
        raise invalid_table(
            f"option '{unused[0]}' is for tables with PARTITIONED BY; {definition.path} has none"
        )
    check_partition_keys(str(definition.path), schema, definition.partition_keys, bucket_key)
    check_auto_partition(str(definition.path), schema, definition.partition_keys, definition.settings)
    check_options(definition.path, schema, definition.options, definition.settings)
    if definition.bucket_format is DatalakeFormat.ICEBERG and definition.bucket_count > 1 and bucket_key:
        check_iceberg_bucket_key(definition.path, schema, bucket_key)


def with_aggregates(schema: Schema, functions: Mapping[str, Aggregate]) -> Schema:
    """Return the schema with these functions at its columns. Raises TableError(INVALID_TABLE) for unknown columns."""
    for name in functions:
        if name not in schema:
            raise invalid_table(
                f"option 'fields.{name}.agg': there is no column '{name}'; columns: {', '.join(schema.names)}"
            )
    columns = [
        replace(column, aggregate=functions[column.name]) if column.name in functions else column
        for column in schema.columns
    ]
    return replace(schema, columns=tuple(columns))
