"""Checks of a table's options against its columns (semantics R5, R8 to R10).

`options/table_options.py` checks what can be said about options alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.options import table_options
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.options.lake_options import (
    ICEBERG_PREFIX,
    NOT_IN_ICEBERG,
    PAIMON_DELETION_VECTORS,
    PAIMON_PREFIX,
    PAIMON_PRODUCER,
    is_expiration_option,
)
from headrace.tablelayer.model.options.table_options import (
    ChangelogImage,
    DatalakeFormat,
    DeleteBehavior,
    MergeEngine,
    TableOptions,
)
from headrace.tablelayer.model.schema.aggregates import check_type
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import FLOAT_KINDS, TIMESTAMP_KINDS, TypeKind

_VERSION_KINDS = TIMESTAMP_KINDS | {TypeKind.INT, TypeKind.BIGINT}
_AUTO_INCREMENT_KINDS = frozenset({TypeKind.INT, TypeKind.BIGINT})
_TTL_KINDS = TIMESTAMP_KINDS | {TypeKind.BIGINT}
_NO_ICEBERG_BUCKETS = FLOAT_KINDS | {TypeKind.BOOLEAN}
_PAIMON_CHOSEN = f"'{TableOptions.datalake_format.name}' = '{DatalakeFormat.PAIMON.value}'"


def check_options(
    path: TablePath, schema: Schema, options: Mapping[str, str], settings: TableOptions
) -> None:
    """Check the options of a table; `settings` are their values. Raises TableError(INVALID_TABLE)."""
    wrong = table_options.complaint(options)
    if wrong is not None:
        raise invalid_table(wrong)
    if settings.kafka_value_format is KafkaValueFormat.AVRO:
        from headrace.tablelayer.model.avro.schema import complaint_about

        wrong = complaint_about(schema.columns)
        if wrong is not None:
            raise invalid_table(f"table {path} cannot have Avro values: {wrong}")
    times = [name for name in settings.processing_times if name in schema]
    if times:
        raise invalid_table(
            f"option '{TableOptions.processing_times.name}': '{times[0]}' is a column of table {path}"
        )
    _check_row_ttl(schema, settings)
    _check_merge_engine(path, schema, settings)
    _check_statistics(schema, settings)
    _check_time_units(schema, settings)
    _check_auto_increment(schema, settings, options)
    if settings.datalake_enabled:
        _check_lake_names(path, schema)
    if options.get(PAIMON_DELETION_VECTORS) == "true" and options.get(PAIMON_PRODUCER) == "full-compaction":
        raise invalid_table(
            f"table {path}: '{PAIMON_PRODUCER}' = 'full-compaction' is not possible with '{PAIMON_DELETION_VECTORS}':"
            " use 'lookup'"
        )
    for prefix, lake in (
        (PAIMON_PREFIX, DatalakeFormat.PAIMON),
        (ICEBERG_PREFIX, DatalakeFormat.ICEBERG),
    ):
        passed = [name for name in options if name.startswith(prefix)]
        if passed and settings.datalake_format is not lake:
            expiring = next(filter(is_expiration_option, passed), None)
            if expiring is not None and settings.datalake_format is DatalakeFormat.ICEBERG:
                raise invalid_table(
                    f"table {path}: option '{expiring}' is not possible here. {NOT_IN_ICEBERG}"
                )
            raise invalid_table(
                f"table {path}: option '{passed[0]}' is for tables with"
                f" '{TableOptions.datalake_format.name}' = '{lake.value}'"
            )


def check_iceberg_bucket_key(path: TablePath, schema: Schema, bucket_key: Sequence[str]) -> None:
    """Raise TableError(INVALID_TABLE) unless Iceberg's buckets can be this table's."""
    if len(bucket_key) != 1:
        raise invalid_table(
            f"table {path}: Iceberg's buckets use one column, but the bucket key is "
            f"({', '.join(bucket_key)}); choose one, such as 'bucket.key' = '{bucket_key[0]}', "
            f"set 'bucket.num' = '1', or choose Paimon, whose buckets use all of them: {_PAIMON_CHOSEN}"
        )
    column = schema.column(bucket_key[0])
    if column.type.kind in _NO_ICEBERG_BUCKETS:
        raise invalid_table(
            f"bucket key column '{column.name}': Iceberg has no bucket function for {column.type}; choose another"
            f" column, set 'bucket.num' = '1', or choose Paimon: {_PAIMON_CHOSEN}"
        )


def _check_row_ttl(schema: Schema, settings: TableOptions) -> None:
    """Check row expiry: the time column exists and can hold a row's time."""
    name = settings.kv_ttl_time_column
    if settings.kv_ttl_ms is None and name is not None:
        raise invalid_table(
            f"option '{TableOptions.kv_ttl_time_column.name}' needs '{TableOptions.kv_ttl_ms.name}', "
            "the lifetime of a row"
        )
    if name is None:
        return
    option = f"option '{TableOptions.kv_ttl_time_column.name}' = '{name}'"
    if name not in schema:
        raise invalid_table(f"{option}: there is no such column; columns: {', '.join(schema.names)}")
    column = schema.column(name)
    if column.type.kind not in _TTL_KINDS:
        raise invalid_table(
            f"{option}: the column is {column.type}; it must be BIGINT (milliseconds), TIMESTAMP or TIMESTAMP_LTZ"
        )


def _check_merge_engine(path: TablePath, schema: Schema, settings: TableOptions) -> None:
    """Check the merge engine: R5, R8, R9.3, R9.4."""
    engine = settings.merge_engine
    for column in schema.columns:
        if column.aggregate is None:
            continue
        if engine is not MergeEngine.AGGREGATION:
            raise invalid_table(
                f"column '{column.name}' has the function {column.aggregate.function}, but table {path} "
                f"does not aggregate: set '{TableOptions.merge_engine.name}' = '{MergeEngine.AGGREGATION}'"
            )
        if column.name in schema.primary_key:
            raise invalid_table(
                f"key column '{column.name}' cannot have a function: {column.aggregate.function}"
            )
        check_type(column.name, column.aggregate, column.type)
    if engine is MergeEngine.AGGREGATION and settings.changelog_image is ChangelogImage.WAL:
        raise invalid_table(
            f"table {path}: an aggregation needs the full changelog; "
            f"leave out '{TableOptions.changelog_image.name}' = 'WAL'"
        )
    if (
        engine in (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED)
        and settings.delete_behavior is DeleteBehavior.ALLOW
    ):
        raise invalid_table(
            f"table {path}: the merge engine '{engine}' has no deletes; "
            f"'{TableOptions.delete_behavior.name}' can be 'IGNORE' or 'DISABLE'"
        )
    name = settings.version_column
    if (name is not None) != (engine is MergeEngine.VERSIONED):
        raise invalid_table(
            f"option '{TableOptions.version_column.name}' "
            + ("must be given with" if name is None else "is for")
            + f" '{TableOptions.merge_engine.name}' = '{MergeEngine.VERSIONED}'"
        )
    if name is not None:
        if name not in schema:
            raise invalid_table(
                f"option '{TableOptions.version_column.name}': there is no column '{name}'; "
                f"columns: {', '.join(schema.names)}"
            )
        if schema.column(name).type.kind not in _VERSION_KINDS:
            raise invalid_table(
                f"version column '{name}' is {schema.column(name).type}; "
                "it must be INT, BIGINT, TIMESTAMP or TIMESTAMP_LTZ"
            )


def _check_statistics(schema: Schema, settings: TableOptions) -> None:
    names = settings.statistics_columns or ()
    unknown = [name for name in names if name not in schema and names != ("*",)]
    if unknown:
        raise invalid_table(
            f"option '{TableOptions.statistics_columns.name}': there is no column '{unknown[0]}'; "
            f"columns: {', '.join(schema.names)}"
        )
    nested = [name for name in names if name != "*" and schema.column(name).type.is_nested]
    if nested:
        raise invalid_table(
            f"option '{TableOptions.statistics_columns.name}': column '{nested[0]}' is nested, and has no statistics"
        )


def _check_time_units(schema: Schema, settings: TableOptions) -> None:
    option = TableOptions.debezium_units.name
    for name, unit in settings.debezium_units.items():
        if name not in schema:
            columns = ", ".join(schema.names)
            raise invalid_table(f"option '{option}': there is no column '{name}'; columns: {columns}")
        data_type = schema.column(name).type
        if data_type.is_nested:
            continue  # the unit applies to the values inside
        if data_type.kind not in TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME}:
            raise invalid_table(
                f"option '{option}': column '{name}' is {data_type}, which is not a date or time type"
            )
        if data_type.kind is TypeKind.TIME and unit == "d":
            raise invalid_table(f"option '{option}': column '{name}' is {data_type}, which cannot hold days")


def _check_auto_increment(schema: Schema, settings: TableOptions, options: Mapping[str, str]) -> None:
    """Check the auto-increment column: R10."""
    name = settings.auto_increment_column
    if name is None:
        if TableOptions.auto_increment_cache.name in options:
            raise invalid_table(
                f"option '{TableOptions.auto_increment_cache.name}' needs '{TableOptions.auto_increment_column.name}', "
                "the column to number"
            )
        return
    option = f"option '{TableOptions.auto_increment_column.name}' = '{name}'"
    if name not in schema:
        raise invalid_table(f"{option}: there is no such column; columns: {', '.join(schema.names)}")
    column = schema.column(name)
    if name in schema.primary_key:
        raise invalid_table(f"{option}: a key column cannot be numbered by the server")
    if column.type.kind not in _AUTO_INCREMENT_KINDS:
        raise invalid_table(f"{option}: the column is {column.type}; it must be INT or BIGINT")
    if not column.nullable:
        raise invalid_table(
            f"{option}: leave out NOT NULL, since writers leave the column out; the server still numbers every row"
        )
    if column.aggregate is not None or column.default is not None or name == settings.version_column:
        raise invalid_table(f"{option}: the column cannot be a version, have a function or a default")


def _check_lake_names(path: TablePath, schema: Schema) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise invalid_table(
                f"table {path}: columns '{other}' and '{name}' differ only by case; "
                "a lake table cannot tell them apart"
            )
