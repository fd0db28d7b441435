"""One table client per Python worker process.

Spark reuses its worker processes over tasks, micro-batches and queries, so a connection kept here is opened once per
worker and not once per task. Workers are forked from a daemon: an entry made before a fork is not used after it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tablelayer.client import Connection, Table
    from tablelayer.model.table.definition import TableDefinition

CONNECT_SECONDS: Final = 10.0
"""A query whose workers or plans begin while the server is started again goes on, like one that runs already."""
_RETRY_SECONDS: Final = 0.25

_connections: dict[tuple[int, str], Connection] = {}

_tables: dict[tuple[int, str, object, int], Table] = {}


def table(bootstrap: str, definition: TableDefinition) -> Table:
    """The process's handle of this very table in this very schema: one that was dropped and created again is
    another table, and who planned a read before an ALTER wants the columns of then.
    """
    key = (os.getpid(), bootstrap, definition.table_id, definition.schema.schema_id)
    found = _tables.get(key)
    if found is None:
        found = _tables[key] = connection(bootstrap).open_table(definition)
    return found


def connection(bootstrap: str) -> Connection:
    """The process's connection to this server, opened at the first call.

    Raises ConnectionFailed when no server has answered for CONNECT_SECONDS.
    """
    key = (os.getpid(), bootstrap)
    found = _connections.get(key)
    if found is None:
        found = _connections[key] = _connect(bootstrap)
    return found


def _connect(bootstrap: str) -> Connection:
    from tablelayer.client import connect
    from tablelayer.client.errors import ConnectionFailed

    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return connect(bootstrap)
        except ConnectionFailed:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_SECONDS)
