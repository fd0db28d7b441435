"""The worker's side of lookup joins, without Spark and without a server: prefixes, order, the cache."""

from __future__ import annotations

import pickle
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import BIGINT, STRING
from headrace.tablelayer.spark.lookups import BatchLookup, CachedLookups

SCHEMA = Schema.of([("a", BIGINT), ("b", BIGINT), ("v", STRING)], ["a", "b"])


class Lines:
    """A table with several rows for each `a`."""

    def __init__(self, counts: dict[int, int]) -> None:
        self.rows = {a: [f"{a}.{b}" for b in range(count)] for a, count in counts.items()}

    def prefix_lookup_grouped(self, prefixes: pa.Table, columns: list[str]) -> tuple[Any, pa.Table]:
        owners, values = [], []
        for index, a in enumerate(prefixes.column("a").to_pylist()):
            for value in self.rows.get(a, []):
                owners.append(index)
                values.append(value)
        return np.array(owners, np.int64), pa.table({"v": pa.array(values, pa.string())})


@given(
    st.dictionaries(st.integers(0, 5), st.integers(0, 3)),
    st.lists(st.none() | st.integers(0, 7), max_size=20),
)
def test_a_join_by_prefix_gives_every_row_of_the_prefix(
    counts: dict[int, int], left: list[int | None]
) -> None:
    table = Lines(counts)
    definition = TableDefinition(TablePath("db", "t"), SCHEMA, bucket_key=("a",))
    batch = pa.record_batch({"n": pa.array(range(len(left)), pa.int64()), "ref": pa.array(left, pa.int64())})
    for inner in (False, True):
        worker = BatchLookup("x:1", definition, ("ref",), ("v",), ("its_v",), inner, by_prefix=True)
        joined = worker.join(batch, table, worker.target())
        expected = []
        for n, ref in enumerate(left):
            found: list[str | None] = [] if ref is None else list(table.rows.get(ref, []))
            expected += [(n, value) for value in found or ([] if inner else [None])]
        assert [(row["n"], row["its_v"]) for row in joined.to_pylist()] == expected


class Slow:
    """Answers later batches sooner."""

    def __init__(self) -> None:
        self.asked = 0

    def lookup(self, keys: pa.Table, columns: list[str]) -> tuple[Any, pa.Table]:
        self.asked += 1
        time.sleep(0.03 if self.asked % 3 == 1 else 0)
        return np.ones(keys.num_rows, bool), pa.table({"v": keys.column("k").cast(pa.string())})


def test_batches_come_out_in_order_though_several_are_under_way() -> None:
    schema = Schema.of([("k", BIGINT), ("v", STRING)], ["k"])
    definition = TableDefinition(TablePath("db", "t"), schema)
    worker = BatchLookup("x:1", definition, ("k",), ("v",), ("its_v",), False)
    batches = [pa.record_batch({"k": pa.array([n, n + 100], pa.int64())}) for n in range(10)]
    with patch("headrace.tablelayer.spark.lookups.open_table", lambda *_: Slow()):
        found = [row["its_v"] for batch in worker(iter(batches)) for row in batch.to_pylist()]
    assert found == [str(n) for k in range(10) for n in (k, k + 100)]


def test_workers_look_up_with_the_settings_that_were_asked_for() -> None:
    definition = TableDefinition(TablePath("db", "t"), Schema.of([("k", BIGINT), ("v", STRING)], ["k"]))
    config = ClientConfig(lookup_from="any", lookup_max_staleness_ms=500)
    worker = BatchLookup("x:1", definition, ("k",), ("v",), ("its_v",), False, config=config)
    opened = []

    def open_table(*arguments: Any) -> Slow:
        opened.append(arguments)
        return Slow()

    with patch("headrace.tablelayer.spark.lookups.open_table", open_table):
        list(pickle.loads(pickle.dumps(worker))(iter([pa.record_batch({"k": pa.array([1], pa.int64())})])))
    assert opened == [("x:1", definition, config)]


class Versions:
    """A table whose rows change with every version."""

    def __init__(self) -> None:
        self.version = 0
        self.asked: list[int] = []

    def lookup(self, keys: pa.Table, columns: list[str]) -> tuple[Any, pa.Table]:
        asked = keys.column("k").to_pylist()
        self.asked += asked
        found = np.array([key % 2 == 0 for key in asked], bool)
        values = [f"{key}@{self.version}" if key % 2 == 0 else None for key in asked]
        return found, pa.table({"v": pa.array(values, pa.string())})


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True), st.integers(0, 4)),
        max_size=25,
    )
)
def test_the_cache_answers_as_the_table_did_within_its_time(steps: list[tuple[list[int], int]]) -> None:
    table = Versions()
    clock = 0.0
    cache = CachedLookups(table, ["v"], 10.0, lambda: clock)
    for keys, pause in steps:
        clock += pause
        table.version = int(clock)
        found, rows = cache.lookup(pa.table({"k": pa.array(keys, pa.int64())}), ["v"])
        for key, there, value in zip(keys, found, rows.column("v").to_pylist(), strict=True):
            assert there == (key % 2 == 0)
            if there:
                number, version = value.split("@")
                assert int(number) == key
                assert clock - int(version) < 10


def test_cached_keys_are_not_looked_up_again() -> None:
    table = Versions()
    clock = [0.0]
    cache = CachedLookups(table, ["v"], 10.0, lambda: clock[0])
    keys = pa.table({"k": pa.array([1, 2], pa.int64())})
    for _ in range(3):
        cache.lookup(keys, ["v"])
    assert table.asked == [1, 2]
    cache.lookup(pa.table({"k": pa.array([2, 3], pa.int64())}), ["v"])
    assert table.asked == [1, 2, 3]
    clock[0] = 11
    cache.lookup(keys, ["v"])
    assert table.asked == [1, 2, 3, 1, 2]
