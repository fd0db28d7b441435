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
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.tablelayer.client import ClientError, Connection, KafkaError, TableError, stopping
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.history import History
from headrace.tablelayer.console.rights import Rights
from headrace.tablelayer.console.ring import Ring
from headrace.tablelayer.console.routes import Endpoint, Parameter, RequestError, openapi
from headrace.tablelayer.console.running import Running
from headrace.tablelayer.console.tables import Sql, Tables
from headrace.tablelayer.console.tails import SECONDS_BETWEEN_EVENTS, TAILS_MAX, Tail
from headrace.tablelayer.console.views import Views

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
_SCRIPTS: Final = (
    *("console.js", "parts.js", "records.js", "live.js", "changes.js", "sql.js", "editor.js", "plots.js"),
    *("vendor/codemirror.js", "vendor/uplot.js"),
)
_ASSETS: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
    **{f"/{name}": (name, "text/css; charset=utf-8") for name in ("console.css", "vendor/uplot.css")},
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_PUBLIC: Final = ("/healthz", "/readyz")
_NAME: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 1}
_CONFIGS: Final = {"type": "object", "additionalProperties": _NAME}
_GRANT: Final = {
    "type": "object",
    "properties": {
        "principal": _NAME,
        "privileges": {"type": "array", "items": _NAME, "minItems": 1},
        "on": _NAME,
        "columns": {"type": "array", "items": _NAME},
    },
    "required": ["principal", "privileges", "on"],
}
_ROWS: Final = {"type": "array", "items": {"type": "object"}, "minItems": 1}

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


def endpoints(views: Views, tables: Tables, rights: Rights) -> list[Endpoint]:
    """Return the endpoints of the REST interface."""
    partition = Parameter("partition", "Only this partition.", int)
    limit = Parameter("limit", "Maximum number of results.", int, 100)
    return [
        Endpoint("GET", "/api/overview", "Rates, sizes and health.", views.overview),
        Endpoint(
            "GET",
            "/api/plots",
            "Numbers over time: each 5 seconds of the last hour, or each minute of the last day.",
            views.plots,
            [
                Parameter("of", "The kind of thing: cluster, topic, group, broker or lake.", str, "cluster"),
                Parameter(
                    "name", "The name of the topic, group, table in the lake, or the broker's id.", str, ""
                ),
                Parameter("minutes", "Length of the time up to now, in minutes.", int, 60),
            ],
        ),
        Endpoint("GET", "/api/brokers", "Brokers with their processes and disks.", views.brokers),
        Endpoint("GET", "/api/brokers/{broker}/configs", "A broker's configurations.", views.broker_configs),
        Endpoint(
            "GET",
            "/api/topics",
            "Topics, including tables, with sizes and rates.",
            views.topics,
            [Parameter("internal", "Include internal topics.", bool, False)],
        ),
        Endpoint(
            "POST",
            "/api/topics",
            "Create a topic. Partitions and replicas that are left out are the server's defaults.",
            views.create,
            writes=True,
            body={
                "type": "object",
                "properties": {"name": _NAME, "partitions": _COUNT, "replicas": _COUNT, "configs": _CONFIGS},
                "required": ["name"],
            },
        ),
        Endpoint("GET", "/api/topics/{topic}", "A topic with its partitions.", views.topic),
        Endpoint(
            "DELETE",
            "/api/topics/{topic}",
            "Delete a topic with its records. The body repeats the name.",
            views.delete,
            writes=True,
            body={"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
        ),
        Endpoint(
            "POST",
            "/api/topics/{topic}/configs",
            "Set some configurations of a topic, and reset others to their defaults.",
            views.alter,
            writes=True,
            body={
                "type": "object",
                "properties": {"set": _CONFIGS, "reset": {"type": "array", "items": _NAME}},
            },
        ),
        Endpoint(
            "POST",
            "/api/topics/{topic}/partitions",
            "Increase the number of a topic's partitions. Records with a key may go to another one from then on.",
            views.add_partitions,
            writes=True,
            body={"type": "object", "properties": {"count": _COUNT}, "required": ["count"]},
        ),
        Endpoint(
            "GET",
            "/api/topics/{topic}/configs",
            "A topic's configurations with their documentation.",
            views.topic_configs,
        ),
        Endpoint(
            "GET",
            "/api/topics/{topic}/records",
            "Matching records: the newest, or from an offset, a time or the beginning on.",
            views.records,
            [
                partition,
                Parameter("offset", "First offset, in one partition.", int),
                Parameter("timestamp", "Earliest time, in milliseconds since 1970.", int),
                Parameter("key", "Only records with exactly this key."),
                Parameter("contains", "Only records with this text in the value."),
                Parameter("where", "Only records for which this condition in SQL is true."),
                limit,
                Parameter("newest", "Return the newest records.", bool, False),
            ],
        ),
        Endpoint(
            "GET",
            "/api/topics/{topic}/tail",
            "New records as server-sent events, four a second: the newest of each, and how many came.",
            views.tail,
            [
                partition,
                Parameter("key", "Only records with exactly this key."),
                Parameter("contains", "Only records with this text in the value."),
                Parameter("where", "Only records for which this condition in SQL is true."),
            ],
            streams=True,
        ),
        Endpoint(
            "POST",
            "/api/topics/{topic}/records",
            "Write records with value, key, headers and partition. A text is written as it is, another value as JSON.",
            views.produce,
            writes=True,
            body={"type": "object", "properties": {"records": _ROWS}, "required": ["records"]},
        ),
        Endpoint("GET", "/api/tables", "Tables by database.", tables.listed),
        Endpoint(
            "GET",
            "/api/tables/{table}",
            "A table: columns, keys, options, partitions, rows.",
            tables.describe,
        ),
        Endpoint(
            "GET",
            "/api/tables/{table}/rows",
            "The row of a primary key (a JSON object, or the value of a key of one column), or some rows.",
            tables.rows,
            [Parameter("key", "The primary key."), limit],
        ),
        Endpoint(
            "GET",
            "/api/tables/{table}/changes",
            "The changes of the row of a primary key, the newest first.",
            tables.changes,
            [Parameter("key", "The primary key.")],
        ),
        Endpoint(
            "GET",
            "/api/tables/{table}/tail",
            "New changes as server-sent events, four a second: the newest of each, and how many came.",
            tables.tail,
            [Parameter("where", "Only changes of rows for which this condition in SQL is true.")],
            streams=True,
        ),
        Endpoint(
            "GET",
            "/api/tables/{table}/snapshots",
            "The buckets of a primary-key table with the snapshots of their state.",
            tables.snapshots,
        ),
        Endpoint(
            "POST",
            "/api/tables/{table}/rows",
            "Upsert rows by primary key; append them to a log table.",
            tables.write,
            writes=True,
            body={"type": "object", "properties": {"rows": _ROWS}, "required": ["rows"]},
        ),
        Endpoint(
            "DELETE",
            "/api/tables/{table}/rows",
            "Delete rows by primary key.",
            tables.delete,
            writes=True,
            body={"type": "object", "properties": {"keys": _ROWS}, "required": ["keys"]},
        ),
        Endpoint(
            "POST",
            "/api/sql",
            "Run one SELECT, EXPLAIN, SUMMARIZE, SHOW or DESCRIBE. The answer has at most 10,000 rows. Close the "
            "connection to stop it.",
            tables.sql,
            is_query=True,
            body={"type": "object", "properties": {"query": _NAME}, "required": ["query"]},
        ),
        Endpoint(
            "POST",
            "/api/sql/plan",
            "The plan of one SELECT: a tree of operators with name, details and children.",
            tables.plan,
            is_query=True,
            body={"type": "object", "properties": {"query": _NAME}, "required": ["query"]},
        ),
        Endpoint("GET", "/api/groups", "Consumer groups with their lag.", views.groups),
        Endpoint("GET", "/api/groups/{group}", "A group's members and positions.", views.group),
        Endpoint(
            "POST",
            "/api/groups/{group}/reset",
            "Set the positions of a group without members in a topic.",
            views.reset,
            writes=True,
            body={
                "type": "object",
                "properties": {"topic": _NAME, "to": _NAME, "dry_run": {"type": "boolean"}},
                "required": ["topic", "to"],
            },
        ),
        Endpoint("GET", "/api/users", "Users, and the rights that are granted and denied.", rights.listed),
        Endpoint(
            "POST",
            "/api/users",
            "Create a user with a password, or change the password.",
            rights.set_user,
            writes=True,
            body={
                "type": "object",
                "properties": {"name": _NAME, "password": _NAME},
                "required": ["name", "password"],
            },
        ),
        Endpoint(
            "POST",
            "/api/users/delete",
            "Delete a user. Its grants stay.",
            rights.drop_user,
            writes=True,
            body={"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
        ),
        Endpoint(
            "POST",
            "/api/grants",
            "Grant privileges on a table or a database to a principal.",
            rights.grant,
            writes=True,
            body=_GRANT,
        ),
        Endpoint(
            "POST",
            "/api/grants/revoke",
            "Revoke privileges on a table or a database.",
            rights.revoke,
            writes=True,
            body=_GRANT,
        ),
        Endpoint(
            "GET",
            "/api/lake",
            "The progress of tiering to the lake, with running rounds and failures.",
            views.lake,
        ),
        Endpoint(
            "GET",
            "/api/refused",
            "Records that tables refused lately, with the reasons.",
            views.refused,
            [Parameter("topic", "Only the table of this topic.")],
        ),
    ]


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
) -> Asgi:
    """Make the application.

    The caller closes `connection` and `ring`, which keeps the numbers of plots (None: in memory). `server` is the name
    that the page shows. `history` None: its own. `running` lets the caller end what runs.
    """
    known, running = history or History(lambda: connection, ring), running or Running()
    views = Views(connection, known)
    declared = endpoints(views, Tables(connection, sql), Rights(connection))
    document = openapi(declared, version)
    tails = threading.Semaphore(TAILS_MAX)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if history is None:
            known.start()
        yield
        if history is None:
            await run_in_threadpool(known.close)

    async def about(_: Request) -> Response:
        return JSONResponse({"version": version, "server": server, "writes": allow_writes})

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
        *(Route(path, _asset(name, kind)) for path, (name, kind) in _ASSETS.items()),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), access)


def _asset(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("headrace.tablelayer.console") / "assets" / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind)

    return answer


def _route(endpoint: Endpoint, allow_writes: bool, running: Running, tails: threading.Semaphore) -> Route:
    async def answer(request: Request) -> Response:
        if endpoint.writes and not allow_writes:
            return _error("the console only reads: start it with --allow-writes", 403)
        try:
            arguments = endpoint.arguments(dict(request.query_params))
            if endpoint.body is not None:
                arguments["body"] = await _body(request)
            work = partial(endpoint.handle, **request.path_params, **arguments)
            if endpoint.streams:
                return await _tail(work, running, tails)
            if endpoint.writes:
                return _json(await run_in_threadpool(work))
            return _json(await running.read(request, work, is_query=endpoint.is_query))
        except (RequestError, KafkaError, TableError, ClientError) as error:
            return _error(_sentence(error), _status(error))

    # A group's name may contain a /; names of topics and tables may not.
    return Route(endpoint.path.replace("{group}", "{group:path}"), answer, methods=[endpoint.method])


def _json(value: Any) -> Response:
    return Response(_text(value), media_type="application/json")


def _text(value: Any) -> bytes:
    """Return a value as JSON. Surrogates, which foreign names may have, become question marks."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


async def _body(request: Request) -> Any:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > BODY_BYTES_MAX:
            raise RequestError(
                f"the request is too large: at most {BODY_BYTES_MAX} bytes are allowed",
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
    try:
        return json.loads(bytes(content), parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request is not JSON: {error}") from None


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
    """Send one server-sent event for what came since the last one, and a comment each second without one."""
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
