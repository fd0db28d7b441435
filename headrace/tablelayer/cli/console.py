"""`headrace console`: the web page, the REST interface and Flight SQL, in this process, until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from headrace.tablelayer.cli.connect import settings_of
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.process import leave_at_once, loaded

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.tablelayer.client import Connection
    from headrace.tablelayer.console.access import Access
    from headrace.tablelayer.console.rest import Rest
    from headrace.tablelayer.console.ring import Ring
    from headrace.tablelayer.sql.select import Plan

_PATIENCE_SECONDS = 0.4
"""Time for running requests at the end, in seconds. Queries and live tails are stopped at once."""
BASIC_VARIABLE = "HEADRACE_CONSOLE_BASIC_AUTH"
TOKEN_VARIABLE = "HEADRACE_CONSOLE_TOKEN"
REGISTRY_VARIABLE = "HEADRACE_SCHEMA_REGISTRY_AUTH"
CONNECT_VARIABLE = "HEADRACE_CONNECT_AUTH"


def run_console(
    server: str,
    listen: str,
    *,
    basic_auth_file: Path | None,
    token_file: Path | None,
    hosts: list[str],
    allow_writes: bool,
    flight_sql: str | None = None,
    query_seconds: float = 60.0,
    history: Path | None = None,
    schema_registry: str | None = None,
    schema_registry_auth_file: Path | None = None,
    kafka_connect: str | None = None,
    kafka_connect_auth_file: Path | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises CommandError if it cannot start."""
    try:
        import uvicorn

        from headrace.tablelayer.console.access import Access
        from headrace.tablelayer.console.app import make_app
        from headrace.tablelayer.console.running import Running
        from headrace.tablelayer.console.tables import Sql
        from headrace.tablelayer.console.tails import TAIL_THREAD

        if flight_sql is not None:
            import headrace.tablelayer.flight.server  # noqa: F401 - check its requirements before anything is opened
    except ModuleNotFoundError as error:
        raise CommandError(f"the console needs {error.name}: pip install 'headrace[console]'") from None
    from headrace.tablelayer.client import ClientConfig, connect

    host, port = _address(listen)
    credentials = _secret(basic_auth_file, BASIC_VARIABLE)
    token = _secret(token_file, TOKEN_VARIABLE)
    if credentials is not None and not all(credentials.partition(":")):
        raise CommandError("credentials for the console must be USER:PASSWORD")
    is_local = _is_local(host)
    doors = [host] if flight_sql is None else [host, _address(flight_sql)[0]]
    strange = next((each for each in doors if not _is_local(each)), None)
    if credentials is None and token is None and strange is not None:
        raise CommandError(
            f"the console would be open to other machines on {strange}: pass --basic-auth-file or --token-file "
            f"(or {BASIC_VARIABLE}, {TOKEN_VARIABLE}), or listen on 127.0.0.1"
        )
    registry = _rest(
        "the schema registry", schema_registry, _secret(schema_registry_auth_file, REGISTRY_VARIABLE)
    )
    connectors = _rest("Kafka Connect", kafka_connect, _secret(kafka_connect_auth_file, CONNECT_VARIABLE))
    loaded()
    config = ClientConfig(client_id="headrace-console", delivery_timeout_ms=20_000)
    with connect(settings_of(server), config) as connection:
        listener = uvicorn.Config(
            "",
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE_SECONDS,  # type: ignore[arg-type] # asyncio takes parts of a second
        )
        bound = _bound(host, port)
        place = bound.getsockname()
        names = {f"{name}:{place[1]}" for name in ("127.0.0.1", "localhost", "[::1]")} if is_local else set()
        access = Access(credentials, token, frozenset(name.lower() for name in (*names, *hosts)))
        running = Running(query_seconds)
        ring = _ring(connection, history)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                self.loop = asyncio.get_running_loop()
                await super().startup(sockets)

            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                super().handle_exit(sig, frame)
                self.loop.call_soon_threadsafe(running.end)

        listener.app = make_app(
            connection,
            Sql(_query, _plan),
            access,
            allow_writes=allow_writes,
            version=_version(),
            server=connection.bootstrap,
            ring=ring,
            running=running,
            schema_registry=registry,
            kafka_connect=connectors,
        )
        shown = f"[{place[0]}]" if ":" in place[0] else place[0]
        typer.echo(f"headrace console is on http://{shown}:{place[1]}/ (server {connection.bootstrap})")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(
                number, lambda *_: None
            )  # uvicorn ends by the signal, and raises it again afterwards
        with _flight(connection, access, flight_sql):
            Server(listener).run(sockets=[bound])
        if ring is not None:
            ring.close()
        for each in threading.enumerate():
            if each.name == TAIL_THREAD:
                each.join(_PATIENCE_SECONDS)
        leave_at_once(0)  # a request may compute in a library, and cannot be stopped


@contextmanager
def _flight(connection: Connection, access: Access, listen: str | None) -> Iterator[None]:
    """Serve Flight SQL beside the console, if `listen` is given."""
    if listen is None:
        yield
        return
    from headrace.tablelayer.flight.server import FlightSql

    host, port = _address(listen)
    try:
        server = FlightSql(connection, access, host, port, _version())
    except OSError as error:
        raise CommandError(f"{error}; choose another address for --flight-sql") from None
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"Flight SQL is on grpc://{shown}:{server.port}")
    try:
        yield
    finally:
        if not server.close(_PATIENCE_SECONDS):
            leave_at_once(0)  # a client no longer takes its rows, and gRPC would wait for it for ever


def _query(connection: Connection, text: str) -> pa.Table | pa.RecordBatchReader:
    """Return the rows of one statement that reads only tables, topics and names."""
    with _in_words():
        return _reading(connection, text).run()


def _plan(connection: Connection, text: str) -> dict[str, Any]:
    """Return the plan of one SELECT as a tree of names, details and children."""
    import msgspec

    from headrace.tablelayer.sql.explain import tree_of

    with _in_words():
        found: dict[str, Any] = msgspec.to_builtins(tree_of(_reading(connection, text)))
        return found


def _reading(connection: Connection, text: str) -> Plan:
    from headrace.tablelayer.sql.session import Session

    return Session(connection, files=False).reading(text)


@contextmanager
def _in_words() -> Iterator[None]:
    """Raise errors of the statement as ValueError."""
    from headrace.tablelayer.model.errors import TableError
    from headrace.tablelayer.sql.errors import SqlError

    try:
        yield
    except SqlError as error:
        raise ValueError(str(error)) from None
    except TableError as error:
        if type(error) is TableError:
            raise
        raise ValueError(error.message) from None


def _ring(connection: Connection, path: Path | None) -> Ring | None:
    """Open the file that keeps the numbers of plots."""
    from headrace.tablelayer.console.ring import Ring

    if path is None:
        return None
    try:
        return Ring(path, str(connection.kafka.describe_cluster().cluster_id))
    except BlockingIOError:
        raise CommandError(
            f"{path} belongs to another console that is running: give each one its own --history"
        ) from None
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None


def _rest(name: str, url: str | None, secret: str | None) -> Rest | None:
    from headrace.tablelayer.console.rest import Rest

    try:
        return None if url is None else Rest(name, url, secret)
    except ValueError as error:
        raise CommandError(str(error)) from None


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
        raise CommandError(f"{text!r} is not an address: write HOST:PORT")
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
