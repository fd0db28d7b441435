"""Lake and log together equal the table at every moment, compared with DuckDB over all written rows.

A client writes and a tierer runs meanwhile.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.lake.iceberg_reader import IcebergReader
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.lake.union_read import union_read
from headrace.tablelayer.lake.union_scan import union_scan
from headrace.tablelayer.model.types.column_types import BIGINT, INT, STRING
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.spark.spark_tables import create

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROUNDS = int(os.environ.get("HEADRACE_SOAK_ROUNDS", "20"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "20240919"))
PREDICATES = ("TRUE", "n >= 500", "name = 'x'", "id BETWEEN 50 AND 200 AND n < 700")


def oracle(client: Connection, path: str, end: Mapping[int, int], predicate: str) -> list[tuple[Any, ...]]:
    """Return the table's rows at `end` by the log, computed by DuckDB."""
    parts = []
    table = client.table(path)
    with table.scan(start=dict.fromkeys(end, 0), until=dict(end)) as scan:
        for part in scan:
            batch = pa.table(part.batch).append_column("place", pa.array(part.offsets, pa.int64()))
            batch = batch.append_column("bucket", pa.array([part.bucket] * batch.num_rows, pa.int32()))
            parts.append(batch.append_column("change", pa.array(part.change_types, pa.uint8())))
    if not parts:
        return []
    with duckdb.connect() as database:
        database.register("changes", pa.concat_tables(parts))
        rows = "changes"
        if table.definition.is_primary_key_table:
            rows = (
                "(SELECT * FROM changes QUALIFY row_number() OVER (PARTITION BY id ORDER BY place DESC) = 1)"
                " WHERE change <> 4"
            )
        found = database.sql(f"SELECT id, n, name FROM (SELECT * FROM {rows}) WHERE {predicate}")
        return sorted(found.fetchall())


def run(
    spark: Any,
    address: str,
    client: Connection,
    monkeypatch: pytest.MonkeyPatch,
    key: bool,
    rounds: int,
    lake: str = "iceberg",
    *,
    tiered: int = 0,
    spark_every: int = 1,
    compaction: bool = True,
) -> str:
    """Read at least `rounds` times while a client writes, and until the tierer has run `tiered` times.

    Spark reads the first time, the last time, and at intervals in between. Return the table's path.
    """
    path = create(
        client,
        [("id", BIGINT), ("n", INT), ("name", STRING)],
        ("id",) if key else (),
        table_datalake_enabled="true",
        table_datalake_format=lake,
        **{"table_datalake_auto-compaction": str(compaction).lower()},
    )
    pinned: list[dict[int, int]] = []
    latest = TableChanges.latest

    def recorded(self: TableChanges) -> dict[int, int]:
        end = latest(self)
        if threading.current_thread() is threading.main_thread():
            pinned.append(end)
        return end

    monkeypatch.setattr(TableChanges, "latest", recorded)
    stop, failures, done = threading.Event(), [], []

    def write() -> None:
        rng, table = random.Random(SEED), client.table(path)
        while not stop.wait(0.05):
            rows = [
                {"id": rng.randrange(300), "n": rng.randrange(1000), "name": rng.choice("xyz")}
                for _ in range(20)
            ]
            if not key:
                table.append(rows)
            elif rng.random() < 0.3:
                table.delete([{"id": each["id"]} for each in rows[:7]])
            else:
                table.upsert(rows)

    def tier() -> None:
        said: list[str] = []
        while not stop.wait(0.2) and not (tiered and len(done) == tiered):
            if run_tiering(address, tables=[path], once=True, report=said.append):
                failures.append(said[-1])
            if "into snapshot" in said[-1]:  # at first there may be nothing to tier yet
                done.append(said[-1])

    threads = [threading.Thread(target=each) for each in (write, tier)]
    for thread in threads:
        thread.start()
    try:
        rng = random.Random(SEED)
        for number in itertools.count():
            last = number + 1 >= rounds and len(done) >= tiered
            predicate = PREDICATES[number % len(PREDICATES)] if number else "TRUE"
            if last or number % spark_every == 0:
                frame = union_read(spark, address, path).where(predicate)
                end = pinned[-1]
                for _ in range(1 + (rng.random() < 0.3)):  # the same rows again, whatever was done meanwhile
                    assert sorted(map(tuple, frame.collect())) == oracle(client, path, end, predicate)
            # The same without Spark, where a predicate is one that the server understands.
            scan = union_scan(client, path, filter=None if predicate == "TRUE" else predicate)
            assert scan.end_offsets is not None
            for _ in range(2):
                rows = [tuple(each.values()) for each in scan.to_arrow().to_pylist()]
                assert sorted(rows) == oracle(client, path, scan.end_offsets, predicate)
            if last or failures:
                break
        assert union_read(spark, address, f"{path}$lake").count() > 0
        said = Session(client)
        for view, column in (("$lake$snapshots", "epoch"), ("$lake", "id")):
            (answer,) = said.run(f'SELECT count({column}) FROM "{path.split(".")[1]}{view}"')
            assert answer.rows is not None
            assert answer.rows.column(0)[0].as_py() > 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert failures == []
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lake_and_log_are_the_table_while_it_is_written_and_tiered(
    spark: Any, address: str, client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(spark, address, client, monkeypatch, True, 4, tiered=2, spark_every=1 << 30, compaction=False)
    tiered = tiered_table(client, path, None)
    lake = tiered.catalog.reader(tiered.definition)
    assert isinstance(lake, IcebergReader)
    tasks = lake.table.scan(snapshot_id=lake.state(tiered.known_snapshot).head).plan_files()
    assert any(task.delete_files for task in tasks), "rounds that merge leave deletes, which were read"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
@pytest.mark.parametrize("key", [True, False])
def test_the_same_for_longer(
    spark: Any, address: str, client: Connection, monkeypatch: pytest.MonkeyPatch, key: bool, lake: str
) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds")
    run(spark, address, client, monkeypatch, key, ROUNDS, lake)


def test_files_of_zeros_and_of_nan_are_read_by_every_condition(
    spark: Any, address: str, client: Connection
) -> None:
    """Iceberg's statistics tell -0.0 from 0.0 and leave out NaN, the largest number in Spark."""
    path = f"default.{create(client, [('id', BIGINT)]).partition('.')[2]}_floats"
    client.execute(
        f"CREATE TABLE {path} (p STRING, d DOUBLE, f FLOAT, r ROW<d DOUBLE, s ROW<d DOUBLE>>) PARTITIONED BY (p)"
        " WITH ('bucket.num' = '1', 'table.datalake.enabled' = 'true', 'table.datalake.format' = 'iceberg')"
    )
    values = {"zero": 0.0, "minus": -0.0, "nan": float("nan"), "seven": 7.0}
    client.table(path).append(
        [{"p": p, "d": d, "f": d, "r": {"d": d, "s": {"d": d}}} for p, d in values.items()]
    )
    assert run_tiering(address, tables=[path], once=True, report=print) == 0
    frame = union_read(spark, address, path)
    asked = [
        f"{column} {condition}"
        for column in ("d", "f", "r.s.d")
        for condition in ("= 0", "= -0.0D", "> 5", "IN (0, 3)")
    ]
    kept = spark.createDataFrame(frame.collect(), frame.schema).selectExpr("p", *asked).collect()
    for place, condition in enumerate(asked):
        found = {row.p for row in frame.where(condition).collect()}
        assert found == {row.p for row in kept if row[1 + place]}, condition
