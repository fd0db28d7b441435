"""Helpers for frequent steps of the Spark tests."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headrace.tablelayer.client import Connection, ConnectionSettings, connect
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import DataType
from headrace.tablelayer.tests.serve import ROOT, Serve
from simulator.ports import free_port
from simulator.three_brokers import NUMBERS, ThreeBrokers, settings_of

_names = itertools.count()


class Server:
    """A server process of our own: it can be killed and started again on the same port and data. `lakes`: its settings
    for them, in place of folders beside the data.
    """

    def __init__(self, folder: Path, lakes: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.lakes = lakes or {
            "datalake.iceberg.warehouse": str(folder / "warehouse"),
            "datalake.paimon.warehouse": str(folder / "paimon"),
        }
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self.folder / "log"
        words = ["--data", str(self.folder / "data")]
        words += [] if "listeners" in self.lakes else ["--listen", self.address]
        for name, value in self.lakes.items():
            words += ["--set", f"{name}={value}"]
        with log.open("wb") as output:
            self._process = Serve(
                words,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        deadline = time.monotonic() + 60
        ready = None
        while ready is None and time.monotonic() < deadline and self._process.poll() is None:
            ready = re.search(r"ready on (\S+:\d+) ", log.read_text())
            time.sleep(0.05)
        assert ready is not None, log.read_text()
        self.address = ready.group(1)

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=60)

    def stop(self) -> int:
        """Ask it to end; return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=60)


class Servers(ThreeBrokers[Server]):
    """Three that are one cluster, with the lakes of one. `zookeeper`: its address with the cluster's path;
    `properties`: those of a client that may see the cluster.
    """

    def __init__(
        self,
        folder: Path,
        zookeeper: str,
        lakes: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        members = []
        for number in NUMBERS:
            own = folder / str(number)
            own.mkdir()
            members.append(Server(own, {**Server(folder, lakes).lakes, **settings_of(number, zookeeper)}))
        super().__init__(members, partial(_are_in_sync, properties or {}))

    def stop(self) -> None:
        self.stop_each()


def _are_in_sync(properties: Mapping[str, str], addresses: str) -> bool:
    for address in addresses.split(","):
        with connect(ConnectionSettings.make(address, properties)) as connection:
            found = connection.kafka.describe_cluster()
            if len(found.brokers) < len(NUMBERS) or found.offline or found.under_replicated:
                return False
    return True


def create(
    client: Connection,
    columns: list[tuple[str, DataType]],
    primary_key: tuple[str, ...] = (),
    *,
    buckets: int = 2,
    bucket_key: tuple[str, ...] = (),
    **options: str,
) -> str:
    """A new table of two buckets; options with _ for a dot. Its path."""
    path = TablePath("default", f"t{next(_names)}")
    named = {name.replace("_", "."): value for name, value in options.items()}
    schema = Schema.of(columns, primary_key)
    client.admin.create_table(TableDefinition(path, schema, bucket_key, buckets, named))
    return str(path)


def load(spark: Any, address: str, path: str, **options: Any) -> Any:
    """A batch frame of the data source; options with _ for a dot."""
    return _reader(spark.read, address, path, options).load()


def stream(spark: Any, address: str, path: str, **options: Any) -> Any:
    """A streaming frame of the data source."""
    return _reader(spark.readStream, address, path, options).load()


def _reader(reader: Any, address: str, path: str, options: dict[str, Any]) -> Any:
    reader = reader.format("headrace").option("bootstrap.servers", address).option("table", path)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    return reader


def sink(frame: Any, address: str, path: str, checkpoint: Path, **options: Any) -> Any:
    """The writer of a stream into a table, not started."""
    writer = frame.writeStream.format("headrace").option("bootstrap.servers", address).option("table", path)
    for name, value in options.items():
        writer = writer.option(name.replace("_", "."), value)
    return writer.option("checkpointLocation", str(checkpoint))


def read_available(frame: Any, checkpoint: Path, timeout_s: float = 300) -> list[Any]:
    """Return the rows of a stream from its checkpoint to its present end."""
    rows: list[Any] = []
    query = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    finish(query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(), timeout_s)
    return rows


def finish(query: Any, timeout_s: float = 300) -> None:
    """Wait for a query that ends by itself; raises its error."""
    deadline = time.monotonic() + timeout_s
    while not query.awaitTermination(5):
        assert time.monotonic() < deadline, "the query does not end"
