"""All routes of the console: what they refuse, and their document. No server is asked."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from headrace.tablelayer.console.access import Access
from headrace.tablelayer.tests.console.test_console import Client, client_of

TOKEN = {"authorization": "Bearer t"}
JSON = {"content-type": "application/json"}
READS = {"/api/sql", "/api/sql/plan"}
"""Routes of POST that only read."""


class Untouched:
    """A connection that nothing may use."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the connection's {name} was used")


def console(*, writes: bool) -> Client:
    return client_of(Untouched(), Access(token="t"), writes=writes)  # type: ignore[arg-type]


def routes(client: Client) -> list[tuple[str, str]]:
    """Methods and paths of the document, and those outside of it."""
    document = client.get("/openapi.json", headers=TOKEN).json()["paths"]
    found = [(method.upper(), path) for path, methods in document.items() for method in methods]
    return [*found, *(("GET", path) for path in ("/", "/console.js", "/openapi.json", "/api/about"))]


def ask(client: Client, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    content = None if method == "GET" else b"{}"
    return client.request(method, re.sub(r"{\w+}", "x", path), headers=headers, content=content)


def test_only_reading_unless_writes_are_allowed() -> None:
    client = console(writes=False)
    checked = 0
    for method, path in routes(client):
        if method == "GET" or path in READS:
            continue
        answer = ask(client, method, path, {**TOKEN, **JSON})
        assert (answer.status_code, "--allow-writes" in answer.text) == (403, True), (method, path)
        checked += 1
    assert checked >= 16


def test_nothing_without_the_token_nor_from_another_page() -> None:
    client = console(writes=True)
    for method, path in routes(client):
        refused = ask(client, method, path, JSON)
        assert (refused.status_code, refused.text.count("authentication")) == (401, 1), (method, path)
        if method == "GET":
            continue
        foreign = {**TOKEN, **JSON, "origin": "http://evil.example"}
        assert ask(client, method, path, foreign).status_code == 403, (method, path)
        form = {**TOKEN, "content-type": "application/x-www-form-urlencoded"}
        assert ask(client, method, path, form).status_code == 415, (method, path)
        assert ask(client, method, path, TOKEN).status_code == 415, (method, path)


def test_a_body_that_does_not_fit_is_refused_before_anything_is_done() -> None:
    client = console(writes=True)
    for method, path in routes(client):
        if method == "GET":
            continue
        for content in (b'{"no_such_field": 1}', b"[]", b"{", b"\xff", b"[" * 100_000):
            answer = client.request(
                method, re.sub(r"{\w+}", "x", path), headers={**TOKEN, **JSON}, content=content
            )
            assert (answer.status_code, "the request" in answer.json()["error"]) == (400, True), (
                path,
                content,
            )


def test_the_document_describes_every_route() -> None:
    document = console(writes=False).get("/openapi.json", headers=TOKEN).json()
    operations = [
        (method, path, one) for path, each in document["paths"].items() for method, one in each.items()
    ]
    assert len({one["operationId"] for _, _, one in operations}) == len(operations) >= 40
    for method, path, one in operations:
        assert one["summary"].endswith("."), path
        assert ("requestBody" in one) == (method != "get"), path
        assert ("description" in one) == (method != "get" and path not in READS), path
        assert {each["name"] for each in one["parameters"] if each["in"] == "path"} == set(
            re.findall(r"{(\w+)}", path)
        )
        assert all(each["description"].endswith(".") for each in one["parameters"] if each["in"] == "query")
    schemas = document["components"]["schemas"]
    assert schemas["NewTopic"]["properties"]["partitions"]["anyOf"][0]["maximum"] == 10_000
    assert all(each["additionalProperties"] is False for each in schemas.values())


@pytest.mark.parametrize("path", ["/api/schemas", "/api/schemas/x", "/api/connectors", "/api/connectors/x"])
def test_programs_that_are_not_configured_are_said_so(path: str) -> None:
    client = client_of(Untouched())  # type: ignore[arg-type]
    answer = client.get(path)
    assert (answer.status_code, "start it with --" in answer.json()["error"]) == (404, True)
    about = client.get("/api/about").json()
    assert (about["registry"], about["connect"]) == (False, False)
