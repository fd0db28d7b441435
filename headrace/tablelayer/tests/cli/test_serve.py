"""`headrace serve`: the ready line, clean stops, and one clear sentence for everything that prevents a start."""

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.tablelayer.cli.main import app
from headrace.tablelayer.client import ClientConfig, connect
from simulator.ports import free_port

ROOT = Path(__file__).resolve().parents[4]


def refused(*words: str) -> str:
    """Return the output of a server that does not start: one sentence, nothing on stdout, exit code 1."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.tablelayer.cli.main", "serve", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_one_line_when_ready_configured_by_file_and_command_line_and_a_clean_stop(serve, tmp_path):
    data, config = tmp_path / "data", tmp_path / "server.properties"
    config.write_text("# more partitions\nnum.partitions=3\nauto.create.topics.enable=false\n")
    words = ("--data", str(data), "--config", str(config), "--set", "num.partitions=5")
    served = serve("--listen", "127.0.0.1:0", *words)
    assert re.fullmatch(
        r"headrace is ready on 127\.0\.0\.1:\d+ "
        + re.escape(f"(data {data}, broker id 0)")
        + r" in \d+\.\d s\n",
        served.ready,
    )
    with connect(served.address) as connection:
        assert len(connection.kafka.create_topic("t").leaders) == 5
    assert f"{data} is in use by another broker (process {served.process.pid})" in refused(
        "--listen", "127.0.0.1:0", "--data", str(data)
    )
    code, out, err = served.stop(signal.SIGTERM)
    assert (code, out, err) == (0, "", "")
    log = (data / "headrace.log").read_text()
    assert "serving on PLAINTEXT://127.0.0.1" in log
    assert log.endswith("stopped\n")


def test_an_interrupt_is_a_clean_stop_and_v_logs_to_stderr(serve, tmp_path):
    served = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "-v")
    code, out, err = served.stop(signal.SIGINT)
    assert (code, out) == (0, "")
    assert re.search(r"INFO headrace\.server: serving on", err)
    assert "Traceback" not in err


def test_reasons_not_to_start(server, tmp_path, quiet_logging):
    def said(*words):
        done = CliRunner().invoke(app, ["serve", *words])
        assert gc.isenabled()
        assert done.exit_code == 1
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    port = server.rpartition(":")[2]
    taken = said("--listen", server, "--data", str(tmp_path / "other"))
    assert re.search(rf"cannot listen on 127\.0\.0\.1:{port}: .*in use", taken)
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "meta.properties").write_text("version=99\ncluster.id=abcdefghijklmnopqrstuw\nnode.id=0\n")
    assert "99" in said("--listen", "127.0.0.1:0", "--data", str(newer))
    (tmp_path / "file").write_text("")
    assert "cannot be used" in said("--listen", "127.0.0.1:0", "--data", str(tmp_path / "file" / "data"))


@pytest.fixture
def quiet_logging():
    """`serve` sets up the logging of its process; here that is pytest's."""
    root, ours = logging.getLogger(), logging.getLogger("headrace")
    before = root.handlers[:], root.level, ours.level
    gc.collect()  # what earlier tests have left complains before, not meanwhile
    yield
    root.handlers[:], root.level, ours.level = before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "num.partition=3"), "num.partitions"),
        (("--set", "num.partitions=many"), "many"),
        (("--set", "num.partitions"), "name=value"),
        (("--listen", "9092"), "not an address"),
        (("--config", "none.properties"), "cannot be read"),
        (("--config", "bad.toml"), "bad.toml"),
    ],
)
def test_configurations_that_make_no_sense(tmp_path, monkeypatch, words, said):
    (tmp_path / "bad.toml").write_text("num.partitions = = 3")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", "--data", "data", *words])
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "data").exists()


def test_a_missing_option_is_a_usage_error():
    done = CliRunner().invoke(app, ["serve"])
    assert done.exit_code == 2
    assert "--data" in done.stderr


def test_a_killed_server_keeps_acknowledged_records_and_clients_reconnect(serve, tmp_path, eventually):
    """A writer that never notices: every row exactly once, although the server dies by `kill -9` under it."""
    words = ("--listen", f"127.0.0.1:{free_port()}", "--data", str(tmp_path / "data"))
    served = serve(*words)
    with connect(served.address) as connection:
        connection.execute(
            "CREATE TABLE log (id BIGINT, text STRING) WITH ('bucket.num' = '2');"
            "CREATE TABLE kv (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '2')"
        )
    config = ClientConfig(request_timeout_ms=2_000, delivery_timeout_ms=60_000, batch_size_bytes=4_000)
    with connect(served.address, config) as connection:
        log, kv = connection.table("log"), connection.table("kv")
        written, failures, stop = [0], [], threading.Event()

        def write():
            try:
                while not stop.is_set():
                    ids = range(written[0], written[0] + 200)
                    log.append([{"id": i, "text": "x" * 30} for i in ids])
                    kv.upsert([{"id": i % 500, "n": i} for i in ids])
                    written[0] += 200
            except Exception as error:  # noqa: BLE001 - shown by the test
                failures.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        eventually(lambda: written[0] >= 2_000 or failures, 60)
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait()
        before = written[0]
        served = serve(*words)
        assert served.ready
        eventually(lambda: written[0] >= before + 1_000 or failures, 60)
        stop.set()
        writer.join()
        assert not failures, failures
        assert written[0] > before, "the writer went on after the restart"
        assert sorted(log.to_arrow(["id"]).column("id").to_pylist()) == list(range(written[0]))
        rows = {row["id"]: row["n"] for row in kv.to_arrow().to_pylist()}
        assert rows == {i % 500: i for i in range(written[0])}
    log_text = (tmp_path / "data" / "headrace.log").read_text()
    assert re.search(
        r"table default\.kv bucket 0: kept \d+ rows up to offset \d+, replayed \d+ rows", log_text
    )
