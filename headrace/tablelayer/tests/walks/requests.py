"""The five requests that `docs/internals/walks.md` follows, and a broker's calls for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.broker.net.poller import run_server
from headrace.protocol.records import check
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.server.tables import Tables
from headrace.tablelayer.tests.walks.trace import Call, TracedBroker, traced_broker
from simulator.direct import DirectBroker, direct_broker

COLUMNS = "id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED"
BEFORE = 3
TIMES = 10


async def requests(
    broker: DirectBroker, extension: TableExtension
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return requests by the headings of the document. Each may be sent again and again, and checks its answer."""
    await broker.create_topic("plain")
    table = await Tables(broker, extension).create(COLUMNS)
    row = {"id": 1, "name": "one"}

    async def produce() -> None:
        answer = await broker.produce("plain", [b"value"])
        assert answer.error_code == 0, answer.error_message

    async def fetch() -> None:
        answer = await broker.fetch("plain")
        assert answer.error_code == 0
        assert answer.records

    async def upsert() -> None:
        answer = await table.put(("+", row))
        assert answer.error_code == 0, answer.error_message

    async def produce_json() -> None:
        record = Record(b'{"id": 2}', b'{"id": 2, "name": "two"}', (), broker.context.clock.time_ms())
        answer = await broker.produce(table.definition.path.topic, build_batch([record]))
        assert answer.error_code == 0, answer.error_message

    async def lookup() -> None:
        assert await table.lookup({"id": 1}) == [row]

    return {
        "Produce to a plain topic": produce,
        "Fetch from a plain topic": fetch,
        "Upsert into a primary-key table": upsert,
        "A JSON record into a primary-key table": produce_json,
        "Lookup by primary key": lookup,
    }


def trace_requests(directory: Path) -> dict[str, list[Call]]:
    """Return the calls of each request, after the same request has been served once."""
    run_server(_send_each_once(directory / "first"))
    return run_server(_traced(directory / "traced"))


async def _send_each_once(directory: Path) -> None:
    """Without the tracer, so that no kernel is compiled under it, and records are checked as in a server that runs."""
    check.load()
    extension = TableExtension()
    async with direct_broker(directory, extensions=[extension]) as broker:
        for request in (await requests(broker, extension)).values():
            await request()


async def _traced(directory: Path) -> dict[str, list[Call]]:
    extension = TableExtension()
    async with traced_broker(directory, extension) as broker:
        return {
            name: await _undisturbed(broker, each)
            for name, each in (await requests(broker, extension)).items()
        }


async def _undisturbed(broker: TracedBroker, request: Callable[[], Awaitable[None]]) -> list[Call]:
    """Return the shortest of many traces, after a few that find no row or nothing cached.

    Timers, and slices of work that end early because the machine is busy, only add calls.
    """
    for _ in range(BEFORE):
        await request()
    traces = []
    for _ in range(TIMES):
        await request()
        traces.append(broker.calls)
    return min(traces, key=len)
