"""The connection of a command: a person waits for it, so it gives up sooner than a program's."""

from __future__ import annotations

from tablelayer.cli.options import client_config
from tablelayer.cli.process import loaded
from tablelayer.client import ClientConfig, Connection, ConnectionSettings, connect
from tablelayer.client.security.settings import environment

#: Long enough for a server that is being restarted.
PATIENCE_MS = 20_000


def settings_of(server: str) -> ConnectionSettings:
    """`server` with the properties of `--config`, else of the environment. Raises SettingsError."""
    return ConnectionSettings.make(server, environment(client_config()))


def open_connection(server: str) -> Connection:
    """Connect to `server`. Raises ConnectionFailed at once if nobody answers there, AuthenticationFailed if one side
    does not accept the other.
    """
    loaded()
    config = ClientConfig(client_id="headrace-cli", delivery_timeout_ms=PATIENCE_MS)
    return connect(settings_of(server), config)
