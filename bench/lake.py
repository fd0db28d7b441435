"""The lake: rounds of tiering into Iceberg and Paimon, commit included, and union reads compared with reads of the
lake.

A round is timed as a user sees it, by `run_tiering(once=True)` in a process whose Spark is up: taking the round from
the server, reading, writing, committing, reporting. Lake tables exist and have rows before the measurement begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from bench.report import Goal
from bench.spark_world import Figure, Group, Size, World, consume, memory_growth

_FORMATS = ("iceberg", "paimon")
LAKE_ALONE = "lake alone"


def tier(place: World, size: Size) -> Iterator[Figure]:
    """Append to a log table; upsert existing keys, scattered over a PK table."""
    rows, keys, changed = (
        size.rows(2_000_000, 1_000_000),
        size.rows(1_000_000, 500_000),
        size.rows(300_000, 200_000),
    )
    for lake in _FORMATS:
        options = f", 'table.datalake.enabled'='true', 'table.datalake.format'='{lake}'"
        name, wanted = f"tier_log_{lake}", (size.round + 1) * rows + 1_000
        if size.round == 0:
            _tiered(place, place.log_table(name, 1_000, options), lake)
        log = place.log_table(name, wanted)
        seconds, cpu = place.timed(lambda table=log, lake=lake: _tiered(place, table, lake))
        yield Figure(f"tiering, append, {lake}, rows/s", rows / seconds, Goal(value_min=5e5))
        yield Figure(f"tiering, append, {lake}, CPU s per million rows", cpu * 1e6 / rows)
        pk = place.pk_table(f"tier_pk_{lake}", keys, options)
        if size.round == 0:
            seconds, _ = place.timed(lambda table=pk, lake=lake: _tiered(place, table, lake))
            yield Figure(f"tiering, first round of a PK table, {lake}, rows/s", keys / seconds)
            place.upsert(pk, _scattered(keys, 1_000), 1)
            _tiered(place, pk, lake)  # not counted: the first merge
        place.upsert(pk, _scattered(keys, changed), size.round + 2)
        seconds, cpu = place.timed(lambda table=pk, lake=lake: _tiered(place, table, lake))
        yield Figure(f"tiering, upsert, {lake}, rows/s", changed / seconds, Goal(value_min=1.5e5))
        yield Figure(f"tiering, upsert, {lake}, CPU s per million rows", cpu * 1e6 / changed)


def union(place: World, size: Size) -> Iterator[Figure]:
    """Read 5 M rows in Iceberg and 100,000 keys that have changed since (quick: 1.5 M and 30,000)."""
    rows = size.rows(5_000_000, 1_500_000)
    changed = rows // 50
    for lake, kind in product(_FORMATS, ("PK table", "log table")):
        keyed = kind == "PK table"
        make = place.pk_table if keyed else place.log_table
        name = f"union_{'pk' if keyed else 'log'}_{lake}"
        if size.round == 0:
            options = f", 'table.datalake.enabled'='true', 'table.datalake.format'='{lake}'"
            _tiered(place, make(name, rows, options), lake)
            if keyed:
                place.upsert(f"bench.{name}", _scattered(rows, changed), 1)
            else:
                make(name, rows + changed)
        warehouse = _warehouse(place, lake)
        ways: dict[str, Callable[[str], None]] = {
            "all columns in Spark": partial(_read_all, place, warehouse),
            "sum of one column in Spark": partial(_add_up, place, warehouse),
            "all columns without Spark": partial(_read_without_spark, place, warehouse),
        }
        for way, work in ways.items():
            if size.round == 0:
                work(f"bench.{name}$lake")
                work(f"bench.{name}")
            alone, together = (_seconds(work, f"bench.{name}{suffix}") for suffix in ("$lake", ""))
            what = f"union read of a {kind}, {lake}, {way}"
            yield Figure(f"{what}, s", together, Goal(ratio_max=1.3 if keyed else 1.1))
            yield Figure(f"{what}, s", alone, None, LAKE_ALONE)


def _grow(place: World, make: Callable[[str, int], str], name: str, rows: int) -> None:
    _tiered(place, make(name, rows), "iceberg")


def _read_all(place: World, warehouse: str, table: str) -> None:
    from headrace.tablelayer.lake.union_read import union_read

    frame = union_read(place.spark, place.address, table, warehouse=warehouse)
    consume(frame.select(*_own(place, table)))


def _add_up(place: World, warehouse: str, table: str) -> None:
    from headrace.tablelayer.lake.union_read import union_read

    frame = union_read(place.spark, place.address, table, warehouse=warehouse)
    frame.selectExpr("sum(price)", "count(*)").collect()


def _read_without_spark(place: World, warehouse: str, table: str) -> None:
    from headrace.tablelayer.lake.union_scan import union_scan

    for _batch in union_scan(place.connection, table, _own(place, table), warehouse=warehouse):
        pass


def _own(place: World, table: str) -> list[str]:
    """Return the table's columns, without those that only its lake table has."""
    names: list[str] = place.connection.table(table.removesuffix("$lake")).definition.schema.names
    return names


def memory(place: World, size: Size) -> Iterator[Figure]:
    """Measure the peaks of a round that moves 100,000 rows, and of one that moves a million."""
    if size.round:
        return
    for kind, make in (("log", place.log_table), ("PK", place.pk_table)):
        name, rows = f"memory_{kind.lower()}", size.rows(2_000_000, 1_000_000)
        table = make(name, 1_000, ", 'table.datalake.enabled'='true'")
        _tiered(place, table, "iceberg")
        little, much = (partial(_grow, place, make, name, upto) for upto in (rows // 10, rows + rows // 10))
        yield from memory_growth(place, f"tiering of a {kind} table", little, much, times=1)


def _seconds(work: Callable[[str], None], table: str) -> float:
    started = time.perf_counter()
    work(table)
    return time.perf_counter() - started


def _scattered(keys: int, count: int) -> np.ndarray:
    """Return `count` different keys below `keys`, all over the table."""
    return np.arange(count, dtype=np.int64) * (keys // count)


def _warehouse(place: World, lake: str) -> str:
    return f"{place.warehouse}-{lake}" if lake == "paimon" else str(place.warehouse)


def _tiered(place: World, table: str, lake: str) -> None:
    """Bring the lake up to the table's end. Raise RuntimeError with the tierer's error."""
    from headrace.tablelayer.lake.tiering_job import run_tiering

    said: list[str] = []
    if run_tiering(place.address, tables=[table], warehouse=_warehouse(place, lake), report=said.append):
        raise RuntimeError(f"{table} was not tiered: {'; '.join(said)}")


GROUPS: dict[str, Group] = {"lake-memory": memory, "tier": tier, "union": union}
