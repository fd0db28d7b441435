"""Tables: their paths and definitions, and the form of a definition in its topic's configuration.

A `TableDefinition` is always valid: its constructor checks names, keys and options (semantics R5, R6, R16) and makes
options canonical. It is immutable: a changed table has a new definition (`evolution.py`), whose `history` holds every
earlier schema. A definition has two external forms. JSON is sent to clients and back. The topic configuration
(`table.schema` in JSON, `table.schema.history`, `table.bucket-key`, `table.comment` and the options; read in
`topic_config.py`) lets Kafka's own admin clients create and describe tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import UUID

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.options import table_options
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.options.lake_options import ICEBERG_PREFIX, PAIMON_PREFIX
from headrace.tablelayer.model.options.option_types import parse_name_list
from headrace.tablelayer.model.options.table_options import (
    ChangelogImage,
    DatalakeFormat,
    DeleteBehavior,
    MergeEngine,
    TableOptions,
    effective_options,
)
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.model.schema.aggregates import (
    Aggregate,
    check_type,
    is_aggregate_option,
    parse_options,
)
from headrace.tablelayer.model.schema.schema import NO_NESTED_KEY, Column, Schema
from headrace.tablelayer.model.strict_json import loads, whole_number
from headrace.tablelayer.model.table.partition_keys import (
    check_auto_partition,
    check_partition_keys,
    check_partition_name,
    values_of,
)
from headrace.tablelayer.model.types.column_types import FLOAT_KINDS, TIMESTAMP_KINDS, TypeKind

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

DEFAULT_DATABASE = "default"
MAX_NAME_LENGTH = 200  # Fluss's
MAX_TOPIC_LENGTH = 249  # Kafka's limit on topic names

_NAME = re.compile(r"[A-Za-z0-9_-]+")
RETENTION_CONFIG = "retention.ms"


def check_name(kind: str, name: str) -> None:
    """Raise TableError(INVALID_TABLE) unless `name` may name a database or a table; `kind` is the word in the error."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise _invalid(f"{kind} name '{name}': use 1 to {MAX_NAME_LENGTH} of the characters A-Z a-z 0-9 _ -")
    if name.startswith("__"):
        raise _invalid(f"{kind} name '{name}': names that begin with '__' are reserved")


@dataclass(frozen=True, slots=True, order=True)
class TablePath:
    """Database and table name. The table's topic is `database.table`.

    A partition of a table is addressed like a table with the name `table.partition`: its topic is
    `database.table.partition`.
    """

    database: str
    table: str
    topic: str = field(init=False, repr=False, compare=False)
    """Name of the table's topic."""
    partition: str | None = field(init=False, repr=False, compare=False)
    """Name of the partition; None for a table."""

    def __post_init__(self) -> None:
        check_name("database", self.database)
        name, dot, partition = self.table.partition(".")
        check_name("table", name)
        if dot:
            check_partition_name(partition)
        object.__setattr__(self, "topic", f"{self.database}.{self.table}")
        object.__setattr__(self, "partition", partition or None)
        if len(self.topic) > MAX_TOPIC_LENGTH:
            raise _invalid(f"'{self.topic}' is longer than {MAX_TOPIC_LENGTH} characters, a topic's limit")

    def __str__(self) -> str:
        return self.topic

    @property
    def whole(self) -> TablePath:
        """The table of a partition; a table's own path."""
        name, dot, _ = self.table.partition(".")
        return TablePath(self.database, name) if dot else self

    def of_partition(self, name: str) -> TablePath:
        """Return the path of one of this table's partitions. Raises TableError(INVALID_TABLE)."""
        return TablePath(self.database, f"{self.table}.{name}")

    @classmethod
    def parse(cls, text: str, default_database: str = DEFAULT_DATABASE) -> TablePath:
        """Return the path written `db.t`, or `t` in the default database, or `db.t.partition`.

        Raises TableError(INVALID_TABLE).
        """
        database, dot, table = text.partition(".")
        return cls(database, table) if dot else cls(default_database, text)


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The definition of one table.

    `bucket_key`: columns whose hash chooses the bucket. By default a primary-key table's is its primary key, and a
    log table has none, so that its writers choose buckets freely. `options`: `table.*` options and Kafka topic
    configurations that were given explicitly; `settings` has the effective values. `bucket.num` and `bucket.key`
    among the options are moved to the fields, `fields.<column>.agg` to the schema's columns. `history`: the schemas
    before `schema`, oldest first; together they are `versions`. `partition_keys`: the columns whose values decide a
    row's partition. The definition of a table that exists is a `StoredTable`.
    """

    path: TablePath
    schema: Schema
    bucket_key: tuple[str, ...] = ()
    bucket_count: int = table_options.DEFAULT_BUCKET_COUNT
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
            bucket_count = whole_number(value.get("bucket_count", table_options.DEFAULT_BUCKET_COUNT))
            given = dict(value.get("options", {}))
            comment = value.get("comment")
            table_id = None if value.get("table_id") is None else UUID(value["table_id"])
            history = value.get("history")
            partition_keys = tuple(str(name) for name in value.get("partition_keys", ()))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise _invalid(f"this is not a table definition in JSON: {error!r}") from error
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
        raise _invalid(f"this is not a history of schemas in JSON: {error!r}") from error


_NO_ICEBERG_BUCKETS = FLOAT_KINDS | {TypeKind.BOOLEAN}


def _check_path(path: TablePath, partition_keys: Sequence[str]) -> None:
    name = path.partition
    if name is not None and len(values_of(name)) != len(partition_keys):
        by = ", ".join(partition_keys)
        raise _invalid(
            f"'{path}' cannot name a table: write 'database.table'"
            if not by
            else f"'{path}' is not a partition of a table that is partitioned by ({by})"
        )


def _validate(definition: TableDefinition) -> None:
    _check_path(definition.path, definition.partition_keys)
    if not 1 <= definition.bucket_count <= table_options.MAX_BUCKET_COUNT:
        raise _invalid(
            f"table {definition.path}: the number of buckets is {definition.bucket_count}; it must be between 1 and "
            f"{table_options.MAX_BUCKET_COUNT}"
        )
    schema, bucket_key = definition.schema, definition.bucket_key
    ids = [each.schema_id for each in (*definition.history, schema)]
    if ids != sorted(set(ids)):
        raise _invalid(f"table {definition.path}: its schemas have the ids {ids}, which do not ascend")
    for position, name in enumerate(bucket_key):
        if name not in schema:
            raise _invalid(f"bucket key column '{name}' is not a column of table {definition.path}")
        if name in bucket_key[:position]:
            raise _invalid(f"column '{name}' occurs twice in the bucket key of table {definition.path}")
        if schema.column(name).type.is_nested:
            raise _invalid(
                f"bucket key column '{name}' of table {definition.path} is nested: {NO_NESTED_KEY}"
            )
        if schema.primary_key and name not in schema.primary_key:
            raise _invalid(
                f"bucket key column '{name}' is not in the primary key ({', '.join(schema.primary_key)})"
            )
    declared = table_options.DECLARED
    unused = [name for name in definition.options if name in declared and declared[name].partitioned_only]
    if unused and not definition.partition_keys:
        raise _invalid(f"option '{unused[0]}' is for tables with PARTITIONED BY; {definition.path} has none")
    check_partition_keys(str(definition.path), schema, definition.partition_keys, bucket_key)
    check_auto_partition(str(definition.path), schema, definition.partition_keys, definition.settings)
    wrong = table_options.complaint(definition.options)
    if wrong is not None:
        raise _invalid(wrong)
    if definition.settings.kafka_value_format is KafkaValueFormat.AVRO:
        from headrace.tablelayer.model.avro.schema import complaint_about

        wrong = complaint_about(schema.columns)
        if wrong is not None:
            raise _invalid(f"table {definition.path} cannot have Avro values: {wrong}")
    times = [name for name in definition.settings.processing_times if name in schema]
    if times:
        raise _invalid(
            f"option '{TableOptions.processing_times.name}': '{times[0]}' is a column of table {definition.path}"
        )
    _check_row_ttl(definition)
    _check_merge_engine(definition)
    _check_statistics(definition)
    _check_time_units(definition)
    _check_auto_increment(definition)
    if definition.settings.datalake_enabled:
        _check_lake_names(definition)
    for prefix, lake in (
        (PAIMON_PREFIX, DatalakeFormat.PAIMON),
        (ICEBERG_PREFIX, DatalakeFormat.ICEBERG),
    ):
        passed = [name for name in definition.options if name.startswith(prefix)]
        if passed and definition.bucket_format is not lake:
            raise _invalid(
                f"table {definition.path}: option '{passed[0]}' is for tables with"
                f" '{TableOptions.datalake_format.name}' = '{lake.value}'"
            )
    if definition.bucket_format is DatalakeFormat.ICEBERG and definition.bucket_count > 1 and bucket_key:
        if len(bucket_key) != 1:
            raise _invalid(
                f"table {definition.path}: Iceberg's buckets use one column, but the bucket key is "
                f"({', '.join(bucket_key)}); choose one, such as 'bucket.key' = '{bucket_key[0]}', "
                f"set 'bucket.num' = '1', or choose Paimon, whose buckets use all of them: {_PAIMON_CHOSEN}"
            )
        column = schema.column(bucket_key[0])
        if column.type.kind in _NO_ICEBERG_BUCKETS:
            raise _invalid(
                f"bucket key column '{column.name}': Iceberg has no bucket function for {column.type}; choose another"
                f" column, set 'bucket.num' = '1', or choose Paimon: {_PAIMON_CHOSEN}"
            )


_PAIMON_CHOSEN = f"'{TableOptions.datalake_format.name}' = '{DatalakeFormat.PAIMON.value}'"
_VERSION_KINDS = TIMESTAMP_KINDS | {TypeKind.INT, TypeKind.BIGINT}
_AUTO_INCREMENT_KINDS = frozenset({TypeKind.INT, TypeKind.BIGINT})


def with_aggregates(schema: Schema, functions: Mapping[str, Aggregate]) -> Schema:
    """Return the schema with these functions at its columns. Raises TableError(INVALID_TABLE) for unknown columns."""
    for name in functions:
        if name not in schema:
            raise _invalid(
                f"option 'fields.{name}.agg': there is no column '{name}'; columns: {', '.join(schema.names)}"
            )
    columns = [
        replace(column, aggregate=functions[column.name]) if column.name in functions else column
        for column in schema.columns
    ]
    return replace(schema, columns=tuple(columns))


def _check_merge_engine(definition: TableDefinition) -> None:
    """Check the merge engine: R5, R8, R9.3, R9.4."""
    settings, schema = definition.settings, definition.schema
    engine = settings.merge_engine
    for column in schema.columns:
        if column.aggregate is None:
            continue
        if engine is not MergeEngine.AGGREGATION:
            raise _invalid(
                f"column '{column.name}' has the function {column.aggregate.function}, but table {definition.path} "
                f"does not aggregate: set '{TableOptions.merge_engine.name}' = '{MergeEngine.AGGREGATION}'"
            )
        if column.name in schema.primary_key:
            raise _invalid(f"key column '{column.name}' cannot have a function: {column.aggregate.function}")
        check_type(column.name, column.aggregate, column.type)
    if engine is MergeEngine.AGGREGATION and settings.changelog_image is ChangelogImage.WAL:
        raise _invalid(
            f"table {definition.path}: an aggregation needs the full changelog; "
            f"leave out '{TableOptions.changelog_image.name}' = 'WAL'"
        )
    if (
        engine in (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED)
        and settings.delete_behavior is DeleteBehavior.ALLOW
    ):
        raise _invalid(
            f"table {definition.path}: the merge engine '{engine}' has no deletes; "
            f"'{TableOptions.delete_behavior.name}' can be 'IGNORE' or 'DISABLE'"
        )
    name = settings.version_column
    if (name is not None) != (engine is MergeEngine.VERSIONED):
        raise _invalid(
            f"option '{TableOptions.version_column.name}' "
            + ("must be given with" if name is None else "is for")
            + f" '{TableOptions.merge_engine.name}' = '{MergeEngine.VERSIONED}'"
        )
    if name is not None:
        if name not in schema:
            raise _invalid(
                f"option '{TableOptions.version_column.name}': there is no column '{name}'; "
                f"columns: {', '.join(schema.names)}"
            )
        if schema.column(name).type.kind not in _VERSION_KINDS:
            raise _invalid(
                f"version column '{name}' is {schema.column(name).type}; "
                "it must be INT, BIGINT, TIMESTAMP or TIMESTAMP_LTZ"
            )


def _check_auto_increment(definition: TableDefinition) -> None:
    """Check the auto-increment column: R10."""
    settings, schema = definition.settings, definition.schema
    name = settings.auto_increment_column
    if name is None:
        if TableOptions.auto_increment_cache.name in definition.options:
            raise _invalid(
                f"option '{TableOptions.auto_increment_cache.name}' needs '{TableOptions.auto_increment_column.name}', "
                "the column to number"
            )
        return
    option = f"option '{TableOptions.auto_increment_column.name}' = '{name}'"
    if name not in schema:
        raise _invalid(f"{option}: there is no such column; columns: {', '.join(schema.names)}")
    column = schema.column(name)
    if name in schema.primary_key:
        raise _invalid(f"{option}: a key column cannot be numbered by the server")
    if column.type.kind not in _AUTO_INCREMENT_KINDS:
        raise _invalid(f"{option}: the column is {column.type}; it must be INT or BIGINT")
    if not column.nullable:
        raise _invalid(
            f"{option}: leave out NOT NULL, since writers leave the column out; the server still numbers every row"
        )
    if column.aggregate is not None or column.default is not None or name == settings.version_column:
        raise _invalid(f"{option}: the column cannot be a version, have a function or a default")


def _check_statistics(definition: TableDefinition) -> None:
    names = definition.settings.statistics_columns or ()
    unknown = [name for name in names if name not in definition.schema and names != ("*",)]
    if unknown:
        raise _invalid(
            f"option '{TableOptions.statistics_columns.name}': there is no column '{unknown[0]}'; "
            f"columns: {', '.join(definition.schema.names)}"
        )
    nested = [name for name in names if name != "*" and definition.schema.column(name).type.is_nested]
    if nested:
        raise _invalid(
            f"option '{TableOptions.statistics_columns.name}': column '{nested[0]}' is nested, and has no statistics"
        )


def _check_time_units(definition: TableDefinition) -> None:
    option = TableOptions.debezium_units.name
    for name, unit in definition.settings.debezium_units.items():
        if name not in definition.schema:
            columns = ", ".join(definition.schema.names)
            raise _invalid(f"option '{option}': there is no column '{name}'; columns: {columns}")
        data_type = definition.schema.column(name).type
        if data_type.is_nested:
            continue  # the unit applies to the values inside
        if data_type.kind not in TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME}:
            raise _invalid(
                f"option '{option}': column '{name}' is {data_type}, which is not a date or time type"
            )
        if data_type.kind is TypeKind.TIME and unit == "d":
            raise _invalid(f"option '{option}': column '{name}' is {data_type}, which cannot hold days")


_TTL_KINDS = TIMESTAMP_KINDS | {TypeKind.BIGINT}


def _check_row_ttl(definition: TableDefinition) -> None:
    """Check row expiry: the time column exists and can hold a row's time."""
    settings, schema = definition.settings, definition.schema
    name = settings.kv_ttl_time_column
    if settings.kv_ttl_ms is None and name is not None:
        raise _invalid(
            f"option '{TableOptions.kv_ttl_time_column.name}' needs '{TableOptions.kv_ttl_ms.name}', "
            "the lifetime of a row"
        )
    if name is None:
        return
    option = f"option '{TableOptions.kv_ttl_time_column.name}' = '{name}'"
    if name not in schema:
        raise _invalid(f"{option}: there is no such column; columns: {', '.join(schema.names)}")
    column = schema.column(name)
    if column.type.kind not in _TTL_KINDS:
        raise _invalid(
            f"{option}: the column is {column.type}; it must be BIGINT (milliseconds), TIMESTAMP or TIMESTAMP_LTZ"
        )


def _check_lake_names(definition: TableDefinition) -> None:
    seen: dict[str, str] = {}
    for name in definition.schema.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise _invalid(
                f"table {definition.path}: columns '{other}' and '{name}' differ only by case; "
                "a lake table cannot tell them apart"
            )


def _invalid(message: str) -> TableError:
    return TableError(TableErrorCode.INVALID_TABLE, message)
