"""Union reads without Spark: lake and tail equal the table, compared with DuckDB over all written rows.

The lake here is built from the log as a round would; `test_union_read.py` has a real one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import AsyncMock, patch

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.tablelayer.client import Connection
from headrace.tablelayer.client.table.united import United
from headrace.tablelayer.lake import union_scan as module
from headrace.tablelayer.lake.adapter import LakeError, LakeState
from headrace.tablelayer.lake.reader import Piece
from headrace.tablelayer.lake.union_scan import union_scan
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import BIGINT, INT, STRING
from headrace.tablelayer.spark.types import SYSTEM_FIELDS
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.lake.in_memory import tiered_into
from headrace.tablelayer.tests.spark.spark_tables import create

COLUMNS: list[Any] = [("id", BIGINT), ("n", INT), ("name", STRING)]
CONDITIONS = (None, "n >= 5", "name = 'x'", "id = 3 AND n < 7", "name IS NULL OR n = 1")


def rows_at(
    client: Connection, path: str, end: Mapping[int, int], condition: str | None
) -> list[tuple[Any, ...]]:
    """Return the table's rows at `end` by the log, computed by DuckDB."""
    table, parts = client.table(path), []
    with table.scan(start=dict.fromkeys(end, 0), until=dict(end)) as scan:
        for part in scan:
            batch = pa.table(part.batch).append_column("place", pa.array(part.offsets, pa.int64()))
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
        chosen = f"SELECT id, n, name FROM (SELECT * FROM {rows}) WHERE {condition or 'TRUE'} ORDER BY ALL"
        return database.sql(chosen).fetchall()


class LakeOfTheLog:
    """The rows that rounds up to `offsets` would have written."""

    def __init__(self, client: Connection, path: str, offsets: Mapping[int, int]) -> None:
        self.offsets = dict(offsets)
        self.rows = rows_at(client, path, offsets, None)

    def state(self, known: int | None) -> LakeState:
        return LakeState(1, 1, self.offsets) if self.offsets else LakeState()

    def pieces(self, snapshot: int, predicate: Any) -> list[Piece]:
        return [Piece("rows", len(self.rows), 1)]

    def read(
        self, snapshot: int, columns: Sequence[Column], wanted: Any, predicate: Any
    ) -> Iterator[pa.RecordBatch]:
        ids, numbers, names = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        given = {
            "id": pa.array(ids, pa.int64()),
            "n": pa.array(numbers, pa.int32()),
            "name": pa.array(names, pa.string()),
        }
        schema = pa.schema([column.field() for column in columns])
        batch = pa.RecordBatch.from_arrays([given[column.name] for column in columns], schema=schema)
        if wanted is not None:
            filtered = [wanted.schema.columns[place].name for place in wanted.columns]
            batch = batch.filter(pa.array(wanted.mask(batch.select(filtered))))
        yield from (batch.slice(start, 3) for start in range(0, batch.num_rows, 3))


row = st.fixed_dictionaries(
    {
        "id": st.integers(0, 6),
        "n": st.none() | st.integers(0, 9),
        "name": st.none() | st.sampled_from(["x", "y"]),
    }
)
write = st.tuples(st.booleans(), st.lists(row, min_size=1, max_size=8))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(write, max_size=4), st.lists(write, max_size=4), st.sampled_from(CONDITIONS))
def test_lake_and_tail_are_the_table(
    address: str, client: Connection, keyed: bool, before: Any, after: Any, condition: str | None
) -> None:
    path = create(client, COLUMNS, ("id",) if keyed else ())
    table = client.table(path)

    def carry_out(writes: Any) -> None:
        for deletes, rows in writes:
            if not keyed:
                table.append(rows)
            elif deletes:
                table.delete([{"id": each["id"]} for each in rows])
            else:
                table.upsert(rows)

    carry_out(before)
    lake = LakeOfTheLog(client, path, table.offsets("latest") if before else {})
    carry_out(after)
    with patch.object(module, "tiered_table", lambda *_: tiered_into(lake, table.definition)):
        scan = union_scan(client, path, filter=condition)
        some = union_scan(client, path, ["name"], condition)
        alone = union_scan(client, f"{path}$lake", filter=condition) if before else None
    expected = rows_at(client, path, table.offsets("latest"), condition)
    carry_out([(False, [{"id": 3, "n": 6, "name": "x"}])])  # not seen: both sides are pinned
    for _ in range(2):
        found = [tuple(each.values()) for each in scan.to_arrow().to_pylist()]
        assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert sorted(some.to_arrow().column("name").to_pylist(), key=repr) == sorted(
        [r[2] for r in expected], key=repr
    )
    if alone is not None:
        in_lake = rows_at(client, path, lake.offsets, condition)
        found = [tuple(each.values()) for each in alone.to_arrow().to_pylist()]
        assert sorted(found, key=repr) == sorted(in_lake, key=repr)


def test_an_impossible_union_read_names_the_reason(client: Connection) -> None:
    path = create(client, COLUMNS, ("id",))
    with pytest.raises(LakeError, match="is not tiered"):
        union_scan(client, path)
    tiered = create(client, COLUMNS, ("id",), table_datalake_enabled="true", table_datalake_format="iceberg")
    assert union_scan(client, f"{tiered}$lake").to_arrow().num_rows == 0
    (answer,) = Session(client).run(f'DESCRIBE "{tiered.split(".")[1]}$lake"')
    assert answer.rows is not None
    assert answer.rows["column"].to_pylist() == ["id", "n", "name", *SYSTEM_FIELDS]
    client.table(tiered).upsert([{"id": 1, "n": 2, "name": "x"}])
    assert union_scan(client, tiered).to_arrow().to_pylist() == [{"id": 1, "n": 2, "name": "x"}]
    with (
        patch.dict("sys.modules", {"pyiceberg.table": None}),
        pytest.raises(LakeError, match=r"headrace\[lake\]"),
    ):
        union_scan(client, tiered)


def test_sql_finds_rows_in_the_lake_that_left_the_log(client: Connection) -> None:
    path = create(client, COLUMNS, table_datalake_enabled="true", table_datalake_format="iceberg")
    table, name = client.table(path), path.split(".")[1]
    table.append([{"id": n, "n": n, "name": "x" if n % 2 else None} for n in range(10)])
    offsets = table.offsets("latest")
    lake = LakeOfTheLog(client, path, offsets)
    table.append([{"id": n, "n": n, "name": "y"} for n in range(10, 15)])
    session = Session(client)

    def answer(text: str) -> list[Any]:
        (found,) = session.run(text)
        assert found.rows is not None
        return [tuple(each.values()) for each in found.rows.to_pylist()]

    with patch.object(module, "tiered_table", lambda *_: tiered_into(lake, table.definition)):
        # As after a retention that took the first rows.
        with patch.object(United, "starts", AsyncMock(return_value=None)):
            assert answer(f"SELECT count(*), sum(n) FROM {name}") == [(15, sum(range(15)))]
            assert answer(f"SELECT count(*) FROM {name}") == [(15,)]
            assert answer(f"SELECT count(*) FROM {name} WHERE n >= 8 AND name IS NOT NULL") == [(6,)]
            halves = answer(f"EXPLAIN SELECT id FROM {name} WHERE n > 3")
            assert [each[1].split(":")[0] for each in halves] == ["lake", "log", "DuckDB"]
            assert halves[0][1] == "lake: snapshot 1, 1 files, 1 bytes"
            assert halves[1] == (path, "log: 5 offsets", "id, n", "n > 3")
            assert answer(f"SELECT a.id FROM {name} a JOIN {name} b ON a.id = b.id + 12 ORDER BY 1") == [
                (12,),
                (13,),
                (14,),
            ]
        assert answer(f'SELECT max(id), count(name) FROM "{name}$lake"') == [(9, 5)]
        assert answer(f"SELECT count(*) FROM {name}") == [(15,)], "the log has all"


class LakeOfRounds:
    """Snapshots by their number: when each was committed, and its ids."""

    def __init__(self, rounds: Mapping[int, tuple[int, Sequence[int]]]) -> None:
        self.rounds = rounds

    def state(self, known: int | None) -> LakeState:
        newest = max(self.rounds)
        return LakeState(newest, newest, {0: 0, 1: 0})

    def snapshots(self) -> pa.Table:
        times = pa.array([time for time, _ in self.rounds.values()], pa.timestamp("ms", "UTC"))
        return pa.table({"snapshot_id": list(self.rounds), "committed_at": times})

    def read(
        self, snapshot: int, columns: Sequence[Column], wanted: Any, predicate: Any
    ) -> Iterator[pa.RecordBatch]:
        ids = pa.array(self.rounds[snapshot][1], pa.int64())
        arrays = [
            ids if column.name == "id" else pa.nulls(len(ids), column.type.arrow()) for column in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field() for column in columns]))


def test_sql_reads_the_lake_as_it_was_at_a_snapshot_or_a_time(client: Connection) -> None:
    path = create(client, COLUMNS, table_datalake_enabled="true", table_datalake_format="iceberg")
    table, name = client.table(path), path.split(".")[1]
    lake = LakeOfRounds({70: (1_000_000, [1]), 80: (2_000_000, [1, 2]), 90: (3_000_000, [1, 2, 3])})
    session = Session(client)

    def ids(when: str) -> list[int]:
        return [
            row["id"]
            for row in session.query(f'SELECT id FROM "{name}$lake" {when} ORDER BY id')
            .to_arrow()
            .to_pylist()
        ]

    with patch.object(module, "tiered_table", lambda *_: tiered_into(lake, table.definition)):
        assert ids("") == [1, 2, 3]
        assert ids("FOR VERSION AS OF 70") == [1]
        assert ids("FOR VERSION AS OF 80") == [1, 2]
        assert ids("FOR SYSTEM_TIME AS OF 2000000") == [1, 2]
        assert ids("FOR SYSTEM_TIME AS OF 1999999") == [1]
        assert ids("FOR SYSTEM_TIME AS OF TIMESTAMP '1970-01-01 00:50:00'") == [1, 2, 3]
        for when, said in (
            ("FOR VERSION AS OF 71", r"no snapshot 71: .*\$lake\$snapshots lists"),
            ("FOR SYSTEM_TIME AS OF 999999", "no snapshot of that time"),
            ("FOR VERSION AS OF '0:1,1:1'", "the number of a snapshot"),
        ):
            with pytest.raises(SqlError, match=said):
                ids(when)
        with pytest.raises(SqlError, match="name the table itself"):
            session.query(f'SELECT * FROM "{name}$lake$snapshots" FOR VERSION AS OF 70')
