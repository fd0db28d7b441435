"""`headrace groups`: consumer groups, their lag, and their offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.names import group_names
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption
from headrace.tablelayer.cli.words import DryRunOption, YesOption, confirm, moment_of, topic_and_partitions

if TYPE_CHECKING:
    from headrace.tablelayer.client import Connection

groups = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, describe, reset and delete consumer groups.",
)

_EARLIEST, _LATEST = -2, -1
_LAG_COLUMNS = ("topic", "partition", "committed offset", "end offset", "lag")

GroupArgument = Annotated[
    str, typer.Argument(help="Name of the group (group.id).", autocompletion=group_names)
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:PARTITION,...]",
        help="Only this topic, or only these partitions of it; repeatable.",
        show_default=False,
    ),
]


@groups.command("list")
def list_groups(output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER) -> None:
    """List all consumer groups.

    \b
      headrace groups list
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        rows = [(group.group, group.state, group.protocol_type) for group in connection.kafka.list_groups()]
    write_rows(("group", "state", "protocol"), rows, output)


@groups.command()
def describe(
    name: GroupArgument, output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER
) -> None:
    """Show a group's members, its committed offsets and its lag.

    \b
      headrace groups describe my-app
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import json_row, write_object, write_rows

    with open_connection(server) as connection:
        group = connection.kafka.describe_group(name)
        topics = sorted({topic for topic, _ in group.positions})
        ranges = connection.kafka.offset_ranges(topics) if topics else {}
    rows = []
    for (topic, partition), offset in sorted(group.positions.items()):
        known = ranges.get(topic, {}).get(partition)
        end = None if known is None else known.end
        rows.append((topic, partition, offset, end, None if end is None else end - offset))
    if output is Format.JSON:
        write_object(
            {
                "group": name,
                "state": group.state,
                "assignor": group.assignor,
                "members": [
                    {
                        "member": member.member_id,
                        "client": member.client_id,
                        "host": member.client_host,
                        "instance": member.instance_id,
                    }
                    for member in group.members
                ],
                "partitions": [json_row(_LAG_COLUMNS, row) for row in rows],
            }
        )
        return
    if output is Format.TABLE:
        typer.echo(
            f"group {name}: {group.state}" + (f", assignor {group.assignor}" if group.assignor else "")
        )
        for member in group.members:
            typer.echo(f"  member {member.member_id} ({member.client_id} at {member.client_host})")
        typer.echo("")
    write_rows(_LAG_COLUMNS, rows, output, numeric=(False, True, True, True, True))


@groups.command()
def reset(
    name: GroupArgument,
    topics: TopicsOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="earliest, latest, an offset, or a time such as 2024-09-19T12:00:00.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        int | None,
        typer.Option(
            metavar="RECORDS",
            help="Number of records to move forward, or backward if negative.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Set a group's offsets, in all topics where it has offsets, or in the named ones. It must have no members.

    An offset outside a log becomes its beginning or end. The changes are shown and must be confirmed first.

    \b
      headrace groups reset my-app --to earliest
      headrace groups reset my-app --topic clicks:0,1 --to 2024-09-19T12:00:00 --dry-run
      headrace groups reset my-app --topic clicks --by -100 --yes
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows
    from headrace.tablelayer.client import KafkaError

    if (to is None) == (by is None):
        raise CommandError("name the new offset: --to PLACE or --by RECORDS")
    with open_connection(server) as connection:
        try:
            group = connection.kafka.describe_group(name)
            positions: Mapping[tuple[str, int], int] = group.positions
            members = len(group.members)
        except KafkaError as error:
            if error.code.name != "GROUP_ID_NOT_FOUND" or not topics:
                raise
            positions, members = {}, 0  # with a topic, the group is created
        places = _places(connection, name, topics, positions)
        rows = _plan(connection, places, positions, to, by)
        if dry_run or not yes:
            write_rows(
                ("topic", "partition", "committed offset", "new offset"),
                rows,
                output,
                numeric=(False, True, True, True),
            )
        if members:
            raise CommandError(
                f"group {name} has {members} member{'' if members == 1 else 's'}: stop them first, "
                "they would keep their present offsets"
            )
        if dry_run:
            return
        confirm(f"Set these offsets of group {name}?", yes=yes)
        for topic in places:
            connection.kafka.commit_offsets(name, topic, {row[1]: row[3] for row in rows if row[0] == topic})
    typer.echo(f"{len(rows)} offsets of group {name} are set", err=output is not Format.TABLE)


@groups.command()
def delete(
    names: Annotated[
        list[str], typer.Argument(metavar="GROUP", help="Names of the groups.", autocompletion=group_names)
    ],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Delete groups and their offsets. The groups must have no members.

    \b
      headrace groups delete my-app
      headrace groups delete old-app older-app --dry-run
    """
    from headrace.tablelayer.cli.connect import open_connection

    with open_connection(server) as connection:
        for name in names:
            group = connection.kafka.describe_group(name)
            if group.members:
                raise CommandError(f"group {name} has {len(group.members)} members: stop them first")
            what = f"group {name} and its {len(group.positions)} committed offsets"
            if dry_run:
                typer.echo(f"{what} could be deleted")
                continue
            confirm(f"Delete {what}?", yes=yes)
            connection.kafka.delete_group(name)
            typer.echo(f"deleted group {name}")


@groups.command("delete-offsets")
def delete_offsets(
    name: GroupArgument,
    topics: TopicsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Delete a group's offsets in a topic. Its next reader begins where auto.offset.reset says.

    \b
      headrace groups delete-offsets my-app --topic clicks
      headrace groups delete-offsets my-app --topic clicks:3 --dry-run
    """
    from headrace.tablelayer.cli.connect import open_connection

    if not topics:
        raise CommandError(
            "name the topic: --topic TOPIC (`headrace groups delete` deletes all offsets of a group)"
        )
    with open_connection(server) as connection:
        positions = connection.kafka.describe_group(name).positions
        for topic, partitions in map(topic_and_partitions, topics):
            known = sorted(
                p for of, p in positions if of == topic and (partitions is None or p in partitions)
            )
            if not known:
                raise CommandError(f"group {name} has no such offsets in {topic}")
            what = f"offsets of group {name} in partition{'' if len(known) == 1 else 's'} "
            what += f"{', '.join(map(str, known))} of {topic}"
            if dry_run:
                typer.echo(f"{what} could be deleted")
                continue
            confirm(f"Delete {what}?", yes=yes)
            connection.kafka.delete_offsets(name, topic, known)
            typer.echo(f"deleted {what}")


def _places(
    connection: Connection,
    group: str,
    topics: Sequence[str] | None,
    positions: Mapping[tuple[str, int], int],
) -> dict[str, list[int]]:
    """Return the selected partitions of each topic."""
    if not topics:
        places: dict[str, list[int]] = {}
        for topic, partition in sorted(positions):
            places.setdefault(topic, []).append(partition)
        if not places:
            raise CommandError(f"group {group} has no offsets: name a topic by --topic")
        return places
    places = {}
    for topic, partitions in map(topic_and_partitions, topics):
        there = sorted(connection.kafka.describe_topic(topic).leaders)
        missing = [each for each in partitions or () if each not in there]
        if missing:
            raise CommandError(f"{topic} has no partition {missing[0]}: it has 0 to {len(there) - 1}")
        places.setdefault(topic, []).extend(there if partitions is None else partitions)
    return places


def _plan(
    connection: Connection,
    places: Mapping[str, Sequence[int]],
    positions: Mapping[tuple[str, int], int],
    to: str | None,
    by: int | None,
) -> list[tuple[str, int, int | None, int]]:
    """Return (topic, partition, committed offset, new offset), limited to the logs' ranges."""
    rows = []
    for topic, partitions in places.items():
        begin, end = connection.kafka.offsets(topic, _EARLIEST), connection.kafka.offsets(topic, _LATEST)
        at: Mapping[int, int] = {}
        if to == "earliest":
            at = begin
        elif to == "latest":
            at = end
        elif to is not None and to.isdigit():
            at = dict.fromkeys(end, int(to))
        elif to is not None:
            found = connection.kafka.offsets(topic, moment_of(to, "--to"))
            at = {p: end[p] if offset < 0 else offset for p, offset in found.items()}
        for partition in partitions:
            before = positions.get((topic, partition))
            if by is not None and before is None:
                raise CommandError(f"the group has no offset in partition {partition} of {topic}: use --to")
            wanted = at[partition] if by is None else (before or 0) + by
            rows.append((topic, partition, before, min(max(wanted, begin[partition]), end[partition])))
    return rows
