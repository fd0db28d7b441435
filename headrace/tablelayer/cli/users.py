"""`headrace users`: users that log in with a password, and `headrace format`, which creates the first of them.

A password comes from the environment, from standard input or from a prompt, in this order. It never comes from the
command line, which all users of a machine can see.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption
from headrace.tablelayer.cli.words import YesOption, confirm

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.broker.security.sasl.scram import ScramMechanism

PASSWORD_VARIABLE = "HEADRACE_PASSWORD"

users = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, add and delete users, who log in with SCRAM-SHA-256 or SCRAM-SHA-512.",
)


@users.command("list")
def list_users(output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER) -> None:
    """List all users that have a password here, with the mechanisms of their passwords.

    \b
      headrace users list
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        found = connection.security.list_users()
    as_json = output is Format.JSON
    rows = [(each.name, list(each.mechanisms) if as_json else ", ".join(each.mechanisms)) for each in found]
    write_rows(("user", "mechanisms"), rows, output)


@users.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the user: User:NAME in ACLs.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Change the password of an existing user.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Add a user. Its password is asked for, or read from standard input or HEADRACE_PASSWORD.

    \b
      headrace users add ann
      headrace users add ann --replace < password.txt
    """
    from headrace.tablelayer.cli.connect import open_connection

    if not name:
        raise CommandError("the name of a user must not be empty")
    password = read_password(name)
    with open_connection(server) as connection:
        there = {user.name for user in connection.security.list_users()}
        if name in there and not replace:
            raise CommandError(f"user {name} exists already; --replace changes its password")
        if name in there:
            connection.security.alter_user(name, password)
        else:
            connection.security.create_user(name, password)
    typer.echo(f"{'changed the password of' if name in there else 'added'} user {name}")


@users.command()
def delete(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Delete a user. Its connections continue until their sessions end; its ACLs stay.

    \b
      headrace users delete ann
    """
    from headrace.tablelayer.cli.connect import open_connection

    confirm(f"Delete user {name} and its passwords?", yes=yes)
    with open_connection(server) as connection:
        connection.security.drop_user(name)
    typer.echo(f"deleted user {name}")


def read_password(name: str) -> str:
    """Return the password of a user. Raises CommandError if it is empty."""
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        if sys.stdin.isatty():
            password = typer.prompt(
                f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True
            )
        else:
            password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandError(
            f"user {name} has no password; write it as a line to standard input, or set {PASSWORD_VARIABLE}"
        )
    return password


def format_directory(data: Path, added: list[str], node_id: int) -> None:
    """Create a data directory with users. Raises CommandError, ConfigError."""
    import asyncio

    from headrace.broker.stores.first_users import add_users

    wanted = [parse_scram(text) for text in added]
    passwords = {name: read_password(name) for name in dict.fromkeys(name for name, _, _ in wanted)}
    made = asyncio.run(
        add_users(
            data, [(name, mechanism, count, passwords[name]) for name, mechanism, count in wanted], node_id
        )
    )
    typer.echo(f"{data} is ready" + (f"; users: {', '.join(made)}" if made else ""))


def parse_scram(text: str) -> tuple[str, ScramMechanism, int]:
    """Parse `SCRAM-SHA-256=[name=ann,iterations=8192]`, kafka-storage's form, to (name, mechanism, iterations).

    Raises CommandError, which shows no value.
    """
    from headrace.broker.security.sasl.scram import BY_NAME, ITERATIONS_MAX, ITERATIONS_MIN

    mechanism, _, rest = text.partition("=")
    form = "--add-scram takes SCRAM-SHA-256=[name=NAME] or SCRAM-SHA-512=[name=NAME,iterations=8192]"
    if mechanism not in BY_NAME or not (rest.startswith("[") and rest.endswith("]")):
        raise CommandError(form)
    fields = dict(part.strip().partition("=")[::2] for part in rest[1:-1].split(","))
    if secret := fields.keys() & {"password", "saltedpassword"}:
        raise CommandError(
            f"{secret.pop()} on the command line is visible to all users of this machine: leave it out, and give the "
            f"password at the prompt, on standard input or in {PASSWORD_VARIABLE}"
        )
    iterations = fields.get("iterations", str(ITERATIONS_MIN))
    if not fields.get("name") or fields.keys() - {"name", "iterations"} or not iterations.isdecimal():
        raise CommandError(form)
    if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise CommandError(f"{iterations} iterations: use {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return fields["name"], BY_NAME[mechanism], int(iterations)
