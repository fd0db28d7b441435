"""`headrace groups`: consumer groups and how far behind they are."""

from __future__ import annotations

from typing import Annotated

import typer

from tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption

groups = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and describe consumer groups.")


@groups.command("list")
def list_groups(output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER) -> None:
    """List all consumer groups.

    \b headrace groups list
    """
    from tablelayer.cli.connect import open_connection
    from tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        rows = [(group.group, group.state, group.protocol_type) for group in connection.kafka.list_groups()]
    write_rows(("group", "state", "protocol"), rows, output)


@groups.command()
def describe(
    name: Annotated[str, typer.Argument(help="Name of the group (group.id).")],
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show a group's members, its committed offsets and its lag.

    \b headrace groups describe my-app
    """
    from tablelayer.cli.connect import open_connection
    from tablelayer.cli.output import write_rows
    from tablelayer.client import KafkaError

    with open_connection(server) as connection:
        group = connection.kafka.describe_group(name)
        ends: dict[str, dict[int, int]] = {}
        for topic, _ in group.positions:
            if topic not in ends:
                try:
                    ends[topic] = connection.kafka.offsets(topic)
                except KafkaError:
                    ends[topic] = {}  # deleted since
    rows = []
    for (topic, partition), offset in sorted(group.positions.items()):
        end = ends[topic].get(partition)
        rows.append((topic, partition, offset, end, None if end is None else end - offset))
    if output is Format.TABLE:
        typer.echo(
            f"group {name}: {group.state}" + (f", assignor {group.assignor}" if group.assignor else "")
        )
        for member in group.members:
            typer.echo(f"  member {member.member_id} ({member.client_id} at {member.client_host})")
        typer.echo("")
    names = ("topic", "partition", "committed offset", "end offset", "lag")
    write_rows(names, rows, output, numeric=(False, True, True, True, True))
