"""An Iceberg REST catalog as the lake's: rounds, readers, two tierers, lost answers.

There is no file lock: only the catalog's compare-and-set prevents conflicts.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.lake.adapter import LakeError, LakeState, RoundLostError
from headrace.tablelayer.lake.iceberg import IcebergTable
from headrace.tablelayer.lake.iceberg_reader import IcebergReader
from headrace.tablelayer.lake.tiering_round import Outcome
from headrace.tablelayer.lake.union_read import union_read
from headrace.tablelayer.lake.union_scan import union_scan
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import BIGINT, INT, STRING
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.lake.rest_catalog import Json, RestCatalog, rest_catalog
from headrace.tablelayer.tests.lake.test_columns import alter
from headrace.tablelayer.tests.lake.test_tiering import AFTER, DELETE, INSERT, World, definition, fill, row
from headrace.tablelayer.tests.spark.spark_tables import ROOT, create

ROUNDS = int(os.environ.get("HEADRACE_SOAK_ROUNDS", "12"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "20240919"))
in_spark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path / "lake") as catalog:
        yield catalog


def rows_of(rows: Any) -> list[tuple[Any, ...]]:
    """Return the rows in an order that allows NULLs."""
    return sorted((tuple(row) for row in rows), key=repr)


class RestWorld(World):
    """The world of the tiering tests over a REST catalog, read back by pyiceberg's own client of it."""

    def __init__(self, spark: Any, catalog: RestCatalog, table: TableDefinition) -> None:
        self.catalog = catalog
        super().__init__(spark, catalog.warehouse, table)

    def tierer(self) -> IcebergTable:
        self.properties = self.catalog.properties
        return super().tierer()

    def read_by_another(self) -> list[tuple[Any, ...]]:
        path = self.table.path
        found = load_catalog("another", **self.properties).load_table((path.database, path.table))
        rows = found.scan().to_arrow().select(self.table.schema.names)
        return sorted(tuple(each.values()) for each in rows.to_pylist())


def at_once(steps: Sequence[Callable[[], None]], *, one_by_one: bool) -> list[LakeError | None]:
    """Run steps at the same moment in threads of their own, or one after the other; return their outcomes."""
    ended: list[LakeError | None] = [None] * len(steps)

    def carry_out(which: int) -> None:
        try:
            steps[which]()
        except LakeError as error:
            ended[which] = error

    threads = [threading.Thread(target=carry_out, args=(which,)) for which in range(len(steps))]
    for thread in threads:
        thread.start()
        if one_by_one:
            thread.join()
    for thread in threads:
        thread.join()
    return ended


def is_fast_forward(updates: list[Json]) -> bool:
    return any(each["action"] == "set-snapshot-ref" and each["ref-name"] == "main" for each in updates)


# ---- without Spark


def test_a_catalog_accepts_one_of_two_commits_on_a_snapshot(catalog: RestCatalog) -> None:
    client = load_catalog("one", **catalog.properties)
    client.create_namespace("shop")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    table = client.create_table("shop.t", rows.schema, properties={"commit.retry.num-retries": "0"})
    other = client.load_table("shop.t")
    table.append(rows)
    with pytest.raises(CommitFailedException, match="assert-ref-snapshot-id"):
        other.append(rows)
    assert client.load_table("shop.t").scan().to_arrow().num_rows == 2
    assert catalog.refused >= 1


def test_a_missing_table_is_empty_and_a_missing_catalog_is_an_error(catalog: RestCatalog) -> None:
    table = definition()
    assert not IcebergReader(table, catalog.properties).exists()
    catalog.close()
    with pytest.raises(LakeError, match=f"the lake table of {table.path} cannot be read"):
        IcebergReader(table, catalog.properties)


# ---- rounds


class TestRounds:
    pytestmark = in_spark

    @pytest.mark.slow
    def test_upserts_deletes_and_a_new_column_through_a_rest_catalog(
        self, spark: Any, catalog: RestCatalog
    ) -> None:
        table = definition()
        passed = {"iceberg.history.expire.min-snapshots-to-keep": "7", "iceberg.a'b": "c'd"}
        world = RestWorld(spark, catalog, replace(table, options={**table.options, **passed}))
        fill(world.log)
        assert world.tier().outcome is Outcome.COMMITTED
        world.log.add(AFTER, row(5, "second 5", "5.55"))
        world.log.add(DELETE, row(6, "first 6"))
        alter(world, "RENAME name TO called, ADD note STRING DEFAULT 'none'")
        world.log.entries = {
            bucket: [(kind, renamed(value)) for kind, value in entries]
            for bucket, entries in world.log.entries.items()
        }
        world.log.add(INSERT, {**renamed(row(100, "new")), "note": "noted"})
        assert world.tier().outcome is Outcome.COMMITTED
        assert world.lake_rows() == world.log.rows() == world.read_by_another()
        assert world.branches() == {"main", "headrace_tiered"}
        properties = world.lake._load().properties()
        assert (properties["history.expire.min-snapshots-to-keep"], properties["a'b"]) == ("7", "c'd")

    @pytest.mark.soak
    def test_a_catalog_that_numbers_fields_its_own_way_is_refused_before_anything_is_written(
        self, spark: Any, catalog: RestCatalog
    ) -> None:
        catalog.first_field = 2
        world = RestWorld(spark, catalog, definition())
        fill(world.log)
        with pytest.raises(
            LakeError, match=r"field 1 of the lake table of .* should be column 'id' and is None"
        ):
            world.tier()
        assert world.lake.find_committed() == LakeState()

    @pytest.mark.soak
    def test_one_of_two_tierers_wins_over_a_rest_catalog(self, spark: Any, catalog: RestCatalog) -> None:
        """Both read, both write; then both commit, at the same moment or one after the other."""
        world = RestWorld(spark, catalog, definition(primary_key=()))
        rng, won = random.Random(SEED), [0, 0]
        for number in range(ROUNDS):
            for key in range(6):
                world.log.add(0, row(key, f"{number}"))
            end = world.log.latest()
            tierers = [world.tierer(), world.tierer()]
            base = tierers[0].find_committed()
            start = {bucket: base.offsets.get(bucket, 0) for bucket in end}
            epochs = [2 * number + 1, 2 * number + 2]
            written = [
                tierer.write(base, world.log.changes(tierer.spark, start, end), end, epoch)
                for tierer, epoch in zip(tierers, epochs, strict=True)
            ]
            commits = [
                partial(each.commit, base, *done)
                for each, *done in zip(tierers, written, epochs, strict=True)
            ]
            ended = at_once(commits, one_by_one=rng.random() < 0.3)
            losers = [error for error in ended if error is not None]
            assert len(losers) >= 1, "both believe that they committed"
            assert any(isinstance(error, RoundLostError) for error in losers) or len(losers) == 2
            if (
                len(losers) == 2
            ):  # each saw the other's change of the table: nothing was done, and is done again
                tierers[0].commit(base, written[0], epochs[0])
                ended[0] = None
            won[ended[0] is not None] += 1
            for tierer, epoch in zip(tierers, epochs, strict=True):
                tierer.discard(epoch)
            assert world.lake_rows() == world.log.rows() == world.read_by_another()
        print(
            f"seed {SEED}: {ROUNDS} rounds, won {won}, {catalog.commits} commits, {catalog.refused} refused"
        )
        assert world.branches() == {"main", "headrace_tiered"}

    @pytest.mark.soak
    @pytest.mark.parametrize("key", [("id",), ()], ids=["pk", "log"])
    def test_answers_that_are_lost_make_neither_gap_nor_duplicate(
        self, spark: Any, catalog: RestCatalog, key: tuple[str, ...]
    ) -> None:
        """Any commit may be carried out and answered with 500. The round that was hit may fail; the next one goes
        on.
        """
        world = RestWorld(spark, catalog, definition(primary_key=key))
        rng, lost = random.Random(SEED), 0

        def lose(updates: list[Json]) -> bool:
            nonlocal lost
            hit = rng.random() < (0.5 if is_fast_forward(updates) else 0.15)
            lost += hit
            return hit

        failed = 0
        for number in range(ROUNDS):
            for each in range(6):
                world.log.add(AFTER if key else 0, row(each, f"{number}"))
            catalog.lose_answers = lose
            try:
                world.tier()
            except Exception as error:  # noqa: BLE001 - whatever it was, the lake says what is true
                print(f"round {number}: {str(error).splitlines()[0][:150]}")
                failed += 1
            catalog.lose_answers = lambda _updates: False
            state = world.lake.find_committed()
            if state.committed is not None:
                assert world.lake_rows() == world.log.rows(state.offsets) == world.read_by_another()
        assert world.tier().outcome in (Outcome.COMMITTED, Outcome.NOTHING_NEW)
        assert world.lake_rows() == world.log.rows() == world.read_by_another()
        print(f"seed {SEED}: {lost} answers lost, {failed} of {ROUNDS} rounds failed by it")
        assert lost


def renamed(value: dict[str, Any]) -> dict[str, Any]:
    """A row as it is after the columns changed."""
    names = {"name": "called"}
    return {
        **{names.get(name, name): each for name, each in value.items()},
        "note": value.get("note", "none"),
    }


# ---- through the commands and clients that users take


def tierer(address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.tablelayer.cli.main", "tier", "--once", "--server", address],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def tier(address: str, tierers: int) -> list[str]:
    """Run tierers at the same time; return their outputs."""
    running = [tierer(address) for _ in range(tierers)]
    said = [each.communicate(timeout=300)[0] for each in running]
    assert all(each.returncode == 0 for each in running), said
    return said


def check_all_doors(
    spark: Any,
    client: Connection,
    address: str,
    catalog: RestCatalog,
    path: str,
    expected: dict[str, list[Any]],
) -> None:
    """`expected`: the table's rows, and those of the lake alone."""
    database, table = path.split(".")
    names = client.table(path).definition.schema.names
    listed = ", ".join(names)
    for name, what in (("", "table"), ("$lake", "lake")):
        rows = expected[what]
        assert rows_of(union_read(spark, address, f"{path}{name}").collect()) == rows, f"Spark, {what}"
        found = union_scan(client, f"{path}{name}").to_arrow().select(names).to_pylist()
        assert rows_of(each.values() for each in found) == rows, f"client, {what}"
        (answer,) = Session(client).run(f'SELECT {listed} FROM "{table}{name}"')
        assert answer.rows is not None
        assert rows_of(each.values() for each in answer.rows.to_pylist()) == rows, f"sql, {what}"
    other = load_catalog("another", **catalog.properties).load_table((database, table))
    found = other.scan().to_arrow().select(names).to_pylist()
    assert rows_of(each.values() for each in found) == expected["lake"], "pyiceberg"
    (answer,) = Session(client).run(f'SELECT count(*) FROM "{table}$lake$snapshots"')
    assert answer.rows is not None
    assert answer.rows.to_pylist() == [{"count_star()": len(other.metadata.snapshots)}]


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(900)
def test_headrace_tier_and_every_reader_through_a_rest_catalog(
    spark: Any, catalog: RestCatalog, tmp_path: Path, make_server: Callable[..., Any]
) -> None:
    server = make_server(tmp_path, {"datalake.iceberg.type": "rest", "datalake.iceberg.uri": catalog.uri})
    server.start()
    try:
        with connect(server.address) as client:
            columns: list[Any] = [("id", BIGINT), ("n", INT), ("name", STRING)]
            lake = {"table_datalake_enabled": "true", "table_datalake_format": "iceberg"}
            log, keyed = create(client, columns, **lake), create(client, columns, ("id",), **lake)
            rows = [{"id": n, "n": n % 7, "name": f"n{n}"} for n in range(500)]
            client.table(log).append(rows)
            client.table(keyed).upsert(rows)
            print(tier(server.address, 1))
            first = [tuple(each.values()) for each in rows]
            for path in (log, keyed):
                expected = {"table": rows_of(first), "lake": rows_of(first)}
                check_all_doors(spark, client, server.address, catalog, path, expected)

            # Second round: upserts, deletes, another column; two tierers at once.
            for path in (log, keyed):
                client.execute(f"ALTER TABLE {path} ADD note STRING DEFAULT 'none', RENAME name TO called")
            more = [{"id": n, "n": -n, "called": "x", "note": None} for n in range(400, 600)]
            client.table(log).append(more)
            client.table(keyed).upsert(more)
            client.table(keyed).delete([{"id": n} for n in range(50)])
            print(tier(server.address, 2))
            old = [(*each, "none") for each in first]
            new = [tuple(each.values()) for each in more]
            state = {each[0]: each for each in old if each[0] >= 50} | {each[0]: each for each in new}
            lakes = {log: rows_of(old + new), keyed: rows_of(state.values())}
            for path, in_lake in lakes.items():
                check_all_doors(
                    spark, client, server.address, catalog, path, {"table": in_lake, "lake": in_lake}
                )

            # And a tail that only the log has.
            tail = [{"id": n, "n": 0, "called": "tail", "note": "t"} for n in range(590, 610)]
            client.table(log).append(tail)
            client.table(keyed).upsert(tail)
            client.table(keyed).delete([{"id": 60}])
            newest = [tuple(each.values()) for each in tail]
            state |= {each[0]: each for each in newest}
            del state[60]
            whole = {log: old + new + newest, keyed: list(state.values())}
            for path, in_lake in lakes.items():
                table = rows_of(whole[path])
                check_all_doors(
                    spark, client, server.address, catalog, path, {"table": table, "lake": in_lake}
                )
        print(f"{catalog.commits} commits, {catalog.refused} refused")
    finally:
        server.stop()
