"""The requests that `docs/internals/walks.md` follows, and a broker's calls for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from headrace.broker.net.poller import run_server
from headrace.protocol.records import check
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.server.tables import Tables
from headrace.tablelayer.tests.walks.trace import Call, TracedBroker, traced_broker
from simulator.direct import DirectBroker, direct_broker

COLUMNS = "id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED"
BEFORE = 3
TIMES = 10


Requests = Sequence[Callable[[], Awaitable[None]]]
"""One walk: requests that are sent one after the other."""


async def requests(broker: DirectBroker, extension: TableExtension) -> dict[str, Requests]:
    """Return requests by the headings of the document. Each may be sent again and again, and checks its answer."""
    await broker.create_topic("plain")
    table = await Tables(broker, extension).create(COLUMNS)
    row = {"id": 1, "name": "one"}
    tiered = await Tables(broker, extension).create(COLUMNS, name="tiered", datalake_enabled="true")
    assert (await tiered.put(("+", row))).error_code == 0

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

    round_of_tiered = m.LakeBeginResponse()

    async def begin_round() -> None:
        nonlocal round_of_tiered
        asked = m.LakeBeginRequest(worker="walk", database="default", table="tiered", force=True)
        round_of_tiered = await broker.send(asked)
        assert round_of_tiered.granted, round_of_tiered.error_message

    async def commit_round() -> None:
        offsets = [m.LakeOffset(bucket=0, offset=1)]
        answer = await broker.send(
            m.LakeCommitRequest(
                table_id=tiered.table_id, epoch=round_of_tiered.epoch, snapshot_id=1, offsets=offsets
            )
        )
        assert answer.error_code == 0, answer.error_message

    async def end_round() -> None:
        answer = await broker.send(m.LakeEndRequest(table_id=tiered.table_id, epoch=round_of_tiered.epoch))
        assert answer.error_code == 0, answer.error_message

    return {
        "Produce to a plain topic": [produce],
        "Fetch from a plain topic": [fetch],
        "Upsert into a primary-key table": [upsert],
        "A JSON record into a primary-key table": [produce_json],
        "Lookup by primary key": [lookup],
        "A tiering round": [begin_round, commit_round, end_round],
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
        for walk in (await requests(broker, extension)).values():
            for request in walk:
                await request()


async def _traced(directory: Path) -> dict[str, list[Call]]:
    extension = TableExtension()
    async with traced_broker(directory, extension) as broker:
        return {
            name: await _undisturbed(broker, each)
            for name, each in (await requests(broker, extension)).items()
        }


async def _undisturbed(broker: TracedBroker, walk: Requests) -> list[Call]:
    """Return the shortest of many traces, after a few that find no row or nothing cached.

    Timers, and slices of work that end early because the machine is busy, only add calls.
    """
    traces = []
    for _ in range(BEFORE + TIMES):
        calls: list[Call] = []
        for request in walk:
            await request()
            calls += broker.calls
        traces.append(calls)
    return min(traces[BEFORE:], key=len)
