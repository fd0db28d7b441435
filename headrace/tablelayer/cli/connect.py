"""Connection of a command. It gives up sooner than a program's connection, because a person waits for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from headrace.tablelayer.cli.options import client_config
from headrace.tablelayer.cli.process import loaded
from headrace.tablelayer.client import (
    ClientConfig,
    ClientError,
    Connection,
    ConnectionSettings,
    KafkaError,
    TableError,
    connect,
)
from headrace.tablelayer.client.security.settings import environment

#: Long enough for a server that is being restarted.
PATIENCE_MS = 20_000
#: For a command that copies many rows: a server that is very busy, or away for some minutes, does not end it halfway.
COPYING_PATIENCE_MS = 600_000


def settings_of(server: str) -> ConnectionSettings:
    """Return `server` with the properties of `--config`, or else of the environment. Raises SettingsError."""
    return ConnectionSettings.make(server, environment(client_config()))


@contextmanager
def open_connection(server: str, patience_ms: int = PATIENCE_MS) -> Iterator[Connection]:
    """Connect to `server`. Each call of the connection may take `patience_ms`, with all of its attempts.

    Raises ConnectionFailed at once if no server answers, AuthenticationFailed if one side rejects the other. Errors
    about a missing table, topic, group or database get a note with the nearest existing name.
    """
    loaded()
    config = ClientConfig(client_id="headrace-cli", delivery_timeout_ms=patience_ms)
    with connect(settings_of(server), config) as connection:
        try:
            yield connection
        except (TableError, KafkaError) as error:
            near = nearest_name(connection, error)
            if near is not None:
                error.add_note(f"did you mean {near}?")
            raise


_MISSING: dict[str, tuple[str, Callable[[Connection], list[str]]]] = {
    "TABLE_NOT_FOUND": (
        r"table (\S+) does not exist",
        lambda to: [
            f"{database}.{table}"
            for database in to.admin.list_databases()
            for table in to.admin.list_tables(database)
        ],
    ),
    "DATABASE_NOT_FOUND": (r"no database '([^']+)'", lambda to: to.admin.list_databases()),
    "UNKNOWN_TOPIC_OR_PARTITION": (
        r"topic (\S+)$",
        lambda to: [topic.name for topic in to.kafka.list_topics() if not topic.is_internal],
    ),
    "GROUP_ID_NOT_FOUND": (
        r"[Gg]roup (\S+) not found",
        lambda to: [group.group for group in to.kafka.list_groups()],
    ),
}
"""Error codes with the pattern of the missing name, and a function that lists the existing names."""


def nearest_name(connection: Connection, error: TableError | KafkaError) -> str | None:
    """Return the existing name that is most similar to the missing one of an error."""
    pattern, names = _MISSING.get(error.code.name, ("", None))
    found = re.search(pattern, error.message)
    if names is None or found is None:
        return None
    try:
        near = get_close_matches(found.group(1), names(connection), n=1)
    except (TableError, KafkaError, ClientError):
        return None  # listing is not allowed, or the server does not answer any more
    return near[0] if near else None
