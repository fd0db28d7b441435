"""One table client per Python worker process.

Spark reuses its worker processes for tasks, micro-batches and queries, so a connection is opened once per worker and
not once per task. Workers are forked from a daemon: an entry from before a fork is not used after it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings

if TYPE_CHECKING:
    from headrace.tablelayer.client import Connection, Table
    from headrace.tablelayer.model.table.definition import StoredTable

CONNECT_SECONDS: Final = 30.0
"""Time that a new query waits for the server, in seconds: it survives a restart like a running query."""
_RETRY_SECONDS: Final = 0.25

_connections: dict[tuple[int, ConnectionSettings, ClientConfig | None], Connection] = {}

_tables: dict[tuple[int, ConnectionSettings, object, int, ClientConfig | None], Table] = {}


def table(bootstrap: Bootstrap, definition: StoredTable, config: ClientConfig | None = None) -> Table:
    """Return the process's handle of exactly this table and schema.

    A table that was dropped and created again is another table, and a read planned before an ALTER needs the old
    columns.
    """
    settings = ConnectionSettings.make(bootstrap)
    key = (os.getpid(), settings, definition.table_id, definition.schema.schema_id, config)
    found = _tables.get(key)
    if found is None:
        found = _tables.setdefault(key, connection(settings, config).open_table(definition))
    return found


def connection(bootstrap: Bootstrap, config: ClientConfig | None = None) -> Connection:
    """Return the process's connection to this server with these settings, opened at the first call.

    Raises ConnectionFailed when no server has answered for CONNECT_SECONDS, AuthenticationFailed at once.
    """
    settings = ConnectionSettings.make(bootstrap)
    key = (os.getpid(), settings, config)
    found = _connections.get(key)
    if found is None:
        made = _connect(settings, config)
        found = _connections.setdefault(key, made)
        # Another thread may have been faster. There is no lock, because a fork would copy a held one.
        if found is not made:
            made.close()
    return found


def _connect(settings: ConnectionSettings, config: ClientConfig | None) -> Connection:
    from headrace.tablelayer.client import connect
    from headrace.tablelayer.client.errors import ConnectionFailed

    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return connect(settings, config)
        except ConnectionFailed:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_SECONDS)
