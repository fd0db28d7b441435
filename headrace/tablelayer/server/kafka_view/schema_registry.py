"""Avro schemas in a schema registry (Confluent's REST interface, which Karapace and Apicurio have too).

Two requests are made: `GET /schemas/ids/{id}` for the schema of produced values, and `POST
/subjects/{subject}/versions` for the id of a table's own schema, under the subject `<topic>-value`. Ids and schemas
never change, so an answer is kept forever. "Unknown id" is kept for some seconds, so that a producer with a wrong id
does not cause a request for every batch. Concurrent requests for the same thing are one request.

A table names its registry, but only the server's own, or a host in the operator's `schema.registry.allowed.hosts`. So
no client can make the server send requests to hosts that only the server can reach. Credentials are the server's, and
are sent to its own registry only. Redirects are not followed.

Each registry has its own threads, queue and kept answers, all of them bounded. A registry that does not answer, or
answers without end, blocks neither the event loop nor requests to other registries. A request that takes too long ends:
its socket is closed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import socket
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType, at_least
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.one_line import one_line
from headrace.tablelayer.model.options.kafka_formats import parse_registry_url

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.runtime.ports import Clock, Threads
    from headrace.tablelayer.model.avro.schema import AvroSchema

logger = logging.getLogger("headrace.tables")

REGISTRY_URL = "schema.registry.url"
_USER_INFO = "schema.registry.basic.auth.user.info"
_TOKEN = "schema.registry.bearer.auth.token"
_TIMEOUT = "schema.registry.request.timeout.ms"
ALLOWED_HOSTS = "schema.registry.allowed.hosts"

_CONTENT = "application/vnd.schemaregistry.v1+json"
_ANSWER_MAX = 8 << 20  # twice the longest schema (`SCHEMA_TEXT_MAX`), because quotes take two bytes in JSON
_KEPT_MAX = 10_000
"""Maximum number of kept answers per registry: far more than the schemas of its producers."""
_KEPT_BYTES_MAX = 16 << 20
"""Maximum size of kept answers per registry, in bytes as received."""
_UNKNOWN_SECONDS = 10.0
_THREADS = 4
"""Maximum number of concurrent requests to one registry."""
_WAITING_MAX = 256
"""Maximum number of requests to one registry that run or wait: one for each batch with a new schema."""
_REGISTRIES_MAX = 64
"""Maximum number of recently used registries; a server has one or two."""
_UNKNOWN_SCHEMA = 40403
"""The registry's error code for an unknown id."""


def _url_complaint(text: str) -> str | None:
    try:
        parse_registry_url(text)
    except ValueError as error:
        return str(error)
    return None


_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9._-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")


def _hosts_complaint(hosts: list[str]) -> str | None:
    for each in hosts:
        if not _HOST.fullmatch(each):
            return f"{each} is not a HOST, HOST:PORT or *.DOMAIN"
    return None


REGISTRY_CONFIGS = (
    ConfigKey(
        REGISTRY_URL,
        ConfigType.STRING,
        None,
        "Schema registry of tables with Avro values that name none: a URL such as http://registry:8081.",
        _url_complaint,
    ),
    ConfigKey(
        _USER_INFO,
        ConfigType.PASSWORD,
        None,
        "Name and password for the server's own schema registry, separated by a colon.",
    ),
    ConfigKey(_TOKEN, ConfigType.PASSWORD, None, "Bearer token for the server's own schema registry."),
    ConfigKey(
        _TIMEOUT,
        ConfigType.INT,
        "5000",
        "Maximum time of a request to a schema registry, in milliseconds; after that, producer or "
        "consumer has to retry.",
        at_least(1),
    ),
    ConfigKey(
        ALLOWED_HOSTS,
        ConfigType.LIST,
        None,
        "Hosts that tables may name in 'table.kafka.avro.registry-url', besides the server's own "
        "registry: HOST (any port), HOST:PORT, or *.DOMAIN. Clients that create tables can make the "
        "server send requests to these hosts. By default there are none.",
        _hosts_complaint,
    ),
)


class RegistryRefusal(Exception):  # noqa: N818 - not always an error: the registry has refused
    """The registry refused, and would refuse again: an unknown id, an incompatible schema, no permission."""


class RegistryUnavailableError(Exception):
    """The registry did not answer, or may answer differently the next time."""


class RegistryHosts:
    """The registries that may be asked."""

    def __init__(self, config: BrokerConfig) -> None:
        own = config[REGISTRY_URL]
        self._own = _address(parse_registry_url(own)) if own else None
        self._allowed: list[str] = [each.lower() for each in config[ALLOWED_HOSTS] or ()]

    def complaint(self, url: str) -> str | None:
        """Return why a registry may not be asked; None if it may."""
        scheme, host, port = address = _address(url)
        if address == self._own:
            return None
        shown = f"[{host}]" if ":" in host else host
        for each in self._allowed:
            if each.startswith("*."):
                suffix, _, wanted_port = each[1:].partition(":")
                if host.endswith(suffix) and wanted_port in ("", str(port)):
                    return None
            elif each in (shown, f"{shown}:{port}"):
                return None
        return (
            f"the schema registry {scheme}://{shown}:{port} is not allowed for tables of this server: use the "
            f"server's own ('{REGISTRY_URL}'), or ask the operator to allow the host ('{ALLOWED_HOSTS}')"
        )


def _address(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)


_PORTS = {"http": 80, "https": 443}


class SchemaRegistries:
    """All registries that tables use. Runs on the event loop."""

    def __init__(self, config: BrokerConfig, clock: Clock, threads: Threads) -> None:
        """Check the configuration. Raises ConfigError."""
        url, user, token = config[REGISTRY_URL], config[_USER_INFO], config[_TOKEN]
        if user and token:
            raise ConfigError(f"{_USER_INFO} and {_TOKEN} are both set; remove one")
        if user and ":" not in user:
            raise ConfigError(f"{_USER_INFO} has no colon; write NAME:PASSWORD")
        if (user or token) and not url:
            raise ConfigError(f"{_USER_INFO if user else _TOKEN} needs {REGISTRY_URL}; set it too")
        self.own_url: str | None = parse_registry_url(url) if url else None
        self.hosts = RegistryHosts(config)
        self._authorization: str | None = None
        if user:
            self._authorization = "Basic " + base64.b64encode(user.encode()).decode()
        elif token:
            self._authorization = f"Bearer {token}"
        self._timeout_seconds: float = config[_TIMEOUT] / 1000
        self._clock = clock
        self._threads = threads
        self._registries: OrderedDict[tuple[str, str, int], _Registry] = OrderedDict()

    async def schemas(self, url: str, ids: Iterable[int]) -> dict[int, AvroSchema | str]:
        """Return the schemas of these ids; a text is the reason why there is none. Raises KafkaError (retriable)."""
        wanted = list(ids)
        found = await asyncio.gather(*(self._schema(url, each) for each in wanted))
        return dict(zip(wanted, found, strict=True))

    async def id_of(self, url: str, subject: str, schema: str) -> int:
        """Return the id of a schema, registering it if necessary. Raises KafkaError."""
        try:
            answer = await self._registry(url).ask((url, subject, schema), _register, subject, schema)
        except RegistryUnavailableError as error:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, str(error)) from None
        if isinstance(answer, str):
            raise KafkaError(ErrorCode.INVALID_CONFIG, answer)
        return int(answer)

    async def _schema(self, url: str, schema_id: int) -> AvroSchema | str:
        try:
            answer: AvroSchema | str = await self._registry(url).ask(
                (url, schema_id), _schema_by_id, schema_id
            )
        except RegistryUnavailableError as error:
            # Kafka's producers retry after this error, with the same sequence.
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None
        return answer

    def _registry(self, url: str) -> _Registry:
        """Return the registry at a URL. Raises KafkaError(INVALID_CONFIG) if it is not allowed,
        RegistryUnavailableError.
        """
        complaint = self.hosts.complaint(url)
        if complaint is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, complaint)
        address = _address(url)
        found = self._registries.get(address)
        if found is None:
            if len(self._registries) >= _REGISTRIES_MAX:
                idle = next((each for each, it in self._registries.items() if it.is_idle), None)
                if idle is None:
                    raise RegistryUnavailableError(
                        f"{_REGISTRIES_MAX} schema registries have requests, which is the maximum: try again"
                    )
                self._registries.pop(idle).close()
            found = self._registries[address] = _Registry(
                self._clock,
                self._threads.pool(_THREADS, "schema-registry"),
                self._timeout_seconds,
                self._headers,
            )
        self._registries.move_to_end(address)
        return found

    def _headers(self, url: str) -> dict[str, str]:
        headers = {"Accept": f"{_CONTENT}, application/json"}
        if self._authorization is not None and url == self.own_url:
            headers["Authorization"] = self._authorization
        return headers


class _Registry:
    """Requests to the registry at one address, and its kept answers."""

    def __init__(
        self,
        clock: Clock,
        threads: Executor,
        timeout_seconds: float,
        headers: Callable[[str], dict[str, str]],
    ) -> None:
        """Create it; `threads` are for this registry alone."""
        self._clock = clock
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._headers = headers
        self._kept: OrderedDict[Hashable, tuple[Any, float | None, int]] = OrderedDict()
        self._kept_bytes = 0
        self._asked: dict[Hashable, asyncio.Task[Any]] = {}
        self._running = 0

    @property
    def is_idle(self) -> bool:
        return not self._asked and not self._running

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def ask(self, key: tuple[Any, ...], request: Callable[..., Any], *arguments: Any) -> Any:
        """Return a request's answer, which is kept; a text if the registry refused. The first item of `key` is the URL.

        Raises RegistryUnavailableError.
        """
        kept = self._kept.get(key)
        if kept is not None:
            answer, until, _ = kept
            if until is None or self._clock.monotonic() < until:
                self._kept.move_to_end(key)
                return answer
        task = self._asked.get(key)
        if task is None:
            # A cancelled request may still occupy a thread for a moment.
            if max(len(self._asked), self._running) >= _WAITING_MAX:
                raise RegistryUnavailableError(
                    f"{_WAITING_MAX} requests to the schema registry {key[0]} wait for an answer: try again"
                )
            task = asyncio.get_running_loop().create_task(
                self._request(key, request, *arguments), name="schema registry"
            )
            self._asked[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        # Other clients may wait for the request: it goes on if one client disconnects.
        return await asyncio.shield(task)

    def _finished(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            logger.warning("%s", task.exception())

    async def _request(self, key: tuple[Any, ...], request: Callable[..., Any], *arguments: Any) -> Any:
        url = key[0]
        call = _Call(url, self._headers(url), self._timeout_seconds)
        until: float | None = None
        loop = asyncio.get_running_loop()
        self._running += 1
        work = self._threads.submit(request, call, *arguments)
        work.add_done_callback(lambda _: self._left(loop))
        try:
            # A socket's timeout applies to each read; this one also ends a registry that sends very slowly.
            answer = await asyncio.wait_for(asyncio.wrap_future(work), self._timeout_seconds)
        except TimeoutError:
            call.abort()
            seconds = f"{self._timeout_seconds:g} s"
            raise RegistryUnavailableError(
                f"the schema registry {url} did not answer within {seconds}"
            ) from None
        except RegistryRefusal as refusal:
            answer, until = str(refusal), self._clock.monotonic() + _UNKNOWN_SECONDS
        old = self._kept.pop(key, None)
        self._kept[key] = answer, until, call.size
        self._kept_bytes += call.size - (0 if old is None else old[2])
        while len(self._kept) > _KEPT_MAX or self._kept_bytes > _KEPT_BYTES_MAX:
            self._kept_bytes -= self._kept.popitem(last=False)[1][2]
        return answer

    def _left(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in a request's thread when it ends; for a cancelled request that may be later, or it never began."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._count_left)

    def _count_left(self) -> None:
        self._running -= 1


class _Call:
    """One request to a registry. Blocking."""

    def __init__(self, url: str, headers: dict[str, str], timeout_seconds: float) -> None:
        self.url = url
        self._headers = headers
        self._timeout_seconds = timeout_seconds
        self._socket: socket.socket | None = None
        self._is_aborted = False
        self.size = 0
        """Size of the last answer in bytes."""

    def abort(self) -> None:
        """End the request from another thread: a waiting read ends at once."""
        self._is_aborted = True
        used = self._socket
        if used is not None:
            try:
                # Not SSLSocket.shutdown, which removes state that its reader still uses.
                socket.socket.shutdown(used, socket.SHUT_RDWR)
            except OSError:
                return  # the request has ended

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return its answer, decoded from JSON. Raises RegistryRefusal, RegistryUnavailableError."""
        import http.client  # imported only when a registry is asked
        import ssl

        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout_seconds, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout_seconds)
        headers, data = dict(self._headers), None
        if body is not None:
            headers["Content-Type"] = _CONTENT
            data = json.dumps(body, ensure_ascii=False).encode()
        try:
            connection.connect()
            self._socket = connection.sock
            if self._is_aborted:
                raise TimeoutError("too late")
            connection.request(method, parts.path + path, data, headers)
            with connection.getresponse() as response:
                status, text = response.status, response.read(_ANSWER_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise RegistryUnavailableError(
                f"the schema registry {self.url} cannot be asked: {one_line(str(error), 500)}"
            ) from None
        finally:
            self._socket = None
            connection.close()
        self.size = len(text)
        if len(text) > _ANSWER_MAX:
            raise RegistryRefusal(
                f"the schema registry {self.url} answered with more than {_ANSWER_MAX} bytes"
            )
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        reason = f"status {status}"
        if isinstance(answer, dict) and "message" in answer:
            reason = f"{one_line(str(answer['message']), 500)} ({one_line(str(answer.get('error_code', status)), 20)})"
        message = f"the schema registry {self.url} answered {method} {path} with: {reason}"
        # Wrong credentials or a wrong request stay wrong; other errors may pass.
        if status in (400, 401, 403, 409, 422) or (status == 404 and answer is not None) or status == 200:
            raise RegistryRefusal(message)
        raise RegistryUnavailableError(message)


def _schema_by_id(call: _Call, schema_id: int) -> AvroSchema:
    from headrace.tablelayer.model.avro.schema import AvroSchema, AvroSchemaError

    answer = call("GET", f"/schemas/ids/{schema_id}")
    kind = answer.get("schemaType", "AVRO")
    if kind != "AVRO":
        raise RegistryRefusal(f"schema {schema_id} of the registry {call.url} is {kind}, not Avro")
    if answer.get("references"):
        raise RegistryRefusal(
            f"schema {schema_id} of the registry {call.url} refers to other schemas, which is not supported: register "
            "it in one piece"
        )
    try:
        return AvroSchema.parse(str(answer.get("schema", "")))
    except AvroSchemaError as error:
        raise RegistryRefusal(f"schema {schema_id} of the registry {call.url}: {error}") from None


def _register(call: _Call, subject: str, schema: str) -> int:
    answer = call("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
    found = answer.get("id")
    if not isinstance(found, int) or not 0 <= found < 2**31:
        raise RegistryRefusal(
            f"the schema registry {call.url} gave the id {found!r} for a schema of {subject}"
        )
    return found
