"""The two sides of the comparison with Apache Fluss: the same operations on tables, each by the system's own clients.

Headrace's client runs in this process, Fluss's in processes of their own, which stay up so that their compiled code is
kept. Every figure in seconds is from the first call to the last row or acknowledgement. Tables have one bucket. Keys
are int64 arrays.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from bench.fluss_peer import FLUSS, Client, FlussServers, java_client, python_client
from bench.peers import HEADRACE, start_headrace
from bench.processes import Server
from bench.rows import (
    AGGREGATION,
    LOG_COLUMNS,
    PARTIAL_COLUMNS,
    PK_COLUMNS,
    WRITE_ROWS,
    log_rows,
    pk_rows,
    prefix_rows,
)
from bench.tables import LOOKUP_KEYS, scan_all, upsert_all
from headrace.tablelayer.client import Connection, connect

UNDER_WAY = 20_000
"""Number of lookups that the Java client has under way at once; its batches have 128."""
PREFIXES_UNDER_WAY = 5_000
PREFIXES_A_CALL = 1_000
RESTART_SECONDS_MAX = 240


class Side(Protocol):
    """One of the two systems, started on an empty folder at its creation."""

    name: str
    ready_s: float

    def cpu_seconds(self) -> float: ...
    def resident_mb(self) -> float: ...
    def create(self, table: str, kind: str) -> None:
        """Create a table. `kind`: ZSTD or NONE (log tables); plain, first_row, aggregation or prefix (PK tables)."""

    def drop(self, table: str) -> None: ...
    def append(self, table: str, rows: int) -> float: ...
    def scan(self, table: str, columns: list[str] | None, rows: int) -> float: ...
    def upsert(self, table: str, keys: np.ndarray, seed: int, *, partial: bool = False) -> float: ...
    def lookup(self, table: str, keys: np.ndarray) -> tuple[float, int]:
        """Return seconds, and the number of keys not found."""

    def single(self, table: str, keys: np.ndarray) -> list[float]:
        """Return the milliseconds of each lookup, one after the other."""

    def prefix(self, table: str, keys: np.ndarray) -> tuple[float, int]:
        """Return seconds, and the number of rows found."""

    def limit(self, table: str, rows: int, times: int) -> list[float]:
        """Return the milliseconds of each scan."""

    def kill_and_restart(self, table: str, key: int) -> float:
        """Kill with -9 and start at once: return the seconds to the first answer to a lookup."""

    def close(self) -> None: ...


class FlussSide:
    """Apache Fluss. pyfluss reads and writes its log tables, the Java client its PK tables."""

    name = FLUSS

    def __init__(self, folder: Path) -> None:
        self._folder = (folder / "fluss").absolute()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._servers = FlussServers(self._folder)
        self.ready_s = self._servers.ready_s
        self._clients: dict[str, Client] = {}

    def _client(self, kind: str) -> Client:
        if kind not in self._clients:
            command = java_client() if kind == "java" else python_client()
            self._clients[kind] = Client(command, self._servers.address, self._folder / f"{kind}-client.out")
        return self._clients[kind]

    def _java(self, *words: object, keys: np.ndarray | None = None) -> list[float]:
        """Run a command, with None in the place of the name of the file with the keys."""
        if keys is not None:
            file = self._folder / "keys"
            keys.astype("<i8").tofile(file)
            words = tuple(file if word is None else word for word in words)
        return self._client("java").ask(*words)

    def cpu_seconds(self) -> float:
        return self._servers.cpu_seconds()

    def resident_mb(self) -> float:
        return self._servers.resident_mb()

    def create(self, table: str, kind: str) -> None:
        self._client("python" if kind in ("ZSTD", "NONE") else "java").ask("create", table, kind)

    def drop(self, table: str) -> None:
        self._java("drop", table)

    def append(self, table: str, rows: int) -> float:
        return self._client("python").ask("append", table, rows)[0]

    def scan(self, table: str, columns: list[str] | None, rows: int) -> float:
        return self._client("python").ask("scan", table, ",".join(columns) if columns else "-", rows)[0]

    def upsert(self, table: str, keys: np.ndarray, seed: int, *, partial: bool = False) -> float:
        return self._java("upsert", table, None, seed, "partial" if partial else "all", keys=keys)[0]

    def lookup(self, table: str, keys: np.ndarray) -> tuple[float, int]:
        seconds, missing = self._java("lookup", table, None, UNDER_WAY, keys=keys)
        return seconds, int(missing)

    def single(self, table: str, keys: np.ndarray) -> list[float]:
        return self._java("single", table, None, keys=keys)

    def prefix(self, table: str, keys: np.ndarray) -> tuple[float, int]:
        seconds, rows = self._java("prefix", table, None, PREFIXES_UNDER_WAY, keys=keys)
        return seconds, int(rows)

    def limit(self, table: str, rows: int, times: int) -> list[float]:
        return self._java("limit", table, rows, times)

    def kill_and_restart(self, table: str, key: int) -> float:
        started = time.perf_counter()
        self._servers.kill_tablet_server()
        self._servers.start_tablet_server()
        while True:
            try:
                self._java("single", table, None, keys=np.array([key]))
            except RuntimeError:
                if time.perf_counter() - started > RESTART_SECONDS_MAX:
                    raise
                time.sleep(0.05)
            else:
                return time.perf_counter() - started

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._servers.stop()


class HeadraceSide:
    """Headrace, `headrace serve` in a process of its own, of another working tree if one is named."""

    def __init__(self, folder: Path, name: str = HEADRACE, tree: Path | None = None) -> None:
        self.name = name
        self._tree = tree
        self._folder = (folder / name.lower()).absolute()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._server: Server = self._start()
        self.ready_s = self._server.ready_s
        self._connection: Connection | None = None

    def _start(self) -> Server:
        return start_headrace(self._folder, name=self.name, tree=self._tree)

    @property
    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._server.address)
            self._connection.execute("CREATE DATABASE IF NOT EXISTS bench")
        return self._connection

    def cpu_seconds(self) -> float:
        return self._server.cpu_seconds()

    def resident_mb(self) -> float:
        return self._server.resident_mb()

    def create(self, table: str, kind: str) -> None:
        columns, options = PK_COLUMNS, {"bucket.num": "1"}
        if kind in ("ZSTD", "NONE"):
            columns = LOG_COLUMNS
            options["table.log.arrow.compression.type"] = kind
        elif kind == "prefix":
            columns = PK_COLUMNS.replace("c INT", "c INT NOT NULL").replace("KEY (id)", "KEY (id, c)")
            options["bucket.key"] = "id"
        elif kind != "plain":
            options["table.merge-engine"] = kind
            if kind == "aggregation":
                options |= {f"fields.{column}.agg": function for column, function in AGGREGATION.items()}
        written = ", ".join(f"'{name}'='{value}'" for name, value in options.items())
        self._connected.execute(f"CREATE TABLE bench.{table} ({columns}) WITH ({written})")

    def drop(self, table: str) -> None:
        self._connected.execute(f"DROP TABLE bench.{table}")

    def append(self, table: str, rows: int) -> float:
        handle = self._connected.table(f"bench.{table}")
        data = pa.Table.from_batches([log_rows(start, WRITE_ROWS) for start in range(0, rows, WRITE_ROWS)])
        started = time.perf_counter()
        handle.append(data)
        return time.perf_counter() - started

    def scan(self, table: str, columns: list[str] | None, rows: int) -> float:
        return scan_all(self._connected, f"bench.{table}", columns, rows)

    def upsert(self, table: str, keys: np.ndarray, seed: int, *, partial: bool = False) -> float:
        make = prefix_rows if table.startswith("prefix") else pk_rows
        columns = PARTIAL_COLUMNS if partial else None
        return len(keys) / upsert_all(self._connected, f"bench.{table}", keys, seed, columns, make)

    def lookup(self, table: str, keys: np.ndarray) -> tuple[float, int]:
        handle = self._connected.table(f"bench.{table}")
        missing, started = 0, time.perf_counter()
        for start in range(0, len(keys), LOOKUP_KEYS):
            found, _rows = handle.lookup(pa.table({"id": keys[start : start + LOOKUP_KEYS]}))
            missing += len(found) - int(np.count_nonzero(found))
        return time.perf_counter() - started, missing

    def single(self, table: str, keys: np.ndarray) -> list[float]:
        handle = self._connected.table(f"bench.{table}")
        times = []
        for key in keys.tolist():
            started = time.perf_counter()
            handle.lookup_one(key)
            times.append((time.perf_counter() - started) * 1e3)
        return times

    def prefix(self, table: str, keys: np.ndarray) -> tuple[float, int]:
        handle = self._connected.table(f"bench.{table}")
        rows, started = 0, time.perf_counter()
        for start in range(0, len(keys), PREFIXES_A_CALL):
            _which, found = handle.prefix_lookup_grouped(
                pa.table({"id": keys[start : start + PREFIXES_A_CALL]})
            )
            rows += found.num_rows
        return time.perf_counter() - started, rows

    def limit(self, table: str, rows: int, times: int) -> list[float]:
        handle = self._connected.table(f"bench.{table}")
        milliseconds = []
        for _ in range(times):
            started = time.perf_counter()
            found = handle.limit(rows)
            milliseconds.append((time.perf_counter() - started) * 1e3)
            if found.num_rows != rows:
                raise RuntimeError(f"{found.num_rows} of {rows} rows")
        return milliseconds

    def kill_and_restart(self, table: str, key: int) -> float:
        self._disconnect()
        started = time.perf_counter()
        self._server.stop(kill=True)
        self._server = self._start()
        self._connected.table(f"bench.{table}").lookup_one(key)
        return time.perf_counter() - started

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._disconnect()
        self._server.stop()
