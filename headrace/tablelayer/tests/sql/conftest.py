"""A server of this process, and a session of SQL with a database of its own."""

import itertools

import pytest

from headrace.tablelayer.client import connect
from headrace.tablelayer.sql.session import Session

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    from headrace.tablelayer.tests.cli.conftest import Served

    served = Served("--listen", "127.0.0.1:0", "--data", str(tmp_path_factory.mktemp("sql") / "data"))
    assert served.address, served.stop()[2]
    yield served.address
    code, _, err = served.stop()
    assert code == 0, err
    assert "Traceback" not in err, err


@pytest.fixture
def connection(server):
    with connect(server) as connection:
        yield connection


class Sql:
    """`sql("...")` returns the rows of the last statement as dicts, or its message."""

    def __init__(self, connection, database):
        self.connection = connection
        self.database = database
        self.session = Session(connection, database)

    def __call__(self, text):
        for answer in self.session.run(text):
            last = answer.text if answer.schema is None else answer.rows.to_pylist()
        return last

    def ways(self, text):
        """Return the output of EXPLAIN, as tuples."""
        return [tuple(row.values()) for row in self(f"EXPLAIN {text}")]


@pytest.fixture
def sql(connection):
    name = f"sql{next(_numbers)}"
    connection.admin.create_database(name)
    yield Sql(connection, name)
    connection.admin.drop_database(name, cascade=True)
