"""DataFrames in and out; their libraries are imported only on request."""

import datetime as dt
import subprocess
import sys
from decimal import Decimal

import pytest

from headrace.tablelayer.client import ClientError, DataError

pl = pytest.importorskip("polars")

TYPES = (
    "(id BIGINT, small SMALLINT, price DECIMAL(10, 2), name STRING, ok BOOLEAN, day DATE, at TIMESTAMP(6),"
    " seen TIMESTAMP_LTZ(3), f FLOAT, raw BYTES, t TIME(6), PRIMARY KEY (id) NOT ENFORCED)"
)
ROWS = {
    "id": [1, 2, 3],
    "small": pl.Series([1, None, -5], dtype=pl.Int16),
    "price": pl.Series([Decimal("1.50"), None, Decimal("-99999999.99")], dtype=pl.Decimal(10, 2)),
    "name": ["äpple", "", None],
    "ok": [True, False, None],
    "day": [dt.date(2024, 9, 19), dt.date(1, 1, 1), None],
    "at": [dt.datetime(2024, 9, 19, 1, 2, 3, 456789), dt.datetime(1900, 1, 1), None],
    "seen": pl.Series(
        [dt.datetime(2024, 9, 19, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, tzinfo=dt.UTC), None]
    ).cast(pl.Datetime("ms", "UTC")),
    "f": pl.Series([0.5, float("inf"), None], dtype=pl.Float32),
    "raw": [b"\x00\xff", b"", None],
    "t": [dt.time(23, 59, 59, 999999), dt.time(0), None],
}


def test_polars_in_and_out_gives_the_same_frame(make_table):
    table = make_table(TYPES)
    frame = pl.DataFrame(ROWS)
    table.upsert(frame)
    got = table.to_polars().sort("id")
    assert got.select(frame.columns).rows() == frame.rows()
    assert table.to_polars(["name"], "id = 1").rows() == [("äpple",)]
    found, rows = table.lookup(frame.select("id").reverse(), columns=["id"])
    assert found.all()
    assert rows.column("id").to_pylist() == [3, 2, 1]
    table.partial(frame.select("id", pl.lit("x").alias("name")), ["id", "name"])
    table.delete(frame.filter(pl.col("id") > 1).select("id"))
    assert table.to_polars(["id", "name"]).rows() == [(1, "x")]
    table.upsert(frame.with_columns(pl.col("name").cast(pl.Categorical)))
    assert sorted(table.to_polars(["name"])["name"].to_list(), key=str) == ["", None, "äpple"]
    with pytest.raises(DataError, match="column 'id'"):
        table.upsert(frame.with_columns(pl.col("id").cast(pl.String)))
    with pytest.raises(DataError, match="collect"):
        table.upsert(frame.lazy())


def test_pandas_in_and_out(make_table):
    pd = pytest.importorskip("pandas")
    table = make_table("(id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    frame = pd.DataFrame({"id": [2, 1], "name": ["b", None]})
    table.upsert(frame)
    got = table.to_pandas().sort_values("id")
    assert got["id"].tolist() == [1, 2]
    assert got["name"].tolist() == [None, "b"]


def test_frames_that_are_not_installed_are_named(make_table, monkeypatch):
    table = make_table("(id INT)")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ClientError, match="polars is not installed: pip install polars"):
        table.to_polars()


def test_the_client_imports_no_frames():
    heavy = ("polars", "pandas", "numba", "sqlglot")
    code = f"import sys, headrace.tablelayer.client; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
