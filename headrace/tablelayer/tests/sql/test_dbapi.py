"""PEP 249 and SQLAlchemy over it, as used by programs without knowledge of Headrace."""

import datetime
from decimal import Decimal
from importlib.metadata import entry_points
from uuid import UUID

import pandas as pd
import pytest
import sqlalchemy as sa

from headrace import dbapi
from headrace.tablelayer.client import Table


@pytest.fixture
def connection(server, sql):
    with dbapi.connect(server, sql.database) as connection:
        yield connection


@pytest.fixture
def sql(server):
    from headrace.tablelayer.client import connect
    from headrace.tablelayer.tests.sql.conftest import Sql, _numbers

    name = f"dbapi{next(_numbers)}"
    with connect(server) as connection:
        connection.admin.create_database(name)
        yield Sql(connection, name)
        connection.admin.drop_database(name, cascade=True)


def test_a_cursor(connection):
    cursor = connection.cursor()
    assert (
        cursor.execute(
            "CREATE TABLE t (id INT, name STRING, p DECIMAL(8, 2), at TIMESTAMP(3), raw BYTES)"
        ).description
        is None
    )
    with pytest.raises(dbapi.InterfaceError, match="no rows"):
        cursor.fetchall()
    moment = datetime.datetime(2024, 9, 19, 1, 2, 3)
    assert (
        cursor.execute(
            "INSERT INTO t VALUES (?, ?, ?, ?, ?)", (1, "it's", Decimal("1.50"), moment, b"\0")
        ).rowcount
        == 1
    )
    cursor.execute("INSERT INTO t (id) SELECT range FROM range(2, 12)")
    assert cursor.rowcount == 10
    cursor.execute("SELECT * FROM t ORDER BY id")
    assert [each[:2] for each in cursor.description] == [
        ("id", "INT"), ("name", "STRING"), ("p", "DECIMAL(8, 2)"), ("at", "TIMESTAMP(3)"), ("raw", "BYTES"),
    ]  # fmt: skip
    kinds = (dbapi.NUMBER, dbapi.STRING, dbapi.NUMBER, dbapi.DATETIME, dbapi.BINARY)
    assert all(each[1] == kind for each, kind in zip(cursor.description, kinds, strict=True))
    assert cursor.rowcount == -1
    assert cursor.fetchone() == (1, "it's", Decimal("1.50"), moment, b"\0")
    assert [row[0] for row in cursor.fetchmany(3)] == [2, 3, 4]
    assert len(cursor.fetchmany()) == 1
    assert [row[0] for row in cursor] == list(range(6, 12))
    assert (cursor.fetchone(), cursor.fetchall()) == (None, [])
    assert cursor.execute("SELECT id FROM t WHERE id = :id", {"id": 3}).fetchall() == [(3,)]
    assert cursor.execute("SELECT id FROM t").fetch_arrow_table().num_rows == 11
    connection.commit()
    with pytest.raises(dbapi.NotSupportedError):
        connection.rollback()
    cursor.close()
    with pytest.raises(dbapi.InterfaceError, match="cursor is closed"):
        cursor.execute("SELECT 1")


def test_errors_are_those_of_pep_249(connection, server):
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (id INT)")
    for statement, error in (
        ("SELEC 1", dbapi.ProgrammingError), ("SELECT * FROM nowhere", dbapi.ProgrammingError),
        ("SELECT colour FROM t ORDER BY 1", dbapi.ProgrammingError), ("INSERT INTO t VALUES ('x')", dbapi.DataError),
        ("CREATE TABLE t (id INT)", dbapi.IntegrityError), ("INSERT INTO t VALUES (1, 2)", dbapi.DataError),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            cursor.execute(statement)
        assert caught.value.__cause__ is not None
    with pytest.raises(dbapi.ProgrammingError, match="no database 'nothing'"):
        dbapi.connect(server, "nothing")
    with pytest.raises(dbapi.OperationalError):
        dbapi.connect("127.0.0.1:1")
    # A late error comes with the rows.
    cursor.execute("SELECT CASE WHEN range = 200000 THEN error('late') ELSE 'x' END FROM range(300000)")
    with pytest.raises(dbapi.ProgrammingError, match="late"):
        cursor.fetchall()
    closed = dbapi.connect(server)
    closed.close()
    with pytest.raises(dbapi.InterfaceError):
        closed.cursor()


def test_many_rows_are_one_write(connection, monkeypatch):
    connection.execute("CREATE TABLE t (id INT, tags ARRAY<INT>, s STRING, PRIMARY KEY (id) NOT ENFORCED)")
    calls = []
    write = Table.partial
    monkeypatch.setattr(
        Table,
        "partial",
        lambda self, rows, *more, **options: calls.append(len(rows)) or write(self, rows, *more, **options),
    )
    cursor = connection.cursor()
    cursor.executemany(
        "INSERT INTO t (id, tags, s) VALUES (?, ?, 'x')", [(n, [n, n + 1]) for n in range(500)]
    )
    assert (cursor.rowcount, calls) == (500, [500])
    assert connection.execute("SELECT tags, s FROM t WHERE id = 7").fetchall() == [([7, 8], "x")]
    cursor.executemany("UPDATE t SET s = ? WHERE id = ?", [("y", 1), ("z", 2), ("z", 1000)])
    assert cursor.rowcount == 2
    cursor.executemany("INSERT INTO t (id, s) VALUES (?, upper(?))", [(1000, "a"), (1001, "b")])
    assert connection.execute("SELECT s FROM t WHERE id > 999 ORDER BY id").fetchall() == [("A",), ("B",)]
    cursor.executemany("INSERT INTO t (id, s) VALUES (?, ?)", [(1002, UUID(int=2)), (1003, UUID(int=3))])
    assert connection.execute("SELECT s FROM t WHERE id = 1003").fetchall() == [(str(UUID(int=3)),)]
    with pytest.raises(dbapi.ProgrammingError, match="1 values are given"):
        cursor.executemany("INSERT INTO t (id, s) VALUES (?, ?)", [(1, "a"), (2,)])
    cursor.executemany("INSERT INTO t (id) VALUES (?)", [])
    assert cursor.rowcount == 0


@pytest.fixture
def engine(server, sql):
    assert "headrace" in {each.name for each in entry_points(group="sqlalchemy.dialects")}
    engine = sa.create_engine(f"headrace://{server}/{sql.database}")
    yield engine
    engine.dispose()


def test_sqlalchemy_makes_fills_asks_and_reflects_tables(engine, sql):
    metadata = sa.MetaData()
    fruit = sa.Table(
        "fruit", metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(40), nullable=False, comment="it's its name"),
        sa.Column("price", sa.Numeric(8, 2)), sa.Column("at", sa.DateTime(timezone=True)), sa.Column("ok", sa.Boolean),
        sa.Column("raw", sa.LargeBinary), sa.Column("d", sa.Float), sa.Column("tags", sa.ARRAY(sa.String)),
        comment="what is sold", headrace_with={"bucket.num": "2"},
    )  # fmt: skip
    metadata.create_all(engine)
    metadata.create_all(engine)  # which looks first
    moment = datetime.datetime(2024, 9, 19, tzinfo=datetime.UTC)
    with engine.begin() as connection:
        connection.execute(
            sa.insert(fruit),
            [{"id": n, "name": f"n'{n}", "price": Decimal(n) / 4, "at": moment, "ok": n % 2 == 0, "raw": b"\0",
              "d": n / 8, "tags": ["a"]} for n in range(20)],
        )  # fmt: skip
        found = connection.execute(
            sa.select(fruit.c.name, (fruit.c.price * 2).label("twice"), fruit.c.at)
            .where(fruit.c.id > 3, fruit.c.name.like("n'%"), fruit.c.ok)
            .order_by(fruit.c.id.desc()).limit(2).offset(1)
        ).all()  # fmt: skip
        assert [tuple(row) for row in found] == [
            ("n'16", Decimal("8.00"), moment),
            ("n'14", Decimal("7.00"), moment),
        ]
        assert (
            connection.execute(
                sa.update(fruit).where(fruit.c.price > 4).values(price=fruit.c.price + 1)
            ).rowcount
            == 3
        )
        assert connection.execute(sa.delete(fruit).where(fruit.c.id.in_([1, 2, 99]))).rowcount == 2
        assert connection.scalar(sa.select(sa.func.count()).select_from(fruit)) == 18
    inspector = sa.inspect(engine)
    assert inspector.get_table_names() == ["fruit"]
    assert sql.database in inspector.get_schema_names()
    assert inspector.get_pk_constraint("fruit")["constrained_columns"] == ["id"]
    reflected = sa.Table("fruit", sa.MetaData(), autoload_with=engine)
    assert [(column.name, str(column.type), column.nullable) for column in reflected.columns] == [
        ("id", "INTEGER", False), ("name", "VARCHAR", False), ("price", "DECIMAL(8, 2)", True),
        ("at", "TIMESTAMP", True), ("ok", "BOOLEAN", True), ("raw", "BLOB", True), ("d", "DOUBLE", True),
        ("tags", "ARRAY<STRING>", True),
    ]  # fmt: skip
    assert (reflected.comment, reflected.c.name.comment) == ("what is sold", "it's its name")
    assert sql.connection.admin.describe_table(f"{sql.database}.fruit").bucket_count == 2
    with pytest.raises(sa.exc.NoSuchTableError):
        sa.Table("nothing", sa.MetaData(), autoload_with=engine)
    with pytest.raises(sa.exc.ProgrammingError), engine.connect() as connection:
        connection.execute(sa.text("SELECT * FROM nothing"))
    metadata.drop_all(engine)
    assert not sa.inspect(engine).has_table("fruit")


def test_pandas_reads_and_writes(engine):
    frame = pd.DataFrame(
        {"id": range(300), "name": [f"n{n}" for n in range(300)], "d": [n / 4 for n in range(300)]}
    )
    assert frame.to_sql("made", engine, index=False) in (300, None)
    with engine.connect() as connection:
        read = pd.read_sql(
            sa.text("SELECT * FROM made WHERE id < :most ORDER BY id"), connection, params={"most": 5}
        )
        assert read.to_dict("list") == {
            "id": [0, 1, 2, 3, 4],
            "name": [f"n{n}" for n in range(5)],
            "d": [0, 0.25, 0.5, 0.75, 1],
        }
        assert len(pd.read_sql_table("made", connection)) == 300
        chunks = list(pd.read_sql("SELECT id FROM made", connection, chunksize=120))
        assert [len(each) for each in chunks] == [120, 120, 60]


def test_several_servers_and_properties_are_in_the_url():
    dialect = sa.make_url(
        "headrace://ann:pw@a:1/shop?server=b:2&server=c:3&ssl.ca.location=x"
    ).get_dialect()()
    _, named = dialect.create_connect_args(
        sa.make_url("headrace://ann:pw@a:1/shop?server=b:2&server=c:3&ssl.ca.location=x")
    )
    assert named == {
        "bootstrap": "a:1,b:2,c:3", "database": "shop",
        "properties": {"ssl.ca.location": "x", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
                       "sasl.username": "ann", "sasl.password": "pw"},
    }  # fmt: skip
