"""SIGTERM: requests under way are answered, files are closed, and the next start scans nothing."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

FETCH_WAITS_SECONDS = 100


def frame(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    data = struct.pack(">hhih", key, version, correlation_id, -1) + body
    return struct.pack(">i", len(data)) + data


def waiting_fetch(topic: bytes, correlation_id: int) -> bytes:
    """Send Fetch 4 at offset 0 of partition 0."""
    body = struct.pack(">iiiib", -1, FETCH_WAITS_SECONDS * 1000, 1, 1 << 20, 0)
    body += struct.pack(">ih", 1, len(topic)) + topic + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    return frame(1, 4, correlation_id, body)


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(1 << 16):
        data += part
    return data


def unread(port: int) -> list[int]:
    """Return the received and unread bytes of each connection of this port (proc_net_tcp)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return [int(row[4].partition(":")[2], 16) for row in established]


@pytest.mark.one_process("its stop, its descriptors and its start")
@pytest.mark.slow
def test_a_stopped_server_answers_what_it_was_asked_and_starts_without_a_scan(own_server, wait_until) -> None:
    admin = AdminClient({"bootstrap.servers": own_server.address})
    created = admin.create_topics([NewTopic("full", 20, 1), NewTopic("empty", 1, 1)])
    for done in created.values():
        done.result(60)
    producer = Producer({"bootstrap.servers": own_server.address})
    for number in range(2000):
        producer.produce("full", b"z" * 1000, partition=number % 20)
    assert producer.flush(60) == 0

    waiting = [socket.create_connection(("127.0.0.1", own_server.port)) for _ in range(20)]
    for number, sock in enumerate(waiting):
        sock.sendall(waiting_fetch(b"empty", number))
    wait_until(
        lambda: len(found := unread(own_server.port)) >= len(waiting) and not any(found), "all to be asked"
    )
    assert own_server.process is not None
    started = time.monotonic()
    own_server.process.send_signal(signal.SIGTERM)
    for number, sock in enumerate(waiting):
        sock.settimeout(60)
        answer = read_all(sock)
        size, correlation_id = struct.unpack_from(">ii", answer)
        assert (size, correlation_id) == (len(answer) - 4, number)  # one whole answer, then the end
    process = own_server.process
    assert process.wait(60) == 0
    assert time.monotonic() - started < FETCH_WAITS_SECONDS, "it waited for what it was asked"
    own_server.stop()

    data = Path(own_server.directory) / "data"
    assert (data / ".kafka_cleanshutdown").exists()
    before = {path: path.stat().st_mtime_ns for path in data.glob("full-*/*.log")}
    assert len(before) == 20
    own_server.start()
    # The start opened nothing: no log has an open descriptor, and no file was touched.
    assert own_server.process is not None
    descriptors = Path(f"/proc/{own_server.process.pid}/fd")
    targets = [os.readlink(each) for each in descriptors.iterdir()]
    assert not [target for target in targets if "/full-" in target]
    assert {path: path.stat().st_mtime_ns for path in data.glob("full-*/*.log")} == before
    offsets = admin.list_topics("full", timeout=60).topics["full"].partitions
    assert len(offsets) == 20
