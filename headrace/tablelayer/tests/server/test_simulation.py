"""Tables in a whole broker under seeded faults: what was acknowledged is there once, and is seen at once.

HEADRACE_SIM_SEED=17 pytest headrace/tablelayer/tests/server/test_simulation.py     # one seed again
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
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
from simulator.cluster_simulation import BROKERS, simulate_cluster
from simulator.histories import told
from simulator.replicated_simulation import simulate_replication
from simulator.simulation import Report, Simulation, simulate
from simulator.world import LinkLostError, World

SEEDS = int(os.environ.get("HEADRACE_SIM_SEEDS", "8"))
SOAK_FIRST_SEED = 2_000_000
CLUSTER_SEEDS = 6
SEEDS_PER_COLLECTION = 4
"""A killed broker closes nothing: its RocksDB keeps files open, 30 a seed, until the collector has found it."""
FOUND = (31, 58, 101)
"""The store was lost while a broker that had just started needed it; a leader had not heard of its table."""
WRITERS = ("upserts", "more upserts")
READERS = ("lookups", "more lookups")
REPLICATED_SEEDS = 6
KEYS = 3
BUCKET = "default.t", 0
ANYBODYS = m.CreateTableRequest, m.DescribeTableRequest, InitProducerIdRequest
PASSING = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,  # no file can be opened at present
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.INVALID_REPLICATION_FACTOR,  # the others are on their way up
    ErrorCode.NOT_CONTROLLER,  # the store is lost, which a broker without the extension's parts has to read
}


class Patient:
    """Send requests that may be repeated until they are answered, also through a start that is under way.

    Requests for the table's bucket go to its leader, others to any broker.
    """

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._name = name

    async def send(self, request: Any, version: int | None = None) -> Any:
        simulation = self._simulation
        is_for_all = isinstance(request, ANYBODYS)
        while True:
            try:
                link = await (
                    simulation.anybody(self._name) if is_for_all else simulation.leader(self._name, BUCKET)
                )
                answer = await link.send(request, version)
                codes = [answer.error_code]
                codes += [each.error_code for each in getattr(answer, "buckets", None) or ()]
                if not PASSING.intersection(codes):
                    return answer
            except LinkLostError:
                pass
            await simulation.try_again(self._name, BUCKET)


class Sums:
    """A primary-key table whose values are added up, with writers that have keys of their own and readers of all keys.

    Writers check their rows (R11, R12). Reads are linearizable: at least the value that was acknowledged or read when
    the lookup began, and at most the value whose write had begun when it ended.
    """

    def __init__(self, replicas: int = 1) -> None:
        self._replicas = replicas
        self._begun: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self.increments: dict[int, int] = {}
        self.definition: TableDefinition

    def table(self, simulation: Simulation, name: str) -> Table:
        return Table(Patient(simulation, name), self.definition)  # type: ignore[arg-type]

    async def prepare(self, simulation: Simulation) -> None:
        definition = TableDefinition(
            TablePath("default", "t"),
            parse_columns("k BIGINT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED"),
            bucket_count=1,
            options={
                "table.merge-engine": "aggregation",
                "fields.n.agg": "sum",
                "table.replication.factor": str(self._replicas),
            },
        )
        patient = Patient(simulation, "admin")
        created = await patient.send(m.CreateTableRequest(definition=definition.to_json()))
        if created.error_code:  # it was made by a request whose answer was lost
            described = await patient.send(m.DescribeTableRequest(database="default", table="t"))
            self.definition = TableDefinition.from_json(described.definition)
        else:
            self.definition = definition.with_id(created.table_id)

    def clients(self, simulation: Simulation) -> Sequence[Callable[[], Any]]:
        writers = [partial(self._write, simulation, name) for name in WRITERS]
        return [*writers, *(partial(self._read, simulation, name) for name in READERS)]

    async def _read(self, simulation: Simulation, name: str) -> None:
        table, random = self.table(simulation, name), simulation.random
        while not simulation.is_over:
            key = random.randrange(KEYS * len(WRITERS))
            least = max(self.increments.get(key, 0), self._seen.get(key, 0))
            (row,) = await table.lookup({"k": key})
            value = 0 if row is None else row["n"]
            if not least <= value <= self._begun.get(key, 0):
                simulation.problems.append(
                    f"{name} sees {key} at {value}: {least} was acknowledged or read before, {self._begun.get(key, 0)}"
                    " is begun"
                )
            self._seen[key] = max(self._seen.get(key, 0), value)
            simulation.did(name)
            await asyncio.sleep(random.uniform(0, 0.3))

    async def _write(self, simulation: Simulation, name: str) -> None:
        table, random, sequence = self.table(simulation, name), simulation.random, 0
        identity = await table.broker.send(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4
        )
        while not simulation.is_over:
            key = WRITERS.index(name) * KEYS + random.randrange(KEYS)
            self._begun[key] = self._begun.get(key, 0) + 1
            answer = await table.put(
                ("+", {"k": key, "n": 1}),
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=sequence,
            )
            if answer.error_code:
                simulation.problems.append(f"{name} was told {answer.error_code}: {answer.error_message}")
                return
            sequence += 1
            self.increments[key] = self.increments.get(key, 0) + 1
            found = await table.lookup({"k": key})
            if found != [{"k": key, "n": self.increments[key]}]:
                simulation.problems.append(
                    f"{name} wrote {key} {self.increments[key]} times and sees {found}"
                )
            simulation.did(name)
            await asyncio.sleep(random.uniform(0, 0.4))

    async def check(self, simulation: Simulation) -> list[str]:
        table = self.table(simulation, "checker")
        state = {row["k"]: row["n"] for row in await table.state()}
        changes = {row["k"]: row["n"] for row in replay(await table.changelog(), ["k"]).values()}
        problems = []
        if state != self.increments:
            problems.append(f"the table is {state}, and {self.increments} was acknowledged")
        if changes != state:
            problems.append(f"the changelog says {changes}, the table {state}")
        if (count := await table.count()) != len(state):
            problems.append(f"{count} rows are counted, {len(state)} are there")
        return problems


def run(seed: int, folder: Path) -> Report:
    try:
        report = simulate(
            seed,
            folder,
            operations=120,
            make_extensions=lambda: (TableExtension(),),
            workloads=lambda: (Sums(),),
            config={"kv.snapshot.interval": "0" if seed % 3 == 0 else "1 s"},
        )
    except BaseException as error:
        error.add_note(f"seed {seed} (HEADRACE_SIM_SEED={seed} runs it again)")
        raise
    assert not report.problems, (
        f"seed {seed}, mode {report.mode} (HEADRACE_SIM_SEED={seed} runs it again):\n{told(report.problems)}"
    )
    close_what_was_killed(seed)
    return report


def close_what_was_killed(seed: int) -> None:
    if seed % SEEDS_PER_COLLECTION == 0:
        gc.collect()


@pytest.mark.slow
def test_tables_keep_acknowledged_rows_through_random_faults(tmp_path: Path) -> None:
    only = os.environ.get("HEADRACE_SIM_SEED")
    reports = [run(seed, tmp_path / str(seed)) for seed in ((int(only),) if only else range(SEEDS))]
    assert sum(report.faults for report in reports)


@pytest.mark.slow
def test_tables_of_a_cluster_keep_acknowledged_rows_through_random_faults(tmp_path: Path) -> None:
    only = os.environ.get("HEADRACE_SIM_SEED")
    for seed in (int(only),) if only else (*range(CLUSTER_SEEDS), *FOUND):
        report = simulate_cluster(
            seed,
            tmp_path / str(seed),
            operations=150,
            make_extensions=lambda: (TableExtension(),),
            workloads=lambda: (Sums(),),
        )
        assert not report.problems, f"seed {seed}, mode {report.mode}:\n{told(report.problems)}"
        close_what_was_killed(seed)


def run_replicated(seed: int, folder: Path) -> Report:
    try:
        report = simulate_replication(
            seed,
            folder,
            operations=100,
            make_extensions=lambda: (TableExtension(),),
            workloads=lambda: (Sums(BROKERS),),
        )
    except BaseException as error:
        error.add_note(f"seed {seed} (HEADRACE_SIM_SEED={seed} runs it again)")
        raise
    assert not report.problems, f"seed {seed}, mode {report.mode}:\n{told(report.problems)}"
    close_what_was_killed(seed)
    return report


@pytest.mark.slow
def test_tables_with_replicas_keep_acknowledged_rows_through_random_faults(tmp_path: Path) -> None:
    only = os.environ.get("HEADRACE_SIM_SEED")
    for seed in (int(only),) if only else range(REPLICATED_SEEDS):
        run_replicated(seed, tmp_path / str(seed))


def test_a_new_table_is_served_by_a_broker_with_a_late_watch(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        assert world.ensemble is not None
        for node_id in range(3):
            await world.add(node_id).start()
        await asyncio.sleep(1.0)
        world.ensemble.watch_seconds_max = 1_000.0
        links = [world.link(node_id) for node_id in range(3)]
        for number in range(3):
            one, other, third = (links[(number + at) % 3] for at in range(3))
            database = f"d{number}"
            assert (await one.send(m.CreateDatabaseRequest(name=database))).error_code == 0
            definition = TableDefinition(
                TablePath(database, "t"),
                parse_columns("k BIGINT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED"),
                bucket_count=3,
            )
            created = await other.send(m.CreateTableRequest(definition=definition.to_json()))
            assert created.error_code == 0, created.error_message
            described = await third.send(m.DescribeTableRequest(database=database, table="t"))
            assert described.error_code == 0, described.error_message
            for link in links:
                asked = await link.send(m.CountRowsRequest(table_id=created.table_id, buckets=[0, 1, 2]))
                assert asked.error_code == 0, asked.error_message

    with World(1, tmp_path, make_extensions=lambda: (TableExtension(),), shared=True) as world:
        world.run(scenario(world))


@pytest.mark.soak
def test_soak_of_replicas(tmp_path: Path) -> None:
    ends = time.monotonic() + float(os.environ.get("HEADRACE_SIM_SECONDS", "600"))
    seed = int(os.environ.get("HEADRACE_SIM_SEED", SOAK_FIRST_SEED))
    while time.monotonic() < ends:
        run_replicated(seed, tmp_path / str(seed))
        seed += 1


@pytest.mark.soak
def test_soak(tmp_path: Path) -> None:
    ends = time.monotonic() + float(os.environ.get("HEADRACE_SIM_SECONDS", "600"))
    seed = int(os.environ.get("HEADRACE_SIM_SEED", SOAK_FIRST_SEED))
    while time.monotonic() < ends:
        run(seed, tmp_path / str(seed))
        seed += 1
