"""SIGTERM: what is under way is answered, files are closed, and the next start scans nothing."""

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


def frame(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    data = struct.pack(">hhih", key, version, correlation_id, -1) + body
    return struct.pack(">i", len(data)) + data


def waiting_fetch(topic: bytes, correlation_id: int) -> bytes:
    """Fetch 4 at offset 0 of partition 0, which waits for a minute."""
    body = struct.pack(">iiiib", -1, 60_000, 1, 1 << 20, 0)
    body += struct.pack(">ih", 1, len(topic)) + topic + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    return frame(1, 4, correlation_id, body)


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(1 << 16):
        data += part
    return data


@pytest.mark.slow
def test_a_stopped_server_answers_what_it_was_asked_and_starts_without_a_scan(own_server) -> None:
    admin = AdminClient({"bootstrap.servers": own_server.address})
    created = admin.create_topics([NewTopic("full", 20, 1), NewTopic("empty", 1, 1)])
    for done in created.values():
        done.result(20)
    producer = Producer({"bootstrap.servers": own_server.address})
    for number in range(2000):
        producer.produce("full", b"z" * 1000, partition=number % 20)
    assert producer.flush(20) == 0

    waiting = [socket.create_connection(("127.0.0.1", own_server.port)) for _ in range(20)]
    for number, sock in enumerate(waiting):
        sock.sendall(waiting_fetch(b"empty", number))
    time.sleep(0.5)
    assert own_server.process is not None
    own_server.process.send_signal(signal.SIGTERM)
    for number, sock in enumerate(waiting):
        sock.settimeout(20)
        answer = read_all(sock)
        size, correlation_id = struct.unpack_from(">ii", answer)
        assert (size, correlation_id) == (len(answer) - 4, number)  # one whole answer, then the end
    started = time.monotonic()
    process = own_server.process
    assert process.wait(20) == 0
    assert time.monotonic() - started < 5
    own_server.stop()

    data = Path(own_server.directory) / "data"
    assert (data / ".kafka_cleanshutdown").exists()
    before = {path: path.stat().st_mtime_ns for path in data.glob("full-*/*.log")}
    assert len(before) == 20
    own_server.start()
    # Nothing was opened: no descriptor of a log is held, and no file was touched.
    assert own_server.process is not None
    descriptors = Path(f"/proc/{own_server.process.pid}/fd")
    targets = [os.readlink(each) for each in descriptors.iterdir()]
    assert not [target for target in targets if "/full-" in target]
    assert {path: path.stat().st_mtime_ns for path in data.glob("full-*/*.log")} == before
    offsets = admin.list_topics("full", timeout=10).topics["full"].partitions
    assert len(offsets) == 20
