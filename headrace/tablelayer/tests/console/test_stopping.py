"""Queries of the console that are stopped: by their reader, by the time limit, by SIGTERM."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from headrace.tablelayer.client import connect
from headrace.tablelayer.console.running import QUERIES_MAX
from headrace.tablelayer.tests.cli.conftest import ROOT, Served

pytestmark = pytest.mark.slow
LONG = "SELECT sum(a.range * b.range % 7) FROM range(100000000) a, range(100000) b"


class Console:
    """A `headrace console` process."""

    def __init__(self, server: str, *words: str) -> None:
        command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "console", "-s", server]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", *words], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.process.stdout is not None
        found = re.search(r"http://(127\.0\.0\.1):(\d+)/", self.process.stdout.readline())
        assert found
        self.address = found[1], int(found[2])
        self.url = found[0].rstrip("/")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def begin(self, query: str) -> socket.socket:
        """Ask a query, and return the connection without reading the answer."""
        body = f'{{"query": "{query}"}}'.encode()
        asked = socket.create_connection(self.address)
        head = f"POST /api/sql HTTP/1.1\r\nhost: 127.0.0.1:{self.address[1]}\r\ncontent-type: application/json\r\n"
        asked.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        return asked


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    served = Served("--listen", "127.0.0.1:0", "--data", str(tmp_path_factory.mktemp("stopping") / "data"))
    with connect(served.address) as connection:
        connection.kafka.create_topic("clicks")
    yield served.address
    served.stop()


@pytest.fixture
def console(server: str) -> Iterator[Callable[..., Console]]:
    started = []

    def start(*words: str) -> Console:
        started.append(Console(server, *words))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"


def idle(console: Console) -> bool:
    """Return whether the process uses almost no time of a core for a second; a busy machine gives little, too."""
    before = console.cpu_seconds()
    time.sleep(1)
    return console.cpu_seconds() - before < 0.03


def test_long_queries_leave_room_for_others_and_end_with_their_readers(
    console: Callable[..., Console],
) -> None:
    made = console("--query-seconds", "0")
    ask = {"query": "SELECT 42 AS answer"}
    readers = [made.begin(LONG) for _ in range(3)]
    eventually(lambda: not idle(made))
    answer = httpx.post(f"{made.url}/api/sql", json=ask, timeout=60)
    assert answer.json()["rows"] == [[42]]
    readers += [made.begin(LONG) for _ in range(QUERIES_MAX - len(readers))]
    refused = httpx.post(f"{made.url}/api/sql", json=ask, timeout=60)
    assert (refused.status_code, f"{QUERIES_MAX} queries are running" in refused.text) == (429, True)
    for each in readers:
        each.close()
    eventually(lambda: idle(made))
    assert httpx.post(f"{made.url}/api/sql", json=ask, timeout=60).json()["rows"] == [[42]]


def test_a_query_ends_after_the_time_limit(console: Callable[..., Console]) -> None:
    made = console("--query-seconds", "1")
    ask = {"query": "SELECT 42 AS answer"}  # until everything is imported, it takes longer than the limit
    eventually(lambda: httpx.post(f"{made.url}/api/sql", json=ask, timeout=60).status_code == 200)
    late = httpx.post(f"{made.url}/api/sql", json={"query": LONG}, timeout=60)
    assert late.status_code == 504
    assert late.json()["error"].startswith("stopped after 1 s, the console's time limit")
    eventually(lambda: idle(made))


def test_sigterm_ends_a_console_with_a_query_and_a_live_tail(console: Callable[..., Console]) -> None:
    made = console("--query-seconds", "0")
    readers = [made.begin(LONG), made.begin(LONG)]
    tail = f"{made.url}/api/topics/clicks/tail"
    with httpx.Client(timeout=60) as client, client.stream("GET", tail) as events:
        arriving = events.iter_raw()
        assert next(arriving).startswith(b": waiting")
        told = threading.Event()

        def read() -> None:
            for _ in arriving:
                pass
            told.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        made.process.send_signal(signal.SIGTERM)
        assert made.process.wait(timeout=30) == 0
        assert told.wait(30), "the tail ends as a whole answer"
        reader.join()
    for each in readers:
        each.close()
