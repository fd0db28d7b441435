"""Avro schemas in a schema registry (Confluent's REST interface, which Karapace and Apicurio have too).

Two requests are made: `GET /schemas/ids/{id}` for the schema of what was produced, and `POST
/subjects/{subject}/versions` for the id of a table's own, under the subject `<topic>-value`. Ids and schemas never
change, so an answer is kept for good; that an id is unknown is kept for some seconds, so that a producer with a wrong
one does not have the registry asked for every batch. Requests for the same thing at once are one request.

Credentials are the server's, and are sent to the server's own registry only: who may create a table says where requests
go, but not with whose name. Redirects are not followed. Requests are made in threads of their own: a registry that does
not answer holds up neither the event loop nor other tables' work.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from broker.config_key import ConfigError, ConfigKey, ConfigType, at_least
from protocol.errors import ErrorCode, KafkaError
from tablelayer.model.avro_schema import SCHEMA_TEXT_MAX, AvroSchema, AvroSchemaError
from tablelayer.model.kafka_formats import parse_registry_url

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.ports import Clock

logger = logging.getLogger("headrace.tables")

REGISTRY_URL = "schema.registry.url"
_USER_INFO = "schema.registry.basic.auth.user.info"
_TOKEN = "schema.registry.bearer.auth.token"
_TIMEOUT = "schema.registry.request.timeout.ms"

_CONTENT = "application/vnd.schemaregistry.v1+json"
_ANSWER_MAX = SCHEMA_TEXT_MAX * 2  # a schema is a text in JSON: quotes take two bytes
_KEPT_MAX = 10_000
"""Answers that are kept: far more than the schemas of one registry's producers here."""
_UNKNOWN_SECONDS = 10.0
_THREADS = 4
_UNKNOWN_SCHEMA = 40403
"""The registry's own code of an id that it does not have."""


def _url_complaint(text: str) -> str | None:
    try:
        parse_registry_url(text)
    except ValueError as error:
        return str(error)
    return None


REGISTRY_CONFIGS = (
    ConfigKey(
        REGISTRY_URL,
        ConfigType.STRING,
        None,
        "The schema registry of tables with Avro values that name none: a URL such as http://registry:8081.",
        _url_complaint,
    ),
    ConfigKey(
        _USER_INFO,
        ConfigType.PASSWORD,
        None,
        "Name and password for the server's own schema registry, with a colon in between.",
    ),
    ConfigKey(_TOKEN, ConfigType.PASSWORD, None, "A bearer token for the server's own schema registry."),
    ConfigKey(
        _TIMEOUT,
        ConfigType.INT,
        "5000",
        "How long a request to a schema registry may take; then producer or consumer is told to try again.",
        at_least(1),
    ),
)


class RegistryRefusal(Exception):  # noqa: N818 - not always an error: the registry has said no
    """The registry's answer is no, and would be again: an unknown id, an incompatible schema, no permission."""


class RegistryUnavailableError(Exception):
    """No answer, or one that may be another the next time."""


class SchemaRegistries:
    """All registries that tables use. Called on the event loop."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Raises ConfigError."""
        url, user, token = config[REGISTRY_URL], config[_USER_INFO], config[_TOKEN]
        if user and token:
            raise ConfigError(f"{_USER_INFO} and {_TOKEN} are both given; leave one out")
        if user and ":" not in user:
            raise ConfigError(f"{_USER_INFO} has no colon; it is NAME:PASSWORD")
        if (user or token) and not url:
            raise ConfigError(f"{_USER_INFO if user else _TOKEN} is of no use without {REGISTRY_URL}")
        self.own_url: str | None = parse_registry_url(url) if url else None
        self._authorization: str | None = None
        if user:
            self._authorization = "Basic " + base64.b64encode(user.encode()).decode()
        elif token:
            self._authorization = f"Bearer {token}"
        self._timeout_seconds: float = config[_TIMEOUT] / 1000
        self._clock = clock
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._asked: dict[Hashable, asyncio.Task[Any]] = {}
        self._threads: ThreadPoolExecutor | None = None

    async def schemas(self, url: str, ids: Iterable[int]) -> dict[int, AvroSchema | str]:
        """The schemas of these ids; a text says why there is none. Raises KafkaError (to be retried)."""
        wanted = list(ids)
        found = await asyncio.gather(*(self._schema(url, each) for each in wanted))
        return dict(zip(wanted, found, strict=True))

    async def id_of(self, url: str, subject: str, schema: str) -> int:
        """The id of a schema, which is registered if it is not yet. Raises KafkaError."""
        key = (url, subject, schema)
        try:
            answer = await self._ask(key, _register, url, subject, schema)
        except RegistryUnavailableError as error:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, str(error)) from None
        if isinstance(answer, str):
            raise KafkaError(ErrorCode.INVALID_CONFIG, answer)
        return int(answer)

    async def _schema(self, url: str, schema_id: int) -> AvroSchema | str:
        try:
            answer: AvroSchema | str = await self._ask((url, schema_id), _schema_by_id, url, schema_id)
        except RegistryUnavailableError as error:
            # Kafka's producers try again after this one, with the same sequence.
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None
        return answer

    async def _ask(self, key: Hashable, request: Callable[..., Any], url: str, *arguments: Any) -> Any:
        """What a request gives, kept; a text if it was refused. Raises RegistryUnavailableError."""
        kept = self._kept.get(key)
        if kept is not None:
            answer, until = kept
            if until is None or self._clock.monotonic() < until:
                self._kept.move_to_end(key)
                return answer
        task = self._asked.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._request(key, request, url, *arguments), name="schema registry"
            )
            self._asked[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        # A client that goes away does not end what others may wait for.
        return await asyncio.shield(task)

    def _finished(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            logger.warning("%s", task.exception())

    async def _request(self, key: Hashable, request: Callable[..., Any], url: str, *arguments: Any) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="schema-registry")
        headers = {"Accept": f"{_CONTENT}, application/json"}
        if self._authorization is not None and url == self.own_url:
            headers["Authorization"] = self._authorization
        call = _Call(url, headers, self._timeout_seconds)
        until: float | None = None
        try:
            # The timeout of a socket is that of each read; a registry that drips is given up here.
            answer = await asyncio.wait_for(
                asyncio.get_running_loop().run_in_executor(self._threads, request, call, *arguments),
                self._timeout_seconds,
            )
        except TimeoutError:
            seconds = f"{self._timeout_seconds:g} s"
            raise RegistryUnavailableError(
                f"the schema registry {url} did not answer within {seconds}"
            ) from None
        except RegistryRefusal as refusal:
            answer, until = str(refusal), self._clock.monotonic() + _UNKNOWN_SECONDS
        self._kept[key] = answer, until
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return answer


class _Call:
    """Requests to a registry. Blocking."""

    def __init__(self, url: str, headers: dict[str, str], timeout_seconds: float) -> None:
        self.url = url
        self._headers = headers
        self._timeout_seconds = timeout_seconds

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """The answer, from JSON. Raises RegistryRefusal, RegistryUnavailableError."""
        import http.client  # not before there is somebody to ask
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
            connection.request(method, parts.path + path, data, headers)
            response = connection.getresponse()
            status, text = response.status, response.read(_ANSWER_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise RegistryUnavailableError(
                f"the schema registry {self.url} cannot be asked: {error}"
            ) from None
        finally:
            connection.close()
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
            reason = f"{str(answer['message'])[:500]} ({answer.get('error_code', status)})"
        message = f"the schema registry {self.url} answered {method} {path} with: {reason}"
        # What is wrong with credentials or with the request stays wrong; anything else may get better.
        if status in (400, 401, 403, 409, 422) or (status == 404 and answer is not None) or status == 200:
            raise RegistryRefusal(message)
        raise RegistryUnavailableError(message)


def _schema_by_id(call: _Call, schema_id: int) -> AvroSchema:
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
