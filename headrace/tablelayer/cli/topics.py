"""`headrace topics`: Kafka topics, including those of tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from headrace.tablelayer.cli import topic_records
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.names import topic_names
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption
from headrace.tablelayer.cli.words import (
    DryRunOption,
    YesOption,
    confirm,
    counted,
    named_values,
)

topics = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, create, describe, alter and delete Kafka topics; read and write their records.",
)


_PARTITION_COLUMNS = ("partition", "leader", "replicas", "in sync", "offline", "first offset", "end offset")


@topics.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option(help="Show internal topics too.")] = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """List all topics. A table `db.t` is a topic too, and each partition of a partitioned table is one.

    The number of offsets is unknown (NULL) while a partition has no leader.

    \b
      headrace topics list
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows
    from headrace.tablelayer.client.table_topics import tables_of_topics

    with open_connection(server) as connection:
        found = [topic for topic in connection.kafka.list_topics() if internal or not topic.is_internal]
        ranges = connection.kafka.offset_ranges([topic.name for topic in found]) if found else {}
        tables = tables_of_topics(connection, [topic.name for topic in found])
    rows = []
    for topic in found:
        parts = topic.partitions.values()
        known = ranges.get(topic.name, {}).values()
        rows.append(
            (
                topic.name,
                _kind(topic.name, tables.get(topic.name), internal=topic.is_internal),
                len(parts),
                min((len(each.replicas) for each in parts), default=0),
                sum(len(each.in_sync) < len(each.replicas) for each in parts),
                sum(each.leader < 0 for each in parts),
                sum(each.end - each.first for each in known) if len(known) == len(parts) else None,
                str(topic.topic_id),
            )
        )
    names = (
        "topic",
        "kind",
        "partitions",
        "replicas",
        "under replicated",
        "without leader",
        "offsets kept",
        "id",
    )
    shown = len(names) - (
        output is Format.TABLE
    )  # ids are long, and for programs: `topics describe` has them
    numeric = (False, False, True, True, True, True, True, False)
    write_rows(names[:shown], [row[:shown] for row in rows], output, numeric=numeric[:shown])


def _kind(name: str, table: str | None, *, internal: bool) -> str:
    if table is not None:
        return "table" if table == name else "table partition"
    return "internal" if internal else "topic"


@topics.command("import")
def import_from_kafka(
    kafka_data: Annotated[
        Path,
        typer.Option("--kafka-data", metavar="DIR", help="A log.dirs folder of a stopped Apache Kafka."),
    ],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Data directory of this server, which must be stopped.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics.", show_default=False)
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Configuration of the imported topics; repeatable."),
    ] = None,
    node_id: Annotated[int, typer.Option(min=0, help="node.id of this server.")] = 0,
) -> None:
    """Import topics from Apache Kafka: records, offsets, epochs and ids, byte for byte.

    Configurations of topics and offsets of groups are not imported: Kafka keeps them elsewhere.

    \b
      headrace topics import --kafka-data /var/lib/kafka --data ./data
      headrace topics import --kafka-data /var/lib/kafka --data ./data clicks --set cleanup.policy=compact
    """
    import asyncio

    from headrace.broker.cluster.kafka_import import import_topics
    from headrace.broker.configs.config_key import ConfigError
    from headrace.broker.metadata.topic_config import TopicConfigs
    from headrace.broker.runtime.ports import SystemEntropy
    from headrace.protocol.errors import KafkaError
    from headrace.tablelayer.cli.serve import parse_sets

    try:
        imported = asyncio.run(
            import_topics(
                kafka_data,
                data,
                names or [],
                parse_sets(sets or []),
                configs=TopicConfigs({}),
                entropy=SystemEntropy(),
                node_id=node_id,
            )
        )
    except (ConfigError, KafkaError, OSError) as error:
        raise CommandError(str(error)) from error
    for name, partitions in imported.items():
        kept = sum(partition.end_offset - partition.log_start_offset for partition in partitions)
        size = sum(partition.size_bytes for partition in partitions)
        typer.echo(f"{name}: {len(partitions)} partitions, {kept} offsets, {size} bytes")


@topics.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the new topic.")],
    partitions: Annotated[int, typer.Option(help="Number of partitions; -1: the server's default.")] = -1,
    replicas: Annotated[
        int,
        typer.Option("--replication-factor", help="Replicas of each partition; -1: the server's default."),
    ] = -1,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A topic configuration under Kafka's own name; repeatable."
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed and change nothing if there is such a topic.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Create a topic.

    \b
      headrace topics create clicks --partitions 4 --set retention.ms=3600000
      headrace topics create clicks --replication-factor 3 --set min.insync.replicas=2 --if-not-exists
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.client import KafkaError

    configs = named_values(sets or [])
    with open_connection(server) as connection:
        try:
            topic = connection.kafka.create_topic(
                name, partitions=partitions, replicas=replicas, configs=configs
            )
        except KafkaError as error:
            if error.code.name != "TOPIC_ALREADY_EXISTS" or not if_not_exists:
                raise
            typer.echo(f"topic {name} exists already")
            return
    parts = topic.partitions.values()
    copies = min((len(each.replicas) for each in parts), default=1)
    more = f" with {copies} replicas each" if copies > 1 else ""
    typer.echo(f"topic {name} has {counted(len(parts), 'partition')}{more}")


@topics.command()
def describe(
    name: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show a topic's partitions with their replicas and offsets, and its configuration.

    A partition without a leader is shown without offsets.

    \b
      headrace topics describe clicks
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import json_row, write_object, write_rows

    with open_connection(server) as connection:
        topic = connection.kafka.describe_topic(name)
        ranges = connection.kafka.offset_ranges([name]).get(name, {})
    partitions = []
    for number, part in sorted(topic.partitions.items()):
        offsets = ranges.get(number, (None, None))
        leader = part.leader if part.leader >= 0 else None
        partitions.append((number, leader, part.replicas, part.in_sync, part.offline, *offsets))
    if output is Format.JSON:
        write_object(
            {
                "topic": name,
                "id": str(topic.topic_id),
                "is_table": topic.is_table,
                "table": topic.table,
                "configs": dict(sorted(topic.configs.items())),
                "partitions": [json_row(_PARTITION_COLUMNS, each) for each in partitions],
            }
        )
        return
    if output is Format.TABLE:
        of_partition = "" if topic.table is None else f", a partition of table {topic.table}"
        typer.echo(f"topic {name}, id {topic.topic_id}{', a table' if topic.is_table else of_partition}")
        for key, value in sorted(topic.configs.items()):
            typer.echo(f"  {key} = {value}")
        if topic.configs_withheld:
            typer.echo("  not authorized: its configurations are withheld (DESCRIBE_CONFIGS)")
        typer.echo("")
    rows = [
        [",".join(map(str, each)) if isinstance(each, tuple) else each for each in row] for row in partitions
    ]
    numeric = (True, True, False, False, False, True, True)
    write_rows(_PARTITION_COLUMNS, rows, output, numeric=numeric)


@topics.command()
def delete(
    name: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Delete a topic and its records.

    \b
      headrace topics delete clicks
    """
    from headrace.tablelayer.cli.connect import open_connection

    confirm(f"Delete topic {name} and all of its records?", yes=yes)
    with open_connection(server) as connection:
        connection.kafka.delete_topic(name)
    typer.echo(f"deleted topic {name}")


@topics.command()
def alter(
    name: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A topic configuration to set; repeatable."),
    ] = None,
    unsets: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Configuration to reset to its default; repeatable."),
    ] = None,
    dry_run: DryRunOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Change a topic's configuration: all named values or none.

    \b
      headrace topics alter clicks --set retention.ms=3600000 --unset cleanup.policy
      headrace topics alter clicks --set segment.bytes=1048576 --dry-run
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.client import ConfigKind

    values, removed = named_values(sets or []), unsets or []
    if not values and not removed:
        raise CommandError("no change was given: pass --set NAME=VALUE or --unset NAME")
    with open_connection(server) as connection:
        connection.kafka.alter_configs(ConfigKind.TOPIC, name, values, removed, validate_only=dry_run)
    typer.echo(f"topic {name} {'could be' if dry_run else 'is'} altered")


@topics.command()
def refused(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Topic of a table; default: all tables.", autocompletion=topic_names, show_default=False
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show which records tables refused lately, and why: the last 50 of each table since the server started.

    A producer whose library shows only the error code (librdkafka: INVALID_RECORD) does not show the reason. With
    'table.kafka.dead-letter-topic' the bad record goes there, and the rest of its batch is written.

    \b
      headrace topics refused
      headrace topics refused default.fruit -o json
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        found = connection.admin.refused(name)
    rows = [
        (
            table.table,
            datetime.fromtimestamp(each.time_ms / 1000, UTC),
            each.topic,
            each.partition,
            each.index if each.index >= 0 else None,
            each.code,
            each.dead_letter,
            each.reason,
        )
        for table in found
        for each in table.records
    ]
    names = ("table", "time", "topic", "partition", "record of the batch", "error", "dead letter", "reason")
    write_rows(names, rows, output)


@topics.command("add-partitions")
def add_partitions(
    name: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    count: Annotated[
        int, typer.Option("--to", metavar="COUNT", min=1, help="New total number of partitions.")
    ],
    dry_run: DryRunOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Add partitions to a topic. Records with a key may then go to other partitions than before.

    \b
      headrace topics add-partitions clicks --to 8
    """
    from headrace.tablelayer.cli.connect import open_connection

    with open_connection(server) as connection:
        before = len(connection.kafka.describe_topic(name).leaders)
        connection.kafka.add_partitions(name, count, validate_only=dry_run)
    typer.echo(f"topic {name} {'could have' if dry_run else 'has'} {count} partitions instead of {before}")


topics.command()(topic_records.produce)
topics.command()(topic_records.tail)
topics.command("delete-records")(topic_records.delete_records)
