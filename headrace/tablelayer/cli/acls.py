"""`headrace acls`: Kafka's ACLs. Rights on tables are simpler in SQL: GRANT, REVOKE and SHOW GRANTS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption
from headrace.tablelayer.cli.words import YesOption, confirm, counted

if TYPE_CHECKING:
    from headrace.tablelayer.client.admin.acls import Acl

acls = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Add, list and remove Kafka's ACLs: rights of users on topics, groups and the cluster.",
)

_COLUMNS = ("principal", "permission", "operation", "resource type", "name", "pattern", "host")


def _named(what: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(
        metavar="NAME", help=f"{what}; repeatable. '*' stands for all."
    )
    return info


PrincipalArgument = Annotated[str, typer.Argument(help="A user, as ann or User:ann; User:* stands for all.")]
OperationsArgument = Annotated[
    str, typer.Argument(help="Operations, separated by commas, such as READ,DESCRIBE; ALL stands for all.")
]
TopicsOption = Annotated[list[str] | None, _named("A topic, or a table as db.table")]
GroupsOption = Annotated[list[str] | None, _named("A consumer group")]
IdsOption = Annotated[list[str] | None, _named("A transactional id")]
TokensOption = Annotated[list[str] | None, _named("A delegation token, by its owner")]
UsersOption = Annotated[list[str] | None, _named("A user, for rights on its tokens")]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
PrefixedOption = Annotated[
    bool, typer.Option("--prefixed", help="Match all resources whose names begin with the given names.")
]
DenyOption = Annotated[bool, typer.Option("--deny", help="Deny the operations instead of allowing them.")]


@acls.command()
def add(
    principal: PrincipalArgument,
    operations: OperationsArgument,
    topic: TopicsOption = None,
    group: GroupsOption = None,
    transactional_id: IdsOption = None,
    token: TokensOption = None,
    user: UsersOption = None,
    of_cluster: ClusterOption = False,
    prefixed: PrefixedOption = False,
    deny: DenyOption = False,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The client's address; '*' stands for all.")
    ] = "*",
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Allow a user some operations on resources, or deny them.

    \b
      headrace acls add ann READ,DESCRIBE --topic clicks --group my-app
      headrace acls add ann WRITE --topic logs. --prefixed
      headrace acls add User:* WRITE --topic clicks --deny
    """
    from headrace.tablelayer.cli.connect import open_connection

    places = _places(topic, group, transactional_id, token, user, of_cluster=of_cluster)
    made = _all(principal, operations, places, prefixed=prefixed, deny=deny, host=host)
    with open_connection(server) as connection:
        connection.security.create_acls(made)
    typer.echo(f"added {counted(len(made), 'ACL')}")


@acls.command("list")
def list_acls(
    principal: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the ACLs of this user.", show_default=False)
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only ACLs with this topic's name.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only ACLs with this group's name.", show_default=False)
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """List the ACLs that the server has.

    \b
      headrace acls list
      headrace acls list --principal ann -o json
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows
    from headrace.tablelayer.client.admin.acls import Acl
    from headrace.tablelayer.model.rights import principal_of

    if topic is not None and group is not None:
        raise CommandError("an ACL is of one resource: pass --topic or --group, not both")
    kind, name = (
        ("TOPIC", topic) if topic is not None else ("GROUP", group) if group is not None else (None, None)
    )
    whose = None if principal is None else principal_of(principal)
    with open_connection(server) as connection:
        found = connection.security.list_acls(Acl(principal=whose, resource_type=kind, name=name))
    write_rows(_COLUMNS, map(_row, found), output)


@acls.command()
def remove(
    principal: PrincipalArgument,
    operations: Annotated[
        str | None,
        typer.Argument(help="Operations, separated by commas; default: every one.", show_default=False),
    ] = None,
    topic: TopicsOption = None,
    group: GroupsOption = None,
    transactional_id: IdsOption = None,
    token: TokensOption = None,
    user: UsersOption = None,
    of_cluster: ClusterOption = False,
    prefixed: PrefixedOption = False,
    deny: Annotated[
        bool, typer.Option("--deny", help="Remove ACLs that deny, instead of those that allow.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Only for this address.", show_default=False)
    ] = None,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Remove ACLs of a user on resources.

    \b
      headrace acls remove ann READ --topic clicks
      headrace acls remove ann --topic logs. --prefixed --yes
    """
    from headrace.tablelayer.cli.connect import open_connection

    places = _places(topic, group, transactional_id, token, user, of_cluster=of_cluster)
    wanted = _all(principal, operations, places, prefixed=prefixed, deny=deny, host=host)
    with open_connection(server) as connection:
        found = sorted({each for one in wanted for each in connection.security.list_acls(one)})
        if not found:
            raise CommandError("there is no such ACL; headrace acls list shows them")
        shown = "\n".join(f"  {' '.join(map(str, _row(each)))}" for each in found)
        confirm(f"{shown}\nRemove {counted(len(found), 'ACL')}?", yes=yes)
        removed = connection.security.delete_acls(found)
    typer.echo(f"removed {counted(len(removed), 'ACL')}")


def _places(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    ids: Sequence[str] | None,
    tokens: Sequence[str] | None,
    users: Sequence[str] | None,
    *,
    of_cluster: bool,
) -> list[tuple[str, str]]:
    """Return the resources as (type, name). Raises CommandError if there is none."""
    from headrace.tablelayer.client.admin.acls import CLUSTER_NAME

    named = {
        "TOPIC": topics,
        "GROUP": groups,
        "TRANSACTIONAL_ID": ids,
        "DELEGATION_TOKEN": tokens,
        "USER": users,
    }
    places = [(kind, name) for kind, names in named.items() for name in names or ()]
    if of_cluster:
        places.append(("CLUSTER", CLUSTER_NAME))
    if not places:
        raise CommandError(
            "name a resource: --topic, --group, --transactional-id, --token, --user or --cluster"
        )
    return places


def _all(
    principal: str,
    operations: str | None,
    places: Sequence[tuple[str, str]],
    *,
    prefixed: bool,
    deny: bool,
    host: str | None,
) -> list[Acl]:
    """Return an ACL for each operation and resource. Raises CommandError for an unknown operation."""
    from headrace.tablelayer.client.admin.acls import OPERATIONS, Acl
    from headrace.tablelayer.model.rights import principal_of

    words: list[str | None] = [None]
    if operations is not None:
        words = [each.strip().upper().replace("-", "_") for each in operations.split(",")]
        unknown = [each for each in words if each not in OPERATIONS]
        if unknown:
            raise CommandError(f"{unknown[0]!r} is not an operation: use {', '.join(OPERATIONS)}")
    return [
        Acl(
            principal_of(principal),
            "DENY" if deny else "ALLOW",
            word,
            kind,
            name,
            "PREFIXED" if prefixed else "LITERAL",
            host,
        )
        for kind, name in places
        for word in words
    ]


def _row(acl: Acl) -> tuple[str | None, ...]:
    return (
        acl.principal,
        acl.permission,
        acl.operation,
        acl.resource_type,
        acl.name,
        acl.pattern,
        acl.host,
    )
