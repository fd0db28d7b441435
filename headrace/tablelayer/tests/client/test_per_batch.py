"""Clients work per batch, never per row: SQL, Flight and Spark's Python data source, with few and with many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from headrace.tablelayer.cli.console import _plan, _query
from headrace.tablelayer.client import ClientConfig, Connection, connect
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.tables import Sql, Statement, Tables, WrittenRows
from headrace.tablelayer.flight.messages import packed
from headrace.tablelayer.flight.server import FlightSql
from headrace.tablelayer.tests.cli.conftest import Served
from headrace.tablelayer.tests.lines import Counts, Lines, check_per_row

pytestmark = pytest.mark.slow

SQL = Sql(_query, _plan)

FEW, MANY = 1_000, 9_000
ALLOWED: dict[str, str] = {}
"""Functions that may run once a row, with the reason. Any other one is a defect."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    served = Served("--listen", "127.0.0.1:0", "--data", str(tmp_path_factory.mktemp("rows") / "data"))
    assert served.address, served.stop()[2]
    yield served.address
    assert served.stop()[0] == 0


def rows(count: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "part": pa.array([n % 7 for n in range(count)], pa.int32()),
            "text": [f"text {n}" for n in range(count)],
        }
    )


def upsert(connection: Connection, table: str, count: int) -> None:
    connection.table(table).upsert(rows(count))


def select(connection: Connection, table: str, count: int) -> None:
    assert connection.sql(f"SELECT id, text FROM {table}").to_arrow().num_rows == count


def group_by(connection: Connection, table: str, count: int) -> None:
    found = connection.sql(f"SELECT part, COUNT(*) AS n FROM {table} GROUP BY part").to_arrow()
    assert sum(found["n"].to_pylist()) == count


def insert_select(connection: Connection, table: str, count: int) -> None:
    connection.sql(f"INSERT INTO {table} SELECT id, part, text || '!' AS text FROM {table}")
    assert connection.table(table).count() == count


def update_where(connection: Connection, table: str, count: int) -> None:
    connection.sql(f"UPDATE {table} SET text = text || '?' WHERE part >= 0")
    assert connection.sql(f"SELECT text FROM {table} WHERE id = 3").rows() == [{"text": "text 3!?"}]


def by_flight(connection: Connection, table: str, count: int) -> None:
    server = FlightSql(connection, Access(), "127.0.0.1", 0, "1")
    try:
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
            asked = packed("CommandStatementQuery", query=f"SELECT * FROM {table}")
            (endpoint,) = client.get_flight_info(flight.FlightDescriptor.for_command(asked)).endpoints
            assert client.do_get(endpoint.ticket).read_all().num_rows == count
    finally:
        server.close(5.0)


def by_rest(connection: Connection, table: str, count: int) -> None:
    shown = Tables(connection, SQL).sql(Statement(query=f"SELECT * FROM {table}"))
    assert len(shown["rows"]) == count


def written_by_rest(connection: Connection, table: str, count: int) -> None:
    texts = [msgspec.Raw(msgspec.json.encode(row)) for row in rows(count).to_pylist()]
    assert Tables(connection, SQL).write(table, WrittenRows(rows=texts)) == {"written": count}


def spark_read(connection: Connection, table: str, count: int, mode: str) -> None:
    from headrace.tablelayer.spark.batch import HeadraceReader
    from headrace.tablelayer.spark.options import ReadOptions

    given = {"bootstrap.servers": connection.bootstrap, "table": table, "mode": mode}
    reader = HeadraceReader(ReadOptions.parse(given), ["id", "part", "text"])
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in found) >= count


def spark_write(connection: Connection, table: str, count: int) -> None:
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

    from headrace.tablelayer.spark.sink import batch_writer

    schema = StructType(
        [
            StructField("id", LongType(), False),
            StructField("part", IntegerType()),
            StructField("text", StringType()),
        ]
    )
    writer = batch_writer({"bootstrap.servers": connection.bootstrap, "table": table}, schema, False)
    writer.commit([writer.write(iter(rows(count).to_batches()))])
    assert connection.sql(f"SELECT text FROM {table} WHERE id = 3").rows() == [{"text": "text 3"}]


VIEWS: dict[str, Callable[[Connection, str, int], None]] = {
    "upsert": upsert,
    "SELECT": select,
    "GROUP BY": group_by,
    "INSERT SELECT": insert_select,
    "UPDATE WHERE": update_where,
    "Flight": by_flight,
    "REST, SELECT": by_rest,
    "REST, upsert": written_by_rest,
    "Spark, read of rows": lambda *given: spark_read(*given, "current"),
    "Spark, read of changes": lambda *given: spark_read(*given, "changelog"),
    "Spark, write": spark_write,
}


def counted(address: str, count: int) -> dict[str, Counts]:
    found, table = {}, f"per_batch_{count}"
    with Lines() as lines, connect(address, ClientConfig(request_timeout_ms=300_000)) as connection:
        connection.execute(
            f"CREATE TABLE {table} (id BIGINT NOT NULL, part INT, text STRING, PRIMARY KEY (id) NOT ENFORCED)"
        )
        for name, view in VIEWS.items():
            lines.taken()
            view(connection, table, count)
            found[name] = lines.taken()
    return found


def test_no_line_of_a_client_runs_once_for_each_row(address: str) -> None:
    check_per_row(counted(address, FEW), counted(address, MANY), MANY - FEW, ALLOWED)
