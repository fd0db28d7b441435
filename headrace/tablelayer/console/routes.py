"""What an endpoint of the REST interface is; routes and the OpenAPI document are computed from the declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", bool: "boolean"}


class RequestError(Exception):
    """What whoever asked did wrong, in a sentence."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Parameter(msgspec.Struct, frozen=True):
    """Of the query. `default` None: left out."""

    name: str
    doc: str
    type: type = str
    default: Any = None


class Endpoint(msgspec.Struct, frozen=True):
    """`handle` gets the parts of the path and the parameters by name, and `body` for a POST; it may block."""

    method: str
    path: str
    doc: str
    handle: Callable[..., Any]
    parameters: Sequence[Parameter] = ()
    writes: bool = False
    body: Mapping[str, Any] | None = None
    """JSON Schema of what is sent."""

    @property
    def path_names(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def arguments(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The parameters, read. Raises RequestError."""
        known = {each.name: each for each in self.parameters}
        for name in query:
            if name not in known:
                raise RequestError(f"there is no parameter {name!r}; there are: {', '.join(known) or 'none'}")
        return {name: _read(each, query.get(name)) for name, each in known.items()}


def _read(parameter: Parameter, text: str | None) -> Any:
    if text is None or text == "":
        return parameter.default
    if parameter.type is int:
        try:
            return int(text)
        except ValueError:
            raise RequestError(f"{parameter.name} is {text[:100]!r}; it has to be a whole number") from None
    if parameter.type is bool:
        if text not in ("true", "false"):
            raise RequestError(f"{parameter.name} is {text[:100]!r}; it has to be true or false")
        return text == "true"
    return text


def openapi(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
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
                    "description": "What was asked for.",
                    "content": {"application/json": {"schema": {}}},
                },
                "4XX": {"$ref": "#/components/responses/Error"},
            },
        }
        if each.body is not None:
            content = {"application/json": {"schema": each.body}}
            operation["requestBody"] = {"required": True, "content": content}
        if each.writes:
            operation["description"] = "Only where the console runs with --allow-writes."
        paths.setdefault(each.path, {})[each.method.lower()] = operation
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": version},
        "paths": paths,
        "components": {
            "responses": {
                "Error": {
                    "description": "What was wrong, in a sentence.",
                    "content": {"application/json": {"schema": error}},
                }
            }
        },
    }
