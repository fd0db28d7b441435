"""One server process for the whole run; with HEADRACE_BROKERS=3 three of them, and a ZooKeeper."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from broker.testing.three_brokers import BROKERS, path_in
from broker.testing.zookeeper import LONG_SESSIONS, running_zookeeper
from tablelayer.client import Connection, connect
from tablelayer.tests.spark.spark_tables import Server, Servers


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server | Servers]:
    folder = tmp_path_factory.mktemp("server")
    with contextlib.ExitStack() as around:
        server: Server | Servers = Server(folder)
        if BROKERS > 1:
            zookeeper = running_zookeeper(folder / "zookeeper", settings=LONG_SESSIONS)
            server = Servers(folder, path_in(around.enter_context(zookeeper).address))
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
