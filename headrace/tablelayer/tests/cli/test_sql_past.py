"""SELECT of a range of keys reads only that range; FOR ... AS OF reads a table as it was."""

import itertools
import json
import random
import time

import pytest

from headrace.tablelayer.client import connect
from headrace.tablelayer.model.ddl import parse
from headrace.tablelayer.sql.select import run_select

_numbers = itertools.count()


@pytest.fixture
def sql(headrace):
    def run(text):
        done = headrace("sql", "-o", "json", "-e", text)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    run.raw = lambda text: headrace("sql", "-e", text)
    return run


@pytest.fixture
def table(server):
    name = f"past{next(_numbers)}"
    with connect(server) as connection:
        connection.execute(
            f"CREATE TABLE {name} (a INT, b STRING, v INT, PRIMARY KEY (a, b) NOT ENFORCED) WITH ('bucket.num' = '2')"
        )
        yield connection, connection.table(name), name
        connection.admin.drop_table(name)


def test_a_condition_on_the_first_key_column_reads_a_range(table, monkeypatch):
    connection, handle, name = table
    rng = random.Random(3)
    handle.upsert([{"a": a, "b": b, "v": rng.randrange(9)} for a in range(-5, 20) for b in "xyz"])
    calls, range_scan = [], type(handle).range_scan

    def watched(self, *args, **options):
        rows = range_scan(self, *args, **options)
        calls.append((args, rows.num_rows))
        return rows

    everything = handle.to_arrow().to_pylist()
    monkeypatch.setattr(type(handle), "range_scan", watched)

    def check(condition, holds, at_most):
        calls.clear()
        (statement,) = parse(f"SELECT a, b, v FROM {name} AS t WHERE {condition} ORDER BY a, b", "default")
        rows = run_select(connection, statement).read_all().to_pylist()
        assert rows == sorted(filter(holds, everything), key=lambda row: (row["a"], row["b"]))
        assert len(calls) == (at_most is not None)
        assert all(len(rows) <= read <= at_most for _, read in calls)

    check("a >= 3 AND a < 5", lambda row: 3 <= row["a"] < 5, 6)
    check("t.A BETWEEN 3 AND 5 AND v > 4", lambda row: 3 <= row["a"] <= 5 and row["v"] > 4, 9)
    check("7 = a", lambda row: row["a"] == 7, 3)
    check("18 < a", lambda row: row["a"] > 18, 3)
    check("a <= -5 AND b <> 'x'", lambda row: row["a"] <= -5 and row["b"] != "x", 3)
    check("a > 3 AND a > 17", lambda row: row["a"] > 17, 48)  # the first bound is read, both hold
    check("a > 3 OR b = 'x'", lambda row: row["a"] > 3 or row["b"] == "x", None)
    check("NOT a > 3", lambda row: not row["a"] > 3, None)
    check("a > 17.5", lambda row: row["a"] > 17.5, None)
    check("a > '17'", lambda row: row["a"] > 17, None)
    check("b > 'x'", lambda row: row["b"] > "x", None)


def test_tables_are_read_as_of_times_and_offsets(sql, table):
    _, handle, name = table
    handle.upsert([{"a": 1, "b": "x", "v": 1}, {"a": 2, "b": "x", "v": 1}])
    then, offsets = time.time_ns() // 1_000_000, handle.offsets("latest")
    time.sleep(0.01)
    handle.upsert([{"a": 1, "b": "x", "v": 2}, {"a": 3, "b": "x", "v": 2}])
    version = ",".join(f"{bucket}:{offset}" for bucket, offset in offsets.items())
    past = [{"a": 1, "v": 1}, {"a": 2, "v": 1}]
    assert sql(f"SELECT a, v FROM {name} FOR SYSTEM_TIME AS OF {then} ORDER BY a") == past
    assert sql(f"SELECT a, v FROM {name} VERSION AS OF '{version}' ORDER BY a") == past
    text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(then / 1000)) + f".{then % 1000:03}"
    assert sql(f"SELECT a, v FROM {name} FOR SYSTEM_TIME AS OF TIMESTAMP '{text}' WHERE a < 2") == past[:1]
    assert sql(
        f"SELECT t.a, t.v - coalesce(o.v, 0) AS d FROM {name} t LEFT JOIN {name} FOR SYSTEM_TIME AS OF {then} o"
        " USING (a) ORDER BY t.a"
    ) == [{"a": 1, "d": 1}, {"a": 2, "d": 0}, {"a": 3, "d": 2}]
    for wrong, words in (
        (f"{name} FOR VERSION AS OF 1", "bucket 1 is missing"),
        (f"{name} FOR VERSION AS OF '0:99,1:99'", "ends at"),
        (f"{name} FOR VERSION AS OF 'x'", "offsets by bucket"),
        (f"{name} FOR SYSTEM_TIME AS OF TIMESTAMP 'soon'", "is not a time"),
        (f"`{name}$changelog` FOR SYSTEM_TIME AS OF {then}", "every change"),
    ):
        done = sql.raw(f"SELECT * FROM {wrong}")
        assert done.exit_code == 1
        assert words in " ".join(done.stderr.split()), done.stderr
