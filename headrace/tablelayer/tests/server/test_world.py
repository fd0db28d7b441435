"""Tables in whole brokers under virtual time: acknowledged writes are there once, visible at once, through kills."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.server.tables import Table, replay
from simulator.world import Link, LinkLostError, World

SEEDS = range(int(os.environ.get("HEADRACE_WORLD_SEEDS", "2")))
WRITERS = ("a", "b")
KEYS = 3
WRITES = 25
RETRIABLE = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
EPOCH_MS = 1_750_000_000_000


class Patient:
    """A link for requests that may be repeated: until they are answered, and not by a start that is under way."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def send(self, request: Any, version: int | None = None) -> Any:
        while True:
            try:
                answer = await self.link.send(request, version)
            except LinkLostError:
                await asyncio.sleep(0.02)
                continue
            codes = [answer.error_code] + [each.error_code for each in getattr(answer, "buckets", None) or ()]
            if not RETRIABLE.intersection(codes):
                return answer
            await asyncio.sleep(0.02)


async def write(world: World, table: Table, name: str, increments: dict[int, int]) -> None:
    """Adds one to its own keys; after each answer a lookup shows it (R11, R12)."""
    identity = await table.broker.send(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4
    )
    for sequence in range(WRITES):
        key = WRITERS.index(name) * KEYS + world.loop.random.randrange(KEYS)
        answer = await table.put(
            ("+", {"k": key, "n": 1}),
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=sequence,
        )
        assert answer.error_code == 0, answer
        increments[key] = increments.get(key, 0) + 1
        assert await table.lookup({"k": key}) == [{"k": key, "n": increments[key]}]
        await asyncio.sleep(world.loop.random.uniform(0, 0.02))


async def kill_now_and_then(world: World, until: asyncio.Event) -> int:
    kills = 0
    while not until.is_set():
        await asyncio.sleep(world.loop.random.uniform(0.05, 0.5))
        await world.members[0].restart()
        kills += 1
    return kills


async def scenario(world: World) -> int:
    await world.add(0).start()
    definition = TableDefinition(
        TablePath("default", "t"),
        parse_columns("k BIGINT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED"),
        bucket_count=1,
        options={"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
    )
    patient = Patient(world.link(0))
    created = await patient.send(m.CreateTableRequest(definition=definition.to_json()))
    if created.error_code:  # it was made by a request whose answer was lost
        described = await patient.send(m.DescribeTableRequest(database="default", table="t"))
        definition = TableDefinition.from_json(described.definition)
    else:
        definition = definition.with_id(created.table_id)
    increments: dict[int, int] = {}
    done = asyncio.Event()
    killing = asyncio.ensure_future(kill_now_and_then(world, done))
    async with asyncio.timeout(600):
        await asyncio.gather(
            *(write(world, Table(Patient(world.link(0)), definition), name, increments) for name in WRITERS)  # type: ignore[arg-type]
        )
    done.set()
    kills = await killing
    world.loss = 0.0
    table = Table(patient, definition)  # type: ignore[arg-type]
    state = {row["k"]: row["n"] for row in await table.state()}
    replayed = replay(await table.changelog(), ["k"])
    assert state == increments
    assert {row["k"]: row["n"] for row in replayed.values()} == increments
    assert await table.count() == len(increments)
    return kills


@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledged_rows_are_there_once_and_at_once_through_kills(seed: int, tmp_path: Path) -> None:
    with World(seed, tmp_path, loss=0.05, make_extensions=lambda: (TableExtension(),)) as world:
        assert world.run(scenario(world)) > 0, f"seed {seed}"
    gc.collect()  # a killed broker closes nothing: its RocksDB keeps hundreds of files open until it is found
