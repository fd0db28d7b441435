"""Completion of names in a shell: topics, tables and groups of the server that the command would connect to.

If the server does not answer soon, there are no names and no error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from headrace.tablelayer.cli.options import DEFAULT_SERVER

if TYPE_CHECKING:
    from headrace.tablelayer.client import Connection

_PATIENCE_MS = 1_500


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics, including those of tables."""
    return _ask(
        context, incomplete, lambda to: [each.name for each in to.kafka.list_topics() if not each.is_internal]
    )


def table_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the tables with their databases."""

    def ask(connection: Connection) -> list[str]:
        admin = connection.admin
        return [
            f"{database}.{table}"
            for database in admin.list_databases()
            for table in admin.list_tables(database)
        ]

    return _ask(context, incomplete, ask)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups."""
    return _ask(context, incomplete, lambda to: [each.group for each in to.kafka.list_groups()])


def _ask(context: typer.Context, incomplete: str, question: Callable[[Connection], list[str]]) -> list[str]:
    from headrace.tablelayer.cli.connect import settings_of
    from headrace.tablelayer.cli.errors import explain
    from headrace.tablelayer.client import ClientConfig, connect

    config = ClientConfig(
        client_id="headrace-completion",
        connect_timeout_ms=_PATIENCE_MS,
        request_timeout_ms=_PATIENCE_MS,
        delivery_timeout_ms=_PATIENCE_MS,
    )
    try:
        with connect(settings_of(context.params.get("server") or DEFAULT_SERVER), config) as connection:
            return [name for name in question(connection) if name.startswith(incomplete)]
    except Exception as error:
        if explain(error) is None:
            raise
        return []
