"""`headrace cluster`: the brokers that are one cluster, and how its partitions are led."""

from __future__ import annotations

import typer

from tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption

cluster = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at the brokers of a cluster: status, brokers."
)

_NAMED_MAX = 10


@cluster.command()
def status(server: ServerOption = DEFAULT_SERVER) -> None:
    """Say whether all partitions are led, and by how many brokers. The exit code is 1 if any is offline.

    \b
      headrace cluster status
    """
    from tablelayer.cli.connect import open_connection

    with open_connection(server) as connection:
        found = connection.kafka.describe_cluster()
    controller = f"broker {found.controller}" if found.controller >= 0 else "none at the moment"
    typer.echo(f"cluster {found.cluster_id}, controller: {controller}")
    typer.echo(
        f"{len(found.brokers)} brokers alive: {', '.join(str(each.broker_id) for each in found.brokers)}"
    )
    typer.echo(
        f"{found.topic_count} topics, {found.partition_count} partitions, {len(found.offline)} offline"
    )
    for topic, partition in found.offline[:_NAMED_MAX]:
        typer.echo(f"  {topic}-{partition} has no leader: the broker that holds it is not alive")
    if len(found.offline) > _NAMED_MAX:
        typer.echo(f"  and {len(found.offline) - _NAMED_MAX} more")
    if found.offline:
        raise typer.Exit(1)


@cluster.command()
def brokers(output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER) -> None:
    """List the brokers that are alive.

    \b
      headrace cluster brokers
      headrace cluster brokers --format json --server 127.0.0.1:9093
    """
    from tablelayer.cli.connect import open_connection
    from tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        found = connection.kafka.describe_cluster()
    rows = [
        (
            each.broker_id,
            f"{each.host}:{each.port}",
            each.rack,
            each.partitions_led,
            each.broker_id == found.controller,
        )
        for each in found.brokers
    ]
    names = ("broker", "address", "rack", "partitions led", "is controller")
    write_rows(names, rows, output, numeric=(True, False, False, True, False))
