"""The lines that strangers can cause in a running server's log, and the metrics that count all of them."""

from __future__ import annotations

import re
import socket
import struct
import urllib.request
from pathlib import Path

from headrace.broker.runtime.limited_lines import LINES_MAX

ATTEMPTS = LINES_MAX + 5


def hung_up_on(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.settimeout(60)
        connection.sendall(data)
        try:
            while connection.recv(4096):
                pass
        except ConnectionError:
            pass


def test_unauthenticated_clients_cause_a_bounded_number_of_log_lines(serve, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = serve("--listen", "127.0.0.1:0", "--data", str(data), "--metrics", "127.0.0.1:0")
    port = int(server.address.rpartition(":")[2])
    metrics = re.search(r"http://127\.0\.0\.1:\d+/metrics", server.ready)
    assert metrics is not None
    unknown = struct.pack(">hhih", 999, 0, 1, -1)
    for _ in range(ATTEMPTS):
        hung_up_on(port, struct.pack(">i", 2**31 - 1))
        hung_up_on(port, struct.pack(">i", len(unknown)) + unknown)
    with urllib.request.urlopen(metrics.group(), timeout=60) as answer:
        text = answer.read().decode()
    for fault in ("frame", "request"):
        assert f'headrace_connection_faults_total{{fault="{fault}"}} {ATTEMPTS}.0' in text
    assert f'headrace_connections_accepted_total{{listener="PLAINTEXT"}} {2 * ATTEMPTS}.0' in text
    server.stop()
    lines = (data / "headrace.log").read_text().splitlines()
    assert sum("it announced a frame" in line for line in lines) == LINES_MAX
    assert sum("API key 999" in line for line in lines) == LINES_MAX
    for fault in ("frame", "request"):
        told = (
            f"{ATTEMPTS - LINES_MAX} more lines of this kind ({fault}) were left out: there were {ATTEMPTS}"
        )
        assert sum(told in line for line in lines) == 1
