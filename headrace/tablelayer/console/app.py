"""The ASGI application of the console: the page, the REST interface below `/api`, live tails, health.

Every client that can connect has access, or only those with credentials (`Access`). They have the rights of the
console's own connection, by the client properties that it was started with. It only reads unless `allow_writes`.

A page of another origin cannot use the console. Requests must name a host that the console is known by (no DNS
rebinding). Requests that change something must be JSON with the console's own Origin. Every answer limits what the page
may load: its own scripts and styles, nothing inline, nothing from elsewhere. The page shows foreign names and values by
`textContent`, never as markup.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.tablelayer.client import ClientError, Connection, KafkaError, TableError, stopping
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.cluster import Cluster
from headrace.tablelayer.console.connectors import Connect
from headrace.tablelayer.console.decoding import Decoder
from headrace.tablelayer.console.groups import Groups
from headrace.tablelayer.console.history import History
from headrace.tablelayer.console.quotas import Quotas
from headrace.tablelayer.console.registry import Registry
from headrace.tablelayer.console.rest import Rest
from headrace.tablelayer.console.rights import Rights
from headrace.tablelayer.console.ring import Ring
from headrace.tablelayer.console.routes import Endpoint, RequestError, endpoints_of, openapi
from headrace.tablelayer.console.running import Running
from headrace.tablelayer.console.tables import Sql, Tables
from headrace.tablelayer.console.tails import SECONDS_BETWEEN_EVENTS, TAILS_MAX, Tail
from headrace.tablelayer.console.topics import Topics

BODY_BYTES_MAX: Final = 4 << 20
SECURITY_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_WITH_SLASHES: Final = re.compile(r"{(group|subject|connector)}")
"""Parts of paths that may contain a /. Names of topics and tables may not."""
_PUBLIC: Final = ("/healthz", "/readyz")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Checks host, origin and credentials of every request, and adds the security headers to every answer."""

    def __init__(self, application: Asgi, access: Access) -> None:
        self._application = application
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        refusal = self._refusal(dict(scope["headers"]), scope)
        application = self._application if refusal is None else refusal

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), text.encode()) for name, text in SECURITY_HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        await application(scope, receive, send_with_headers)

    def _refusal(self, headers: dict[bytes, bytes], scope: Scope) -> Asgi | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._access.hosts and host not in self._access.hosts:
            return _error("the console does not have this host name: add it with --host", 421)
        if scope["path"] in _PUBLIC:
            return None
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get(b"origin", b"").decode("latin-1").lower()
            if origin and origin.partition("://")[2] != host:
                return _error("a page of another origin cannot change anything", 403)
            if not headers.get(b"content-type", b"").startswith(b"application/json"):
                return _error("send application/json", 415)
        if not self._access.admits(headers.get(b"authorization", b"").decode("latin-1")):
            schemes = ['Basic realm="headrace"'] if self._access.credentials is not None else []
            if self._access.token is not None:
                schemes.append('Bearer realm="headrace"')
            return _error(
                "the console requires authentication", 401, {"www-authenticate": ", ".join(schemes)}
            )
        return None


def _error(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


def make_app(
    connection: Connection,
    sql: Sql,
    access: Access,
    *,
    allow_writes: bool,
    version: str,
    server: str,
    history: History | None = None,
    ring: Ring | None = None,
    running: Running | None = None,
    schema_registry: Rest | None = None,
    kafka_connect: Rest | None = None,
) -> Asgi:
    """Make the application.

    The caller closes `connection` and `ring`, which keeps the numbers of plots (None: in memory). `server` is the name
    that the page shows. `history` None: its own. `running` lets the caller end what runs.
    """
    known, running = history or History(lambda: connection, ring), running or Running()
    registry, connect = Registry(schema_registry), Connect(kafka_connect)
    declared = endpoints_of(
        Cluster(connection, known),
        Topics(connection, known, Decoder(registry)),
        Tables(connection, sql),
        Groups(connection),
        Rights(connection),
        Quotas(connection),
        registry,
        connect,
    )
    document = openapi(declared, version)
    tails = threading.Semaphore(TAILS_MAX)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if history is None:
            known.start()
        yield
        await running.finish()
        if history is None:
            await asyncio.to_thread(known.close)  # another pool of threads would first be imported

    async def about(_: Request) -> Response:
        return JSONResponse(
            {
                "version": version,
                "server": server,
                "writes": allow_writes,
                "registry": registry.is_there,
                "connect": connect.is_there,
            }
        )

    async def described(_: Request) -> Response:
        return JSONResponse(document)

    async def alive(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def ready(_: Request) -> Response:
        try:
            await asyncio.wait_for(run_in_threadpool(connection.kafka.brokers), 5)
        except Exception:  # noqa: BLE001 - any error means that it is not ready
            return PlainTextResponse("the server does not answer\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ready\n")

    routes = [
        Route("/healthz", alive),
        Route("/readyz", ready),
        Route("/openapi.json", described),
        Route("/api/about", about),
        *(_route(each, allow_writes, running, tails) for each in declared),
        *_assets(),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), access)


def _assets() -> list[Route]:
    """Return the routes of the page, its scripts and styles: the files of the folder by their kinds."""
    folder = Path(__file__).parent / "assets"
    files = {
        "/" if each.name == "index.html" else f"/{each.relative_to(folder)}": each
        for each in folder.rglob("*")
        if each.suffix in _KINDS
    }
    return [Route(path, _asset(file.read_bytes(), _KINDS[file.suffix])) for path, file in files.items()]


def _asset(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind)

    return answer


def _route(endpoint: Endpoint, allow_writes: bool, running: Running, tails: threading.Semaphore) -> Route:
    async def answer(request: Request) -> Response:
        if endpoint.writes and not allow_writes:
            return _error("the console only reads: start it with --allow-writes", 403)
        try:
            arguments = endpoint.arguments(dict(request.query_params))
            content = None if endpoint.body is None else await _body(request)

            def work() -> Any:
                body = {} if content is None else {"body": endpoint.read(content)}
                return endpoint.handle(**request.path_params, **arguments, **body)

            if endpoint.streams:
                return await _tail(work, running, tails)
            if endpoint.writes:
                return _json(await run_in_threadpool(work))
            return _json(await running.read(request, work, is_query=endpoint.is_query))
        except (RequestError, KafkaError, TableError, ClientError) as error:
            return _error(_sentence(error), _status(error))

    return Route(_WITH_SLASHES.sub(r"{\1:path}", endpoint.path), answer, methods=[endpoint.method])


def _json(value: Any) -> Response:
    return Response(_text(value), media_type="application/json")


def _text(value: Any) -> bytes:
    """Return a value as JSON. Surrogates, which foreign names may have, become question marks."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


async def _body(request: Request) -> bytes:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > BODY_BYTES_MAX:
            raise RequestError(
                f"the request is too large: at most {BODY_BYTES_MAX} bytes are allowed",
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
    return bytes(content)


async def _tail(
    work: Callable[[], Callable[[Tail], None]], running: Running, tails: threading.Semaphore
) -> Response:
    """Begin a live tail. `work` returns the function that reads, or raises."""
    if not tails.acquire(blocking=False):
        return _error(f"{TAILS_MAX} live tails are running, which is the limit: try again later", 429)
    stop = running.stop()

    def release() -> None:
        stop.set()
        running.forget(stop)
        tails.release()

    try:
        with stopping.running(stop):
            tail = Tail(await run_in_threadpool(work), stop)
    except BaseException:
        release()
        raise
    return StreamingResponse(_events(tail, release), media_type="text/event-stream")


async def _events(tail: Tail, release: Callable[[], None]) -> AsyncIterator[bytes]:
    """Send one server-sent event for the rows since the last one, and a comment each second without one."""
    tail.start()
    quiet = 0.0
    try:
        yield b": waiting\n\n"
        while not tail.stop.is_set:
            await asyncio.sleep(SECONDS_BETWEEN_EVENTS)
            event = await run_in_threadpool(_event, tail)
            quiet = 0.0 if event else quiet + SECONDS_BETWEEN_EVENTS
            if event:
                yield event
            elif tail.failure is not None:
                yield b"event: failed\ndata: " + _text({"error": _sentence(tail.failure)}) + b"\n\n"
                return
            elif quiet >= 1:
                quiet = 0.0
                yield b": waiting\n\n"
    finally:
        release()


def _event(tail: Tail) -> bytes | None:
    taken = tail.take()
    return None if taken is None else b"data: " + _text(taken) + b"\n\n"


_STATUS: Final = {
    "UNKNOWN_TOPIC_OR_PARTITION": 404,
    "GROUP_ID_NOT_FOUND": 404,
    "TABLE_NOT_FOUND": 404,
    "DATABASE_NOT_FOUND": 404,
    "TOPIC_AUTHORIZATION_FAILED": 403,
    "GROUP_AUTHORIZATION_FAILED": 403,
    "CLUSTER_AUTHORIZATION_FAILED": 403,
}


def _status(error: Exception) -> int:
    if isinstance(error, RequestError):
        return int(error.status)
    if isinstance(error, (KafkaError, TableError)):
        return _STATUS.get(error.code.name, 400)
    return int(HTTPStatus.BAD_GATEWAY)


def _sentence(error: Exception) -> str:
    return str(getattr(error, "message", None) or error)
