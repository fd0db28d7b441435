"""The APIs for a query: a session of SQL, the client's filter, REST, Flight SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pyarrow as pa
from pyarrow import flight

from headrace.tablelayer.cli.console import _plan, _query
from headrace.tablelayer.client import Connection, TableError, TableErrorCode
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.app import make_app
from headrace.tablelayer.console.history import History
from headrace.tablelayer.console.tables import Sql
from headrace.tablelayer.flight.messages import packed
from headrace.tablelayer.flight.server import FlightSql
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.sql.differential.reference import lines_of


@dataclass(frozen=True, slots=True)
class Doors:
    """A connection, a session with its database, and the functions that return a query's rows."""

    connection: Connection
    session: Session
    flight: Callable[[str], pa.Table]
    rest: Callable[[str], list[list[Any]]]

    def sql(self, text: str) -> list[str]:
        """Return the lines of the last statement's answer."""
        for answer in self.session.run(text):
            last = answer.rows
        return lines_of(last)

    def written(self, text: str) -> int:
        """Return the number of rows that a statement reports as written; 0 if it reports none."""
        for answer in self.session.run(text):
            count = answer.row_count
        return count or 0


@contextmanager
def open_doors(connection: Connection, database: str) -> Iterator[Doors]:
    """Flight SQL on a port of its own, REST without one; both with `database` named in the queries."""
    server = FlightSql(connection, Access(), "127.0.0.1", 0, "1")
    client = flight.connect(f"grpc://127.0.0.1:{server.port}")
    history = History(lambda: connection)
    app = make_app(
        connection,
        Sql(_query, _plan),
        Access(),
        allow_writes=False,
        version="1",
        server="here",
        history=history,
    )

    def by_flight(text: str) -> pa.Table:
        descriptor = flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=text))
        (endpoint,) = client.get_flight_info(descriptor).endpoints
        return client.do_get(endpoint.ticket).read_all()

    def by_rest(text: str) -> list[list[Any]]:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9380") as browser:
                return await browser.post("/api/sql", json={"query": text}, timeout=60)

        answer = asyncio.run(ask())
        assert answer.status_code == 200, answer.text
        rows: list[list[Any]] = answer.json()["rows"]
        return rows

    try:
        yield Doors(connection, Session(connection, database), by_flight, by_rest)
    finally:
        client.close()
        assert server.close(20)


def filter_is_taken(ask: Callable[[], Any]) -> Any:
    """Return the client's answer; None if it says that a filter cannot express the condition."""
    try:
        return ask()
    except TableError as error:
        if error.code is TableErrorCode.INVALID_FILTER:
            return None
        raise
