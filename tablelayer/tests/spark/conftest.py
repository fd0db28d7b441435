"""One server process for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tablelayer.client import Connection, connect
from tablelayer.tests.spark.spark_tables import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def address(server: Server) -> str:
    return server.address


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[Connection]:
    with connect(address) as connection:
        yield connection
