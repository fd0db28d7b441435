"""The speed of tables by the table client: upserts, lookups, COPY FROM, scans of all and of few columns.

The PK table has a bigint key and nine columns, about 100 bytes a row, keys in scattered order; the log table has twenty
columns, about 170 bytes a row. Both have one bucket, with acks=all.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.rows import AGGREGATION, LOG_COLUMNS, PARTIAL_COLUMNS, PK_COLUMNS, WRITE_ROWS, log_rows, pk_rows
from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.sql.session import Session

LOOKUP_KEYS = 5_000


def upsert_all(
    connection: Connection,
    table: str,
    order: np.ndarray,
    seed: int,
    columns: list[str] | None = None,
    make: Callable[[np.ndarray, int], pa.RecordBatch] = pk_rows,
) -> float:
    """Write the rows that `make` returns for ids in this order, all columns or these.

    Return rows a second until all are acknowledged (so visible to lookups).
    """
    handle = connection.table(table)
    starts = range(0, len(order), WRITE_ROWS)
    data = pa.Table.from_batches([make(order[start : start + WRITE_ROWS], seed) for start in starts])
    started = time.perf_counter()
    if columns is None:
        handle.upsert(data)
    else:
        handle.partial(data.select(columns), columns)
    return len(order) / (time.perf_counter() - started)


def measure_engines(
    connection: Connection, figures: dict[str, list[float]], name: str, order: np.ndarray
) -> None:
    """Write to `first_row` and aggregation: new keys, then all of them again."""
    functions = ", ".join(f"'fields.{column}.agg'='{function}'" for column, function in AGGREGATION.items())
    for engine, options in (("first_row", ""), ("aggregation", f", {functions}")):
        table = f"bench.{engine}{name}"
        connection.execute(
            f"CREATE TABLE {table} ({PK_COLUMNS}) WITH ('table.merge-engine'='{engine}'{options})"
        )
        figures[f"{engine}, fresh keys, rows/s"].append(upsert_all(connection, table, order, 1))
        figures[f"{engine}, existing keys, rows/s"].append(
            upsert_all(connection, table, order[::-1].copy(), 2)
        )
        connection.execute(f"DROP TABLE {table}")


def lookup_all(connection: Connection, table: str, keys: np.ndarray) -> float:
    handle = connection.table(table)
    batches = [pa.table({"id": keys[i : i + LOOKUP_KEYS]}) for i in range(0, len(keys), LOOKUP_KEYS)]
    started = time.perf_counter()
    for batch in batches:
        found, _rows = handle.lookup(batch)
        if not all(found):
            raise RuntimeError("a key that was acknowledged was not found")
    return len(keys) / (time.perf_counter() - started)


def scan_all(
    connection: Connection, table: str, columns: list[str] | None, expected: int, condition: str | None = None
) -> float:
    """Return the seconds of a scan from the beginning to the end (with a condition: that leaves `expected` rows)."""
    handle = connection.table(table)
    started = time.perf_counter()
    scan = handle.scan(columns=columns, start="earliest", until="latest", filter=condition)
    rows = sum(part.batch.num_rows for part in scan)
    if rows != expected:
        raise RuntimeError(f"the scan returned {rows} of {expected} rows")
    return time.perf_counter() - started


def measure_scans(
    connection: Connection,
    table: str,
    rows: int,
    server_cpu: Callable[[], float],
    figures: dict[str, list[float]],
) -> None:
    """Scan a log table of `log_rows` from 0 to `rows`."""
    middle = rows // 2
    picked = sum(each % 97 == 5 for each in range(rows))
    kinds: tuple[tuple[str, list[str] | None, int, str | None], ...] = (
        ("scan of 20 of 20 columns", None, rows, None),
        ("scan of 2 of 20 columns", ["l1", "d2"], rows, None),
        ("scan of 1 of 20 columns", ["l1"], rows, None),
        ("scan for 10 ids (batches skipped)", None, 10, f"l0 >= {middle} AND l0 < {middle + 10}"),
        ("scan for a text in 1 % (rows dropped)", ["l1", "s1"], picked, "s1 = 'string-000000005'"),
    )
    for kind, columns, expected, condition in kinds:
        before = server_cpu()
        seconds = scan_all(connection, table, columns, expected, condition)
        figures[f"{kind}, rows/s"].append(rows / seconds)
        figures[f"{kind}, server CPU s per million rows"].append((server_cpu() - before) * 1e6 / rows)
    full, few = (figures[f"{kinds[index][0]}, rows/s"][-1] for index in (0, 1))
    figures["scan of 2 columns / scan of 20"].append(few / full)


def measure_copies(
    connection: Connection, table: str, figures: dict[str, list[float]], folder: Path, rows: int
) -> None:
    """Copy a table to files of each format and from them, with the CPU of this process: it reads and converts."""
    session = Session(connection, "bench")
    for kind in ("csv", "json", "parquet"):
        file = folder / f"rows.{kind}"
        for _ in session.run(f"COPY {table} TO '{file}'"):
            pass
        before, started = time.process_time(), time.perf_counter()
        for _ in session.run(f"COPY {table} FROM '{file}'"):
            pass
        figures[f"COPY FROM {kind}, rows/s"].append(rows / (time.perf_counter() - started))
        used = time.process_time() - before
        figures[f"COPY FROM {kind}, client CPU s per million rows"].append(used * 1e6 / rows)


def measure(
    address: str, rounds: int, scale: float, server_cpu: Callable[[], float]
) -> dict[str, list[float]]:
    """Return all figures, one value a round. Tables are created again each round. `server_cpu` returns its CPU
    seconds so far.
    """
    rows = max(20_000, int(1_000_000 * scale))
    figures: dict[str, list[float]] = defaultdict(list)
    generator = np.random.default_rng(7)
    with connect(address) as connection:
        connection.execute("CREATE DATABASE IF NOT EXISTS bench")
        # Not counted: the first write of a kind loads its code.
        connection.execute(f"CREATE TABLE bench.first ({PK_COLUMNS}) WITH ('bucket.num'='1')")
        few = np.arange(WRITE_ROWS, dtype=np.int64)
        for columns in (None, PARTIAL_COLUMNS):
            upsert_all(connection, "bench.first", few, 1, columns)
        with tempfile.TemporaryDirectory() as folder:
            measure_copies(connection, "bench.first", defaultdict(list), Path(folder), len(few))
        connection.execute("DROP TABLE bench.first")
        measure_engines(connection, defaultdict(list), "_first", few)
        for round_ in range(rounds):
            pk, log = f"bench.pk{round_}", f"bench.log{round_}"
            connection.execute(f"CREATE TABLE {pk} ({PK_COLUMNS}) WITH ('bucket.num'='1')")
            connection.execute(f"CREATE TABLE {log} ({LOG_COLUMNS}) WITH ('bucket.num'='1')")
            order = generator.permutation(rows).astype(np.int64)
            figures["upsert of fresh keys, rows/s"].append(upsert_all(connection, pk, order, 1))
            figures["upsert of existing keys, rows/s"].append(
                upsert_all(connection, pk, order[::-1].copy(), 2)
            )
            figures["partial update of 2 of 9 columns, rows/s"].append(
                upsert_all(connection, pk, order, 3, PARTIAL_COLUMNS)
            )
            measure_engines(connection, figures, str(round_), order)
            figures["lookups, 5,000 a call, keys/s"].append(lookup_all(connection, pk, order[: rows // 2]))
            with tempfile.TemporaryDirectory() as folder:
                measure_copies(connection, pk, figures, Path(folder), rows)
            handle = connection.table(log)
            data = pa.Table.from_batches(
                [
                    log_rows(start, WRITE_ROWS)
                    for start in range(0, rows // WRITE_ROWS * WRITE_ROWS, WRITE_ROWS)
                ]
            )
            started = time.perf_counter()
            handle.append(data)
            figures["append of 20 columns, rows/s"].append(data.num_rows / (time.perf_counter() - started))
            measure_scans(connection, log, data.num_rows, server_cpu, figures)
            connection.execute(f"DROP TABLE {pk}")
            connection.execute(f"DROP TABLE {log}")
    return figures
