"""`headrace configs`: configurations of topics, brokers, their loggers and groups, with descriptions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption
from headrace.tablelayer.cli.words import DryRunOption, counted, named_values

_VALUE_MAX = 48

configs = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, describe and set configurations of topics, brokers, their loggers and groups.",
)


class Kind(StrEnum):
    """Kinds of things that have configurations."""

    TOPIC = "topic"
    BROKER = "broker"
    BROKER_LOGGER = "broker-logger"
    GROUP = "group"


KindArgument = Annotated[Kind, typer.Argument(help="Kind of resource that is configured.")]
NameArgument = Annotated[
    str,
    typer.Argument(help="Name of the topic or group, or id of the broker; all: all brokers."),
]


def _name(kind: Kind, name: str) -> str:
    return "" if kind is Kind.BROKER and name == "all" else name


@configs.command("list")
def list_configured(
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """List the values that were set explicitly, by topic, broker and group.

    \b
      headrace configs list
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows
    from headrace.tablelayer.client import ConfigKind, KafkaError

    rows: list[tuple[str, str, str, str | None]] = []
    with open_connection(server) as connection:
        for kind, name in sorted({*connection.kafka.configured(), (ConfigKind.BROKER, "")}):
            if kind is ConfigKind.BROKER_LOGGER:
                continue  # a level that was set looks like an initial one
            word = kind.name.lower()
            own = {"topic": ("topic",), "group": ("group",)}.get(
                word, ("broker",) if name else ("all brokers",)
            )
            try:
                found = connection.kafka.configs(kind, name)
            except KafkaError as error:
                if error.code.name in ("UNKNOWN_TOPIC_OR_PARTITION", "BROKER_NOT_AVAILABLE"):
                    continue  # deleted or stopped meanwhile
                raise
            rows += [
                (word, name or "all", each.name, _cut(_shown(each.value, each.is_sensitive), output))
                for each in found
                if each.source in own
            ]
    write_rows(("kind", "name", "configuration", "value"), rows, output)


@configs.command()
def describe(
    kind: KindArgument,
    name: NameArgument,
    only: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIGURATION", help="Only these configurations.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include configurations with default values.")
    ] = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show configurations: value, source, whether it can be changed, and description.

    \b
      headrace configs describe topic clicks
      headrace configs describe topic clicks retention.ms
      headrace configs describe broker 0 --all -o json
      headrace configs describe group my-app
      headrace configs describe broker-logger 0
    """
    from difflib import get_close_matches

    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows
    from headrace.tablelayer.client import ConfigKind

    with open_connection(server) as connection:
        found = connection.kafka.configs(ConfigKind[kind.name], _name(kind, name))
    known = {each.name: each for each in found}
    for each in only or ():
        if each not in known:
            near = get_close_matches(each, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise CommandError(f"a {kind.value} has no configuration {each!r}{hint}")
    rows = [
        (
            each.name,
            _shown(each.value, each.is_sensitive),
            each.source,
            not each.is_read_only,
            each.documentation,
        )
        for each in found
        if (each.name in only if only else everything or not each.is_default)
    ]
    write_rows(("configuration", "value", "from", "can be changed", "what it does"), rows, output)


@configs.command("set")
def set_configs(
    kind: KindArgument,
    name: NameArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Values to set.", show_default=False),
    ] = None,
    unsets: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Configuration to reset to its default; repeatable."),
    ] = None,
    dry_run: DryRunOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Set configurations, or reset them to their defaults: all of them or none.

    \b
      headrace configs set topic clicks retention.ms=3600000 cleanup.policy=delete
      headrace configs set broker all log.retention.ms=86400000
      headrace configs set group my-app --unset consumer.session.timeout.ms
      headrace configs set broker-logger 0 headrace.groups=DEBUG
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.client import ConfigKind

    wanted, removed = named_values(values or [], ""), unsets or []
    if not wanted and not removed:
        raise CommandError("no change was given: write NAME=VALUE, or --unset NAME")
    with open_connection(server) as connection:
        connection.kafka.alter_configs(
            ConfigKind[kind.name], _name(kind, name), wanted, removed, validate_only=dry_run
        )
    done = "could set" if dry_run else "set"
    typer.echo(f"{done} {counted(len(wanted) + len(removed), 'configuration')} of {kind.value} {name}")


def _cut(value: str | None, output: Format) -> str | None:
    """Return a value for a table of readable width: a table's schema has thousands of characters."""
    if output is not Format.TABLE or value is None or len(value) <= _VALUE_MAX:
        return value
    return f"{value[:_VALUE_MAX]}…"


def _shown(value: str | None, is_sensitive: bool) -> str | None:
    return "(hidden)" if is_sensitive else value
