"""A process's client of a server, without Spark and without a server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.tablelayer.spark import worker


class Made:
    """A connection that was made."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_threads_that_come_at_the_same_time_have_one_connection_and_leave_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, made = threading.Barrier(2, timeout=60), list[Made]()

    def connect(*_: Any) -> Made:
        both.wait()
        made.append(Made())
        return made[-1]

    monkeypatch.setattr(worker, "_connections", {})
    monkeypatch.setattr(worker, "_connect", connect)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(worker.connection, ["127.0.0.1:1"] * 2)
    assert first is second is worker.connection("127.0.0.1:1")
    assert [each.is_closed for each in made if each is not first] == [True]
    assert not first.is_closed
