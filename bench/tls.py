"""Prepared batches in and out over TLS: one connection, four requests under way, the same client for both servers.

The servers have one certificate (P-256) and choose version and cipher suite as they are configured by default.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bench import raw
from bench.processes import Server
from simulator.certificates import identity

UNDER_WAY = 4


def write_certificates(folder: Path) -> dict[str, str]:
    """Return the configurations of a listener with TLS, by Kafka's names, and write `ca.pem` for its clients."""
    authority = identity("bench")
    path = identity("localhost", authority).write(folder, "server")
    (folder / "ca.pem").write_text(authority.certificate_pem)
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)}


def connect(server: Server) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=server.tls_authority)
    sock = socket.create_connection(("127.0.0.1", server.tls_port), 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(sock, server_hostname="localhost")


def drive(server: Server, requests: Iterator[bytes], seconds: float) -> raw.Load:
    """Send requests until they or the time end."""
    answered, received = 0, 0
    buffer = memoryview(bytearray(4 << 20))
    with connect(server) as sock:
        cpu, began = server.cpu_seconds(), time.perf_counter()
        under_way = 0
        for request in islice(requests, UNDER_WAY):
            sock.sendall(request)
            under_way += 1
        while under_way:
            received += _receive(sock, buffer)
            answered += 1
            under_way -= 1
            if time.perf_counter() - began < seconds:
                for request in islice(requests, 1):
                    sock.sendall(request)
                    under_way += 1
        elapsed = time.perf_counter() - began
        return raw.Load(answered, elapsed, server.cpu_seconds() - cpu, received)


def _receive(sock: ssl.SSLSocket, buffer: memoryview) -> int:
    """Receive one answer; return its size."""
    filled, size = 0, 4
    while filled < size:
        count = sock.recv_into(buffer[filled:size])
        if not count:
            raise RuntimeError("the server closed the connection instead of answering")
        filled += count
        if filled == 4:
            (length,) = struct.unpack(">i", buffer[:4])
            size = 4 + length
    return size


def produce(server: Server, topic: str, seconds: float, records: int) -> raw.Load:
    """Write batches of `records` records of 1 KB to partition 0, and check the log's end."""
    request = raw.produce_frame(topic, [0], raw.batch(records, 1000))
    before = raw.end_offsets(server, topic, [0])
    load = drive(server, raw.again(request), seconds)
    written = raw.end_offsets(server, topic, [0]) - before
    if written != load.requests * records:
        raise RuntimeError(
            f"{server.name}: {load.requests * records} records acknowledged, {written} are there"
        )
    return load


def fetch(server: Server, topic: str, records: int, batches: int) -> raw.Load:
    """Fetch all batches of partition 0, one with each request; the total length is checked."""
    size_max = records * 1_100 + 200
    requests = (raw.fetch_frame(topic, [0], number * records, size_max) for number in range(batches))
    load = drive(server, requests, 600.0)
    if load.received_bytes < batches * records * 1000:
        raise RuntimeError(f"{server.name}: {load.received_bytes} bytes fetched of {batches} batches")
    return load
