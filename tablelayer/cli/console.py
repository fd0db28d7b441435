"""`headrace console`: the web page and the REST interface, in this process, until a signal."""

from __future__ import annotations

import os
import signal
import socket
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tablelayer.cli.connect import settings_of
from tablelayer.cli.errors import CommandError
from tablelayer.cli.process import loaded

if TYPE_CHECKING:
    import pyarrow as pa

    from tablelayer.client import Connection

_PATIENCE_SECONDS = 2
"""With what is under way when it is to end: live tails never end by themselves."""
BASIC_VARIABLE = "HEADRACE_CONSOLE_BASIC_AUTH"
TOKEN_VARIABLE = "HEADRACE_CONSOLE_TOKEN"


def run_console(
    server: str,
    listen: str,
    *,
    basic_auth_file: Path | None,
    token_file: Path | None,
    hosts: list[str],
    allow_writes: bool,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises CommandError for what it cannot be started with."""
    try:
        import uvicorn

        from tablelayer.console.app import Access, make_app
    except ModuleNotFoundError as error:
        raise CommandError(f"the console needs {error.name}: pip install 'headrace[console]'") from None
    from tablelayer.client import ClientConfig, connect

    host, port = _address(listen)
    credentials = _secret(basic_auth_file, BASIC_VARIABLE)
    token = _secret(token_file, TOKEN_VARIABLE)
    if credentials is not None and not all(credentials.partition(":")):
        raise CommandError("credentials for the console are written USER:PASSWORD")
    is_local = _is_local(host)
    if credentials is None and token is None and not is_local:
        raise CommandError(
            f"on {host} others could use the console: give it --basic-auth-file or --token-file "
            f"(or {BASIC_VARIABLE}, {TOKEN_VARIABLE}), or listen on 127.0.0.1"
        )
    loaded()
    config = ClientConfig(client_id="headrace-console", delivery_timeout_ms=20_000)
    with connect(settings_of(server), config) as connection:
        listener = uvicorn.Config(
            "",
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE_SECONDS,
        )
        bound = _bound(host, port)
        place = bound.getsockname()
        names = {f"{name}:{place[1]}" for name in ("127.0.0.1", "localhost", "[::1]")} if is_local else set()
        access = Access(credentials, token, frozenset(name.lower() for name in (*names, *hosts)))
        listener.app = make_app(
            connection,
            _query,
            access,
            allow_writes=allow_writes,
            version=_version(),
            server=connection.bootstrap,
        )
        shown = f"[{place[0]}]" if ":" in place[0] else place[0]
        typer.echo(f"headrace console is on http://{shown}:{place[1]}/ (server {connection.bootstrap})")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # uvicorn ends by it, and raises it again when it has
        uvicorn.Server(listener).run(sockets=[bound])


def _query(connection: Connection, text: str) -> pa.Table | pa.RecordBatchReader | str:
    """The rows of one statement that reads nothing but tables and topics, or what it says in words."""
    from tablelayer.model.ddl import Explain, Select, Summarize, parse
    from tablelayer.model.errors import TableError
    from tablelayer.sql.errors import SqlError
    from tablelayer.sql.session import Session

    try:
        statements = parse(text, "default")
        if len(statements) != 1 or not isinstance(statements[0], (Select, Explain, Summarize)):
            raise ValueError(
                "the console takes one SELECT, EXPLAIN or SUMMARIZE; what changes something is for headrace sql"
            )
        (answer,) = Session(connection, files=False).run(text)
    except SqlError as error:
        raise ValueError(str(error)) from None
    except TableError as error:
        if type(error) is TableError:
            raise
        raise ValueError(error.message) from None
    rows = answer.rows
    return (answer.text or "") if rows is None else rows


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address"
        ) from None


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise CommandError(f"{text!r} is no address: write HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _secret(file: Path | None, variable: str) -> str | None:
    if file is None:
        return os.environ.get(variable) or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from None
    if not text:
        raise CommandError(f"{file} is empty")
    return text


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
