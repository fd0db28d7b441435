"""Lookups that any replica may answer: a follower's stated staleness is true."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.broker.security.rights import Operation, ResourceType
from headrace.broker.tests.security.people import SECURED, allow, client, revoke_all
from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.client.read.answers import nullable_schema
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.ipc import decode_answer, encode_ipc
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.server.bucket.standby import Standby
from headrace.tablelayer.tests.server.tables import Table, until
from headrace.tablelayer.tests.server.test_replicated_tables import (
    applied_at,
    created,
    extensions,
    follower_at,
    impatience,
    led,
    lookup_of,
    put,
    standby_at,
    state_of,
)
from simulator.cluster import DirectCluster, direct_cluster

__all__ = ["impatience"]
LONG_MS = 1 << 30
OFTEN = {"replica.fetch.wait.max.ms": "20"}


def at_most(table: Table, key: int, staleness_ms: int) -> m.LookupRequest:
    request = lookup_of(table, key)
    request.timeout_ms, request.staleness_ms_max = 0, staleness_ms
    return request


async def looked_up(
    cluster: DirectCluster, node_id: int, table: Table, key: int, staleness_ms: int = LONG_MS
) -> m.LookupResult:
    answer = await cluster.brokers[node_id].send(at_most(table, key, staleness_ms))
    assert answer.error_code == 0, answer.error_message
    found: m.LookupResult = answer.buckets[0]
    return found


def values(answer: Any, table: Table) -> list[int | None]:
    assert answer.error_code == 0, answer.error_message
    schema = nullable_schema(table.definition.schema.columns)
    found: list[int | None] = decode_answer(answer.rows, schema).column("v").to_pylist()
    return found


def knows_its_time(cluster: DirectCluster, node_id: int, offset: int) -> bool:
    return (
        applied_at(cluster, node_id) >= offset
        and follower_at(cluster, node_id).safe_time.at(offset) is not None
    )


async def test_a_follower_answers_a_bounded_stale_lookup_with_its_staleness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, extensions, config=OFTEN) as cluster:
        columns = "a INT, k INT, v INT, PRIMARY KEY (a, k)"
        table = await led(cluster, await created(cluster, columns, bucket_key=("a",)), {1, 2, 3})
        leader = state_of(cluster).leader
        other = min({1, 2, 3} - {leader})
        rows = [("+", {"a": 1, "k": key, "v": 10 * key}) for key in (1, 2)]
        assert (await table.put(*rows)).error_code == 0
        await until(lambda: knows_its_time(cluster, other, 2))
        schema = table.definition.schema
        keys = pa.RecordBatch.from_pylist(
            [{"a": 1, "k": 2}, {"a": 1, "k": 3}], schema=pa.schema(schema.arrow())
        ).select(["a", "k"])
        part = m.LookupBucket(bucket=0, keys=encode_ipc(keys))

        async def ask(node_id: int, staleness_ms_max: int, **more: Any) -> Any:
            request = m.LookupRequest(
                table_id=table.table_id, buckets=[part], staleness_ms_max=staleness_ms_max, **more
            )
            return (await cluster.brokers[node_id].send(request)).buckets[0]

        answer = await ask(other, LONG_MS)
        assert (answer.error_code, bytes(answer.found)) == (0, b"\1\0")
        assert values(answer, table) == [20, None]
        assert (answer.staleness_ms > 0, answer.applied_offset) == (True, 2)
        answer = await ask(leader, LONG_MS)
        assert (bytes(answer.found), answer.staleness_ms, answer.applied_offset) == (b"\1\0", 0, -1)
        for more in ({"staleness_ms_max": -1}, {"staleness_ms_max": LONG_MS, "insert_if_absent": True}):
            refused = await ask(other, timeout_ms=1000, **more)
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        before = m.LookupRequest(table_id=table.table_id, buckets=[part], staleness_ms_max=LONG_MS)
        refused = (await cluster.brokers[other].send(before, 2)).buckets[0]
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
            "clients that do not know of it hear no news"
        )
        led_answer = (await cluster.brokers[leader].send(before, 2)).buckets[0]
        assert (bytes(led_answer.found), led_answer.staleness_ms) == (b"\1\0", 0)
        refused = await ask(other, 0)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "the reader allows 0 ms" in refused.error_message

        prefixes = m.PrefixLookupBucket(bucket=0, prefixes=encode_ipc(keys.select(["a"]).slice(0, 1)))
        request = m.PrefixLookupRequest(table_id=table.table_id, buckets=[prefixes], staleness_ms_max=LONG_MS)
        grouped = (await cluster.brokers[other].send(request)).buckets[0]
        assert values(grouped, table) == [10, 20]
        assert (grouped.staleness_ms > 0, grouped.applied_offset) == (True, 2)
        request.staleness_ms_max = -1
        refused = (await cluster.brokers[other].send(request)).buckets[0]
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

        metadata = cluster.brokers[other].context.metadata
        with monkeypatch.context() as patch:
            patch.setattr(type(metadata), "is_fenced", property(lambda self: self is metadata))
            refused = await ask(other, LONG_MS)
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        with monkeypatch.context() as patch:
            patch.setattr(standby_at(cluster, other), "_cut_to", 1)
            refused = await ask(other, LONG_MS)
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await ask(other, LONG_MS)).error_code == 0


async def test_r13_4_writes_acknowledged_before_the_staleness_bound_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule holds although stores apply late, answers are read meanwhile, and a leader ends."""
    apply, may_apply = Standby._apply, asyncio.Event()

    async def late(self: Standby) -> None:
        await may_apply.wait()
        await apply(self)

    monkeypatch.setattr(Standby, "_apply", late)
    loop = asyncio.get_running_loop()
    acknowledged: list[tuple[float, int]] = []
    bounds: list[int] = []

    async with direct_cluster(tmp_path, 3, extensions, config=OFTEN) as cluster, AsyncExitStack() as held:
        may_apply.set()
        made = await created(cluster, "k INT, v INT, PRIMARY KEY (k)")
        table = await led(cluster, made, {1, 2, 3})
        leader = state_of(cluster).leader
        others = sorted({1, 2, 3} - {leader})

        async def write(at: Table, number: int) -> None:
            await put(at, {0: number})
            acknowledged.append((loop.time(), number))

        async def look(node_id: int) -> m.LookupResult:
            asked_at = loop.time()
            answer = await looked_up(cluster, node_id, made, 0)
            if not answer.error_code:
                bounds.append(answer.staleness_ms)
                as_of = asked_at - answer.staleness_ms / 1000
                least = max((number for time, number in acknowledged if time < as_of), default=0)
                assert (values(answer, made)[0] or 0) >= least, f"{answer.staleness_ms} ms"
            return answer

        for number in range(1, 4):
            await write(table, number)
            for node_id in others:
                await look(node_id)
        await until(lambda: all(knows_its_time(cluster, node_id, 5) for node_id in others))
        for node_id in others:
            assert values(await look(node_id), made)[0] == 3

        may_apply.clear()
        held.callback(may_apply.set)
        await asyncio.sleep(0)
        await write(table, 4)
        stale = min(others)
        follower = follower_at(cluster, stale)
        await until(lambda: getattr(follower.safe_time._vouched, "at", 0.0) > acknowledged[-1][0])
        answer = await look(stale)
        assert values(answer, made) == [3], "its store has not applied what its log has"
        assert (await look(leader)).staleness_ms == 0
        refused = await looked_up(cluster, stale, made, 0, answer.staleness_ms - 1)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        may_apply.set()
        await until(lambda: knows_its_time(cluster, stale, follower.log.log_end_offset))
        assert values(await look(stale), made)[0] == 4

        await cluster.stop(leader)
        table = await led(cluster, made, set(others))
        left = min(set(others) - {state_of(cluster).leader})
        await write(table, 5)

        async def has_it() -> bool:
            answer = await look(left)
            return not answer.error_code and values(answer, made) == [5]

        await until(has_it)
        assert min(bounds[1:]) >= 0


async def test_lookups_at_a_follower_need_the_same_rights_as_at_the_leader(tmp_path: Path) -> None:
    config = {**OFTEN, **SECURED, "super.users": "User:admin;User:ANONYMOUS"}  # the brokers among themselves
    async with direct_cluster(tmp_path, 3, extensions, config=config) as cluster:
        cluster.brokers = {number: client(broker, "admin") for number, broker in cluster.brokers.items()}
        one = cluster.brokers[1]
        columns = "a INT, k INT, v INT, PRIMARY KEY (a, k)"
        table = await led(cluster, await created(cluster, columns, bucket_key=("a",)), {1, 2, 3})
        leader = state_of(cluster).leader
        other = min({1, 2, 3} - {leader})
        assert (await table.put(("+", {"a": 1, "k": 2, "v": 20}))).error_code == 0
        await until(lambda: knows_its_time(cluster, other, 1))
        schema = table.definition.schema
        a, k, v = (schema.column(name).id for name in ("a", "k", "v"))
        key_schema = pa.schema([each.field() for each in schema.key_columns])
        keys = pa.RecordBatch.from_pylist([{"a": 1, "k": 2}], schema=key_schema)
        lookup = m.LookupBucket(bucket=0, keys=encode_ipc(keys))
        prefix = m.PrefixLookupBucket(bucket=0, prefixes=encode_ipc(keys.select(["a"])))

        async def told(kind: str, columns: list[int] | None) -> int:
            """The same at the leader and at the follower, which answers for itself."""
            request: Any
            if kind == "lookup":
                request = m.LookupRequest(table_id=table.table_id, buckets=[lookup], columns=columns)
            else:
                request = m.PrefixLookupRequest(table_id=table.table_id, buckets=[prefix], columns=columns)
            request.staleness_ms_max = LONG_MS
            led_answer, followed = [
                await client(cluster.brokers[each], "ann").send(request) for each in (leader, other)
            ]
            assert (led_answer.error_code, led_answer.error_message) == (
                followed.error_code,
                followed.error_message,
            )
            if followed.error_code == 0:
                assert [answer.buckets[0].error_code for answer in (led_answer, followed)] == [0, 0]
                assert followed.buckets[0].applied_offset == 1, "a follower has answered"
                assert led_answer.buckets[0].applied_offset == -1
            else:
                assert not followed.buckets
            return int(followed.error_code)

        async def are_told(code: int, columns: list[int] | None) -> None:
            """Wait until both brokers answer with this code."""
            for kind in ("lookup", "prefix lookup"):
                await until(lambda kind=kind: is_told(kind, code, columns), f"{kind}: not {code}")

        async def is_told(kind: str, code: int, columns: list[int] | None) -> bool:
            try:
                return await told(kind, columns) == code
            except AssertionError:
                return False  # one of them has heard of it

        everything, some = [a, k, v], [a, k]
        await are_told(TableErrorCode.TABLE_NOT_FOUND, everything)
        await allow(one, Operation.DESCRIBE, ResourceType.TOPIC, "default.t")
        await are_told(ErrorCode.TOPIC_AUTHORIZATION_FAILED, everything)
        given = {"database": "default", "table": "t", "principal": "User:ann"}
        assert (await one.send(m.GrantColumnsRequest(**given, columns=["v"]))).error_code == 0
        await are_told(ErrorCode.TOPIC_AUTHORIZATION_FAILED, [v])  # the key is used, and withheld
        assert (await one.send(m.GrantColumnsRequest(**given, columns=["a", "k"]))).error_code == 0
        await are_told(0, everything)
        assert (await one.send(m.RevokeColumnsRequest(**given, columns=["v"]))).error_code == 0
        await are_told(ErrorCode.TOPIC_AUTHORIZATION_FAILED, everything)
        await are_told(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        await are_told(0, some)
        await allow(one, Operation.READ, ResourceType.TOPIC, "default.t")
        await are_told(0, None)
        await revoke_all(one)
        await are_told(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        await are_told(0, some)
        assert (await one.send(m.RevokeColumnsRequest(**given, columns=["a", "k"]))).error_code == 0
        await are_told(TableErrorCode.TABLE_NOT_FOUND, some)
