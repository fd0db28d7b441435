"""A running server as its operators see it: systemd, logrotate, probes, kafka-configs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.tablelayer.cli.main import app
from headrace.tablelayer.cli.notify import Supervisor
from headrace.tablelayer.tests.cli.conftest import Served


@dataclass
class Operated:
    server: Served
    data: Path
    told: socket.socket
    http: str

    def heard(self) -> list[str]:
        """Return the next message to the supervisor."""
        return self.told.recv(4096).decode().splitlines()

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        asked = urllib.request.Request(f"{self.http}{path}", method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def lines(self, name: str = "headrace.log") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.data / name).read_text().splitlines()]


@pytest.fixture
def operated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operated]:
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.settimeout(60)
    told.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "3600000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    data = tmp_path / "data"
    words = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--log-format", "json")
    server = Served(
        "--data", str(data), *words, "--set", "advertised.listeners=PLAINTEXT://broker.example:9192"
    )
    found = re.search(r"metrics on (http://\S+:\d+)/metrics", server.ready)
    assert found, server.ready + server.stop(signal.SIGKILL)[2]
    yield Operated(server, data, told, found.group(1))
    server.stop(signal.SIGKILL)
    told.close()


def test_a_running_server_serves_its_operators(
    operated: Operated, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    """Told to systemd; health; a log that is moved away; levels that change; SIGHUP ends nothing."""
    assert "advertised PLAINTEXT broker.example:9192" in operated.server.ready
    ready = operated.heard()
    assert ready == ["READY=1", f"STATUS={operated.server.ready.strip()}"]
    assert operated.heard() == ["WATCHDOG=1"]

    assert operated.get("/healthz") == (200, "alive\n")
    assert operated.get("/readyz") == (200, "ready\n")
    assert operated.get("/readyz", "HEAD") == (200, "")
    assert operated.get("/metrics")[0] == 200
    assert operated.get("/")[0] == operated.get("/metrics/x")[0] == operated.get("/favicon.ico")[0] == 404
    assert operated.get("/metrics", "POST")[0] == 405

    log = operated.data / "headrace.log"
    first = operated.lines()[0]
    assert set(first) == {"time", "level", "logger", "message", "thread"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    log.rename(operated.data / "moved.log")
    operated.server.process.send_signal(signal.SIGHUP)
    assert operated.heard()[0] == "RELOADING=1"
    assert operated.heard()[0] == "READY=1"
    eventually(lambda: log.exists() and operated.lines())
    assert [line["message"] for line in operated.lines()] == ["SIGHUP: reopened the log file"]
    assert all("SIGHUP" not in line["message"] for line in operated.lines("moved.log"))

    code, out, err = operated.server.stop()
    assert (code, out, err) == (0, "", "")
    assert operated.heard()[0] == "STOPPING=1"


def test_levels_of_loggers_are_changed_while_it_runs(headrace: Callable[..., Any]) -> None:
    def level(name: str) -> str:
        said = headrace("configs", "describe", "broker-logger", "0", name, "-o", "json")
        return json.loads(said.stdout)["value"]

    assert level("headrace.net") == "INFO"
    assert level("root") == "WARN"
    assert headrace("configs", "set", "broker-logger", "0", "headrace.net=debug").exit_code == 0
    assert (level("headrace.net"), level("headrace.api")) == ("DEBUG", "INFO")
    assert headrace("configs", "set", "broker-logger", "0", "--unset", "headrace.net").exit_code == 0
    assert level("headrace.net") == "INFO"
    refused = headrace("configs", "set", "broker-logger", "0", "headrace.net=LOUD")
    assert refused.exit_code == 1
    assert "Valid log levels are TRACE, DEBUG, INFO, WARN, ERROR, FATAL" in refused.stderr
    assert (
        "Logger headrace.nett does not exist"
        in headrace("configs", "set", "broker-logger", "0", "headrace.nett=INFO").stderr
    )


def test_the_supervisor_is_notified_over_an_abstract_socket() -> None:
    name = f"headrace-test-{os.getpid()}-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.settimeout(10)
        told.bind(f"\0{name}")
        Supervisor({"NOTIFY_SOCKET": f"@{name}"}).ready("a\nb")
        assert told.recv(100) == b"READY=1\nSTATUS=a b"
    Supervisor({"NOTIFY_SOCKET": f"@{name}"}).stopping()
    Supervisor({}).reloading()
    assert Supervisor({"WATCHDOG_USEC": "1000000"}).watchdog_seconds == 1
    assert Supervisor({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_seconds is None


def test_the_options_of_the_log_are_said() -> None:
    refused = CliRunner().invoke(app, ["serve", "--data", "x", "--log-format", "xml"])
    assert refused.exit_code == 2
