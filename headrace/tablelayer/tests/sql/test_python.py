"""`connection.sql` and its results: printing and streaming of connections, tables and results."""

import datetime
import traceback
from decimal import Decimal
from uuid import UUID

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace import ClientError, DataError, TableError
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.parameters import bind


@pytest.fixture
def shop(sql):
    sql(
        "CREATE TABLE fruit (id INT, name STRING, price DECIMAL(6, 2), PRIMARY KEY (id) NOT ENFORCED);"
        "INSERT INTO fruit SELECT range, 'n' || range, range + 0.25 FROM range(50)"
    )
    sql.connection.sql(f"USE {sql.database}")
    return sql.connection


def test_a_query_gives_arrow_pandas_polars_and_rows(shop):
    result = shop.sql("SELECT id, name, price FROM fruit WHERE id < ? AND name <> ? ORDER BY id", [3, "it's"])
    assert result.columns == ["id", "name", "price"]
    assert result.to_arrow().column("name").to_pylist() == ["n0", "n1", "n2"]
    assert list(result.to_pandas()["id"]) == [0, 1, 2]
    assert result.to_polars()["price"].to_list() == [Decimal("0.25"), Decimal("1.25"), Decimal("2.25")]
    assert list(result)[1] == {"id": 1, "name": "n1", "price": Decimal("1.25")}
    assert (len(result), bool(result), bool(shop.sql("SELECT * FROM fruit WHERE id < 0"))) == (3, True, True)
    assert shop.sql("SELECT name FROM fruit WHERE id = :id", {"id": 7}).rows() == [{"name": "n7"}]
    done = shop.sql(
        "UPDATE fruit SET name = $new WHERE id = $id; DELETE FROM fruit WHERE id > 45", {"new": "x", "id": 7}
    )
    assert (done.row_count, done.text, done.columns, len(done)) == (4, "4 rows deleted", [], 0)
    assert shop.sql("DESCRIBE fruit").rows()[0]["type"] == "INT"
    assert shop.sql("CREATE VIEW few AS SELECT id FROM fruit WHERE id < 2").columns == []
    assert len(shop.sql("FROM few")) == 2


def test_parameters_are_values(shop):
    values = [
        None, True, 7, -(2**62), 0.1, 1e300, float("inf"), Decimal("-12345678901234567890.10"),
        "it's; DROP TABLE fruit --", "", b"\x00\xff", datetime.date(2024, 9, 19), datetime.time(1, 2, 3, 4),
        datetime.datetime(2024, 9, 19, 1, 2, 3, 4),
    ]  # fmt: skip
    (row,) = shop.sql(f"SELECT {', '.join(f'? AS v{n}' for n in range(len(values)))}", values).rows()
    assert list(row.values()) == values
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moment = datetime.datetime(2024, 9, 19, 1, 2, 3, tzinfo=zone)
    assert shop.sql("SELECT ? AS z, ? AS tags", [moment, ["a", "b'c"]]).rows() == [
        {"z": moment, "tags": ["a", "b'c"]}
    ]
    assert bind("SELECT '?', \"?\" -- ?\n, ?", [1]) == "SELECT '?', \"?\" -- ?\n, 1"
    assert bind("SELECT x[1:n], y::INT, orders$changelog.a, {'k':v}, :v, $v", {"v": 2}) == (
        "SELECT x[1:n], y::INT, orders$changelog.a, {'k' 2}, 2, 2"
    )
    assert bind("SELECT 1 -?, ?::TINYINT LIMIT?OFFSET?", [-5, -128, 2, 1]) == (
        "SELECT 1 - -5, (-128)::TINYINT LIMIT 2 OFFSET 1"
    )
    assert (
        bind("SELECT x[1:n] WHERE n = :n", {"n": 2}) == "SELECT x[1 2] WHERE n = 2"
    )  # refused, and not x[12]
    assert bind("SELECT ?", [UUID(int=0)]) == "SELECT '00000000-0000-0000-0000-000000000000'"
    early = datetime.datetime(1, 1, 1, tzinfo=zone)
    for text, given, complaint in (
        ("SELECT ?", [early], "not in the years 1 to 9999"),
        ("SELECT ?", [], "1 placeholders"), ("SELECT 1", [1], "0 placeholders"),
        ("SELECT :a", {"a": 1, "b": 2}, "no placeholder :b"),
        ("SELECT $aa", {"a": 1}, r"no value for \$aa; did you mean a"), ("SELECT ?", [{}], "a dict has no SQL literal"),
    ):  # fmt: skip
        with pytest.raises(SqlError, match=complaint):
            bind(text, given)


def test_a_result_is_looked_at_and_read(shop):
    result = shop.sql("SELECT * FROM fruit ORDER BY id")
    assert repr(result).splitlines()[2].split() == ["0", "n0", "0.25"]
    assert repr(result).endswith("…")
    assert "<th>price<br><small>decimal128(6, 2)</small></th>" in result._repr_html_()
    assert sum(batch.num_rows for batch in result.batches()) == 50
    assert "its rows were read" in repr(result)
    with pytest.raises(ClientError, match="read already"):
        result.to_arrow()
    assert repr(shop.sql("DELETE FROM fruit WHERE id = 1")) == "<SqlResult: 1 row deleted>"
    assert "&lt;b&gt;" in shop.sql("SELECT '<b>' AS v")._repr_html_()
    with shop.sql("SELECT * FROM fruit") as result:
        pass
    with pytest.raises(ClientError, match="read already"):
        len(result)


def test_a_table_is_created_of_rows_with_their_columns(shop, sql):
    frame = pl.DataFrame(
        {"id": [1, 2], "at": [datetime.datetime(2024, 9, 19, 1, 2, 3, 4), None], "tags": [["a"], []]}
    )
    path = f"{sql.database}.of_polars"
    table = shop.create_table(path, frame, key=["id"], options={"bucket.num": "2"})
    assert (table.definition.bucket_count, table.definition.schema.primary_key) == (2, ("id",))
    kinds = [str(column.type) for column in table.definition.schema.columns]
    assert kinds == ["BIGINT", "TIMESTAMP(6)", "ARRAY<STRING>"]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == frame.to_dicts()
    of_pandas = shop.create_table(f"{sql.database}.of_pandas", frame.select("id").to_pandas())
    assert (of_pandas.definition.is_primary_key_table, of_pandas.count()) == (False, 2)
    of_dicts = shop.create_table(f"{sql.database}.of_dicts", [{"a": 1}, {"a": 2, "b": {"c": "x"}}], key=["a"])
    assert of_dicts.lookup_one(2) == {"a": 2, "b": {"c": "x"}}
    assert shop.create_table(path, [{"id": 9}], if_not_exists=True).count() == 2
    with pytest.raises(TableError, match="exists already"):
        shop.create_table(path, frame, key=["id"])
    for rows, key, complaint in (
        ([{"id": 1, "x": None}], ["id"], "column 'x' of the data has only nulls"),
        ([{"id": 1}, {"id": "a"}], ["id"], "the rows have no types that a table can have"),
        ([{"id": 1}], ["ix"], "the data has no column 'ix' for the primary key; it has id"),
        ([{"id": 1}, {"id": None}], ["id"], "row 1 has no value"),
    ):
        with pytest.raises((DataError, TableError), match=complaint):
            shop.create_table(f"{sql.database}.bad", rows, key=key)
        assert "bad" not in shop.admin.list_tables(sql.database)


GLOBAL_FRAME = pl.DataFrame({"id": [48, 49, 50]})


def test_a_query_reads_the_frames_of_its_caller(shop):
    frame = GLOBAL_FRAME.rename({"id": "number"}).to_pandas()
    fruit = frame
    assert shop.sql("SELECT f.id FROM fruit f JOIN frame ON f.id = number ORDER BY 1").rows() == [
        {"id": 48},
        {"id": 49},
    ]
    assert len(fruit) == 3  # the table has precedence over the variable
    assert shop.sql("SELECT count(*) AS n FROM GLOBAL_FRAME").rows() == [{"n": 3}]
    assert shop.sql("INSERT INTO fruit (id) SELECT id FROM GLOBAL_FRAME WHERE id > 49").row_count == 1
    (step, _) = shop.sql("EXPLAIN SELECT * FROM frame").rows()
    assert (step["reads"], step["way"]) == ("frame", "DataFrame")
    number = 5
    for name in ("number", "nothing", "other.frame"):
        with pytest.raises(TableError, match=r"not exist|no database"):
            shop.sql(f"SELECT * FROM {name}")
    assert number == 5


def test_an_error_is_short(shop, sql):
    for text in (
        "SELECT * FROM froot",
        "SELECT nme FROM fruit ORDER BY 1",
        "INSERT INTO fruit SELECT 'x', 'y', 1",
    ):
        with pytest.raises((TableError, SqlError, DataError)) as caught:
            shop.sql(text).rows()
        lines = "".join(traceback.format_exception(caught.value)).splitlines()
        assert len(lines) <= 20, text
    with pytest.raises(DataError) as caught:
        shop.table(f"{sql.database}.fruit").upsert([{"id": "x"}])
    assert len("".join(traceback.format_exception(caught.value)).splitlines()) <= 12


def test_results_and_tables_are_arrow_streams(shop, sql):
    table = shop.table(f"{sql.database}.fruit")
    assert len(table) == 50
    assert bool(table)
    assert pa.table(table).num_rows == 50
    assert pl.DataFrame(table)["id"].sum() == sum(range(50))
    assert pa.table(shop.sql("SELECT id FROM fruit WHERE id > 47")).num_rows == 2
    with duckdb.connect() as database:
        database.register("found", shop.sql("SELECT * FROM fruit WHERE id < 10"))
        assert database.sql("SELECT sum(id) AS s FROM found").fetchall() == [(45,)]
    assert repr(table) == (
        f"<Table {sql.database}.fruit (id INT, name STRING, price DECIMAL(6, 2), PRIMARY KEY (id)), 1 bucket>"
    )
    assert "<td>DECIMAL(6, 2)</td>" in table._repr_html_()
    with table as same:
        assert same is table


def test_a_connection_says_what_it_is(server):
    with headrace.connect(server) as connection:
        assert repr(connection) == f"<Connection to {server}>"
        assert server in connection._repr_html_()
        with pytest.raises(SqlError, match=r"no table 'x'|does not exist|Referenced"):
            connection.sql("SELECT x.y")
        with pytest.raises(TableError, match="SELEC is not a statement"):
            connection.sql("SELEC 1")
    assert repr(connection).endswith(", closed>")


def test_rows_that_do_not_fit_are_the_caller_s(shop):
    with pytest.raises(DataError, match="does not fit column 'id'"):
        shop.sql("INSERT INTO fruit VALUES (?, ?, ?)", ["one", "x", 1])


def test_dates_that_pandas_cannot_have_are_refused_with_the_remedy():
    rows = pa.table({"d": pa.array([3_000_000], pa.int32()).view(pa.date32())})
    with pytest.raises(ClientError, match=r"pandas DataFrame.*use to_arrow"):
        headrace.SqlResult(rows.schema, iter(rows.to_batches())).to_pandas()
