"""The executors' work on Arrow batches, without Spark and without a server."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import (
    BIGINT,
    INT,
    STRING,
    binary,
    char,
    time,
    timestamp,
    timestamp_ltz,
)
from headrace.tablelayer.spark.lookups import BatchLookup, distinct_keys
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.splits import (
    DELETED_COLUMN,
    Rows,
    Split,
    TableRead,
    last_changes,
    plan_splits,
    read_split,
    with_metadata,
)
from headrace.tablelayer.spark.types import (
    METADATA_FIELDS,
    choose_columns,
    conform,
    spark_arrow_schema,
    spark_schema,
)

INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4

changes = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["x", "y", None]), st.integers(0, 99), st.integers(1, 4)),
    max_size=40,
)


@given(changes, st.lists(st.integers(0, 40), max_size=4))
def test_the_last_change_of_each_key(log: list[tuple[int, str | None, int, int]], cuts: list[int]) -> None:
    """The result is compared with a dict: in any batches, the last change that is not a -U wins, in the order of
    the changes.
    """
    log = [(key, name or "", value, kind) for key, name, value, kind in log]  # keys are never null
    expected: dict[tuple[int, str], tuple[int, bool]] = {}
    for key, name, value, kind in log:
        if kind != BEFORE:
            expected.pop((key, name), None)
            expected[key, name] = (value, kind == DELETE)
    edges = sorted({0, len(log), *[cut for cut in cuts if cut < len(log)]})
    batches = []
    for start, end in itertools.pairwise(edges):
        part = log[start:end]
        batch = pa.record_batch(
            {
                "k": pa.array([p[0] for p in part]),
                "n": [p[1] for p in part],
                "v": pa.array([p[2] for p in part]),
            }
        )
        batches.append((batch, np.array([p[3] for p in part], np.uint8)))
    found = [row for batch in last_changes(batches, ["k", "n"]) for row in batch.to_pylist()]
    assert [(row["k"], row["n"], row["v"], row[DELETED_COLUMN]) for row in found] == [
        (*key, *value) for key, value in expected.items()
    ]


def test_last_changes_take_zeros_of_both_signs_for_one_key() -> None:
    batch = pa.record_batch({"k": np.array([0.0, -0.0, np.nan, -np.nan]), "v": [1, 2, 3, 4]})
    found = pa.Table.from_batches(list(last_changes([(batch, np.zeros(4, np.uint8))], ["k"])))
    assert found.column("v").to_pylist() == [2, 4]


def test_last_changes_over_many_batches_is_compacted() -> None:
    batches = [
        (pa.record_batch({"k": np.arange(40_000), "v": np.full(40_000, n)}), np.full(40_000, AFTER, np.uint8))
        for n in range(5)
    ]
    found = pa.Table.from_batches(list(last_changes(batches, ["k"])))
    assert found.num_rows == 40_000
    assert set(found.column("v").to_pylist()) == {4}


def test_splits_leave_out_empty_ranges() -> None:
    assert plan_splits({0: 5, 1: 7}, {0: 9, 1: 7, 2: 3}) == [Split(0, 5, 9), Split(2, 0, 3)]


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6),
    st.integers(1, 9),
    st.integers(1, 20),
)
def test_splits_cover_the_ranges_exactly_in_pieces_of_bounded_size(
    ranges: dict[int, tuple[int, int]], min_count: int, max_rows: int
) -> None:
    start = {bucket: min(pair) for bucket, pair in ranges.items()}
    end = {bucket: max(pair) for bucket, pair in ranges.items()}
    splits = plan_splits(start, end, min_count=min_count, max_rows=max_rows)
    assert [(s.bucket, offset) for s in splits for offset in range(s.start_offset, s.end_offset)] == [
        (bucket, offset) for bucket in sorted(end) for offset in range(start[bucket], end[bucket])
    ]
    assert all(0 < split.end_offset - split.start_offset <= max_rows for split in splits)
    total = sum(end[bucket] - start[bucket] for bucket in end)
    assert len(splits) >= min(min_count, total)


def test_metadata_columns() -> None:
    part = Rows(
        pa.record_batch({"v": [1, 2, 3]}),
        np.array([1, 2, 4], np.uint8),
        np.array([10, 11, 12]),
        1_726_747_200_123,
    )
    rows = with_metadata(part, 7, list(METADATA_FIELDS)).to_pylist()
    assert [row["_change_type"] for row in rows] == ["+I", "-U", "-D"]
    assert [row["_log_offset"] for row in rows] == [10, 11, 12]
    moment = datetime.datetime(2024, 9, 19, 12, 0, 0, 123_000, tzinfo=datetime.UTC)
    assert rows[0]["_commit_timestamp"] == moment
    assert rows[0]["_bucket"] == 7
    state = with_metadata(
        Rows(part.batch, part.change_types, None, None), 7, ["_log_offset", "_commit_timestamp"]
    )
    assert state.to_pylist()[0] == {"v": 1, "_log_offset": -1, "_commit_timestamp": None}


class OneBucket:
    """A PK table's bucket in memory, with the calls that reading a state makes."""

    def __init__(self, log: list[tuple[int, int, int]]) -> None:
        self.log = log

    def state(self, offset: int) -> dict[int, int]:
        rows: dict[int, int] = {}
        for kind, key, value in self.log[:offset]:
            if kind in (INSERT, AFTER):
                rows[key] = value
            elif kind == DELETE:
                del rows[key]
        return rows

    def snapshot(
        self, bucket: int, columns: list[str], filter_: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        rows = list(self.state(len(self.log)).items())
        for start in range(0, max(1, len(rows)), 2):
            part = rows[start : start + 2]
            batch = pa.record_batch(
                {
                    "k": pa.array([row[0] for row in part], pa.int64()),
                    "v": pa.array([row[1] for row in part], pa.int64()),
                }
            )
            yield batch.select(columns), len(self.log)

    @contextmanager
    def scan(self, columns: list[str], start: Any, until: Any, buckets: list[int]) -> Iterator[Any]:
        (first,), (last,) = start.values(), until.values()
        part = self.log[first:last]
        batch = pa.record_batch(
            {
                "k": pa.array([each[1] for each in part], pa.int64()),
                "v": pa.array([each[2] for each in part], pa.int64()),
            }
        )
        kinds = np.array([each[0] for each in part], np.uint8)
        yield iter([SimpleNamespace(batch=batch.select(columns), change_types=kinds)])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans()), max_size=30), st.data())
def test_the_state_at_an_earlier_offset_is_exact(writes: list[tuple[int, int, bool]], data: Any) -> None:
    """R14: a split returns the rows of its own offset, whatever was written since."""
    rows: dict[int, int] = {}
    log: list[tuple[int, int, int]] = []
    ends = [0]
    for key, value, delete in writes:
        if delete and key in rows:
            log.append((DELETE, key, rows.pop(key)))
        elif not delete:
            log += [(BEFORE, key, rows[key]), (AFTER, key, value)] if key in rows else [(INSERT, key, value)]
            rows[key] = value
        ends.append(len(log))
    offset = data.draw(st.sampled_from(ends))
    table = OneBucket(log)
    schema = Schema.of([("k", BIGINT), ("v", BIGINT)], ["k"])
    read = TableRead("x:1", TableDefinition(TablePath("db", "t"), schema), schema.columns, "current")
    with patch("headrace.tablelayer.spark.splits.open_table", lambda *_: table):
        batches = list(read_split(read, Split(0, 0, offset, state=True)))
    found = [(row["k"], row["v"]) for batch in batches for row in batch.to_pylist()]
    assert sorted(found) == sorted(table.state(offset).items())


def test_batches_leave_in_exactly_sparks_types() -> None:
    schema = Schema.of(
        [("a", timestamp(3)), ("b", timestamp_ltz(0)), ("c", time(3)), ("d", binary(2)), ("e", char(3))]
    )
    target = spark_arrow_schema(schema.columns)
    assert target.types == [
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
        pa.time64("ns"),
        pa.binary(),
        pa.string(),
    ]
    batch = pa.RecordBatch.from_pylist(
        [{"a": datetime.datetime(2024, 1, 1), "c": datetime.time(1, 2, 3), "d": b"xy", "e": "abc"}],
        schema=schema.arrow(),
    )
    assert conform(batch, target).to_pylist() == batch.to_pylist()


def test_a_value_spark_cannot_hold_is_named() -> None:
    schema = Schema.of([("at", timestamp(9))])
    batch = pa.record_batch({"at": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(TableError, match="column 'at'"):
        conform(batch, spark_arrow_schema(schema.columns))


def test_nanoseconds_of_the_day_are_refused() -> None:
    with pytest.raises(TableError, match="column 't' is TIME"):
        spark_schema(Schema.of([("t", time(9))]).columns)


def test_columns_are_chosen_by_name() -> None:
    schema = Schema.of([("a", INT), ("b", INT)])
    assert [column.name for column in choose_columns(schema, ["b", "a"])] == ["b", "a"]
    with pytest.raises(TableError, match="'c'"):
        choose_columns(schema, ["c"])
    with pytest.raises(TableError, match="twice"):
        choose_columns(schema, ["a", "a"])


keys = st.lists(
    st.tuples(st.none() | st.integers(0, 4), st.none() | st.sampled_from(["x", "y"])), max_size=30
)


@given(keys)
def test_distinct_keys(rows: list[tuple[int | None, str | None]]) -> None:
    table = pa.table(
        {
            "a": pa.array([row[0] for row in rows], pa.int64()),
            "b": pa.array([row[1] for row in rows], pa.string()),
        }
    )
    distinct, positions = distinct_keys(table)
    found = [tuple(row.values()) for row in distinct.to_pylist()]
    assert len(found) == len(set(found))
    expected = [None if None in row else row for row in rows]
    assert [None if p is None else found[p] for p in positions.to_pylist()] == expected


class FakeTable:
    """Looks up in a dict, as the table client does; counts the keys it is asked for."""

    def __init__(self, rows: dict[int, tuple[str, int]]) -> None:
        self.rows = rows
        self.asked: list[int] = []

    def lookup(self, wanted: pa.Table, columns: list[str]) -> tuple[Any, pa.Table]:
        asked = wanted.column("id").to_pylist()
        self.asked += asked
        found = np.array([key in self.rows for key in asked])
        rows = {
            "name": pa.array([self.rows.get(key, (None, None))[0] for key in asked], pa.string()),
            "size": pa.array([self.rows.get(key, (None, None))[1] for key in asked], pa.int32()),
        }
        return found, pa.table({name: rows[name] for name in columns})


def lookup(matched_only: bool) -> BatchLookup:
    schema = Schema.of([("id", BIGINT), ("name", STRING), ("size", INT)], ["id"])
    definition = TableDefinition(TablePath("db", "t"), schema)
    return BatchLookup("x:1", definition, ("ref",), ("size", "name"), ("its_size", "its_name"), matched_only)


def joined(batch: pa.RecordBatch, table: FakeTable, matched_only: bool) -> list[dict[str, Any]]:
    worker = lookup(matched_only)
    columns = [replace(worker.definition.schema.column(name), nullable=True) for name in worker.columns]
    rows: list[dict[str, Any]] = worker.join(batch, table, spark_arrow_schema(columns)).to_pylist()
    return rows


def test_a_left_join_keeps_every_row_in_order() -> None:
    table = FakeTable({1: ("one", 10), 3: ("three", 30)})
    batch = pa.record_batch({"n": [0, 1, 2, 3], "ref": pa.array([3, None, 9, 1], pa.int32())})
    assert [(r["n"], r["its_size"], r["its_name"]) for r in joined(batch, table, False)] == [
        (0, 30, "three"),
        (1, None, None),
        (2, None, None),
        (3, 10, "one"),
    ]


def test_an_inner_join_drops_rows_without_a_match() -> None:
    table = FakeTable({1: ("one", 10), 3: ("three", 30)})
    batch = pa.record_batch({"n": [0, 1, 2, 3], "ref": pa.array([3, None, 9, 1], pa.int32())})
    assert [r["n"] for r in joined(batch, table, True)] == [0, 3]


def test_a_batch_without_a_single_key() -> None:
    batch = pa.record_batch({"n": [0, 1], "ref": pa.array([None, None], pa.int64())})
    assert [r["its_name"] for r in joined(batch, FakeTable({}), False)] == [None, None]
    assert joined(batch, FakeTable({}), True) == []


def test_a_key_is_asked_for_once_per_batch() -> None:
    table = FakeTable({1: ("one", 10)})
    joined(pa.record_batch({"ref": pa.array([1, 1, 2, 1, 2], pa.int64())}), table, False)
    assert sorted(table.asked) == [1, 2]


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    given_options = {"bootstrap.servers": "h:1", "table": "db.t"}
    monkeypatch.setenv("HEADRACE_SERVER", "h:2")
    assert [ReadOptions.parse(each).bootstrap.bootstrap for each in (given_options, {"table": "db.t"})] == [
        "h:1",
        "h:2",
    ]
    assert ReadOptions.parse(given_options).start is None
    parsed = ReadOptions.parse({**given_options, "columns": "a, b", "starting.offsets": '{"0": 3}'})
    assert parsed.columns == ("a", "b")
    assert parsed.start == {0: 3}
    for name, value, end in (
        ("endingTimestamp", "0", 0),
        ("endingTimestamp", "1960-01-01", 0),
        ("endingTimestamp", "-5", 0),
        ("endingOffsets", "{}", {}),
        ("endingOffsets", "latest", "latest"),
    ):
        assert ReadOptions.parse({**given_options, name: value}).end == end
    for wrong, said in (
        ({"bootstrap.servers": "h:1"}, "'table'"),
        ({**given_options, "colums": "a"}, "unknown option colums"),
        ({**given_options, "mode": "stream"}, "mode is 'stream'"),
        ({**given_options, "columns": " ,"}, "names no column"),
        ({**given_options, "ending.offsets": "tomorrow"}, "endingOffsets is 'tomorrow'"),
    ):
        with pytest.raises(ValueError, match=said):
            ReadOptions.parse(wrong)
