"""The connection of a command: a person waits for it, so it gives up sooner than a program's."""

from __future__ import annotations

from tablelayer.client import ClientConfig, Connection, connect

#: Long enough for a server that is being restarted.
PATIENCE_MS = 20_000


def open_connection(server: str) -> Connection:
    """Connect to `server`. Raises ConnectionFailed at once if nobody answers there."""
    return connect(server, ClientConfig(client_id="headrace-cli", delivery_timeout_ms=PATIENCE_MS))
