"""The plain name of a tiered table means all of its rows, in every door, whatever has left its log.

A model holds the rows. The lake is written by pyiceberg (`tests/lake/tier_by_pyiceberg.py`), so that nothing here
starts a Spark session except the tests that are marked so.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import httpx
import pyarrow as pa
import pytest
from pyiceberg.expressions import In
from pyspark import cloudpickle
from typer.testing import CliRunner

from headrace.tablelayer import plugins
from headrace.tablelayer.cli.console import _plan, _query
from headrace.tablelayer.cli.main import app
from headrace.tablelayer.client import ClientConfig, ClientError, Connection, connect, connect_async
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.app import make_app
from headrace.tablelayer.console.history import History
from headrace.tablelayer.console.tables import Sql
from headrace.tablelayer.flight.server import FlightSql
from headrace.tablelayer.lake.adapter import (
    EPOCH_PROPERTY,
    OFFSETS_PROPERTY,
    TABLE_ID_PROPERTY,
    LakeState,
    LogCutError,
    RoundLostError,
)
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.coordinator import ServerCoordinator
from headrace.tablelayer.lake.partition_expiry import PartitionExpiry
from headrace.tablelayer.lake.reader import Piece
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.lake.union_parts import _grouped
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.lake.offsets import PartitionBucket, offsets_to_json
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.spark.batch import HeadraceReader
from headrace.tablelayer.spark.builder import table as open_builder
from headrace.tablelayer.spark.catalog.rows import plan
from headrace.tablelayer.spark.catalog.writes import begin_write
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.sessions import activate
from headrace.tablelayer.spark.stream import stream_reader
from headrace.tablelayer.tests.cli.conftest import ROOT
from headrace.tablelayer.tests.client.conftest import BrokerThread
from headrace.tablelayer.tests.lake.tier_by_pyiceberg import Tierer
from headrace.tablelayer.tests.spark.spark_tables import load, read_available, stream

Row = tuple[int, int | None, str]
_names = itertools.count()
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "36"))


class CuttingBroker(BrokerThread):
    """A server that cuts logs and lets partitions expire when it is told to, as retention and the calendar do."""

    def cut(self, topic: str, bucket: int, offset: int) -> None:
        async def cut() -> None:
            self._broker.context.replicas.partition(topic, bucket).delete_records(offset)

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(60)

    def expire(self, definition: TableDefinition, name: str) -> None:
        catalog = self._extension.catalog
        drop = catalog.drop_partition(definition, name, ignore_if_not_exists=True)
        asyncio.run_coroutine_threadsafe(drop, self._loop).result(60)


class ByTheJob:
    """Rounds of `headrace tier` in this process, for Paimon, with the interface of `Tierer`."""

    def __init__(self, client: Connection, path: str, address: str) -> None:
        self.path, self.address = path, address
        self.definition = client.admin.describe_table(path)
        self.coordinator = ServerCoordinator(client, "a test")
        self.offsets: Mapping[Any, int] = {}

    def round(self) -> None:
        lines: list[str] = []
        assert run_tiering(self.address, tables=[self.path], report=lines.append) == 0, lines
        self.offsets = self.coordinator.describe(self.definition.table_id).offsets


class World:
    """A tiered table and its rows by (id, day): a log table, a partitioned one, or one with a primary key too."""

    def __init__(
        self,
        server: CuttingBroker,
        client: Connection,
        *,
        partitioned: bool = False,
        keyed: bool = False,
        lake: str = "iceberg",
    ) -> None:
        self.server, self.client = server, client
        self.name = f"w{next(_names)}"
        self.path = f"default.{self.name}"
        key = ", PRIMARY KEY (id, day) NOT ENFORCED" if keyed else ""
        client.execute(
            f"CREATE TABLE {self.name} (id BIGINT, n INT, day STRING{key})"
            f"{' PARTITIONED BY (day)' if partitioned else ''}"
            " WITH ('bucket.num' = '2', 'bucket.key' = 'id', 'table.datalake.enabled' = 'true',"
            f" 'table.datalake.format' = '{lake}')"
        )
        self.table = client.table(self.path)
        self.tierer: Any = (
            Tierer(client, self.path) if lake == "iceberg" else ByTheJob(client, self.path, server.address)
        )
        self.by_key: dict[tuple[int, str], Row] = {}
        self.expired: set[str] = set()
        self.ids = 0

    @property
    def rows(self) -> list[Row]:
        return list(self.by_key.values())

    def append(self, count: int) -> None:
        new = [(self.ids + at, None if at % 5 == 4 else at % 7, "abc"[at % 3]) for at in range(count)]
        self.ids += count
        self.write(new)

    def write(self, new: list[Row]) -> None:
        given = [{"id": each, "n": n, "day": day} for each, n, day in new]
        if self.table.definition.is_primary_key_table:
            self.table.upsert(given)
        else:
            self.table.append(given)
        self.by_key |= {(row[0], row[2]): row for row in new}

    def change(self, rng: random.Random) -> None:
        """Change rows of a primary-key table, and delete some of partitions that never expired."""
        known = sorted(self.by_key)
        self.write([(key, rng.randrange(9), day) for key, day in rng.sample(known, len(known) // 4)])
        gone = [place for place in rng.sample(known, len(known) // 5) if place[1] not in self.expired]
        self.table.delete([{"id": key, "day": day} for key, day in gone])
        for place in gone:
            del self.by_key[place]

    def tier(self) -> None:
        self.tierer.round()

    def expire(self, offsets: Mapping[Any, int] | None = None) -> None:
        """Cut the log up to the tiered offsets, or to these."""
        existing = {each.table_id for each in self.table.partitions()} if self.is_partitioned else set()
        for place, offset in (self.tierer.offsets if offsets is None else offsets).items():
            path, bucket = self.table.path, place
            if isinstance(place, PartitionBucket):
                if place.table_id not in existing:
                    continue
                path, bucket = path.of_partition(place.partition), place.bucket
            self.server.cut(path.topic, bucket, offset)

    def expire_snapshots(self) -> None:
        """Leave only the current snapshot of an Iceberg lake."""
        table = self.tierer.table
        if old := [each.snapshot_id for each in table.snapshots()[:-1]]:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    @property
    def is_partitioned(self) -> bool:
        return bool(self.table.definition.is_partitioned)

    def expire_partition(self, day: str) -> None:
        """Drop a partition as the calendar does when the lake has all of it."""
        self.tier()
        self.server.expire(self.table.definition, day)
        self.expired.add(day)

    def drop_partition(self, day: str) -> None:
        """Drop a partition as a client does."""
        if day in {each.name for each in self.table.partitions()}:
            self.client.execute(f"ALTER TABLE {self.name} DROP PARTITION (day = '{day}')")
            self.by_key = {place: row for place, row in self.by_key.items() if place[1] != day}
            self.expired.discard(day)


def rows_of(found: Any) -> list[Row]:
    """Return the rows of an Arrow table, in order."""
    return sorted((row["id"], row["n"], row["day"]) for row in found.to_pylist())


def by_python_source(
    address: str, world: World, names: Sequence[str] = ("id", "n", "day"), **options: str
) -> list[Any]:
    """Return rows as Spark's batch reader gives them: planned once, each task read by itself from its pickled form."""
    given = {"bootstrap.servers": address, "table": world.path, **options}
    reader = HeadraceReader(ReadOptions.parse(given), list(names))
    parts = [pickle.loads(pickle.dumps(each)) for each in reader.partitions()]
    reader = cloudpickle.loads(cloudpickle.dumps(reader))
    rows = (row for each in parts for batch in reader.read(each) for row in batch.to_pylist())
    return sorted(tuple(row.values()) for row in rows)


class Doors:
    """Every door through which a table is read by its name: each returns all rows, in order. Spark's is its source."""

    def __init__(self, client: Connection, address: str, flight: Any) -> None:
        self.client, self.address, self.flight = client, address, flight
        self.run = CliRunner(env={"HEADRACE_SERVER": address}).invoke
        self.console = make_app(
            client,
            Sql(_query, _plan),
            Access(),
            allow_writes=False,
            version="1",
            server="here",
            history=History(lambda: client),
        )

    def of(self, world: World) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
        table, name = world.table, world.name
        every = 1 + len(world.rows)
        yield "to_arrow", lambda: rows_of(table.to_arrow())
        yield "batches", lambda: rows_of(pa.Table.from_batches(list(table.batches()), schema=None))
        yield "limit", lambda: rows_of(table.limit(every))
        yield "scan", lambda: self.scanned(table)
        yield "asyncio", lambda: asyncio.run(self.in_asyncio(world.path))
        yield "DuckDB", lambda: self.by_duckdb(table)
        yield "headrace sql", lambda: rows_of(self.client.sql(f"SELECT * FROM {name}").to_arrow())
        yield (
            "headrace sql, by DuckDB",
            lambda: rows_of(
                self.client.sql(f"SELECT a.* FROM {name} a JOIN {name} b ON a.id = b.id").to_arrow()
            ),
        )

        yield "Flight SQL", lambda: rows_of(self.flight.query(f"SELECT * FROM {name}"))
        yield "headrace tables head", lambda: self.head(name, every)
        yield "Spark's source", lambda: by_python_source(self.address, world)

    def head(self, name: str, count: int) -> list[Row]:
        done = self.run(app, ["tables", "head", name, "-n", str(count), "-o", "json"])
        return sorted((row["id"], row["n"], row["day"]) for row in map(json.loads, done.stdout.splitlines()))

    async def asked(self, path: str) -> Any:
        """Return an answer of the console."""
        transport = httpx.ASGITransport(self.console)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9380") as browser:
            return (await browser.get(path, timeout=60)).json()

    @staticmethod
    def scanned(table: Any) -> list[Row]:
        with table.scan(until="latest") as scan:
            return sorted(row for piece in scan for row in rows_of(piece.batch))

    async def in_asyncio(self, path: str) -> list[Row]:
        async with await connect_async(self.address) as connection:
            table = await connection.table(path)
            assert await table.count() == (await table.extremes(["id"])).row_count
            return rows_of(await table.to_arrow())

    @staticmethod
    def by_duckdb(table: Any) -> list[Row]:
        with duckdb.connect() as database:
            database.register("t", pa.RecordBatchReader.from_stream(table))
            return sorted(database.sql("SELECT * FROM t").fetchall())

    def glance(self, world: World) -> None:
        """Compare three doors with the model."""
        expected = sorted(world.rows)
        assert rows_of(world.table.to_arrow()) == expected
        assert self.scanned(world.table) == expected
        assert self.client.sql(f"SELECT count(*) AS n FROM {world.name}").rows() == [{"n": len(expected)}]

    def check(self, world: World) -> None:
        """Compare every door with the model: all rows, counts, filters, columns and limits."""
        expected = sorted(world.rows)
        for name, read in self.of(world):
            assert read() == expected, name
        table, some = world.table, [row for row in expected if row[1] is not None and row[1] >= 4]
        assert table.count() == len(expected)
        assert self.run(app, ["tables", "count", world.name]).stdout.split() == [str(len(expected))]
        assert asyncio.run(self.asked(f"/api/tables/{world.path}"))["rows"] == len(expected)
        assert table.count("n >= 4") == len(some)
        assert rows_of(table.to_arrow(filter="n >= 4")) == some
        without = [row for row in expected if row[1] is None]  # files are not skipped by this
        assert rows_of(table.to_arrow(filter="n IS NULL")) == without
        assert sorted(table.to_arrow(["day"], filter="n >= 4")["day"].to_pylist()) == sorted(
            row[2] for row in some
        )
        for count in (0, 1, len(expected) // 2):
            found = rows_of(table.limit(count))
            assert len(found) == count
            assert set(found) <= set(expected)
        found_extremes = table.extremes(["id", "n"])
        assert found_extremes.row_count == len(expected)
        assert found_extremes.value_counts["n"] == sum(row[1] is not None for row in expected)
        if expected:
            assert (found_extremes.minimum("id"), found_extremes.maximum("id")) == (
                expected[0][0], expected[-1][0]
            )  # fmt: skip
        sql = self.client.sql
        assert sql(f"SELECT count(*), sum(n) FROM {world.name}").to_arrow().to_pylist()[0] == {
            "count_star()": len(expected),
            "sum(n)": sum(row[1] or 0 for row in expected) if some or any(r[1] for r in expected) else None,
        }
        assert len(sql(f"SELECT * FROM {world.name} LIMIT 3").to_arrow()) == min(3, len(expected))
        of_b = [row for row in expected if row[2] == "b"]
        assert rows_of(sql(f"SELECT * FROM {world.name} WHERE day = 'b'").to_arrow()) == of_b
        assert sql(f"SELECT count(*) FROM {world.name} WHERE day = 'b'").rows()[0]["count_star()"] == len(
            of_b
        )
        if table.definition.is_partitioned:
            assert rows_of(table.only({"day": "b"}).to_arrow()) == of_b
            if "b" in {each.name for each in table.partitions()}:
                assert rows_of(table.partition("b").to_arrow()) == of_b


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CuttingBroker]:
    folder = tmp_path_factory.mktemp("plain name")
    broker = CuttingBroker(
        folder / "data",
        config={
            "datalake.iceberg.warehouse": str(folder / "warehouse"),
            "datalake.paimon.warehouse": str(folder / "paimon"),
        },
    ).start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def address(server: CuttingBroker) -> str:
    return server.address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Connection]:
    with connect(address) as connection:
        yield connection


@pytest.fixture(scope="module")
def doors(client: Connection, address: str) -> Iterator[Doors]:
    from headrace.tablelayer.tests.flight.test_flight_sql import Client

    served = FlightSql(client, Access(), "127.0.0.1", 0, "1")
    flight = Client(served.port)
    try:
        yield Doors(client, address, flight)
    finally:
        flight.flight.close()
        assert served.close(20)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("moments", [1, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("partitioned", "keyed"), [(False, False), (True, False), (True, True)])
def test_all_rows_are_read_by_every_client_at_random_moments(
    server: CuttingBroker, client: Connection, doors: Doors, partitioned: bool, keyed: bool, moments: int
) -> None:
    live(World(server, client, partitioned=partitioned, keyed=keyed), doors, moments)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("partitioned", "keyed"), [(False, False), (True, False), (True, True)])
def test_all_rows_of_a_table_in_paimon_are_read_by_every_client(
    spark: Any, server: CuttingBroker, client: Connection, doors: Doors, partitioned: bool, keyed: bool
) -> None:
    live(World(server, client, partitioned=partitioned, keyed=keyed, lake="paimon"), doors, 50)


def live(world: World, doors: Doors, moments: int) -> None:
    """Write, tier and expire at random, and compare every door with the model after each moment."""
    rng, partitioned = random.Random(SEED), world.is_partitioned
    keyed = world.table.definition.is_primary_key_table
    world.append(30)
    world.tier()
    world.expire()
    if partitioned:
        world.expire_partition("b")
    doors.check(world)
    for _ in range(moments):
        for _ in range(rng.randrange(2, 6)):
            step = rng.random()
            if step < 0.4:
                world.append(rng.randrange(1, 20))
            elif step < 0.5 and keyed:
                world.change(rng)
            elif step < 0.7:
                world.tier()
            elif step < 0.8 or not partitioned:
                world.expire()
            elif step < 0.9:
                world.expire_partition(rng.choice("abc"))
            else:
                world.drop_partition(rng.choice("abc"))
        doors.check(world)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_partition_that_expired_stays_and_one_that_was_dropped_goes(
    server: CuttingBroker, client: Connection, doors: Doors, keyed: bool
) -> None:
    world = World(server, client, partitioned=True, keyed=keyed)
    world.append(9)
    world.expire_partition("b")
    doors.glance(world)
    world.write(
        [(100, 1, "b"), *([(1, 8, "b")] if keyed else [])]
    )  # late rows, one of a key that the lake has
    doors.glance(world)
    world.tier()
    doors.glance(world)
    world.drop_partition("b")
    doors.glance(world)
    world.tier()
    world.write([(200, 1, "b")])
    doors.glance(world)
    world.tier()
    assert not client.table(world.path).count("day = 'b' AND id < 200")
    world.drop_partition("b")
    world.write([(300, 1, "b")])
    world.drop_partition("b")  # two since the last round, which had rows of the first
    doors.glance(world)
    world.write([(400, 1, "b")])
    world.expire_partition("b")
    doors.glance(world)


class ExpiringLake:
    """The lake of a world, for the expiry of these days; `fails` ends it as if the tierer was killed."""

    def __init__(self, world: World, days: set[str]) -> None:
        self.tierer, self.days = world.tierer, days
        self.fails = False

    def partitions(self) -> list[str]:
        return sorted(set(self.tierer.table.scan().to_arrow()["day"].to_pylist()))

    def expired_partitions(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        return [name for name in names if name in self.days], ["never"]

    def write_without(self, base: LakeState, partitions: Sequence[str], offsets: Any, epoch: int) -> int:
        if self.fails:
            raise RoundLostError("killed")
        properties = {
            OFFSETS_PROPERTY: offsets_to_json(offsets),
            TABLE_ID_PROPERTY: str(self.tierer.definition.table_id),
            EPOCH_PROPERTY: str(epoch),
        }
        self.tierer.table.delete(In("day", tuple(partitions)), snapshot_properties=properties)
        self.tierer.offsets = dict(offsets)
        snapshot = self.tierer.table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def commit(self, *_: Any) -> None:
        """Do nothing: the snapshot is the current one."""

    discard = commit


@pytest.mark.parametrize("keyed", [False, True])
def test_a_partition_that_expires_in_the_lake_is_gone_from_every_door(
    server: CuttingBroker, client: Connection, doors: Doors, keyed: bool
) -> None:
    world = World(server, client, partitioned=True, keyed=keyed)
    world.append(30)
    world.write([(200, 1, "d")])
    world.expire_partition("a")
    world.expire_partition("d")
    world.append(6)  # some are late rows of the first
    world.tier()
    world.expire()
    lake = ExpiringLake(world, {"a", "b", "d", "z"})
    coordinator = world.tierer.coordinator

    def expire() -> str:
        granted = coordinator.begin(world.table.path, force=True)
        assert granted is not None
        reader = tiered_table(client, world.path, None).catalog.reader(world.tierer.definition)
        expiry = PartitionExpiry(granted, coordinator, lake, client, world.tierer.definition)
        try:
            return expiry.run(reader.state(None))[1]
        finally:
            coordinator.release(granted)

    lake.fails = True
    with pytest.raises(RoundLostError):
        expire()
    world.by_key = {place: row for place, row in world.by_key.items() if place[1] in "cd"}
    doors.glance(world)  # those that the server had are gone, although the lake has their rows
    assert set(coordinator.describe(world.tierer.definition.table_id).dropped) == {"a", "b"}
    lake.fails = False
    assert "3 partitions (a, b, d) expired" in expire()
    world.by_key = {place: row for place, row in world.by_key.items() if place[1] == "c"}
    doors.check(world)
    assert lake.partitions() == ["c"]
    described = coordinator.describe(world.tierer.definition.table_id)
    assert not described.dropped, "the lake has no rows of them"
    assert {place.partition for place in described.offsets} == {"c"}
    world.write([(100, 1, "b")])
    doors.glance(world)
    world.tier()
    doors.glance(world)
    assert "partition b expired" in expire()
    del world.by_key[100, "b"]
    doors.check(world)
    assert expire() == "the time of partition never cannot be read (partition.timestamp-formatter)"


def test_statements_change_the_rows_that_the_server_has(server: CuttingBroker, client: Connection) -> None:
    world = World(server, client, partitioned=True, keyed=True)
    world.append(9)
    world.expire_partition("b")
    of_b = [row for row in sorted(world.rows) if row[2] == "b"]
    deleted = client.sql(f"DELETE FROM {world.name} WHERE id < 3")
    assert deleted.row_count == 2, "the third one is in an expired partition"
    assert client.sql(f"UPDATE {world.name} SET n = 99 WHERE id >= 0").row_count == 4
    rows = rows_of(world.table.to_arrow())
    assert [row for row in rows if row[2] == "b"] == of_b
    assert {row[1] for row in rows if row[2] != "b"} == {99}


def test_a_partly_expired_log_gives_no_row_twice(
    server: CuttingBroker, client: Connection, doors: Doors
) -> None:
    world = World(server, client)
    world.append(20)
    world.tier()
    world.append(10)
    world.expire({0: 1, 1: 0})  # the log and the lake both have the other rows
    doors.check(world)


def test_the_console_shows_all_rows(server: CuttingBroker, client: Connection, doors: Doors) -> None:
    world = World(server, client)
    world.append(30)
    world.tier()
    world.expire()
    world.append(5)
    rows = asyncio.run(doors.asked(f"/api/tables/{world.path}/rows?limit=50"))["rows"]
    assert sorted(int(row[0]) for row in rows) == [row[0] for row in sorted(world.rows)]


def test_the_log_alone_can_be_asked_for(server: CuttingBroker, client: Connection, address: str) -> None:
    world = World(server, client)
    world.append(30)
    world.tier()
    world.expire()
    world.append(5)
    newest = sorted(world.rows)[-5:]
    with connect(address, ClientConfig(scan_mode="log")) as other:
        table = other.table(world.path)
        assert rows_of(table.to_arrow()) == newest
        assert (table.count(), table.reads_lake()) == (5, False)
        assert rows_of(other.sql(f"SELECT * FROM {world.name}").to_arrow()) == newest
    assert client.table(world.path).reads_lake()
    with pytest.raises(ValueError, match="scan_mode is 'lake'"):
        ClientConfig(scan_mode="lake")


def test_the_table_as_it_was_is_lake_and_log_too(server: CuttingBroker, client: Connection) -> None:
    world = World(server, client)
    world.append(10)
    world.tier()
    first = world.table.offsets("latest")
    world.append(6)
    world.tier()
    second = world.table.offsets("latest")
    world.append(4)
    world.expire(first)
    read = world.table.to_arrow
    assert rows_of(read(as_of=first)) == sorted(world.rows)[:10], "an older snapshot of the lake"
    between = {0: (first[0] + second[0] + 1) // 2, 1: second[1]}
    assert len(rows_of(read(as_of=between))) == sum(between.values())
    assert len(rows_of(read(as_of=second))) == 16
    world.expire(second)
    with pytest.raises(TableError, match="cannot be read at"):
        read(as_of=dict.fromkeys(first, 1))


def test_a_scan_goes_on_in_the_log(server: CuttingBroker, client: Connection) -> None:
    world = World(server, client)
    world.append(12)
    world.tier()
    world.expire()
    world.append(4)
    with world.table.scan(poll_timeout=20) as scan:
        found: list[Row] = []
        while len(found) < 16:
            found += rows_of(next(scan).batch)
        world.append(3)
        positions = dict(scan.positions)
        while len(found) < 19:
            found += rows_of(next(scan).batch)
    assert sorted(found) == sorted(world.rows)
    with world.table.scan(start=positions, until="latest") as rest:
        assert sum(piece.row_count for piece in rest) == 3
    with (
        world.table.scan(buckets=[0], until="latest") as one,
        pytest.raises(ValueError, match="have no bucket"),
    ):
        next(one)


def test_a_log_that_is_cut_during_a_read_is_planned_again(server: CuttingBroker, client: Connection) -> None:
    world = World(server, client)
    world.append(12)
    world.tier()
    world.append(4)
    world.expire({0: 1, 1: 1})
    planned, cut = plugins.union_scan, []

    def cut_after(*arguments: Any, **named: Any) -> Any:
        scan = planned(*arguments, **named)
        if not cut:
            cut.append(True)
            world.tier()
            world.expire()
        return scan

    with patch.object(plugins, "union_scan", cut_after):
        assert rows_of(world.table.to_arrow()) == sorted(world.rows)
    assert cut
    with patch.object(plugins, "union_scan", side_effect=LogCutError("again")), pytest.raises(LogCutError):
        world.table.count()


def test_a_client_without_lake_packages_names_the_extra_to_install(
    server: CuttingBroker, client: Connection, address: str
) -> None:
    world = World(server, client)
    world.append(3)
    world.tier()
    world.expire()
    program = (
        "import sys; sys.modules['pyiceberg.table'] = None\n"
        "import headrace\n"
        f"with headrace.connect({address!r}) as connection:\n"
        f"    print(connection.table({world.path!r}).count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 1
    assert "pip install 'headrace[lake]'" in done.stderr, done.stderr
    with (
        patch.object(plugins, "union_scan", side_effect=ModuleNotFoundError("x", name="x")),
        pytest.raises(ClientError, match=r"needs x, .*headrace\[lake\].*scan_mode='log'"),
    ):
        world.table.count()


@pytest.mark.parametrize(("partitioned", "keyed"), [(False, False), (True, False), (True, True)])
def test_sparks_batches_have_all_rows(
    server: CuttingBroker, client: Connection, partitioned: bool, keyed: bool
) -> None:
    world = World(server, client, partitioned=partitioned, keyed=keyed)
    world.append(30)
    world.tier()
    world.append(12)
    world.tier()
    world.expire()
    world.append(5)
    if partitioned:
        world.expire_partition("b")
        world.write([(100, 1, "b"), *([(1, 8, "b")] if keyed else [])])
    if keyed:
        world.change(random.Random(SEED))
    every = sorted(world.rows)

    def read(**options: str) -> list[Row]:
        return by_python_source(server.address, world, **options)

    assert read() == read(minPartitions="4") == every
    assert read(where=json.dumps([">=", "n", 4])) == [
        row for row in every if row[1] is not None and row[1] >= 4
    ]
    assert read(where=json.dumps(["=", "day", "b"])) == [row for row in every if row[2] == "b"]
    assert by_python_source(server.address, world, ["day"]) == sorted((row[2],) for row in every)
    assert 0 < len(read(limit="2")) <= len(every)
    at = world.table.partition_offsets("latest") if partitioned else world.table.offsets("latest")
    pinned = {"endingOffsets": json.dumps(at), "ofNow": "true"}
    assert read(**pinned) == every
    world.append(6)
    if not keyed:
        world.tier()  # reads of the pinned moment take the snapshot before
    assert read(**pinned) == every
    assert len(read(**{"scan.mode": "log"})) < len(every)


@pytest.mark.parametrize(("partitioned", "plan"), [(False, "_splits"), (True, "_splits_of_partitions")])
def test_a_batch_of_sparks_has_rows_that_leave_the_server_while_it_is_planned(
    server: CuttingBroker, client: Connection, partitioned: bool, plan: str
) -> None:
    world = World(server, client, partitioned=partitioned)
    world.append(12)
    world.tier()
    planned = getattr(HeadraceReader, plan)

    def planned_later(*arguments: Any) -> Any:
        if partitioned:
            world.expire_partition("b")
        else:
            world.expire()
        return planned(*arguments)

    with patch.object(HeadraceReader, plan, planned_later):
        assert by_python_source(server.address, world) == sorted(world.rows)


def test_a_log_table_whose_partitions_expired_is_not_overwritten(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    schema = json.dumps({"type": "struct", "fields": []})
    place = {"options": {"bootstrap.servers": server.address}, "database": "default", "table": world.name}
    asked = {**place, "schema": schema, "overwrite": "all"}
    assert begin_write(asked), "it has never had a row"
    world.append(9)
    for day in "abc":
        world.expire_partition(day)
    with pytest.raises(TableError, match="is a log table, whose rows cannot be replaced"):
        begin_write(asked)


@pytest.mark.parametrize(
    ("sizes", "least", "groups"),
    [
        ([10, 11, 12], 3, [1, 1, 1]),
        ([12, 11, 10], 3, [1, 1, 1]),
        ([1, 1, 30], 2, [2, 1]),
        ([1, 1, 1], 1, [3]),
        ([1, 1], 5, [1, 1]),
        ([200 << 20, 1, 1], 1, [1, 2]),
        ([], 2, []),
    ],
)
def test_files_are_grouped_into_as_many_tasks_as_are_asked_for(
    sizes: list[int], least: int, groups: list[int]
) -> None:
    pieces = [Piece(str(number), 1, size) for number, size in enumerate(sizes)]
    found = list(_grouped(pieces, least))
    assert [each for group in found for each in group] == pieces
    assert [len(group) for group in found] == groups


def test_a_file_of_the_lake_is_read_by_one_task(server: CuttingBroker, client: Connection) -> None:
    world = World(server, client)
    for _ in range(3):
        world.append(10)
        world.tier()
    world.expire()
    given = {"bootstrap.servers": server.address, "table": world.path, "minPartitions": "3"}
    parts = HeadraceReader(ReadOptions.parse(given), ["id"]).partitions()
    files = [file for each in parts for file in each.pieces]
    assert len(parts) == 3
    assert len(files) == len(set(files)) == 3
    assert sum(each.row_count for each in parts) == 30
    place = {"options": {"bootstrap.servers": server.address}, "database": "default", "table": world.name}
    asked = {**place, "columns": ["id"], "limit": None, "as_of_ms": None, "version": None}
    for predicate, count in ((None, 3), ('[">", "id", 1000]', 0)):
        shown = plan({**asked, "predicate": predicate})["halves"]
        assert re.fullmatch(rf"lake {count} files of snapshot \d+, log 0 offsets", shown)


class Query:
    """A streaming query of Spark's, driven by hand: each batch is planned, read and counted as done."""

    def __init__(self, server: CuttingBroker, world: World, **options: str) -> None:
        self.given = {"bootstrap.servers": server.address, "table": world.path, **options}
        self.names = ["id", "n", "day"]
        self.reader = stream_reader(ReadOptions.parse(self.given), self.names)
        self.at = self.last = self.reader.initialOffset()

    def plan(self) -> list[Any]:
        """Plan the next batch without reading it, as a query that is killed then."""
        self.end = self.reader.latestOffset()
        return self.reader.partitions(self.at, self.end)

    def batch(self) -> list[Row]:
        self.end = self.reader.latestOffset()
        return self.batch_of_plan()

    def batch_of_plan(self) -> list[Row]:
        """Read the batch up to the planned end."""
        rows = self.rows(self.reader.partitions(self.at, self.end))
        self.last, self.at = self.at, self.end
        return rows

    def rows(self, parts: list[Any]) -> list[Row]:
        found = [pickle.loads(pickle.dumps(each)) for each in parts]
        return sorted(rows for each in found for batch in self.reader.read(each) for rows in rows_of(batch))

    def again(self) -> list[Row]:
        """Start another process with the checkpoint; it repeats the last batch."""
        self.reader = stream_reader(ReadOptions.parse(self.given), self.names)
        return self.rows(self.reader.partitions(self.last, json.loads(json.dumps(self.at))))

    def available_now(self) -> list[Row]:
        """Start another process with that trigger: it asks for the end before it knows the checkpoint."""
        self.reader = stream_reader(ReadOptions.parse(self.given), self.names)
        self.end = self.reader.latestOffset()
        self.reader.partitions(self.last, self.at)
        rows = self.rows(self.reader.partitions(self.at, self.end))
        self.last, self.at = self.at, self.end
        return rows


@pytest.mark.parametrize("start", ["full", "earliest"])
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_stream_reads_the_lake_and_goes_on_in_the_log(
    server: CuttingBroker, client: Connection, partitioned: bool, start: str
) -> None:
    world = World(server, client, partitioned=partitioned)
    world.append(30)
    world.tier()
    world.expire()
    world.append(5)
    if partitioned:
        world.expire_partition("b")
        world.expire_partition("c")
        world.write([(100, 1, "b")])
    query, seen = Query(server, world, startingOffsets=start), sorted(world.rows)
    assert query.batch() == seen
    assert query.again() == seen, "the same, by another process"
    world.tier()
    world.append(6)
    assert query.again() == seen, "an older snapshot of the lake"
    assert query.batch() == sorted(set(world.rows) - set(seen))
    seen = sorted(world.rows)
    world.write([(300, 3, "d")])
    assert query.batch() == [(300, 3, "d")]
    assert query.batch() == []
    newest = Query(server, world, startingOffsets=start, **{"scan.mode": "log"}).batch()
    assert 0 < len(newest) < len(world.rows)


def test_a_stream_of_a_key_begins_with_the_rows_of_expired_partitions(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True, keyed=True)
    world.append(30)
    world.expire_partition("b")
    world.write([(1, 8, "b"), (100, 1, "b")])
    query = Query(server, world, mode="upsert")
    assert query.batch() == sorted(world.rows)
    assert query.again() == sorted(world.rows)
    world.write([(100, 7, "b")])
    assert query.batch() == [(100, 7, "b")]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("keyed", [False, True])
def test_spark_has_all_rows_by_catalog_and_by_format(
    spark: Any, server: CuttingBroker, client: Connection, keyed: bool, tmp_path: Path
) -> None:
    world = World(server, client, partitioned=True, keyed=keyed)
    world.append(30)
    world.tier()
    world.expire()
    world.expire_partition("b")
    world.append(7)
    every = sorted(world.rows)
    of_b = [row for row in every if row[2] == "b" and row[1] is not None and row[1] > 2]
    session = spark.newSession()
    try:
        session.conf.set("spark.headrace.bootstrap.servers", server.address)

        def rows(text: str) -> list[Any]:
            return sorted(
                tuple(row) for row in session.sql(text.format(t=f"headrace.{world.path}")).collect()
            )

        assert rows("SELECT * FROM {t}") == every
        assert rows("SELECT * FROM {t} WHERE day = 'b' AND n > 2") == of_b
        assert rows("SELECT count(*), count(n), max(id) FROM {t}") == [
            (len(every), sum(row[1] is not None for row in every), every[-1][0])
        ]
        assert len(rows("SELECT id FROM {t} LIMIT 4")) == 4
        ((shown,),) = rows("EXPLAIN SELECT id FROM {t}")
        assert re.search(
            rf"lake \d+ files of snapshot \d+, log {'changed rows' if keyed else '7 offsets'}", shown
        )
    finally:
        activate(spark)
    assert sorted(tuple(row) for row in load(spark, server.address, world.path).collect()) == every
    built = open_builder(spark, world.path, server.address).select("id").where("day = 'b' AND n > 2").to_df()
    assert sorted(row.id for row in built.collect()) == [row[0] for row in of_b]
    if not keyed:
        frame = stream(spark, server.address, world.path)
        assert sorted(tuple(row) for row in read_available(frame, tmp_path)) == every
        seen = set(world.rows)
        world.append(5)
        world.write([(100, 1, "d")])
        world.expire_partition("d")  # made and expired between two batches
        new = sorted(set(world.rows) - seen)
        assert sorted(tuple(row) for row in read_available(frame, tmp_path)) == new
