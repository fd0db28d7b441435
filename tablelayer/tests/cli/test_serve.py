"""`headrace serve`: the ready line, clean stops, and one clear sentence for everything that prevents a start."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tablelayer.cli.main import app
from tablelayer.client import ClientConfig, connect

ROOT = Path(__file__).parents[3]


def refused(*words: str) -> str:
    """What a server says that does not start: one sentence, nothing on stdout, exit code 1."""
    done = subprocess.run(
        [sys.executable, "-m", "tablelayer.cli.main", "serve", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_when_ready_and_a_clean_stop(serve, tmp_path, number):
    served = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert re.fullmatch(
        r"headrace is ready on 127\.0\.0\.1:\d+ "
        rf"\(data {re.escape(str(tmp_path / 'data'))}, broker id 0\) in \d+\.\d s\n",
        served.ready,
    )
    code, out, err = served.stop(number)
    assert (code, out, err) == (0, "", "")
    log = (tmp_path / "data" / "headrace.log").read_text()
    assert "serving on 127.0.0.1" in log
    assert "stopped" in log


def test_reasons_not_to_start(serve, tmp_path):
    data = str(tmp_path / "data")
    served = serve("--listen", "127.0.0.1:0", "--data", data)
    port = served.address.rpartition(":")[2]
    in_use = refused("--listen", "127.0.0.1:0", "--data", data)
    assert f"{data} is in use by another broker (process {served.process.pid})" in in_use
    taken = refused("--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "other"))
    assert re.search(rf"cannot listen on 127\.0\.0\.1:{port}: .*in use", taken)
    assert served.stop()[0] == 0
    properties = tmp_path / "data" / "meta.properties"
    properties.write_text(re.sub(r"version=\d+", "version=99", properties.read_text()))
    assert "99" in refused("--listen", "127.0.0.1:0", "--data", data)


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


def test_configurations_from_a_file_and_from_the_command_line(serve, tmp_path):
    config = tmp_path / "server.properties"
    config.write_text("# more partitions\nnum.partitions=3\nauto.create.topics.enable=false\n")
    served = serve(
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(tmp_path / "data"),
        "--config",
        str(config),
        "--set",
        "num.partitions=5",
    )
    with connect(served.address) as connection:
        assert len(connection.kafka.create_topic("t").leaders) == 5


def test_a_missing_option_is_a_usage_error():
    done = subprocess.run(
        [sys.executable, "-m", "tablelayer.cli.main", "serve"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert "--data" in done.stderr


def test_a_killed_server_keeps_what_was_acknowledged_and_clients_go_on(serve, tmp_path):
    """A writer that never notices: every row exactly once, although the server dies by `kill -9` under it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ("--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"))
    served = serve(*words)
    config = ClientConfig(request_timeout_ms=2_000, delivery_timeout_ms=30_000, batch_size_bytes=4_000)
    with connect(served.address, config) as connection:
        connection.execute(
            "CREATE TABLE log (id BIGINT, text STRING) WITH ('bucket.num' = '2');"
            "CREATE TABLE kv (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '2')"
        )
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
        time.sleep(0.7)
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait()
        before = written[0]
        served = serve(*words)
        assert served.ready
        deadline = time.monotonic() + 20
        while written[0] < before + 1_000 and not failures and time.monotonic() < deadline:
            time.sleep(0.02)
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
