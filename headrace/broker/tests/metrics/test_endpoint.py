"""The HTTP endpoint of the metrics: the cost of connections that send nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from contextlib import ExitStack

import pytest

from headrace.broker.metrics.endpoint import MetricsEndpoint, _Server, _Silent
from headrace.broker.metrics.model import Metrics


async def test_silent_connections_take_a_bounded_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.broker.metrics.endpoint.THREADS_MAX", 3)
    endpoint = MetricsEndpoint(Metrics(), "127.0.0.1", 0)

    def scrape() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=10) as answer:
            return answer.read()

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", endpoint.port), 10)

    of_others = set(threading.enumerate())
    silent = [connect() for _ in range(3)]
    refused = [connect() for _ in range(4)]
    for each in refused:
        assert await asyncio.to_thread(each.recv, 1) == b""
    begun = set(threading.enumerate()) - of_others
    assert sum("process_request_thread" in each.name for each in begun) == 3
    for each in silent + refused:
        each.close()
    for _ in range(1000):  # until the threads of the silent connections have noticed
        try:
            text = await asyncio.to_thread(scrape)
            break
        except OSError:
            await asyncio.sleep(0.01)
    assert b"python_info" in text
    endpoint.close()


def test_connections_that_come_at_once_do_not_wait_for_each_other() -> None:
    with _Server(("127.0.0.1", 0), _Silent) as server, ExitStack() as opened:
        for _ in range(20):  # the system accepts them before the server does
            opened.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=0.9))
