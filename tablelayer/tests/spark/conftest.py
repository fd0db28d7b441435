"""One Spark session for the whole run: starting it costs more than any test."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tablelayer.client import Connection, connect

ROOT = Path(__file__).resolve().parents[3]


class Server:
    """A server process of our own: it can be killed and started again on the same port and data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = "127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self.folder / "log"
        command = [sys.executable, "-m", "tablelayer.cli.main", "serve", "--listen", self.address]
        command += ["--data", str(self.folder / "data")]
        command += ["--set", f"datalake.iceberg.warehouse={self.folder / 'warehouse'}"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        deadline = time.monotonic() + 60
        ready = None
        while ready is None and time.monotonic() < deadline and self._process.poll() is None:
            ready = re.search(r"ready on (\S+:\d+)", log.read_text())
            time.sleep(0.05)
        assert ready is not None, log.read_text()
        self.address = ready.group(1)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=20)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=20)


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


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def spark() -> Any:
    from tablelayer.spark.session import session

    return session("headrace tests", cores=2, memory="1g")


@pytest.fixture(autouse=True)
def _close_what_spark_left_open() -> Iterator[None]:
    """pyspark leaves sockets to the garbage collector: collect them here, where their warnings are
    ignored.
    """
    yield
    gc.collect()
