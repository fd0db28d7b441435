"""Turn a frame into the parts of its answer: header, version, body, handler, errors.

This is the one place where exceptions become error codes:

| what a handler raises | what happens |
|---|---|
| KafkaError | the response carries its code, and its message where the version has a place for it |
| DecodeError | the connection is closed: what the peer sends cannot be understood any more |
| CloseConnection | the connection is closed (a failed produce with acks=0) |
| anything else | UNKNOWN_SERVER_ERROR, and a traceback in the log; the broker lives |

Before a client is authenticated, only public APIs answer it and no other request is decoded. Rights on the cluster that
an API requires (`broker.security.requirement`) are checked here, before its handler.

Requests that a connection repeats are answered by `repeats`, if the handler supports it.

A long request does not hold up others. Frames above AT_ONCE_BYTES_MAX are decoded in slices (`broker.runtime.slices`).
Their answers, and answers that were awaited, are encoded in slices. A handler that loops over a client's list is a
generator, which is run in slices. Nearly every request ends within its first slice and is answered in the same call.

A request with an unknown key or version closes the connection, as Kafka does, except ApiVersions: it is
answered in version 0 with UNSUPPORTED_VERSION, so that the client can choose again (KIP-511).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable
from functools import partial
from struct import Struct
from types import GeneratorType
from typing import Any, Final, cast

import msgspec

from headrace.broker.api.repeats import Repeats
from headrace.broker.api.throttling import Throttling
from headrace.broker.net.reply import Answer, CloseConnection, Part, Peer, Pending
from headrace.broker.requests.answers import ANSWER_BYTES_MAX, answer_too_large
from headrace.broker.requests.declaration import ApiDeclaration, Encodable, Handler, Repeat, RequestContext
from headrace.broker.runtime.ports import SystemClock
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.runtime.usage import charged
from headrace.broker.security.audit import AuditLog
from headrace.broker.security.principal import ANONYMOUS, Session
from headrace.broker.security.quotas.quotas import Quotas
from headrace.broker.security.rights import CLUSTER_NAME, OPEN, Authorizer, ResourceType
from headrace.protocol.budget import DecodeBudget
from headrace.protocol.errors import DecodeError, EncodeError, EncodeTooLarge, ErrorCode, KafkaError
from headrace.protocol.headers import decode_request_header, encode_response_header, peek_request
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.schema import ApiMessage

logger = logging.getLogger("headrace.api")

_API_VERSIONS_KEY = 18
_KEY: Final = Struct(">h")
MEMORY_PER_BYTE, MEMORY_BASE = 24, 1 << 20
"""Memory that decoding a request may allocate: 24 times its frame plus 1 MiB. Positions without metadata, 14 bytes each
in an OffsetCommit, take 16 times as much; a frame of only empty elements, which could take a hundred times its size, is
refused.
"""
MEMORY_MAX = 256 << 20
"""The same limit for the largest frames; records are not decoded and cost nothing."""
AT_ONCE_BYTES_MAX = 2048
"""Maximum size in bytes of a frame that is decoded in one go: some 200 elements, a fifth of a millisecond."""


class _Route(msgspec.Struct, frozen=True):
    """Everything known beforehand about one version of one API."""

    declaration: ApiDeclaration
    request: type[ApiMessage]
    response: type[ApiMessage]
    handler: Handler
    request_header_version: int
    response_header_version: int


class Dispatcher:
    """An Answerer (`broker.net.reply`) for the declared APIs."""

    def __init__(
        self,
        declarations: Iterable[ApiDeclaration],
        slices: Slices | None = None,
        authorizer: Authorizer = OPEN,
        audit: AuditLog | None = None,
        quotas: Quotas | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Raises ValueError when two declarations claim one API key."""
        self._slices = slices or Slices()
        self._authorizer = authorizer
        self._audit = audit
        declarations = tuple(declarations)
        self._quotas = quotas
        self._clock = clock = clock or SystemClock().monotonic
        self._throttling = Throttling(quotas or Quotas(clock), declarations, clock)
        self._charged = partial(self.__call__, is_charged=True)
        self._declarations: dict[int, ApiDeclaration] = {}
        self._routes: dict[tuple[int, int], _Route] = {}
        for declaration in declarations:
            if declaration.key in self._declarations:
                raise ValueError(f"API key {declaration.key} is declared twice")
            self._declarations[declaration.key] = declaration
            for version in range(declaration.min_version, declaration.max_version + 1):
                self._routes[declaration.key, version] = _Route(
                    declaration,
                    declaration.request,
                    declaration.response,
                    declaration.handler,
                    declaration.request.header_version(version),
                    declaration.response.header_version(version),
                )

    @property
    def declarations(self) -> Collection[ApiDeclaration]:
        return self._declarations.values()

    def __call__(self, peer: Peer, frame: bytes | memoryview, is_charged: bool = False) -> Answer:
        """Answer a frame. `is_charged`: the caller counts the request's use of quotas."""
        if self._quotas is not None and self._quotas.is_set and not is_charged:
            return self._throttling.answer(self._charged, peer, frame)
        session = peer.session
        if session is None:
            session = self._unauthenticated(peer, frame)
        elif peer.memory is not None and type(frame) is bytes and peer.memory.session is session:
            repeated: list[Part] | None = peer.memory.answer(frame)
            if repeated is not None:
                return repeated
        try:
            api_key, version, correlation_id = peek_request(frame)
            route = self._routes.get((api_key, version))
            if route is None:
                return self._unknown(api_key, version, correlation_id)
            header, position = decode_request_header(frame, route.request_header_version)
            context = RequestContext(
                api_key,
                version,
                correlation_id,
                header.client_id,
                peer.host,
                peer.connection_id,
                peer.listener,
                session,
                self._authorizer,
                self._audit,
                self._quotas,
            )
            is_short = len(frame) <= AT_ONCE_BYTES_MAX
            budget = DecodeBudget(min(MEMORY_PER_BYTE * len(frame) + MEMORY_BASE, MEMORY_MAX))
            if is_short:
                request = route.request.decode(frame, version, budget, position, ignore_rest=True)
            else:
                work = route.request.decode_in_slices(frame, version, budget, position, ignore_rest=True)
                is_decoded, decoded = self._slices.start(work)
                if not is_decoded:
                    return _pending(route, charged(self._decoded_later(route, context, decoded), self._clock))
                request = cast("ApiMessage", decoded)
        except DecodeError as error:
            raise CloseConnection(f"a request cannot be decoded: {error}") from None
        try:
            response = self._handle(route, context, request)
            if _is_response(route, response):
                repeat = route.declaration.repeat
                if response is not None and repeat is not None and type(frame) is bytes:
                    self._learn(peer, repeat(context, request), context, request, frame, position)
                if is_short:
                    return _encode(route, context, cast("Encodable | None", response))
                is_encoded, parts = self._slices.start(_encoding(route, context, response))
                if is_encoded:
                    return cast("list[Part] | None", parts)
                return _pending(
                    route, charged(self._encoded_later(route, context, request, parts), self._clock)
                )
        except Exception as error:  # noqa: BLE001 - the boundary: see the table in the module's docstring
            is_told, told = self._slices.start(self._failing(route, context, request, error))
            return cast("list[Part]", told) if is_told else _pending(route, cast("Awaitable[Any]", told))
        later = asyncio.ensure_future(
            charged(self._answered_later(route, context, request, response), self._clock)
        )
        later.add_done_callback(lambda _: _drop(response))  # `later` may be cancelled before it has begun
        return _pending(route, later)

    def _handle(self, route: _Route, context: RequestContext, request: ApiMessage) -> Any:
        """Return the response, or an awaitable of it."""
        operation = route.declaration.authorize.of_cluster
        if operation is not None:
            context.require(operation, ResourceType.CLUSTER, CLUSTER_NAME)
        response = route.handler(context, request)
        if type(response) is GeneratorType:
            _, response = self._slices.start(response)
        return response

    def _unauthenticated(self, peer: Peer, frame: bytes | memoryview) -> Session:
        """Return the session for a public API. Raises CloseConnection for all others, whatever else the frame holds."""
        if len(frame) < _KEY.size:
            raise CloseConnection("a request cannot be decoded: it ends before its API key")
        (key,) = _KEY.unpack_from(frame)
        declaration = self._declarations.get(key)
        if declaration is None or not declaration.authorize.is_public:
            raise CloseConnection(f"API key {key} before authentication")
        return Session(ANONYMOUS, peer.listener)

    async def _decoded_later(
        self, route: _Route, context: RequestContext, decoding: Any
    ) -> list[Part] | None:
        try:
            request = await decoding
        except DecodeError as error:
            raise CloseConnection(f"a request cannot be decoded: {error}") from None
        try:
            response = self._handle(route, context, request)
        except Exception as error:  # noqa: BLE001 - as above
            return await self._slices.run(self._failing(route, context, request, error))
        return await self._answered_later(route, context, request, response)

    async def _answered_later(
        self, route: _Route, context: RequestContext, request: ApiMessage, response: Any
    ) -> list[Part] | None:
        try:
            while not _is_response(route, response):
                if type(response) is GeneratorType:
                    _, response = self._slices.start(response)
                    continue
                try:
                    response = await response
                except asyncio.CancelledError:
                    _drop(response)
                    raise
            return await self._slices.run(_encoding(route, context, response))
        except Exception as error:  # noqa: BLE001 - as above
            return await self._slices.run(self._failing(route, context, request, error))

    async def _encoded_later(
        self, route: _Route, context: RequestContext, request: ApiMessage, encoding: Any
    ) -> list[Part] | None:
        try:
            parts: list[Part] | None = await encoding
        except Exception as error:  # noqa: BLE001 - as above
            return await self._slices.run(self._failing(route, context, request, error))
        return parts

    def _learn(
        self,
        peer: Peer,
        repeat: Repeat | None,
        context: RequestContext,
        request: ApiMessage,
        frame: bytes,
        position: int,
    ) -> None:
        if repeat is not None:
            if peer.memory is None or peer.memory.session is not context.session:
                peer.memory = Repeats(context.session)
            peer.memory.learn(frame, position, request, context.api_version, repeat)

    def _failing(
        self, route: _Route, context: RequestContext, request: ApiMessage, error: Exception
    ) -> Work[list[Part]]:
        name = route.request.__name__
        if isinstance(error, CloseConnection):
            raise error
        if isinstance(error, DecodeError):
            raise CloseConnection(f"{name} cannot be decoded: {error}") from None
        if isinstance(error, EncodeTooLarge):
            error = answer_too_large()
        if not isinstance(error, KafkaError):
            logger.error(
                "%s version %d of client %r failed",
                name,
                context.api_version,
                context.client_id,
                exc_info=error,
            )
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed; its log says how")
        response = yield from failed_response(route.declaration, request, context.api_version, error)
        if response is None:
            raise CloseConnection(f"{name} failed and its response has no field for the error: {error}")
        try:
            return (yield from _encoding(route, context, response)) or []
        except EncodeError as second:
            logger.error("cannot send the failure of %s to its client: %s", name, second)
            raise CloseConnection(f"{name} failed: {error}") from None

    def _unknown(self, api_key: int, version: int, correlation_id: int) -> list[Part]:
        declaration = self._declarations.get(api_key)
        if declaration is None:
            raise CloseConnection(f"API key {api_key} (version {version}) is unknown")
        if api_key != _API_VERSIONS_KEY:
            raise CloseConnection(
                f"{declaration.request.__name__} version {version} is not supported; "
                f"supported versions are {declaration.min_version} to {declaration.max_version}"
            )
        response = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                ApiVersion(
                    api_key=api_key,
                    min_version=declaration.min_version,
                    max_version=declaration.max_version,
                )
            ],
        )
        return [encode_response_header(correlation_id, 0), response.encode(0)]


def failed_response(
    declaration: ApiDeclaration, request: ApiMessage, version: int, error: KafkaError
) -> Work[ApiMessage | None]:
    """Return the response that carries `error`, or None if the API has no field for one."""
    if declaration.on_error is not None:
        answer = declaration.on_error(request, version, error)
        return (yield from answer) if isinstance(answer, Generator) else answer
    fields = declaration.response.FIELDS
    if "error_code" not in fields:
        return None
    response = declaration.response(error_code=int(error.code))
    if "error_message" in fields:
        response.error_message = error.message  # type: ignore[attr-defined]
    return response


def _is_response(route: _Route, response: Any) -> bool:
    return type(response) is route.response or response is None or hasattr(response, "encode_parts")


def _drop(awaited: Any) -> None:
    """End abandoned work: `awaited` itself, and a coroutine that it returned and that was not begun."""
    if isinstance(awaited, asyncio.Future):
        if not awaited.done():
            awaited.cancel()
        elif not awaited.cancelled() and awaited.exception() is None:
            _drop(awaited.result())
    elif isinstance(awaited, Coroutine):
        awaited.close()


def _pending(route: _Route, outcome: Awaitable[Any]) -> Pending:
    return Pending(outcome, _told, route.declaration.cancel_on_disconnect)


def _told(outcome: asyncio.Future[Any]) -> list[Part] | None:
    try:
        parts: list[Part] | None = outcome.result()
    except asyncio.CancelledError:
        raise CloseConnection("its request was cancelled") from None
    return parts


def _encode(route: _Route, context: RequestContext, response: Encodable | None) -> list[Part] | None:
    if response is None:
        return None
    header = encode_response_header(context.correlation_id, route.response_header_version)
    parts = response.encode_parts(context.api_version)
    if type(parts[0]) is bytes:
        parts[0] = header + parts[0]
    else:
        parts.insert(0, header)
    return parts


def _encoding(route: _Route, context: RequestContext, response: Any) -> Work[list[Part] | None]:
    """`_encode` in slices."""
    if response is None or not isinstance(response, ApiMessage):
        return _encode(route, context, response)
    parts = yield from response.encode_in_slices(context.api_version, ANSWER_BYTES_MAX)
    parts.insert(0, encode_response_header(context.correlation_id, route.response_header_version))
    return parts
