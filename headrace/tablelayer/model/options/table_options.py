"""Table options: each is declared once, as an attribute of `TableOptions`.

The declaration gives the option's name, type, default, checks and documentation: SHOW OPTIONS, the topic
configurations that the broker describes and OPTIONS.md are computed from it. The attribute of an instance is the
table's value.

Names and defaults are Fluss's wherever Fluss has the option. Only implemented options are declared: any other
`table.*` name is refused, with the nearest known one. Names without the prefix `table.` are Kafka topic
configurations, which the broker checks; they are passed on unchanged. `bucket.num` and `bucket.key` exist in
statements only: a definition has fields for them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NoReturn

from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.options.kafka_formats import (
    DELETED_FIELD,
    JSON_FORMATS,
    UNAVAILABLE,
    AvroSchemaPlace,
    DebeziumDecimals,
    DebeziumTime,
    KafkaValueFormat,
    OutOfRange,
    WithoutRow,
    parse_placeholder,
    parse_registry_url,
    parse_time_units,
    parse_value_path,
    render_time_units,
    render_value_path,
)
from headrace.tablelayer.model.options.lake_options import ICEBERG_PREFIX, PAIMON_PREFIX, find_passed
from headrace.tablelayer.model.options.option import Option, OptionType
from headrace.tablelayer.model.options.option_types import (
    BOOLEAN,
    COLUMN,
    COLUMNS,
    DURATION,
    TIME_ZONE,
    TOPIC,
    one_of,
    parse_name_list,
    whole_number,
)
from headrace.tablelayer.model.schema.aggregates import is_aggregate_option, parse_option

BUCKET_COUNT = "bucket.num"
BUCKET_KEY = "bucket.key"
_OF_STATEMENTS = (BUCKET_COUNT, BUCKET_KEY)
MAX_BUCKET_COUNT = 4096  # Fluss's max.bucket.num
DEFAULT_BUCKET_COUNT_CONFIG = "default.bucket.number"
SERVER_BUCKET_COUNT = 0
"""In the definition of a new table: the server's `default.bucket.number`."""

_MINUTE_MS = 60_000
_DAY_MS = 86_400_000


class ArrowCompression(StrEnum):
    """The compression of the buffers of log batches."""

    ZSTD = "ZSTD"
    LZ4_FRAME = "LZ4_FRAME"
    NONE = "NONE"


class DeleteBehavior(StrEnum):
    """The effect of a delete on a primary-key table (semantics R5)."""

    ALLOW = "ALLOW"
    IGNORE = "IGNORE"
    DISABLE = "DISABLE"


class MergeEngine(StrEnum):
    """The treatment of a row that is written again: keep the first, keep the newest version, or merge column by
    column.

    Semantics R7, R8, R9. A table without an engine keeps the last row (R2).
    """

    FIRST_ROW = "first_row"
    VERSIONED = "versioned"
    AGGREGATION = "aggregation"


class ChangelogImage(StrEnum):
    """The changelog of an update. FULL: -U and +U. WAL: +U only (semantics R2)."""

    FULL = "FULL"
    WAL = "WAL"


class DatalakeFormat(StrEnum):
    """The lake into which a table is tiered. It is chosen at creation because it decides the bucket function."""

    ICEBERG = "iceberg"
    PAIMON = "paimon"


class KafkaChangelog(StrEnum):
    """The view of a Kafka consumer of a primary-key table: values and tombstones, or every image (semantics R17)."""

    COMPACT = "compact"
    FULL = "full"


class TimeUnit(StrEnum):
    """The length of time that one automatic partition covers."""

    HOUR = "HOUR"
    DAY = "DAY"
    MONTH = "MONTH"
    QUARTER = "QUARTER"
    YEAR = "YEAR"


class KeyMismatch(StrEnum):
    """The treatment of a produced record whose key belongs to another row than its value."""

    FAIL = "fail"
    IGNORE = "ignore"


class UnknownFields(StrEnum):
    """The treatment of fields of a produced record that are not columns. `ADD`: they become columns."""

    IGNORE = "ignore"
    FAIL = "fail"
    ADD = "add"


_PAIMON_ENGINES = {
    "deduplicate": "the last row wins without the option: leave it out",
    "partial-update": "leave the option out: INSERT INTO t (some columns) sets these columns only",
    "first-row": "the value is 'first_row'",
}


def _parse_merge_engine(text: str) -> MergeEngine:
    instead = _PAIMON_ENGINES.get(text.strip().lower())
    if instead is not None:
        raise ValueError(f"this is Paimon's word; {instead}")
    return one_of(MergeEngine).parse(text)


def _delete_behavior(options: Mapping[str, str]) -> DeleteBehavior:
    return DeleteBehavior.IGNORE if TableOptions.merge_engine.name in options else DeleteBehavior.ALLOW


def _is_plain(options: Mapping[str, str]) -> bool:
    """Return whether values, and JSON keys beside Avro values, are rows rather than a connector's envelopes."""
    return options.get(TableOptions.kafka_value_format.name) != KafkaValueFormat.DEBEZIUM_JSON


def _debezium_time(options: Mapping[str, str]) -> DebeziumTime:
    return DebeziumTime.PLAIN if _is_plain(options) else DebeziumTime.ADAPTIVE


def _debezium_decimals(options: Mapping[str, str]) -> DebeziumDecimals:
    return DebeziumDecimals.STRING if _is_plain(options) else DebeziumDecimals.AUTO


def _out_of_range(options: Mapping[str, str]) -> OutOfRange:
    return OutOfRange.KEEP if _is_plain(options) else OutOfRange.REFUSE


class TableOptions:
    """The effective values of all declared options of one table, with defaults filled in. They never change."""

    log_ttl_ms = Option(
        "table.log.ttl",
        DURATION,
        7 * _DAY_MS,
        "Time that the log is kept; the topic's retention.ms follows it.",
        alterable=True,
    )
    replication_factor = Option(
        "table.replication.factor",
        whole_number(1, 32_767, " from 1 to 32767"),
        None,
        "Number of replicas of each bucket, each on another broker; fixed at creation. Default: the brokers' "
        "'default.replication.factor', or the number that Kafka's tools give when they create the topic.",
    )
    arrow_compression = Option(
        "table.log.arrow.compression.type",
        one_of(ArrowCompression),
        ArrowCompression.ZSTD,
        "Compression of the log's buffers.",
    )
    statistics_columns = Option(
        "table.statistics.columns",
        COLUMNS,
        None,  # the automatic choice: `statistics.automatic_columns`
        "Columns whose bounds are kept with each batch of the log, so that filters skip batches: names, '*' for "
        "all, '' for none. Default: the first 8 columns of fixed width.",
        alterable=True,
        names_columns=True,
    )
    merge_engine = Option(
        "table.merge-engine",
        OptionType(_parse_merge_engine),
        None,
        "Treatment of a row that is written again: 'first_row' keeps the first, 'versioned' the one with the "
        "highest version, 'aggregation' merges column by column. Without it the last row wins.",
        primary_key_only=True,
    )
    version_column = Option(
        "table.merge-engine.versioned.ver-column",
        COLUMN,
        None,
        "The column that holds the version, for the merge engine 'versioned'.",
        primary_key_only=True,
        names_columns=True,
    )
    delete_behavior = Option(
        "table.delete.behavior",
        one_of(DeleteBehavior),
        DeleteBehavior.ALLOW,
        "Effect of a delete: ALLOW carries it out, IGNORE skips it, DISABLE refuses the batch. Tables with a "
        "merge engine ignore deletes by default.",
        derived=_delete_behavior,
        primary_key_only=True,
    )
    auto_increment_column = Option(
        "auto-increment.fields",
        COLUMN,
        None,
        "The column that the server numbers: a new row gets the next number, and writers leave the column out.",
        primary_key_only=True,
        names_columns=True,
    )
    auto_increment_cache = Option(
        "table.auto-increment.cache-size",
        whole_number(1, 2**31 - 1, f" from 1 to {2**31 - 1}"),
        100_000,
        "Number of values that a bucket takes from the table's counter at once; a restart skips unused ones.",
        primary_key_only=True,
    )
    changelog_image = Option(
        "table.changelog.image",
        one_of(ChangelogImage),
        ChangelogImage.FULL,
        "Changelog of an update: FULL writes -U and +U, WAL only +U.",
        primary_key_only=True,
    )
    kv_ttl_ms = Option(
        "table.kv.ttl",
        DURATION,
        None,
        "Lifetime of a row after its last write (or after the time in its time column); then the server deletes "
        "it, with a -D in the changelog.",
        primary_key_only=True,
    )
    kv_ttl_time_column = Option(
        "table.kv.ttl.time-column",
        COLUMN,
        None,
        "The column with the start of a row's lifetime: BIGINT (milliseconds), TIMESTAMP or "
        "TIMESTAMP_LTZ. A row without a time never expires.",
        primary_key_only=True,
        names_columns=True,
    )
    auto_partition = Option(
        "table.auto-partition.enabled",
        BOOLEAN,
        False,
        "Whether the server creates partitions ahead of time and drops old ones.",
        alterable=True,
        partitioned_only=True,
    )
    auto_partition_key = Option(
        "table.auto-partition.key",
        COLUMN,
        None,
        "The partition column that holds the time; required if the table has several partition columns.",
        names_columns=True,
        partitioned_only=True,
    )
    auto_partition_unit = Option(
        "table.auto-partition.time-unit",
        one_of(TimeUnit),
        TimeUnit.DAY,
        "Length of time that one automatic partition covers.",
        partitioned_only=True,
    )
    auto_partition_precreate = Option(
        "table.auto-partition.num-precreate",
        whole_number(0, 999_999, ", 0 or more"),
        None,  # with several partition columns it is 0
        "Number of partitions to create, from the present one on. 0 with several partition columns.",
        shown_default="2",
        alterable=True,
        partitioned_only=True,
    )
    auto_partition_retention = Option(
        "table.auto-partition.num-retention",
        whole_number(-1, 999_999, ", 0 or more, or -1 to drop none"),
        7,
        "Number of partitions before the present one that are kept; older ones are dropped. -1: all.",
        alterable=True,
        partitioned_only=True,
    )
    auto_partition_zone = Option(
        "table.auto-partition.time-zone",
        TIME_ZONE,
        None,
        "The time zone of the calendar for partitions; by default the server's.",
        partitioned_only=True,
    )
    processing_times = Option(
        "table.processing-times",
        COLUMNS,
        (),
        "Names that stand for the time of a query in FOR SYSTEM_TIME AS OF, as in a lookup join of Flink's SQL: "
        "CREATE TABLE writes them from columns AS PROCTIME(). They are not columns.",
    )
    kafka_creates_partitions = Option(
        "table.kafka.dynamic-create-partition.enabled",
        BOOLEAN,
        True,
        "Whether a row that a Kafka client produces creates its partition if it does not exist.",
        alterable=True,
        partitioned_only=True,
    )
    datalake_enabled = Option(
        "table.datalake.enabled",
        BOOLEAN,
        False,
        "Whether the table is tiered into the lake.",
        alterable=True,
    )
    datalake_format = Option(
        "table.datalake.format",
        one_of(DatalakeFormat),
        None,  # a table made on a server without a lake has no lake's bucket function
        "The lake's format, recorded at creation: the table's buckets are also the lake's. By default the server's "
        "'datalake.format'.",
    )
    datalake_freshness_ms = Option(
        "table.datalake.freshness",
        DURATION,
        3 * _MINUTE_MS,
        "Maximum time that the lake may be behind the table; the tiering job plans its rounds by it.",
        alterable=True,
    )
    datalake_system_columns = Option(
        "table.datalake.system-columns",
        BOOLEAN,
        True,
        "Whether the lake table, when the tiering job makes it, gets the columns __bucket, __offset and __timestamp: "
        "the position of a row's last change in the log.",
    )
    datalake_compaction = Option(
        "table.datalake.auto-compaction",
        BOOLEAN,
        False,
        "Whether the tiering job merges the lake table's small files into large ones.",
        alterable=True,
    )
    datalake_expiry = Option(
        "table.datalake.auto-expire-snapshot",
        BOOLEAN,
        False,
        "Whether the tiering job removes old snapshots of the lake table; their age is the lake table's own "
        "property 'history.expire.max-snapshot-age-ms' (5 days).",
        alterable=True,
    )
    kafka_value_format = Option(
        "table.kafka.value-format",
        one_of(KafkaValueFormat),
        KafkaValueFormat.JSON,
        "Format of a record's value: the row as JSON, a Debezium envelope of it in JSON, or Avro.",
    )
    kafka_value_path = Option(
        "table.kafka.value-path",
        OptionType(parse_value_path, render_value_path),
        None,
        "Path of the row in a JSON value: names of fields separated by dots, such as 'payload.data'. Without it "
        "the value is the row.",
        value_format=(KafkaValueFormat.JSON,),
    )
    debezium_time = Option(
        "table.kafka.debezium.time-precision-mode",
        one_of(DebeziumTime),
        DebeziumTime.ADAPTIVE,
        "Unit of numbers in DATE, TIME and TIMESTAMP columns, as in the connector's time.precision.mode: "
        "'adaptive' follows the column's precision (and refuses numbers that are implausible then), "
        "'adaptive_time_microseconds' does so except for TIME, 'connect' is milliseconds. 'isostring' and "
        "'structured' refuse numbers. 'plain' (with json values: the default) is milliseconds in TIMESTAMP_LTZ "
        "columns, and refuses numbers in others. A schema around the record, and time-units, take precedence. Texts, "
        "and objects of year, month, day, hour and so on, are always read.",
        derived=_debezium_time,
        alterable=True,
        value_format=JSON_FORMATS,
    )
    debezium_units = Option(
        "table.kafka.debezium.time-units",
        OptionType(parse_time_units, render_time_units),
        {},
        "Units of columns' numbers, if the records' schema does not tell them: 'd', 'ms', 'us' or 'ns', as in "
        "'created=ms,changed=us'.",
        alterable=True,
        value_format=(*JSON_FORMATS, KafkaValueFormat.AVRO),
    )
    debezium_decimals = Option(
        "table.kafka.debezium.decimal-handling-mode",
        one_of(DebeziumDecimals),
        DebeziumDecimals.AUTO,
        "Form of texts in DECIMAL columns, as in the connector's decimal.handling.mode: 'string' is the number (with "
        "json values: the default), 'precise' is base64 of the unscaled value; 'auto' distinguishes them, and refuses "
        "a text that may be both. A schema around the record takes precedence. Numbers ('double') are always read.",
        derived=_debezium_decimals,
        alterable=True,
        value_format=JSON_FORMATS,
    )
    debezium_out_of_range = Option(
        "table.kafka.debezium.out-of-range-times",
        one_of(OutOfRange),
        OutOfRange.REFUSE,
        "Treatment of dates before year 1 and after 9999, and of 'infinity': 'refuse' the batch, 'null', 'clamp' to "
        "the first or last day, or 'keep' values that the column can hold (with json values: the default).",
        derived=_out_of_range,
        alterable=True,
        value_format=JSON_FORMATS,
    )
    kafka_unavailable = Option(
        "table.kafka.unavailable-value.placeholder",
        OptionType(parse_placeholder),
        UNAVAILABLE,
        "Placeholder for a value that the source left out because it is unchanged, as in the connector's "
        "unavailable.value.placeholder: the stored value is kept. Empty: no placeholder.",
        alterable=True,
        primary_key_only=True,
        value_format=JSON_FORMATS,
    )
    kafka_without_row = Option(
        "table.kafka.unavailable-value.without-row",
        one_of(WithoutRow),
        WithoutRow.REFUSE,
        "Treatment of a placeholder for an unchanged value if no row is stored: 'refuse' the batch, or 'null'.",
        alterable=True,
        primary_key_only=True,
        value_format=JSON_FORMATS,
    )
    kafka_deleted_field = Option(
        "table.kafka.deleted-field",
        OptionType(str),
        DELETED_FIELD,
        "The field of a flattened event that is 'true' for a deleted row (ExtractNewRecordState with "
        "delete.tombstone.handling.mode=rewrite). Ignored if it is a column. Empty: no such field.",
        alterable=True,
        primary_key_only=True,
        value_format=(KafkaValueFormat.JSON,),
    )
    avro_schema = Option(
        "table.kafka.avro.schema",
        one_of(AvroSchemaPlace),
        AvroSchemaPlace.REGISTRY,
        "Location of an Avro value's schema: 'registry', with an id before the value (Confluent's wire "
        "format), or 'record': each value is an Avro object container file.",
        value_format=(KafkaValueFormat.AVRO,),
    )
    avro_registry = Option(
        "table.kafka.avro.registry-url",
        OptionType(parse_registry_url),
        None,
        "The schema registry of the table; by default the server's 'schema.registry.url'.",
        value_format=(KafkaValueFormat.AVRO,),
    )
    kafka_changelog = Option(
        "table.kafka.changelog",
        one_of(KafkaChangelog),
        KafkaChangelog.COMPACT,
        "The Kafka consumers' view: 'compact' has values and tombstones; 'full' has every image, "
        "with a change-type header.",
        primary_key_only=True,
    )
    kafka_unknown_fields = Option(
        "table.kafka.unknown-fields",
        one_of(UnknownFields),
        UnknownFields.IGNORE,
        "Treatment of fields of a produced row that are not columns: `ignore`, `fail` (the batch is refused), or "
        "`add`, which adds nullable columns with the fields' names to the table. Their types come from the schema "
        "around the record (Kafka Connect's), or else from the values. `add` is not possible with Avro values.",
        alterable=True,
    )
    kafka_key_mismatch = Option(
        "table.kafka.key-mismatch",
        one_of(KeyMismatch),
        KeyMismatch.FAIL,
        "Treatment of a produced record whose key has another primary key than its value, such as "
        '`9:{"id": 10}`: `fail` (the batch is refused) or `ignore` (the value counts). A tombstone with that '
        "key would delete another row than the written one. Keys in another form than the table's, and null, are "
        "not checked.",
        alterable=True,
        primary_key_only=True,
    )
    kafka_dead_letter_topic = Option(
        "table.kafka.dead-letter-topic",
        TOPIC,
        None,
        "The plain topic for records that the table refuses, with headers that give the reason; the rest of their "
        "batch is written. It is created when it is needed. To set this option, a client must be allowed to write to "
        "the topic. Without it, a batch with such a record is refused.",
        alterable=True,
    )

    def __init__(self, options: Mapping[str, str]) -> None:
        """Compute the effective values from normalized options."""
        for attribute, option in _DECLARATIONS.items():
            vars(self)[attribute] = option.effective(options)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"'{name}' is computed from the table's options and cannot be set")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, TableOptions) else NotImplemented

    def __repr__(self) -> str:
        return f"TableOptions({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


_DECLARATIONS: Mapping[str, Option[Any]] = {
    attribute: option for attribute, option in vars(TableOptions).items() if isinstance(option, Option)
}
_SHARED_MAX = 1024


def effective_options(options: Mapping[str, str]) -> TableOptions:
    """Return the effective values of normalized options: one object for all tables that have the same options."""
    return _effective(tuple(sorted(options.items())))


@lru_cache(_SHARED_MAX)
def _effective(options: tuple[tuple[str, str], ...]) -> TableOptions:
    return TableOptions(dict(options))


DECLARED: Mapping[str, Option[Any]] = {option.name: option for option in _DECLARATIONS.values()}
"""The declared options by name."""

_ONLY_IN_FLUSS = (
    ("table.auto-partition.time-format", "a choice of time formats is not in this release"),
    (
        "table.kv.standby-replica.",
        "each replica that does not lead is a standby; 'table.replication.factor' sets the number of replicas",
    ),
    ("table.log.format", "the log is always Arrow; a choice of log formats is not in this release"),
    ("table.kv.format", "a choice of row formats is not in this release"),
    (
        "table.log.tiered.",
        "use Kafka's options instead: 'remote.storage.enable' = 'true' copies segments to remote storage",
    ),
    (
        "table.log.local-ttl",
        "use Kafka's options instead: 'local.retention.ms' limits what also stays local",
    ),
    ("table.datalake.historical-partition.", "historical partitions are not in this release"),
    (
        "partition.expiration-",
        "for a table in Paimon write it with its prefix: 'paimon.partition.expiration-time'",
    ),
    (
        "merge-engine",
        "the name is 'table.merge-engine', with the values first_row, versioned and aggregation. Without it the last"
        " row wins, as by 'deduplicate', and an INSERT that names columns updates these, as by 'partial-update'",
    ),
    (
        "client.writer.bucket.no-key-assigner",
        "it belongs to a client and not to a table: ClientConfig(no_key_assigner='round_robin')",
    ),
    (
        "sequence.field",
        "'table.merge-engine' = 'versioned' with its 'ver-column' keeps the row of the highest version",
    ),
)
"""Options of Fluss and Paimon, by the beginning of their names, with an alternative."""


def is_table_option(name: str) -> bool:
    """Whether a name belongs to the table layer rather than to Kafka's topic configurations.

    No topic configuration begins with `bucket`, so a misspelt `bucket.num` belongs to the table layer.
    """
    if name.startswith("bucket"):
        return name not in _OF_STATEMENTS
    return name.startswith(
        (
            "table.",
            "fields.",
            "auto-increment.",
            "client.",
            "merge-engine",
            "partition.expiration-",
            "sequence.field",
            PAIMON_PREFIX,
            ICEBERG_PREFIX,
        )
    )


def names_columns(name: str) -> bool:
    """Whether the value of an option is a list of columns."""
    option = DECLARED.get(name)
    return option is not None and option.names_columns


def columns_named(name: str, value: str) -> tuple[str, ...]:
    """Return the columns that the value of an option names."""
    if names_columns(name):
        return parse_name_list(value)
    return tuple(parse_time_units(value)) if name == TableOptions.debezium_units.name else ()


def renamed_column(name: str, value: str, old: str, new: str) -> str:
    """Return the value of an option after a column was renamed."""
    if names_columns(name):
        return ",".join(new if each == old else each for each in parse_name_list(value))
    if name == TableOptions.debezium_units.name:
        units = parse_time_units(value)
        return render_time_units({new if each == old else each: unit for each, unit in units.items()})
    return value


def normalize(options: Mapping[str, str], *, is_primary_key_table: bool) -> dict[str, str]:
    """Return options with canonical values, sorted by name.

    Raises TableError(INVALID_TABLE) for a `table.*` name that is not declared, a value that cannot be parsed, and an
    option of primary-key tables on a log table.
    """
    normal: dict[str, str] = {}
    check_texts(options)
    for name in sorted(options):
        value = options[name]
        if not is_table_option(name):
            normal[name] = value
            continue
        if is_aggregate_option(name):
            parse_option(name, value)
            normal[name] = value
            continue
        option = find(name)
        if option.primary_key_only and not is_primary_key_table:
            raise invalid_table(f"option '{name}' is for tables with a primary key; this is a log table")
        normal[name] = option.value_type.render(parse(name, value))
    if normal.get(TableOptions.datalake_enabled.name) == "true":
        for prefix, lake in (
            (ICEBERG_PREFIX, DatalakeFormat.ICEBERG),
            (PAIMON_PREFIX, DatalakeFormat.PAIMON),
        ):
            if any(name.startswith(prefix) for name in normal):
                normal.setdefault(TableOptions.datalake_format.name, lake.value)
    return dict(sorted(normal.items()))


def check_texts(options: Mapping[str, Any]) -> None:
    """Raise TableError(INVALID_TABLE) for a value that is not a text."""
    for name, value in options.items():
        if not isinstance(value, str):
            raise invalid_table(f"option '{name}': the value {value!r} must be a text")


def find(name: str) -> Option[Any]:
    """Return the declared option of a name. Raises TableError(INVALID_TABLE) with the nearest known name."""
    option = DECLARED.get(name)
    if option is not None:
        return option
    passed = find_passed(name)
    if passed is not None:
        return passed
    for prefix, instead in _ONLY_IN_FLUSS:
        if name.startswith(prefix):
            raise invalid_table(f"unknown option '{name}': {instead}")
    known = (*DECLARED, *_OF_STATEMENTS)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"the options are {', '.join(sorted(known))}"
    raise invalid_table(f"unknown option '{name}'; {hint}")


def complaint(options: Mapping[str, str]) -> str | None:
    """Return the error of normalized options that are valid one by one but not together; None if they are valid."""
    values, place = TableOptions.kafka_value_format, TableOptions.avro_schema
    chosen = options.get(values.name, KafkaValueFormat.JSON.value)
    for name, option in DECLARED.items():
        wanted = option.value_format
        if name in options and wanted is not None and chosen not in wanted:
            allowed = " or ".join(f"'{each}'" for each in wanted)
            return f"option '{name}' is for '{values.name}' = {allowed}; this table has '{chosen}'"
    unknown = TableOptions.kafka_unknown_fields.name
    if options.get(unknown) == UnknownFields.ADD and chosen == KafkaValueFormat.AVRO:
        return f"option '{unknown}' = '{UnknownFields.ADD}' is for values in JSON; this table has '{chosen}'"
    registry = TableOptions.avro_registry.name
    if registry in options and options.get(place.name) == AvroSchemaPlace.RECORD:
        return f"option '{registry}' has no effect with '{place.name}' = '{AvroSchemaPlace.RECORD}': leave one out"
    return None


def parse(name: str, value: str) -> Any:
    """Return the typed value of a declared option. Raises TableError(INVALID_TABLE) with the option and the value."""
    try:
        return find(name).value_type.parse(value)
    except ValueError as error:
        raise invalid_table(f"option '{name}' = '{value}': {error}") from error


def parse_bucket_count(text: str) -> int:
    """Return the value of `bucket.num`. Raises TableError(INVALID_TABLE) if it is not a positive whole number."""
    if not re.fullmatch(r"\s*0*[1-9][0-9]{0,8}\s*", text):
        raise invalid_table(
            f"option '{BUCKET_COUNT}' = '{text}': the value must be a whole number between 1 and {MAX_BUCKET_COUNT}"
        )
    return int(text)
