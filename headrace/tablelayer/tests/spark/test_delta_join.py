"""Delta joins: the stream of pairs, applied by key, is the join of the final tables; without Spark and a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import BIGINT, INT, STRING
from headrace.tablelayer.spark.delta_joins import (
    GroupPartition,
    check_join,
    delta_join,
    groups_of,
    read_group,
)
from headrace.tablelayer.spark.lookups import lookup_join
from headrace.tablelayer.spark.splits import Split

ORDERS = TableDefinition(
    TablePath("db", "orders"),
    Schema.of([("customer", BIGINT), ("nr", BIGINT), ("price", BIGINT)], ["customer", "nr"]),
    bucket_key=("customer",),
    bucket_count=1,
)
CUSTOMERS = TableDefinition(
    TablePath("db", "customers"), Schema.of([("id", BIGINT), ("name", BIGINT)], ["id"]), bucket_count=1
)
ADDRESSES = TableDefinition(
    TablePath("db", "addresses"),
    Schema.of([("owner", BIGINT), ("place", BIGINT), ("street", BIGINT)], ["owner", "place"]),
    bucket_key=("owner",),
    bucket_count=1,
)


class Memory:
    """A PK table of one bucket: a log of keys, and its state at every offset of it."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.key = definition.schema.primary_key
        self.prefix = definition.bucket_key
        self.states: list[dict[tuple[int, ...], int]] = [{}]
        self.log: list[tuple[int, ...]] = []
        self.present = 0
        """The offset whose state is what lookups see."""

    def write(self, key: tuple[int, ...], value: int | None) -> None:
        state = dict(self.states[-1])
        if value is None:
            if key not in state:
                return
            del state[key]
        else:
            state[key] = value
        self.log.append(key)
        self.states.append(state)

    def _table(self, rows: list[tuple[int, ...]], columns: list[str]) -> pa.Table:
        names = self.definition.schema.names
        data = {name: pa.array([row[index] for row in rows], pa.int64()) for index, name in enumerate(names)}
        return pa.table(data).select(columns)

    def rows(self) -> list[tuple[int, ...]]:
        return [(*key, value) for key, value in sorted(self.states[self.present].items())]

    def lookup(self, keys: pa.Table, columns: list[str]) -> tuple[Any, pa.Table]:
        asked = [tuple(row.values()) for row in keys.to_pylist()]
        state = self.states[self.present]
        found = np.array([key in state for key in asked], bool)
        return found, self._table([(*key, state.get(key, 0)) for key in asked], columns)

    def prefix_lookup_grouped(self, keys: pa.Table, columns: list[str]) -> tuple[Any, pa.Table]:
        owners, rows = [], []
        for index, prefix in enumerate(tuple(row.values()) for row in keys.to_pylist()):
            for row in self.rows():
                if row[: len(prefix)] == prefix:
                    owners.append(index)
                    rows.append(row)
        return np.array(owners, np.int64), self._table(rows, columns)

    def snapshot(self, bucket: int, columns: list[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        table = self._table(self.rows(), columns)
        for start in range(0, max(1, table.num_rows), 3):
            part = table.slice(start, 3).combine_chunks()
            batches = part.to_batches() or [pa.RecordBatch.from_pylist([], schema=part.schema)]
            yield batches[0], self.present

    @contextmanager
    def scan(self, columns: list[str], start: Any, until: Any, buckets: list[int]) -> Iterator[Any]:
        part = self.log[start[0] : until[0]]
        data = {name: pa.array([key[self.key.index(name)] for key in part], pa.int64()) for name in columns}
        schema = pa.schema([self.definition.schema.column(name).field() for name in columns])
        yield iter([SimpleNamespace(batch=pa.RecordBatch.from_pydict(data, schema=schema))])


writes = st.lists(
    st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 1), st.none() | st.integers(0, 9)),
    min_size=4,
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(
    writes,
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)), max_size=8),
    st.booleans(),
    st.sampled_from(["inner", "left"]),
)
def test_the_stream_applied_by_key_is_the_join_of_the_tables(
    steps: list[tuple[bool, int, int, int | None]],
    batches: list[tuple[int, int, int]],
    by_prefix: bool,
    how: Any,
) -> None:
    """The rule holds for any micro-batches, and however far lookups run ahead of them."""
    right_definition = ADDRESSES if by_prefix else CUSTOMERS
    on = {"customer": right_definition.bucket_key[0]}
    join = check_join("x:1", ORDERS, right_definition, on, None, how)
    left, right = Memory(ORDERS), Memory(right_definition)
    for is_left, a, b, value in steps:
        if is_left:
            left.write((a, b), value)
        else:
            right.write((a, b) if by_prefix else (a,), value)
    at = [0, 0]
    result: dict[tuple[int | None, ...], tuple[int, int | None]] = {}
    width = len(right_definition.schema.primary_key)
    first = True
    tables = {ORDERS.path: left, right_definition.path: right}
    for more_left, more_right, ahead in [*batches, (99, 99, 0)]:
        end = [min(at[0] + more_left, len(left.log)), min(at[1] + more_right, len(right.log))]
        for side, until in zip((left, right), end, strict=True):
            side.present = max(
                side.present, min(until + ahead, len(side.log))
            )  # no reader sees an older state again
        splits = ([Split(0, at[0], end[0])], [Split(0, at[1], end[1])])
        partition = GroupPartition(0, 1, None, None) if first else GroupPartition(0, 1, *splits)
        with patch(
            "headrace.tablelayer.spark.delta_joins.open_table", lambda _, definition: tables[definition.path]
        ):
            for batch in read_group(join, partition, changes=True):
                for row in batch.to_pylist():
                    names = ["customer", "nr", *(["place"] if width == 2 else [])]
                    key = tuple(row[name] for name in names)
                    if row["_change_type"] == "-D":
                        result.pop(key, None)
                    else:
                        result[key] = (row["price"], row["street" if by_prefix else "name"])
        at, first = end, False
    assert result == expected(left, right, how)
    # A batch gives the same at once.
    tables_now = {ORDERS.path: left, right_definition.path: right}
    with patch(
        "headrace.tablelayer.spark.delta_joins.open_table", lambda _, definition: tables_now[definition.path]
    ):
        rows = [
            row
            for batch in read_group(join, GroupPartition(0, 1, None, None), changes=False)
            for row in batch.to_pylist()
        ]
    value = "street" if by_prefix else "name"
    keys = ["customer", "nr", *(["place"] if width == 2 else [])]
    found = [(*(row[name] for name in keys), row["price"], row[value]) for row in rows]
    assert sorted(found, key=repr) == sorted(((*key, *values) for key, values in result.items()), key=repr)


def expected(left: Memory, right: Memory, how: str) -> dict[tuple[Any, ...], tuple[Any, Any]]:
    """Return the join as SQL defines it, over all pairs."""
    result: dict[tuple[Any, ...], tuple[Any, Any]] = {
        (*ours, *theirs[1:]): (price, value)
        for ours, price in left.states[-1].items()
        for theirs, value in right.states[-1].items()
        if ours[0] == theirs[0]
    }
    matched = {key[0] for key in right.states[-1]}
    nothing: tuple[Any, ...] = (None,) * (len(right.key) - 1)
    for ours, price in left.states[-1].items():
        if how == "left" and ours[0] not in matched:
            result[*ours, *nothing] = (price, None)
    return result


def test_tables_that_a_delta_join_cannot_join_are_named() -> None:
    other = TableDefinition(
        TablePath("db", "o"), Schema.of([("k", INT), ("v", STRING)], ["k"]), bucket_count=1
    )
    log = TableDefinition(TablePath("db", "l"), Schema.of([("k", BIGINT)]), bucket_count=1)
    for right, on, said in (
        (log, {"customer": "k"}, "is a log table"),
        (other, {"customer": "k"}, "differ in type"),
        (CUSTOMERS, {"nr": "id"}, "of both tables as join columns"),
    ):
        with pytest.raises(TableError, match=said):
            check_join("x:1", ORDERS, right, on, None)
    parted = TableDefinition(
        TablePath("db", "p"),
        Schema.of([("d", BIGINT), ("k", BIGINT)], ["d", "k"]),
        bucket_key=("k",),
        bucket_count=1,
        partition_keys=("d",),
    )
    whole = TableDefinition(
        TablePath("db", "w"),
        Schema.of([("d", BIGINT), ("k", BIGINT), ("v", INT)], ["d", "k"]),
        bucket_count=1,
    )
    with pytest.raises(TableError, match="distribute their rows differently"):
        check_join("x:1", parted, whole, {"d": "d", "k": "k"}, None)
    with pytest.raises(TableError, match="'price' would appear twice"):
        check_join("x:1", ORDERS, CUSTOMERS, {"customer": "id"}, {"name": "price"})
    named = check_join("x:1", ORDERS, ADDRESSES, {"customer": "owner"}, {"street": "s"})
    assert dict(named.names) == {"place": "place", "street": "s"}


def test_groups_of_buckets_are_the_common_divisor() -> None:
    def sized(definition: TableDefinition, count: int) -> TableDefinition:
        return TableDefinition(definition.path, definition.schema, definition.bucket_key, count)

    for left, right, groups in ((4, 6, 2), (3, 3, 3), (2, 5, 1)):
        join = check_join("x:1", sized(ORDERS, left), sized(CUSTOMERS, right), {"customer": "id"}, None)
        assert groups_of(join) == groups


def test_on_takes_one_name_or_several_that_are_equal_and_reads_no_text_as_its_letters() -> None:
    asked: list[Any] = []
    with (
        patch("headrace.tablelayer.spark.delta_joins.bootstrap_of", lambda *_: "x:1"),
        patch("headrace.tablelayer.spark.delta_joins.server_options", lambda _: {}),
        patch("headrace.tablelayer.spark.delta_joins.plan_join", lambda _, spec: asked.append(spec["on"])),
    ):
        for on in ("id", ["id"], {"id": "id"}, [("id", "nr")]):
            delta_join(MagicMock(), "db.a", "db.b", on=on)
        with pytest.raises(TypeError, match=r"select=\['ab'\]"):
            delta_join(MagicMock(), "db.a", "db.b", on=["id"], select="ab")
    assert asked == [{"id": "id"}] * 3 + [{"id": "nr"}]


def test_a_lookup_join_accepts_pairs_of_names() -> None:
    definition = CUSTOMERS
    admin = SimpleNamespace(describe_table=lambda _: definition)
    with patch("headrace.tablelayer.spark.lookups.connection", lambda _: SimpleNamespace(admin=admin)):
        for on in ("id", ["id"]):
            with pytest.raises(TableError, match="`on` names column id, but the frame has x"):
                lookup_join(SimpleNamespace(columns=["x"]), "x:1", "db.customers", on=on)
        with pytest.raises(TypeError, match=r"select=\['name'\]"):
            lookup_join(SimpleNamespace(columns=["id"]), "x:1", "db.customers", on=["id"], select="name")
