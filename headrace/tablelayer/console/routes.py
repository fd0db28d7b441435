"""REST endpoints: declared by a decorator of the function that answers, from whose signature all the rest is computed.

The names in the path and the other arguments are parameters, `body` is the request's body. The first paragraph of the
docstring describes the endpoint. Routes, the checks of requests and the OpenAPI document follow.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", bool: "boolean"}
_MARK: Final = "_endpoint"
_F = TypeVar("_F", bound=Callable[..., Any])

Text = Annotated[str, msgspec.Meta(min_length=1)]
Rows = Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=1000)]
"""JSON values as they were sent: their numbers keep all their digits."""


class RequestError(Exception):
    """A mistake in a request. The message is a sentence for its author."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON object of a request."""


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of the query. `default` is used if it is left out; `is_needed`: there is none."""

    name: str
    doc: str
    type: type
    default: Any
    is_needed: bool


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint. `handle` gets the path's parts and the parameters by name, and a `body`. It may block."""

    method: str
    path: str
    doc: str
    handle: Callable[..., Any]
    parameters: Sequence[Parameter]
    body: type[Body] | None
    writes: bool
    is_query: bool
    """Whether a limited number of such requests runs at a time."""
    streams: bool
    """Whether the answer is a live tail, of server-sent events: `handle` returns the function that reads."""

    @property
    def path_names(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    def arguments(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Parse the parameters of a query. Raises RequestError."""
        known = {each.name: each for each in self.parameters}
        for name in query:
            if name not in known:
                raise RequestError(
                    f"there is no parameter {name!r}; the parameters are: {', '.join(known) or 'none'}"
                )
        return {name: _read(each, query.get(name)) for name, each in known.items()}

    def read(self, content: bytes) -> Body:
        """Return the body of a request. Raises RequestError."""
        assert self.body is not None
        try:
            return msgspec.json.decode(content, type=self.body)
        except msgspec.ValidationError as error:
            fields = ", ".join(each.name for each in msgspec.structs.fields(self.body))
            raise RequestError(f"the request does not fit: {error}; its fields are: {fields}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"the request is not JSON: {error}") from None


def get(path: str, *, streams: bool = False) -> Callable[[_F], _F]:
    """Declare a function that answers GET and only reads."""
    return _declared("GET", path, streams=streams)


def post(path: str, *, is_query: bool = False) -> Callable[[_F], _F]:
    """Declare a function that answers POST. It changes something, unless it is a query."""
    return _declared("POST", path, is_query=is_query)


def delete(path: str) -> Callable[[_F], _F]:
    """Declare a function that answers DELETE."""
    return _declared("DELETE", path)


def _declared(method: str, path: str, **more: bool) -> Callable[[_F], _F]:
    def mark(function: _F) -> _F:
        setattr(function, _MARK, (method, path, more))
        return function

    return mark


def endpoints_of(*views: object) -> list[Endpoint]:
    """Return the endpoints that the methods of some objects declare, in their order."""
    return [each for view in views for each in _endpoints(view)]


def _endpoints(view: object) -> Iterator[Endpoint]:
    for name, function in vars(type(view)).items():
        if (mark := getattr(function, _MARK, None)) is None:
            continue
        method, path, more = mark
        hints = get_type_hints(function, include_extras=True)
        in_path = re.findall(r"{(\w+)}", path)
        parameters = [
            _parameter(each, hints[each.name])
            for each in list(inspect.signature(function).parameters.values())[1:]
            if each.name not in (*in_path, "body")
        ]
        summary = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        is_query = more.get("is_query", False)
        yield Endpoint(
            method,
            path,
            summary,
            getattr(view, name),
            parameters,
            hints.get("body"),
            writes=method != "GET" and not is_query,
            is_query=is_query,
            streams=more.get("streams", False),
        )


def _parameter(given: inspect.Parameter, hint: Any) -> Parameter:
    assert get_origin(hint) is Annotated, f"parameter {given.name} needs a description"
    kind, doc = get_args(hint)
    (kind,) = [each for each in get_args(kind) or (kind,) if each is not type(None)]
    is_needed = given.default is inspect.Parameter.empty
    return Parameter(given.name, doc, kind, None if is_needed else given.default, is_needed)


def _read(parameter: Parameter, text: str | None) -> Any:
    if text is None or text == "":
        if parameter.is_needed:
            raise RequestError(f"give {parameter.name}: {parameter.doc}")
        return parameter.default
    if parameter.type is int:
        try:
            return int(text)
        except ValueError:
            raise RequestError(f"{parameter.name} is {text[:100]!r}: it must be a whole number") from None
    if parameter.type is bool:
        if text not in ("true", "false"):
            raise RequestError(f"{parameter.name} is {text[:100]!r}: it must be true or false")
        return text == "true"
    return text


def openapi(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    bodies = [each.body for each in endpoints if each.body is not None]
    schemas, components = msgspec.json.schema_components(
        dict.fromkeys(bodies), ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(dict.fromkeys(bodies), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        operation: dict[str, Any] = {
            "summary": each.doc,
            "operationId": f"{each.method.lower()}_"
            + "_".join(part.strip("{}") for part in each.path.strip("/").split("/")),
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in each.path_names
            ]
            + [
                {
                    "name": one.name,
                    "in": "query",
                    "required": one.is_needed,
                    "description": one.doc,
                    "schema": {"type": _TYPES[one.type]}
                    | ({} if one.default is None else {"default": one.default}),
                }
                for one in each.parameters
            ],
            "responses": {
                "200": {
                    "description": "The result.",
                    "content": {"text/event-stream" if each.streams else "application/json": {"schema": {}}},
                },
                "4XX": {"$ref": "#/components/responses/Error"},
            },
        }
        if each.body is not None:
            content = {"application/json": {"schema": schema_of[each.body]}}
            operation["requestBody"] = {"required": True, "content": content}
        if each.writes:
            operation["description"] = "Only if the console runs with --allow-writes."
        paths.setdefault(each.path, {})[each.method.lower()] = operation
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                "Error": {
                    "description": "The error, as a sentence.",
                    "content": {"application/json": {"schema": error}},
                }
            },
        },
    }
