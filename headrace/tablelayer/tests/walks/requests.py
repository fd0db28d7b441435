"""The requests that `docs/internals/walks.md` follows, and a broker's calls for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from headrace.broker.net.poller import run_server
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.records import check
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.server.tables import LAKES, Tables
from headrace.tablelayer.tests.walks.trace import Call, TracedBroker, traced_broker, traced_leader
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

    rows = [row, *({"id": number, "name": "more"} for number in range(100, 120))]

    async def upsert() -> None:
        answer = await table.put(*(("+", each) for each in rows))
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

    for key_type in (0, 1):
        await _found(broker, key_type)

    async def heartbeat(epoch: int) -> None:
        answer = await broker.send(
            ConsumerGroupHeartbeatRequest(
                group_id="walk",
                member_id="member",
                member_epoch=epoch,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["plain"],
                topic_partitions=[],
            )
        )
        assert answer.error_code == 0, answer.error_message

    async def join_group() -> None:
        await heartbeat(0)

    async def leave_group() -> None:
        await heartbeat(-1)

    identity = InitProducerIdResponse()

    async def begin_transactions() -> None:
        nonlocal identity
        identity = await broker.send(
            InitProducerIdRequest(transactional_id="walk", transaction_timeout_ms=60_000), 4
        )
        assert identity.error_code == 0

    async def add_partition() -> None:
        answer = await broker.send(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="walk",
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="plain", partitions=[0])],
            ),
            3,
        )
        (topic,) = answer.results_by_topic_v3_and_below
        assert topic.results_by_partition[0].partition_error_code == 0

    async def commit_transaction() -> None:
        answer = await broker.send(
            EndTxnRequest(
                transactional_id="walk",
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                committed=True,
            ),
            4,
        )
        assert answer.error_code == 0

    return {
        "Produce to a plain topic": [produce],
        "Fetch from a plain topic": [fetch],
        "Upsert into a primary-key table": [upsert],
        "A JSON record into a primary-key table": [produce_json],
        "Lookup by primary key": [lookup],
        "A tiering round": [begin_round, commit_round, end_round],
        "A member joins a consumer group": [join_group, leave_group],
        "A transaction": [begin_transactions, add_partition, commit_transaction],
    }


async def _found(broker: DirectBroker, key_type: int) -> None:
    """Wait until the coordinator of groups (0) or transactions (1) has read its topic."""
    while True:
        answer = await broker.send(FindCoordinatorRequest(key="walk", key_type=key_type), 3)
        if answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
            assert answer.error_code == 0, answer.error_message
            return
        await asyncio.sleep(0.01)


def trace_requests(directory: Path) -> dict[str, list[Call]]:
    """Return the calls of each request, after the same request has been served once."""
    run_server(_send_each_once(directory / "first"))
    return {**run_server(_traced(directory / "traced")), **run_server(_replicated(directory / "replicated"))}


async def _send_each_once(directory: Path) -> None:
    """Without the tracer, so that no kernel is compiled under it, and records are checked as in a server that runs."""
    check.load()
    extension = TableExtension()
    async with direct_broker(directory, LAKES, extensions=[extension]) as broker:
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


async def _replicated(directory: Path) -> dict[str, list[Call]]:
    async with traced_leader(directory, "copied") as leader:

        async def produce() -> None:
            answer = await leader.produce("copied", [b"value"])
            assert answer.error_code == 0, answer.error_message

        return {"A replica's fetch": await _undisturbed(leader, [produce])}


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
