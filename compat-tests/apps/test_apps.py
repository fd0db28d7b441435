"""Stream libraries over topics and tables while the server is killed, and DuckDB on the lake's catalog.

Left out of `make test`: the applications are installed from their registries first. `make compat` runs them and writes
what came of it into COMPATIBILITY.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.environments import python_of
from apps.report import write_applications

from headrace import connect
from tablelayer.cli.catalog import CatalogServer
from tablelayer.lake.rest_catalog import RestCatalog
from tablelayer.tests.lake.test_catalog_over_rest import TOKEN, Folder

HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
COUNT = 20_000
KILLS = 2
ARRIVES_SECONDS = 300


@dataclass(frozen=True)
class App:
    name: str
    program: str
    requirements: tuple[str, ...]


STREAMS = (
    App("Quix Streams", "quix.py", ("quixstreams==3.28.1",)),
    App("Faust", "faust_app.py", ("faust-streaming==0.15.3", "aiokafka==0.14.0", "setuptools<81")),
    App("Bytewax", "bytewax_app.py", ("bytewax[kafka]==0.21.1",)),
    App("Pathway", "pathway_app.py", ("pathway==0.33.0",)),
)
DUCKDB = App(
    "DuckDB",
    "duck.py",
    ("duckdb==1.5.5", *(f"duckdb-extension-{name}==1.5.5" for name in ("iceberg", "avro", "httpfs"))),
)


@pytest.fixture(scope="session")
def outcomes():
    found: dict[str, tuple[str, str, str]] = {}
    yield found
    if os.environ.get("HEADRACE_WRITE_COMPATIBILITY"):
        write_applications(found)


@pytest.mark.parametrize("app", STREAMS, ids=lambda app: app.name)
def test_a_stream_library_fills_a_table_while_the_server_is_killed(
    app: App, own_server, tmp_path: Path, outcomes
) -> None:
    version, what = app.requirements[0].partition("==")[2], "topic to table, the server killed twice"
    outcomes[app.name] = (version, what, "**failed**")
    python = python_of(app.program.removesuffix(".py"), app.requirements)
    server = own_server
    with connect(server.address) as connection:
        connection.kafka.create_topic("records", partitions=3)
        connection.execute(
            "CREATE TABLE doubled (k BIGINT, doubled BIGINT, PRIMARY KEY (k) NOT ENFORCED)"
            " WITH ('bucket.num' = '2')"
        )
    log = tmp_path / "app.log"
    command = [str(python), str(HERE / app.program), server.address, "records", "default.doubled"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        for part in range(KILLS + 1):
            produce(server.address, range(part * COUNT // (KILLS + 1), (part + 1) * COUNT // (KILLS + 1)))
            seen = arrived(server, process, log, 1 + part * COUNT // (KILLS + 1))
            assert seen, log.read_text()[-3000:]
            if part < KILLS:
                server.kill()
                server.start()
        assert arrived(server, process, log, COUNT), log.read_text()[-3000:]
        with connect(server.address) as connection:
            rows = connection.table("doubled").to_arrow().to_pydict()
        assert dict(zip(rows["k"], rows["doubled"], strict=True)) == {n: 2 * (n + 7) for n in range(COUNT)}
    finally:
        process.kill()
        process.wait()
    outcomes[app.name] = (version, what, "passed")


def produce(address: str, numbers: range) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 20})
    for n in numbers:
        producer.produce("records", json.dumps({"k": n, "n": n + 7}), str(n))
        producer.poll(0)
    assert producer.flush(60) == 0


def arrived(server, process: subprocess.Popen[bytes], log: Path, least: int) -> bool:
    """Whether the table has so many rows before long."""
    deadline = time.monotonic() + ARRIVES_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with connect(server.address) as connection:
            if connection.table("doubled").count() >= least:
                return True
        time.sleep(0.5)
    return False


def test_duckdb_reads_the_lakes_catalog(tmp_path: Path, outcomes) -> None:
    version, what = DUCKDB.requirements[0].partition("==")[2], "the lake's REST catalog, with its token"
    outcomes[DUCKDB.name] = (version, what, "**failed**")
    python = python_of("duck", DUCKDB.requirements)
    lakes = Folder(tmp_path, store={})
    serving = CatalogServer(("127.0.0.1", 0), RestCatalog(lakes, TOKEN))
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    with serving:
        endpoint = f"http://127.0.0.1:{serving.server_address[1]}"
        done = subprocess.run(
            [str(python), str(HERE / DUCKDB.program), endpoint, TOKEN, "shop", "orders"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        serving.shutdown()
        thread.join()
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [[1, "a"], [2, "b"], [3, None]]
    outcomes[DUCKDB.name] = (version, what, "passed")
