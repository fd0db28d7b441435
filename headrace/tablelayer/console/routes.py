"""Declarations of REST endpoints, from which routes and the OpenAPI document are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", bool: "boolean"}


class RequestError(Exception):
    """A mistake in a request. The message is a sentence for its author."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of the query. `default` is used if it is left out."""

    name: str
    doc: str
    type: type = str
    default: Any = None


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint. `handle` gets the path's parts and the parameters by name, and a `body`. It may block."""

    method: str
    path: str
    doc: str
    handle: Callable[..., Any]
    parameters: Sequence[Parameter] = ()
    writes: bool = False
    is_query: bool = False
    """Whether a limited number of such requests runs at a time."""
    streams: bool = False
    """Whether the answer is a live tail, of server-sent events: `handle` returns the function that reads."""
    body: Mapping[str, Any] | None = None
    """JSON Schema of the request's body."""

    @property
    def path_names(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def arguments(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Parse the parameters of a query. Raises RequestError."""
        known = {each.name: each for each in self.parameters}
        for name in query:
            if name not in known:
                raise RequestError(
                    f"there is no parameter {name!r}; the parameters are: {', '.join(known) or 'none'}"
                )
        return {name: _read(each, query.get(name)) for name, each in known.items()}


def _read(parameter: Parameter, text: str | None) -> Any:
    if text is None or text == "":
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
            content = {"application/json": {"schema": each.body}}
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
            "responses": {
                "Error": {
                    "description": "The error, as a sentence.",
                    "content": {"application/json": {"schema": error}},
                }
            }
        },
    }
