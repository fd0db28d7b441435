"""`headrace catalog`: the lake's tables over Iceberg's REST, read-only (`tablelayer.lake.rest_catalog`).

Each request has a connection of its own, answered by a few threads. So the number of connections that a client can hold
open, and their duration, are bounded.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import typer

from headrace.tablelayer.lake.rest_catalog import RestCatalog, TieredLakes

TOKEN_VARIABLE = "HEADRACE_CATALOG_TOKEN"
_THREADS = 16
_REQUEST_SECONDS = 30
_BODY_BYTES_MAX = 1 << 20
"""Maximum size of a request's body, which is read and discarded: scans report their metrics."""


class CatalogServer(HTTPServer):
    """HTTP server that serves until `shutdown`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], catalog: RestCatalog) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.catalog = catalog
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="catalog")
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._threads.submit(self._serve, request, client_address)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(_REQUEST_SECONDS)
            self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 - one caller's error; the next one is served
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that disconnects is not an error."""

    def server_close(self) -> None:
        super().server_close()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Handler(BaseHTTPRequestHandler):
    server: CatalogServer
    server_version = "headrace"
    sys_version = ""
    _ANSWERED: ClassVar = ("GET", "HEAD", "POST", "PUT", "DELETE")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_") and name[3:] in self._ANSWERED:
            return self._do
        raise AttributeError(name)

    def _do(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > _BODY_BYTES_MAX:
            self.send_error(413)
            return
        self.rfile.read(int(length))
        try:
            status, body = self.server.catalog.answer(
                self.command, self.path, self.headers.get("Authorization")
            )
        except Exception as error:  # noqa: BLE001 - the server or the lake is unavailable: the caller is told
            message = str(error) or repr(error)
            status = 503
            body = {"error": {"message": message, "type": "ServiceUnavailableException", "code": status}}
        text = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if body is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Do not log requests."""


def run(server: str, listen: str, warehouse: str | None) -> None:
    """Serve until a signal ends it."""
    from headrace.tablelayer.cli.connect import settings_of
    from headrace.tablelayer.cli.errors import CommandError
    from headrace.tablelayer.client import connect

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise CommandError(f"--listen {listen}: give HOST:PORT, such as 127.0.0.1:8181")
    try:
        import pyiceberg  # noqa: F401
    except ImportError:
        raise CommandError("the catalog needs pyiceberg: pip install 'headrace[lake]'") from None
    token = os.environ.get(TOKEN_VARIABLE, "").strip() or None
    with connect(settings_of(server)) as connection:
        catalog = RestCatalog(TieredLakes(connection, warehouse), token)
        try:
            serving = CatalogServer((host.strip("[]"), int(port)), catalog)
        except OSError as error:
            raise CommandError(f"cannot listen on {listen}: {error.strerror or error}") from None
        signal.signal(signal.SIGTERM, _interrupt)
        with serving:
            typer.echo(f"the lake's catalog is ready on http://{host}:{serving.server_address[1]}")
            try:
                serving.serve_forever()
            except KeyboardInterrupt:
                typer.echo("ended by a signal")


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
