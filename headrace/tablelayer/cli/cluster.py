"""`headrace cluster`: the brokers of a cluster, and the leaders of its partitions."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption

cluster = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Brokers of a cluster and their partitions: status, brokers, drain, rebalance, replicate, adopt.",
)

_NAMED_MAX = 10
_LOOK_SECONDS = 0.5

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the moves without making them.")]


if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.tablelayer.client import Connection
    from headrace.tablelayer.client.admin.placement import Placement


@cluster.command()
def status(server: ServerOption = DEFAULT_SERVER) -> None:
    """Show the brokers, and whether all partitions have a leader. The exit code is 1 if any is offline.

    \b
      headrace cluster status
    """
    from headrace.tablelayer.cli.connect import open_connection

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
        typer.echo(f"  {topic}-{partition} has no leader: its broker is not alive")
    if len(found.offline) > _NAMED_MAX:
        typer.echo(f"  and {len(found.offline) - _NAMED_MAX} more")
    if found.under_replicated:
        typer.echo(f"{len(found.under_replicated)} partitions have replicas that are not in sync")
    if found.offline:
        raise typer.Exit(1)


@cluster.command()
def brokers(output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER) -> None:
    """List the brokers that are alive.

    \b
      headrace cluster brokers
      headrace cluster brokers --format json --server 127.0.0.1:9093
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows

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


@cluster.command()
def adopt(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Data directory of a stopped server that is not in a cluster.")
    ],
    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT/PATH", help="ZooKeeper and path of the new cluster; the path must be unused."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A broker configuration, as in headrace serve; repeatable."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Server configurations, a .properties or .toml file."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check whether it is possible, and change nothing.")
    ] = False,
) -> None:
    """Make a server outside a cluster the first broker of a new one, with its topics, tables, groups, users and ACLs.

    The server must be stopped, and its files stay in place. An interrupted run is repeated with the same command.

    \b
      headrace cluster adopt --data ./data --zookeeper 127.0.0.1:2181/headrace --dry-run
      headrace cluster adopt --data ./data --zookeeper 127.0.0.1:2181/headrace
    """
    from headrace.tablelayer.cli.adopt import adopt_directory

    adopt_directory(data, zookeeper, sets or [], config, dry_run=dry_run)


@cluster.command()
def drain(broker: int, dry_run: DryRunOption = False, server: ServerOption = DEFAULT_SERVER) -> None:
    """Move all partitions away from a broker, before it is removed. Clients continue to work.

    \b
      headrace cluster drain 3 --dry-run
      headrace cluster drain 3
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.client.admin.placement import PlacementError, drained

    with open_connection(server) as connection:
        found = connection.kafka.describe_cluster()
        placements = connection.kafka.placements()
        brokers = {each.broker_id: each.rack for each in found.brokers}
        if broker not in brokers and not any(broker in each.replicas for each in placements):
            alive = ", ".join(map(str, brokers))
            raise CommandError(
                f"there is no broker {broker} and it holds no replicas; alive brokers: {alive}"
            )
        try:
            wanted = drained(placements, brokers, broker)
        except PlacementError as error:
            raise CommandError(str(error)) from None
        _carry_out(connection, placements, wanted, dry_run)
    if not dry_run:
        typer.echo(
            f"broker {broker} holds no replicas any more; stop it soon, because new topics may still be assigned to it"
        )


@cluster.command()
def rebalance(dry_run: DryRunOption = False, server: ServerOption = DEFAULT_SERVER) -> None:
    """Move partitions so that all brokers hold and lead equally many, after one was added. Clients continue to work.

    \b
      headrace cluster rebalance --dry-run
      headrace cluster rebalance
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.client.admin.placement import balanced

    with open_connection(server) as connection:
        found = connection.kafka.describe_cluster()
        placements = connection.kafka.placements()
        wanted = balanced(placements, {each.broker_id: each.rack for each in found.brokers})
        _carry_out(connection, placements, wanted, dry_run)
        if dry_run:
            return
        left = connection.kafka.elect_preferred_leaders()
        for (topic, partition), why in list(left.items())[:_NAMED_MAX]:
            typer.echo(f"  {topic}-{partition} keeps its leader: {why}")
        after = connection.kafka.describe_cluster()
    held = Counter(each for placement in _after(placements, wanted) for each in placement.replicas)
    for each in after.brokers:
        typer.echo(
            f"broker {each.broker_id} holds {held[each.broker_id]} replicas and leads {each.partitions_led}"
        )


@cluster.command()
def replicate(
    factor: Annotated[int, typer.Argument(min=1, help="Number of replicas for each partition.")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Only this topic or table, as in default.fruit; repeatable."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Give all partitions and buckets the same number of replicas, including internal topics. Clients continue to work.

    \b
      headrace cluster replicate 3 --dry-run
      headrace cluster replicate 3
      headrace cluster replicate 2 --topic orders --topic default.fruit
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.client.admin.placement import PlacementError, replicated

    with open_connection(server) as connection:
        found = connection.kafka.describe_cluster()
        placements = connection.kafka.placements()
        if unknown := sorted({*(topics or ())} - {each.topic for each in placements}):
            raise CommandError(f"there is no topic {unknown[0]}")
        chosen = [each for each in placements if not topics or each.topic in topics]
        try:
            wanted = replicated(chosen, {each.broker_id: each.rack for each in found.brokers}, factor)
        except PlacementError as error:
            raise CommandError(str(error)) from None
        _carry_out(connection, placements, wanted, dry_run)


def _after(placements: Sequence[Placement], wanted: Sequence[Placement]) -> list[Placement]:
    moved = {(each.topic, each.partition): each for each in wanted}
    return [moved.get((each.topic, each.partition), each) for each in placements]


def _carry_out(
    connection: Connection, placements: Sequence[Placement], wanted: Sequence[Placement], dry_run: bool
) -> None:
    """Carry out the moves, and wait until all of them are done."""
    before = {(each.topic, each.partition): each.replicas for each in placements}
    if not wanted:
        typer.echo("nothing has to be moved")
        return
    copies = sum(len({*each.replicas} - {*before[each.topic, each.partition]}) for each in wanted)
    typer.echo(f"{len(wanted)} of {len(placements)} partitions change, {copies} replicas to copy")
    if dry_run:
        for each in wanted:
            was, will = (
                ",".join(map(str, replicas))
                for replicas in (before[each.topic, each.partition], each.replicas)
            )
            typer.echo(f"  {each.topic}-{each.partition}: {was} -> {will}")
        return
    refused = connection.kafka.move_partitions(wanted)
    places = {(each.topic, each.partition) for each in wanted} - refused.keys()
    left = len(places)
    while left:
        time.sleep(_LOOK_SECONDS)
        moving = {(each.topic, each.partition) for each in connection.kafka.moving_partitions()}
        if len(places & moving) != left:
            left = len(places & moving)
            typer.echo(f"{left} of {len(places)} partitions left", err=True)
    if refused:
        named = "\n".join(f"  {why}" for why in list(refused.values())[:_NAMED_MAX])
        raise CommandError(f"{len(refused)} partitions cannot be moved:\n{named}")
