"""Long calls show a bar in a notebook, and nothing elsewhere."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.tablelayer.client import ClientError, DataError, connect, progress
from headrace.tablelayer.client.blocking import waiting
from headrace.tablelayer.client.blocking.waiting import LoopThread, waits
from headrace.tablelayer.client.progress import watched
from headrace.tablelayer.client.result import SqlResult


class Screen:
    """IPython's display with an id: every text that a cell showed, in order."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Screen:
        assert raw
        assert display_id
        assert not self.shown, "one bar per call"
        self.shown.append(bundle)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(bundle)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    found = Screen()
    python, shows = ModuleType("IPython"), ModuleType("IPython.display")
    vars(python)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(shows)["display"] = found.display
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    for module in (progress, waiting):
        monkeypatch.setattr(module, "QUIET_SECONDS", 0.05)
        monkeypatch.setattr(module, "STEP_SECONDS", 0.02)
    return found


class Work:
    """A table of the asynchronous client, whose calls take a while."""

    def __init__(self) -> None:
        self.written = self.read = 0

    async def upsert(self, rows: Any) -> str:
        for _ in range(20):
            self.written += len(rows) // 20
            await asyncio.sleep(0.01)
        return "done"

    async def to_arrow(self, seconds: float) -> str:
        self.read += 1_000
        await asyncio.sleep(seconds)
        return "all"

    async def lookup(self) -> None:
        raise DataError("column 'k' is missing")

    def counts(self) -> tuple[int, int]:
        return self.written, self.read


class Blocking(waiting.Waiting):
    upsert = waits(Work.upsert)
    to_arrow = waits(Work.to_arrow)
    lookup = waits(Work.lookup)


@pytest.fixture
def table() -> Any:
    loop = LoopThread()
    work = Work()
    loop.counts = work.counts
    yield Blocking(work, loop)
    loop.stop()


def test_a_write_shows_the_part_that_is_written_and_a_read_its_rows(screen: Screen, table: Any) -> None:
    assert table.upsert(pa.table({"id": range(2000)})) == "done"
    first, *more, last = screen.shown
    assert '<progress max="2000" value="' in first["text/html"]
    assert "rows written" in first["text/plain"]
    assert [each["text/html"] for each in more] == sorted(
        (each["text/html"] for each in more), key=lambda html: int(html.split('"')[3])
    )
    assert last == {"text/plain": "", "text/html": ""}, "the bar is removed"
    del screen.shown[:]
    assert table.to_arrow(0.1) == "all"
    assert screen.shown[0]["text/html"].startswith("<progress></progress> 1,000 rows read, ")


def test_the_traceback_of_an_expected_error_has_no_frame_of_the_client(table: Any) -> None:
    """A notebook shows ten lines of code for each of them."""
    for call in (table.lookup, lambda: connect("127.0.0.1:1")):
        with pytest.raises(ClientError) as caught:
            call()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert {each.filename for each in frames} == {__file__}
        assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_short_calls_other_threads_and_other_programs_show_nothing(
    screen: Screen, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.to_arrow(0)
    thread = threading.Thread(target=table.to_arrow, args=(0.1,))
    thread.start()
    thread.join()
    vars(sys.modules["IPython"])["get_ipython"] = lambda: SimpleNamespace()  # IPython on a terminal
    table.to_arrow(0.1)
    monkeypatch.delitem(sys.modules, "IPython")
    table.to_arrow(0.1)
    assert screen.shown == []


def test_a_statement_of_many_calls_shows_one_bar_and_an_error_removes_it(screen: Screen, table: Any) -> None:
    counts = table._loop.counts
    result = SqlResult(pa.schema([("id", pa.int64())]), (table.to_arrow(0.1) for _ in ()))
    result.watched = lambda: watched(counts)
    assert len(result) == 0
    assert screen.shown == []
    with pytest.raises(ValueError, match="no"), watched(counts):
        for _ in range(3):
            table.to_arrow(0.1)
        raise ValueError("no")
    assert screen.shown[0]["text/plain"].endswith(" s")
    assert screen.shown[-1] == {"text/plain": "", "text/html": ""}
