"""`headrace topics`: Kafka topics, tables among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tablelayer.cli.errors import CommandError
from tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption

if TYPE_CHECKING:
    from tablelayer.client import KafkaRecord

topics = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, create, describe, delete and read Kafka topics."
)

_EARLIEST, _LATEST = -2, -1


@topics.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option(help="Show internal topics too.")] = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """List all topics. A table `db.t` is a topic too.

    \b headrace topics list
    """
    from tablelayer.cli.connect import open_connection
    from tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        found = [topic for topic in connection.kafka.list_topics() if internal or not topic.is_internal]
        rows = []
        for topic in found:
            end = connection.kafka.offsets(topic.name)
            begin = connection.kafka.offsets(topic.name, _EARLIEST)
            kept = sum(end.values()) - sum(begin.values())
            rows.append((topic.name, len(topic.leaders), kept, str(topic.topic_id)))
    write_rows(
        ("topic", "partitions", "offsets kept", "id"), rows, output, numeric=(False, True, True, False)
    )


@topics.command("import")
def import_from_kafka(
    kafka_data: Annotated[
        Path,
        typer.Option(
            "--kafka-data", metavar="DIR", help="A log.dirs folder of an Apache Kafka that is stopped."
        ),
    ],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="The data directory of this server, which is stopped.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics.", show_default=False)
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A configuration of the imported topics; repeatable."
        ),
    ] = None,
    node_id: Annotated[int, typer.Option(min=0, help="The node.id of this server.")] = 0,
) -> None:
    """Take topics over from Apache Kafka: records, offsets, epochs and ids, byte for byte.

    Configurations of topics and offsets of groups do not come along: Kafka keeps them elsewhere.

    \b headrace topics import --kafka-data /var/lib/kafka --data ./data headrace topics import --kafka-data
    /var/lib/kafka --data ./data clicks --set cleanup.policy=compact
    """
    import asyncio

    from broker.cluster.kafka_import import import_topics
    from broker.cluster.topic_config import TopicConfigs
    from broker.config_key import ConfigError
    from broker.ports import SystemEntropy
    from protocol.errors import KafkaError
    from tablelayer.cli.serve import parse_sets

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
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A topic configuration under Kafka's own name; repeatable."
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Create a topic.

    \b headrace topics create clicks --partitions 4 --set retention.ms=3600000
    """
    from tablelayer.cli.connect import open_connection

    configs = {}
    for text in sets or []:
        key, separator, value = text.partition("=")
        if not separator:
            raise CommandError(f"--set {text!r} is not of the form name=value")
        configs[key] = value
    with open_connection(server) as connection:
        topic = connection.kafka.create_topic(name, partitions=partitions, configs=configs)
    typer.echo(f"topic {name} has {len(topic.leaders)} partition{'s' if len(topic.leaders) != 1 else ''}")


@topics.command()
def describe(
    name: Annotated[str, typer.Argument(help="Name of the topic.")],
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show a topic's partitions, offsets and configuration.

    \b headrace topics describe clicks
    """
    from tablelayer.cli.connect import open_connection
    from tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        topic = connection.kafka.describe_topic(name)
        begin, end = connection.kafka.offsets(name, _EARLIEST), connection.kafka.offsets(name)
    partitions = [(p, topic.leaders[p], begin[p], end[p]) for p in sorted(topic.leaders)]
    if output is Format.TABLE:
        typer.echo(f"topic {name}, id {topic.topic_id}" + (", a table" if topic.is_table else ""))
        for key, value in sorted(topic.configs.items()):
            typer.echo(f"  {key} = {value}")
        typer.echo("")
    write_rows(("partition", "leader", "first offset", "end offset"), partitions, output, numeric=(True,) * 4)


@topics.command()
def delete(
    name: Annotated[str, typer.Argument(help="Name of the topic.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Delete a topic and its records.

    \b headrace topics delete clicks
    """
    from tablelayer.cli.connect import open_connection

    if not yes:
        typer.confirm(f"Delete topic {name} and all of its records?", abort=True)
    with open_connection(server) as connection:
        connection.kafka.delete_topic(name)
    typer.echo(f"topic {name} is deleted")


@topics.command()
def tail(
    name: Annotated[str, typer.Argument(help="Name of the topic.")],
    count: Annotated[
        int, typer.Option("-n", min=0, help="Begin with the last so many records of each partition.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new records until Ctrl-C.")
    ] = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show the last records of a topic as a Kafka client sees them; of a table, its Kafka face.

    \b headrace topics tail default.orders -n 5 headrace topics tail clicks --follow --format json
    """
    from tablelayer.cli.connect import open_connection

    with open_connection(server) as connection:
        begin, end = connection.kafka.offsets(name, _EARLIEST), connection.kafka.offsets(name, _LATEST)
        positions = {p: max(begin[p], end[p] - count) for p in end}
        collected: list[KafkaRecord] = []
        begun = False
        while True:
            unread = positions if follow else {p: at for p, at in positions.items() if at < end[p]}
            if not unread:
                break
            records, after = connection.kafka.read(name, unread, max_wait_ms=500)
            shown = [r for r in records if follow or r.offset < end[r.partition]]
            if follow and shown:
                _show(shown, output, header=not begun)
                begun = True
            elif shown:
                collected += shown
            if after == unread and not follow:
                raise CommandError(
                    f"{name} gives no records although its log does not end: is it being deleted?"
                )
            positions = {**positions, **after}
    _show(sorted(collected, key=lambda r: (r.partition, r.offset)), output)


def _show(records: Sequence[KafkaRecord], output: Format, *, header: bool = True) -> None:
    from tablelayer.cli.output import write_rows

    if output is Format.TABLE:
        for record in records:
            key = _readable(record.key)
            shown = "-" if key is None else key
            typer.echo(f"{record.partition}:{record.offset}  {shown}  {_shown(_readable(record.value))}")
        return
    rows = [(r.partition, r.offset, r.timestamp_ms, _readable(r.key), _readable(r.value)) for r in records]
    write_rows(("partition", "offset", "timestamp", "key", "value"), rows, output, header=header)


def _shown(value: str | None) -> str:
    return "(deleted)" if value is None else value


def _readable(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")
