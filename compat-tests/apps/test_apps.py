"""Stream libraries over topics and tables while the server is killed, and DuckDB on the lake's catalog.

Left out of `make test`: the applications are installed from their registries first. `make compat` runs them and writes
the outcomes into COMPATIBILITY.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.environments import python_of
from apps.loads import Attempt, produce, rows_by_key

from headrace import connect
from headrace.tablelayer.cli.catalog import CatalogServer
from headrace.tablelayer.lake.rest_catalog import RestCatalog
from headrace.tablelayer.tests.lake.test_catalog_over_rest import TOKEN, Folder

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

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2]


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


@pytest.mark.parametrize("app", STREAMS, ids=lambda app: app.name)
def test_a_stream_library_fills_a_table_while_the_server_is_killed(
    app: App, own_server, tmp_path: Path, attempt: Attempt
) -> None:
    with attempt(app.name, app.version, "topic to table, the server killed twice"):
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
                numbers = range(part * COUNT // (KILLS + 1), (part + 1) * COUNT // (KILLS + 1))
                produce(server.address, "records", ((str(n), {"k": n, "n": n + 7}) for n in numbers))
                assert arrived(server, process, 1 + numbers.start), log.read_text()[-3000:]
                if part < KILLS:
                    server.kill()
                    server.start()
            assert arrived(server, process, COUNT), log.read_text()[-3000:]
            rows = rows_by_key(server.address, "doubled", "k")
            assert {k: row["doubled"] for k, row in rows.items()} == {n: 2 * (n + 7) for n in range(COUNT)}
        finally:
            process.kill()
            process.wait()


def arrived(server, process: subprocess.Popen[bytes], least: int) -> bool:
    """Return whether the table gets that many rows in time."""
    deadline = time.monotonic() + ARRIVES_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with connect(server.address) as connection:
            if connection.table("doubled").count() >= least:
                return True
        time.sleep(0.5)
    return False


def test_duckdb_reads_the_lakes_catalog(tmp_path: Path, attempt: Attempt) -> None:
    with attempt(DUCKDB.name, DUCKDB.version, "the lake's REST catalog, with its token"):
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
