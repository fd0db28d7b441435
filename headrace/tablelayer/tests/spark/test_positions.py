"""A stream's positions and admission, and predicates, without Spark and without a server."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.model.filters.conditions import arrow_expression, columns_of, push_down
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types.column_types import BIGINT, BOOLEAN, DATE, DOUBLE, INT, STRING, array_of
from headrace.tablelayer.model.types.column_types import decimal as decimal_type
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.spark.options import ReadOptions, WriteOptions
from headrace.tablelayer.spark.positions import Position, admit, batch_start, lost_ranges, lost_text

offsets = st.dictionaries(st.integers(0, 7), st.integers(0, 1000), min_size=1, max_size=8)


@given(offsets, offsets, st.integers(1, 2000))
def test_admission_takes_exactly_the_allowed_rows(
    start: dict[int, int], lag: dict[int, int], most: int
) -> None:
    latest = {bucket: start.get(bucket, 0) + more for bucket, more in lag.items()}
    ends = admit(start, latest, most)
    assert set(ends) == set(latest)
    assert all(start.get(bucket, 0) <= ends[bucket] <= latest[bucket] for bucket in ends)
    taken = sum(ends[bucket] - start.get(bucket, 0) for bucket in ends)
    assert taken == min(most, sum(lag.values()))
    assert admit(start, latest, None) == latest


@given(offsets, st.integers(1, 50))
def test_capped_micro_batches_reach_the_end(latest: dict[int, int], most: int) -> None:
    at: dict[int, int] = dict.fromkeys(latest, 0)
    batches = 0
    while at != latest:
        following = admit(at, latest, most)
        assert following != at
        at, batches = following, batches + 1
    assert batches == -(-sum(latest.values()) // most)


@given(offsets, offsets | st.just("full"), st.booleans())
def test_positions_survive_the_checkpoint(at: dict[int, int], began: Any, initial: bool) -> None:
    position = Position("an id", at, began, initial)
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_a_restart_before_the_first_commit_begins_where_the_stream_began() -> None:
    began = Position("id", {0: 5}, {0: 5}, initial=True)
    end = Position("id", {0: 9}, began.began)
    asked_again = Position("id", {0: 7}, {0: 7}, initial=True)
    assert batch_start(asked_again, end) == {0: 5}
    assert batch_start(end, Position("id", {0: 20}, {0: 5})) == {0: 9}
    assert batch_start(Position("id", {}, "full", initial=True), Position("id", {0: 3}, "full")) == "full"


def test_a_foreign_checkpoint_is_said() -> None:
    with pytest.raises(ValueError, match="another source"):
        Position.from_json({"0": 17})


def test_offsets_deleted_by_retention_are_listed() -> None:
    lost = lost_ranges({0: 5, 1: 5, 2: 5}, {0: 5, 1: 9, 2: 0}, {0: 5, 1: 9, 2: 3})
    assert lost == {1: (5, 9), 2: (5, 3)}
    assert lost_text("db.t", lost) == (
        "4 offsets of db.t that this stream should read are not in the log: bucket 1 from 5, its log begins at 9;"
        " bucket 2 from 5, its log ends at 3"
    )
    many = lost_text("db.t", dict.fromkeys(range(7), (0, 1000)))
    assert many.startswith("7,000 offsets of db.t")
    assert many.endswith("bucket 4 from 0, its log begins at 1000; and 2 more buckets")


def test_options_of_streams_and_sinks_are_checked() -> None:
    base = {"bootstrap.servers": "h:1", "table": "db.t"}
    assert ReadOptions.parse({**base, "maxoffsetspertrigger": "10"}).max_offsets == 10
    assert ReadOptions.parse({**base, "startingTimestamp": "2024-09-19T00:00:00Z"}).start == 1_726_704_000_000
    for wrong, said in (
        ({"maxOffsetsPerTrigger": "0"}, "whole number of at least 1"),
        ({"failOnDataLoss": "perhaps"}, "use true, false"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "exclude each other"),
        ({"startingTimestamp": "soon"}, "milliseconds"),
        ({"where": "a = 1"}, "JSON"),
    ):
        with pytest.raises(ValueError, match=said):
            ReadOptions.parse({**base, **wrong})
    assert WriteOptions.parse({**base, "columns": "k,v"}).mode == "partial"
    assert WriteOptions.parse({**base, "write.mode": "partial"}).columns is None
    for wrong, said in (
        ({"write.mode": "merge"}, "use append, upsert, delete, partial"),
        ({"write.mode": "append", "columns": "a"}, "not to write.mode 'append'"),
        ({"txnAppId": "a"}, "belong together"),
        ({"delivery": "once"}, "at-least-once"),
    ):
        with pytest.raises(ValueError, match=said):
            WriteOptions.parse({**base, **wrong})


SCHEMA = Schema.of(
    [
        ("a", INT),
        ("b", STRING),
        ("d", decimal_type(10, 2)),
        ("x", DOUBLE),
        ("day", DATE),
        ("f", BOOLEAN),
        ("l", BIGINT),
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"a": 1, "b": "q", "d": decimal.Decimal("1.25"), "x": 1.0, "day": datetime.date(2024, 1, 1), "f": True, "l": 1},
        {},
        {"a": 7, "b": "z", "d": decimal.Decimal(3), "x": 2.0, "day": datetime.date(2025, 1, 1), "f": False, "l": -9},
    ],
    schema=SCHEMA.arrow(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "rows", "complete"),
    [
        ("a >= 3", [2], True),
        ("3 > a", [0], True),
        ("a > -1 AND x > 1.5", [2], True),
        ("a > -1 AND x > l", [0, 2], False),
        ("l > -99999999999 AND a < 99999999999 AND a <> 99999999999", [0, 2], True),
        ("b LIKE 'q%'", [0], True),
        ("b LIKE '%q'", [0, 1, 2], False),
        ("b NOT LIKE 'q%'", [2], True),
        ("NOT (b NOT LIKE 'q%')", [0], True),
        ("b LIKE 'q%' ESCAPE '!'", [0, 1, 2], False),
        ("NOT f", [2], True),
        ("NOT (a IN (1, 2))", [2], True),
        ("a NOT IN (1)", [2], True),
        ("b = 'q' OR b IS NULL", [0, 1], True),
        ("d BETWEEN 1.20 AND 2", [0], True),
        ("day >= DATE'2024-06-01'", [2], True),
        ("f = true", [0], True),
        ("a <> 7", [0], True),
        ("NOT (a = 7 OR l > 0)", [], True),
        ("b IS NOT NULL", [0, 2], True),
        ("l < 99999999999", [0, 2], True),
        ("length(b) = 1", [0, 1, 2], False),
        ("x = 1.0", [0], True),
        ("a = l", [0, 1, 2], False),
        ("a = '1'", [0, 1, 2], False),
        ("d = 1.255", [0, 1, 2], False),
        ("b = 'q' OR length(b) = 1", [0, 1, 2], False),
    ],
)
def test_pushed_conditions_keep_every_row_of_spark(condition: str, rows: list[int], complete: bool) -> None:
    pushed = push_down([condition], SCHEMA)
    assert pushed.complete is complete
    kept = ROWS
    if pushed.predicate is not None:
        predicate = json.loads(json.dumps(pushed.predicate))
        assert columns_of(predicate) <= set(pushed.columns)
        kept = ROWS.filter(arrow_expression(predicate, ROWS.schema))
    assert kept.to_pylist() == ROWS.take(pa.array(rows, pa.int64())).to_pylist()


@pytest.mark.parametrize(
    ("condition", "columns"),
    [
        ("r.x = 1", ("r",)),
        ("r.x.y = 1 AND a > 0", ("a", "r")),
        ("t.r.x = 1", ("r",)),
        ("list[0].x = 1", ("list",)),
        ("struct(*) IS NOT NULL", ("a", "r", "list", "x")),
        ("x = 1", ("x",)),
    ],
)
def test_a_condition_needs_the_column_whose_field_it_names(condition: str, columns: tuple[str, ...]) -> None:
    row = parse_type("ROW<x INT, y INT>")
    schema = Schema.of(
        [Column(0, "a", INT), Column(1, "r", row), Column(2, "list", array_of(row)), Column(3, "x", INT)]
    )
    assert set(push_down([condition], schema).columns) >= set(columns)
