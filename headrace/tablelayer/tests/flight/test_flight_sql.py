"""Flight SQL over a running server: by Flight's own client, and by ADBC's driver against `headrace console`."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.client.admin.produce import OutgoingRecord
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.flight import metadata, server
from headrace.tablelayer.flight.messages import _MESSAGES, MessageError, packed, unpacked
from headrace.tablelayer.flight.server import FlightSql, pieces_of
from headrace.tablelayer.tests.cli.conftest import ROOT, Served

ROWS = 60_000


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    served = Served("--listen", "127.0.0.1:0", "--data", str(tmp_path_factory.mktemp("flight") / "data"))
    assert served.address, served.stop()[2]
    with connect(served.address) as made:
        made.execute(
            "CREATE DATABASE shop;"
            "CREATE TABLE shop.fruit (id INT, name STRING NOT NULL, price DECIMAL(8, 2), at TIMESTAMP(3),"
            " tags ARRAY<STRING>, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '2');"
            "CREATE TABLE shop.pair (a INT, b STRING, n BIGINT, PRIMARY KEY (a, b) NOT ENFORCED)"
            " WITH ('bucket.key' = 'a');"
            "CREATE TABLE click (id BIGINT, page STRING)"
        )
        made.table("shop.fruit").upsert(
            [{"id": n, "name": f"f{n}", "price": n, "tags": ["x"]} for n in range(9)]
        )
        made.table("shop.pair").upsert([{"a": n % 2, "b": str(n), "n": n} for n in range(6)])
        made.table("default.click").append(
            pa.table(
                {"id": pa.array(range(ROWS), pa.int64()), "page": [f"/page/{n:0>40}" for n in range(ROWS)]}
            )
        )
        made.kafka.create_topic("plain")
        made.kafka.produce("plain", [OutgoingRecord(b'{"n": 1}', b"k")])
        yield made
    assert served.stop()[0] == 0


@pytest.fixture
def door(connection: Connection) -> Iterator[Callable[..., Client]]:
    """`door(Access(...), headers=...)`: a client of a Flight SQL server of its own."""
    made: list[FlightSql] = []
    clients: list[Client] = []

    def open_one(access: Access | None = None, **headers: str) -> Client:
        made.append(FlightSql(connection, access or Access(), "127.0.0.1", 0, "1"))
        clients.append(Client(made[-1].port, headers))
        return clients[-1]

    yield open_one
    for client in clients:
        client.flight.close()
    for each in made:
        assert each.close(20)


class Client:
    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self.port = port
        self.flight = flight.connect(f"grpc://127.0.0.1:{port}")
        self.options = flight.FlightCallOptions(
            timeout=60, headers=[(name.encode(), text.encode()) for name, text in (headers or {}).items()]
        )

    def info(self, name: str, **fields: Any) -> flight.FlightInfo:
        descriptor = flight.FlightDescriptor.for_command(packed(name, **fields))
        found = self.flight.get_flight_info(descriptor, self.options)
        assert self.flight.get_schema(descriptor, self.options).schema == found.schema
        return found

    def reader(self, info: flight.FlightInfo) -> flight.FlightStreamReader:
        (endpoint,) = info.endpoints
        assert endpoint.locations == []
        return self.flight.do_get(endpoint.ticket, self.options)

    def rows(self, name: str, **fields: Any) -> pa.Table:
        """The rows, whose schema is what was said before."""
        info = self.info(name, **fields)
        found = self.reader(info).read_all()
        assert found.schema == info.schema
        return found

    def query(self, text: str) -> pa.Table:
        return self.rows("CommandStatementQuery", query=text)

    def prepare(self, text: str) -> Any:
        request = packed("ActionCreatePreparedStatementRequest", query=text)
        (result,) = self.flight.do_action(flight.Action("CreatePreparedStatement", request), self.options)
        name, message = unpacked(result.body.to_pybytes())
        assert name == "ActionCreatePreparedStatementResult"
        return message


def schema_of(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT name, price FROM shop.fruit WHERE id = 3", 1),
        ("SELECT * FROM shop.fruit WHERE id = 99", 0),
        ("SELECT * FROM shop.pair WHERE a = 1", 3),
        ("SELECT * FROM shop.fruit LIMIT 2", 2),
        ("SELECT count(*) FROM shop.fruit", 1),
        ("SELECT count(*) FROM shop.fruit WHERE id < 4", 1),
        ("SELECT min(id), max(name), count(at) FROM shop.fruit", 1),
        ("SELECT id, at, tags FROM shop.fruit", 9),
        ("SELECT id FROM shop.fruit WHERE name > 'f5'", 3),
        ("SELECT name, sum(price) AS s FROM shop.fruit GROUP BY name ORDER BY s DESC", 9),
        ("SELECT f.name, p.b FROM shop.fruit f JOIN shop.pair p ON f.id = p.n", 6),
        ("SELECT * FROM plain", 1),
        ("SELECT 1 AS one, NULL AS n", 1),
        ("EXPLAIN SELECT * FROM shop.fruit WHERE id = 3", 1),
        ("SUMMARIZE shop.fruit", 5),
        ("SHOW TABLES FROM shop", 2),
        ("DESCRIBE shop.fruit", 5),
        ("SHOW CREATE TABLE shop.fruit", 1),
        ("SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'", 2),
    ],
)
def test_every_kind_of_query_streams_its_announced_schema(
    door: Callable[..., Client], connection: Connection, query: str, rows: int
) -> None:
    found = door().query(query)
    assert found.num_rows == rows
    if not query.startswith(("SELECT table_name", "SUMMARIZE", "SHOW CREATE")):
        key = [(name, "ascending") for name in found.column_names if name in ("id", "b", "name")]
        asked = connection.sql(query).to_arrow()
        assert (found.sort_by(key) if key else found).equals(asked.sort_by(key) if key else asked)


def test_a_large_result_comes_in_messages_that_clients_take(door: Callable[..., Client]) -> None:
    client = door()
    reader = client.reader(client.info("CommandStatementQuery", query="SELECT * FROM click"))
    sizes, ids = [], 0
    for chunk in reader:
        sizes.append(chunk.data.nbytes)
        ids += chunk.data.num_rows
    assert ids == ROWS
    assert len(sizes) > 1
    assert max(sizes) <= server.BATCH_BYTES_MAX
    wide = pa.record_batch({"x": ["a" * (3 << 20), "b" * (3 << 20), "c"]})
    assert [each.num_rows for each in pieces_of(wide)] == [1, 1, 1]


def test_concurrent_queries_are_bounded_and_a_closed_client_frees_its_slot(
    door: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STREAMS_MAX", 1)
    client = door()
    text = "SELECT a.id, b.page, repeat('x', 1000) AS x FROM click a, click b"
    reader = client.reader(client.info("CommandStatementQuery", query=text))
    assert next(reader).data.num_rows
    with pytest.raises(flight.FlightUnavailableError, match="1 queries are running, which is the limit"):
        client.query("SELECT count(*) FROM click")
    reader.cancel()
    del reader
    deadline = time.monotonic() + 100
    while True:
        try:
            assert client.query("SELECT count(*) FROM click").column(0)[0].as_py() == ROWS
            break
        except flight.FlightUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM shop.fruits", "fruits"),
        ("SELECT nam FROM shop.fruit", "there is no column 'nam' in shop.fruit; did you mean name"),
        ("SELECT FROM WHERE", "line 1, column"),
        ("INSERT INTO shop.fruit (id, name) VALUES (100, 'x')", "one SELECT, EXPLAIN"),
        ("DROP TABLE shop.fruit", "one SELECT, EXPLAIN"),
        ("SHOW USERS", "one SELECT, EXPLAIN"),
        ("SELECT 1; SELECT 2", "one SELECT, EXPLAIN"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
        ("SELECT 1/0 + CAST('x' AS INT)", "x"),
    ],
)
def test_a_failed_query_has_a_message_of_one_sentence(
    door: Callable[..., Client], query: str, said: str
) -> None:
    with pytest.raises((pa.ArrowException, flight.FlightError), match=re.escape(said)) as caught:
        door().query(query)
    assert "Traceback" not in str(caught.value)


def test_an_error_among_the_rows_is_said_too(door: Callable[..., Client]) -> None:
    with pytest.raises((pa.ArrowException, flight.FlightError), match="/page/0") as caught:
        door().query("SELECT CAST(page AS INT) FROM click ORDER BY 1")
    assert "Traceback" not in str(caught.value)


def test_an_unknown_command_is_refused(door: Callable[..., Client]) -> None:
    client = door()
    refused = (pa.ArrowException, flight.FlightError)
    for command in (b"", b"\xff\xff\xff", packed("TicketStatementQuery", statement_handle=b"SELECT 1")):
        with pytest.raises(refused):
            client.flight.get_flight_info(flight.FlightDescriptor.for_command(command), client.options)
    with pytest.raises(refused, match="the descriptor is a path"):
        client.flight.get_flight_info(flight.FlightDescriptor.for_path("x"), client.options)
    for ticket in (b"\x0a", packed("CommandStatementQuery", query="SELECT 1"),
                   packed("TicketStatementQuery", statement_handle=b"\xff")):  # fmt: skip
        with pytest.raises(refused):
            client.flight.do_get(flight.Ticket(ticket), client.options).read_all()
    with pytest.raises(refused, match="no action"):
        list(client.flight.do_action(flight.Action("BeginTransaction", b""), client.options))
    with pytest.raises(refused, match="only reads"):
        writer, reader = client.flight.do_put(
            flight.FlightDescriptor.for_command(packed("CommandStatementUpdate", query="DROP TABLE click")),
            pa.schema([]), client.options,
        )  # fmt: skip
        writer.done_writing()
        reader.read()
        writer.close()
    with pytest.raises(refused, match="at most"):
        client.query("SELECT '" + "x" * server.STATEMENT_BYTES_MAX + "'")
    with pytest.raises(MessageError, match="not a Flight SQL message"):
        unpacked(b"\xff")
    for name in _MESSAGES:
        assert unpacked(packed(name))[0] == name


def test_a_prepared_statement_takes_values_and_leaves_nothing_behind(door: Callable[..., Client]) -> None:
    client = door()
    plain = client.prepare("SELECT name FROM shop.fruit WHERE id = 2")
    assert schema_of(plain.dataset_schema).names == ["name"]
    assert plain.parameter_schema == b""
    found = client.prepare(
        "SELECT id, name FROM shop.fruit WHERE id > ? AND name <> ? AND '?' = '?' ORDER BY id"
    )
    places = schema_of(found.parameter_schema)
    assert [(each.name, each.type) for each in places] == [("1", pa.int32()), ("2", pa.string())]
    handle = found.prepared_statement_handle
    descriptor = flight.FlightDescriptor.for_command(
        packed("CommandPreparedStatementQuery", prepared_statement_handle=handle)
    )
    writer, reader = client.flight.do_put(descriptor, places, client.options)
    writer.write_batch(pa.record_batch([pa.array([5], pa.int32()), pa.array(["f7"])], schema=places))
    writer.done_writing()
    result = reader.read()
    writer.close()
    from headrace.tablelayer.flight.messages import _classes

    bound = _classes()["DoPutPreparedStatementResult"].FromString(result.to_pybytes())
    assert client.rows(
        "CommandPreparedStatementQuery", prepared_statement_handle=bound.prepared_statement_handle
    ).to_pylist() == [{"id": 6, "name": "f6"}, {"id": 8, "name": "f8"}]
    again = flight.FlightDescriptor.for_command(  # clients bind other values to the handle of the last ones
        packed("CommandPreparedStatementQuery", prepared_statement_handle=bound.prepared_statement_handle)
    )
    writer, reader = client.flight.do_put(again, places, client.options)
    writer.write_batch(pa.record_batch([pa.array([7], pa.int32()), pa.array(["f7"])], schema=places))
    writer.done_writing()
    bound = _classes()["DoPutPreparedStatementResult"].FromString(reader.read().to_pybytes())
    writer.close()
    assert client.rows(
        "CommandPreparedStatementQuery", prepared_statement_handle=bound.prepared_statement_handle
    ).to_pylist() == [{"id": 8, "name": "f8"}]
    client.flight.do_action(
        flight.Action("ClosePreparedStatement", packed("ActionClosePreparedStatementRequest")), client.options
    )
    with pytest.raises((pa.ArrowException, flight.FlightError), match="2 placeholders"):
        writer, reader = client.flight.do_put(descriptor, pa.schema([("1", pa.int32())]), client.options)
        writer.write_batch(pa.record_batch({"1": pa.array([5], pa.int32())}))
        writer.done_writing()
        reader.read()
        writer.close()


def test_clients_must_authenticate_by_password_or_token(door: Callable[..., Client]) -> None:
    basic = "Basic " + base64.b64encode(b"ann:secret").decode()
    access = Access("ann:secret", "tok")
    client = door(access)
    with pytest.raises(flight.FlightUnauthenticatedError, match="requires authentication"):
        client.query("SELECT 1")
    for wrong in ("Basic " + base64.b64encode(b"ann:other").decode(), "Bearer toc", "Bearer ", "x"):
        other = Client(client.port, {"authorization": wrong})
        with pytest.raises(flight.FlightUnauthenticatedError):
            other.query("SELECT 1")
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(other.flight.do_action(flight.Action("CloseSession", b""), other.options))
        other.flight.close()
    name, text = client.flight.authenticate_basic_token("ann", "secret")
    assert text.startswith(b"Bearer ")
    for right in (basic, "Bearer tok", text.decode()):
        known = Client(client.port, {name.decode(): right})
        assert known.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]
        known.flight.close()
    with pytest.raises(flight.FlightUnauthenticatedError):
        client.flight.authenticate_basic_token("ann", "other")


def test_names_of_tables_keys_and_types(door: Callable[..., Client]) -> None:
    client = door()
    assert client.rows("CommandGetCatalogs").num_rows == 0
    assert client.rows("CommandGetTableTypes").to_pylist() == [{"table_type": "TABLE"}]
    schemas = client.rows("CommandGetDbSchemas", db_schema_filter_pattern="s%").to_pylist()
    assert schemas == [{"catalog_name": None, "db_schema_name": "shop"}]
    assert client.rows("CommandGetDbSchemas", catalog="other").num_rows == 0

    def names(**fields: Any) -> list[str]:
        return client.rows("CommandGetTables", **fields).column("table_name").to_pylist()

    assert names() == ["click", "fruit", "pair"]
    assert names(db_schema_filter_pattern="shop", table_name_filter_pattern="_r%") == ["fruit"]
    assert names(table_name_filter_pattern=r"fr\_it") == []
    assert names(table_name_filter_pattern="%%%%i%%") == ["click", "fruit", "pair"]
    assert names(table_types=["VIEW"]) == []
    (fruit,) = client.rows(
        "CommandGetTables", table_name_filter_pattern="fruit", include_schema=True
    ).to_pylist()
    columns = schema_of(fruit["table_schema"])
    assert columns.names == ["id", "name", "price", "at", "tags"]
    assert [each.nullable for each in columns] == [False, False, True, True, True]
    assert columns.field("price").metadata[b"ARROW:FLIGHT:SQL:TYPE_NAME"] == b"DECIMAL(8, 2)"
    keys = client.rows("CommandGetPrimaryKeys", db_schema="shop", table="pair").to_pylist()
    assert [(each["column_name"], each["key_sequence"]) for each in keys] == [("a", 1), ("b", 2)]
    for name in ("CommandGetExportedKeys", "CommandGetImportedKeys"):
        assert client.rows(name, db_schema="shop", table="pair").num_rows == 0
    assert client.rows("CommandGetCrossReference", pk_table="pair", fk_table="fruit").num_rows == 0
    types = client.rows("CommandGetXdbcTypeInfo").to_pylist()
    order = [(each["data_type"], each["type_name"]) for each in types]
    assert order == sorted(order)
    assert {each["type_name"] for each in types} >= {"STRING", "DECIMAL", "TIMESTAMP_LTZ"}
    (decimal,) = client.rows("CommandGetXdbcTypeInfo", data_type=3).to_pylist()
    assert (decimal["type_name"], decimal["create_params"]) == ("DECIMAL", ["precision", "scale"])


def test_sql_info_describes_the_server(door: Callable[..., Client]) -> None:
    client = door()
    found = dict(zip(*client.rows("CommandGetSqlInfo").to_pydict().values(), strict=True))
    assert (found[0], found[1], found[3], found[4], found[563]) == ("Headrace", "1", True, True, False)
    assert set(found) >= {*range(6), *range(500, 577)}
    assert client.rows("CommandGetSqlInfo", info=[504, 508]).column("value").to_pylist() == ['"', []]
    kinds = [
        metadata._INFO_KINDS[each][0]
        for each in map(metadata._kind, ("", True, 1, metadata._Number(1), [], {}))
    ]
    assert kinds == [name for name, _ in metadata._INFO_KINDS]


@pytest.mark.slow
def test_adbc_asks_the_console(connection: Connection, tmp_path: Path) -> None:
    secret = tmp_path / "who"
    secret.write_text("ann:secret\n")
    words = [
        "console",
        "--server",
        connection.bootstrap,
        "--listen",
        "127.0.0.1:0",
        "--flight-sql",
        "127.0.0.1:0",
    ]
    console = subprocess.Popen(
        [sys.executable, "-m", "headrace.tablelayer.cli.main", *words, "--basic-auth-file", str(secret)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert console.stdout is not None
    lines = [console.stdout.readline() for _ in range(2)]
    found = re.search(r"grpc://127.0.0.1:\d+", "".join(lines))
    assert found, lines
    program = f"""
        import adbc_driver_flightsql.dbapi as dbapi
        from adbc_driver_manager import ProgrammingError, OperationalError

        def opened(password):
            who = {{"username": "ann", "password": password}}
            return dbapi.connect("{found.group()}", db_kwargs=who, autocommit=True)

        with opened("secret") as connection:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*), max(id) FROM click")
                print(cursor.fetchall())
                for values in ((3, "f5"), (4, "f6")):
                    cursor.execute("SELECT name FROM shop.fruit WHERE id = ? OR name = ? ORDER BY id", values)
                    print(cursor.fetchall())
                cursor.execute("SELECT * FROM click")
                print(sum(batch.num_rows for batch in cursor.fetch_record_batch()))
                try:
                    cursor.execute("SELECT nam FROM shop.fruit")
                except (ProgrammingError, OperationalError) as error:
                    print("did you mean name" in str(error), "Traceback" in str(error))
            objects = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
            schemas = [schema for each in objects for schema in each["catalog_db_schemas"]]
            print(sorted(table["table_name"] for each in schemas for table in each["db_schema_tables"]))
            print(connection.adbc_get_table_schema("fruit", db_schema_filter="shop").names)
            print(connection.adbc_get_info()["vendor_name"])
        try:
            with opened("other") as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except Exception as error:
            print("requires authentication" in str(error))
    """
    try:
        asked = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        console.terminate()
        _, err = console.communicate(timeout=60)
    assert asked.stdout.splitlines() == [
        f"[({ROWS}, {ROWS - 1})]",
        "[('f3',), ('f5',)]",
        "[('f4',), ('f6',)]",
        str(ROWS),
        "True False",
        "['click', 'fruit', 'pair']",
        "['id', 'name', 'price', 'at', 'tags']",
        "Headrace",
        "True",
    ], asked.stderr
    assert (console.returncode, "Traceback" in err) == (0, False), err


def test_an_address_that_is_taken_is_said(door: Callable[..., Client], connection: Connection) -> None:
    with pytest.raises(OSError, match="the port is in use, or the address is not this machine's"):
        FlightSql(connection, Access(), "127.0.0.1", door().port, "1")


@pytest.mark.soak
def test_the_console_ends_while_a_client_takes_no_more(connection: Connection) -> None:
    words = [
        "console",
        "--server",
        connection.bootstrap,
        "--listen",
        "127.0.0.1:0",
        "--flight-sql",
        "127.0.0.1:0",
    ]
    console = subprocess.Popen(
        [sys.executable, "-m", "headrace.tablelayer.cli.main", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert console.stdout is not None
    found = re.search(r"grpc://127.0.0.1:(\d+)", console.stdout.readline() + console.stdout.readline())
    assert found
    client = Client(int(found.group(1)))
    text = "SELECT a.range, repeat('x', 2000) FROM range(3000) a, range(3000) b"
    reader = client.reader(client.info("CommandStatementQuery", query=text))
    assert next(reader).data.num_rows
    console.terminate()
    console.communicate(timeout=60)
    assert console.returncode == 0
    client.flight.close()
