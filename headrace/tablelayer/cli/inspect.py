"""Data for `headrace tables`: partitions, buckets, sizes, and rows by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.client import Connection, Table, TableError
from headrace.tablelayer.model.options.table_options import SERVER_BUCKET_COUNT
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partitions import check_partitioned
from headrace.tablelayer.model.table.path import TablePath

_EARLIEST = -2
Row = tuple[Any, ...]


_SAMPLES = 100
"""Records per partition of a topic; an envelope with its schema takes some kilobytes."""


def table_for_topic(
    connection: Connection,
    name: str,
    topic: str,
    primary_key: Sequence[str],
    buckets: int | None,
    options: Mapping[str, str],
) -> TableDefinition:
    """Return a table for the newest records of a topic. Raises TableError if they do not show its columns."""
    from headrace.tablelayer.model.table.derived import Sample, derive

    begin, end = connection.kafka.offsets(topic, _EARLIEST), connection.kafka.offsets(topic)
    unread = {place: max(begin[place], last - _SAMPLES) for place, last in end.items()}
    records = []
    while unread := {place: at for place, at in unread.items() if at < end[place]}:
        found, after = connection.kafka.read(topic, unread, max_wait_ms=500)
        if not found and after == unread:
            break  # only open transactions are left
        records += found
        unread = {**unread, **after}
    records.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
    samples = [Sample.of(record.key, record.value) for record in records]
    derived = derive(TablePath.parse(name), samples, primary_key)
    count = SERVER_BUCKET_COUNT if buckets is None else buckets
    return replace(derived, bucket_count=count, options={**derived.options, **options})


def tables_for_topics(
    connection: Connection,
    database: str | None,
    pattern: str,
    primary_key: Sequence[str],
    buckets: int | None,
    options: Mapping[str, str],
) -> dict[str, TableDefinition]:
    """Return a table by each plain topic that matches a pattern, in `database` or in the last part but one of
    the topic's name.

    Raises CommandError if a topic does not show its columns, or has the name of a table that is there.
    """
    found, wrong = dict[str, TableDefinition](), list[str]()
    topics = [
        each.name
        for each in connection.kafka.list_topics()
        if not each.is_internal
        and fnmatchcase(each.name, pattern)
        and not connection.kafka.describe_topic(each.name).table
    ]
    if not topics:
        raise CommandError(f"no topic matches '{pattern}'")
    for topic in sorted(topics):
        parts = topic.split(".")
        place = database or (parts[-2] if len(parts) > 1 else "default")
        name = f"{place}.{parts[-1]}"
        try:
            if name == topic:
                raise CommandError(
                    "a table with that name cannot be beside the topic: pass a database before --from-topics"
                )
            if connection.admin.table_exists(name):
                raise CommandError(f"table {name} exists already")
            if any(str(each.path) == name for each in found.values()):
                raise CommandError(f"two topics would be table {name}: pass --from-topic for one of them")
            found[topic] = table_for_topic(connection, name, topic, primary_key, buckets, options)
        except (TableError, CommandError) as error:
            wrong.append(f"{topic}: {error}")
    if wrong:
        raise CommandError("\n".join(("no table was created", *wrong)))
    return found


def _topics(connection: Connection, table: Table) -> list[str]:
    """Return the topics with the table's rows: its own, or those of its partitions."""
    if not table.definition.is_partitioned:
        return [table.path.topic]
    return [table.path.of_partition(each.name).topic for each in table.partitions()]


def bucket_rows(connection: Connection, name: str, moment: int | None) -> list[Row]:
    """Return (topic, bucket, leader, first offset, end offset, log bytes[, offset at the moment]) rows."""
    kafka, rows = connection.kafka, []
    for topic in _topics(connection, connection.table(name)):
        leaders, sizes = kafka.describe_topic(topic).leaders, kafka.log_sizes(topic).bytes.get(topic, {})
        ranges = kafka.offset_ranges([topic]).get(topic, {})
        at = {} if moment is None else kafka.offsets(topic, moment, partitions=list(ranges))
        for bucket, leader in sorted(leaders.items()):
            offsets = ranges.get(bucket, (None, None))
            row: Row = (topic, bucket, leader if leader >= 0 else None, *offsets, sizes.get(bucket, 0))
            if moment is not None:
                row = (*row, offsets[1] if at.get(bucket, -1) < 0 else at[bucket])
            rows.append(row)
    return rows


def partition_rows(connection: Connection, name: str) -> tuple[tuple[str, ...], list[Row]]:
    """Return (partition columns, rows of (the partition's values, topic, buckets, rows, log bytes)).

    Raises TableError(NOT_PARTITIONED) for other tables.
    """
    table = connection.table(name)
    check_partitioned(table.definition)
    sizes = connection.kafka.log_sizes().bytes
    rows: list[Row] = []
    for each in table.partitions():
        topic = table.path.of_partition(each.name).topic
        count, size = table.partition(each.name).count(), sum(sizes.get(topic, {}).values())
        rows.append((*each.values, topic, each.bucket_count, count, size))
    return table.definition.partition_keys, rows


def size_rows(connection: Connection, names: Sequence[str]) -> list[Row]:
    """Return (table, kind, partitions, rows, log bytes, bytes per row), largest first; no `names`: all tables."""
    admin, sizes = connection.admin, connection.kafka.log_sizes().bytes
    listed = names or [
        f"{database}.{table}" for database in admin.list_databases() for table in admin.list_tables(database)
    ]
    rows: list[Row] = []
    for name in listed:
        table = connection.table(name)
        topics = _topics(connection, table)
        count = table.count()
        size = sum(sum(sizes.get(topic, {}).values()) for topic in topics)
        kind = "primary key" if table.definition.is_primary_key_table else "log"
        partitions = len(topics) if table.definition.is_partitioned else None
        rows.append(
            (str(table.path), kind, partitions, count, size, round(size / count, 1) if count else None)
        )
    return sorted(rows, key=lambda row: (-row[4], row[0]))


def looked_up(
    table: Table, texts: Sequence[str], columns: Sequence[str] | None
) -> tuple[pa.Table, list[str]]:
    """Return (rows of existing keys, texts of missing keys). Raises CommandError for a text that is not a key."""
    definition = table.definition
    wanted = set(definition.schema.primary_key)
    if not wanted:
        raise CommandError(f"{table.path} has no primary key: use headrace tables head, or SQL")
    keys = [_key(table, text) for text in texts]
    if all(set(key) == wanted for key in keys):
        found, rows = table.lookup(_rows(table, keys), columns)
        return rows.filter(pa.array(found)), [
            text for text, there in zip(texts, found, strict=True) if not there
        ]
    if definition.allows_prefix_lookup and all(set(key) == set(definition.prefix_columns) for key in keys):
        owners, rows = table.prefix_lookup_grouped(_rows(table, keys), columns)
        there = set(owners.tolist())
        return rows, [text for index, text in enumerate(texts) if index not in there]
    allowed = ",".join(f"{each}=..." for each in definition.schema.primary_key)
    if definition.allows_prefix_lookup:
        allowed += " or " + ",".join(f"{each}=..." for each in definition.prefix_columns)
    raise CommandError(f"keys of {table.path} must be written {allowed}, all in the same form")


def _key(table: Table, text: str) -> dict[str, str]:
    primary_key = table.definition.schema.primary_key
    if len(primary_key) == 1 and not text.startswith(f"{primary_key[0]}="):
        return {primary_key[0]: text}
    parts = [part.partition("=") for part in text.split(",")]
    bad = next((name for name, sign, _ in parts if not sign or name.strip() not in primary_key), None)
    if bad is not None:
        raise CommandError(
            f"{text!r} is not a key of {table.path}: write " + ",".join(f"{each}=..." for each in primary_key)
        )
    return {name.strip(): value.strip() for name, _, value in parts}


def _rows(table: Table, keys: Sequence[dict[str, str]]) -> pa.Table:
    schema = table.definition.schema
    columns = [column for column in schema.key_columns if column.name in keys[0]]
    return pa.table({each.name: _values([key[each.name] for key in keys], each) for each in columns})


def _values(texts: list[str], column: Column) -> pa.Array:
    try:
        return pa.array(texts, pa.string()).cast(column.type.arrow())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CommandError(
            f"{', '.join(texts)}: not a value of column '{column.name}', {column.type}: {error}"
        ) from None
