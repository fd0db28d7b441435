"""`headrace cluster`: the brokers of a cluster, and the leaders of its partitions."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.tablelayer.cli.cluster_state import NAMED_MAX, cluster_object, health_reasons, missing_text
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption
from headrace.tablelayer.cli.words import counted

cluster = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Brokers of a cluster and their partitions: status, health, brokers, bundle, drain, rebalance, "
    "replicate, adopt.",
)

_LOOK_SECONDS = 0.5

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the moves without making them.")]


if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.tablelayer.client import Connection
    from headrace.tablelayer.client.admin.cluster_state import ClusterDescription
    from headrace.tablelayer.client.admin.placement import Placement


@cluster.command()
def status(output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER) -> None:
    """Show all brokers, including those that are away, and whether all partitions have a leader.

    The exit code is 1 if a partition has no leader. `headrace cluster health` is stricter.

    \b
      headrace cluster status
      headrace cluster status -o json
    """
    from headrace.tablelayer.cli.connect import open_connection

    with open_connection(server) as connection:
        found = connection.kafka.describe_cluster()
    if output is Format.TABLE:
        _show(found)
    else:
        _write(found, output)
    if found.offline:
        raise typer.Exit(1)


def _show(found: ClusterDescription) -> None:
    controller = f"broker {found.controller}" if found.controller >= 0 else "none at the moment"
    typer.echo(f"cluster {found.cluster_id}, controller: {controller}")
    alive = ", ".join(str(each.broker_id) for each in found.brokers)
    typer.echo(f"{counted(len(found.brokers), 'broker')} alive: {alive}")
    for each in found.missing:
        typer.echo(f"  {missing_text(each)}")
    typer.echo(
        f"{counted(found.topic_count, 'topic')}, {counted(found.partition_count, 'partition')},"
        f" {len(found.offline)} offline"
    )
    for topic, partition in found.offline[:NAMED_MAX]:
        reason = (
            "its replicas are alive, but none is known to have all records"
            if (topic, partition) in found.not_eligible
            else "no broker that has a replica of it is alive"
        )
        typer.echo(f"  {topic}-{partition} has no leader: {reason}")
    if len(found.offline) > NAMED_MAX:
        typer.echo(f"  and {len(found.offline) - NAMED_MAX} more")
    if found.under_replicated:
        verb = "has" if len(found.under_replicated) == 1 else "have"
        typer.echo(
            f"{counted(len(found.under_replicated), 'partition')} {verb} replicas that are not in sync;"
            f" {len(found.under_min_isr)} {'has' if len(found.under_min_isr) == 1 else 'have'} fewer in sync than"
            " min.insync.replicas"
        )


def _write(found: ClusterDescription, output: Format) -> None:
    """Write one JSON object, or its numbers as CSV."""
    from headrace.tablelayer.cli.output import write_object, write_rows

    if output is Format.JSON:
        write_object(cluster_object(found))
        return
    numbers = {
        "brokers": len(found.brokers),
        "missing brokers": len(found.missing),
        "topics": found.topic_count,
        "partitions": found.partition_count,
        "offline": len(found.offline),
        "under replicated": len(found.under_replicated),
        "under min isr": len(found.under_min_isr),
    }
    write_rows(list(numbers), [list(numbers.values())], output)


@cluster.command()
def health(
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the cluster is healthy.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Longest time to wait, with --wait.")
    ] = 300.0,
    at_least: Annotated[
        int, typer.Option("--brokers", min=1, metavar="COUNT", help="Number of brokers that must be alive.")
    ] = 1,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Check a cluster, for scripts: the exit code is 0 if it is healthy, 1 if not.

    A cluster is healthy if there is a controller, all registered brokers are alive, every partition has a leader, and
    all replicas are in sync.

    \b
      headrace cluster health
      headrace cluster health --wait --brokers 3 --timeout 60
    """
    deadline = time.monotonic() + timeout
    while True:
        reasons = _reasons(server, at_least)
        if not reasons:
            typer.echo("healthy")
            return
        if not wait or time.monotonic() >= deadline:
            typer.echo("\n".join(reasons), err=True)
            raise typer.Exit(1)
        time.sleep(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))


def _reasons(server: str, at_least: int) -> list[str]:
    """Return the reasons why a cluster is not healthy."""
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.client import ConnectionFailed

    try:
        with open_connection(server) as connection:
            return health_reasons(connection.kafka.describe_cluster(), at_least)
    except ConnectionFailed as error:
        return [str(error)]


@cluster.command()
def brokers(output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER) -> None:
    """List all brokers, including those that are not alive.

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
            True,
            each.partitions_led,
            each.broker_id == found.controller,
        )
        for each in found.brokers
    ]
    rows += [
        (each.broker_id, f"{each.host}:{each.port}" if each.host else "unknown", each.rack, False, 0, False)
        for each in found.missing
    ]
    names = ("broker", "address", "rack", "is alive", "partitions led", "is controller")
    write_rows(names, sorted(rows), output, numeric=(True, False, False, False, True, False))


@cluster.command()
def bundle(
    to: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="The archive to write.")],
    metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Metrics of a broker, as http://HOST:9308/metrics; repeatable."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A log file of a broker, of which the last 20 MiB are taken; repeatable."
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Write the cluster's state into one archive, for a report about a fault: without records and without secrets.

    It has brokers, replicas, offsets, groups, configurations, versions, and the given metrics and logs. Secret
    configurations are hidden, and values behind their names in logs. Names of topics, groups and hosts are in it.

    \b
      headrace cluster bundle fault.tar.gz
      headrace cluster bundle fault.tar.gz --metrics http://127.0.0.1:9308/metrics --log ./data/headrace.log
    """
    from headrace.tablelayer.cli.bundle import write_bundle

    write_bundle(server, to, metrics or [], log or [])


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
def drain(
    broker: Annotated[int, typer.Argument(help="Id of the broker.", show_default=False)],
    dry_run: DryRunOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
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
    """Move partitions so that all brokers hold and lead the same number, after one was added. Clients continue to work.

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
        for (topic, partition), why in list(left.items())[:NAMED_MAX]:
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
        named = "\n".join(f"  {why}" for why in list(refused.values())[:NAMED_MAX])
        raise CommandError(f"{len(refused)} partitions cannot be moved:\n{named}")
