"""Table options: each is declared once here; parsing, defaults, checks and documentation are computed from
that.

Names and defaults are Fluss's wherever Fluss has the option. Only what works is declared: any other
``table.*`` name is refused, with the nearest known one. Names without the prefix ``table.`` are Kafka topic
configurations, which the broker checks; they pass through untouched. ``bucket.num`` and ``bucket.key``
exist in statements only: a definition has fields for them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.table.aggregates import is_aggregate_option, parse_option
from tablelayer.model.table.kafka_formats import (
    AVRO_REGISTRY,
    AVRO_SCHEMA,
    DEBEZIUM_DECIMALS,
    DEBEZIUM_TIME,
    VALUE_FORMAT,
    VALUE_PATH,
    AvroSchemaPlace,
    DebeziumDecimals,
    DebeziumTime,
    KafkaValueFormat,
    one_of,
    parse_registry_url,
    parse_value_path,
    render_value_path,
)

BUCKET_COUNT = "bucket.num"
BUCKET_KEY = "bucket.key"
TTL = "table.log.ttl"
DATALAKE_ENABLED = "table.datalake.enabled"
DATALAKE_FORMAT = "table.datalake.format"
DATALAKE_COMPACTION = "table.datalake.auto-compaction"
DATALAKE_EXPIRY = "table.datalake.auto-expire-snapshot"
DELETE_BEHAVIOR = "table.delete.behavior"
CHANGELOG_IMAGE = "table.changelog.image"
KAFKA_CHANGELOG = "table.kafka.changelog"
MERGE_ENGINE = "table.merge-engine"
VERSION_COLUMN = "table.merge-engine.versioned.ver-column"
AUTO_INCREMENT = "auto-increment.fields"
STATISTICS_COLUMNS = "table.statistics.columns"
AUTO_INCREMENT_CACHE = "table.auto-increment.cache-size"
ROW_TTL = "table.kv.ttl"
ROW_TTL_COLUMN = "table.kv.ttl.time-column"
AUTO_PARTITION = "table.auto-partition.enabled"
AUTO_PARTITION_KEY = "table.auto-partition.key"
AUTO_PARTITION_UNIT = "table.auto-partition.time-unit"
AUTO_PARTITION_PRECREATE = "table.auto-partition.num-precreate"
AUTO_PARTITION_RETENTION = "table.auto-partition.num-retention"
AUTO_PARTITION_ZONE = "table.auto-partition.time-zone"
KAFKA_CREATES_PARTITIONS = "table.kafka.dynamic-create-partition.enabled"

PARTITION_OPTIONS = frozenset(
    {
        AUTO_PARTITION,
        AUTO_PARTITION_KEY,
        AUTO_PARTITION_UNIT,
        AUTO_PARTITION_PRECREATE,
        AUTO_PARTITION_RETENTION,
        AUTO_PARTITION_ZONE,
        KAFKA_CREATES_PARTITIONS,
    }
)
"""Options that only tables with PARTITIONED BY may have."""

MAX_BUCKET_COUNT = 4096  # Fluss's max.bucket.num
DEFAULT_BUCKET_COUNT = 1  # Fluss's default.bucket.number
MAX_AUTO_INCREMENT_CACHE = 2**31 - 1


class ArrowCompression(StrEnum):
    """How the buffers of log batches are compressed."""

    ZSTD = "ZSTD"
    LZ4_FRAME = "LZ4_FRAME"
    NONE = "NONE"


class DeleteBehavior(StrEnum):
    """What a delete does to a primary-key table (semantics R5)."""

    ALLOW = "ALLOW"
    IGNORE = "IGNORE"
    DISABLE = "DISABLE"


class MergeEngine(StrEnum):
    """What becomes of a row that is written again: kept as it was first, replaced by a newer version, or merged
    column by column (semantics R7, R8, R9). A table without one keeps the last row (R2).
    """

    FIRST_ROW = "first_row"
    VERSIONED = "versioned"
    AGGREGATION = "aggregation"


class ChangelogImage(StrEnum):
    """FULL: -U and +U for an update. WAL: +U alone (semantics R2)."""

    FULL = "FULL"
    WAL = "WAL"


class DatalakeFormat(StrEnum):
    """The lake a table is tiered into; chosen at creation because it chooses the bucket function."""

    ICEBERG = "iceberg"
    PAIMON = "paimon"


class KafkaChangelog(StrEnum):
    """What a Kafka consumer of a primary-key table sees: values and tombstones, or every image (semantics
    R17).
    """

    COMPACT = "compact"
    FULL = "full"


class TimeUnit(StrEnum):
    """How much time one automatic partition covers."""

    HOUR = "HOUR"
    DAY = "DAY"
    MONTH = "MONTH"
    QUARTER = "QUARTER"
    YEAR = "YEAR"


class UnknownFields(StrEnum):
    """What happens to fields of a produced record that are not columns."""

    IGNORE = "ignore"
    FAIL = "fail"


class TableOption(msgspec.Struct, frozen=True):
    """One declared option. ``parse`` raises ValueError with a reason; ``primary_key_only`` as semantics R16
    has it.
    """

    name: str
    default: str | None
    """None: the option has no value unless it is given."""
    parse: Callable[[str], Any]
    render: Callable[[Any], str]
    doc: str
    alterable: bool = False
    primary_key_only: bool = False
    names_columns: bool = False
    """Its value is a list of columns: it follows their renaming, and they cannot be dropped."""


_DURATION = re.compile(r"\s*([0-9]{1,15})\s*([a-zA-Z]*)\s*")
_DURATION_UNITS = {
    1: ("", "ms", "milli", "millis", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_DURATION_FACTORS = {word: factor for factor, words in _DURATION_UNITS.items() for word in words}


def parse_duration_ms(text: str) -> int:
    """Milliseconds of a duration as Flink and Fluss write it: ``7 d``, ``3min``, ``1500`` (milliseconds)."""
    match = _DURATION.fullmatch(text)
    factor = None if match is None else _DURATION_FACTORS.get(match.group(2).lower())
    if match is None or factor is None:
        raise ValueError(
            "a duration is a number and a unit, such as '7 d', '12 h', '3 min', '30 s' or '500 ms'"
        )
    milliseconds = int(match.group(1)) * factor
    if not 0 < milliseconds < 2**63:
        raise ValueError("the duration must be at least 1 ms and less than 292 million years")
    return milliseconds


def format_duration(milliseconds: int) -> str:
    """The shortest exact way to write a duration: ``format_duration(604800000) == '7 d'``."""
    for factor, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if milliseconds % factor == 0:
            return f"{milliseconds // factor} {unit}"
    return f"{milliseconds} ms"


def _parse_boolean(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("the value must be 'true' or 'false'")
    return value


def _parse_column(text: str) -> str:
    name = text.strip()
    if not name or "," in name:
        raise ValueError("the value must be the name of one column")
    return name


def _parse_columns(text: str) -> tuple[str, ...]:
    names = parse_name_list(text)
    if len(set(names)) != len(names) or not all(names):
        raise ValueError("the value must be names of columns, each once, separated by commas")
    return names


def _parse_cache_size(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,10}\s*", text) or not 1 <= int(text) <= MAX_AUTO_INCREMENT_CACHE:
        raise ValueError(f"the value must be a whole number from 1 to {MAX_AUTO_INCREMENT_CACHE}")
    return int(text)


def _parse_partition_number(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,6}\s*", text):
        raise ValueError("the value must be a whole number, 0 or more")
    return int(text)


def _parse_retained(text: str) -> int:
    if not re.fullmatch(r"\s*(-1|[0-9]{1,6})\s*", text):
        raise ValueError("the value must be a whole number, 0 or more, or -1 to drop none")
    return int(text)


def _parse_zone(text: str) -> str:
    from zoneinfo import ZoneInfo

    name = text.strip()
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(
            "the value must be the name of a time zone, such as 'UTC' or 'Europe/Berlin'"
        ) from error
    return name


def _boolean_text(value: bool) -> str:
    return "true" if value else "false"


def _declare(
    name: str,
    default: str | None,
    values: type[StrEnum] | None,
    doc: str,
    *,
    alterable: bool = False,
    primary_key_only: bool = False,
) -> TableOption:
    if values is None:
        return TableOption(
            name, default, parse_duration_ms, format_duration, doc, alterable, primary_key_only
        )
    return TableOption(name, default, one_of(values), str, doc, alterable, primary_key_only)


DECLARED: Mapping[str, TableOption] = {
    option.name: option
    for option in (
        _declare(
            TTL, "7 d", None, "How long the log is kept; the topic's retention.ms follows it.", alterable=True
        ),
        _declare(
            "table.log.arrow.compression.type", "ZSTD", ArrowCompression, "Compression of the log's buffers."
        ),
        TableOption(
            STATISTICS_COLUMNS,
            None,
            _parse_columns,
            ",".join,
            "Columns whose bounds are kept with each batch of the log, so that filters skip batches: names, '*' for "
            "all, '' for none. If not given: the first 8 columns of fixed width.",
            alterable=True,
            names_columns=True,
        ),
        _declare(
            MERGE_ENGINE,
            None,
            MergeEngine,
            "What becomes of a row that is written again: 'first_row' keeps the first, 'versioned' the one with the "
            "highest version, 'aggregation' merges column by column. Without it the last row wins.",
            primary_key_only=True,
        ),
        TableOption(
            VERSION_COLUMN,
            None,
            _parse_column,
            str,
            "The column that holds the version, for the merge engine 'versioned'.",
            primary_key_only=True,
            names_columns=True,
        ),
        _declare(
            DELETE_BEHAVIOR,
            "ALLOW",
            DeleteBehavior,
            "What a delete does: ALLOW carries it out, IGNORE skips it, DISABLE refuses the batch. Tables with a "
            "merge engine ignore deletes unless they say otherwise.",
            primary_key_only=True,
        ),
        TableOption(
            AUTO_INCREMENT,
            None,
            _parse_column,
            str,
            "The column that the server numbers: a new row gets the next number, writers leave it out.",
            primary_key_only=True,
            names_columns=True,
        ),
        TableOption(
            AUTO_INCREMENT_CACHE,
            "100000",
            _parse_cache_size,
            str,
            "How many numbers a bucket takes from the table's counter at once; a restart skips those left over.",
            primary_key_only=True,
        ),
        _declare(
            CHANGELOG_IMAGE,
            "FULL",
            ChangelogImage,
            "FULL writes -U and +U for an update, WAL only +U.",
            primary_key_only=True,
        ),
        _declare(
            ROW_TTL,
            None,
            None,
            "How long a row lives after its last write (or after the time in its time column): then the server deletes "
            "it, with a -D in the changelog.",
            primary_key_only=True,
        ),
        TableOption(
            ROW_TTL_COLUMN,
            None,
            _parse_column,
            str,
            "The column with the time from which a row's life is counted: BIGINT (milliseconds), TIMESTAMP or "
            "TIMESTAMP_LTZ. A row without a time never ends.",
            primary_key_only=True,
            names_columns=True,
        ),
        TableOption(
            AUTO_PARTITION,
            "false",
            _parse_boolean,
            _boolean_text,
            "Whether the server makes partitions ahead of time and drops old ones.",
            alterable=True,
        ),
        TableOption(
            AUTO_PARTITION_KEY,
            None,
            _parse_column,
            str,
            "The partition column that holds the time; must be said when there are several.",
            names_columns=True,
        ),
        _declare(AUTO_PARTITION_UNIT, "DAY", TimeUnit, "How much time one automatic partition covers."),
        TableOption(
            AUTO_PARTITION_PRECREATE,
            "2",
            _parse_partition_number,
            str,
            "How many partitions there are from the present one on. 0 with several partition columns.",
            alterable=True,
        ),
        TableOption(
            AUTO_PARTITION_RETENTION,
            "7",
            _parse_retained,
            str,
            "How many partitions before the present one are kept; older ones are dropped. -1: all.",
            alterable=True,
        ),
        TableOption(
            AUTO_PARTITION_ZONE,
            None,
            _parse_zone,
            str,
            "The time zone in which days begin; the server's own unless it is given.",
        ),
        TableOption(
            KAFKA_CREATES_PARTITIONS,
            "true",
            _parse_boolean,
            _boolean_text,
            "Whether a row that a Kafka client produces makes the partition it belongs to.",
            alterable=True,
        ),
        TableOption(
            DATALAKE_ENABLED,
            "false",
            _parse_boolean,
            _boolean_text,
            "Whether the table is tiered into the lake.",
            alterable=True,
        ),
        _declare(
            DATALAKE_FORMAT,
            "iceberg",
            DatalakeFormat,
            "The lake's format. Given at creation, it makes the buckets the lake's own.",
        ),
        _declare(
            "table.datalake.freshness",
            "3 min",
            None,
            "How far the lake may be behind the table; the tiering job plans its rounds by it.",
            alterable=True,
        ),
        TableOption(
            DATALAKE_COMPACTION,
            "false",
            _parse_boolean,
            _boolean_text,
            "Whether the tiering job makes few large files of the lake table's many small ones.",
            alterable=True,
        ),
        TableOption(
            DATALAKE_EXPIRY,
            "false",
            _parse_boolean,
            _boolean_text,
            "Whether the tiering job removes old snapshots of the lake table; their age is the lake table's own "
            "property 'history.expire.max-snapshot-age-ms' (5 days).",
            alterable=True,
        ),
        _declare(
            VALUE_FORMAT,
            "json",
            KafkaValueFormat,
            "What the value of a record looks like: the row as JSON, a Debezium envelope of it in JSON, or Avro.",
        ),
        TableOption(
            VALUE_PATH,
            None,
            parse_value_path,
            render_value_path,
            "Where the row is in a JSON value: names of fields separated by dots, such as 'payload.data'. Without it "
            "the value is the row.",
        ),
        _declare(
            DEBEZIUM_TIME,
            "adaptive",
            DebeziumTime,
            "What numbers in DATE, TIME and TIMESTAMP columns count, as the connector's time.precision.mode: "
            "'adaptive' goes by the column's precision, 'adaptive_time_microseconds' but for TIME, 'connect' is "
            "milliseconds, 'isostring' refuses numbers. Texts are read in any case.",
            alterable=True,
        ),
        _declare(
            DEBEZIUM_DECIMALS,
            "string",
            DebeziumDecimals,
            "What texts in DECIMAL columns are, as the connector's decimal.handling.mode: 'string' the number, "
            "'precise' base64 of the unscaled value. Numbers (its 'double') are read in any case.",
            alterable=True,
        ),
        _declare(
            AVRO_SCHEMA,
            "registry",
            AvroSchemaPlace,
            "Where the schema of an Avro value is: 'registry', by an id in front of the value (Confluent's wire "
            "format), or 'record': each value is an Avro object container file.",
        ),
        TableOption(
            AVRO_REGISTRY,
            None,
            parse_registry_url,
            str,
            "The schema registry of the table; without it the server's 'schema.registry.url'.",
        ),
        _declare(
            KAFKA_CHANGELOG,
            "compact",
            KafkaChangelog,
            "What Kafka consumers see: 'compact' gives values and tombstones; 'full' gives every image, "
            "with a change-type header.",
            primary_key_only=True,
        ),
        _declare(
            "table.kafka.unknown-fields",
            "ignore",
            UnknownFields,
            "What happens to fields of a produced row that are not columns.",
            alterable=True,
        ),
    )
}

PAIMON_PREFIX = "paimon."
PAIMON_DOC = (
    "An option of the Paimon table, as Paimon's documentation names it, such as paimon.changelog-producer."
)

# What tiering and its reads stand on.
_PAIMON_RESERVED = (
    "auto-create", "branch", "bucket", "bucket-key", "commit.user-prefix", "consumer-id", "data-evolution.enabled",
    "data-file.thin-mode", "deletion-vectors.enabled", "dynamic-bucket.", "file.format", "headrace.", "ignore-delete",
    "merge-engine", "partition", "path", "pk-clustering-override", "primary-key", "row-tracking.enabled",
    "rowkind.field", "scan.", "sequence.field", "type", "write-only",
)  # fmt: skip
ICEBERG_PREFIX = "iceberg."
ICEBERG_DOC = (
    "A property of the Iceberg table, as Iceberg's documentation names it, such as"
    " iceberg.history.expire.max-snapshot-age-ms."
)
_ICEBERG_RESERVED = (
    "format-version", "headrace.", "location", "write.delete.format.default", "write.delete.mode",
    "write.distribution-mode", "write.format.default", "write.merge.distribution-mode", "write.merge.mode",
    "write.update.mode", "write.wap.",
)  # fmt: skip
_PAIMON_PRODUCERS = ("none", "lookup", "full-compaction")

# Fluss has these; saying so is more use than "unknown option".
_NOT_IN_THIS_RELEASE = (
    ("table.auto-partition.time-format", "a choice of time formats"),
    ("table.kv.standby-replica.", "standby replicas"),
    ("table.log.format", "a choice of log formats (it is always Arrow)"),
    ("table.kv.format", "a choice of row formats"),
    ("table.log.tiered.", "remote log segments"),
    ("table.log.local-ttl", "remote log segments"),
    ("table.datalake.historical-partition.", "historical partitions"),
    ("table.replication.factor", "replication of tables"),
)


class TableOptions(msgspec.Struct, frozen=True):
    """The effective values of all declared options of one table, defaults filled in."""

    log_ttl_ms: int
    arrow_compression: ArrowCompression
    statistics_columns: tuple[str, ...] | None
    """None: the automatic choice (`statistics.automatic_columns`); ("*",): all."""
    merge_engine: MergeEngine | None
    version_column: str | None
    delete_behavior: DeleteBehavior
    changelog_image: ChangelogImage
    auto_increment_column: str | None
    auto_increment_cache: int
    datalake_enabled: bool
    datalake_format: DatalakeFormat | None
    datalake_freshness_ms: int
    datalake_compaction: bool
    datalake_expiry: bool
    kafka_value_format: KafkaValueFormat
    kafka_value_path: tuple[str, ...] | None
    debezium_time: DebeziumTime
    debezium_decimals: DebeziumDecimals
    avro_schema: AvroSchemaPlace
    avro_registry: str | None
    kafka_changelog: KafkaChangelog
    kafka_unknown_fields: UnknownFields
    kafka_creates_partitions: bool
    kv_ttl_ms: int | None
    kv_ttl_time_column: str | None
    auto_partition: bool
    auto_partition_key: str | None
    auto_partition_unit: TimeUnit
    auto_partition_precreate: int | None
    auto_partition_retention: int
    auto_partition_zone: str | None


def is_table_option(name: str) -> bool:
    """Whether a name belongs to the table layer rather than to Kafka's topic configurations."""
    return name.startswith(("table.", "fields.", "auto-increment.", PAIMON_PREFIX, ICEBERG_PREFIX))


def names_columns(name: str) -> bool:
    """Whether the value of an option is a list of columns."""
    option = DECLARED.get(name)
    return option is not None and option.names_columns


def normalize(options: Mapping[str, str], *, is_primary_key_table: bool) -> dict[str, str]:
    """Options in canonical writing, sorted by name.

    Raises TableError(INVALID_TABLE) for a ``table.*`` name that is not declared, a value that does not
    parse, and an option of primary-key tables on a log table.
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
            raise _invalid(f"option '{name}' is for tables with a primary key; this is a log table")
        normal[name] = option.render(parse(name, value))
    if normal.get(DATALAKE_ENABLED) == "true":
        # Recorded at creation: the format has chosen the bucket function from here on.
        normal.setdefault(DATALAKE_FORMAT, DatalakeFormat.ICEBERG.value)
    return dict(sorted(normal.items()))


def check_texts(options: Mapping[str, Any]) -> None:
    """Raises TableError(INVALID_TABLE) for a value that is no text."""
    for name, value in options.items():
        if not isinstance(value, str):
            raise _invalid(f"option '{name}': the value {value!r} must be a text")


def find(name: str) -> TableOption:
    """The declared option of a name. Raises TableError(INVALID_TABLE) with the nearest known name if there
    is none.
    """
    option = DECLARED.get(name)
    if option is not None:
        return option
    if name.startswith(PAIMON_PREFIX):
        return _passed_to_paimon(name)
    if name.startswith(ICEBERG_PREFIX):
        _check_passed(name, ICEBERG_PREFIX, "Iceberg", _ICEBERG_RESERVED)
        return TableOption(name, None, str, str, ICEBERG_DOC)
    for prefix, what in _NOT_IN_THIS_RELEASE:
        if name.startswith(prefix):
            raise _invalid(f"option '{name}': {what}: not in this release")
    near = difflib.get_close_matches(name, DECLARED, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"the options are {', '.join(sorted(DECLARED))}"
    raise _invalid(f"unknown option '{name}'; {hint}")


def _passed_to_paimon(name: str) -> TableOption:
    """Any option of Paimon's but those that tiering sets itself. Raises TableError(INVALID_TABLE)."""
    _check_passed(name, PAIMON_PREFIX, "Paimon", _PAIMON_RESERVED)
    if name.removeprefix(PAIMON_PREFIX) == "changelog-producer":
        return TableOption(name, None, _parse_producer, str, PAIMON_DOC, primary_key_only=True)
    return TableOption(name, None, str, str, PAIMON_DOC)


def _check_passed(name: str, prefix: str, lake: str, all_reserved: tuple[str, ...]) -> None:
    own = name.removeprefix(prefix)
    if not own:
        raise _invalid(f"option '{name}' names no option of {lake}'s")
    for reserved in all_reserved:
        if own == reserved or (reserved.endswith(".") and own.startswith(reserved)):
            raise _invalid(f"option '{name}' cannot be given: tiering into {lake} sets it itself")


def passed_options(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """A table's options with this prefix, by their names in the lake format."""
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def _parse_producer(text: str) -> str:
    """A round writes the last change of each key, so it is not the changelog itself, which 'input' would say."""
    if text not in _PAIMON_PRODUCERS:
        raise ValueError(f"must be one of {', '.join(repr(each) for each in _PAIMON_PRODUCERS)}")
    return text


def parse(name: str, value: str) -> Any:
    """The typed value of a declared option. Raises TableError(INVALID_TABLE) naming the option and the
    value.
    """
    try:
        return find(name).parse(value)
    except ValueError as error:
        raise _invalid(f"option '{name}' = '{value}': {error}") from error


def effective(options: Mapping[str, str]) -> TableOptions:
    """Typed values of normalised options, with defaults for those not given."""

    def value(name: str) -> Any:
        text = options.get(name, DECLARED[name].default)
        return None if text is None else parse(name, text)

    engine: MergeEngine | None = value(MERGE_ENGINE)
    return TableOptions(
        log_ttl_ms=value(TTL),
        arrow_compression=value("table.log.arrow.compression.type"),
        statistics_columns=value(STATISTICS_COLUMNS),
        merge_engine=engine,
        version_column=value(VERSION_COLUMN),
        delete_behavior=(
            DeleteBehavior.IGNORE
            if engine is not None and DELETE_BEHAVIOR not in options
            else value(DELETE_BEHAVIOR)
        ),
        changelog_image=value(CHANGELOG_IMAGE),
        auto_increment_column=value(AUTO_INCREMENT),
        auto_increment_cache=value(AUTO_INCREMENT_CACHE),
        datalake_enabled=value(DATALAKE_ENABLED),
        # No default: a table made without a lake in mind has no lake's bucket function.
        datalake_format=value(DATALAKE_FORMAT) if DATALAKE_FORMAT in options else None,
        datalake_freshness_ms=value("table.datalake.freshness"),
        datalake_compaction=value(DATALAKE_COMPACTION),
        datalake_expiry=value(DATALAKE_EXPIRY),
        kafka_value_format=value(VALUE_FORMAT),
        kafka_value_path=value(VALUE_PATH),
        debezium_time=value(DEBEZIUM_TIME),
        debezium_decimals=value(DEBEZIUM_DECIMALS),
        avro_schema=value(AVRO_SCHEMA),
        avro_registry=value(AVRO_REGISTRY),
        kafka_changelog=value(KAFKA_CHANGELOG),
        kafka_unknown_fields=value("table.kafka.unknown-fields"),
        kafka_creates_partitions=value(KAFKA_CREATES_PARTITIONS),
        kv_ttl_ms=value(ROW_TTL),
        kv_ttl_time_column=value(ROW_TTL_COLUMN),
        auto_partition=value(AUTO_PARTITION),
        auto_partition_key=value(AUTO_PARTITION_KEY),
        auto_partition_unit=value(AUTO_PARTITION_UNIT),
        # No default here: with several partition columns it is 0.
        auto_partition_precreate=(
            value(AUTO_PARTITION_PRECREATE) if AUTO_PARTITION_PRECREATE in options else None
        ),
        auto_partition_retention=value(AUTO_PARTITION_RETENTION),
        auto_partition_zone=value(AUTO_PARTITION_ZONE),
    )


def parse_bucket_count(text: str) -> int:
    """The value of ``bucket.num``. Raises TableError(INVALID_TABLE) if it is not a number in range."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        raise _invalid(f"option '{BUCKET_COUNT}' = '{text}': the value must be a whole number")
    return int(text)


def parse_name_list(text: str) -> tuple[str, ...]:
    """Column names separated by commas, as in ``'bucket.key' = 'a,b'``."""
    return tuple(name.strip() for name in text.split(",")) if text.strip() else ()


def _invalid(message: str) -> TableError:
    return TableError(TableErrorCode.INVALID_TABLE, message)
