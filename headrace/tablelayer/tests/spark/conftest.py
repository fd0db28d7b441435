"""One server process for the whole run; with HEADRACE_BROKERS=3 three of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.tests.spark.spark_tables import Server, Servers


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, make_server: Callable[..., Server | Servers]
) -> Iterator[Server | Servers]:
    server = make_server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def address(server: Server | Servers) -> str:
    return server.address


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[Connection]:
    with connect(address) as connection:
        yield connection
