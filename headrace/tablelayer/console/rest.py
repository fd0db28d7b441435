"""Requests to REST interfaces of other programs: a schema registry, Kafka Connect. Blocking, with limits.

The address and the credentials are the operator's. Credentials are a secret in a file or a variable: USER:PASSWORD, or
a token without a colon. Redirects are not followed.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import time
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

import msgspec

from headrace.protocol.one_line import one_line
from headrace.tablelayer.client import stopping
from headrace.tablelayer.console.routes import RequestError

SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 8 << 20


class Rest:
    """The interface at one address. `name` says what it is: "the schema registry"."""

    def __init__(self, name: str, url: str, secret: str | None = None) -> None:
        """Raises ValueError for an address that cannot be used."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                f"{url!r} is not an address of {name}: write http://HOST:PORT or https://HOST:PORT"
            )
        if "@" in parts.netloc:
            raise ValueError(
                f"the address of {name} has a user or a password: put them into the file instead"
            )
        self.name = name
        self.url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host, self._port, self._front = parts.hostname, parts.port, parts.path.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if secret is not None:
            basic = base64.b64encode(secret.encode()).decode()
            self._headers["Authorization"] = f"Basic {basic}" if ":" in secret else f"Bearer {secret}"

    def get(self, *parts: object, query: str = "") -> Any:
        """Return the answer of GET, decoded from JSON. Raises RequestError in a sentence, with BAD_GATEWAY if the
        program is away.
        """
        return self._ask("GET", parts, query)

    def get_object(self, *parts: object, query: str = "") -> dict[str, Any]:
        """Return the answer of GET, which is to be an object. Raises as `get`."""
        found = self._ask("GET", parts, query)
        if not isinstance(found, dict):
            raise RequestError(
                f"{self.name} at {self.url} answered with something else than an object",
                HTTPStatus.BAD_GATEWAY,
            )
        return found

    def post(self, *parts: object, query: str = "") -> Any:
        """Send POST without a body, and return its answer; None if it has none. Raises as `get`."""
        return self._ask("POST", parts, query)

    def _ask(self, method: str, parts: tuple[object, ...], query: str) -> Any:
        path = "/".join(quote(str(each), safe="") for each in parts)
        connection: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=SECONDS_MAX, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=SECONDS_MAX)
        stop, remove = stopping.current(), None
        try:
            connection.connect()
            if stop is not None:
                remove = stop.add(partial(socket.socket.shutdown, connection.sock, socket.SHUT_RDWR))
            connection.request(method, f"{self._front}/{path}{query}", headers=self._headers)
            with connection.getresponse() as response:
                status, content = response.status, _content(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            stopping.check()
            raise RequestError(
                f"{self.name} at {self.url} does not answer: {one_line(str(error) or type(error).__name__, 300)}",
                HTTPStatus.BAD_GATEWAY,
            ) from None
        finally:
            if remove is not None:
                remove()
            connection.close()
        if len(content) > ANSWER_BYTES_MAX:
            raise RequestError(
                f"{self.name} answered with more than {ANSWER_BYTES_MAX} bytes", HTTPStatus.BAD_GATEWAY
            )
        try:
            answer = msgspec.json.decode(content) if content else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if status < 300:
                raise RequestError(
                    f"{self.name} at {self.url} answered /{path} with what is not JSON",
                    HTTPStatus.BAD_GATEWAY,
                ) from None
            answer = None
        if status < 300:
            return answer
        said = answer.get("message") if isinstance(answer, dict) else None
        known = {404: HTTPStatus.NOT_FOUND, 409: HTTPStatus.CONFLICT}
        raise RequestError(
            f"{self.name} answered /{path} with status {status}"
            + (f": {one_line(str(said), 500)}" if said else ""),
            known.get(status, HTTPStatus.BAD_GATEWAY),
        )


class RestService:
    """A service that the console asks by REST, or none. `absent` says how the console learns of one."""

    absent: ClassVar[str]

    def __init__(self, rest: Rest | None) -> None:
        self._rest = rest

    @property
    def is_there(self) -> bool:
        return self._rest is not None

    @property
    def _asked(self) -> Rest:
        if self._rest is None:
            raise RequestError(self.absent, HTTPStatus.NOT_FOUND)
        return self._rest


def _content(response: http.client.HTTPResponse) -> bytes:
    """Return an answer, or its first bytes if it is too large. Raises TimeoutError for one that comes too slowly."""
    content, until = bytearray(), time.monotonic() + SECONDS_MAX
    while len(content) <= ANSWER_BYTES_MAX and (piece := response.read1(1 << 16)):
        content += piece
        if time.monotonic() > until:
            raise TimeoutError(f"its answer takes more than {SECONDS_MAX:g} s")
    return bytes(content)
