"""Lookups that any replica may answer: the order in which the client asks replicas."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.errors import ConnectionFailed
from headrace.tablelayer.client.read import bucket_requests
from headrace.tablelayer.client.read.answers import LookupResult
from headrace.tablelayer.client.read.reader import Reader
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath

LEADER, ONE, OTHER = 1, 2, 3
DEFINITION = TableDefinition(
    TablePath("default", "t"),
    parse_columns("k INT, v INT, PRIMARY KEY (k)"),
    bucket_key=("k",),
    bucket_count=1,
).with_id(uuid.uuid4())
ROW = pa.RecordBatch.from_pylist([{"k": 1, "v": 5}], schema=pa.schema([("k", pa.int32()), ("v", pa.int32())]))
Answer = Callable[[int, m.LookupRequest], Any]


class Brokers(Cluster):
    """Three brokers with a replica each of bucket 0, whose answers the test sets."""

    def __init__(self, answer: Answer, **config: Any) -> None:
        super().__init__(
            "127.0.0.1:1", ClientConfig(**{"lookup_from": "any", "retry_backoff_ms": 1, **config})
        )
        self.answer = answer
        self.asked: list[tuple[int, int]] = []
        self.leader_id = LEADER
        self._spread = 1
        """So that the first of the three in order that is asked is broker 2."""

    async def send(self, message: Any, response: Any, *, node_id: int | None = None, **_: Any) -> Any:
        if node_id is None:
            return MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=each, host="h", port=each, rack=f"rack-{each}")
                    for each in (LEADER, ONE, OTHER)
                ],
                topics=[
                    MetadataResponseTopic(
                        name="default.t",
                        partitions=[
                            MetadataResponsePartition(
                                partition_index=0,
                                leader_id=self.leader_id,
                                replica_nodes=[LEADER, ONE, OTHER],
                                isr_nodes=[OTHER, LEADER, ONE],
                            )
                        ],
                    )
                ],
            )
        self.asked.append((node_id, message.staleness_ms_max))
        result = self.answer(node_id, message)
        if asyncio.iscoroutine(result):
            result = await result
        return m.LookupResponse(buckets=[result])

    async def look(self, **options: Any) -> LookupResult:
        keys = pa.table({"k": pa.array([1], pa.int32())})
        return await Reader(self, DEFINITION).lookup(keys, None, **options)

    @property
    def whom(self) -> list[int]:
        return [node_id for node_id, _ in self.asked]


def found(staleness_ms: int = 0) -> m.LookupResult:
    return m.LookupResult(bucket=0, found=b"\1", rows=encode_ipc(ROW), staleness_ms=staleness_ms)


def refused(code: int = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> m.LookupResult:
    return m.LookupResult(bucket=0, error_code=int(code), error_message="too old")


async def test_a_bounded_stale_lookup_asks_one_replica() -> None:
    brokers = Brokers(lambda *_: found(120), lookup_max_staleness_ms=700)
    result = await brokers.look()
    rows_found, rows = result
    assert (rows_found.tolist(), rows.to_pylist()) == ([True], ROW.to_pylist())
    assert (result.staleness_ms, brokers.asked) == (120, [(ONE, 700)])


async def test_the_leader_is_asked_by_default_and_for_writes() -> None:
    brokers = Brokers(lambda *_: found(), lookup_from="leader")
    await brokers.look()
    assert brokers.asked == [(LEADER, -1)]
    brokers = Brokers(lambda *_: found())
    await brokers.look(insert_if_absent=True)
    assert brokers.asked == [(LEADER, -1)]
    with pytest.raises(ValueError, match="lookup_from is 'all'"):
        ClientConfig(lookup_from="all")


async def test_a_replica_on_the_clients_rack_is_asked_else_any() -> None:
    brokers = Brokers(lambda *_: found(), client_rack="rack-3")
    await brokers.look()
    assert brokers.whom == [OTHER]
    brokers = Brokers(lambda *_: found(), client_rack="rack-9")
    await brokers.look()
    assert brokers.whom == [ONE]
    asked = set()
    for spread in range(3):
        brokers._spread = spread
        asked.add((await brokers.replicas("default.t", 0, Deadline(1000)))[0][0])
    assert asked == {LEADER, ONE, OTHER}


async def test_when_a_replica_cannot_answer_the_leader_is_asked_at_once() -> None:
    for code in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        TableErrorCode.UNKNOWN_SCHEMA_ID,
    ):
        brokers = Brokers(lambda node, _, code=code: found() if node == LEADER else refused(code))
        assert (await brokers.look()).staleness_ms == 0
        assert brokers.whom == [ONE, LEADER]
        await brokers.look()
        assert brokers.whom == [ONE, LEADER, ONE, LEADER], "it may be able to by then"


async def test_replicas_answer_while_there_is_no_leader() -> None:
    def lost(node: int, _: Any) -> m.LookupResult:
        if node == LEADER:
            raise ConnectionFailed("gone")
        return refused() if node == ONE else found(9)

    brokers = Brokers(lost)
    assert (await brokers.look()).staleness_ms == 9
    assert brokers.whom == [ONE, LEADER, OTHER]
    await brokers.look()
    assert brokers.whom[3:] == [ONE, OTHER], "a silent broker is asked last for a while"
    brokers.leader_id = -1
    brokers.forget_routes("default.t")
    await brokers.look()
    assert brokers.whom[5:] == [ONE, OTHER]


async def test_a_silent_replica_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_requests, "_ONE_OF_SEVERAL_MS", 20)

    async def never() -> Any:
        await asyncio.Event().wait()

    brokers = Brokers(lambda node, _: never() if node == ONE else found())
    await brokers.look()
    assert brokers.whom == [ONE, LEADER]


async def test_all_replicas_are_asked_again_until_the_timeout() -> None:
    times = 0

    def in_the_end(*_: Any) -> m.LookupResult:
        nonlocal times
        times += 1
        return refused() if times <= 4 else found()

    brokers = Brokers(in_the_end)
    await brokers.look()
    assert brokers.whom == [ONE, LEADER, OTHER, ONE, LEADER]
    brokers = Brokers(lambda *_: refused(), delivery_timeout_ms=50)
    with pytest.raises(KafkaError, match="too old"):
        await brokers.look()


async def test_a_permanent_error_of_the_leader_is_raised() -> None:
    brokers = Brokers(lambda *_: refused(TableErrorCode.INVALID_KEY))
    with pytest.raises(TableError, match="too old"):
        await brokers.look()
    assert brokers.whom == [ONE, LEADER]
